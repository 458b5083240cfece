"""Events on their way, at one node: what goes where, what is decided here, what waits, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
from msgspec.structs import replace

from peerd.api import LookupResult, SendRefusal
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.pubsub.bodies import event_bytes
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.messages import (
    CELLS_MAX,
    HOPS_MAX,
    PAYLOAD_BYTES_MAX,
    Confirm,
    EventAck,
    EventBody,
    ProbePub,
    TreeCells,
)
from protocols.pubsub.names import Tree, key_of
from protocols.pubsub.publishing.forwarding import (
    MERGED,
    NOT_YET,
    NOT_YET_S,
    PARKED_LOOK_S,
    SENT_S,
    TESTS_MAX,
    TOO_MANY,
)
from protocols.pubsub.publishing.passing import (
    BATCH_SHARE,
    HELD_S,
    PARKED_MAX,
    PARKED_S,
    QUOTAS_MAX,
    SEEN_S,
    Journey,
    Parking,
    PassedBatches,
    Quotas,
    key_of_batch,
)
from protocols.pubsub.publishing.spread import PLACES_MAX, TREES_MAX, AttributeCell, Batch, places_of, trees_of, ways_to
from protocols.pubsub.tree.cells import WHOLE, cell_of_text
from tests.support.pubsub_events import SCHEMA, Events, Forest

PUBLISHER = peer(77)
LEAVES = [cell_of_text(bits) for bits in ("00", "01", "1")]


def event(number: int = 1, publisher: PeerRef = PUBLISHER, **values: int) -> EventBody:
    """An event; without values it has to go to all leaves."""
    return EventBody(publisher, 5, number, 1000, msgpack.packb({name[1:]: value for name, value in values.items()}))


def probe(*places: AttributeCell, events: tuple[EventBody, ...] = (event(),), **fields: Any) -> ProbePub:
    """A message of the publisher."""
    return replace(ProbePub(SCHEMA, events[0].publisher, events, trees_of(places), 0), **fields)


def lone(**settings: Any) -> tuple[FakeHost, Events]:
    """A node alone: it is the root of every key."""
    plugin = Events(PubSubConfig(**settings), Forest(dict.fromkeys(range(3), LEAVES)))
    return FakeHost(1, plugin), plugin


def neighbour_of(place: AttributeCell) -> PeerRef:
    """A node that is the root of a cell's key."""
    return peer(key_of(Tree(SCHEMA, place[0]), place[1]))


def told(host: FakeHost) -> list[EventAck]:
    """What publishers were told since the last time, that is no leaf's acknowledgement."""
    return [message for _, message in host.take_sent() if isinstance(message, EventAck) and message.failed]


# Messages


def test_cells_with_a_common_next_hop_travel_together() -> None:
    places = [(attribute, cell) for attribute in range(2) for cell in LEAVES]
    hops = {place: peer(index % 2 + 1) for index, place in enumerate(places)}
    by_key = {key_of(Tree(SCHEMA, attribute), cell): hops[attribute, cell] for attribute, cell in places}

    here, unclear = (key_of(Tree(SCHEMA, 0), leaf) for leaf in LEAVES[:2])

    def next_hops(keys: Sequence[NodeId]) -> dict[NodeId, PeerRef | None]:
        return {key: None if key == here else by_key[key] for key in keys if key != unclear}

    ways = ways_to(SCHEMA, places, next_hops)
    assert ways.here == [(0, LEAVES[0])]
    assert ways.unclear == [(0, LEAVES[1])]
    assert ways.onward == {peer(1): [(0, LEAVES[2]), (1, LEAVES[1])], peer(2): [(1, LEAVES[0]), (1, LEAVES[2])]}


