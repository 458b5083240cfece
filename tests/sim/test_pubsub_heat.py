"""Adaptive load balancing in simulated rings: all events in a small part of the domain."""

from __future__ import annotations

from typing import Any

import pytest

from protocols.pubsub.front.judging import PublishedEvent, plugin_of
from protocols.pubsub.front.workload import ThesisWorkload
from tests.support.pubsub_rings import PubSubRing

HOT: dict[str, Any] = {
    "leaf_capacity": 40,
    "hot_rate": "50B",
    "hot_share": 1.5,
    "base_attribute": "random",
    "leaf_cache_max": 0,
    "ack": "received",
}
ADAPT_S = 300.0


def skewed(seed: int, **settings: Any) -> PubSubRing:
    """A ring in which all events lie in one percent of each domain, with room in every leaf."""
    made = PubSubRing(24, seed, HOT | settings)
    made.workload = ThesisWorkload(made.rng, focus=0.01)
    made.subscribe(120)
    return made


def publish_for(made: PubSubRing, duration_s: float) -> list[PublishedEvent]:
    """Two events a second."""
    return made.publish(round(2 * duration_s), spacing_s=0.5)


@pytest.mark.parametrize("seed", range(2))
def test_hot_leaves_are_split_and_nothing_is_lost_meanwhile(seed: int) -> None:
    made = skewed(seed)
    before = len(made.leaves())
    events = publish_for(made, ADAPT_S)
    made.finish(events)
    assert made.offences(events) == []
    assert len(made.leaves()) > before
    assert len(made.lost()) == 0


if __name__ == "__main__":
    import sys

    for s in range(int(sys.argv[1]), int(sys.argv[2])):
        m = skewed(s)
        b = len(m.leaves())
        ev = publish_for(m, ADAPT_S)
        m.finish(ev)
        print(s, b, len(m.leaves()), m.offences(ev)[:3], flush=True)
