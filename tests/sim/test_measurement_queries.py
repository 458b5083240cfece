"""Statements in simulated rings: answered once, explained, and watched."""

from __future__ import annotations

from itertools import pairwise

import pytest

from peerd.errors import ClientRefusal
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.querying.answer import BoundedValue, QueryAnswer
from protocols.measurement.querying.running import RunningQuery
from protocols.measurement.querying.statement import parse_statement
from protocols.measurement.reading import REMEMBERED_MIN
from protocols.measurement.readings import Reading
from protocols.measurement.standing import AnsweredQuery, StandingQuery
from tests.support.measurement_ring import STALE_S, Ring


def asked(ring: Ring, text: str) -> AnsweredQuery:
    """What a client is told."""
    told: list[AnsweredQuery | Exception] = []
    ring.plugin().queries.ask(text, told.append)
    ring.simulation.run_until(lambda: bool(told), limit_s=60)
    if isinstance(told[0], Exception):
        raise told[0]
    return told[0]


def answers(query: StandingQuery, after: int = 0) -> list[QueryAnswer]:
    """What the client of a watched statement has been told, after so many."""
    held = (query.feed.held(number) for number in range(after + 1, query.feed.last + 1))
    return [each for each in held if isinstance(each, QueryAnswer)]


def test_a_statement_is_answered_in_two_messages_an_owner_and_then_for_nothing() -> None:
    ring = Ring(10)
    text = "SELECT node, walk FROM nodes WHERE walk > 0 AND role = 'web' WITHIN 2 STALE 8s"
    first, again = (asked(ring, text).answer for _ in range(2))
    assert first is not None and again is not None
    assert first.messages == 2 * 9
    assert again.messages == 0
    assert first.sure + first.ruled_out == 10
    assert not first.maybe
    walks = [row.values[1] for row in first.rows]
    assert all(isinstance(walk, BoundedValue) and walk.low > 0.0 for walk in walks)


def test_what_is_explained_is_told_before_it_is_paid() -> None:
    ring = Ring(10)
    text = "SELECT walk FROM nodes WHERE level > 3 WITHIN 1"
    plan = asked(ring, f"EXPLAIN {text}")
    assert plan.answer is None
    assert any("at most 18 at first" in line for line in plan.lines)
    cost = asked(ring, f"EXPLAIN ANALYZE {text}")
    assert cost.answer is not None
    assert any("18 messages in" in line for line in cost.lines)
    assert any("at most 0 at first" in line for line in asked(ring, f"EXPLAIN {text}").lines)


def test_a_budget_of_nothing_asks_nobody() -> None:
    ring = Ring(6)
    answer = asked(ring, "SELECT walk FROM nodes BUDGET 0").answer
    assert answer is not None
    assert answer.messages == 0
    assert len(answer.missing) == 5  # all but its own


@pytest.mark.parametrize("text", ["SELECT", "WATCH SELECT walk FROM nodes", "SELECT wolk FROM nodes"])
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    ring = Ring(3)
    with pytest.raises(ClientRefusal):
        asked(ring, text)


def test_a_watched_statement_tells_what_is_different_and_holds_what_it_reads() -> None:
    ring = Ring(8)
    query = ring.plugin().queries.watch("SELECT node, level FROM nodes WHERE level >= 5 WITHIN 0.2 STALE 8s")
    reader = query.feed.reader()
    ring.simulation.run_for(15)
    assert len(ring.plugin().caching.holder.wanted) == 7
    before = query.feed.last
    ring.simulation.run_for(100)
    told = answers(query, before)
    true = {place.id: ring.plugin(place.index).log["level"][-1][2] for place in ring.places}
    assert {str(row.values[0]) for row in told[-1].rows} == {
        f"{node:032x}" for node, level in true.items() if level >= 5
    }
    # Each level is another one every 20 seconds, of ten: an answer for each that matters, at most one a second.
    assert 10 <= len(told) <= 8 * 100 / 20 + 5
    assert all(earlier.rows != later.rows for earlier, later in pairwise(told))
    reader.close()
    ring.simulation.run_for(70)
    assert not len(ring.plugin().queries.standing)
    ring.simulation.run_for(STALE_S)
    assert not ring.plugin().caching.holder.wanted


def test_confidence_goes_by_what_this_node_has_read_of_a_measurement_before() -> None:
    """`spike` is 0, and in one second of fifty 100: that bounds allow for it does not make it probable."""
    ring = Ring(4)
    for _ in range(2 * REMEMBERED_MIN):
        ring.read("spike", stale_s=0.5)
        ring.simulation.run_for(1.0)
    measurement = Measurement(ring.places[1].id, "spike")
    spread = ring.plugin().readings.history(measurement)
    assert spread is not None and spread.edges[0] == 0.0
    assert ring.plugin().readings.history(Measurement(ring.places[1].id, "level")) is None

    nodes = list(ring.plugin().directory.known())
    text = "SELECT node FROM nodes WHERE spike < 50 WITHIN 60 REQUIRE 0"
    confidence = []
    for history in (ring.plugin().readings.history, lambda each: None):
        query = RunningQuery(parse_statement(text), nodes, lambda name: 60.0, history=history)
        for want in query.needs():
            bounds = Interval(0.0, 100.0)
            query.told([Reading(want.measurement, 0.0, bounds, 0.0, False, want.measurement.owner)])
        confidence.append(max(row.confidence for row in query.answer().rows))
    assert confidence[0] > 0.8 > 0.6 > confidence[1]
