"""Items that do not fit into a message: cut into parts, put together, matched aside, and never run over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, encode_body
from protocols.dissemination.documents.manifest import Attachment, chunk_bytes_for
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import (
    ITEM_BYTES_MAX,
    ITEMS_BYTES_MAX,
    PART_BYTES,
    Attach,
    Climbed,
    DetachFromParent,
    Dismiss,
    ItemBatch,
    ItemPart,
    ItemTaken,
    Ready,
    ReplayItems,
    StreamItem,
    TreeHeartbeat,
    Widen,
    Widened,
)
from protocols.dissemination.names import START, StreamPosition, stream_key
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.tree.links import PARKED_S, UNTAKEN_MAX
from protocols.dissemination.tree.matching import ASIDE_BYTES, CHANGES_MAX
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.past import SLICE_BYTES
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.seals import in_messages
from protocols.dissemination.tree.state import SILENT_S
from protocols.dissemination.tree.subscription import Delivered, Lost
from tests.support.large_items import Aside, large
from tests.support.member_owner import hook, owner

STREAM = stream_key("s")
PARENT, ME, CHILD = (PeerRef(NodeId(number), "127.0.0.1", number) for number in (1, 2, 3))
KIND = ClassesKind()


class Node:
    """One member and what it sends. ``is_source``: it publishes, else `PARENT` is its parent by attempt 1."""

    def __init__(self, *, is_source: bool, aside: Aside | None = None, buffer_bytes: int = 1 << 30) -> None:
        self.sent: list[tuple[PeerRef, Message]] = []
        self.now = 0.0
        self.blamed: list[str] = []
        limits = BufferLimits(10_000, buffer_bytes, 1e9)
        self.member = StreamMember(
            ME,
            STREAM,
            KIND,
            limits,
            owner(
                lambda peer, message: self.sent.append((peer, message)),
                blame=lambda peer, error: self.blamed.append(error.reason),
            ),
            is_source=is_source,
        )
        if aside is not None:
            self.member.state.matching.offload = aside.offload
        self.number = 0
        self.got: list[Delivered] = []

    def hears(self, peer: PeerRef, message: Message) -> list[Message]:
        self.sent.clear()
        self.member.received(peer, message, self.now)
        return [message for _, message in self.sent]

    def joins(self, text: str = "a") -> None:
        """Have the parent, and a subscription that gets what comes from now on."""
        self.member.subscribe(1, KIND.parse(text), None, self.got.append, self.now)
        self.member.move_to(PARENT, self.now)
        self.hears(PARENT, Ready(STREAM, 1, START, START))
        self.hears(PARENT, Climbed(STREAM, 1, is_clear=True))
        assert self.member.up.parent is not None

    def edge(self, message: Any) -> list[Message]:
        """The parent's next message on the edge."""
        self.number += 1
        return self.hears(PARENT, replace(message, attempt=1, number=self.number))

    def carries(self, item: StreamItem) -> list[Message]:
        """The parent sends an item, in parts where it is large."""
        answers: list[Message] = []
        for message in cut(item):
            answers += self.edge(message)
        return answers

    @property
    def numbers(self) -> list[int]:
        return [each.position.sequence for each in self.got if isinstance(each, ParsedItem)]


def cut(item: StreamItem) -> list[ItemPart | ItemBatch]:
    """What a parent sends of an item, as docs/protocols/dissemination-tree.md has it."""
    found: list[ItemPart | ItemBatch] = []
    rest = item.packed
    while len(rest) > PART_BYTES:
        found.append(ItemPart(STREAM, rest[:PART_BYTES], len(rest) - PART_BYTES))
        rest = rest[PART_BYTES:]
    return [*found, ItemBatch(STREAM, (rest,), item.position)]


def of_edge(sent: Sequence[tuple[PeerRef, Message]], peer: PeerRef) -> list[Message]:
    return [each for to, each in sent if to == peer and isinstance(each, ItemPart | ItemBatch | ReplayItems | Widened)]


# Above


def source_with_child(**more: Any) -> Node:
    node = Node(is_source=True, **more)
    node.hears(CHILD, Attach(STREAM, 1, ("a",), START, is_orphan=True))
    node.sent.clear()
    return node


