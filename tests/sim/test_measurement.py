"""Measurement queries in simulated rings: what is told is right, and costs what the page says."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from protocols.measurement.front.simulator import NAMES, WITHIN
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.messages import NodesQuestion, ReadValues
from protocols.measurement.readings import NoReading, Reading
from protocols.measurement.watching import Watch
from tests.support.measurement_ring import STALE_S, Ring


def watched(watch: Watch, after: int = 0) -> list[Reading]:
    """What a client has been told, after so many."""
    held = (watch.feed.held(number) for number in range(after + 1, watch.feed.last + 1))
    return [each for each in held if isinstance(each, Reading)]


def test_every_node_is_known_to_every_other_with_its_tags_and_what_it_measures() -> None:
    ring = Ring(12)
    ring.read("walk")
    entries = sorted(ring.plugin().directory.known(), key=lambda entry: entry.id)
    assert [entry.id for entry in entries] == sorted(place.id for place in ring.places)
    assert all(entry.measurements == tuple(sorted(NAMES)) for entry in entries)
    assert all(entry.tags == {"role": "web"} for entry in entries)
    assert not ring.plugin().directory.problems()


def test_a_value_is_read_in_two_messages_and_told_again_for_nothing_while_it_is_young() -> None:
    ring = Ring(12)
    first = [each for each in ring.read("walk", "level") if isinstance(each, Reading)]
    assert len(first) == 24
    assert sum(each.messages for each in first) == 2 * 11
    again = [each for each in ring.read("walk", "level") if isinstance(each, Reading)]
    assert sum(each.messages for each in again) == 0
    ring.simulation.run_for(2.5)
    younger = [each for each in ring.read("level", stale_s=2.0) if isinstance(each, Reading)]
    assert all(each.age_s <= 2.0 and not each.is_stale for each in younger)
    assert sum(each.messages for each in younger) == 2 * 11
    ring.simulation.run_for(STALE_S)
    later = [each for each in ring.read("walk") if isinstance(each, Reading)]
    assert sum(each.messages for each in later) == 2 * 11


def test_a_value_that_is_young_enough_does_not_grow_too_old_while_others_are_asked_for() -> None:
    ring = Ring(12)
    cost = 0
    for _ in range(100):
        answers = [each for each in ring.read("walk", stale_s=3.0) if isinstance(each, Reading)]
        assert len(answers) == 12
        assert not [each.age_s for each in answers if each.is_stale]
        cost += sum(each.messages for each in answers)
        ring.simulation.run_for(0.1)
    assert cost < 2 * 11 * 10, "they are not asked for much more often than they grow old"


def test_a_value_that_is_just_young_enough_is_told_as_that_though_the_clock_goes_on_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a daemon; in the simulator time stands still while a node works."""
    ring = Ring(3)
    ring.read("level")
    host, readings = ring.plugin().host, ring.plugin().readings
    oldest = min(found.known.basis for found in readings._kept.values())
    moments = count()
    monkeypatch.setattr(host, "now", lambda: oldest + STALE_S - 25e-6 + next(moments) * 10e-6)
    owners = {measurement.owner for measurement in readings._kept}
    told: list[Reading | NoReading] = []
    readings.read([Want(Measurement(owner, "level"), 1000.0) for owner in owners], STALE_S, told.extend)
    assert len(told) == len(owners) and all(isinstance(each, Reading) and not each.is_stale for each in told)
    assert host.now() - oldest > STALE_S, "it has gone on beyond that"


def test_who_asks_while_an_answer_is_under_way_waits_for_that_one() -> None:
    ring = Ring(12)
    ring.read("walk")
    ring.simulation.run_for(STALE_S)
    told: list[list[Reading | NoReading]] = []

    def take(answers: list[Reading | NoReading] | Exception) -> None:
        assert isinstance(answers, list)
        told.append(answers)

    for _ in range(50):
        ring.plugin().asking.read(
            ["level"],
            lambda entry: True,
            WITHIN,
            STALE_S,
            take,
        )
    ring.simulation.run_until(lambda: len(told) == 50, limit_s=30)
    assert sum(each.messages for answers in told for each in answers if isinstance(each, Reading)) == 2 * 11