@pytest.mark.parametrize("multicast", [True, False])
def test_a_batch_is_cut_into_messages_that_fit(multicast: bool) -> None:
    large = replace(event(), payload=bytes(PAYLOAD_BYTES_MAX), values=bytes(11_000), content_type="x" * 64)
    places = [(index % 100, WHOLE * 2**60 + index) for index in range(700)]
    batch = Batch(SCHEMA, PUBLISHER, (large,), 0, 0)
    assert batch.bytes <= 44 * 1024
    host = FakeHost(1)
    for message in batch.probes(places, 0, False, False, multicast):
        host.send(peer(2), message)  # goes through the wire format, which refuses what is too large
    sent = [message for _, message in host.take_sent() if isinstance(message, ProbePub)]
    assert sorted(place for message in sent for place in places_of(message.places)) == sorted(places)
    assert all(len(message.places) <= TREES_MAX for message in sent)
    assert all(len(places_of(message.places)) <= (PLACES_MAX if multicast else 1) for message in sent)


@pytest.mark.parametrize(
    "bad",
    [
        ProbePub(SCHEMA, PUBLISHER, (), (TreeCells(1, (WHOLE,)),), 0),
        probe((1, WHOLE), events=(event(1), event(2, peer(8)))),
        probe((1, WHOLE), events=(event(1), replace(event(2), epoch=6))),
        probe((1, WHOLE), events=(event(2), event(1))),
        probe((1, WHOLE), events=(event(1), event(1))),
        probe(*((1, cell) for cell in range(1, CELLS_MAX + 1)), (2, WHOLE)),
        probe((1, WHOLE), events=(event(1, peer(9)),)),
    ],
)
def test_what_no_publisher_sends_costs_the_sender_its_link(bad: ProbePub) -> None:
    host, plugin = lone()
    with pytest.raises(ProtocolError):
        host.deliver(bad, PUBLISHER)
    assert not plugin.acking.arrivals


def test_more_events_than_a_message_may_have_are_refused() -> None:
    host, _ = lone()
    many = tuple(replace(event(number), payload=bytes(15_000)) for number in range(1, 4))
    assert sum(event_bytes(each) for each in many) > 44 * 1024
    with pytest.raises(ProtocolError, match="bytes of events"):
        host.deliver(probe((1, WHOLE), events=many), PUBLISHER)


# Deciding


def test_a_leaf_gets_the_events_and_an_inner_node_sends_on() -> None:
    host, plugin = lone()
    host.deliver(probe((1, LEAVES[0]), (2, WHOLE), events=(event(1), event(2))), PUBLISHER)
    [arrival] = plugin.acking.arrivals
    assert arrival.publisher == PUBLISHER
    assert [each.sequence for each in arrival.events] == [1, 2]
    assert set(arrival.places) == {(1, LEAVES[0]), *((2, leaf) for leaf in LEAVES)}
    assert len(arrival.places) == 4


def test_a_guess_that_is_too_deep_jumps_to_the_ancestor_at_half_its_level() -> None:
    host, plugin = lone()
    host.deliver(probe((1, cell_of_text("000101"))), PUBLISHER)
    assert plugin.leaves.asked[:3] == [(1, cell_of_text(bits)) for bits in ("000101", "000", "0")]
    [arrival] = plugin.acking.arrivals
    assert set(arrival.places) == {(1, leaf) for leaf in LEAVES[:2]}, "all leaves of the ancestor, which is inner"


def test_a_leaf_that_was_merged_is_told_to_a_publisher_that_remembers_it() -> None:
    """Sent on, its events might overtake others that are on their way to the same larger leaf."""
    host, plugin = lone()
    host.deliver(probe((1, cell_of_text("0001")), (2, LEAVES[0]), remembered=True), PUBLISHER)
    sent = host.take_sent()
    assert [arrival.places for arrival in plugin.acking.arrivals] == [((2, LEAVES[0]),)]
    [refusal] = [
        message for to, message in sent if to == PUBLISHER and isinstance(message, EventAck) and message.failed
    ]
    assert (refusal.failed, refusal.covered) == (MERGED, trees_of([(1, cell_of_text("0001"))]))
    assert refusal.retry_ms > 0