def test_an_item_that_does_not_fit_goes_before_its_message_in_parts() -> None:
    node = source_with_child()
    item = large(1, 2 * PART_BYTES + 100)
    rest = len(item.packed) - 2 * PART_BYTES
    node.member.publish(item, 0.0)
    node.member.flush(0.0)
    first, second, last = of_edge(node.sent, CHILD)
    assert isinstance(first, ItemPart) and isinstance(second, ItemPart) and isinstance(last, ItemBatch)
    assert (first.left, second.left) == (PART_BYTES + rest, rest)
    assert first.data + second.data + last.items[0] == item.packed
    assert [each.number for each in (first, second, last)] == list(range(first.number, first.number + 3))
    assert node.member.state.buffer.after(START) == [item], "it is remembered whole"


def test_an_item_is_large_because_of_its_manifest() -> None:
    node = source_with_child()
    size = 1 << 32
    chunk_bytes = chunk_bytes_for(size)
    document = Attachment("f", size, chunk_bytes, bytes(32 * -(-size // chunk_bytes)), "")
    item = StreamItem.of(1, 1, 0, b"a " + bytes(PART_BYTES - 10), "", document)
    node.member.publish(item, 0.0)
    node.member.flush(0.0)
    part, last = of_edge(node.sent, CHILD)
    assert isinstance(part, ItemPart) and isinstance(last, ItemBatch)
    assert part.left == len(last.items[0]) and part.data + last.items[0] == item.packed


@given(st.lists(st.integers(1, 5 * PART_BYTES), max_size=12))
def test_large_items_are_alone_in_their_messages(sizes: list[int]) -> None:
    items = [StreamItem.of(1, number, 0, bytes(size)) for number, size in enumerate(sizes, 1)]
    messages = list(in_messages(items))
    assert [item for some in messages for item in some] == items
    for some in messages:
        assert len(some) == 1 or sum(item.size for item in some) <= ITEMS_BYTES_MAX
        assert len(some) == 1 or not any(item.is_large for item in some)


@pytest.mark.parametrize("content_type", ["a/" + "b" * 126, "é" * 128, "\U0001f600" * 128])
def test_messages_of_small_items_with_long_content_types_fit(content_type: str) -> None:
    items = [StreamItem.of(1 << 45, number, 1 << 41, bytes(100), content_type) for number in range(1, 300)]
    for some in in_messages(items):
        packed = tuple(item.packed for item in some)
        encode_body(ItemBatch(STREAM, packed, some[-1].position, 1 << 62, 1 << 30))
        encode_body(ReplayItems(STREAM, packed, 1 << 62, 1 << 30))


def test_a_parent_does_not_run_far_ahead_of_a_child_that_takes_in_a_large_item() -> None:
    node = source_with_child()
    node.member.publish(large(1, ITEM_BYTES_MAX), 0.0)
    for number in range(2, 2 + 3 * UNTAKEN_MAX):
        node.member.publish(large(number, PART_BYTES), 0.0)
        node.member.flush(0.0)
    sent = of_edge(node.sent, CHILD)
    end = next(at for at, each in enumerate(sent) if isinstance(each, ItemBatch))
    assert len(sent) == end + 1 + UNTAKEN_MAX
    last = sent[end]
    assert isinstance(last, ItemBatch)
    node.hears(CHILD, ItemTaken(STREAM, 1, last.number - 1))
    assert not of_edge(node.sent, CHILD), "that was not the end of it"
    node.hears(CHILD, ItemTaken(STREAM, 1, last.number))
    assert len(of_edge(node.sent, CHILD)) == 2 * UNTAKEN_MAX


def test_a_child_that_never_takes_a_large_item_in_is_sent_away() -> None:
    node = source_with_child()
    for number in range(1, 4):
        node.member.publish(large(number, ITEM_BYTES_MAX), 0.0)
        node.member.flush(0.0)
    for tick in range(60):
        node.member.tick(0.25 * tick)
    assert any(isinstance(each, Dismiss) for to, each in node.sent if to == CHILD)
    assert not node.member.down.children


def test_a_slow_child_gets_its_parts_as_it_takes_them() -> None:
    node = source_with_child()
    room = 3
    hook(node.member.owner, is_slow=lambda peer: len(of_edge(node.sent, CHILD)) >= room)
    item = large(1, 10 * PART_BYTES)
    node.member.publish(item, 0.0)
    node.member.flush(0.0)
    assert len(of_edge(node.sent, CHILD)) == 3
    room = 7
    node.member.publish(large(2, 10), 0.0)
    node.member.flush(0.0)
    assert len(of_edge(node.sent, CHILD)) == 7
    room = 100
    node.member.flush(0.0)
    found = of_edge(node.sent, CHILD)
    begin = b"".join(each.data for each in found if isinstance(each, ItemPart))
    carried = [each for each in found if isinstance(each, ItemBatch)]
    assert begin + carried[0].items[0] == item.packed
    assert [each.watermark.sequence for each in carried] == [1, 2]


def test_one_item_may_be_larger_than_what_is_remembered() -> None:
    node = source_with_child(buffer_bytes=64 * 1024)
    item = large(1, 200_000)
    node.member.publish(item, 0.0)
    node.member.flush(0.0)
    assert sum(isinstance(each, ItemBatch) for each in of_edge(node.sent, CHILD)) == 1
    assert not node.member.state.buffer.after(START)


# Below


def test_parts_are_put_together_and_the_parent_is_told() -> None:
    node = Node(is_source=False)
    node.joins()
    item = large(1, 3 * PART_BYTES + 1)
    answers = node.carries(item)
    assert node.numbers == [1]
    [held] = [each for each in node.got if isinstance(each, ParsedItem)]
    assert held.item == item
    assert [each for each in answers if isinstance(each, ItemTaken)] == [ItemTaken(STREAM, 1, node.number)]
    node.carries(large(2, 100))
    assert node.numbers == [1, 2]


Bad = Callable[[list[Any]], list[Any]]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda cut: [*cut[:1], TreeHeartbeat(STREAM, START)], id="something else in between"),
        pytest.param(lambda cut: [cut[0], cut[0]], id="the same part twice"),
        pytest.param(lambda cut: [cut[0], cut[2]], id="a part left out"),
        pytest.param(lambda cut: [ItemPart(STREAM, bytes(PART_BYTES), ITEM_BYTES_MAX)], id="too large"),
        pytest.param(lambda cut: [ItemPart(STREAM, b"x", 100)], id="a short part that is not the last"),
        pytest.param(lambda cut: [ItemPart(STREAM, b"x", 0), ItemPart(STREAM, b"x", 0)], id="a part after the last"),
        pytest.param(lambda cut: [*cut[:2], ItemBatch(STREAM, (), START)], id="no item"),
        pytest.param(lambda cut: [*cut[:2], ItemBatch(STREAM, cut[2].items * 2, START)], id="two items"),
        pytest.param(lambda cut: [*cut[:2], ItemBatch(STREAM, (large(1, 7).packed,), START)], id="another end"),
    ],
)
def test_parts_that_no_correct_parent_sends_cost_it_the_child(wrong: Bad) -> None:
    node = Node(is_source=False)
    node.joins()
    *first, last = wrong(cut(large(1, 2 * PART_BYTES + 5)))
    for message in first:
        node.edge(message)
    with pytest.raises(ProtocolError) as caught:
        node.edge(last)
    assert caught.value.reason == "bad_parts"
    assert not node.got and node.member.up.parent is None
    assert any(isinstance(each, DetachFromParent) for _, each in node.sent)


