"""The children of one node in one stream: what each wants, has been sent, and has been told. Pure.

Events go in as method calls; each returns the effects to carry out, in order. What goes to a child waits in its
`Downlink`. It is sent (`Downstream.flush`) one message after the other, for as long as the child takes more: so these
effects are made one by one, each when the one before it was carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination import messages
from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.messages import DEPTH_MAX, WANTS_MAX, AttachRefusal, StreamItem
from protocols.dissemination.names import START, StreamPosition, interest_id
from protocols.dissemination.ports import Interest, LastSent, ParsedItem, total_bytes
from protocols.dissemination.tree import effects as do
from protocols.dissemination.tree.allowance import (
    BEGIN_COST,
    BYTES_A_LOOK,
    WANT_BYTES_A_LOOK,
    PastAllowance,
    new_looks,
)
from protocols.dissemination.tree.links import PARKED_MAX, PARKED_S, ChildPast, ChildStage, Downlink, EdgeMessage
from protocols.dissemination.tree.past import SLICE_BYTES
from protocols.dissemination.tree.seals import Parcel, parcels
from protocols.dissemination.tree.state import BEAT_ITEMS, BEAT_S, MemberState
from protocols.dissemination.tree.upstream import Upstream

OFFER_S: Final = 10.0
"""A child that does not begin for so long is forgotten."""
CHILDREN_TOLD_MAX: Final = 32
PASTS_MAX: Final = 16
"""Questions of one child for the past that are looked through at a time. One that asks for more has to attach anew."""
ITEMLESS_MAX: Final = 1024
"""Messages without items, such as answers, that wait for one child before it has to attach anew, so that one that takes
little cannot have any number of them wait."""
UNANSWERED_MAX: Final = 4 * WANTS_MAX
"""Questions of one child that this node has not answered, because its own parent has not. A child that goes on asking
has to attach anew."""
SLOW_S: Final = 10.0
"""A child that takes nothing for so long is sent away: it may find a parent that is nearer to it, or faster."""


class Downstream:
    """The upper ends of a node's edges to its children."""

    def __init__(self, state: MemberState, up: Upstream) -> None:
        self._state, self._up = state, up
        self.allowance = PastAllowance()
        self.children: dict[NodeId, Downlink] = {}
        self.live: dict[NodeId, Downlink] = {}
        """Those of them that have begun."""
        self._has_unsent = False
        """Something may wait to be sent to one of them."""
        self._packed: tuple[list[StreamItem], StreamPosition, list[Parcel]] = [], START, []
        """What was packed last, up to where, and into what: most children get the same."""
        self.wants_max, self.unanswered_max = WANTS_MAX, UNANSWERED_MAX
        """Interests and questions of a child; more only where no messages are encoded, as in the lab."""

    # Coming and going

    def attach(self, peer: PeerRef, message: messages.Attach, now: float) -> do.Effects:
        """A node wants to be a child. If it may, so far, the way up is checked, too."""
        before = self.children.get(peer.id)
        if before is not None and before.attempt >= message.attempt:
            return []  # it has been overtaken, or comes twice
        if message.creator is not None and self._state.creator not in (None, message.creator):
            return self._decline(peer, message.attempt, AttachRefusal.NOT_A_MEMBER)
        after = None if message.is_new or self._state.last_sent is not None else message.after
        looks = BEGIN_COST + len(self._state.buffer) + self._new_looks(message.wants)
        if not self._may_look(peer.id, looks, after, now):
            return self._decline(peer, message.attempt, AttachRefusal.BUSY)
        try:
            interests = [self._state.kind.parse(text) for text in message.wants]
        except InterestError as error:
            return self._decline(peer, message.attempt, AttachRefusal.INTEREST, str(error)[:256])
        if (why := self._why_not(peer, interests, message.instead_of)) is not None:
            return self._decline(peer, message.attempt, why)
        wants = {each.id: each for each in interests}
        child = self.children[peer.id] = Downlink(peer, message.attempt, now, wants, after, message.is_orphan)
        gone = [] if before is None else [id for id in before.wants if id not in wants]
        self.live.pop(peer.id, None)
        climb = messages.Climb(self._state.stream, peer, message.attempt)
        need = do.Need(peer.id, child, interests, after)
        return [do.Release(peer.id, gone), need, *self._up.climb(climb, now)]

    def _new_looks(self, texts: Iterable[str]) -> int:
        """What those interests count for that this node does not know: asked before it reads them."""
        kind, wants = self._state.kind, self._state.wants
        return new_looks(text for text in set(texts) if interest_id(kind.name, text) not in wants)

    def _change_looks(self, child: Downlink) -> int:
        """What it counts for that a child changes what it wants: nothing where each interest is looked at by itself."""
        if self._state.last_sent is None:
            return 0
        return sum(len(want.text) for want in child.wants.values()) // WANT_BYTES_A_LOOK

    def _may_look(self, peer: NodeId, looks: int, after: StreamPosition | None, now: float) -> bool:
        """Whether so much may be looked through for a node, and what came after a mark be parsed again."""
        state = self._state
        if after is not None and state.last_sent is None:
            looks += state.buffer.bytes_after(after) // BYTES_A_LOOK
        return self.allowance.take(peer, looks, now)

    def _why_not(self, peer: PeerRef, interests: Sequence[Interest], instead_of: NodeId | None) -> AttachRefusal | None:
        state = self._state
        if peer.id in state.path or peer.id == state.me.id or self._up.knows(peer.id):
            return AttachRefusal.BELOW
        if not self._up.is_member:
            return AttachRefusal.NOT_A_MEMBER
        if len(state.path) >= DEPTH_MAX:
            return AttachRefusal.DEPTH
        if peer.id not in self.children and not state.owner.admit(peer, interests, instead_of):
            return AttachRefusal.FULL
        return None

    def _decline(self, peer: PeerRef, attempt: int, why: AttachRefusal, detail: str = "") -> do.Effects:
        released = self.remove(peer.id)  # if an earlier attempt is on its way: the new one is in its place
        near = tuple(child.peer for child in self.live.values())
        declined = messages.Declined(self._state.stream, attempt, why, near[:CHILDREN_TOLD_MAX], detail)
        return [*released, do.Send(peer, declined)]

    def has(self, child: Downlink, need: do.Need, now: float) -> do.Effects:
        """What a child wants, or wants besides, is as complete here as it will be."""
        if self.children.get(child.peer.id) is not child:
            return []
        if need.is_more:
            return self._widened(child, need.interests, need.after, now)
        if child.stage is not ChildStage.WAITING:
            return []
        state = self._state
        since = state.since(list(child.wants.values()), child.after)
        ready = do.Send(child.peer, messages.Ready(state.stream, child.attempt, since, state.watermark))
        if child.is_orphan:
            return [ready, *self._go_live(child, since)]
        child.stage, child.since_s = ChildStage.OFFERED, now
        return [ready]

    def begin(self, peer: PeerRef, message: messages.Begin, now: float) -> do.Effects:
        """A child says from where on it wants the stream. Raises `ProtocolError` if nothing was offered to it."""
        child = self.children.get(peer.id)
        if child is None or child.attempt != message.attempt:
            return [do.Send(peer, messages.Dismiss(self._state.stream, message.attempt))]
        if child.stage is ChildStage.LIVE:
            return []  # it says so twice
        if child.stage is not ChildStage.OFFERED:
            raise ProtocolError("not_offered", f"{peer} begins what was not offered to it")
        child.after = message.after
        if not self._may_look(peer.id, 0, child.after, now):
            return self.dismiss(peer.id)
        return self._go_live(child, self._state.since(list(child.wants.values()), child.after))

    def _go_live(self, child: Downlink, since: StreamPosition) -> do.Effects:
        state = self._state
        child.stage = ChildStage.LIVE
        self.live[child.peer.id] = child
        flush = do.Flush(child)
        if state.last_sent is not None:
            self._give_newest(child, state.last_sent)
            return [flush]
        if child.after is not None and since > child.after:
            self._put(child, messages.StreamGap(state.stream, child.after, since))
        child.told = min(since, state.watermark)
        past = state.past(since, child.wants.values())
        found = [parsed.item for parsed in past.look(SLICE_BYTES)]
        if past.is_over:
            child.queue, child.queue_bytes = found, total_bytes(found)
            return [flush]
        child.told = state.watermark
        return [*self._put_past(child, found, ChildPast(past, is_old=False)), flush]

    def _put_past(self, child: Downlink, found: Sequence[StreamItem], past: ChildPast) -> do.Effects:
        """What was found of the past so far, and then the rest of it."""
        for parcel in parcels(found, is_old=past.is_old):
            self._put(child, parcel)
        if past.past.is_over:
            return []
        child.outbox.append(past)
        self._has_unsent = True
        return [do.EdgeAct.CALL_AGAIN]

    def _give_newest(self, child: Downlink, last_sent: LastSent) -> None:
        """A child begins with what this node has of each object: how old that is does not matter."""
        child.last_sent = self._state.make_last_sent()
        self._want(child)
        child.told = self._state.watermark
        child.queue = self._due(child, last_sent.newest())

    @staticmethod
    def _want(child: Downlink) -> None:
        if child.last_sent is not None:
            child.last_sent.want(child.wants.values())

    def _due(self, child: Downlink, some: Iterable[ParsedItem]) -> list[StreamItem]:
        return [parsed.item for parsed in some if self._state.is_for(child.last_sent, parsed)]

    def detach(self, peer: PeerRef, attempt: int) -> do.Effects:
        """A child goes."""
        child = self.children.get(peer.id)
        return self.remove(peer.id, is_final=True) if child is not None and child.attempt == attempt else []

    def remove(self, peer: NodeId, *, is_final: bool = False) -> do.Effects:
        """Forget a child. ``is_final``: it has another parent, so nobody will come for what only it wanted."""
        self.live.pop(peer, None)
        return [] if self.children.pop(peer, None) is None else [do.Release(peer, None, is_final)]

    def dismiss_all(self) -> do.Effects:
        """This node leaves the tree: its children have to look for other parents."""
        return [effect for child in list(self.children) for effect in self.dismiss(child)]

    def dismiss(self, peer: NodeId) -> do.Effects:
        """Send a child away."""
        child = self.children[peer]
        return [do.Send(child.peer, messages.Dismiss(self._state.stream, child.attempt)), *self.remove(peer)]

    # What a child wants

    def asked(self, peer: PeerRef, message: messages.Widen | messages.Narrow, now: float) -> do.Effects:
        """A child changes what it wants: taken in in its turn, as `Upstream.received` does it at the other end."""
        child = self.children.get(peer.id)
        if child is None or child.attempt != message.attempt or message.number <= child.asked_number:
            return []
        if not child.parked:
            child.parked_at = now
        child.parked[message.number] = message
        return self.dismiss(peer.id) if len(child.parked) > PARKED_MAX else [do.HearOut(child)]

    def hear_out(self, child: Downlink, waiting: int, now: float) -> do.Effects:
        """Take in the next change, if it is there. ``waiting``: for so many answers the child waits.

        Raises `ProtocolError` for what no correct child wants.
        """
        wish = child.parked.pop(child.asked_number + 1, None)
        if wish is None or self.children.get(child.peer.id) is not child:
            return []
        child.parked_at, child.asked_number = now, wish.number
        if child.stage is not ChildStage.LIVE:
            return self.dismiss(child.peer.id)  # it has to attach anew
        if isinstance(wish, messages.Widen):
            effects = self._widen(child, wish, waiting, now)
        else:
            effects = self._narrow(child, wish, now)
        return [*effects, do.HearOut(child)] if child.parked else effects

    def _widen(self, child: Downlink, message: messages.Widen, waiting: int, now: float) -> do.Effects:
        peer = child.peer
        if len(child.wants) + len(message.wants) > self.wants_max:
            raise ProtocolError("too_many_wants", f"{peer} wants more than {self.wants_max} things")
        after = None if message.is_new else message.after
        looks = len(message.wants) * (1 if after is None else 1 + len(self._state.buffer))
        looks += self._new_looks(message.wants) + self._change_looks(child)
        is_pressing = waiting >= self.unanswered_max
        if is_pressing or self._is_full(child) or not self._may_look(peer.id, looks, after, now):
            return self.dismiss(peer.id)  # it attaches anew, and gets all that it wants at once
        try:
            interests = [self._state.kind.parse(text) for text in message.wants]
        except InterestError as error:
            raise ProtocolError("bad_interest", str(error)[:256]) from error
        return [do.Need(peer.id, child, interests, after, is_more=True)]

    def _narrow(self, child: Downlink, message: messages.Narrow, now: float) -> do.Effects:
        looks, gone = self._change_looks(child), [id for id in message.interests if id in child.wants]
        if gone:
            for id in gone:
                child.wants.pop(id, None)
            if not self._may_look(child.peer.id, looks, None, now):
                return self.dismiss(child.peer.id)
            self._want(child)
        return [do.Release(child.peer.id, message.interests, is_final=True)]

    def _is_full(self, child: Downlink) -> bool:
        """Whether so much waits for a child that no more is put behind that: as much as this node remembers itself.

        What is in its queue counts, because it is put there, too, whenever the child is told something.
        """
        pasts = sum(isinstance(each, ChildPast) for each in child.outbox)
        itemless = sum(not isinstance(each, ChildPast | Parcel) for each in child.outbox)
        is_long = bool(child.outbox) and child.outbox_bytes + child.queue_bytes > self._state.buffer.limits.bytes
        return is_long or pasts >= PASTS_MAX or itemless >= ITEMLESS_MAX

    def _widened(
        self, child: Downlink, interests: Sequence[Interest], after: StreamPosition | None, now: float
    ) -> do.Effects:
        state, effects = self._state, do.Effects()
        self._pack(child, state.watermark, now, is_due=True)
        since = state.since(interests, after)
        child.wants.update((each.id, each) for each in interests if state.wants.is_held(each.id, child.peer.id))
        if state.last_sent is not None:
            self._want(child)
            for parcel in parcels(self._due(child, state.last_sent.newest()), is_old=True):
                self._put(child, parcel)
        else:
            past = state.past(since, interests)
            found = [parsed.item for parsed in past.look(SLICE_BYTES)]
            effects += self._put_past(child, found, ChildPast(past, is_old=True))
        ids = tuple(each.id for each in interests)
        self._put(child, messages.Widened(state.stream, ids, since, state.watermark))
        return effects

    # The stream

    def move_away(self, successor: NodeId | None) -> do.Effects:
        """Ask the children to go while this node is still here: one takes its place, and the others go below that."""
        first = self.children.get(successor) if successor is not None else None
        above = () if self._up.parent is None else (self._up.parent.peer,)
        others = above if first is None else (first.peer, *above)
        return [
            do.Send(each.peer, messages.MoveAway(self._state.stream, each.attempt, others, is_successor=False))
            if each is not first
            else do.Send(each.peer, messages.MoveAway(self._state.stream, each.attempt, above, is_successor=True))
            for each in self.children.values()
        ]

    def end_all(self) -> do.Effects:
        """The stream is over."""
        effects: do.Effects = []
        for child in list(self.children.values()):
            ends = do.Send(child.peer, messages.StreamEnds(self._state.stream, child.attempt))
            effects += [do.Flush(child, self._state.buffer.bytes + 1), ends, *self.remove(child.peer.id)]
        return effects

    def flow(self, parsed: ParsedItem, ids: set[bytes]) -> list[NodeId]:
        """An item for the children that want one of these interests; returns which these are."""
        wanting, item, size, limits = [], parsed.item, parsed.item.size, self._state.buffer.limits
        self._has_unsent = True
        for id, child in self.live.items():
            if ids.isdisjoint(child.wants) or (child.last_sent is not None and not self._gets(child, parsed)):
                child.passed += 1
                continue
            wanting.append(id)
            child.queue.append(item)
            child.queue_bytes += size
            is_long = child.queue_bytes > limits.bytes and len(child.queue) > 1
            if is_long or len(child.queue) > limits.items:  # as much as this node remembers itself
                child.lost_until = item.position
                child.queue, child.queue_bytes = [], 0
        return wanting

    def offer(self, some: Sequence[ParsedItem], now: float) -> None:
        """What this node has of some objects, though the stream may be further: to each child that has to have it."""
        for child in self.live.values():
            if not self._is_behind(child):
                self._offer(child, some, now)

    def _offer(self, child: Downlink, some: Sequence[ParsedItem], now: float) -> None:
        for parcel in parcels(self._due(child, some), is_old=True):
            self._pack(child, self._state.watermark, now, is_due=False)
            self._put(child, parcel)

    def _is_behind(self, child: Downlink) -> bool:
        """Whether a child still has to take what it was sent: then it gets the newest items when it has."""
        if child.last_sent is not None and child.outbox and self._state.owner.is_slow(child.peer):
            child.is_behind = True
        return child.is_behind

    def _gets(self, child: Downlink, parsed: ParsedItem) -> bool:
        return not self._is_behind(child) and self._state.is_for(child.last_sent, parsed)

    def _catch_up(self, child: Downlink, now: float) -> None:
        """A child has taken all that it was sent: it gets the newest items instead of those that it has missed."""
        last_sent = self._state.last_sent
        if child.is_behind and child.last_sent is not None and last_sent is not None:
            child.is_behind = False
            child.last_sent.unsettle()
            self._offer(child, last_sent.newest(), now)

    def unsettle(self) -> None:
        """This node gets its items from another parent."""
        for child in self.children.values():
            if child.last_sent is not None:
                child.last_sent.unsettle()

    def tell_all(self, now: float) -> do.Effects:
        """Send all children a heartbeat now."""
        effects: do.Effects = []
        for child in list(self.live.values()):
            if self._is_full(child):
                effects += self.dismiss(child.peer.id)
            else:
                self._pack(child, self._state.watermark, now, is_due=False)
                self._beat(child, self._state.watermark, None, now)
        return effects

    def gap(self, since: StreamPosition, until: StreamPosition, now: float) -> do.Effects:
        """This node, and so its children, have lost something."""
        effects: do.Effects = []
        for child in list(self.live.values()):
            if child.told >= until:
                continue
            if self._is_full(child):
                effects += self.dismiss(child.peer.id)
            else:
                self._pack(child, max(since, child.told), now, is_due=False)
                self._put(child, messages.StreamGap(self._state.stream, max(since, child.told), until))
                child.told = until
        return effects

    def flush(self, now: float) -> do.OneByOne:
        """Send what the current call has brought, and what waited."""
        if not self._has_unsent:
            return
        is_any_left = False
        for child in self.live.values():
            if child.queue or child.outbox or child.passed >= BEAT_ITEMS:
                yield from self.flush_child(child, now, is_due=child.passed >= BEAT_ITEMS)
                is_any_left |= bool(child.outbox)
        self._has_unsent = is_any_left

    def tick(self, now: float) -> do.OneByOne:
        """Tell children how far they have come, and forget those that never began, or take nothing."""
        self._packed = [], START, []
        if len(self._state.path) >= DEPTH_MAX:
            yield from self.dismiss_all()
        for child in list(self.children.values()):
            if child.stage is ChildStage.LIVE:
                is_due = now - child.beat_at >= BEAT_S or child.path_told != self._state.path_version
                yield from self.flush_child(child, now, is_due=is_due)
                is_missing = bool(child.parked) and now - child.parked_at >= PARKED_S
                if is_missing or (child.slow_since is not None and now - child.slow_since >= SLOW_S):
                    yield from self.dismiss(child.peer.id)
            elif child.stage is ChildStage.OFFERED and now - child.since_s >= OFFER_S:
                yield from self.remove(child.peer.id)

    def flush_child(self, child: Downlink, now: float, *, is_due: bool = True, past_bytes: int = 0) -> do.OneByOne:
        """Send a child what waits, and if that is all what has come since. ``is_due``: a heartbeat if there is nothing.

        So much of the past is looked through for it.
        """
        yield from self._send(child, past_bytes)
        if child.outbox:
            if child.slow_since is None:
                child.slow_since = now
        else:
            child.slow_since = None
            self._catch_up(child, now)
            self._pack(child, self._state.watermark, now, is_due=is_due)
            yield from self._send(child)

    def _send(self, child: Downlink, past_bytes: int = 0) -> do.OneByOne:
        while child.outbox and not child.is_untaken and not self._state.owner.is_slow(child.peer):
            first = child.outbox[0]
            if isinstance(first, ChildPast):
                if first.past.is_busy:
                    return
                if past_bytes <= 0 and not first.past.is_over:
                    yield do.EdgeAct.CALL_AGAIN
                    return
                past_bytes = self._look_on(child, first, past_bytes)
                continue
            child.slow_since = None
            yield do.Send(child.peer, child.next_message(self._state.stream, first))

    def _look_on(self, child: Downlink, first: ChildPast, past_bytes: int) -> int:
        """Put what is found in a slice of the past before the rest of it; how much may be looked through still."""
        child.outbox.popleft()
        if not first.past.is_over:
            items = [parsed.item for parsed in first.past.look(past_bytes)]
            some = list(parcels(items, is_old=first.is_old))
            child.outbox_bytes += sum(parcel.size for parcel in some)
            child.outbox.appendleft(first)
            child.outbox.extendleft(reversed(some))
            child.slow_since = None
        return 0

    def _put(self, child: Downlink, what: EdgeMessage | Parcel) -> None:
        self._has_unsent = True
        if isinstance(what, Parcel):
            child.outbox_bytes += what.size
        child.outbox.append(what)

    def taken(self, peer: PeerRef, message: messages.ItemTaken) -> None:
        """A child has taken in a large item."""
        child = self.children.get(peer.id)
        if child is None or child.attempt != message.attempt:
            return
        while child.untaken and child.untaken[0] <= message.number:
            child.untaken.popleft()

    def go_on(self) -> do.Effects:
        """Look through some more of the past for children that wait for it; all of them together not for too long."""
        waiting = [child for child in self.children.values() if child.outbox and isinstance(child.outbox[0], ChildPast)]
        return [do.Flush(child, SLICE_BYTES // len(waiting)) for child in waiting]

    def _pack(self, child: Downlink, end: StreamPosition, now: float, *, is_due: bool) -> None:
        """Make messages of what waits; there is nothing else up to ``end``."""
        state = self._state
        if child.lost_until > child.told:
            self._put(child, messages.StreamGap(state.stream, child.told, child.lost_until))
            child.told = child.lost_until
        queue, child.queue, child.queue_bytes = child.queue, [], 0
        for parcel in self._parcels(queue, end) if queue else ():
            self._put(child, parcel)
        if queue:
            child.told, child.passed, child.beat_at = end, 0, now
        is_path_new = child.path_told != state.path_version
        if (is_due and not queue) or is_path_new:
            path = (*state.ancestors, state.me)[-DEPTH_MAX:] if is_path_new else None
            self._beat(child, end, path, now)

    def _parcels(self, queue: list[StreamItem], end: StreamPosition) -> list[Parcel]:
        if (queue, end) != self._packed[:2]:
            found = list(parcels(queue, is_old=False))
            found[-1].watermark = end
            self._packed = queue, end, found
        return self._packed[2]

    def _beat(self, child: Downlink, end: StreamPosition, path: tuple[PeerRef, ...] | None, now: float) -> None:
        state = self._state
        self._put(child, messages.TreeHeartbeat(state.stream, end, path, is_stale=state.is_stale))
        child.told, child.passed, child.beat_at = end, 0, now
        if path is not None:
            child.path_told = state.path_version

    def validate(self) -> None:
        """Assert the invariants."""
        for child in self.children.values():
            assert child.stage is ChildStage.LIVE or not child.queue
            assert (child.peer.id in self.live) == (child.stage is ChildStage.LIVE)
            assert child.told <= max(self._state.watermark, child.told)
