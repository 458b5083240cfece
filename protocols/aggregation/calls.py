"""The functions that a query calls, as text: ``quantile(latency_ms, 0.9)``."""

from __future__ import annotations

import json
import re
from typing import Final

from peerd.frozen import Frozen
from protocols.aggregation.numbers import Number

NAME: Final = re.compile(r"[@A-Za-z_][A-Za-z0-9_.\-]*")
"""A field that need not be quoted."""
KEYWORDS: Final = frozenset({"by", "where"})


class Call(Frozen):
    """A function of a query: its name, the field that it takes (``None`` for ``count``), and the numbers behind it."""

    name: str
    field: str | None = None
    arguments: tuple[Number, ...] = ()

    def __str__(self) -> str:
        if self.field is None:
            return self.name
        return f"{self.name}({', '.join((show_name(self.field), *map(repr, self.arguments)))})"


def show_name(name: str) -> str:
    """A field as a query's text has it: quoted, with JSON's escapes, where it must be."""
    return name if NAME.fullmatch(name) and name.lower() not in KEYWORDS else json.dumps(name, ensure_ascii=False)


def plain_number(number: Number) -> Number:
    """``1.0`` as 1: equal numbers of a call must be the same ones, as calls are compared and remembered."""
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) < 2**53 else number