@pytest.mark.parametrize("kind", [ItemBatch, ReplayItems])
def test_an_item_that_cannot_be_read_costs_its_parent_the_child(kind: type[Message]) -> None:
    node = Node(is_source=False)
    node.joins()
    items = large(1, 7).packed, large(2, 7).packed[:-1]
    with pytest.raises(ProtocolError) as caught:
        node.edge(ItemBatch(STREAM, items, START) if kind is ItemBatch else ReplayItems(STREAM, items))
    assert caught.value.reason == "malformed"
    assert not node.got and node.member.up.parent is None


def test_an_edge_that_is_cut_in_the_middle_leaves_nothing_behind() -> None:
    node = Node(is_source=False)
    node.joins()
    item = large(1, 3 * PART_BYTES)
    node.edge(cut(item)[0])
    node.member.gone(PARENT.id, 0.0)
    node.member.move_to(PARENT, 0.0)
    attach = next(each for _, each in reversed(node.sent) if isinstance(each, Attach))
    assert attach.after == START, "it has not had it"
    node.hears(PARENT, Ready(STREAM, attach.attempt, START, START))
    for number, message in enumerate(cut(item), 1):
        node.hears(PARENT, replace(message, attempt=attach.attempt, number=number))
    assert node.numbers == [1]


# Aside


