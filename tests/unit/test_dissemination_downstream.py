"""The upper ends of edges by themselves: what each event has them do, and what a child is sent whatever happens."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import (
    DEPTH_MAX,
    Attach,
    AttachRefusal,
    Begin,
    Climbed,
    Declined,
    Dismiss,
    ItemBatch,
    MoveAway,
    Narrow,
    Ready,
    ReplayItems,
    StreamEnds,
    StreamGap,
    StreamItem,
    TreeHeartbeat,
    Widen,
    Widened,
)
from protocols.dissemination.names import START, StreamPosition, stream_key
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.tree import effects as do
from protocols.dissemination.tree.downstream import OFFER_S, SLOW_S, UNANSWERED_MAX, Downstream
from protocols.dissemination.tree.effects import EdgeAct
from protocols.dissemination.tree.links import PARKED_MAX, PARKED_S, Downlink
from protocols.dissemination.tree.matching import Matching, at_once
from protocols.dissemination.tree.past import SLICE_BYTES
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.state import BEAT_S, MemberState
from protocols.dissemination.tree.upstream import Upstream
from tests.support.member_owner import hook, owner

STREAM = stream_key("s")
KIND = ClassesKind()
ME, ONE, OTHER, ABOVE = (PeerRef(NodeId(number), "127.0.0.1", number) for number in (1, 2, 3, 4))
NOW = 100.0


def at(sequence: int) -> StreamPosition:
    return StreamPosition(1, sequence)


class Above:
    """The producer's edges. What its children want is complete at once, unless it is held back."""

    def __init__(self) -> None:
        self.owner = owner(lambda peer, message: None)
        matching = Matching(KIND, at_once, lambda interest, why: None)
        self.state = MemberState(
            ME, STREAM, KIND, BufferLimits(100, 1 << 24, 600.0), self.owner, matching, is_source=True
        )
        self.state.watermark = at(10)
        self.state.buffer.forget(at(10))
        self.down = Downstream(self.state, Upstream(self.state, 0))
        self.now = NOW
        self.sent: dict[NodeId, list[Message]] = {}
        self.holds_back = False
        self.waiting = 0
        self.attempts: dict[NodeId, int] = {}

    def carry_out(self, effects: Iterable[do.EdgeEffect | do.EdgeAct]) -> list[object]:
        """Returns what was done, in order: messages by whom they go to, and the other effects by their kind."""
        done: list[object] = []
        for effect in effects:
            match effect:
                case do.Send(peer, message):
                    done.append((peer, type(message)))
                    self.sent.setdefault(peer.id, []).append(message)
                case do.Need(holder, child, interests) if not self.holds_back:
                    self.state.wants.hold(holder, interests, self.state.buffer.floor)
                    assert isinstance(child, Downlink)
                    done += self.carry_out(self.down.has(child, effect, self.now))
                case do.Need():
                    pass
                case do.Release(holder, ids, is_final):
                    self.state.wants.release(holder, ids, is_final=is_final)
                    done += [do.Release] if ids is None or ids else []
                case do.HearOut(child):
                    done += self.carry_out(self.down.hear_out(child, self.waiting, self.now))
                case do.Flush(child, past_bytes):
                    done += self.carry_out(self.down.flush_child(child, self.now, past_bytes=past_bytes))
                case _:
                    done.append(effect)
        return done

    def attach(self, peer: PeerRef = ONE, attempt: int = 1, after: int = 10, *, is_orphan: bool = True) -> list[object]:
        message = Attach(STREAM, attempt, ("a",), at(after), False, is_orphan)
        return self.carry_out(self.down.attach(peer, message, self.now))

    def publish(self, sequence: int, text: bytes = b"a") -> None:
        """An item of the class that its payload names."""
        parsed = ParsedItem(StreamItem.of(1, sequence, 0, text), KIND.content(StreamItem.of(1, sequence, 0, text)))
        self.state.watermark = parsed.position
        self.state.buffer.add(parsed.item, self.now)
        self.down.flow(parsed, {KIND.parse(str(parsed.content)).id})

    def flush(self) -> list[object]:
        return self.carry_out(self.down.flush(self.now))

    def tick(self) -> list[object]:
        return self.carry_out(self.down.tick(self.now))

    def asks(self, number: int, text: str = "b", peer: PeerRef = ONE) -> list[object]:
        wish = Widen(STREAM, (text,), START, is_new=True, attempt=1, number=number)
        return self.carry_out(self.down.asked(peer, wish, self.now))


