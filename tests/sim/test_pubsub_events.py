"""Events on a simulated ring with given trees: each covers its target, in order at each leaf, with few messages."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place as Node, Simulation
from peerd.testing.determinism import assert_one_run
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.messages import ProbePub
from protocols.pubsub.names import EventId, Tree, key_of
from protocols.pubsub.publishing import lanes
from protocols.pubsub.publishing.lanes import LaneBook
from protocols.pubsub.publishing.outcomes import PublishStatus
from protocols.pubsub.publishing.probing import LevelGuide
from protocols.pubsub.service import NotDone
from protocols.pubsub.tree.cells import SIDE, WHOLE, level
from tests.support.pubsub_events import SCHEMA, Events, Forest, LineSchema, events_of, events_ring
from tests.support.pubsub_rings import PubSubRing

PATIENT = PubSubConfig(publish_timeout=120.0, publish_retry=0.5)


def finish(simulation: Simulation, publishers: Sequence[Events], count: int, limit_s: float = 200.0) -> None:
    """Let time pass until so many publishes are over."""
    simulation.run_until(lambda: sum(len(each.outcomes) for each in publishers) >= count, limit_s=limit_s)


def visited(simulation: Simulation, event: EventId) -> set[tuple[int, int]]:
    """The leaves that an event has been to, at any node."""
    found = set()
    for node in simulation.live_nodes():
        for place, names in events_of(node).acking.visits.items():
            if event in names:
                found.add(place)
    return found


def wanted(forest: Forest, values: dict[str, int]) -> set[tuple[int, int]]:
    """The leaves that an event has to go to."""
    targets = LineSchema().targets(values)
    return {(attribute, leaf) for attribute, target in targets.items() for leaf in forest.met(attribute, target)}


def values_of(rng: Random) -> dict[str, int]:
    """An event; of some, an attribute is missing."""
    names = ("1", "2") if rng.random() < 0.9 else ("1",)
    return {name: rng.randrange(SIDE) for name in names}


def probes(simulation: Simulation) -> int:
    """How many messages with events were sent from node to node so far."""
    return simulation.traffic()[ProbePub.TYPE_ID][0]


@pytest.mark.parametrize("seed", range(4))
def test_every_event_covers_its_target_in_order_at_each_leaf_whatever_is_lost(seed: int) -> None:
    """Random trees, from one leaf to twelve levels, while a twentieth of all messages is lost."""
    rng = Random(seed)
    forest = Forest.grown(rng, depth=4 * seed, branching=0.75)
    network = NetworkConfig(loss=0.05)
    simulation = events_ring(24, seed, forest, PATIENT, network)
    publishers = [events_of(node) for node in rng.sample(simulation.live_nodes(), 3)]
    published: dict[EventId, dict[str, int]] = {}
    for _ in range(12):
        for publisher in publishers:
            for _ in range(rng.randrange(1, 5)):
                values = values_of(rng)
                published[publisher.publish(values)] = values
        simulation.run_for(rng.uniform(0.0, 1.0))
    finish(simulation, publishers, len(published))
    outcomes = [outcome for publisher in publishers for outcome in publisher.outcomes]
    assert {outcome.status for outcome in outcomes} == {PublishStatus.REPLICATED}
    assert len(outcomes) == len({outcome.event for outcome in outcomes}) == len(published)
    assert any(outcome.tries > 1 for outcome in outcomes), "some messages were lost indeed"
    for event, values in published.items():
        assert visited(simulation, event) >= wanted(forest, values)
    for outcome in outcomes:
        assert outcome.leaves == len(wanted(forest, published[outcome.event]))
        # An answer is of several leaves together; one that comes again, for a leaf that has none yet, is of them all.
        assert outcome.matched >= outcome.leaves and (outcome.matched == outcome.leaves or outcome.tries > 1)
    assert_in_order(simulation, deepest=4 * seed)


def assert_in_order(simulation: Simulation, deepest: int) -> None:
    """At each point of a tree, the events that may match there came first in the order of their publishing.

    A copy of an event that has been there before does not count: its subscribers have it.
    """
    schema = LineSchema()
    arrivals = [each for node in simulation.live_nodes() for each in events_of(node).acking.arrivals]
    newest: dict[tuple[int, int, int], int] = {}
    came: set[tuple[int, int, int, int]] = set()
    for arrival in sorted(arrivals, key=lambda each: each.at_s):
        for event in arrival.events:
            targets = schema.targets(schema.decode_values(event.values))
            for attribute, leaf in arrival.places:
                shift = deepest - level(leaf)
                for grain in range(leaf << shift, (leaf + 1) << shift):
                    visit = (event.publisher.id, attribute, grain)
                    if targets[attribute].meets(grain) and (*visit, event.sequence) not in came:
                        came.add((*visit, event.sequence))
                        assert event.sequence > newest.get(visit, 0), f"{event.sequence} came late to {leaf:b}"
                        newest[visit] = event.sequence


@pytest.mark.parametrize("seed", range(3))
def test_a_tree_that_changes_all_the_time_still_sees_every_event_in_order(seed: int) -> None:
    """Leaves are split and merged between two events, and while events are on their way to them."""
    rng = Random(seed)
    forest = Forest.grown(rng, depth=4)
    simulation = events_ring(16, seed, forest, PATIENT, NetworkConfig(loss=0.02))
    publishers = [events_of(node) for node in rng.sample(simulation.live_nodes(), 3)]
    for _ in range(60):
        rng.choice(publishers).publish(values_of(rng))
        if rng.random() < 0.5:
            forest.change(rng, depth=6)
        simulation.run_for(rng.uniform(0.0, 0.2))
    finish(simulation, publishers, 60)
    outcomes = [outcome for publisher in publishers for outcome in publisher.outcomes]
    assert {outcome.status for outcome in outcomes} == {PublishStatus.REPLICATED}
    assert_in_order(simulation, deepest=6)


@pytest.mark.parametrize("seed", [1, 2, 3, 5])  # with others, such as 0, 4 and 12, fewer batches are on their way
def test_several_batches_on_their_way_to_a_leaf_keep_their_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are lost and overtake each other, and leaves are split, merged and get other roots meanwhile."""
    monkeypatch.setattr(lanes, "FURTHER_EVENTS", 1)
    last_flying, before = LaneBook.last_flying, list[int]()

    def noted(book: LaneBook, tree: Tree, cell: int) -> int:
        before.append(last_flying(book, tree, cell))
        return before[-1]

    monkeypatch.setattr(LaneBook, "last_flying", noted)
    rng = Random(seed)
    forest = Forest.grown(rng, depth=2)
    network = NetworkConfig(loss=0.02, reordering=0.1, is_fifo=False)
    simulation = events_ring(12, seed, forest, PATIENT, network)
    publishers = [events_of(node) for node in simulation.live_nodes()[:2]]
    for step in range(300):
        rng.choice(publishers).publish(values_of(rng))
        if step % 40 == 20:
            forest.change(rng, depth=4)
        if step % 100 == 50:
            simulation.start(1)
        if step % 100 == 90:
            simulation.kill(rng.choice(simulation.live_nodes()[2:]))
        simulation.run_for(rng.uniform(0.0, 0.02))
    finish(simulation, publishers, 300)
    outcomes = [outcome for publisher in publishers for outcome in publisher.outcomes]
    assert {outcome.status for outcome in outcomes} == {PublishStatus.REPLICATED}
    assert sum(map(bool, before)) > 20, "several were on their way"
    assert_in_order(simulation, deepest=4)