def test_what_comes_after_a_large_item_waits_until_it_is_matched() -> None:
    aside = Aside()
    node = Node(is_source=False, aside=aside)
    node.joins()
    node.carries(large(1, ASIDE_BYTES + 1))
    node.carries(large(2, 100))
    assert node.numbers == [] and node.member.state.watermark == START
    node.now = SILENT_S + PARKED_S
    node.member.tick(node.now)
    assert node.member.up.parent is not None, "a parent is not silent while this node is busy with what it sent"
    node.sent.clear()
    aside.do()
    assert node.numbers == [1, 2] and node.member.state.watermark == StreamPosition(1, 2)
    assert [each.number for _, each in node.sent if isinstance(each, ItemTaken)] == [node.number - 1]


def test_a_large_item_that_cannot_be_read_is_the_fault_of_who_sent_it() -> None:
    aside = Aside()
    node = Node(is_source=False, aside=aside)
    node.joins()
    node.carries(StreamItem.of(1, 1, 0, b"\xff" * (ASIDE_BYTES + 1)))
    assert node.blamed == []
    aside.do()
    assert node.blamed == ["bad_item"] and node.member.up.parent is None


def test_what_was_matched_of_a_parent_that_is_gone_counts_no_more() -> None:
    aside = Aside()
    node = Node(is_source=False, aside=aside)
    node.joins()
    node.carries(large(1, ASIDE_BYTES + 1))
    node.member.gone(PARENT.id, 0.0)
    aside.do()
    assert node.numbers == [] and node.member.state.watermark == START


def test_where_too_much_waits_for_a_worker_it_is_done_here() -> None:
    aside = Aside()
    node = Node(is_source=False, aside=aside)
    node.joins()
    node.carries(large(1, ASIDE_BYTES + 1))
    aside.refuse()
    assert node.numbers == [1]


def test_who_asks_for_more_while_an_item_is_matched_gets_it() -> None:
    aside = Aside()
    node = Node(is_source=True, aside=aside)
    got: list[ParsedItem] = []
    node.member.state.matching.add(KIND.parse("x"))
    node.member.state.matching.prepare(large(1, ASIDE_BYTES + 1, "a"), got.append, print)
    node.member.state.matching.add(KIND.parse("a"))
    node.member.state.matching.remove(KIND.parse("x").id)
    aside.do()
    assert not got and len(aside.jobs) == 1
    node.member.state.matching.add(KIND.parse("a,b"))
    aside.do()
    aside.do()
    assert [each.met for each in got] == [{KIND.parse("a").id, KIND.parse("a,b").id}]
    node.member.state.matching.prepare(large(2, ASIDE_BYTES + 1, "b"), got.append, print)
    aside.do()
    assert got[1].met == {KIND.parse("a,b").id}, "the set of all knows what has come and gone"


def test_interests_that_come_and_go_without_large_items_leave_nothing_behind() -> None:
    matching = Node(is_source=True).member.state.matching
    got: list[ParsedItem] = []
    for large_items in range(2):
        for number in range(2 * CHANGES_MAX):
            matching.add(KIND.parse(f"c{number}"))
            matching.remove(KIND.parse(f"c{number}").id)
            assert len(matching._changes) <= CHANGES_MAX + 1
        matching.add(KIND.parse("a"))
        matching.prepare(large(large_items, ASIDE_BYTES + 1), got.append, print)
        assert got[-1].met == {KIND.parse("a").id}


# The past


def small_past(node: Node, count: int) -> list[int]:
    """Publish items of two classes; returns the numbers of those of the first."""
    for number in range(1, count + 1):
        node.member.publish(large(number, 30_000, "ab"[number % 2]), 0.0)
    return [number for number in range(1, count + 1) if number % 2 == 0]


def carried(sent: Sequence[tuple[PeerRef, Message]]) -> list[int]:
    found, begin = [], b""
    for message in of_edge(sent, CHILD):
        if isinstance(message, ItemPart):
            begin += message.data
        elif isinstance(message, ItemBatch | ReplayItems):
            found += [StreamItem.unpack(begin + item).position.sequence for item in message.items]
            begin = b""
    return found


def test_a_long_past_is_looked_through_in_slices_and_in_order() -> None:
    node = Node(is_source=True)
    again = 0

    def call_again() -> None:
        nonlocal again
        again += 1

    hook(node.member.owner, call_again=call_again)
    wanted = small_past(node, 40)
    node.hears(CHILD, Attach(STREAM, 1, ("a",), START, is_orphan=True))
    first = carried(node.sent)
    assert 0 < len(first) <= SLICE_BYTES // 30_000 and again
    node.member.publish(large(41, 100), 0.0)
    node.member.flush(0.0)
    assert carried(node.sent) == first, "what comes now is sent after the past"
    turns = 0
    while node.member.down.children[CHILD.id].outbox:
        node.member.go_on(0.0)
        turns += 1
    assert turns >= 40 * 30_000 // SLICE_BYTES - 1
    assert carried(node.sent) == [*wanted, 41]