def test_a_leaf_does_not_take_events_before_one_that_is_on_its_way_to_it() -> None:
    host, plugin = lone()
    before, later = LEAVES[0], LEAVES[1]
    host.deliver(probe((1, before), events=(event(3),)), PUBLISHER)
    host.take_sent()
    plugin.acking.arrivals.clear()
    further = probe((1, before), (1, later), events=(event(4), event(5)), after=3, remembered=True)
    host.deliver(further, PUBLISHER)
    [refusal] = told(host)
    assert [arrival.places for arrival in plugin.acking.arrivals] == [((1, before),)], "this leaf has had it"
    assert (refusal.failed, refusal.sequences, refusal.covered) == (NOT_YET, (4, 5), trees_of([(1, later)]))
    assert refusal.retry_ms == 1000 * NOT_YET_S
    host.deliver(probe((1, later), events=(event(3),), attempt=1), PUBLISHER)
    host.deliver(replace(further, attempt=1), PUBLISHER)
    assert not told(host)
    assert [name.sequence for name in plugin.acking.visits[1, later]] == [3, 4, 5]


def test_the_same_events_after_another_one_are_not_taken_for_a_repeat() -> None:
    """Else who says of somebody's events that another one comes before them would keep the true ones from the leaf."""
    host, plugin = lone()
    host.deliver(probe((1, LEAVES[0]), after=99, hops=1), peer(5))
    assert [refusal.failed for refusal in told(host)] == [NOT_YET]
    host.deliver(probe((1, LEAVES[0])), PUBLISHER)
    assert len(plugin.acking.arrivals) == 1


def test_a_batch_of_different_events_goes_to_the_leaves_of_each() -> None:
    """Of many different ones it goes to all leaves, so that nobody can have this node compare for long."""
    host, plugin = lone()
    low, high = 1, (1 << 32) - 1
    host.deliver(probe((1, WHOLE), events=(event(1, _1=low),)), PUBLISHER)
    assert {place[1] for arrival in plugin.acking.arrivals for place in arrival.places} == {LEAVES[0], LEAVES[1]}
    host.deliver(probe((1, WHOLE), events=(event(2, _1=low), event(3, _1=high)), attempt=3), PUBLISHER)
    later = plugin.acking.arrivals[1:]
    assert {place[1] for arrival in later for place in arrival.places} == set(LEAVES)
    many = tuple(event(10 + number, _1=number) for number in range(100))
    host.deliver(probe((1, WHOLE), events=many), PUBLISHER)
    assert {place[1] for place in plugin.acking.arrivals[-1].places} <= set(LEAVES)


def test_what_cannot_be_read_goes_to_all_leaves_where_it_matches_nothing() -> None:
    host, plugin = lone()
    host.deliver(probe((1, WHOLE), events=(replace(event(), values=b"\xc1"),), hops=3), peer(9))
    assert {place for arrival in plugin.acking.arrivals for place in arrival.places} == {(1, leaf) for leaf in LEAVES}


def test_a_repeat_is_dropped_and_a_new_try_is_not() -> None:
    host, plugin = lone()
    host.deliver(probe((1, LEAVES[0])), PUBLISHER)
    host.deliver(probe((1, LEAVES[0]), hops=2), peer(9))
    assert len(plugin.acking.arrivals) == 1
    assert host.counted["peerd_pubsub_probes_total", "repeated"] == 1
    host.deliver(probe((1, LEAVES[0]), attempt=1), PUBLISHER)
    host.deliver(probe((1, LEAVES[0]), vouched=True, hops=1), peer(9))
    assert len(plugin.acking.arrivals) == 3, "what the parent vouches for may be decided otherwise"


def test_a_forged_event_does_not_pass_for_the_true_one() -> None:
    host, plugin = lone()
    forged = replace(event(), payload=b"forged")
    host.deliver(probe((1, LEAVES[0]), events=(forged,), hops=1), peer(9))
    host.deliver(probe((1, LEAVES[0])), PUBLISHER)
    assert [arrival.events[0].payload for arrival in plugin.acking.arrivals] == [b"forged", b""]


# Going on


def test_the_rest_is_split_by_next_hop_and_goes_one_hop_further() -> None:
    host, plugin = lone()
    ours, theirs = (1, LEAVES[0]), (1, LEAVES[1])
    host.neighbours = (neighbour_of(theirs), neighbour_of((2, LEAVES[2])))
    host.peer = PeerRef(neighbour_of(ours).id, host.peer.host, host.peer.port)
    host.id = host.peer.id
    host.deliver(probe(ours, theirs, (2, LEAVES[2]), hops=3), peer(9))
    sent = {to: message for to, message in host.take_sent() if isinstance(message, ProbePub)}
    assert sent.keys() == set(host.neighbours)
    assert places_of(sent[neighbour_of(theirs)].places) == [theirs]
    assert {message.hops for message in sent.values()} == {4}
    assert plugin.acking.arrivals[0].places == (ours,)


