"""Aggregates inside the tree T, in simulated rings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from peerd.messages import Message
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from protocols.measurement.aggregates.messages import AggregateAsk, AggregateWord
from protocols.measurement.aggregates.partial import PartialAggregate, merged
from protocols.measurement.aggregates.subtree import SubtreeAggregate
from protocols.measurement.querying.answer import BoundedValue, QueryAnswer
from protocols.measurement.standing import StandingQuery
from tests.sim.test_measurement_queries import answers, asked
from tests.support.measurement_ring import Ring

STALE_S = 12


class Words(Checker):
    """Counts messages of aggregates by who sends them."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, type[Message]]] = Counter()

    def sent(self, simulation: Simulation, place: Place, message: Message) -> None:
        if isinstance(message, AggregateAsk | AggregateWord):
            self.counts[place.index, type(message)] += 1


class TreeRing(Ring):
    """A ring that answers aggregates in its tree. Each node measures a ``mark``, a bit of its own, so that a sum says
    who is counted, and how often."""

    def __init__(self, nodes: int, **settings: Any) -> None:
        self.words = Words()
        super().__init__(nodes, placing="tree", checkers=[self.words], **settings)
        for place in self.places:
            self.plugin(place.index).put("mark", 2.0**place.index, 3600.0)
        self.simulation.run_for(25)

    def watch(self, text: str, index: int = 0) -> StandingQuery:
        """A client's."""
        query = self.plugin(index).queries.watch(text)
        query.feed.reader()
        return query


def last(query: StandingQuery) -> tuple[QueryAnswer, BoundedValue]:
    """What its client was told last."""
    told = answers(query)[-1]
    value = told.rows[0].values[0]
    assert isinstance(value, BoundedValue)
    return told, value


def by_place(ring: TreeRing) -> tuple[list[int], list[int]]:
    """The root of T, and the others."""
    root = [place.index for place in ring.places if ring.plugin(place.index).tree.parent() is None]
    return root, [place.index for place in ring.places if place.index not in root]


def test_a_watched_sum_comes_from_the_root_alone() -> None:
    ring = TreeRing(12)
    [root], [one, other, *_] = by_place(ring)
    text = f"WATCH SELECT SUM(mark) FROM nodes WHERE role = 'web' WITHIN 0 STALE {STALE_S}s"
    queries = [ring.watch(text, index) for index in (root, one, other, other)]
    ring.simulation.run_for(30)
    for query in queries:
        told, value = last(query)
        assert (value.low, value.high) == (2**12 - 1, 2**12 - 1)
        assert (told.sure, told.goodness, told.unmet) == (12, 1.0, {})
    assert not ring.plugin(one).caching.holder.held, "no values are held for it"
    ring.words.counts.clear()
    ring.simulation.run_for(STALE_S)
    counts = ring.words.counts
    # What an application has put is looked at every five seconds, so that there is no more to say.
    assert 11 * 2 <= sum(counts[index, AggregateWord] for index in range(12) if index != root) <= 11 * 3
    assert counts[one, AggregateAsk] == counts[other, AggregateAsk] == 2, "clients of one node share it"
    assert 2 * 2 <= counts[root, AggregateWord] <= 2 * 8
    for query in queries:
        query.feed.end("over", is_final=True)
        ring.plugin(query_at(ring, query)).queries._end(query, "over")
    ring.simulation.run_for(5 * STALE_S)
    ring.words.counts.clear()
    ring.simulation.run_for(2 * STALE_S)
    assert not ring.words.counts
    assert not any(ring.plugin(index).aggregates.aggregates for index in range(12)), "all have forgotten it"
    ring.simulation.run_for(60)
    events = [event for each in ring.sent.traffic.values() for event in each]
    assert sum(event.aggregate_asks for event in events) == ring.sent.counts[AggregateAsk] > 0
    assert sum(event.aggregate_words for event in events) == ring.sent.counts[AggregateWord] > 0


def query_at(ring: TreeRing, query: StandingQuery) -> int:
    """The node whose client it is."""
    return next(place.index for place in ring.places if query in list(ring.plugin(place.index).queries.standing))


