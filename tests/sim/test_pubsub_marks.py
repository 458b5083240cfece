"""What leaves drop for a daemon whose reader has stopped is told to the reader, to the last event."""

from __future__ import annotations

from peerd.lib.feed import FeedDropped, FeedItem, Policy
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.models import SubscriptionRequest
from tests.support.pubsub_rings import PubSubRing

EVENTS = 60


def test_a_reader_that_blocks_and_stops_hears_how_many_events_it_has_lost() -> None:
    """One subscription alone in its schema: then the number is exact."""
    ring = PubSubRing(6, settings={"feed_items": 3, "delivery_queue": "64KiB", "delivery_window": 1})
    node, publisher = ring.simulation.nodes[2], ring.simulation.nodes[4]
    asked = SubscriptionRequest.model_validate(
        {"schema": ring.workload.schema, "filter": "attr1 >= 0 OR attr1 < 0", "policy": "block"}
    )
    told: list[object] = []
    view = plugin_of(node).subscriptions.subscribe(asked, told.append)
    ring.simulation.run_until(lambda: bool(told), limit_s=60.0)
    reader = plugin_of(node).subscriptions.reading(view.id)[1].reader("start", Policy.BLOCK)
    outcomes: list[object] = []
    for _ in range(EVENTS):
        event = {**ring.workload.event(), "_payload": "x" * 10_000}
        plugin_of(publisher).entering.publish(ring.workload.schema, event, outcomes.append)
        ring.simulation.run_for(0.1)
    ring.simulation.run_until(lambda: len(outcomes) == EVENTS, limit_s=60.0)
    items, lost = 0, 0

    def read() -> None:
        nonlocal items, lost
        while (entry := reader.take()) is not None:
            assert isinstance(entry, FeedItem | FeedDropped), entry
            items += isinstance(entry, FeedItem)
            lost += entry.count if isinstance(entry, FeedDropped) else 0

    for _ in range(100):
        read()
        ring.simulation.run_for(0.5)
    assert items + lost == EVENTS
    assert lost > EVENTS / 2
    assert plugin_of(node).subscriptions.get(view.id).missed.total() == lost
