"""Cases of a parametrised test that only `make test-long` runs, beside those that `make test` runs, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_case(*values: Any) -> Any:
    """One case that is left out unless the long tests are asked for."""
    return pytest.param(*values, marks=pytest.mark.long)


def cases(always: Iterable[Any], only_long: Iterable[Any]) -> list[Any]:
    """Cases of one parameter: those of every run, and those of the long one only."""
    return [*always, *map(long_case, only_long)]
