"""What only `make test-long` runs: the tests of a table, and cases beside those that always run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

DEAR: Final = Path(__file__).parents[1] / "long.txt"


def is_dear(node_id: str) -> bool:
    """Whether the table of dear tests names a test, or all cases of it."""
    return node_id in dear() or node_id.partition("[")[0] in dear()


@cache
def dear() -> frozenset[str]:
    """The lines of the table that are no comments."""
    return frozenset(line for line in DEAR.read_text("utf-8").splitlines() if line and not line.startswith("#"))


def long_case(*values: Any) -> Any:
    """One case that is left out unless the long tests are asked for."""
    return pytest.param(*values, marks=pytest.mark.long)


def cases(always: Iterable[Any], only_long: Iterable[Any]) -> list[Any]:
    """Cases of one parameter: those of every run, and those of the long one only."""
    return [*always, *map(long_case, only_long)]
