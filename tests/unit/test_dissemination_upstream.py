"""The lower end of an edge by itself: what each event has it do, and what holds whatever comes in whatever order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import (
    Attach,
    AttachRefusal,
    Begin,
    Climb,
    Climbed,
    Declined,
    DetachFromParent,
    ItemBatch,
    Ready,
    StreamGap,
    StreamItem,
    TreeHeartbeat,
    Widen,
)
from protocols.dissemination.names import START, StreamPosition, stream_key
from protocols.dissemination.tree import effects as do
from protocols.dissemination.tree.effects import EdgeAct
from protocols.dissemination.tree.links import PARKED_MAX, PARKED_S
from protocols.dissemination.tree.matching import Matching, at_once
from protocols.dissemination.tree.owner import MemberOwner
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.search import MoveEnd
from protocols.dissemination.tree.state import MOVE_S, SILENT_S, MemberState
from protocols.dissemination.tree.upstream import BEHIND_S, NARROW_AFTER_S, TELL_OFF_S, Upstream

STREAM = stream_key("s")
KIND = ClassesKind()
ME, ONE, OTHER, THIRD = (PeerRef(NodeId(number), "127.0.0.1", number) for number in (1, 2, 3, 4))
NOW = 100.0
Doing = Iterable[do.EdgeEffect | EdgeAct]


def at(sequence: int) -> StreamPosition:
    return StreamPosition(1, sequence)


class Alone:
    """An edge of a node that wants one thing. It takes in what it is to take in, and does nothing else."""

    def __init__(self) -> None:
        matching = Matching(KIND, at_once, lambda interest, why: None)
        limits = BufferLimits(100, 1 << 20, 600.0)
        self.state = MemberState(ME, STREAM, KIND, limits, MemberOwner(), matching, is_source=False)
        self.up = Upstream(self.state, 0)
        self.state.wants.need(("own", 1), [KIND.parse("a")], None, START)
        self.now = NOW
        self.done: do.Effects = []

    def carry_out(self, effects: Doing | None) -> do.Effects:
        """Carry it out; returns what was done, in order."""
        for effect in effects or []:
            self.done.append(effect)
            match effect:
                case do.TakeItems():
                    for item in effect.items:
                        self.state.watermark = self.state.proven = max(self.state.watermark, item.position)
                    self.carry_out(self.up.taken(effect, effect.error, self.now))
                case do.GoOn(link):
                    self.carry_out(self.up.go_on(link, self.now))
                case do.Refuse():
                    break
        return self.done

    def told(self, effects: Doing | None) -> list[object]:
        """What one event has it do: messages by whom they go to, and the other effects by their kind."""
        self.done = []
        return [self._short(each) for each in self.carry_out(effects) if not isinstance(each, do.GoOn)]

    @staticmethod
    def _short(effect: do.EdgeEffect | EdgeAct) -> object:
        match effect:
            case do.Send(peer, message):
                return peer, type(message)
            case do.Ended(_, end):
                return end
        return effect if isinstance(effect, EdgeAct) else type(effect)

    def tick(self) -> list[object]:
        self.done = []
        self.carry_out(self.up.tick(self.now))
        return [self._short(each) for each in self.done]

    @property
    def attempt(self) -> int:
        return self.up._attempts

    def has_parent(self, peer: PeerRef = ONE, watermark: int = 10) -> Alone:
        self.carry_out(self.up.move_to(peer, self.now))
        self.carry_out(self.up.ready(peer, Ready(STREAM, self.attempt, at(watermark), at(watermark)), self.now))
        self.carry_out(self.up.climbed(Climbed(STREAM, self.attempt, True), self.now))
        assert self.up.is_parent(peer, self.attempt)
        return self

    def moves(self, peer: PeerRef = OTHER) -> Alone:
        """Another node was told to begin."""
        self.carry_out(self.up.move_to(peer, self.now))
        self.carry_out(self.up.ready(peer, Ready(STREAM, self.attempt, at(10), at(10)), self.now))
        return self


def batch(attempt: int, number: int, first: int, count: int = 1) -> ItemBatch:
    items = [StreamItem.of(1, first + each, 0, b"a") for each in range(count)]
    return ItemBatch(STREAM, tuple(each.packed for each in items), items[-1].position, attempt, number, (), b"")


def beat(attempt: int, number: int, watermark: int, path: tuple[PeerRef, ...] | None = None) -> TreeHeartbeat:
    return TreeHeartbeat(STREAM, at(watermark), path, attempt, number)


# Getting a parent


def test_an_orphan_takes_the_stream_before_the_way_up_is_known_to_be_clear() -> None:
    alone, ready = Alone(), Ready(STREAM, 1, at(10), at(10))
    assert alone.told(alone.up.move_to(ONE, NOW)) == [(ONE, Attach)]
    assert alone.told(alone.up.ready(ONE, ready, NOW)) == [EdgeAct.UNSETTLED, EdgeAct.ANSWERED]
    assert not alone.up.is_orphan and alone.up.parent is None and alone.state.watermark == at(10)
    assert alone.told(alone.up.ready(ONE, ready, NOW)) == [], "it says so twice"
    assert alone.told(alone.up.climbed(Climbed(STREAM, 1, True), NOW)) == [
        EdgeAct.FRESHENED,
        MoveEnd.MOVED,
        do.Blame,
    ]
    assert alone.up.is_parent(ONE, 1)


def test_the_old_parent_is_told_once_the_new_one_has_begun_and_its_way_up_is_clear() -> None:
    alone = Alone().has_parent()
    assert alone.told(alone.up.move_to(OTHER, NOW)) == [(OTHER, Attach)]
    for _ in range(2):  # the network repeats messages (swarm, seeds 16, 40, 83, 465)
        assert alone.told(alone.up.ready(OTHER, Ready(STREAM, 2, at(10), at(10)), NOW)) == [(OTHER, Begin)]
    assert alone.told(alone.up.climbed(Climbed(STREAM, 2, True), NOW)) == []
    assert alone.told(alone.up.received(OTHER, beat(2, 1, 10), NOW)) == [
        EdgeAct.FRESHENED,
        (ONE, DetachFromParent),
        MoveEnd.MOVED,
        do.Blame,
        EdgeAct.FRESHENED,
    ]
    assert alone.up.is_parent(OTHER, 2)


def test_a_new_parent_that_was_asked_before_more_was_wanted_is_asked_again() -> None:
    alone = Alone().has_parent()
    alone.carry_out(alone.up.move_to(OTHER, NOW))
    asks = alone.state.wants.need(("own", 2), [KIND.parse("b")], None, START)
    assert alone.told(alone.up.ask(asks, NOW)) == [(ONE, Widen)]
    assert alone.told(alone.up.ready(OTHER, Ready(STREAM, 2, at(10), at(10)), NOW)) == [(OTHER, Attach)]
    assert alone.attempt == 3


def test_a_node_gets_no_parent_that_it_has_or_is_or_while_it_moves_or_has_let_a_check_pass() -> None:
    alone = Alone().has_parent()
    assert alone.up.move_to(ME, NOW) is None and alone.up.move_to(ONE, NOW) is None
    assert alone.told(alone.up.climb(Climb(STREAM, THIRD, 7), NOW)) == [(ONE, Climb)]
    assert alone.up.move_to(OTHER, NOW) is None
    alone.moves().now += MOVE_S
    assert alone.up.next is None and alone.told(alone.up.move_to(OTHER, alone.now)) == [(OTHER, Attach)]
    assert alone.up.move_to(THIRD, alone.now) is None


@pytest.mark.parametrize(
    ("event", "end", "is_told"),
    [
        (lambda up: up.declined(OTHER, Declined(STREAM, 2, 99), NOW), MoveEnd.DECLINED, False),
        (lambda up: up.dismissed(OTHER, 2, NOW), MoveEnd.DECLINED, False),
        (lambda up: up.climbed(Climbed(STREAM, 2, False), NOW), MoveEnd.CIRCLE, True),
        (lambda up: up.climb(Climb(STREAM, ME, 2), NOW), MoveEnd.CIRCLE, True),
        (lambda up: up.gone(OTHER.id, NOW), MoveEnd.SILENT, True),
        (lambda up: up.tick(NOW + MOVE_S), MoveEnd.SILENT, True),
    ],
)
def test_how_an_attempt_ends(event: Callable[[Upstream], Doing], end: MoveEnd, is_told: bool) -> None:
    alone = Alone().has_parent().moves()
    assert alone.told(event(alone.up)) == [*[(OTHER, DetachFromParent)] * is_told, end]
    assert alone.up.is_parent(ONE, 1) and alone.up.next is None
    # What comes late from a node that is it no more does nothing, but for telling that node so.
    late = alone.told(alone.up.declined(OTHER, Declined(STREAM, 2, AttachRefusal.FULL), NOW))
    assert late == alone.told(alone.up.climbed(Climbed(STREAM, 2, True), NOW)) == []
    assert alone.told(alone.up.received(OTHER, beat(2, 1, 99), NOW)) == [(OTHER, DetachFromParent)]
    assert alone.told(alone.up.received(OTHER, beat(2, 2, 99), NOW + TELL_OFF_S / 2)) == []


def test_checks_of_others_wait_for_the_end_of_this_nodes_move_where_their_ids_are_smaller() -> None:
    alone = Alone().has_parent().moves(THIRD)
    before = PeerRef(NodeId(0), "127.0.0.1", 9)
    assert alone.told(alone.up.climb(Climb(STREAM, before, 5), NOW)) == []
    assert alone.told(alone.up.climb(Climb(STREAM, OTHER, 5), NOW)) == [(ONE, Climb)]
    assert alone.told(alone.up.gone(THIRD.id, NOW)) == [(THIRD, DetachFromParent), (ONE, Climb), MoveEnd.SILENT]


# Losing it


@pytest.mark.parametrize(
    ("event", "is_told"),
    [
        (lambda up: up.gone(ONE.id, NOW), False),
        (lambda up: up.dismissed(ONE, 1, NOW), False),
        (lambda up: up.tick(NOW + SILENT_S), True),
        (lambda up: up.received(ONE, beat(1, 1, 10, (OTHER, ME)), NOW), True),
    ],
)
def test_how_a_parent_is_lost(event: Callable[[Upstream], Doing], is_told: bool) -> None:
    alone = Alone().has_parent()
    told = [each for each in alone.told(event(alone.up)) if each is not EdgeAct.FRESHENED]
    assert told == [*[(ONE, DetachFromParent)] * is_told, EdgeAct.ORPHANED]
    assert alone.up.parent is None and alone.up.is_orphan and alone.up.is_stale


def test_who_loses_its_parent_while_it_moves_attaches_anew_as_an_orphan() -> None:
    alone = Alone().has_parent().moves()
    assert alone.told(alone.up.gone(ONE.id, NOW)) == [EdgeAct.FRESHENED, (OTHER, Attach)]
    attach: Any = alone.done[-1]
    assert attach.message.is_orphan and attach.message.attempt == 3


# The stream


def test_what_has_overtaken_something_else_waits_for_that_and_then_is_taken_in_its_turn() -> None:
    alone = Alone().has_parent()
    assert alone.told(alone.up.received(ONE, batch(1, 2, 12), NOW)) == []
    assert alone.told(alone.up.received(ONE, batch(1, 1, 11), NOW)) == [do.TakeItems] * 2
    assert alone.state.watermark == at(12)
    assert alone.told(alone.up.received(ONE, batch(1, 1, 11), NOW)) == [], "it comes twice"


def test_a_link_on_which_something_is_lost_is_broken_by_time_and_by_what_waits() -> None:
    alone = Alone().has_parent()
    alone.carry_out(alone.up.received(ONE, batch(1, 2, 12), NOW))
    alone.now += PARKED_S
    assert alone.tick() == [(ONE, DetachFromParent), EdgeAct.FRESHENED, EdgeAct.ORPHANED]
    alone = Alone().has_parent()
    for number in range(2, PARKED_MAX + 2):
        assert alone.told(alone.up.received(ONE, beat(1, number, 10), NOW)) == []
    told = alone.told(alone.up.received(ONE, beat(1, PARKED_MAX + 2, 10), NOW))
    assert told == [(ONE, DetachFromParent), EdgeAct.FRESHENED, EdgeAct.ORPHANED]


def test_what_came_before_an_item_that_is_wrong_is_taken_and_no_more_is_believed_of_its_sender() -> None:
    alone = Alone().has_parent()
    items = [StreamItem.of(1, sequence, 0, b"a") for sequence in (11, 12, 12, 13)]
    wrong = ItemBatch(STREAM, tuple(each.packed for each in items), at(13), 1, 1, (), b"")
    assert alone.told(alone.up.received(ONE, wrong, NOW)) == [
        do.TakeItems,
        (ONE, DetachFromParent),
        EdgeAct.FRESHENED,
        EdgeAct.ORPHANED,
        do.Refuse,
    ]
    assert alone.state.watermark == at(12) and alone.up.move_to(ONE, NOW) is None


def test_a_stream_that_was_said_to_be_further_than_anything_sent_falls_back_when_that_was_a_lie() -> None:
    alone = Alone().has_parent()
    alone.carry_out(alone.up.received(ONE, beat(1, 1, 50), NOW))
    told = alone.told(alone.up.received(ONE, beat(1, 2, 40), NOW))
    assert told == [do.FellBack, (ONE, DetachFromParent), EdgeAct.FRESHENED, EdgeAct.ORPHANED, do.Refuse]
    assert alone.state.watermark == at(10)


def test_a_parent_that_stays_behind_without_being_stale_is_right() -> None:
    alone = Alone().has_parent()
    alone.carry_out(alone.up.received(ONE, beat(1, 1, 50), NOW))
    alone.carry_out(alone.up.gone(ONE.id, NOW))
    alone.has_parent(OTHER)
    assert alone.up.parent is not None
    for second in range(int(BEHIND_S)):
        alone.carry_out(alone.up.received(OTHER, beat(2, second + 1, 20), alone.now))
        assert alone.tick() == []
        alone.now += 1.0
    alone.carry_out(alone.up.received(OTHER, beat(2, 99, 20), alone.now))
    assert alone.tick() == [do.FellBack, (OTHER, DetachFromParent), EdgeAct.FRESHENED, EdgeAct.ORPHANED]


def test_what_nobody_wants_any_more_is_given_up_after_a_while_and_at_once_if_that_is_final() -> None:
    for is_final in (False, True):
        alone = Alone().has_parent()
        assert alone.state.wants.release(("own", 1), is_final=is_final)
        alone.up.released(alone.now, is_final=is_final)
        alone.carry_out(alone.up.received(ONE, beat(1, 1, 10), NOW))
        told = alone.tick()
        assert [type(each.message).__name__ for each in alone.done if isinstance(each, do.Send)] == [
            "Narrow"
        ] * is_final
        alone.now += NARROW_AFTER_S
        alone.carry_out(alone.up.received(ONE, beat(1, 2, 10), alone.now))
        assert is_final or (told == [] and len(alone.tick()) == 2), "offered, and narrowed"


def test_the_stream_ends_once_a_large_item_before_that_was_read() -> None:
    alone = Alone().has_parent()
    assert alone.told(alone.up.stream_ends(OTHER, 1)) == [], "it is not the parent"
    large = StreamItem.of(1, 11, 0, b"a" * (80 << 10))
    assert alone.up.parent is not None
    alone.up.parent.parts, alone.up.parent.left = [large.packed[:-10]], 10
    end = ItemBatch(STREAM, (large.packed[-10:],), large.position, 1, 1, (), b"")
    assert alone.told(alone.up.received(ONE, end, NOW)) == [do.ReadAside]
    aside: Any = alone.done[0]
    assert alone.told(alone.up.received(ONE, beat(1, 2, 11), NOW)) == [], "it waits for the item"
    assert alone.told(alone.up.stream_ends(ONE, 1)) == []
    parsed: Any = None
    assert alone.told(alone.up.read(aside, parsed, NOW))[0] is do.TakeItems
    assert alone.up.over() == [EdgeAct.OVER] and alone.state.watermark == at(11)


# Whatever comes, in whatever order

MOVING = ("move", "ready", "ready", "climbed", "climbed", "climb", "declined", "dismissed", "gone", "leave")
FLOWING = ("batch", "beat", "gap", "tick")
_EVENTS = st.tuples(
    st.sampled_from(MOVING + FLOWING),
    st.sampled_from([None, None, None, ONE, OTHER, THIRD]),
    st.sampled_from([0, 0, 0, 0, -1, 1]),
    st.integers(8, 16),
    st.sampled_from([1, 1, 0, 2]),
)
"""What, from whom (``None``: the node that is to be the parent, or is it), how far its attempt is off, up to where, and
how much larger its number is than the last."""


def _happens(alone: Alone, name: str, who: PeerRef | None, off: int, mark: int, step: int) -> None:
    up, now = alone.up, alone.now
    link = up.next or up.parent
    attempt = off + (alone.attempt if link is None else link.attempt)
    edge = attempt, step + (0 if link is None else link.number)
    peer = who or (ONE if link is None else link.peer)
    effects: Doing | None = []
    match name:
        case "move":
            effects = up.move_to(who or OTHER, now)
        case "ready":
            effects = up.ready(peer, Ready(STREAM, attempt, at(mark), at(mark)), now)
        case "climbed":
            effects = up.climbed(Climbed(STREAM, attempt, step == 1), now)
        case "climb":
            effects = up.climb(Climb(STREAM, who or ME, attempt), now)
        case "declined":
            effects = up.declined(peer, Declined(STREAM, attempt, AttachRefusal.FULL), now)
        case "dismissed":
            effects = up.dismissed(peer, attempt, now)
        case "gone":
            effects = up.gone(peer.id, now)
        case "batch":
            effects = up.received(peer, batch(*edge, mark, 2), now)
        case "beat":
            effects = up.received(peer, beat(*edge, mark, (peer,)), now)
        case "gap":
            effects = up.received(peer, StreamGap(STREAM, at(mark), at(mark + 1), *edge), now)
        case "leave":
            effects = up.leave()
        case "tick":
            alone.now += (0.25, 1.0, SILENT_S)[step]
            alone.tick()
    alone.carry_out(effects)


@given(st.lists(_EVENTS, max_size=40))
def test_each_attempt_ends_once_each_node_that_is_left_knows_it_and_the_stream_goes_back_only_if_it_says_so(
    events: list[tuple[str, PeerRef | None, int, int, int]],
) -> None:
    alone = Alone()
    begun: set[NodeId] = set()
    for event in events:
        watermark, before = alone.state.watermark, [each for each in (alone.up.parent, alone.up.next) if each]
        alone.done = []
        _happens(alone, *event)  # raises nothing, whatever a peer has sent
        alone.up.validate()
        sent = [(each.peer, each.message) for each in alone.done if isinstance(each, do.Send)]
        begun |= {peer.id for peer, message in sent if isinstance(message, Attach)}
        ended = [each.peer.id for each in alone.done if isinstance(each, do.Ended)]
        assert len(set(ended)) == len(ended) and begun.issuperset(ended)
        begun = set() if event[0] == "leave" else begun.difference(ended)
        assert begun == (set() if alone.up.next is None else {alone.up.next.peer.id})
        for link in before:
            if not alone.up.knows(link.peer.id) and event[0] not in ("declined", "dismissed", "gone"):
                assert (link.peer, DetachFromParent(STREAM, link.attempt)) in sent
        assert (alone.state.watermark < watermark) == any(isinstance(each, do.FellBack) for each in alone.done)
        is_alone = alone.up.parent is None and alone.up.next is None and event[0] != "leave"
        if is_alone and any(link.has_begun for link in before):
            assert EdgeAct.ORPHANED in alone.done
