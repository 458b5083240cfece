"""What a member keeps of what a parent, or a node that is to be it, says: no more than it has asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.interests.coherency import CoherencyKind
from protocols.dissemination.interests.coherency.last_sent import OBJECTS_MAX
from protocols.dissemination.messages import (
    Attach,
    Begin,
    Climbed,
    DetachFromParent,
    Ready,
    ReplayItems,
    StreamItem,
    TreeHeartbeat,
    Widen,
    Widened,
)
from protocols.dissemination.names import StreamPosition, stream_key
from protocols.dissemination.ports import InterestKind, ParsedItem
from protocols.dissemination.tree.links import UPLINK_STEPS, Completeness, Uplink, UplinkStage
from protocols.dissemination.tree.member import StreamMember
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.seals import in_messages
from protocols.dissemination.tree.search import MoveEnd
from tests.support.member_owner import hook, owner

STREAM = stream_key("s")
ME, ONE, OTHER = (PeerRef(NodeId(number), "127.0.0.1", number) for number in (1, 2, 3))
NOW = 1.0


class Alone:
    """A member whose parents are played by the test. It wants one thing, which it gets from the first of them."""

    def __init__(self, kind: InterestKind, text: str) -> None:
        self.kind = kind
        self.sent: list[tuple[PeerRef, Message]] = []
        self.got: list[object] = []
        self.ends: list[MoveEnd] = []
        self.numbers: dict[NodeId, int] = {}
        self.attempts: dict[NodeId, int] = {}
        limits = BufferLimits(100, 1 << 20, 600.0)
        self.member = StreamMember(ME, STREAM, kind, limits, owner(self._send, ended=self._ended), is_source=False)
        self.member.subscribe(1, kind.parse(text), None, self.got.append, NOW)

    def _send(self, peer: PeerRef, message: Message) -> None:
        self.sent.append((peer, message))

    def _ended(self, peer: PeerRef, end: MoveEnd, *_: object) -> None:
        self.ends.append(end)

    def begin(self, peer: PeerRef, watermark: int) -> None:
        """Attach to a node, which begins."""
        assert self.member.move_to(peer, NOW)
        [*_, attach] = [message for _, message in self.sent if isinstance(message, Attach)]
        self.attempts[peer.id], self.numbers[peer.id] = attach.attempt, 0
        at = StreamPosition(1, watermark)
        self.member.received(peer, Ready(STREAM, attach.attempt, at, at), NOW)

    def clear(self, peer: PeerRef) -> None:
        self.member.received(peer, Climbed(STREAM, self.attempts[peer.id], True), NOW)

    def number(self, peer: PeerRef) -> tuple[int, int]:
        self.numbers[peer.id] += 1
        return self.attempts[peer.id], self.numbers[peer.id]

    def heartbeat(self, peer: PeerRef, watermark: int, *, is_stale: bool = False) -> None:
        beat = TreeHeartbeat(STREAM, StreamPosition(1, watermark), (peer,), *self.number(peer), is_stale)
        self.member.received(peer, beat, NOW)

    def widened(self, peer: PeerRef, ids: tuple[bytes, ...], since: int, watermark: int) -> None:
        told = Widened(STREAM, ids, StreamPosition(1, since), StreamPosition(1, watermark), *self.number(peer))
        self.member.received(peer, told, NOW)

    def replay(self, peer: PeerRef, items: Sequence[StreamItem]) -> None:
        for some in in_messages(items):
            self.member.received(
                peer, ReplayItems(STREAM, tuple(item.packed for item in some), *self.number(peer)), NOW
            )

    def told(self, peer: PeerRef) -> list[type[Message]]:
        return [type(message) for to, message in self.sent if to == peer]


def _behind() -> Alone:
    """Its parent is behind what the one before had sent, and says itself that nobody vouches for it."""
    alone = Alone(ClassesKind(), "a")
    alone.begin(ONE, 100)
    alone.clear(ONE)
    alone.heartbeat(ONE, 100)
    alone.member.gone(ONE.id, NOW)
    alone.begin(OTHER, 100)
    alone.clear(OTHER)
    alone.heartbeat(OTHER, 50, is_stale=True)
    return alone


def test_a_parent_that_is_behind_and_answers_what_was_not_asked_has_nothing_kept_for_it() -> None:
    alone = _behind()
    parent = alone.member.up.parent
    assert parent is not None
    for number in range(300):
        alone.widened(OTHER, tuple(bytes([number % 256, each]) * 8 for each in range(256)), 0, 50)
        alone.widened(OTHER, (alone.kind.parse("a").id,) * 256, 0, 50)
    assert set(parent.late) == {alone.kind.parse("a").id}
    alone.member.validate()


def test_who_rides_on_something_wider_is_not_taken_for_asked_because_the_parent_says_so() -> None:
    alone = Alone(ClassesKind(), "")
    alone.begin(ONE, 0)
    alone.clear(ONE)
    texts = [f"c{number}" for number in range(300)]
    for number, text in enumerate(texts):
        alone.member.subscribe(2 + number, alone.kind.parse(text), None, alone.got.append, NOW)
        alone.widened(ONE, (alone.kind.parse(text).id,), 0, 0)
    assert set(alone.member.state.wants.sent()) == {alone.kind.parse("").id}


def test_two_answers_about_one_thing_count_as_two_once_the_parent_has_caught_up() -> None:
    alone = _behind()
    kind, wants = alone.kind, alone.member.state.wants
    b = kind.parse("b")
    live: list[int] = []
    for number, after in ((2, 80), (3, 40)):
        mark = StreamPosition(1, after)
        alone.member.subscribe(number, b, mark, alone.got.append, NOW, partial(live.append, number))
    assert [message.after.sequence for _, message in alone.sent if isinstance(message, Widen)] == [80, 40]
    alone.widened(OTHER, (b.id,), 80, 50)
    alone.widened(OTHER, (b.id,), 40, 60)
    assert wants.has_pending() and not live
    alone.heartbeat(OTHER, 100)
    assert not wants.has_pending() and wants.since(b.id) == StreamPosition(1, 40) and live == [2, 3]
    alone.member.validate()


# Streams of which only the newest item of each object counts


def _values(first: int, count: int) -> list[StreamItem]:
    """Values of so many objects."""
    return [
        StreamItem.of(1, number + 1, 0, json.dumps({"object": f"o{number}", "value": 1, "time": 0}).encode())
        for number in range(first, first + count)
    ]


def _moving() -> Alone:
    """It has a parent, and another one has begun, of which it is not known whether the way up from it is clear."""
    alone = Alone(CoherencyKind(), "")
    alone.begin(ONE, 0)
    alone.clear(ONE)
    alone.heartbeat(ONE, 0)
    alone.begin(OTHER, 0)
    assert Begin in alone.told(OTHER)
    return alone


def test_a_next_parent_that_sends_too_many_objects_is_at_fault_and_not_this_node() -> None:
    alone = _moving()
    with pytest.raises(ProtocolError, match="too_many_objects"):
        alone.replay(OTHER, _values(0, OBJECTS_MAX + 1))
    assert alone.member.up.next is None and alone.ends == [MoveEnd.MOVED, MoveEnd.SILENT]
    assert alone.member.up.parent is not None and alone.member.up.parent.peer == ONE


@pytest.mark.parametrize("is_parent_lost", [False, True])
def test_a_new_parent_whose_objects_are_too_many_with_those_before_is_at_fault(is_parent_lost: bool) -> None:
    alone = _moving()
    alone.replay(ONE, _values(0, 3000))
    alone.replay(OTHER, _values(3000, 3000))
    orphaned: list[bool] = []
    blamed: list[PeerRef] = []
    hook(alone.member.owner, orphaned=lambda: orphaned.append(True), blame=lambda peer, error: blamed.append(peer))
    if is_parent_lost:
        alone.member.gone(ONE.id, NOW)
    else:
        alone.clear(OTHER)
        assert DetachFromParent in alone.told(ONE)
    assert blamed == [OTHER] and orphaned == [True] and DetachFromParent in alone.told(OTHER)
    assert alone.member.up.parent is None and alone.member.up.next is None
    assert sum(isinstance(each, ParsedItem) for each in alone.got) == OBJECTS_MAX


@pytest.mark.parametrize("after", UplinkStage)
@pytest.mark.parametrize("before", UplinkStage)
def test_a_parent_goes_through_its_stages_by_the_table_only(before: UplinkStage, after: UplinkStage) -> None:
    link = Uplink(ONE, 1, NOW, frozenset(), is_orphan=False, stage=before)
    if after in UPLINK_STEPS[before]:
        link.comes_to(after)
        assert link.stage is after
    else:
        with pytest.raises(AssertionError):
            link.comes_to(after)
        assert link.stage is before


@pytest.mark.parametrize(
    ("before", "promised", "proven", "unproven"),
    [
        (Completeness.PART, Completeness.ALL, Completeness.PART, Completeness.PART),
        (Completeness.ALL, Completeness.ALL, Completeness.WHOLE, Completeness.ALL),
        (Completeness.WHOLE, Completeness.WHOLE, Completeness.WHOLE, Completeness.ALL),
        (Completeness.NARROWED, Completeness.NARROWED, Completeness.NARROWED, Completeness.NARROWED),
    ],
)
def test_what_a_parent_has_promised_and_when_a_hole_is_a_lie(
    before: Completeness, promised: Completeness, proven: Completeness, unproven: Completeness
) -> None:
    """By what it says: that it sends everything; that it is so far, with proofs and without."""

    def then(step: Callable[[Uplink], None]) -> Completeness:
        link = Uplink(ONE, 1, NOW, frozenset(), is_orphan=False, completeness=before)
        step(link)
        return link.completeness

    assert then(Uplink.promises_all) is promised
    assert then(lambda link: link.came_to(StreamPosition(1, 1), is_proven=True)) is proven
    assert then(lambda link: link.came_to(StreamPosition(1, 1), is_proven=False)) is unproven