def test_events_do_not_travel_for_ever() -> None:
    host, _ = lone()
    place = (1, LEAVES[1])
    host.neighbours = (neighbour_of(place),)
    host.deliver(probe(place, hops=HOPS_MAX), peer(9))
    assert not host.take_sent()
    assert host.counted["peerd_pubsub_probes_total", "lost"] == 1


def test_what_went_to_a_node_that_is_gone_goes_another_way_once() -> None:
    host, plugin = lone()
    place = (1, LEAVES[1])
    gone, other = neighbour_of(place), peer(neighbour_of(place).id ^ 3)
    host.neighbours = (gone, other)
    host.deliver(probe(place), PUBLISHER)
    assert [to for to, _ in host.take_sent()] == [gone]
    plugin.send_refused(gone, Confirm, SendRefusal.PEER_DOWN, 1)
    plugin.send_refused(gone, ProbePub, SendRefusal.QUEUE_FULL, 1)
    plugin.send_refused(gone, ProbePub, SendRefusal.PEER_DOWN, 1)
    assert not host.take_sent(), "routing still names the same node: it is left to the publisher"
    host.deliver(probe(place, events=(event(2),)), PUBLISHER)
    host.take_sent()
    host.neighbours = (other,)
    plugin.send_refused(gone, ProbePub, SendRefusal.PEER_DOWN, 1)
    assert [to for to, _ in host.take_sent()] == [other]
    plugin.send_refused(other, ProbePub, SendRefusal.PEER_DOWN, 1)
    assert not host.take_sent(), "once"


def test_a_way_that_has_failed_is_looked_up_before_it_is_tried_again() -> None:
    host, plugin = lone()
    place = (1, LEAVES[1])
    gone, other = neighbour_of(place), peer(neighbour_of(place).id ^ 3)
    host.neighbours = (gone, other)
    host.deliver(probe(place, attempt=1), PUBLISHER)
    assert not host.take_sent()
    [lookup] = [asked.arguments for asked in host.asked if asked.what == "lookup"]
    assert lookup["key"] == key_of(Tree(SCHEMA, place[0]), place[1])
    host.neighbours = (other,)  # that is what the overlay has found out meanwhile
    lookup["on_result"](LookupResult(lookup["key"], other, (), 0.1))
    assert [to for to, _ in host.take_sent()] == [other]
    plugin.validate()
    for number in range(TESTS_MAX + 1):
        host.deliver(probe(place, events=(event(2 + number),), attempt=1), PUBLISHER)
    lookups = [asked.arguments for asked in host.asked if asked.what == "lookup"]
    assert len(lookups) == 2, "one lookup tests the next hop for all that is to go there"
    assert len(host.take_sent()) == 1, "one more goes untested"
    lookups[1]["on_result"](LookupResult(lookup["key"], None, (), 0.1))
    assert len(host.take_sent()) == TESTS_MAX, "they go on even when nobody has answered"


def test_what_was_sent_long_ago_is_not_sent_again() -> None:
    host, plugin = lone()
    place = (1, LEAVES[1])
    host.neighbours = (neighbour_of(place),)
    host.deliver(probe(place), PUBLISHER)
    gone, host.neighbours = host.neighbours[0], ()
    host.take_sent()
    host.time_s += SENT_S + 1
    plugin.send_refused(gone, ProbePub, SendRefusal.PEER_DOWN, 1)
    assert not host.take_sent()
    assert not plugin.acking.arrivals


# Waiting