def test_a_child_that_asks_for_more_of_the_past_is_told_when_that_was_all() -> None:
    node = Node(is_source=True)
    small_past(node, 40)
    node.hears(CHILD, Attach(STREAM, 1, ("c",), START, is_new=True, is_orphan=True))
    node.hears(CHILD, Widen(STREAM, ("b",), START, False, 1, 1))
    sent = list(node.sent)
    assert not any(isinstance(each, Widened) for _, each in sent)
    for _ in range(20):
        node.sent.clear()
        node.member.go_on(0.0)
        sent += node.sent
    replayed = [type(each) for _, each in sent if isinstance(each, ReplayItems | Widened)]
    assert replayed[-1] is Widened and replayed.count(Widened) == 1
    assert carried(sent) == list(range(1, 41, 2))


def test_a_subscription_gets_the_past_in_slices_then_what_came_meanwhile_and_what_was_lost() -> None:
    node = Node(is_source=True)
    wanted = small_past(node, 40)
    node.member.subscribe(1, KIND.parse("a"), START, node.got.append, 0.0)
    assert 0 < len(node.numbers) < len(wanted)
    node.member.publish(large(41, 100), 0.0)
    node.member._lost(StreamPosition(1, 41), StreamPosition(1, 45))
    node.member.state.watermark = StreamPosition(1, 45)
    node.member.publish(large(46, ASIDE_BYTES + 5), 0.0)
    for _ in range(10):
        node.member.go_on(0.0)
    assert node.numbers == [*wanted, 41, 46]
    assert node.got[-2] == Lost(StreamPosition(1, 41), StreamPosition(1, 45))


def test_what_waits_behind_the_past_is_bounded_and_its_loss_is_told() -> None:
    node = Node(is_source=True, buffer_bytes=2_000_000)
    small_past(node, 40)
    node.member.subscribe(1, KIND.parse("a"), START, node.got.append, 0.0)
    had = node.numbers[-1]
    for number in range(41, 44):
        node.member.publish(large(number, ITEM_BYTES_MAX), 0.0)
    for _ in range(10):
        node.member.go_on(0.0)
    assert Lost(StreamPosition(1, had), StreamPosition(1, 42)) in node.got
    assert node.numbers[-1] == 43


def test_a_large_item_of_the_past_is_matched_aside() -> None:
    aside = Aside()
    node = Node(is_source=True)
    node.member.publish(large(1, ASIDE_BYTES + 1, "b"), 0.0)
    node.member.publish(large(2, ASIDE_BYTES + 1, "a"), 0.0)
    node.member.state.matching.offload = aside.offload
    node.hears(CHILD, Attach(STREAM, 1, ("a",), START, is_orphan=True))
    for _ in range(5):
        node.member.go_on(0.0)
    assert carried(node.sent) == []
    aside.do()
    node.member.go_on(0.0)
    aside.do()
    node.member.go_on(0.0)
    assert carried(node.sent) == [2]


def test_nobody_turns_in_circles_while_an_item_of_the_past_is_looked_at_aside() -> None:
    aside = Aside()
    node = Node(is_source=True, aside=aside)
    node.member.publish(large(1, ASIDE_BYTES + 1), 0.0)
    node.member.publish(large(2, ASIDE_BYTES + 1), 0.0)
    again: list[str] = []
    hook(node.member.owner, call_again=lambda: again.append("again"))
    node.hears(CHILD, Attach(STREAM, 1, ("a",), START, is_orphan=True))
    node.member.subscribe(1, KIND.parse("a"), START, node.got.append, 0.0)
    again.clear()
    for _ in range(5):
        node.member.go_on(0.0)
        node.member.flush(0.0)
    assert again == [] and len(aside.jobs) == 2
    aside.do()
    aside.do()
    assert again == ["again", "again"]
    while aside.jobs or again:
        again.clear()
        node.member.go_on(0.0)
        if aside.jobs:
            aside.do()
    assert node.numbers == [1, 2] == sorted(set(carried(node.sent)))
