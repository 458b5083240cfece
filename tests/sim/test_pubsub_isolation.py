"""One careless filter ends its own subscription, with the reason, and costs nobody else an event."""

from __future__ import annotations

import pytest

from peerd.lib.feed import FeedItem, Policy
from protocols.pubsub.front.judging import plugin_of
from protocols.pubsub.models import SubscriptionRequest
from tests.support.pubsub_rings import PubSubRing
from tests.support.pubsub_schemas import fail_filters

EVENTS = 8


def test_a_filter_that_fails_in_its_leaf_and_at_its_own_node_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = PubSubRing(6)
    publisher, own, other = ring.simulation.nodes[1:4]
    told: list[object] = []
    ids = []
    for node, text in ((own, "attr2 >= 0"), (own, "attr1 >= 0 OR attr1 < 0"), (other, "attr1 < 0 OR attr1 >= 0")):
        asked = SubscriptionRequest.model_validate({"schema": ring.workload.schema, "filter": text})
        ids.append((plugin_of(node), plugin_of(node).subscriptions.subscribe(asked, told.append).id))
    ring.simulation.run_until(lambda: len(told) == len(ids), limit_s=60.0)
    feeds = [plugin.subscriptions.reading(id)[1] for plugin, id in ids]
    fail_filters(monkeypatch, "attr2")
    outcomes: list[object] = []
    for _ in range(EVENTS):
        plugin_of(publisher).entering.publish(ring.workload.schema, ring.workload.event(), outcomes.append)
        ring.simulation.run_for(0.5)
    ring.simulation.run_until(lambda: len(outcomes) == EVENTS, limit_s=60.0)
    ring.run_for(5.0)
    assert feeds[0].ended is not None and "a bug in the filter" in feeds[0].ended.reason
    for feed in feeds[1:]:
        reader, got = feed.reader("start", Policy.DROP_OLDEST), 0
        while (entry := reader.take()) is not None:
            got += isinstance(entry, FeedItem)
        assert got == EVENTS and feed.ended is None
