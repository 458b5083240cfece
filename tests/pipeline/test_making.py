"""What a table is made of: events with the columns of its kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from peerd.plugins import find_events
from peerd.telemetry.schema import columns_of

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

KNOWN = find_events()
WHOLE: Any = "all columns"


def columns(patterns: Sequence[str]) -> object:
    """Those of the events that a table of these kinds is given."""
    from peerd.pipeline.making import EventTable

    class Told(EventTable):
        def with_columns(self, columns: Sequence[str]) -> Any:
            return columns

    return Told(WHOLE, KNOWN).of(patterns)


def test_a_table_is_given_the_columns_of_its_kinds() -> None:
    some = ("link.up", "aggregation.level_*")
    kinds = {kind: event for kind, event in KNOWN.items() if kind == "link.up" or kind.startswith("aggregation.level_")}
    assert len(kinds) > 1
    assert columns(some) == list(columns_of(kinds))


@pytest.mark.parametrize("patterns", [("*",), ("link.up", "*"), ("elsewhere.*",)])
def test_a_table_of_all_kinds_or_of_none_that_is_known_is_given_every_column(patterns: Sequence[str]) -> None:
    assert columns(patterns) == WHOLE


def test_a_plugins_table_is_not_made_of_what_other_plugins_leave() -> None:
    """Every plugin swaps: a table that took each `swap.finished` for its own would be there, and empty."""
    from peerd.plugins import find_fronts

    for name, front in find_fronts().items():
        for table in front.tables():
            strange = [kind for kind in table.kinds if kind.partition(".")[0] != name]
            assert not strange, f"{table.name} of {name} is made where there are {strange}"
