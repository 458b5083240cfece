"""The base of small immutable values that are compared and hashed by their fields."""

from __future__ import annotations

from typing import dataclass_transform

import msgspec
from msgspec.structs import astuple


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Frozen(msgspec.Struct, frozen=True):
    """What a frozen dataclass with slots is; but for that Python writes the source of six methods and compiles them,
    which was a sixth of a daemon's start, and each object of it takes eight times as long to make.

    `msgspec.structs.replace` makes a changed copy. What changes itself stays a dataclass: setting a field is faster.
    """

    def __hash__(self) -> int:
        """As a tuple's. msgspec's own hash differs from process to process, and so would the order of a set."""
        return hash(astuple(self))