def of(peer: PeerRef, *kinds: type[Message]) -> list[object]:
    return [(peer, kind) for kind in kinds]


# Coming and going


def test_an_orphan_begins_at_once_and_the_way_up_is_checked_after_that() -> None:
    above = Above()
    above.publish(11)
    assert above.attach() == of(ONE, Ready, ItemBatch, TreeHeartbeat, Climbed)
    assert above.attach() == [], "it comes twice"
    assert list(above.down.live) == [ONE.id]


def test_who_has_a_parent_begins_when_it_says_so_and_is_forgotten_if_it_does_not() -> None:
    above = Above()
    assert above.attach(is_orphan=False) == of(ONE, Ready, Climbed)
    above.publish(11)
    assert above.flush() == []
    begin = Begin(STREAM, 1, at(10))
    assert above.carry_out(above.down.begin(ONE, begin, NOW)) == of(ONE, ItemBatch, TreeHeartbeat)
    assert above.carry_out(above.down.begin(ONE, begin, NOW)) == [], "it says so twice"
    assert above.carry_out(above.down.begin(OTHER, begin, NOW)) == of(OTHER, Dismiss)
    above.attach(OTHER, is_orphan=False)
    above.now += OFFER_S
    assert above.tick()[-1] is do.Release and list(above.down.children) == [ONE.id]


def test_who_begins_before_its_interests_are_complete_here_is_at_fault() -> None:
    above = Above()
    above.holds_back = True
    assert above.attach(is_orphan=False) == of(ONE, Climbed)
    with pytest.raises(ProtocolError, match="not_offered"):
        above.down.begin(ONE, Begin(STREAM, 1, at(10)), NOW)


@pytest.mark.parametrize("why", [AttachRefusal.FULL, AttachRefusal.DEPTH, AttachRefusal.BELOW, AttachRefusal.INTEREST])
def test_who_is_declined_is_told_why_and_what_it_had_is_released(why: AttachRefusal) -> None:
    above = Above()
    above.attach(OTHER)
    texts = ("a",)
    match why:
        case AttachRefusal.FULL:
            hook(above.owner, admit=lambda *_: False)
        case AttachRefusal.DEPTH:
            above.state.path = tuple(NodeId(1000 + number) for number in range(DEPTH_MAX))
        case AttachRefusal.BELOW:
            above.state.path = (ONE.id,)
        case _:
            texts = ("\0",)
    message = Attach(STREAM, 1, texts, at(10), False, True)
    assert above.carry_out(above.down.attach(ONE, message, NOW)) == of(ONE, Declined)
    [told] = above.sent[ONE.id]
    assert isinstance(told, Declined) and (told.why, told.children) == (why, (OTHER,))


def test_who_attaches_anew_wants_what_it_says_now_and_what_comes_late_of_before_does_nothing() -> None:
    above = Above()
    above.attach()
    [child] = above.down.children.values()
    message = Attach(STREAM, 2, ("b",), at(10), False, False)
    assert above.carry_out(above.down.attach(ONE, message, NOW)) == [do.Release, *of(ONE, Ready, Climbed)]
    late = do.Need(ONE.id, child, [], None)
    assert above.down.has(child, late, NOW) == [] and above.down.detach(ONE, 1) == []
    assert above.carry_out(above.down.detach(ONE, 2)) == [do.Release] and not above.down.children


def test_a_node_that_has_no_parent_has_no_children() -> None:
    above = Above()
    above.state.is_source = False
    assert above.attach() == of(ONE, Declined)


# The stream