def test_leaves_that_are_remembered_are_one_hop_away() -> None:
    forest = Forest.grown(Random(3), depth=6)
    simulation = events_ring(40, 3, forest)
    publisher = events_of(simulation.nodes[5])
    publisher.publish({})  # without any value, so it visits all leaves
    finish(simulation, [publisher], 1)
    for node in simulation.live_nodes():
        events_of(node).acking.arrivals.clear()
    values = {"1": SIDE // 3, "2": SIDE // 2}
    before = probes(simulation)
    publisher.publish(values)
    finish(simulation, [publisher], 2)
    targets = wanted(forest, values)
    owners = {simulation.oracle().root(key_of(Tree(SCHEMA, attribute), leaf)) for attribute, leaf in targets}
    assert len(owners) > 5
    assert probes(simulation) - before == len(owners - {publisher.host.id}), "one message to each root of a leaf"
    assert publisher.outcomes[-1].tries == 1
    assert visited(simulation, publisher.outcomes[-1].event) == targets


def _cost_to_publish(multicast: bool) -> tuple[int, int, set[tuple[int, int]]]:
    """Messages and bytes that take an event without any value to all leaves, and which those are."""
    forest = Forest.grown(Random(8), depth=8, branching=0.9)
    config = PubSubConfig(
        multicast=multicast, leaf_cache_max=0, publish_retry=20.0, probe_probability=1.0, probe_level_min=0
    )
    simulation = events_ring(60, 8, forest, config)
    publisher = events_of(simulation.nodes[0])
    publisher.publish({}, payload=bytes(100))
    finish(simulation, [publisher], 1)
    messages, size, _, _ = simulation.traffic()[ProbePub.TYPE_ID]
    return messages, size, visited(simulation, publisher.outcomes[0].event)


def test_probes_with_a_common_way_travel_as_one_message() -> None:
    """Figure 4.5: here the roots of the trees send to all leaves, so that many ways have much in common."""
    messages, size, leaves = _cost_to_publish(multicast=True)
    messages_apart, size_apart, same_leaves = _cost_to_publish(multicast=False)
    assert leaves == same_leaves == wanted(Forest.grown(Random(8), depth=8, branching=0.9), {})
    assert messages <= 0.6 * messages_apart, (messages, messages_apart)
    assert size <= 0.7 * size_apart, (size, size_apart)


def test_events_that_are_published_together_travel_together() -> None:
    """A hundred events to one leaf: the first goes alone, and all others together when it has been acknowledged."""
    forest = Forest({attribute: [WHOLE] for attribute in range(3)})
    simulation = events_ring(12, 1, forest)
    publisher = events_of(simulation.nodes[2])
    publisher.publish({"1": 1, "2": 1})
    finish(simulation, [publisher], 1)  # now the leaves are known
    before = probes(simulation)
    for number in range(100):
        publisher.publish({"1": number, "2": number})
    finish(simulation, [publisher], 101)
    assert probes(simulation) - before <= 2 * 3, "two batches for each of three trees"
    for attribute in range(3):
        visits = [events_of(node).acking.visits.get((attribute, WHOLE), []) for node in simulation.live_nodes()]
        assert sorted(len(names) for names in visits)[-1] == 101


@pytest.mark.parametrize("seed", range(2))
def test_publishing_survives_roots_that_die_and_nodes_that_join(seed: int) -> None:
    rng = Random(seed)
    forest = Forest.grown(rng, depth=6)
    simulation = events_ring(24, seed, forest, PATIENT)
    publisher = events_of(simulation.nodes[0])
    published: dict[EventId, dict[str, int]] = {}
    for index in range(30):
        values = values_of(rng)
        published[publisher.publish(values)] = values
        if index % 6 == 2:
            simulation.kill(rng.choice(simulation.live_nodes()[1:]))
        if index % 6 == 5:
            simulation.start(1)
        simulation.run_for(0.5)
    finish(simulation, [publisher], len(published))
    assert {outcome.status for outcome in publisher.outcomes} == {PublishStatus.REPLICATED}
    for outcome in publisher.outcomes:
        # A leaf's root that died took with it what it knew of its visits, but it had acknowledged them.
        assert {(each.attribute, each.cell) for each in outcome.answers} <= wanted(forest, published[outcome.event])
        assert outcome.leaves == len(wanted(forest, published[outcome.event]))


def _busy(seed: int) -> Simulation:
    """Events under loss, for as long as they take."""
    forest = Forest.grown(Random(seed), depth=5)
    simulation = events_ring(10, seed, forest, PATIENT, NetworkConfig(loss=0.05))
    publishers = [events_of(node) for node in simulation.nodes[:2]]
    for number in range(10):
        for publisher in publishers:
            publisher.publish({"1": number << 20, "2": number << 25})
    finish(simulation, publishers, 20)
    return simulation


def test_one_seed_is_one_run() -> None:
    assert_one_run(_busy, seed=4)


def test_the_depth_that_is_probed_follows_the_tree() -> None:
    forest = Forest({attribute: [(1 << 3) + bits for bits in range(1 << 3)] for attribute in range(3)})
    simulation = events_ring(24, 5, forest, PubSubConfig(leaf_cache_max=0))
    publisher = events_of(simulation.nodes[0])
    for number in range(10):
        publisher.publish({"1": number * SIDE // 10, "2": 5})
    finish(simulation, [publisher], 10)
    guide = publisher.guide
    assert isinstance(guide, LevelGuide)
    assert [guide.range_of(Tree(SCHEMA, attribute)) for attribute in range(3)] == [(2, 3)] * 3


def test_nobody_in_the_ring_is_unreachable_to_a_lone_node() -> None:
    """One node: all leaves are its own, and what it publishes goes nowhere else."""
    forest = Forest.grown(Random(1), depth=4)
    simulation = events_ring(1, 1, forest)
    node: Node = simulation.nodes[0]
    publisher = events_of(node)
    publisher.publish({"1": 7, "2": 7}, ack="received")
    finish(simulation, [publisher], 1)
    assert publisher.outcomes[0].status is PublishStatus.RECEIVED
    assert probes(simulation) == 0


def test_events_that_are_published_together_travel_together_and_each_has_its_outcome() -> None:
    ring = PubSubRing(4)
    plugin, schema = plugin_of(ring.simulation.nodes[0]), ring.workload.schema
    told: dict[int, object] = {}
    wrong: dict[str, Any] = {name: [] for name in ring.workload.event()}
    events: list[dict[str, Any]] = [*(ring.workload.event() for _ in range(30)), wrong, ring.workload.event()]
    for _ in range(2):  # the second time the leaves are known
        told.clear()
        before = probes(ring.simulation)
        assert plugin.entering.publish_many(schema, events, told.__setitem__) == 32
        ring.simulation.run_until(lambda: len(told) == 32, limit_s=60.0)
    assert probes(ring.simulation) - before <= 1, "one message to the root of all trees, unless it is this node"
    assert isinstance(told.pop(30), NotDone) and set(told.values()) == {None}
    assert plugin.entering.publish_many(schema, [events[0], {"later": 1}, events[1]], told.__setitem__) == 1, (
        "for a later version"
    )