def test_of_a_node_that_is_gone_there_is_an_old_value_or_a_reason() -> None:
    ring = Ring(12)
    ring.read("walk")
    ring.simulation.kill(ring.places[5])
    ring.simulation.run_for(STALE_S + 60)
    answers = {(each.measurement.owner, each.measurement.name): each for each in ring.read("walk", "level")}
    old = answers[ring.places[5].id, "walk"]
    assert isinstance(old, Reading)
    assert old.is_stale
    assert old.age_s > 60
    none = answers[ring.places[5].id, "level"]
    assert isinstance(none, NoReading)
    assert "did not answer" in none.reason or "known" in none.reason


def test_a_watch_is_told_when_its_bounds_are_broken_and_of_nothing_else() -> None:
    ring = Ring(12)
    watch = ring.plugin().watching.watch({"level": 0.5}, lambda entry: True, STALE_S)
    ring.simulation.run_for(10)
    assert {each.measurement.owner for each in watched(watch)} == {place.id for place in ring.places}
    first = watch.feed.last
    ring.simulation.run_for(50)
    seen = watched(watch, first)
    changes = 12 * 50 / 20  # each level is another one every 20 seconds, of ten
    assert 0.6 * changes < len(seen) < 1.05 * changes
    assert not any(each.is_stale for each in seen)
    assert ring.oracle.judged > 300


def test_what_nobody_watches_any_more_costs_nothing() -> None:
    ring = Ring(12)
    plugin = ring.plugin()
    watch = plugin.watching.watch({"level": 0.5}, lambda entry: True, STALE_S)
    ring.simulation.run_for(20)
    assert ring.sent.counts[CacheUpdate] > 11 * 3
    plugin.watching.end(watch, "over")
    ring.simulation.run_for(45)  # the owners are told; whoever missed it is not asked any more
    ring.sent.counts.clear()
    ring.simulation.run_for(20)
    assert not ring.sent.counts
    assert not plugin.caching.holder.held


def test_a_watcher_knows_soon_that_a_value_is_stale_and_when_it_is_back() -> None:
    ring = Ring(8, max_age="10s", update_interval="2s", ask_interval="3s")
    watch = ring.plugin().watching.watch({"walk": 2.0}, lambda entry: True, STALE_S)
    ring.simulation.run_for(10)
    victim = ring.places[3]
    before = watch.feed.last
    ring.simulation.pause(victim)
    ring.simulation.run_for(STALE_S + 4)
    stale = [each for each in watched(watch, before) if each.is_stale]
    assert {each.measurement.owner for each in stale} == {victim.id}
    assert len(stale) == 1
    ring.simulation.resume(victim)
    before = watch.feed.last
    ring.simulation.run_for(15)
    assert any(each.measurement.owner == victim.id and not each.is_stale for each in watched(watch, before))


def test_a_watch_that_nobody_reads_ends() -> None:
    ring = Ring(4)
    plugin = ring.plugin()
    plugin.watching.watch({"walk": 2.0}, lambda entry: True, STALE_S)
    ring.simulation.run_for(75)
    assert not len(plugin.watching.watches)
    assert not plugin.caching.holder.wanted


def test_a_new_node_is_watched_too_and_its_tags_follow_a_reload() -> None:
    ring = Ring(6)
    watch = ring.plugin().watching.watch({"level": 0.5}, lambda entry: entry.tags.get("role") == "db", STALE_S)
    ring.simulation.run_for(15)
    assert not watch.told
    other = ring.plugin(2)
    other.config = other.config.model_copy(update={"tags": {"role": "db"}})
    other.reconfigured()
    ring.simulation.run_for(40)
    assert {measurement.owner for measurement in watch.told} == {ring.places[2].id}


