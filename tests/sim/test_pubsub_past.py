"""SINCE beyond what leaves remember: a mark says so, to the subscription that asked, and to no other."""

from __future__ import annotations

import pytest

from peerd.lib.feed import FeedDropped, FeedItem
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.models import SubscriptionRequest
from tests.support.pubsub_rings import PubSubRing

EVERYTHING = "attr1 >= 0 OR attr1 < 0"


def past_of(ring: PubSubRing, since_s: float) -> tuple[int, list[tuple[str, int]]]:
    """How many events of the past a new subscription gets, and the marks among them."""
    plugin = plugin_of(ring.simulation.nodes[2])
    told: list[object] = []
    asked = {"schema": ring.workload.schema, "filter": EVERYTHING, "since_s": since_s}
    view = plugin.subscriptions.subscribe(SubscriptionRequest.model_validate(asked), told.append)
    reader = plugin.subscriptions.reading(view.id)[1].reader("start")
    ring.simulation.run_until(lambda: bool(told), limit_s=60.0)
    ring.run_for(10.0)
    count, marks = 0, []
    while (entry := reader.take()) is not None:
        count += isinstance(entry, FeedItem)
        if isinstance(entry, FeedDropped):
            assert entry.loss is not None
            marks.append((entry.loss.reason, entry.count))
    return count, marks


@pytest.mark.parametrize(
    ("settings", "since_s", "is_told"),
    [
        ({}, 250.0, False),
        ({}, 50_000.0, False),  # the ring is younger, so nothing was forgotten
        ({"history_age": "100s"}, 250.0, True),
        ({"history_age": "100s"}, 60.0, False),
        ({"history_bytes": "64KiB"}, 250.0, True),
    ],
)
def test_a_past_that_is_not_remembered_is_told(settings: dict[str, object], since_s: float, is_told: bool) -> None:
    ring = PubSubRing(6, 0, settings)
    ring.run_for(60.0)
    plugin = plugin_of(ring.simulation.nodes[2])
    waiting: list[object] = []
    asked = {"schema": ring.workload.schema, "filter": "attr1 < 0 OR attr1 >= 0", "since_s": 1.0}
    other = plugin.subscriptions.subscribe(SubscriptionRequest.model_validate(asked), waiting.append)
    plugin.subscriptions.reading(other.id)[1].reader("start")  # one that nobody reads ends
    made = ring.publish(60, spacing_s=3.0)
    ring.finish(made)
    count, marks = past_of(ring, since_s)
    assert marks == ([("past", 0)] if is_told else [])
    assert count > 0
    view, _ = plugin.subscriptions.reading(other.id)
    assert not view.missed_because, "it had all that it asked for"


def test_leaves_that_were_restarted_since_say_so() -> None:
    ring = PubSubRing(6, 0, {})
    ring.run_for(60.0)
    ring.finish(ring.publish(20, spacing_s=1.0))
    for place in ring.simulation.nodes:
        ring.simulation.kill(place)
        ring.run_for(2.0)
        ring.simulation.restart(place)
        ring.run_for(20.0)
    _, marks = past_of(ring, 50_000.0)
    assert marks == [("past", 0)]
