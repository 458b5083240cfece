"""A node whose own events weigh on it has others send them on: who gets what, when, and what stays here."""

from __future__ import annotations

from collections import Counter

import pytest

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import EventBody, ProbePub
from protocols.pubsub.names import EVERY, Tree, key_of
from protocols.pubsub.publishing.handing_over import DIRECT_MIN, HELPERS, LINKS_MIN, NEAREST, HandingOver
from protocols.pubsub.publishing.spread import AttributeCell, Batch, places_of, trees_of
from protocols.pubsub.tree.cells import cell_of_text
from protocols.pubsub.tree.meter import MESSAGE_BYTES
from tests.support.pubsub_events import SCHEMA, Events, Forest, LineSchema

CELLS = [cell_of_text(f"{number:07b}") for number in range(128)]
PLACES: list[AttributeCell] = [(EVERY, cell) for cell in CELLS]
NUMBERS = {key_of(Tree(SCHEMA, EVERY), cell): index for index, cell in enumerate(CELLS)}
LINKS = 2 * DIRECT_MIN
NEIGHBOURS = tuple(peer(number) for number in range(2, 18))
HOPS = [peer((index << 120) + 1) for index in range(1, LINKS + 1)]


def publisher(links: int = LINKS, own: int = 0) -> tuple[FakeHost, Events]:
    """A node with so many next hops for the cells, in equal shares; of the first ``own`` cells it is the root."""
    plugin = Events(PubSubConfig(), Forest({EVERY: CELLS}), LineSchema(attributes=0))
    host = FakeHost(1, plugin)

    def next_hop(key: NodeId) -> PeerRef | None:
        number = NUMBERS[key]
        return None if number < own else HOPS[number % links]

    host.next_hop = next_hop  # type: ignore[method-assign]  # the ways of a large ring
    host.neighbours = NEIGHBOURS
    plugin.forwarding.handing_over.is_on = True
    return host, plugin


def batch(host: FakeHost, attempt: int = 0) -> Batch:
    """An event of this node."""
    return Batch(SCHEMA, host.peer, (EventBody(host.peer, 1, 1, 1000, b"\x80"),), 0, attempt)


def sent(host: FakeHost) -> dict[PeerRef, list[AttributeCell]]:
    """What went to whom."""
    return {to: places_of(message.places) for to, message in host.take_sent() if isinstance(message, ProbePub)}


def test_an_event_goes_to_a_few_neighbours_with_the_cells_of_all_next_hops() -> None:
    host, plugin = publisher()
    plugin.forwarding.begin(batch(host), PLACES, remembered=False)
    found = sent(host)
    assert len(found) == HELPERS and found.keys() <= set(NEIGHBOURS)
    assert sorted(place for places in found.values() for place in places) == sorted(PLACES)
    assert {len(places) for places in found.values()} == {len(PLACES) // HELPERS}, "in equal parts"
    for places in found.values():
        hops = {HOPS[NUMBERS[key_of(Tree(SCHEMA, EVERY), cell)] % LINKS] for _, cell in places}
        assert len(hops) == LINKS // HELPERS, "all that goes to one next hop is in one part"


def test_what_is_here_is_taken_here() -> None:
    host, plugin = publisher(own=5)
    plugin.forwarding.begin(batch(host), PLACES, remembered=False)
    assert sorted(place for places in sent(host).values() for place in places) == PLACES[5:]
    assert [arrival.places for arrival in plugin.acking.arrivals] == [tuple(PLACES[:5])]


@pytest.mark.parametrize(("links", "attempt"), [(LINKS_MIN - 1, 0), (LINKS, 1)], ids=["few links", "second try"])
def test_nothing_is_handed_over_otherwise(links: int, attempt: int) -> None:
    host, plugin = publisher(links)
    plugin.forwarding.begin(batch(host, attempt), PLACES, remembered=False)
    looked_up = [asked for asked in host.asked if asked.what == "lookup"]
    assert len(sent(host)) + len(looked_up) == links, "a way that has failed is looked up before it is tried again"
    assert bool(looked_up) == bool(attempt)


def test_without_need_each_cell_goes_its_own_way() -> None:
    host, plugin = publisher()
    plugin.forwarding.handing_over.is_on = False
    plugin.forwarding.begin(batch(host), PLACES, remembered=False)
    assert len(sent(host)) == LINKS


def test_what_comes_back_on_its_way_is_sent_on_and_not_taken_for_a_repeat() -> None:
    host, plugin = publisher()
    events = batch(host)
    plugin.forwarding.begin(events, PLACES, remembered=False)
    helper = next(iter(sent(host)))
    place = PLACES[7]
    probe = ProbePub(SCHEMA, host.peer, events.events, trees_of([place]), 0, hops=1)
    host.deliver(probe, helper)
    assert sent(host) == {HOPS[7]: [place]}


@pytest.mark.parametrize(("roots", "messages"), [(DIRECT_MIN, HELPERS), (DIRECT_MIN - 1, DIRECT_MIN - 1)])
def test_remembered_leaves_are_handed_over_where_they_are_on_many_nodes(roots: int, messages: int) -> None:
    host, plugin = publisher()
    for index, cell in enumerate(CELLS):
        plugin.publishing.cache.answered(Tree(SCHEMA, EVERY), cell, HOPS[index % roots], host.now())
    plugin.publish({})
    probes = [message for _, message in host.take_sent() if isinstance(message, ProbePub)]
    assert len(probes) == messages
    assert all(probe.remembered for probe in probes)


def test_helpers_are_near_and_not_always_the_same() -> None:
    host = FakeHost(1)
    host.neighbours = NEIGHBOURS
    host.rtts = {each.id: 0.01 * index for index, each in enumerate(NEIGHBOURS)}
    ways = {hop: [(EVERY, index)] for index, hop in enumerate(HOPS)}
    handing_over = HandingOver(host)
    helpers = {helper for _ in range(50) for helper, _ in handing_over.parts(ways)}
    assert helpers == set(NEIGHBOURS[:NEAREST])


def test_of_two_neighbours_the_one_that_sends_less_helps() -> None:
    host = FakeHost(1)
    host.neighbours = NEIGHBOURS[:NEAREST]
    handing_over = HandingOver(host)
    handing_over.loads = {each.id: float(index) for index, each in enumerate(host.neighbours)}
    ways = {hop: [(EVERY, index)] for index, hop in enumerate(HOPS)}
    times = Counter(helper for _ in range(100) for helper, _ in handing_over.parts(ways))
    assert times[host.neighbours[0]] == 100 and times[host.neighbours[-1]] == 0
    assert len(times) == NEAREST - 1, "the others now and then"


def test_a_node_without_neighbours_sends_everything_itself() -> None:
    host, plugin = publisher()
    host.neighbours = ()
    plugin.forwarding.begin(batch(host), PLACES, remembered=False)
    assert len(sent(host)) == LINKS


def test_what_others_send_counts_as_a_load_that_there_would_be() -> None:
    host, plugin = publisher()
    events = batch(host)
    plugin.forwarding.begin(events, PLACES, remembered=False)
    handing_over, now, weight = plugin.forwarding.handing_over, host.now(), events.bytes + MESSAGE_BYTES
    assert handing_over.spared_rate(now) == pytest.approx((LINKS - HELPERS) * weight / 60)
    assert handing_over.own_rate(now) == pytest.approx(LINKS * weight / 60)
