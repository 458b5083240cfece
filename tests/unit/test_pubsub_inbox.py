"""What leaves deliver: each event once, in order of its stream, to whom it is for; and what they are answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import format_id
from peerd.lib.feed import FeedDropped, FeedLoss, Policy
from peerd.testing.host import peer
from protocols.pubsub.bodies import event_statement
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.losses import LossReason, LostEvents
from protocols.pubsub.messages import (
    DeliveredEvent,
    DeliveryAnswer,
    DeliveryNote,
    EventBody,
    EventDelivery,
    EventHeader,
    EventName,
)
from protocols.pubsub.models import MissedEvents
from protocols.pubsub.subscribing import inbox
from protocols.pubsub.subscribing.inlets import ITEM_BYTES_MAX, WAITING_MAX
from protocols.pubsub.subscribing.local import PAUSE_MS, SCHEMA_PAUSE_MS
from protocols.pubsub.subscribing.subscription import DOUBTFUL_MAX
from tests.support.pubsub_subscribing import LEAF, PUBLISHER, STOCKS, Node1, PlainSchema, PlainSchemas, event, signed

SIGNED = PlainSchema(is_signed=True)
STRANGER = peer(66)
LOST = (LostEvents(LossReason.QUEUE_FULL, 5),)


def received(node: Node1, outcome: str) -> int:
    return node.host.counted["peerd_pubsub_received_total", outcome]


# --- streams --------------------------------------------------------------------------------------------------------


def test_batches_are_taken_in_order_and_once() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    assert node.batch(1, 1, event(1, price=6)).taken == 1
    assert node.batch(1, 3, event(3, price=6)).taken == 1
    assert node.batch(1, 2, event(2, price=6)).taken == 2
    assert node.batch(1, 2, event(2, price=6)).taken == 2
    assert node.batch(1, 1, event(1, price=6)).taken == 2
    assert node.batch(1, 3, event(3, price=6)).taken == 3
    assert node.numbers(id) == [1, 2, 3]
    assert node.view(id).duplicates == 0


def test_a_stream_that_began_before_this_node_did_is_begun_anew_by_its_sender() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    assert node.batch(1, 5, event(5, price=6)).taken == 0
    assert node.batch(2, 1, event(5, price=6)).taken == 1
    assert node.numbers(id) == [5]


def test_streams_of_two_leaves_do_not_disturb_each_other() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    assert node.batch(1, 1, event(1, price=6)).taken == 1
    assert node.batch(2, 1, event(2, price=6)).taken == 1
    assert node.batch(1, 2, event(3, price=6), event(2, price=6)).taken == 2
    assert (node.numbers(id), node.view(id).duplicates) == ([1, 2, 3], 1)


def test_streams_are_forgotten_above_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "STREAMS_MAX", 2)
    node = Node1()
    node.subscribe("price > 5")
    for stream in (1, 2, 3):
        assert node.batch(stream, 1).taken == 1
    assert node.batch(2, 2).taken == 2
    assert node.batch(1, 2).taken == 0


def test_a_batch_without_a_number_is_nonsense() -> None:
    with pytest.raises(ProtocolError, match="batch_number"):
        Node1().batch(1, 0)


def test_what_nobody_here_wants_is_named() -> None:
    node = Node1()
    node.subscribe("price > 5")
    answer = node.deliver(event(1, price=3), event(2, price=6), event(3, volume=6))
    assert answer == DeliveryAnswer(1, 0, (0, 2), stream=1)
    assert node.view(node.plugin.subscriptions.views()[0].id).delivered == 1


def test_a_node_without_subscriptions_wants_nothing() -> None:
    assert Node1().deliver(event(1, price=3)) == DeliveryAnswer(1, 0, (0,), stream=1)


def test_an_event_that_came_before_counts_as_wanted() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    node.subscribe("price < 2")
    node.deliver(event(1, price=6))
    node.plugin.subscriptions.end(id)
    assert node.deliver(event(1, price=6), event(2, price=6)).unwanted == (1,)


def test_a_sender_waits_while_the_schema_is_looked_up() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    schemas = node.plugin.schemas
    known, schemas.known = schemas.known, {}
    assert node.batch(1, 1, event(1, price=6)) == DeliveryAnswer(0, SCHEMA_PAUSE_MS, stream=1)
    schemas.known = known
    assert node.batch(1, 1, event(1, price=6)).taken == 1
    assert node.numbers(id) == [1]


def test_an_event_that_cannot_be_read_is_counted_and_the_rest_is_taken() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    assert node.deliver(replace(event(1), values=b"\xc1"), event(2, price=6)) == DeliveryAnswer(1, stream=1)
    assert (node.numbers(id), received(node, "not_readable")) == ([2], 1)


# --- who gets it ----------------------------------------------------------------------------------------------------


def test_an_event_of_a_group_goes_to_the_one_that_was_chosen() -> None:
    node = Node1()
    ids = [node.subscribe("price > 5", group="workers").id for _ in range(2)]
    plain = node.subscribe("price > 5").id
    sids = [probe.sub.sid for probe in node.install()]
    node.deliver(
        DeliveredEvent(event(1, price=6), (sids[1],)), DeliveredEvent(event(2, price=6), (sids[0],)), event(3, price=6)
    )
    assert [node.numbers(id) for id in (*ids, plain)] == [[2], [1], [1, 2, 3]]


def test_a_member_of_a_group_gets_an_event_that_others_here_had_already() -> None:
    node = Node1()
    member, plain = node.subscribe("price > 5", group="workers").id, node.subscribe("price > 5").id
    sid = node.install()[0].sub.sid
    node.deliver(event(1, price=6))
    node.deliver(DeliveredEvent(event(1, price=6), (sid,)))
    assert (node.numbers(member), node.numbers(plain)) == ([1], [1])


def test_what_a_member_of_a_group_does_not_want_goes_to_another() -> None:
    node = Node1()
    node.subscribe("price > 5", group="workers")
    sid = node.install()[0].sub.sid
    assert node.deliver(DeliveredEvent(event(1, price=3), (sid,))).unwanted == (0,)


def test_the_past_comes_only_to_those_who_want_it() -> None:
    node = Node1()
    node.host.time_s = 1000.0
    plain, asking = node.subscribe("price > 5").id, node.subscribe("price > 5", since_s=60.0).id
    node.deliver(
        DeliveredEvent(event(1, price=6, published_ms=950_000), is_replay=True),
        DeliveredEvent(event(2, price=6, published_ms=900_000), is_replay=True),
        DeliveredEvent(event(3, price=6, published_ms=990_000)),
        DeliveredEvent(event(3, price=6, published_ms=990_000), is_replay=True),
    )
    assert (node.numbers(plain), node.numbers(asking)) == ([3], [1, 3])


# --- proofs ---------------------------------------------------------------------------------------------------------


def test_events_of_a_signed_schema_need_the_proof_of_their_publisher() -> None:
    node = Node1(schemas=PlainSchemas(SIGNED))
    id = node.subscribe("price > 5").id
    good, bare = signed(event(1, price=6)), event(2, price=6)
    stolen = replace(signed(event(3, price=6)), payload=b"else")
    node.deliver(good, bare, stolen)
    assert (node.numbers(id), received(node, "not_proven")) == ([1], 2)


def test_a_forged_event_does_not_stand_in_the_way_of_the_true_one() -> None:
    node = Node1(schemas=PlainSchemas(SIGNED))
    id = node.subscribe("price > 5").id
    node.deliver(event(1, price=7))
    node.deliver(signed(event(1, price=6)))
    assert node.numbers(id) == [1]


def test_a_forged_event_under_a_known_name_comes_to_nobody_else() -> None:
    node = Node1(schemas=PlainSchemas(SIGNED))
    high, low = node.subscribe("price > 5").id, node.subscribe("price < 5").id
    node.deliver(signed(event(1, price=6)))
    node.deliver(event(1, price=4))
    assert (node.numbers(high), node.numbers(low)) == ([1], [])


@pytest.mark.parametrize(
    "change",
    [
        {"publisher": peer(8)},
        {"epoch": 2},
        {"sequence": 2},
        {"published_ms": 1},
        {"values": b"\x80"},
        {"payload": b"x"},
        {"content_type": "x"},
        {"retain": b"x"},
        {"headers": (EventHeader("a", "b"),)},
    ],
)
def test_all_that_readers_see_is_signed(change: dict[str, Any]) -> None:
    body = event(1, price=6)
    assert event_statement(STOCKS, replace(body, **change)) != event_statement(STOCKS, body)


def test_nothing_can_be_moved_from_one_part_of_an_event_to_the_next() -> None:
    one, other = replace(event(1), payload=b"ab", retain=b"c"), replace(event(1), payload=b"a", retain=b"bc")
    assert event_statement(STOCKS, one) != event_statement(STOCKS, other)
    assert event_statement("a", one) != event_statement("b", one)


# --- slow readers ---------------------------------------------------------------------------------------------------


def test_senders_pause_while_a_reader_that_blocks_is_slow_and_nothing_is_lost() -> None:
    node = Node1(PubSubConfig(feed_items=3))
    id = node.subscribe("price > 5", policy="block").id
    reader = node.plugin.subscriptions.get(id).feed.reader("start", Policy.BLOCK)
    assert node.deliver(*(event(number, price=6) for number in range(1, 6))).taken == 1
    assert node.batch(1, 2, event(6, price=6)) == DeliveryAnswer(1, PAUSE_MS, stream=1)
    for _ in range(2):
        reader.take()
    assert node.batch(1, 2, event(6, price=6)).taken == 2
    seen = 2
    while reader.take() is not None:
        seen += 1
    assert seen == 6


def test_readers_that_lose_events_instead_never_make_senders_pause() -> None:
    node = Node1(PubSubConfig(feed_items=3))
    id = node.subscribe("price > 5").id
    reader = node.plugin.subscriptions.get(id).feed.reader("start", Policy.DROP_OLDEST)
    for number in range(1, 9):
        assert node.deliver(event(number, price=6)).pause_ms == 0
    assert reader.take() == FeedDropped(1, 5)
    assert node.view(id).dropped == 5


def test_what_waits_for_a_reader_has_a_bound() -> None:
    node = Node1(PubSubConfig(feed_items=1))
    id = node.subscribe("price > 5", policy="block").id
    node.plugin.subscriptions.get(id).feed.reader("start", Policy.BLOCK)
    bodies = [event(number, price=6) for number in range(WAITING_MAX + 5)]
    for body in bodies:  # as a leaf on this node would, which does not ask whether it may
        node.plugin.local.take(PlainSchema(), body, {"price": 6}, (), False)
    assert node.view(id).dropped == 4


def test_readers_find_a_mark_where_a_leaf_has_dropped_events() -> None:
    node = Node1(PubSubConfig(feed_items=2))
    id, blocking = node.subscribe("price > 5").id, node.subscribe("price > 4", policy="block").id
    node.install()
    reader = node.plugin.subscriptions.get(id).feed.reader("start")
    slow = node.plugin.subscriptions.get(blocking).feed.reader("start", Policy.BLOCK)
    node.deliver(event(1, price=6), event(2, price=6), event(3, price=6))
    taken = node.host.deliver(EventDelivery(STOCKS, 1, 2, (DeliveredEvent(event(9, price=6)),), LOST), LEAF)
    assert isinstance(taken, DeliveryAnswer) and taken.pause_ms  # nothing of it is taken yet
    assert [node.view(each).missed for each in (id, blocking)] == [0, 0]
    seen = [slow.take() for _ in range(3)]
    mark = FeedDropped(4, 4, FeedLoss(5, "queue_full", format_id(LEAF.id)))
    node.host.deliver(EventDelivery(STOCKS, 1, 2, (DeliveredEvent(event(9, price=6)),), LOST), LEAF)
    seen += [slow.take() for _ in range(2)]
    assert [each if isinstance(each, FeedDropped) else None for each in seen] == [None] * 3 + [mark, None]
    assert mark in [reader.take() for _ in range(4)]
    assert [node.view(each).missed for each in (id, blocking)] == [5, 5]


def test_a_node_that_is_no_leaf_of_a_subscription_is_believed_a_little_that_events_were_lost() -> None:
    """Whoever says so is named; what he makes up is bounded."""
    node = Node1()
    ids = [node.subscribe(f"price > {number}").id for number in range(5)]
    node.install()
    for number in range(1, 6):
        forged = EventDelivery(STOCKS, 77, number, (), (LostEvents(LossReason.SILENT, 1000),))
        node.host.deliver(forged, STRANGER)
    for id in ids:
        assert node.view(id).missed_because == [
            MissedEvents(count=DOUBTFUL_MAX, reason="silent", by=format_id(STRANGER.id))
        ]
    assert received(node, "lost_doubtful") == 5 * 1000 - DOUBTFUL_MAX
    node.host.deliver(EventDelivery(STOCKS, 1, 1, (), (LostEvents(LossReason.SILENT, 1000),)), LEAF)
    assert node.view(ids[0]).missed == 1000 + DOUBTFUL_MAX


def test_the_largest_event_fits_into_the_smallest_feed() -> None:
    node = Node1(PubSubConfig(feed_bytes="64KiB"))
    id = node.subscribe("price > 5", bytes_max=1024).id
    node.deliver(replace(event(1, price=6), payload=bytes([255]) * 32 * 1024))
    assert node.numbers(id) == [1]
    assert node.plugin.subscriptions.get(id).feed.bytes_max == ITEM_BYTES_MAX


# --- durable ones ---------------------------------------------------------------------------------------------------


def test_a_batch_for_a_durable_subscription_is_taken_when_it_is_on_disk() -> None:
    node = Node1()
    node.subscribe("price > 5", name="audit")
    take = node.plugin.handlers.messages[EventDelivery]
    batch = EventDelivery(STOCKS, 1, 1, (DeliveredEvent(event(1, price=6)),))
    assert take(batch, LEAF) is None
    assert (node.take_sent(), take(batch, LEAF)) == ([], None)
    node.host.run_later()
    assert node.take_sent() == [DeliveryAnswer(1, stream=1)]
    assert take(batch, LEAF) == DeliveryAnswer(1, stream=1)


def test_a_batch_is_not_taken_before_an_earlier_one_is_on_disk() -> None:
    node = Node1()
    node.subscribe("price > 5", name="audit")
    take = node.plugin.handlers.messages[EventDelivery]
    for number, price in ((1, 6), (2, 1), (3, 6)):
        assert take(EventDelivery(STOCKS, 1, number, (DeliveredEvent(event(number, price=price)),)), LEAF) is None
    node.host.run_later()
    assert node.take_sent()[-1] == DeliveryAnswer(3, stream=1)


# --- multicast ------------------------------------------------------------------------------------------------------


def test_what_came_by_multicast_is_noted_to_the_leaf_together() -> None:
    node = Node1()
    id = node.subscribe("price > 5").id
    for number in (1, 2, 1):
        node.plugin.inbox.received_group(STOCKS, event(number, price=6), (), LEAF)
    node.plugin.inbox.received_group(STOCKS, event(3, price=1), (), LEAF)
    assert node.take_sent() == []
    node.pass_time(1)
    names = tuple(EventName(PUBLISHER.id, 1, number) for number in (1, 2, 1))
    assert node.host.take_sent() == [(LEAF, DeliveryNote(STOCKS, names))]
    assert node.numbers(id) == [1, 2]
    node.plugin.inbox.received_group(STOCKS, event(4, price=6), (), LEAF)
    node.pass_time(1)
    assert len(node.take_sent()) == 1


def test_what_cannot_be_taken_by_multicast_now_is_left_to_be_sent_again() -> None:
    node = Node1(PubSubConfig(feed_items=1))
    id = node.subscribe("price > 5", policy="block").id
    node.plugin.subscriptions.get(id).feed.reader("start", Policy.BLOCK)
    for number in (1, 2, 3):
        node.plugin.inbox.received_group(STOCKS, event(number, price=6), (), LEAF)
    node.pass_time(1)
    [note] = node.take_sent()
    assert [name.sequence for name in note.events] == [1, 2]


# --- every interleaving ---------------------------------------------------------------------------------------------


@dataclass
class Sender:
    """A leaf that sends its events in batches until they are taken; whatever happens between."""

    name: int
    events: list[EventBody]
    cuts: list[int]
    stream: int = 0
    taken: int = 0
    sent: int = 0
    batches: list[list[EventBody]] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a new stream with what was not taken."""
        left = [each for batch in self.batches[self.taken :] for each in batch] if self.batches else self.events
        self.stream += 1
        self.batches, self.taken, self.sent = [], 0, 0
        for cut in self.cuts:
            self.batches.append(left[:cut])
            left = left[cut:]
        self.batches.append(left)

    def send(self, node: Node1, number: int) -> None:
        """Send a batch; an answer with less than was known to be taken means that the node is another one now."""
        known = self.taken
        answer = node.batch(self.name * 1000 + self.stream, number, *self.batches[number - 1])
        assert answer.taken <= len(self.batches)
        if answer.taken < known:
            self.begin()
        self.taken = max(self.taken, answer.taken)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Sender], list[tuple[str, int, int]]]:
    """Two leaves with some events in common, and an order of things."""
    senders = []
    for name in (1, 2):
        # Both have those above 20; those that three divides match nothing.
        numbers = [*range(10 * name - 9, 10 * name), *range(20, 25)]
        bodies = [event(number, price=6 if number % 3 else 1) for number in numbers]
        senders.append(Sender(name, bodies, draw(st.lists(st.integers(0, 3), min_size=3, max_size=8))))
    happening = st.tuples(st.sampled_from(["send"] * 6 + ["begin", "crash"]), st.integers(0, 1), st.integers(0, 8))
    return senders, draw(st.lists(happening, min_size=10, max_size=40))