def test_what_is_unsettled_waits_until_the_tree_tells_of_a_change() -> None:
    host, plugin = lone()
    place = (1, LEAVES[0])
    plugin.leaves.unsettled = {place}
    host.deliver(probe(place), PUBLISHER)
    plugin.forwarding.tree_changed(Tree(SCHEMA, 1), LEAVES[1])
    assert not plugin.acking.arrivals
    plugin.leaves.unsettled = set()
    plugin.forwarding.tree_changed(Tree(SCHEMA, 1), LEAVES[0])
    assert [arrival.places for arrival in plugin.acking.arrivals] == [(place,)]
    host.fire("probes_parked")
    assert not host.timers, "nothing waits any more"


def test_a_repeat_that_waited_for_a_split_goes_no_further_than_the_leaf_that_has_had_it() -> None:
    """Swarm seed 47 of 8 nodes: the half delivered it once more, after what was published later."""
    host, plugin = lone()
    place = (1, LEAVES[0])
    host.deliver(probe(place), PUBLISHER)
    plugin.leaves.unsettled = {place}
    host.deliver(probe(place, attempt=1), PUBLISHER)
    host.deliver(probe(place, events=(event(2),)), PUBLISHER)
    plugin.leaves.unsettled = set()
    plugin.leaves.forest = Forest({1: [cell_of_text(bits) for bits in ("000", "001", "01", "1")]})
    plugin.forwarding.tree_changed(Tree(SCHEMA, 1), LEAVES[0])
    found = [([each.sequence for each in arrival.events], arrival.places) for arrival in plugin.acking.arrivals]
    assert found[:2] == [([1], (place,)), ([1], (place,))], "the repeat is acknowledged again"
    halves = {(1, cell_of_text("000")), (1, cell_of_text("001"))}
    assert {place for numbers, places in found[2:] for place in places if numbers == [2]} == halves
    assert all(numbers == [2] for numbers, _ in found[2:]), "what is new goes on to the halves"


def test_what_waits_is_looked_at_now_and_then_and_lapses() -> None:
    host, plugin = lone()
    plugin.leaves.unsettled = {(1, LEAVES[0]), (1, LEAVES[1])}
    host.deliver(probe((1, LEAVES[0])), PUBLISHER)
    host.time_s += 1
    host.deliver(probe((1, LEAVES[1])), PUBLISHER)
    plugin.leaves.unsettled = {(1, LEAVES[0])}
    host.fire("probes_parked")
    assert [arrival.places for arrival in plugin.acking.arrivals] == [((1, LEAVES[1]),)]
    for _ in range(int(PARKED_S / PARKED_LOOK_S)):
        if host.timers:
            host.fire("probes_parked")
    assert not host.timers
    assert host.counted["peerd_pubsub_probes_total", "lapsed"] == 1


def test_only_so_much_waits() -> None:
    parking = Parking()
    journey = Journey(Batch(SCHEMA, PUBLISHER, (event(),), 0, 0), ((1, WHOLE),), False, False, 0, 10.0)
    assert all(parking.add(journey) for _ in range(PARKED_MAX))
    assert not parking.add(journey)
    assert len(list(parking.take(SCHEMA))) == PARKED_MAX
    assert (len(parking), parking.bytes) == (0, 0)
    large = replace(event(), payload=bytes(30_000))
    heavy = dataclasses.replace(journey, batch=dataclasses.replace(journey.batch, events=(large,)))
    count = 0
    while parking.add(heavy):
        count += 1
    assert count < PARKED_MAX


def test_an_unknown_schema_is_fetched_once_for_all_that_waits() -> None:
    host, plugin = lone()
    plugin.schemas.known = False
    host.deliver(probe((1, LEAVES[0])), PUBLISHER)
    host.deliver(probe((1, LEAVES[1])), PUBLISHER)
    assert len(plugin.schemas.asked) == 1
    assert not plugin.acking.arrivals
    plugin.schemas.known = True
    plugin.schemas.asked[0](plugin.schema, "")
    assert [arrival.places for arrival in plugin.acking.arrivals] == [((1, LEAVES[0]),), ((1, LEAVES[1]),)]


def test_a_publisher_is_told_that_there_is_no_such_schema() -> None:
    host, plugin = lone()
    plugin.schemas.known = False
    host.deliver(probe((1, LEAVES[0])), PUBLISHER)
    plugin.schemas.asked[0](None, "nobody has declared it")
    [refusal] = told(host)
    assert refusal.failed == f"no schema {SCHEMA}: nobody has declared it"
    assert refusal.sequences == (1,)


