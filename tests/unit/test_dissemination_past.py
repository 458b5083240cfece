"""What a node remembers of a stream is kept as it came, and parsed again for who asks: within that one's allowance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import pytest

from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import (
    WANTS_MAX,
    Attach,
    AttachRefusal,
    Begin,
    Declined,
    Dismiss,
    ItemBatch,
    Narrow,
    Ready,
    ReplayItems,
    StreamItem,
    Widen,
)
from protocols.dissemination.names import START, StreamPosition, interest_id, stream_key
from protocols.dissemination.ports import Interest, ParsedItem
from protocols.dissemination.tree.allowance import (
    BEGIN_COST,
    BURST_MAX,
    BYTES_A_LOOK,
    NEW_BYTE_COST,
    NEW_COST,
    PER_SECOND,
)
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.replay import BufferLimits, ReplayBuffer
from protocols.dissemination.tree.subscription import Delivered
from tests.support.member_owner import hook, owner

STREAM = stream_key("s")
ME, CHILD = PeerRef(NodeId(1), "127.0.0.1", 1), PeerRef(NodeId(2), "127.0.0.1", 2)
ITEMS = 4
BODY = bytes(32 * 1024)


class Parsed(str):
    """What an item is parsed to. Unlike a str it can be counted."""


class CountedKind(ClassesKind):
    """Knows which items somebody keeps parsed, and how many were parsed."""

    def __init__(self) -> None:
        self.kept: WeakSet[Parsed] = WeakSet()
        self.parsed = 0
        self.read = 0

    def parse(self, text: str) -> Interest:
        self.read += 1
        return super().parse(text)

    def content(self, item: StreamItem) -> Any:
        self.parsed += 1
        found = Parsed(item.payload[:1].decode())
        self.kept.add(found)
        return found


class Node:
    """The producer, with some items, and what it has sent to its child."""

    def __init__(self) -> None:
        self.kind = CountedKind()
        self.sent: list[Message] = []
        self.member = StreamMember(
            ME, STREAM, self.kind, BufferLimits(100, 1 << 30, 1e9), owner(self._send), is_source=True
        )
        self.count = 0

    def _send(self, peer: PeerRef, message: Message) -> None:
        assert peer == CHILD
        self.sent.append(message)

    def publish(self, classes: str) -> None:
        for name in classes:
            self.count += 1
            self.member.publish(StreamItem.of(1, self.count, 0, name.encode() + BODY), 0.0)
        self.member.flush(0.0)

    def hears(self, message: Message, now: float = 0.0) -> list[Message]:
        """What it sends to its child because of a message."""
        self.sent.clear()
        self.member.received(CHILD, message, now)
        return list(self.sent)

    def knows(self, *texts: str) -> None:
        """It has subscriptions of its own to these."""
        for number, text in enumerate(texts):
            self.member.subscribe(number, self.kind.parse(text), None, lambda what: None, 0.0)

    def attach(self, attempt: int, after: StreamPosition, now: float = 0.0, *, is_orphan: bool = True) -> list[Message]:
        return self.hears(Attach(STREAM, attempt, ("a",), after, is_orphan=is_orphan), now)

    @property
    def whole(self) -> int:
        """What the whole past counts for."""
        return self.member.state.buffer.bytes // BYTES_A_LOOK


def numbers(messages: Sequence[Message]) -> list[int]:
    """Of the items in them."""
    packed = [each.items for each in messages if isinstance(each, ItemBatch | ReplayItems)]
    return [StreamItem.unpack(item).position.sequence for some in packed for item in some]


def test_no_item_is_kept_parsed_once_it_has_gone_on() -> None:
    node = Node()
    delivered: list[int] = []

    def deliver(what: Delivered) -> None:
        assert isinstance(what, ParsedItem)
        delivered.append(what.item.position.sequence)

    node.member.subscribe(1, node.kind.parse("a"), None, deliver, 0.0)
    node.attach(1, START)
    hook(node.member.owner, is_slow=lambda peer: True)  # what waits for a child is not parsed either
    node.publish("abab")
    assert delivered == [1, 3]
    assert node.member.down.children[CHILD.id].outbox or node.member.down.children[CHILD.id].queue
    assert node.kind.parsed == ITEMS and not node.kind.kept


def test_the_past_is_parsed_again_one_by_one() -> None:
    node = Node()
    node.publish("abab")
    most = 0

    def deliver(what: Delivered) -> None:
        nonlocal most
        assert isinstance(what, ParsedItem)
        most = max(most, len(node.kind.kept))

    node.member.subscribe(1, node.kind.parse("a,b"), START, deliver, 0.0)
    assert node.kind.parsed == 2 * ITEMS
    assert 1 <= most <= 2, "the one that is given, and the one before it"
    assert numbers(node.attach(1, START)) == [1, 3]
    assert not node.kind.kept


def test_who_wants_everything_is_given_the_past_without_a_look_into_it() -> None:
    node = Node()
    node.publish("ab")
    delivered: list[Delivered] = []
    node.member.subscribe(1, node.kind.parse(""), START, delivered.append, 0.0)
    assert [each.item.position.sequence for each in delivered if isinstance(each, ParsedItem)] == [1, 2]
    assert numbers(node.hears(Attach(STREAM, 1, ("a", ""), START, is_orphan=True))) == [1, 2]
    assert node.kind.parsed == 2


def test_a_producer_that_comes_back_keeps_its_past_as_it_came() -> None:
    node = Node()
    items = [StreamItem.of(1, number, 0, name.encode()) for number, name in enumerate("aba", start=1)]
    node.member.recall(START, [(item, 0.0) for item in items], 0.0)
    assert node.kind.parsed == 0
    assert numbers(node.attach(1, START)) == [1, 3]


def test_who_has_the_whole_past_parsed_again_and_again_has_to_wait() -> None:
    node = Node()
    node.publish("a" * ITEMS)
    cost = BEGIN_COST + ITEMS + node.whole
    allowed = BURST_MAX // cost
    for attempt in range(1, allowed + 1):
        assert numbers(node.attach(attempt, START)) == [1, 2, 3, 4]
    refused = node.attach(allowed + 1, START)
    assert [each.why for each in refused if isinstance(each, Declined)] == [AttachRefusal.BUSY]
    assert numbers(node.attach(allowed + 2, START, cost / PER_SECOND)) == [1, 2, 3, 4]


def test_who_asks_for_what_it_does_not_have_yet_is_charged_for_that_only() -> None:
    node = Node()
    node.publish("a" * ITEMS)
    for attempt in range(1, BURST_MAX // (BEGIN_COST + ITEMS) + 1):
        assert not any(isinstance(each, Declined) for each in node.attach(attempt, StreamPosition(1, ITEMS)))


def test_who_says_only_at_the_end_that_it_wants_the_whole_past_is_charged_for_it() -> None:
    node = Node()
    node.publish("a" * ITEMS)
    node.knows("a")
    attempt, begun = 0, 0
    while True:
        attempt += 1
        offered = node.attach(attempt, StreamPosition(1, ITEMS), is_orphan=False)
        assert any(isinstance(each, Ready) for each in offered)
        answer = node.hears(Begin(STREAM, attempt, START))
        if any(isinstance(each, Dismiss) for each in answer):
            break
        assert numbers(answer) == [1, 2, 3, 4]
        begun += 1
    assert begun == BURST_MAX // (BEGIN_COST + ITEMS + node.whole)
    assert CHILD.id not in node.member.down.children


@pytest.mark.parametrize("is_new", [False, True])
def test_who_wants_more_is_charged_for_the_past_of_it_where_it_asks_for_that(is_new: bool) -> None:
    node = Node()
    node.publish("ab" * (ITEMS // 2))
    node.knows("a", "b")
    node.attach(1, StreamPosition(1, ITEMS))
    answers = 0
    for number in range(1, BURST_MAX // node.whole + 2):
        answer = node.hears(Widen(STREAM, ("b",), START, is_new, 1, number))
        if any(isinstance(each, Dismiss) for each in answer):
            break
        assert numbers(answer) == ([] if is_new else [2, 4])
        answers += 1
    assert (CHILD.id in node.member.down.children) is is_new
    assert is_new or answers == (BURST_MAX - BEGIN_COST - ITEMS) // (1 + ITEMS + node.whole)


def test_who_asks_for_what_the_node_does_not_know_again_and_again_is_charged_for_it() -> None:
    """To read a query, to match it from now on, and to give it up again takes longer than a look at an item."""
    node = Node()
    node.attach(1, START)
    left = BURST_MAX - BEGIN_COST - NEW_COST - NEW_BYTE_COST
    each = WANTS_MAX // 2
    allowed = left // (each * (1 + NEW_COST + 6 * NEW_BYTE_COST))
    for turn in range(allowed + 1):
        texts = tuple(f"c{turn:02}x{number:02x}" for number in range(each))
        ids = tuple(interest_id(node.kind.name, text) for text in texts)
        read = node.kind.read
        node.hears(Widen(STREAM, texts, START, True, 1, 2 * turn + 1))
        assert (CHILD.id in node.member.down.children) == (turn < allowed)
        assert (node.kind.read == read) == (turn == allowed), "what is refused is not read"
        node.hears(Narrow(STREAM, ids, 1, 2 * turn + 2))
    refused = node.hears(Attach(STREAM, 2, tuple(f"d{number}" for number in range(WANTS_MAX)), START))
    assert [each.why for each in refused if isinstance(each, Declined)] == [AttachRefusal.BUSY]


def test_members_with_as_many_interests_as_there_may_be_are_served_whoever_else_comes() -> None:
    sent: list[tuple[PeerRef, Message]] = []
    limits = BufferLimits(100, 1 << 30, 1e9)
    member = StreamMember(ME, STREAM, ClassesKind(), limits, owner(lambda *each: sent.append(each)), is_source=True)
    for child in range(50):
        peer = PeerRef(NodeId(10 + child), "127.0.0.1", 10 + child)
        for attempt in range(1, 6):
            texts = tuple(f"c{child}x{number}" for number in range(WANTS_MAX))
            member.received(peer, Attach(STREAM, attempt, texts, START, is_orphan=True), 0.0)
    assert sum(isinstance(message, Ready) for _, message in sent) == 50 * 5


def test_how_much_stands_behind_a_mark_is_told_from_its_share_of_the_items() -> None:
    buffer = ReplayBuffer(BufferLimits(100, 1 << 30, 1e9))
    assert buffer.bytes_after(START) == 0
    for number in range(1, 11):
        buffer.add(StreamItem.of(1, number, 0, bytes(100)), 0.0)
    assert buffer.bytes_after(START) == buffer.bytes
    assert buffer.bytes_after(StreamPosition(1, 5)) == buffer.bytes // 2
    assert buffer.bytes_after(StreamPosition(1, 10)) == 0
    buffer.forget(StreamPosition(1, 5))
    assert buffer.bytes_after(START) == buffer.bytes_after(StreamPosition(1, 5)) == buffer.bytes
