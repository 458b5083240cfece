"""The skyline of rows of which only bounds are known."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.lib.filter.errors import FilterError
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.querying.ranking import SKYLINE_MAX, in_skyline
from protocols.measurement.querying.running import RunningQuery
from protocols.measurement.querying.statement import parse_statement
from protocols.measurement.readings import NodeEntry, Reading

NUMBERS = st.integers(0, 6).map(float)
VALUES = st.tuples(NUMBERS, NUMBERS, st.floats(0.0, 1.0)).map(lambda each: (min(each[:2]), max(each[:2]), each[2]))
ROWS = st.lists(st.tuples(VALUES, VALUES, st.sampled_from([True, None]), st.booleans()), max_size=7)


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and one[0] <= other[0] and one[1] >= other[1]


@given(ROWS)
def test_what_is_certain_is_in_every_skyline_and_what_is_ruled_out_in_none(
    rows: list[tuple[tuple[float, float, float], tuple[float, float, float], bool | None, bool]],
) -> None:
    """The first column is to be small, the second one large; rows that are not certain may be there or not."""
    columns = [[Interval(*row[0][:2]) for row in rows], [Interval(*row[1][:2]) for row in rows]]
    kinds = in_skyline(columns, (False, True), [row[2] for row in rows])
    true = [tuple(low + share * (high - low) for low, high, share in row[:2]) for row in rows]
    there = [bool(certain or is_there) for _, _, certain, is_there in rows]
    for at, kind in enumerate(kinds):
        is_in = there[at] and not any(there[other] and beats(true[other], true[at]) for other in range(len(rows)))
        assert kind is None or kind is is_in or (kind is True and not there[at])


def query(text: str, values: dict[int, tuple[Interval, Interval]]) -> RunningQuery:
    nodes = [NodeEntry(NodeId(each), f"10.0.0.{each}:1", {}, ("cpu", "memory")) for each in range(len(values))]
    running = RunningQuery(parse_statement(text), nodes, lambda name: 0.5)
    while wants := running.needs():
        for want in wants:
            interval = values[int(want.measurement.owner)][want.measurement.name == "memory"]
            middle = Interval(interval.centre, interval.centre) if running.rounds > 1 else interval
            measurement = Measurement(want.measurement.owner, want.measurement.name)
            running.told([Reading(measurement, middle.centre, middle, 0.0, False, want.measurement.owner, messages=2)])
    return running


def test_a_statement_shows_the_nodes_that_none_beats_and_asks_again_about_those_that_depend() -> None:
    values = {
        0: (Interval(0.1, 0.2), Interval(0.7, 0.8)),
        1: (Interval(0.3, 0.4), Interval(0.1, 0.2)),
        2: (Interval(0.5, 0.6), Interval(0.3, 0.4)),  # both is worse than of the one before
        3: (Interval(0.32, 0.42), Interval(0.12, 0.22)),  # nobody can tell
    }
    once = query("SELECT node FROM nodes SKYLINE OF cpu MIN, memory WITHIN 0.05 REQUIRE 0", values).answer()
    assert [(row.values[0], row.certainty) for row in once.rows] == [
        (f"{0:032x}", "yes"),
        (f"{1:032x}", "maybe"),
        (f"{3:032x}", "maybe"),
    ]
    settled = query("SELECT node FROM nodes SKYLINE OF cpu MIN, memory REQUIRE 1", values).answer()
    assert [(row.values[0], row.certainty) for row in settled.rows] == [(f"{0:032x}", "yes"), (f"{1:032x}", "yes")]
    most = query("SELECT node FROM nodes SKYLINE OF cpu MAX", values).answer()
    assert [row.values[0] for row in most.rows] == [f"{2:032x}"]


def test_a_skyline_of_groups_and_of_too_many_nodes_is_refused() -> None:
    with pytest.raises(FilterError, match="SKYLINE is of single nodes"):
        parse_statement("SELECT COUNT(*) FROM nodes SKYLINE OF cpu")
    with pytest.raises(FilterError, match="SKYLINE is of single nodes"):
        parse_statement("SELECT a.node FROM nodes a, nodes b SKYLINE OF a.cpu")
    many = {each: (Interval(0.0, 1.0), Interval(0.0, 1.0)) for each in range(SKYLINE_MAX + 1)}
    with pytest.raises(FilterError, match="use WHERE"):
        query("SELECT node FROM nodes SKYLINE OF cpu, memory", many).answer()