@given(runs(), st.booleans())
@settings(deadline=None)
def test_whatever_is_repeated_lost_or_begun_anew_each_event_is_there_once_and_in_order(
    run: tuple[list[Sender], list[tuple[str, int, int]]], is_durable: bool
) -> None:
    senders, happenings = run
    node = Node1()
    id = node.subscribe("price > 5", name="audit" if is_durable else "").id
    node.install()
    for sender in senders:
        sender.begin()
    for what, which, number in happenings:
        sender = senders[which]
        if what == "begin":
            sender.begin()
        elif what == "crash" and is_durable:
            node = Node1(before=node)
            node.install()
        elif what == "send":
            sender.send(node, 1 + number % len(sender.batches))
    for sender in senders:
        while sender.taken < len(sender.batches):
            sender.send(node, sender.taken + 1)
    wanted = {each.sequence for sender in senders for each in sender.events if each.sequence % 3}
    numbers = node.numbers(id)
    assert sorted(numbers) == sorted(wanted)
    assert node.view(id).delivered <= len(wanted)
    for sender in senders:
        only_here = [
            each.sequence
            for each in sender.events
            if all(each not in other.events for other in senders if other is not sender)
        ]
        assert [number for number in numbers if number in only_here] == [n for n in only_here if n % 3]
