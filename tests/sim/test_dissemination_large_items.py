"""XML documents of up to 1 MiB on a simulated ring, filtered at each node: what comes is what lxml says."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from lxml import etree

from peerd.errors import Unavailable
from peerd.lib.feed import FeedItem
from peerd.sim.latency import ConstantLatency
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.judging import plugin_of
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.models import (
    ReceivedItem,
    StreamSpec,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamView,
)
from protocols.dissemination.plugin import Dissemination

LINK_BYTES_PER_S = 12.5e6
"""100 Mb/s."""
QUERIES = (
    "//title[. = 't1']",
    "/paper/section/figure",
    "//section[contains(title, '3')]",
    "/paper[@lang = 'fr']",
    "//note | //table[@rows > 90]",
    "",
)


def document(rng: Random, size: int) -> bytes:
    """A document with some of what the queries look for, and text up to its size."""
    parts = [f'<paper lang="{rng.choice(["de", "en", "fr"])}">']
    for _ in range(rng.randint(1, 20)):
        inside = rng.choice(["<figure/>", "<note/>", f'<table rows="{rng.randrange(100)}"/>', "", ""])
        parts.append(f"<section><title>t{rng.randrange(30)}</title>{inside}</section>")
    left = size - sum(map(len, parts)) - len("<text></text></paper>")
    return "".join([*parts, "<text>", "x" * max(0, left), "</text></paper>"]).encode()


class Papers:
    """A ring with one stream of XML, whose producer is the first node; every other node has one of the queries."""

    def __init__(self, count: int, seed: int, policy: str, **settings: Any) -> None:
        config = DisseminationConfig.model_validate({"fan_out": 2, "unread_for": "1h", **settings})
        self.rng = Random(seed)
        self.simulation: Simulation = ring(
            count,
            seed,
            plugins=lambda index: [Dissemination(config)],
            network=NetworkConfig(up_bytes_per_s=LINK_BYTES_PER_S, down_bytes_per_s=LINK_BYTES_PER_S),
            latency=ConstantLatency(0.002),
            check_every=500,
        )
        self.producer: Place = self.simulation.nodes[0]
        self.published: list[tuple[str, bytes]] = []
        self.subscribed: list[tuple[Place, str, str, int]] = []
        told: list[object] = []
        plugin_of(self.producer).changes.create(StreamSpec(name="papers", kind="xpath", policy=policy), told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=30.0)

    def subscribe(self, place: Place, query: str, after: str | None = None) -> None:
        told: list[StreamSubscriptionView | Exception] = []
        begun = 0 if after == "start" else len(self.published)
        asked = StreamSubscriptionRequest(stream="papers", interest=query, after=after)
        plugin_of(place).subscribing.subscribe(asked, told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=60.0)
        [view] = told
        assert isinstance(view, StreamSubscriptionView), view
        self.subscribed.append((place, query, view.id, begun))

    def publish(self, size: int) -> None:
        told: list[object] = []
        plugin = plugin_of(self.producer)
        plugin.publishers.when_publishable("papers", told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=60.0)
        data = document(self.rng, size)
        self.published.append((plugin.publishers.publish("papers", data, "application/xml").id, data))

    def received(self, place: Place, id: str) -> list[ReceivedItem]:
        _, feed = plugin_of(place).subscribing.reading(id)
        reader = feed.reader("start")
        found = []
        while isinstance(entry := reader.take(), FeedItem):
            found.append(entry.value)
        reader.close()
        return found

    def assert_all_have_what_lxml_says(self) -> None:
        for place, query, id, begun in self.subscribed:
            if place.is_live:
                wanted = [
                    name for name, data in self.published[begun:] if not query or etree.fromstring(data).xpath(query)
                ]
                came = self.received(place, id)
                assert [each.type for each in came] == ["item"] * len(wanted), (place, query, came[-1].type)
                assert [each.id for each in came] == wanted, (place, query)
                texts = dict(self.published)
                assert all((each.payload or "").encode() == texts[each.id] for each in came)


SIZES = (300, 39_000, 41_000, 66_000, 300_000, ITEM_BYTES_MAX)


@pytest.mark.parametrize("policy", ["first_fit", "overlap"])
def test_large_documents_are_filtered_at_each_node_while_one_dies_and_one_is_slow(policy: str) -> None:
    papers = Papers(8, 3, policy)
    others = papers.simulation.nodes[1:]
    for number, place in enumerate(others):
        papers.subscribe(place, QUERIES[number % len(QUERIES)])
    for size in SIZES:
        papers.publish(size)
    papers.simulation.run_for(2.0)
    inner = next(place for place in others if _children(place))
    slow = next(place for place in reversed(others) if not _children(place) and place is not inner)
    papers.simulation.pause(slow)
    for number, size in enumerate(SIZES):
        papers.publish(size)
        papers.simulation.run_for(0.02)
        if number == 3:
            papers.simulation.kill(inner)
    papers.simulation.run_for(1.0)
    papers.simulation.resume(slow)
    for size in SIZES:
        papers.publish(size)
    papers.simulation.run_for(20.0)
    papers.subscribe(slow, "//figure", after="start")
    papers.simulation.run_for(10.0)
    papers.assert_all_have_what_lxml_says()


def _children(place: Place) -> int:
    return sum(len(node.member.down.children) for node in plugin_of(place).nodes)


def test_a_stream_of_large_documents_is_handed_over_and_nobody_loses_one() -> None:
    papers = Papers(5, 1, "first_fit")
    for place, query in zip(papers.simulation.nodes[1:], QUERIES, strict=False):
        papers.subscribe(place, query)
    for size in SIZES:
        papers.publish(size)
    told: list[object] = []
    plugin_of(papers.producer).changes.hand_over("papers", papers.simulation.nodes[2].peer.address, told.append)
    papers.simulation.run_until(lambda: bool(told), limit_s=60.0)
    assert not isinstance(told[0], Exception), told
    papers.producer = papers.simulation.nodes[2]
    for size in SIZES:
        papers.publish(size)
    papers.simulation.run_for(10.0)
    papers.assert_all_have_what_lxml_says()


def test_what_is_published_behind_a_large_document_goes_out_behind_it() -> None:
    papers = Papers(4, 1, "first_fit", fan_out=1)
    for place in papers.simulation.nodes[1:]:
        papers.subscribe(place, "")
    plugin = plugin_of(papers.producer)
    for size in (ITEM_BYTES_MAX, 300, 70_000, 400):
        data = document(papers.rng, size)
        papers.published.append((plugin.publishers.publish("papers", data).id, data))
    told: list[object] = []
    plugin.publishers.when_publishable("papers", told.append)
    papers.simulation.run_for(0.01)
    assert told == [], "publishers wait meanwhile"
    with pytest.raises(Unavailable, match="wait until a large one"):
        while True:
            data = document(papers.rng, 300)
            papers.published.append((plugin.publishers.publish("papers", data).id, data))
    papers.simulation.run_for(5.0)
    assert told == [True]
    papers.assert_all_have_what_lxml_says()
    for size in (70_000, ITEM_BYTES_MAX, ITEM_BYTES_MAX, ITEM_BYTES_MAX):
        data = document(papers.rng, size)
        papers.published.append((plugin.publishers.publish("papers", data).id, data))
    plugin.changes.remove("papers", told.append)
    with pytest.raises(Unavailable, match="the stream papers is being ended"):
        plugin.publishers.publish("papers", document(papers.rng, 300))
    papers.simulation.run_for(5.0)
    assert isinstance(told[1], StreamView)
    for place, _, id, _ in papers.subscribed:
        came = papers.received(place, id)
        assert [each.id for each in came if each.type == "item"] == [name for name, _ in papers.published]
        assert came[-1].type == "ended"
