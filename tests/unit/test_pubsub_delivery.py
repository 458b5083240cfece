"""Events at a leaf: matched once, acknowledged, delivered to each node once, to one member of each group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.messages import Message
from peerd.testing.host import Request, peer
from protocols.pubsub.delivering.ledger import FILTERED, LEAF_REASONS, MEMORY_FULL, QUEUE_FULL, SILENT
from protocols.pubsub.delivering.losses import LossReason, LostEvents
from protocols.pubsub.matching.leaf_events import FORGED, TOO_LARGE
from protocols.pubsub.messages import (
    SINCE_RETAINED,
    DeliveryAnswer,
    DeliveryNote,
    EventAck,
    EventDelivery,
    EventName,
    GroupDelivery,
    NodeDelivery,
    SubObject,
)
from protocols.pubsub.names import SubscriptionKey, Tree
from protocols.pubsub.tree.cells import SIDE
from tests.support.examples import examples
from tests.support.pubsub_leaf import LEAF, SCHEMA, BrokerRig, event, event_id, node, sub

TREE = Tree(SCHEMA.name, 1)


def deliveries(rig: BrokerRig) -> list[tuple[Request, EventDelivery]]:
    """The deliveries that wait for an answer, in the order of their sending."""
    return [(each, each.message) for each in rig.host.requests if isinstance(each.message, EventDelivery)]


def sent_to(rig: BrokerRig, subscriber: int) -> list[tuple[int, tuple[int, ...]]]:
    """What a node was sent: numbers of events, with the chosen subscriptions."""
    return [
        (delivery.event.sequence, delivery.chosen)
        for request, message in deliveries(rig)
        for delivery in message.deliveries
        if request.peer.id == subscriber
    ]


def answer(rig: BrokerRig, request: Request, reply: Message) -> None:
    """The node answers."""
    rig.host.requests.remove(request)
    request.on_reply(reply, request.peer)
    rig.check_law()


def answer_all(rig: BrokerRig, silent: Collection[int] = ()) -> Counter[tuple[int, int]]:
    """All nodes but the silent ones take what they are sent; returns how often each event came to each node."""
    got: Counter[tuple[int, int]] = Counter()
    while found := [(request, message) for request, message in deliveries(rig) if request.peer.id not in silent]:
        for request, message in found:
            got.update((request.peer.id, delivery.event.sequence) for delivery in message.deliveries)
            answer(rig, request, DeliveryAnswer(message.number))
    return got


def time_out(rig: BrokerRig, subscriber: int) -> None:
    """What a node was asked is not answered in time."""
    for request, _ in deliveries(rig):
        if request.peer.id == subscriber:
            rig.host.requests.remove(request)
            rig.host.time_s = max(rig.host.time_s, rig.host.time_s + request.timeout_s)
            request.on_timeout()


def pass_time(rig: BrokerRig, seconds: float) -> None:
    """Let the timers go off that are due."""
    until = rig.host.time_s + seconds
    while due := [(at, place) for place, at in rig.host.timers.items() if at <= until]:
        _, place = min(due, key=lambda each: each[0])
        rig.host.fire(*place)
        rig.check_law()
    rig.host.time_s = until


def acks(rig: BrokerRig) -> list[EventAck]:
    """The acknowledgements since the last call."""
    return [message for _, message in rig.host.take_sent() if isinstance(message, EventAck)]


def test_a_node_gets_an_event_once_however_many_of_its_subscriptions_match() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1), sub(5, 2, "price > 3"), sub(6, 1, "price > 3"), sub(7, 1, "price > 9")]
    rig.arrive(event(4), event(2))
    assert sent_to(rig, 5) == [(4, ()), (2, ())]
    assert sent_to(rig, 6) == [(4, ())]
    assert sent_to(rig, 7) == []
    [ack] = acks(rig)
    assert (ack.sequences, ack.matched, ack.copies) == ((4, 2), (3, 1), 0)
    assert [(tree.attribute, tree.cells) for tree in ack.covered] == [(1, (1,))]
    assert answer_all(rig) == {(5, 4): 1, (5, 2): 1, (6, 4): 1}
    assert rig.deliverer.bytes == 0
    assert (rig.ledger.matched_count, rig.ledger.delivered_count, rig.leaves.noted) == (3, 3, 2)


def test_a_repeated_probe_is_acknowledged_again_and_not_matched_again() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1)]
    rig.arrive(event(4))
    answer_all(rig)
    rig.leaves.subs.append(sub(6, 1))
    rig.arrive(event(4), attempt=1)
    assert [ack.matched for ack in acks(rig)] == [(1,), (1,)]
    assert deliveries(rig) == []


def test_what_is_split_off_a_visited_leaf_was_visited() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1)]
    rig.arrive(event(4))
    answer_all(rig)
    assert rig.broker.had([event(4)], (1, 1)) and not rig.broker.had([event(4)], (2, 1))
    assert not rig.broker.had([event(4), event(5)], (1, 1))
    assert not rig.broker.had([event(4)], (1, 3)), "that may be a guess, and an answer tells of leaves"
    rig.broker.arrived(SCHEMA, peer(9), [event(4)], [(1, 2), (1, 3)], 0, 1)
    assert [ack.covered[0].cells for ack in acks(rig)] == [(1,), (2, 3)]
    assert deliveries(rig) == []


def test_it_is_known_in_which_leaves_an_event_has_matched_before_that_is_acknowledged() -> None:
    rig = BrokerRig(neighbours=(2,))
    rig.leaves.subs = [sub(5, 1)]
    rig.arrive(event(4), copies=1)
    assert acks(rig) == [], "its copy is being made"
    assert rig.broker.matched_in(event_id(4)) == [(TREE, 1)]
    rig.broker.arrived(SCHEMA, peer(9), [event(4)], [(2, 1)], 1, 0)
    assert rig.broker.matched_in(event_id(4)) == [(TREE, 1)], "in the other leaf nothing has matched"
    assert rig.broker.matched_in(event_id(5)) == []


def test_events_that_cannot_be_are_refused_and_the_others_go_on() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1)]
    broken = replace(event(2), values=b"{")
    rig.arrive(event(1), broken, event(3, payload=b"x" * 44_000 + b"x" * 1500), event(4, publisher=9))
    found = acks(rig)
    failed = [(ack.sequences, ack.failed.partition(":")[0], ack.covered[0].cells) for ack in found if ack.failed]
    assert failed == [((2,), "values", (1,)), ((3,), TOO_LARGE, (1,))]
    assert [ack.sequences for ack in found if not ack.failed] == [(1, 4)]
    assert [number for number, _ in sent_to(rig, 5)] == [1, 4]


def test_only_the_publisher_itself_publishes() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1)]
    rig.broker.arrived(SCHEMA, peer(9), [event(1, publisher=8)], [LEAF], 0, 0)
    assert deliveries(rig) == []
    assert len(rig.history) == 0


def test_a_schema_that_asks_for_proofs_takes_no_forged_event() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1)]
    signed = type(SCHEMA)(is_signed=True)
    rig.broker.arrived(signed, peer(9), [event(1)], [LEAF], 0, 0)
    assert [ack.failed for ack in acks(rig)] == [FORGED]
    assert deliveries(rig) == []


def test_an_own_subscription_gets_its_events_without_the_network() -> None:
    rig = BrokerRig(5)
    rig.leaves.subs = [sub(5, 1, "price > 3"), sub(5, 2, "price < 3")]
    rig.subscribers.filters = ["price > 3"]
    rig.arrive(event(1), event(4), event(5))
    rig.check_law()
    assert rig.subscribers.taken == [4, 5]
    assert deliveries(rig) == []
    assert (rig.ledger.delivered_count, rig.ledger.drops) == (2, {FILTERED: 1})
    assert rig.leaves.unwanted_keys == [SubscriptionKey(node(5), 2, 0)]


def test_an_own_reader_that_blocks_is_waited_for() -> None:
    rig = BrokerRig(5)
    rig.leaves.subs, rig.subscribers.filters = [sub(5, 1)], ["TRUE"]
    rig.subscribers.pause_ms = 200
    rig.arrive(event(1))
    rig.arrive(event(2))
    pass_time(rig, 90.0)
    assert (rig.subscribers.taken, rig.deliverer.pending()) == ([], 2)
    rig.subscribers.pause_ms = 0
    pass_time(rig, 1.0)
    assert (rig.subscribers.taken, rig.deliverer.pending()) == ([1, 2], 0)


@pytest.mark.parametrize("unwanted", [(0,), (0, 0, 0)])
def test_what_nobody_there_wants_is_counted_and_given_up(unwanted: tuple[int, ...]) -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1), sub(5, 2)]
    rig.arrive(event(1))
    [(request, _)] = deliveries(rig)
    answer(rig, request, DeliveryAnswer(1, unwanted=unwanted))
    assert rig.ledger.drops == {FILTERED: 1}
    assert rig.leaves.unwanted_keys == [SubscriptionKey(node(5), sid, 0) for sid in (1, 2)]


def test_an_answer_that_makes_no_sense_costs_the_link() -> None:
    for reply in (DeliveryAnswer(7), DeliveryAnswer(1, unwanted=(1,)), DeliveryNote(SCHEMA.name, ())):
        rig = BrokerRig()
        rig.leaves.subs = [sub(5, 1)]
        rig.arrive(event(1))
        [(request, _)] = deliveries(rig)
        answer(rig, request, reply)
        assert [blamed.id for blamed, _ in rig.host.blamed] == [5]
        assert rig.deliverer.pending() == 1


def test_a_node_that_never_answers_is_tried_for_a_time_and_then_given_up() -> None:
    rig = BrokerRig(delivery_keep="20s")
    rig.leaves.subs = [sub(5, 1)]
    rig.arrive(event(1), event(2))
    while rig.host.time_s < 30.0:
        time_out(rig, 5)
        pass_time(rig, 0.5)
    assert rig.ledger.drops == {SILENT: 2}
    assert (rig.deliverer.pending(), rig.deliverer.bytes) == (0, 0)
    known = rig.ledger.outcomes(event_id(1))
    assert known is not None
    assert [outcome.what for outcome in known.outcomes] == [SILENT]


def test_what_waits_for_one_node_and_for_all_is_bounded() -> None:
    rig = BrokerRig(delivery_queue="64KiB", deliveries_bytes="128KiB", delivery_window=1)
    rig.leaves.subs = [sub(5, 1), *(sub(number, 1, "price >= 10") for number in (6, 7, 8))]
    for number in range(40):
        rig.arrive(event(number, payload=b"x" * 10_000))
        rig.check_law()
        assert rig.deliverer.bytes <= 128 * 1024
    assert set(rig.ledger.drops) == {QUEUE_FULL, MEMORY_FULL}
    assert sum(rig.ledger.drops.values()) + rig.deliverer.pending() == 40 + 3 * 30


def test_the_next_batch_says_how_many_were_dropped_before_it() -> None:
    rig = BrokerRig(delivery_queue="64KiB", delivery_window=1, delivery_keep="20s")
    rig.leaves.subs = [sub(5, 1)]
    for number in range(20):
        rig.arrive(event(number, payload=b"x" * 10_000))
    [(request, first)] = deliveries(rig)
    answer(rig, request, DeliveryAnswer(1, 0, (), first.stream))
    [(_, second)] = deliveries(rig)
    dropped = rig.ledger.drops[QUEUE_FULL]
    assert (first.lost, second.lost) == ((), (LostEvents(LossReason.QUEUE_FULL, dropped),)) and dropped > 10
    while rig.deliverer.pending():  # it answers no more: the number goes with what is given up, and is told later
        time_out(rig, 5)
        pass_time(rig, 0.5)
    rig.arrive(event(30))
    again = deliveries(rig)[-1][1]
    assert again.lost == (*second.lost, LostEvents(LossReason.SILENT, rig.ledger.drops[SILENT]))


def test_a_batch_that_is_on_disk_later_is_taken_later() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1)]
    rig.arrive(event(1))
    [(request, message)] = deliveries(rig)
    answer(rig, request, DeliveryAnswer(0, 50, (), message.stream))
    assert rig.deliverer.pending() == 1
    rig.host.deliver(DeliveryAnswer(1, 0, (), message.stream), peer(5))
    assert (rig.deliverer.pending(), rig.ledger.delivered_count) == (0, 1)


def test_a_node_that_leaves_waits_until_all_is_delivered() -> None:
    rig, told = BrokerRig(), list[bool]()
    rig.deliverer.drain(lambda: told.append(True))
    assert told == [True]
    rig.leaves.subs = [sub(5, 1), sub(6, 1)]
    rig.arrive(event(1))
    rig.deliverer.drain(lambda: told.append(True))
    for request, message in deliveries(rig):
        assert told == [True]
        answer(rig, request, DeliveryAnswer(message.number))
    assert told == [True, True]


def test_matches_are_counted_for_each_leaf(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerRig()
    everywhere = [(1, 2), (1, 6), (1, 7), (2, 1)]
    subs = [SubObject(peer(5), n, 0, 1, attribute, low, SIDE - 1, "TRUE") for n, (attribute, low) in enumerate(_POINTS)]
    monkeypatch.setattr(rig.leaves, "match", lambda schema, cells, values: subs)
    rig.broker.arrived(SCHEMA, peer(9), [event(1)], everywhere, 0, 0)
    rig.broker.arrived(SCHEMA, peer(9), [event(1)], [(1, 7)], 0, 1)
    rig.broker.arrived(SCHEMA, peer(9), [event(1)], [(2, 1), (1, 2)], 0, 1)
    assert [ack.matched for ack in acks(rig)] == [(4,), (2,), (2,)]


_POINTS = ((1, 0), (1, SIDE - 1), (1, SIDE // 2), (2, 0))
"""Attributes and lower ends; the upper ends are the highest that there are."""

# Groups


def test_a_group_gets_each_event_once_and_its_members_share_them() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1, group="g"), sub(6, 1, group="g"), sub(7, 1, group="g"), sub(7, 2, group="h")]
    shares: Counter[int] = Counter()
    for number in range(300):
        rig.arrive(event(number))
        answer_all(rig)
    for asked in rig.host.asked:
        message = asked.arguments.get("message")
        if asked.what == "request" and isinstance(message, EventDelivery):
            to = asked.arguments["peer"].id
            shares.update(to for delivery in message.deliveries for sid in delivery.chosen if sid == 1)
    assert sum(shares.values()) == 300
    assert min(shares[number] for number in (5, 6, 7)) > 70


def test_whoever_decides_chooses_the_same_member() -> None:
    members = [sub(number, 1, group="g") for number in range(5, 15)]
    chosen: list[list[list[tuple[int, tuple[int, ...]]]]] = []
    for order in (members, members[::-1]):
        rig = BrokerRig(node_id=len(chosen) + 1)
        rig.leaves.subs = list(order)
        for number in range(20):
            rig.arrive(event(number))
        chosen.append([sent_to(rig, member) for member in range(5, 15)])
    assert chosen[0] == chosen[1]


def test_a_silent_member_is_passed_over() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1, group="g"), sub(6, 1, group="g")]
    number = next(number for number in range(100) if _chosen(number) == 5)
    rig.arrive(event(number))
    assert sent_to(rig, 5) == [(number, (1,))]
    time_out(rig, 5)
    pass_time(rig, 0.5)
    assert sent_to(rig, 6) == []
    time_out(rig, 5)
    pass_time(rig, 2.0)
    assert sent_to(rig, 6) == [(number, (1,))]
    assert answer_all(rig, silent={5}) == {(6, number): 1}
    assert (rig.ledger.matched_count, rig.ledger.delivered_count) == (1, 1)
    other = next(number for number in range(100, 200) if _chosen(number) == 5)
    rig.leaves.subs.append(sub(5, 2))  # something else for the silent node keeps it known as silent
    rig.arrive(event(other - 1))
    answer_all(rig, silent={5})
    time_out(rig, 5)
    pass_time(rig, 3.0)
    rig.arrive(event(other))
    assert (other, (1,)) in sent_to(rig, 6)
    assert [rig.deliverer.is_pending(event_id(other), node(number)) for number in (5, 6, 7)] == [True, True, False]


def test_a_member_that_answers_again_gets_an_event_that_was_passed_on_to_a_silent_one() -> None:
    """Found by the property below: four of five members are dead, the fifth one pauses for two seconds."""
    rig = BrokerRig(delivery_keep="60s")
    rig.leaves.subs = [sub(5, 1, group="g"), sub(6, 1, group="g")]
    number = next(number for number in range(100) if _chosen(number) == 5)
    rig.arrive(event(number))
    for silent, other in ((5, 6), (6, 5)):
        for _ in range(2):
            time_out(rig, silent)
            pass_time(rig, 2.0)
        if silent == 5:
            assert sent_to(rig, other) == [(number, (1,))]
            assert answer_all(rig, silent={6}) == {}  # it is asked with an empty batch whether it is back
    pass_time(rig, 2.0)
    assert answer_all(rig, silent={6}) == {(5, number): 1}
    assert (rig.ledger.matched_count, rig.ledger.delivered_count, rig.ledger.drops) == (1, 1, {})


def _chosen(number: int) -> int:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1, group="g"), sub(6, 1, group="g")]
    rig.arrive(event(number))
    [(request, _)] = deliveries(rig)
    return request.peer.id


def test_what_a_slow_member_has_no_room_for_goes_to_another() -> None:
    rig = BrokerRig(delivery_queue="64KiB")
    rig.leaves.subs = [sub(5, 1, group="g"), sub(6, 1, group="g")]
    got: Counter[tuple[int, int]] = Counter()
    for number in range(40):
        rig.arrive(event(number, payload=b"x" * 8192))
        got += answer_all(rig, silent={5})
    waiting = [number for number in range(40) if rig.deliverer.is_pending(event_id(number), node(5))]
    assert 0 < len(waiting) <= 8
    assert sum(1 for number in range(40) if _chosen(number) == 5) > 8
    assert sorted([*waiting, *(number for _, number in got.elements())]) == list(range(40))
    assert rig.ledger.drops == {}


def test_a_member_that_has_left_its_group_gives_the_event_to_another() -> None:
    rig = BrokerRig()
    rig.leaves.subs = [sub(5, 1, group="g"), sub(6, 1, group="g"), sub(7, 1, group="g")]
    rig.arrive(event(1))
    asked = []
    for _ in range(3):
        [(request, message)] = deliveries(rig)
        asked.append(request.peer.id)
        answer(rig, request, DeliveryAnswer(message.number, unwanted=(0,)))
    assert sorted(asked) == [5, 6, 7]
    assert (rig.ledger.matched_count, rig.ledger.drops) == (1, {FILTERED: 1})


_WORLD = st.lists(
    st.tuples(st.sampled_from(["event", "event", "answer", "answer", "time_out", "wait"]), st.integers(0, 7))
)


@settings(max_examples=examples(150), deadline=None)
@given(_WORLD, st.sets(st.integers(5, 9), max_size=4))
def test_each_event_comes_to_one_live_member_of_each_group(steps: list[tuple[str, int]], dead: set[int]) -> None:
    """And at all times: matched = delivered + dropped + pending."""
    rig = BrokerRig(delivery_queue="64KiB", delivery_keep="30s")
    rig.leaves.subs = [sub(number, 1, group="g") for number in range(5, 10)] + [sub(6, 2), sub(8, 2, "price > 3")]
    got: Counter[tuple[int, int]] = Counter()
    events = 0

    def take(request: Request, message: EventDelivery) -> None:
        for delivery in message.deliveries:
            if 1 in delivery.chosen:
                got[delivery.event.sequence, request.peer.id] += 1
        answer(rig, request, DeliveryAnswer(message.number))

    for kind, which in steps:
        waiting = deliveries(rig)
        if kind == "event":
            events += 1
            rig.arrive(event(events, payload=b"x" * 1000))
        elif kind == "wait":
            pass_time(rig, which)
        elif waiting:
            request, _ = waiting[which % len(waiting)]
            if kind == "time_out" or request.peer.id in dead:
                time_out(rig, request.peer.id)
            else:
                _in_order(rig, request, take)
        rig.check_law()
    for _ in range(80):
        for request, _ in deliveries(rig):
            if request.peer.id in dead:
                time_out(rig, request.peer.id)
            elif request in rig.host.requests:
                _in_order(rig, request, take)
        pass_time(rig, 1.0)
    assert rig.deliverer.pending() == 0
    assert set(rig.ledger.drops) <= LEAF_REASONS
    is_calm = not dead and all(kind in ("event", "answer") for kind, _ in steps)
    for number in range(1, events + 1):
        members = [member for each, member in got if each == number]
        assert members
        assert len(members) == 1 or not is_calm  # else the answer of a live one may be what was lost


def _in_order(rig: BrokerRig, request: Request, take: Callable[[Request, EventDelivery], None]) -> None:
    """The node takes the first batch that waits for it: links keep order."""
    first = next((each, message) for each, message in deliveries(rig) if each.peer.id == request.peer.id)
    take(*first)


# Multicast


def test_many_subscribers_get_an_event_by_multicast_and_the_rest_directly() -> None:
    rig = BrokerRig(neighbours=(1 << 120, 2 << 120), multicast_min=4)
    near, far = (1 << 120) + 1, (2 << 120) + 1
    rig.leaves.subs = [sub(near + number, 1) for number in range(3)] + [sub(far + number, 1) for number in range(3)]
    rig.arrive(event(1))
    groups = [(to.id, message) for to, message in rig.host.take_sent() if isinstance(message, GroupDelivery)]
    assert {to: len(message.to) for to, message in groups} == {1 << 120: 3, 2 << 120: 3}
    assert deliveries(rig) == []
    rig.arrive(event(2))
    assert deliveries(rig) == []
    rig.host.deliver(DeliveryNote(SCHEMA.name, (EventName(*event_id(1)),)), peer(near))
    rig.check_law()
    assert sent_to(rig, near) == [(2, ())]
    pass_time(rig, 3.0)
    assert sent_to(rig, far) == [(1, ()), (2, ())]
    answer_all(rig)
    assert (rig.ledger.matched_count, rig.ledger.delivered_count) == (12, 12)


def test_a_group_delivery_is_split_by_next_hop_and_its_own_part_taken() -> None:
    rig = BrokerRig(5, neighbours=(1 << 120,))
    others = tuple(NodeDelivery(node((1 << 120) + number), (number,)) for number in range(2))
    message = GroupDelivery(SCHEMA.name, peer(1), event(1), (NodeDelivery(node(5), (7,)), *others), 3)
    rig.host.deliver(message, peer(2))
    assert rig.received == [(SCHEMA.name, event(1), (7,), peer(1))]
    [(to, forwarded)] = rig.host.take_sent()
    assert (to.id, forwarded) == (1 << 120, GroupDelivery(SCHEMA.name, peer(1), event(1), others, 4))


def test_who_names_a_node_twice_in_a_group_delivery_loses_its_link() -> None:
    rig = BrokerRig(5)
    with pytest.raises(ProtocolError, match="twice"):
        rig.host.deliver(GroupDelivery(SCHEMA.name, peer(1), event(1), (NodeDelivery(node(5)),) * 2), peer(2))


def test_a_large_group_is_sent_in_messages_that_fit() -> None:
    rig = BrokerRig(neighbours=(1 << 120,), delivery="multicast")
    rig.leaves.subs = [sub((1 << 120) + number, 1) for number in range(1, 3000)]
    rig.arrive(event(1, payload=b"x" * 10_000))
    sent = [message for _, message in rig.host.take_sent() if isinstance(message, GroupDelivery)]
    assert sum(len(message.to) for message in sent) == 2999
    assert len(sent) <= 4


def test_one_neighbour_may_have_only_so_much_sent_on() -> None:
    rig = BrokerRig(5, neighbours=(1 << 120,))
    others = tuple(NodeDelivery(node((1 << 120) + number)) for number in range(1024))
    for number in range(6):
        rig.host.deliver(GroupDelivery(SCHEMA.name, peer(1), event(number), others, 3), peer(2))
    assert len(rig.host.take_sent()) == 4
    pass_time(rig, 1.0)
    rig.host.deliver(GroupDelivery(SCHEMA.name, peer(1), event(7), others, 3), peer(2))
    assert len(rig.host.take_sent()) == 1


# The past


@pytest.mark.parametrize("delivery", ["direct", "multicast"])
def test_a_subscription_gets_what_it_asks_for_of_the_past(delivery: str) -> None:
    rig = BrokerRig(delivery=delivery)
    for number in range(1, 9):
        rig.arrive(event(number))
    asked = sub(5, 3, "price < 7", since_ms=4000)
    rig.leaves.subs = [asked, sub(6, 1)]
    rig.broker.installed(TREE, 1, asked)
    pass_time(rig, 1.0)
    found = [
        (delivery.event.sequence, delivery.chosen, delivery.is_replay)
        for _, message in deliveries(rig)
        for delivery in message.deliveries
    ]
    assert found == [(number, (3,), True) for number in (4, 5, 6)]
    assert sent_to(rig, 6) == []
    answer_all(rig)
    assert rig.ledger.delivered_count == 3


def test_the_past_is_sent_no_faster_than_it_is_taken() -> None:
    rig = BrokerRig(delivery_queue="64KiB", delivery_window=1)
    for number in range(1, 101):
        rig.arrive(event(number, payload=b"x" * 5000))
    asked = sub(5, 3, since_ms=1)
    rig.leaves.subs = [asked]
    rig.broker.installed(TREE, 1, asked)
    got: Counter[tuple[int, int]] = Counter()
    for _ in range(200):
        pass_time(rig, 0.1)
        got += answer_all(rig)
    assert got == {(5, number): 1 for number in range(1, 101)}
    assert not rig.ledger.drops


def test_the_last_value_of_each_key_is_kept_however_old() -> None:
    rig = BrokerRig(history_age="10s")
    for number, key in ((1, b"a"), (2, b"b"), (3, b"a")):
        rig.arrive(event(number, retain=key))
    rig.host.time_s = 100.0
    rig.arrive(event(4))
    for sid, since_ms in ((1, SINCE_RETAINED), (2, 1), (3, 3000)):
        asked = sub(10 + sid, sid, since_ms=since_ms)
        rig.leaves.subs = [asked]
        rig.broker.installed(TREE, 1, asked)
        pass_time(rig, 0.2)
    assert [sorted(number for number, _ in sent_to(rig, subscriber)) for subscriber in (11, 12, 13)] == [
        [2, 3],
        [2, 3, 4],
        [3, 4],
    ]


@pytest.mark.parametrize("is_written", [True, False])
def test_what_a_durable_subscription_of_this_node_gets_is_pending_until_it_is_on_disk(is_written: bool) -> None:
    rig = BrokerRig()
    rig.leaves.subs.append(sub(1, 1))
    rig.subscribers.filters.append("TRUE")
    rig.subscribers.is_slow = True
    rig.arrive(event(1), event(2))
    rig.arrive(event(3))
    assert rig.subscribers.taken == [1, 2], "the next batch waits for the disk, so that nothing overtakes"
    assert rig.deliverer.pending() == 3
    rig.check_law()
    rig.subscribers.is_slow = False
    rig.subscribers.writes.end(is_durable=is_written)
    if not is_written:
        assert rig.deliverer.pending() == 3, "it is given to the subscription once more"
        rig.subscribers.taken.clear()
        pass_time(rig, 10.0)
        assert rig.subscribers.taken == [1, 2, 3]
    assert rig.deliverer.pending() == 0 and rig.subscribers.taken[-1] == 3
    rig.check_law()