def test_items_of_one_call_go_in_one_message_and_who_wants_none_of_them_is_told_how_far_it_is() -> None:
    above = Above()
    above.attach()
    above.attach(OTHER)
    above.carry_out(above.down.attach(ABOVE, Attach(STREAM, 1, ("z",), at(10), False, True), NOW))
    for sequence in (11, 12, 13):
        above.publish(sequence)
    assert above.flush() == of(ONE, ItemBatch) + of(OTHER, ItemBatch)
    assert above.flush() == []
    above.now += BEAT_S
    assert above.tick() == of(ONE, TreeHeartbeat) + of(OTHER, TreeHeartbeat) + of(ABOVE, TreeHeartbeat)


def test_whether_a_child_takes_more_is_asked_after_each_message_and_who_takes_nothing_is_sent_away() -> None:
    above = Above()
    above.attach()
    takes = [True]
    hook(above.owner, is_slow=lambda peer: not (takes and takes.pop()))
    [child] = above.down.children.values()
    for sequence in (11, 12, 13):
        above.publish(sequence)
        above.down._pack(child, at(sequence), NOW, is_due=False)
    assert above.flush() == of(ONE, ItemBatch) and above.flush() == [], "and the others wait"
    above.now += 0.6 * SLOW_S
    takes.append(True)
    assert above.flush() == of(ONE, ItemBatch)
    above.now += 0.6 * SLOW_S
    assert above.tick() == [], "it has taken something"
    above.now += 0.4 * SLOW_S
    assert above.tick() == [*of(ONE, Dismiss), do.Release]


def test_a_loss_is_told_in_its_place() -> None:
    above = Above()
    above.attach()
    above.publish(11)
    above.state.watermark = at(20)
    assert above.down.gap(at(11), at(20), NOW) == []
    above.publish(21)
    assert above.flush() == of(ONE, ItemBatch, StreamGap, ItemBatch)


def test_a_long_past_goes_out_in_slices_and_the_stream_after_it() -> None:
    above = Above()
    for sequence in range(11, 91):
        above.publish(sequence, b"a" if sequence % 2 else b"z " + bytes(30_000))
    done = above.attach()
    assert EdgeAct.CALL_AGAIN in done
    above.publish(91)
    for _ in range(20):
        done += above.carry_out(above.down.go_on())
    got = [item for message in above.sent[ONE.id] for item in getattr(message, "items", ())]
    wanted = [StreamItem.of(1, sequence, 0, b"a").packed for sequence in range(11, 92, 2)]
    assert got == wanted and SLICE_BYTES < 40 * 30_000


def test_the_end_and_the_leaving_of_a_node_are_told_to_each_child() -> None:
    above = Above()
    above.attach()
    above.attach(OTHER)
    assert above.carry_out(above.down.move_away(OTHER.id)) == of(ONE, MoveAway) + of(OTHER, MoveAway)
    first, second = above.sent[ONE.id][-1], above.sent[OTHER.id][-1]
    assert isinstance(first, MoveAway) and first.parents == (OTHER,) and not first.is_successor
    assert isinstance(second, MoveAway) and second.parents == () and second.is_successor
    above.publish(11)
    ends = [(OTHER, ItemBatch), (OTHER, StreamEnds), do.Release]
    assert above.carry_out(above.down.end_all()) == [(ONE, ItemBatch), (ONE, StreamEnds), do.Release, *ends]
    assert above.carry_out(above.down.dismiss_all()) == []


# What a child wants


def test_what_a_child_wants_besides_is_answered_behind_what_it_is_sent() -> None:
    above = Above()
    above.attach()
    above.publish(11)
    assert above.asks(1) == []
    assert above.flush() == of(ONE, ItemBatch, Widened)
    narrow = Narrow(STREAM, (KIND.parse("b").id,), 1, 2)
    assert above.carry_out(above.down.asked(ONE, narrow, NOW)) == [do.Release]
    assert [each.text for each in above.down.children[ONE.id].wants.values()] == ["a"]


