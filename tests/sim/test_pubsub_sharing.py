"""A hot leaf whose subscriptions all have one point, in simulated rings: its root shares the work with neighbours."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from peerd.sim.simulation import Place
from protocols.pubsub.front.judging import PublishedEvent, plugin_of
from protocols.pubsub.front.workload import Ranges, ThesisWorkload
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.loans import LEASE_S
from tests.support.branch import branched
from tests.support.pubsub_rings import PubSubRing

HOT: dict[str, Any] = {
    "leaf_capacity": 40,
    "widen": 0.0,
    "hot_rate": "50B",
    "hot_share": 1.5,
    "hot_look": "10s",
    "merge_after": "20s",
    "update_interval": "10s",
}


class Around(ThesisWorkload):
    """Subscriptions that match what the crowd's do, and more: each has a point of its own."""

    def ranges(self) -> Ranges:
        return {"attr1": (4000.0 + 500 * self._rng.random(), 5500.0)}


def one_point(seed: int, **settings: Any) -> PubSubRing:
    """A ring with one leaf that gets all events, for subscribers on most nodes."""
    made = PubSubRing(16, seed, HOT | settings)
    made.workload = ThesisWorkload(Random(seed), crowd=1.0)
    made.subscribe(12)
    return made


def shared(made: PubSubRing) -> list[tuple[Place, CellNode]]:
    """The leaves that are shared at this moment, at their roots."""
    now, nodes = made.simulation.now, made.simulation.live_nodes()
    found = [(place, node) for place in nodes for node in plugin_of(place).rendezvous.forest.nodes()]
    return [(place, node) for place, node in found if node.loans is not None and node.loans.serving(now)]


def helpers(made: PubSubRing) -> list[Place]:
    """The nodes that help them."""
    found = [loan.peer.id for _, node in shared(made) for loan in (node.loans.of if node.loans else {}).values()]
    return [made.simulation.places[node_id] for node_id in found]


def publish_until(made: PubSubRing, is_reached: Callable[[], bool], most: int = 1500) -> list[PublishedEvent]:
    """Five events a second, by all nodes."""
    events: list[PublishedEvent] = []
    while not is_reached():
        assert len(events) < most, "not reached"
        events += made.publish(1, spacing_s=0.2, ack="replicated")
    return events


def begun(seed: int, **settings: Any) -> tuple[PubSubRing, list[PublishedEvent]]:
    """A ring in which the leaf is shared, and publishers have been told."""
    made = one_point(seed, **settings)
    events = publish_until(made, lambda: bool(shared(made)))
    return made, events + made.publish(60, ack="replicated")


def visits(place: Place, events: list[PublishedEvent]) -> int:
    """How many of these events have visited the leaf at a node."""
    broker = plugin_of(place).delivering.broker
    return sum(bool(broker.matched_in(event.event)) for event in events)


def test_each_event_visits_the_root_or_one_helper_and_all_arrive_in_order() -> None:
    made, events = begun(1)
    later = made.publish(200, ack="replicated")
    made.finish([*events, *later])
    root, _ = shared(made)[0]
    counts = [visits(place, later) for place in (root, *helpers(made))]
    assert len(counts) > 2 and max(counts) < 0.6 * len(later) and min(counts[:3]) > 0.05 * len(later)
    assert sum(visits(place, later) for place in made.simulation.live_nodes()) == len(later), "no extra visit"
    assert made.offences([*events, *later]) == []


def test_a_subscription_that_comes_while_the_leaf_is_shared_gets_every_event_from_when_it_was_told() -> None:
    made, events = begun(2)
    for _ in range(8):
        watched = made.subscribe(1)
        assert watched[0].established_at is not None
        events += made.publish(20, ack="replicated")
    made.finish(events)
    assert shared(made)
    assert made.offences(events) == [] and made.lost() == []


@pytest.fixture(scope="module", params=range(3, 7))
def shared_before(request: pytest.FixtureRequest) -> tuple[PubSubRing, list[PublishedEvent]]:
    """What `begun` makes with a seed. For branches: it stays as it is."""
    return begun(request.param)


@pytest.mark.parametrize("who", ["root", "helper"])
@branched
def test_the_root_or_a_helper_may_die(shared_before: tuple[PubSubRing, list[PublishedEvent]], who: str) -> None:
    made, events = shared_before
    made.simulation.kill(shared(made)[0][0] if who == "root" else helpers(made)[0])
    events += made.publish(40, ack="replicated")
    made.subscribe(2)
    events += made.publish(100, ack="replicated")
    made.finish(events)
    assert made.offences(events) == []
    made.rest()
    assert made.lost() == []


def test_the_leaf_is_shared_no_longer_when_it_is_cool() -> None:
    made, events = begun(7)
    helper = helpers(made)[0]
    made.simulation.run_until(lambda: not shared(made), limit_s=600.0, poll_s=5.0)
    made.run_for(2 * LEASE_S)
    assert not plugin_of(helper).rendezvous.sharing.is_busy
    later = made.publish(40, ack="replicated")
    made.finish([*events, *later])
    assert made.offences([*events, *later]) == []


def test_a_shared_leaf_is_split_when_it_is_full_and_can_be() -> None:
    made, events = begun(8, leaf_capacity=14)
    made.workload = Around(Random(8))
    (_, node) = shared(made)[0]
    made.subscribe(10)
    made.workload = ThesisWorkload(Random(9), crowd=1.0)
    events += publish_until(made, lambda: node.is_inner)
    events += made.publish(50, ack="replicated")
    made.finish(events)
    assert made.offences(events) == [] and made.lost() == []