def test_what_was_asked_and_sent_is_told_once_a_minute_while_there_is_any() -> None:
    ring = Ring(8)
    ring.read("walk", "level")
    ring.read("walk", "level")
    watch = ring.plugin().watching.watch({"level": 0.5}, lambda entry: True, STALE_S)
    ring.simulation.run_for(61)
    [mine] = ring.sent.traffic[0]
    assert (mine.reads, mine.values, mine.stale, mine.missing) == (2, 2 * 16, 0, 0)
    assert mine.cached == 16 + 2, "its own ones, and all at the second time"
    assert mine.held_values == 7 and mine.holders == 0 and mine.relative_width is None
    assert mine.asks >= 7 and mine.owner_questions == 7
    ring.plugin().watching.end(watch, "over")
    ring.simulation.run_for(150)
    told = {index: len(events) for index, events in ring.sent.traffic.items()}
    assert set(told) == set(range(8)) and max(told.values()) <= 3
    assert max(event.holders for event in ring.sent.traffic[3]) == 1
    every = [event for events in ring.sent.traffic.values() for event in events]
    sent = ring.sent.counts
    assert sum(event.asks for event in every) == sent[CacheAsk]
    assert sum(event.owner_questions for event in every) == sent[ReadValues]
    assert sum(event.node_questions for event in every) == sent[NodesQuestion]
    updates = Counter(broken=0, time_out=0)
    for event in every:
        updates += Counter(broken=event.updates_broken, time_out=event.updates_time_out, gone=event.updates_gone)
    assert sum(updates.values()) == sent[CacheUpdate] and updates["broken"] and updates["time_out"]
    ring.simulation.run_for(200)
    assert {index: len(events) for index, events in ring.sent.traffic.items()} == told, "nothing happened"


def test_what_a_watched_statement_looks_at_is_no_question_of_a_client() -> None:
    ring = Ring(4)
    answers: list[Any] = []
    statement = "SELECT node, walk FROM nodes WITHIN walk 2 STALE 8s"
    ring.plugin().queries.watch(statement)
    ring.simulation.run_for(50)
    ring.plugin().queries.ask(statement, answers.append)
    ring.simulation.run_for(15)
    [answered] = answers
    assert len(answered.answer.rows) == 4
    [mine, *_] = ring.sent.traffic[0]
    assert (mine.reads, mine.values, mine.cached) == (1, 4, 4) and mine.held_values == 3


def test_a_node_that_stops_tells_what_it_has_not_told_yet() -> None:
    ring = Ring(4)
    ring.read("walk")
    ring.simulation.stop(ring.places[0])
    ring.simulation.run_for(20)
    [mine] = ring.sent.traffic[0]
    assert (mine.reads, mine.owner_questions) == (1, 3)


def test_the_oracle_finds_a_cache_that_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from protocols.measurement.guarantee.provider import Provider

    monkeypatch.setattr(Provider, "changed", lambda self, measurements, now: [])
    monkeypatch.setattr(Provider, "validate", lambda self, now: None)
    with pytest.raises(Exception, match="is said to have been in"):
        ring = Ring(6)
        ring.plugin().watching.watch({"level": 0.5}, lambda entry: True, STALE_S)
        ring.simulation.run_for(60)


def test_a_watch_that_begins_when_the_last_one_has_just_ended_looks_as_any_other() -> None:
    """Its timer was armed twice (swarm seed 47)."""
    ring = Ring(3)
    for _ in range(2):
        watch = ring.plugin().watching.watch({"level": 0.4}, lambda entry: True, STALE_S)
        ring.simulation.run_for(0.5)
        ring.plugin().watching.end(watch, "the client has gone")
    watch = ring.plugin().watching.watch({"level": 0.4}, lambda entry: True, STALE_S)
    ring.simulation.run_for(30)
    assert len(watched(watch)) >= 3


def test_what_has_not_changed_is_not_told_again_when_it_is_described_anew() -> None:
    ring = Ring(8, describe_interval="20s")
    ring.read("walk")
    ring.simulation.run_for(60)
    ring.read("walk")
    known = [dict(shard.nodes) for shard in ring.plugin().directory._shards]
    ring.simulation.run_for(60)
    before = ring.sent.counts[NodesQuestion]
    ring.read("walk")
    assert ring.sent.counts[NodesQuestion] > before
    moved = 0
    for earlier, shard in zip(known, ring.plugin().directory._shards, strict=True):
        for node, described in shard.nodes.items():
            is_same = replace(described, number=0) == replace(earlier[node], number=0)
            assert is_same is (described.number == earlier[node].number)
            moved += not is_same
    assert moved <= 4, "a node or two may have moved in the latency space, each in two shards"