def test_a_wish_that_has_overtaken_another_one_waits_and_a_child_of_which_one_is_lost_attaches_anew() -> None:
    above = Above()
    above.attach()
    assert above.asks(2, "c") == [] and above.flush() == []
    assert above.asks(1, "b") == [] and above.flush() == of(ONE, TreeHeartbeat, Widened) * 2
    assert above.asks(4) == []
    above.now += PARKED_S
    assert above.tick()[-2:] == [*of(ONE, Dismiss), do.Release]
    above.attach(attempt=1)
    for number in range(2, PARKED_MAX + 2):
        assert above.asks(number) == []
    assert above.asks(PARKED_MAX + 2) == [*of(ONE, Dismiss), do.Release]


def test_a_child_that_asks_for_more_than_is_answered_attaches_anew() -> None:
    above = Above()
    above.attach()
    above.waiting = UNANSWERED_MAX
    assert above.asks(1) == [*of(ONE, Dismiss), do.Release]


# Whatever comes, in whatever order

_EVENTS = st.tuples(
    st.sampled_from(("attach", "attach", "begin", "detach", "widen", "narrow", "publish", "publish", "gap", "tick")),
    st.sampled_from([ONE, ONE, OTHER]),
    st.integers(1, 3),
    st.booleans(),
)
"""What, from whom, a number, and whether the child takes anything then."""


def _happens(above: Above, name: str, peer: PeerRef, number: int, is_slow: bool) -> None:
    down, now = above.down, above.now
    hook(above.owner, is_slow=lambda peer: is_slow)
    child = down.children.get(peer.id)
    attempt, asked = above.attempts.get(peer.id, 1), 0 if child is None else child.asked_number
    watermark = above.state.watermark.sequence
    effects: Iterable[do.EdgeEffect | do.EdgeAct] = []
    match name:
        case "attach":
            above.attempts[peer.id] = attempt + number
            message = Attach(STREAM, attempt + number, ("a",), at(10 + number), False, number > 1)
            effects = down.attach(peer, message, now)
        case "begin" if child is not None and child.stage.value != "waiting":
            effects = down.begin(peer, Begin(STREAM, attempt, at(10)), now)
        case "detach":
            effects = down.detach(peer, attempt + number - 1)
        case "widen":
            effects = down.asked(peer, Widen(STREAM, ("b",), at(10), False, attempt, asked + number), now)
        case "narrow":
            effects = down.asked(peer, Narrow(STREAM, (KIND.parse("b").id,), attempt, asked + number), now)
        case "publish":
            above.publish(watermark + 1, b"ab"[number % 2 : number % 2 + 1])
        case "gap":
            above.state.watermark = at(watermark + number)
            above.state.buffer.forget(above.state.watermark)
            effects = down.gap(at(watermark), above.state.watermark, now)
        case "tick":
            above.now += (0.25, BEAT_S, SLOW_S)[number - 1]
            effects = down.tick(above.now)
    above.carry_out(effects)
    above.flush()


@given(st.lists(_EVENTS, max_size=40))
def test_each_edge_is_numbered_without_holes_and_goes_forward_and_says_of_each_item_that_it_went_or_is_lost(
    events: list[tuple[str, PeerRef, int, bool]],
) -> None:
    above = Above()
    edges: dict[tuple[NodeId, int], tuple[int, StreamPosition]] = {}
    for event in events:
        above.sent.clear()
        _happens(above, *event)
        above.down.validate()
        for peer, messages in above.sent.items():
            for message in messages:
                if not isinstance(message, ItemBatch | TreeHeartbeat | ReplayItems | Widened | StreamGap):
                    continue
                number, told = edges.get((peer, message.attempt), (0, START))
                assert message.number == number + 1
                if isinstance(message, ItemBatch):
                    positions = [StreamItem.unpack(each).position for each in message.items]
                    assert positions == sorted(set(positions)) and told < positions[0]
                    assert positions[-1] <= message.watermark
                    told = message.watermark
                elif isinstance(message, StreamGap):
                    assert message.since < message.until and told <= message.until
                    told = message.until
                elif not isinstance(message, ReplayItems):
                    assert told <= message.watermark
                    told = message.watermark
                edges[peer, message.attempt] = message.number, told
    hook(above.owner, is_slow=lambda peer: False)
    for _ in range(2):
        above.now += BEAT_S
        above.tick()
    for child in above.down.live.values():
        assert not child.queue and not child.outbox and child.told == above.state.watermark
