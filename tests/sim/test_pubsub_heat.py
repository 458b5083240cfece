"""Adaptive load balancing in simulated rings: all events in a small part of the domain."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.sim.simulation import Place
from protocols.pubsub.front.judging import PublishedEvent, plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from protocols.pubsub.publishing import publisher as module
from tests.support.pubsub_rings import PubSubRing

HOT: dict[str, Any] = {
    "leaf_capacity": 40,
    "hot_rate": "50B",
    "hot_share": 1.5,
    "base_attribute": "random",
    "leaf_cache_max": 0,
}
ADAPT_S = 200.0


def skewed(seed: int, **settings: Any) -> PubSubRing:
    """A ring in which all events lie in one percent of each domain, with room in every leaf."""
    made = PubSubRing(24, seed, HOT | settings)
    made.workload = ThesisWorkload(made.rng, focus=0.01)
    made.subscribe(120)
    return made


def publish_for(made: PubSubRing, duration_s: float, ack: str | None = None) -> list[PublishedEvent]:
    """Two events a second."""
    return made.publish(round(2 * duration_s), spacing_s=0.5, ack=ack)


def splitting(made: PubSubRing) -> list[Place]:
    """The nodes of which a leaf is being split."""
    nodes = made.simulation.live_nodes()
    return [place for place in nodes if any(cell.split for cell in plugin_of(place).rendezvous.forest.nodes())]


def test_busy_leaves_are_split_while_events_come_and_merged_when_they_are_over() -> None:
    made = skewed(0, leaf_capacity=60, merge_share=0.9, merge_after="30s", update_interval="10s")
    made.run_for(120.0)
    before = len(made.leaves())
    events = publish_for(made, ADAPT_S, "received")
    grown = len(made.leaves())
    made.finish(events)
    assert grown > before
    made.simulation.run_until(lambda: len(made.leaves()) <= before, limit_s=900.0, poll_s=10.0)
    later = publish_for(made, 10.0)
    made.finish(later)
    assert made.offences([*events, *later]) == []
    assert made.lost() == []


def test_static_balancing_leaves_the_tree_as_it_is() -> None:
    made = skewed(0, balancing="static")
    before = set(made.leaves())
    events = publish_for(made, 60.0)
    made.finish(events)
    assert set(made.leaves()) == before
    assert made.offences(events) == []


def test_the_root_of_a_busy_leaf_may_die_while_it_is_split() -> None:
    made = skewed(2)
    events: list[PublishedEvent] = []
    while not splitting(made):
        assert len(events) < 4 * ADAPT_S, "nothing was split"
        events += made.publish(1, spacing_s=0.05, ack="replicated")
        made.run_for(0.2)
    made.simulation.kill(splitting(made)[0])
    events += publish_for(made, 60.0, "replicated")
    made.finish(events)
    assert made.offences(events) == []
    made.rest()
    assert made.lost() == []


def test_a_node_that_publishes_everything_hands_its_events_over_until_it_publishes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DIRECT_MIN", 8)  # so small a ring has no more roots
    made = skewed(3, leaf_capacity=5, leaf_cache_max=4096)
    made.run_for(120.0)
    publisher = made.simulation.live_nodes()[5]
    handing_over = plugin_of(publisher).forwarding.handing_over
    events = made.publish(round(2 * ADAPT_S), [publisher], spacing_s=0.5, ack="replicated")
    assert handing_over.is_on and handing_over.spared_rate(made.simulation.now) > 0
    others = [place for place in made.simulation.live_nodes() if place is not publisher]
    assert not any(plugin_of(place).forwarding.handing_over.is_on for place in others)
    made.finish(events)
    assert made.offences(events) == []
    made.simulation.run_until(lambda: not handing_over.is_on, limit_s=900.0, poll_s=10.0)
    later = made.publish(4, [publisher], ack="received")
    made.finish(later)
    assert made.offences(later) == []