def test_who_has_changed_is_told_within_moments_and_others_are_not() -> None:
    ring = TreeRing(12)
    _, [one, other, *_] = by_place(ring)
    query = ring.watch("WATCH SELECT MAX(mark) FROM nodes WITHIN 100 STALE 30s", one)
    ring.simulation.run_for(20)
    ring.plugin(other).put("mark", 1e6, 3600.0)
    ring.simulation.run_for(3)
    assert last(query)[1].low <= 1e6 <= last(query)[1].high
    before = query.feed.last
    ring.plugin(other).put("mark", 1e6 + 20.0, 3600.0)
    ring.simulation.run_for(20)
    assert query.feed.last == before, "it is in its bounds"


def test_loss_and_deaths_make_a_sum_partial_and_never_wrong() -> None:
    ring = TreeRing(40)
    ring.simulation.network.configure(loss=0.05)
    region = "FROM nodes WHERE role = 'web'"
    texts = (
        f"SUM(walk) {region} WITHIN 40",
        f"MAX(walk) {region} WITHIN 1",
        f"MEAN(level) {region} WITHIN 0.5",
        f"COUNT(*) {region} AND level >= 5 WITHIN 1",
    )
    [root], others = by_place(ring)
    for index, text in zip(others, texts, strict=False):
        ring.watch(f"WATCH SELECT {text} STALE {STALE_S}s", index)
    asker, dead = others[-2:]
    marks = ring.watch("WATCH SELECT SUM(mark) FROM nodes WITHIN 0 STALE 24s", asker)
    seen: Counter[tuple[str, int]] = Counter()
    for phase, victim, seconds in (("all", None, 30), ("one dead", dead, 40), ("no root", root, 100)):
        if victim is not None:
            ring.simulation.kill(ring.places[victim])
        for _ in range(seconds):
            ring.simulation.run_for(1.0)
            found = marks.aggregate and ring.plugin(asker).aggregates.answer(marks.aggregate)
            if found and not found.is_stale and found.interval is not None:
                assert found.interval.low == found.interval.high, "bounds of nothing are met"
                assert int(found.interval.low).bit_count() == found.counted, "nobody is counted twice"
                seen[phase, found.counted] += 1
    assert seen["all", 40] and seen["one dead", 39] and seen["no root", 38], seen
    told, _ = last(marks)
    assert "NODES" in told.unmet and told.goodness < 1.0, "who is dead is missing, and not gone"
    assert ring.oracle.judged_aggregates > 500


def test_the_oracle_finds_a_node_that_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SubtreeAggregate.known

    def twice(self: SubtreeAggregate, now: float) -> PartialAggregate:
        return merged("SUM", [self.own, known(self, now)])

    monkeypatch.setattr(SubtreeAggregate, "known", twice)
    ring = TreeRing(6)
    ring.watch("WATCH SELECT SUM(level) FROM nodes WITHIN 1 STALE 12s")
    with pytest.raises(Exception, match="is told, of"):
        ring.simulation.run_for(30)


def test_what_is_explained_says_that_it_is_reckoned_in_the_tree() -> None:
    ring = TreeRing(6)
    lines = asked(ring, "EXPLAIN SELECT SUM(walk) FROM nodes WITHIN 3").lines
    assert any("in the tree" in line for line in lines)
    assert not any("in the tree" in line for line in asked(ring, "EXPLAIN SELECT walk FROM nodes").lines)


def test_without_a_tree_values_are_held() -> None:
    ring = Ring(6, placing="owners")
    query = ring.plugin().queries.watch("WATCH SELECT SUM(walk) FROM nodes WITHIN 3 STALE 12s")
    ring.simulation.run_for(15)
    assert len(ring.plugin().caching.holder.wanted) == 5
    assert last(query)[1].high - last(query)[1].low <= 6.0 + 1e-6, "it is the sum that is to be within 3"
    assert not any("in the tree" in line for line in asked(ring, "EXPLAIN SELECT SUM(walk) FROM nodes").lines)
