"""Streams on a simulated ring: created, found, subscribed to, and gone on with whatever dies."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from peerd.errors import Unavailable
from peerd.sim.runner import run_scenario
from peerd.sim.scenario import parse_scenario
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.checkers import OneProducer
from protocols.dissemination.front.judging import StreamJudge, WatchedStream, plugin_of
from protocols.dissemination.models import (
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamTreeView,
    StreamView,
)
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.service import StreamRefused
from tests.support.long_cases import cases

SPEC = StreamSpec(name="news", kind="classes", policy="first_fit")
CLASSES = "abcd"


class Streams:
    """A ring with one stream, whose producer is the first node."""

    def __init__(self, count: int, seed: int = 0, spec: StreamSpec = SPEC, **settings: Any) -> None:
        config = DisseminationConfig.model_validate({"fan_out": 3, **settings})
        self.rng = Random(seed)
        self.simulation: Simulation = ring(count, seed, plugins=lambda index: [Dissemination(config)])
        self.judge = StreamJudge()
        self.spec = spec
        self.producer: Place = self.simulation.nodes[0]
        told: list[StreamView | Exception] = []
        self.judge.create(self.producer, spec, told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=30.0)
        assert isinstance(told[0], StreamView), told

    @property
    def others(self) -> list[Place]:
        return [place for place in self.simulation.nodes[1:] if place.is_live]

    def subscribe(self, place: Place, wants: str, after: str | None = None) -> WatchedStream:
        watched = self.judge.subscribe(place, self.spec.name, wants, after)
        self.simulation.run_until(lambda: watched.reader is not None or watched.is_over, limit_s=30.0)
        assert not watched.why_not, watched.why_not
        return watched

    def subscribe_all(self) -> list[WatchedStream]:
        wanted = (",".join(sorted(self.rng.sample(CLASSES, self.rng.randint(1, 3)))) for _ in self.others)
        return [self.subscribe(place, wants) for place, wants in zip(self.others, wanted, strict=True)]

    def publish(self, count: int, spacing_s: float = 0.1) -> None:
        for _ in range(count):
            self.judge.publish(self.producer, self.spec.name, self.rng.choice(CLASSES))
            self.simulation.run_for(spacing_s)

    def settle(self, duration_s: float = 5.0) -> None:
        self.simulation.run_for(duration_s)
        self.judge.read()

    def assert_complete(self) -> None:
        self.judge.read()
        watermark = {name: stream.last for name, stream in self.judge.streams.items()}
        assert not self.judge.offences
        assert not self.judge.missing(watermark)

    def tree(self, at: Place) -> StreamTreeView:
        told: list[StreamTreeView | Exception] = []
        plugin_of(at).questions.tree(self.spec.name, told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=60.0)
        assert isinstance(told[0], StreamTreeView)
        return told[0]


def test_everybody_gets_what_it_wants_and_nothing_else() -> None:
    streams = Streams(16)
    watched = streams.subscribe_all()
    streams.publish(40)
    streams.settle()
    streams.assert_complete()
    assert all(each.received and not each.lost for each in watched)


def test_a_tree_is_told_by_any_node_and_within_the_fan_out() -> None:
    streams = Streams(16)
    streams.subscribe_all()
    view = streams.tree(streams.others[5])
    assert len(view.nodes) == 16 and not view.missing
    assert max(node.children for node in view.nodes) <= 3
    by_id = {node.node: node for node in view.nodes}
    for node in view.nodes:
        assert node.depth == (0 if node.parent is None else by_id[node.parent].depth + 1)


@pytest.mark.parametrize("seed", cases(range(2), (2, 3)))
def test_killed_nodes_cost_their_subtrees_nothing(seed: int) -> None:
    streams = Streams(20, seed)
    streams.subscribe_all()
    for _ in range(4):
        streams.publish(10)
        inner = [place for place in streams.others if _children(place)]
        streams.simulation.kill(streams.rng.choice(inner))
        streams.publish(30, 0.2)
    streams.settle(20.0)
    streams.assert_complete()
    assert sum(each.lost for each in streams.judge.watched if each.is_live) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_end_of_a_parents_process_is_noticed_at_once(seed: int) -> None:
    """Its connections are closed, and new ones refused: nobody waits for its silence, or for the ring."""
    streams = Streams(16, seed)
    streams.subscribe_all()
    streams.publish(20)
    victim = streams.rng.choice([place for place in streams.others if _children(place)])
    nodes = [node for place in streams.others for node in plugin_of(place).nodes]
    orphans = [node for node in nodes if node.parent is not None and node.parent.id == victim.peer.id]
    assert orphans
    streams.simulation.kill(victim)
    streams.simulation.run_for(1.0)
    assert all(node.parent is not None and node.parent.id != victim.peer.id for node in orphans)


def _children(place: Place) -> int:
    return sum(len(node.member.down.children) for node in plugin_of(place).nodes)


def test_a_producer_that_is_restarted_goes_on_and_what_may_be_lost_is_told() -> None:
    streams = Streams(8)
    streams.subscribe_all()
    streams.publish(20)
    streams.simulation.kill(streams.producer)
    streams.simulation.run_for(5.0)
    streams.simulation.restart(streams.producer)
    streams.simulation.run_until(lambda: streams.producer.is_live and streams.producer.node.is_ready, limit_s=60.0)
    streams.settle(40.0)
    before = {each.place.index: each.received for each in streams.judge.watched}
    streams.publish(40)
    streams.settle()
    streams.assert_complete()
    assert all(each.received > before[each.place.index] for each in streams.judge.watched)


def test_a_node_that_leaves_hands_its_children_over_and_nothing_is_lost() -> None:
    streams = Streams(16)
    streams.subscribe_all()
    leaver = next(place for place in streams.others if _children(place) > 1)
    done: list[bool] = []
    plugin_of(leaver).drain(lambda: done.append(True))
    streams.publish(60)
    assert done and not len(plugin_of(leaver).nodes)
    streams.settle()
    streams.assert_complete()
    assert sum(each.lost for each in streams.judge.watched) == 0
    assert len(streams.tree(streams.producer).nodes) == 15
    with pytest.raises(Unavailable, match="leaving"):  # the ring would not answer it
        plugin_of(leaver).questions.find(SPEC.name, print)


def test_a_name_has_one_producer() -> None:
    streams = Streams(6)
    told: list[StreamView | Exception] = []
    plugin_of(streams.others[0]).changes.create(SPEC, told.append)
    streams.simulation.run_until(lambda: bool(told), limit_s=30.0)
    assert isinstance(told[0], StreamRefused) and told[0].kind == "conflict"


@pytest.mark.parametrize("seed", range(3))
def test_of_two_streams_of_one_name_one_is_left_when_a_divided_ring_is_one_again(seed: int) -> None:
    """Each part has let a node create the name. Publishers and subscribers of the other one are told so."""
    simulation: Simulation = ring(
        10, seed, plugins=lambda index: [Dissemination(DisseminationConfig.model_validate({"lease": "30s"}))]
    )
    sides = simulation.nodes[:5], simulation.nodes[5:]
    simulation.partition(*sides)
    simulation.run_for(60.0)
    told: list[StreamView | StreamSubscriptionView | Exception] = []
    for side in sides:
        plugin_of(side[1]).changes.create(SPEC, told.append)
        simulation.run_for(10.0)
        plugin_of(side[2]).subscribing.subscribe(StreamSubscriptionRequest(stream="news", name="audit"), told.append)
        simulation.run_for(10.0)
    assert len(told) == 4 and not any(isinstance(answer, Exception) for answer in told)
    simulation.heal()
    assert OneProducer().check(simulation)
    simulation.run_for(120.0)
    assert not OneProducer().check(simulation)
    left = [node for place in simulation.nodes for node in plugin_of(place).nodes]
    assert sum(node.is_producer for node in left) == 1
    assert len({node.record.producer.id for node in left}) == 1
    over = next(side for side in sides if not len(plugin_of(side[1]).nodes))
    with pytest.raises(StreamRefused, match="produces no stream"):
        plugin_of(over[1]).publishers.publish("news", b"a")
    [subscription] = plugin_of(over[2]).subscribing.subscriptions()
    assert subscription.state == "ended"


def test_a_stream_that_ends_ends_its_subscriptions() -> None:
    streams = Streams(12)
    watched = streams.subscribe_all()
    told: list[StreamView | Exception] = []
    plugin_of(streams.producer).changes.remove("news", told.append)
    streams.settle()
    assert isinstance(told[0], StreamView)
    assert all(each.is_over for each in watched)
    assert not any(len(plugin_of(place).nodes) for place in streams.simulation.nodes)


def test_a_stream_that_is_created_again_has_no_number_twice() -> None:
    streams = Streams(4)
    streams.publish(5)
    told: list[StreamView | Exception] = []
    plugin_of(streams.producer).changes.remove("news", told.append)
    streams.simulation.run_until(lambda: bool(told), limit_s=30.0)
    plugin_of(streams.producer).changes.create(SPEC, told.append)
    streams.simulation.run_until(lambda: len(told) == 2, limit_s=30.0)
    assert plugin_of(streams.producer).publishers.publish("news", b"a").id == "1-6"


def test_a_plugin_that_replaces_a_failed_one_gives_no_number_twice() -> None:
    streams = Streams(6)
    watched = streams.subscribe_all()
    streams.publish(5)
    streams.producer.node.restart_plugin("dissemination")
    streams.settle()
    streams.publish(20)
    streams.settle(20.0)
    streams.assert_complete()
    assert all(each.received for each in watched)


def test_a_stream_whose_producer_is_gone_for_good_ends_if_its_record_says_so() -> None:
    spec = SPEC.model_copy(update={"producer_gone": "end"})
    streams = Streams(8, spec=spec, lease="15s", producer_gone_after="5s")
    watched = streams.subscribe_all()
    streams.publish(5)
    streams.simulation.kill(streams.producer)
    streams.settle(10.0)
    assert not any(each.is_over for each in watched), "its record is still there: it may come back"
    streams.settle(60.0)
    assert all(each.is_over for each in watched)
    assert not any(len(plugin_of(place).nodes) for place in streams.others)


def test_a_burst_that_is_larger_than_a_queue_loses_nothing() -> None:
    streams = Streams(4, replay_items=300)
    (watched, *_) = [streams.subscribe(place, "a") for place in streams.others]
    for _ in range(1000):
        streams.judge.publish(streams.producer, "news", "a")
    streams.settle()
    streams.assert_complete()
    assert (watched.received, watched.lost) == (1000, 0)


def test_what_is_remembered_is_had_by_those_who_come_late() -> None:
    streams = Streams(10)
    for place in streams.others[:4]:
        streams.subscribe(place, "a")
    streams.publish(30)
    watched = streams.subscribe(streams.others[6], "a,b", "start")
    streams.settle()
    streams.assert_complete()
    wanted = [each for each in streams.judge.streams["news"].classes if each in "ab"]
    assert watched.received == len(wanted)


def test_nobody_who_does_not_take_part_has_a_timer() -> None:
    streams = Streams(6)
    watched = streams.subscribe(streams.others[0], "a")
    streams.judge.end(watched)
    streams.settle(20.0)
    assert not len(plugin_of(streams.others[0]).nodes)
    assert len(streams.tree(streams.producer).nodes) == 1


@pytest.mark.parametrize(("interest", "kind"), [("a-b", "invalid"), ("a,,b", "invalid")])
def test_an_interest_that_cannot_be_read_is_refused(interest: str, kind: str) -> None:
    streams = Streams(4)
    watched = streams.judge.subscribe(streams.others[0], "news", interest)
    streams.simulation.run_until(lambda: watched.is_over, limit_s=10.0)
    assert "classes" in watched.why_not


def test_a_scenario_makes_a_stream_and_reports_what_came() -> None:
    call = {"do": "call", "protocol": "dissemination", "action": "stream"}
    phases = [
        {"duration_s": 10.0},
        {"duration_s": 10.0, "actions": [{**call, "node": 0, "arguments": {"do": "create", "name": "s"}}]},
        {
            "duration_s": 10.0,
            "actions": [{**call, "node": 1, "arguments": {"do": "subscribe", "name": "s", "interest": "a"}}],
        },
        {
            "duration_s": 10.0,
            "actions": [
                {**call, "node": 0, "arguments": {"do": "publish", "name": "s", "payloads": ["a"], "count": 20}},
            ],
        },
        {"actions": [{**call, "node": 1, "arguments": {"do": "received", "name": "s"}}]},
    ]
    scenario = parse_scenario({"nodes": 4, "phases": phases, "protocols": {"dissemination": {}}})
    rows = [row for row in run_scenario(scenario).calls if "received" in row]
    assert [(row["received"], row["gaps"]) for row in rows] == [(20, 0)]


def test_who_begins_behind_an_item_that_is_not_there_yet_is_told() -> None:
    streams = Streams(4)
    streams.publish(3)
    for place in (streams.producer, streams.others[0]):
        told: list[Any] = []
        epoch = place_epoch(streams)
        for after in (f"{epoch}-3", f"{epoch}-9", f"{epoch + 1}-1", "start"):
            request = StreamSubscriptionRequest(stream="news", interest="a", after=after)
            plugin_of(place).subscribing.subscribe(request, told.append)
            streams.simulation.run_for(5.0)
        notes = [view.note for view in told]
        assert notes[0] == notes[3] == ""
        assert notes[1] == (f"the stream is at {epoch}-3, before {epoch}-9: what comes until then is not given to you")
        assert notes[2].startswith(f"the stream is at {epoch}-3, before {epoch + 1}-1")


def place_epoch(streams: Streams) -> int:
    """The producer's boot, as ids of items have it."""
    position = plugin_of(streams.producer).questions.streams()[0].position
    assert position is not None
    return int(position.partition("-")[0])


def test_a_renewed_record_names_the_producers_children_for_newcomers_to_begin_at() -> None:
    streams = Streams(5, lease="10s")
    streams.subscribe_all()
    streams.settle(10.0)
    told: list[Any] = []
    plugin_of(streams.others[0]).streams.registry.find(SPEC.name, told.append)
    streams.simulation.run_until(lambda: bool(told), limit_s=30.0)
    [node] = plugin_of(streams.producer).nodes
    assert [seed.peer for seed in told[0].seeds] == [streams.producer.peer, *(child.peer for child in node.children())]
    assert len(told[0].seeds) > 1