# Too much


def test_a_publisher_that_sends_too_much_is_told_to_wait_but_not_for_each_event() -> None:
    host, plugin = lone(events_per_member=10)
    for number in range(1, 100):
        host.deliver(probe((1, LEAVES[0]), events=(event(number),)), PUBLISHER)
    assert len(plugin.acking.arrivals) == 21, "two seconds' worth at once, until the debt is above that"
    [refusal] = told(host)
    assert refusal.retry_ms > 0
    host.deliver(probe((1, LEAVES[0]), events=(event(1),)), PUBLISHER)
    assert not told(host), "repeats do not count again"
    held = [payload for name, payload in host.timers if name == "probes_held"]
    for payload in held:
        host.fire("probes_held", payload)
    assert len(held) == len(plugin.acking.arrivals) - 21 == 2, "what comes a little too early waits here"
    assert 0 < host.time_s <= HELD_S and not len(plugin.forwarding._held)
    host.time_s = 2.0
    host.deliver(probe((1, LEAVES[0]), events=(event(100),)), PUBLISHER)
    assert len(plugin.acking.arrivals) == 24
    host.deliver(probe((1, LEAVES[0]), events=(event(1, peer(8)),)), peer(8))
    assert len(plugin.acking.arrivals) == 25, "another publisher has a share of its own"


def test_where_no_more_can_wait_the_publisher_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = lone(events_per_member=10)
    monkeypatch.setattr(Parking, "add", lambda self, parked: None)
    for number in range(1, 23):
        host.deliver(probe((1, LEAVES[0]), events=(event(number),)), PUBLISHER)
    [refusal] = told(host)
    assert (refusal.failed, refusal.sequences) == (TOO_MANY, (22,)) and 0 < refusal.retry_ms <= 1000 * HELD_S


def test_an_event_that_is_sent_again_for_further_cells_counts_each_time() -> None:
    host, plugin = lone(events_per_member=10)
    for number in range(99):
        host.deliver(probe((1, 1 << 40 | number)), PUBLISHER)
        host.deliver(probe((1, 1 << 40 | number)), PUBLISHER)
    assert len(told(host)) == 1 and host.counted["peerd_pubsub_probes_total", "repeated"] >= 21
    plugin.validate()


def test_who_forges_events_of_others_uses_up_his_own_share() -> None:
    quotas = Quotas()
    forger, victim = peer(5).id, PUBLISHER.id
    while quotas.wait_s(forger, victim, 10, 10.0, 0.0) == 0:
        pass
    assert quotas.wait_s(victim, victim, 10, 10.0, 0.0) == 0
    others = 0
    while quotas.wait_s(forger, peer(1000 + others).id, 10, 10.0, 0.0) == 0:
        others += 1
    assert others < 40, "however many publishers a link names, all together have a limit"


def test_the_memory_of_rates_and_repeats_is_bounded() -> None:
    quotas, seen = Quotas(), PassedBatches(visits_max=100)
    for number in range(QUOTAS_MAX + 50):
        quotas.wait_s(peer(number).id, peer(number).id, 1, 1.0, 0.0)
    assert len(quotas) == QUOTAS_MAX
    keys = [key_of_batch(Batch(SCHEMA, PUBLISHER, (event(number),), 0, 0)) for number in range(30)]
    for key in keys:
        assert len(seen.new(key, [(1, 1 + index) for index in range(10)], False, 0.0)) == 10
    assert keys[-1] in seen
    assert keys[0] not in seen
    assert len(seen) <= 100
    before = len(seen)
    assert len(seen.new(keys[-1], [(1, 100 + index) for index in range(100)], False, 0.0)) == 100 // BATCH_SHARE - 10
    assert len(seen) <= before + 100 // BATCH_SHARE and keys[-2] in seen, "one batch leaves room for others"
    seen.new(keys[0], [(1, 1)], False, SEEN_S + 1.0)
    assert len(seen) == 1, "what has not come by for long is forgotten"
