"""The parent of one node in one stream, and the change from one parent to another. Pure.

A move: `Attach` to the new parent, `Ready` from it, `Begin` to it. From then on both parents send; what comes twice is
dropped. Once the new one has begun, and the way up from it is known to be clear (`Climbed`), the old one is told
`DetachFromParent`. Nothing stops meanwhile, so a move costs the subscriptions no time at all. An orphan has nothing to
lose, and takes the stream from its new parent before the way up is known to be clear.

Events go in as method calls; each returns the effects to carry out, in order. How far the stream has come, and what
this node wants, is in the `MemberState` that it shares with the rest of the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination import messages
from protocols.dissemination.messages import AttachRefusal, StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.tree import effects as do
from protocols.dissemination.tree.climbing import Climbing
from protocols.dissemination.tree.links import PARKED_MAX, PARKED_S, EdgeMessage, Intake, Uplink, UplinkStage
from protocols.dissemination.tree.search import MoveEnd
from protocols.dissemination.tree.state import MOVE_S, SILENT_S, MemberState
from protocols.dissemination.tree.trust import Trust
from protocols.dissemination.tree.wants import Ask

NARROW_AFTER_S: Final = 5.0
"""What nobody wants any more is still had for so long, in case it is wanted again: the children of a node that died
come for it. What a child no longer wants because it has moved, or because it says so, is given up at once."""
ASK_AGAIN_S: Final = 5.0
"""What the parent was asked for and has not answered for so long is asked once more: it may have been lost."""
BEHIND_S: Final = 12.0
"""A parent that is behind this node for so long, without being orphaned itself, is right: somebody has run ahead of the
stream, who was a parent before, and lied. No correct one is behind for longer than what waits for a slow child."""
TELL_OFF_S: Final = 1.0
"""Between two answers to nodes that send this node a stream although they are not its parents."""


class Upstream:
    """The lower end of a node's edge to its parent."""

    def __init__(self, state: MemberState, attempts_from: int) -> None:
        self._state = state
        self._climbing = Climbing(state)
        self._trust = Trust(state)
        self.parent: Uplink | None = None
        self.next: Uplink | None = None
        self.is_new = True
        """This node has never had anything of the stream."""
        self.died: NodeId | None = None
        """The parent that this orphan has lost because it is out of reach; ``None``: it was not lost in that way."""
        self._attempts = attempts_from
        self._narrow_at: float | None = None
        self._is_narrow_due = False
        """Something is wanted no more that need not be kept."""
        self._tell_off_at = 0.0
        self._asked_at = 0.0
        self._behind_since: float | None = None
        self._instead_of: NodeId | None = None

    @property
    def is_stale(self) -> bool:
        """Whether nobody vouches for what this node has."""
        link = self.next if self.parent is None else self.parent
        if link is None or not link.has_begun:
            return True
        return self._state.is_stale if link.is_stale is None else link.is_stale

    @property
    def is_orphan(self) -> bool:
        """Nobody sends the stream to this node."""
        return self.parent is None and (self.next is None or not self.next.has_begun)

    @property
    def is_member(self) -> bool:
        """Whether this node is in the tree."""
        return self._state.is_source or not self.is_orphan

    def is_parent(self, peer: PeerRef, attempt: int) -> bool:
        """Whether a node is this node's parent by this attempt."""
        return self.parent is not None and (self.parent.peer.id, self.parent.attempt) == (peer.id, attempt)

    def knows(self, peer: NodeId) -> bool:
        """Whether a node is this node's parent, or is to be."""
        return any(link is not None and link.peer.id == peer for link in (self.parent, self.next))

    def _is_known(self, link: Uplink) -> bool:
        return link is self.parent or link is self.next

    @property
    def parent_peer(self) -> PeerRef | None:
        """The parent."""
        return None if self.parent is None else self.parent.peer

    def _detach(self, link: Uplink) -> do.Send:
        return do.Send(link.peer, messages.DetachFromParent(self._state.stream, link.attempt))

    # Moving

    def move_to(self, peer: PeerRef, now: float, instead_of: NodeId | None = None) -> do.Effects | None:
        """Get another parent, or a first one: `Ended` follows; ``None``: not that one, or not now."""
        is_other = peer.id != self._state.me.id and not self.knows(peer.id)
        may_move = self.next is None and (self.parent is None or self._climbing.may_move(now))
        if not is_other or not may_move or not self._trust.may_be_parent(peer.id, now):
            return None
        self._climbing.is_moving = True
        self._instead_of = instead_of
        return self._attach(peer, now)

    def _attach(self, peer: PeerRef, begun_at: float) -> do.Effects:
        state = self._state
        self._attempts += 1
        is_orphan = self.parent is None
        wants = state.wants.sent()
        self.next = Uplink(peer, self._attempts, begun_at, frozenset(wants), is_orphan)
        self.next.last_sent = None if is_orphan else state.make_last_sent()
        if state.everything in wants:
            self.next.promises_all()
        texts, after = tuple(each.text for each in wants.values()), state.watermark
        flags = self.is_new, is_orphan
        attach = messages.Attach(state.stream, self._attempts, texts, after, *flags, self._instead_of, state.creator)
        return [do.Send(peer, attach)]

    def ready(self, peer: PeerRef, message: messages.Ready, now: float) -> do.Effects:
        """The new parent can begin, or (for an orphan) has begun."""
        link = self._next(peer, message.attempt)
        if link is None or link.has_begun:
            return []
        state = self._state
        if link.is_orphan:
            since = message.since
            if self.is_new:
                state.watermark = state.proven = max(state.watermark, since)
            return [*self._begun(link, now), do.GoOn(link)]
        if state.wants.has_pending() or not link.wants.issuperset(state.wants.sent()):
            return self._attach(peer, link.asked_at)  # it wants more by now: the new parent has to have that too
        link.comes_to(UplinkStage.ASKED)
        return [do.Send(peer, messages.Begin(state.stream, link.attempt, state.watermark)), do.GoOn(link)]

    def _begun(self, link: Uplink, now: float) -> do.Effects:
        effects: do.Effects = []
        link.comes_to(UplinkStage.BEGUN)
        link.heard_at = now
        if link.is_orphan:
            self._state.wants.complete_since(self._state.watermark, link.wants)
            self.is_new = False
            effects += [
                do.EdgeAct.UNSETTLED,
                do.EdgeAct.ANSWERED,
                *self._widen(link, self._state.wants.ask_again(), now),
            ]
        return effects + self._commit_if_done(now)

    def climb(self, message: messages.Climb, now: float) -> do.Effects:
        """The way up from another node's new parent is looked at, or from this node's own: it has come back then."""
        if message.mover.id != self._state.me.id:
            return self._climbing.check(message, self.parent_peer, now)
        if self.next is not None and self.next.attempt == message.attempt:
            return self._give_up(MoveEnd.CIRCLE, now)
        return []

    def climbed(self, message: messages.Climbed, now: float) -> do.Effects:
        """The way up from the new parent was looked at."""
        link = self.next
        if link is None or link.attempt != message.attempt:
            return []
        if not message.is_clear:
            return self._give_up(MoveEnd.CIRCLE, now)
        link.is_clear = True
        return self._commit_if_done(now)

    def _commit_if_done(self, now: float) -> do.Effects:
        link, old = self.next, self.parent
        if link is None or not link.has_begun or not link.is_clear:
            return []
        self.parent, self.next, self.died = link, None, None
        effects = self._take_over(link)
        if link.path is not None:
            effects.append(do.NewPath(link.path))
        if old is not None:
            effects += [self._detach(old), *self._widen(link, self._state.wants.ask_again(), now)]
        effects += self._climbing.moved(link.peer, now)
        return [*effects, do.Ended(link.peer, MoveEnd.MOVED), do.Blame(link)]

    def _take_over(self, link: Uplink) -> do.Effects:
        """What a new parent has sent counts from now on, also where the one before has sent something newer.

        For that one promises nothing any more, and the new one knows only of what it has sent itself.
        """
        sent, link.last_sent = link.last_sent, None
        return [do.EdgeAct.FRESHENED] if sent is None else [do.TakeOver(link, sent.newest()), do.EdgeAct.FRESHENED]

    def blamed(self, link: Uplink, now: float) -> do.Effects:
        """Something that a node has sent earlier was found to be wrong."""
        return self._broken(link, now) if self._is_known(link) else []

    def declined(self, peer: PeerRef, message: messages.Declined, now: float) -> do.Effects:
        """The new parent does not want to."""
        if self._next(peer, message.attempt) is None:
            return []
        why = AttachRefusal(message.why) if message.why in AttachRefusal.__members__.values() else None
        return self._give_up(MoveEnd.DECLINED, now, why, message.children)

    def _give_up(
        self, end: MoveEnd, now: float, why: AttachRefusal | None = None, children: Sequence[PeerRef] = ()
    ) -> do.Effects:
        link, self.next = self.next, None
        assert link is not None
        effects: do.Effects = [] if end is MoveEnd.DECLINED else [self._detach(link)]
        if self.parent is not None and link.was_asked:
            effects += self._widen(self.parent, self._state.wants.ask_again(), now)
        effects += self._climbing.moved(self.parent_peer, now)
        if not link.has_begun:
            return [*effects, do.Ended(link.peer, end, why, children)]
        # Whether it is stale before the next attempt, which may begin at once when the end of this one is told.
        return [*effects, do.EdgeAct.FRESHENED, do.Ended(link.peer, end, why, children), do.EdgeAct.ORPHANED]

    def _next(self, peer: PeerRef, attempt: int) -> Uplink | None:
        link = self.next
        return link if link is not None and link.peer.id == peer.id and link.attempt == attempt else None

    # Losing the parent

    def gone(self, peer: NodeId, now: float) -> do.Effects:
        """A node is out of reach."""
        if self.next is not None and self.next.peer.id == peer:
            return self._give_up(MoveEnd.SILENT, now)
        if self.parent is not None and self.parent.peer.id == peer:
            return self._drop_parent(now, died=peer)
        return []

    def dismissed(self, peer: PeerRef, attempt: int, now: float) -> do.Effects:
        """The parent says that it is none."""
        if self._next(peer, attempt) is not None:
            return self._give_up(MoveEnd.DECLINED, now)
        return self._drop_parent(now) if self.is_parent(peer, attempt) else []

    def _drop_parent(self, now: float, died: NodeId | None = None) -> do.Effects:
        self.parent, self.died = None, died
        if self.next is None:
            return [do.EdgeAct.FRESHENED, do.EdgeAct.ORPHANED]
        if self.next.has_begun:
            return [do.EdgeAct.FRESHENED, *self._take_over(self.next), do.Blame(self.next)]
        attach = [] if self.next.is_orphan else self._attach(self.next.peer, now)  # now there is nothing to wait for
        return [do.EdgeAct.FRESHENED, *attach]

    def leave(self) -> do.Effects:
        """This node leaves the tree."""
        links = [link for link in (self.next, self.parent) if link is not None]
        self.parent = self.next = None
        return [self._detach(link) for link in links]

    # Becoming the producer, and being it no more

    def at_producer(self, now: float) -> do.Effects:
        """Nobody is above this node from now on."""
        effects = self.leave()
        self.died = self._behind_since = self._narrow_at = None
        self._is_narrow_due = True
        return effects + self._climbing.moved(None, now)

    def at_member(self) -> do.Effects:
        """This node has had the stream, as its producer, and needs a parent now."""
        self.is_new = False
        return [do.EdgeAct.FRESHENED]

    # The stream

    def received(self, peer: PeerRef, message: EdgeMessage, now: float) -> do.Effects:
        """A message of the stream has come: it is taken in, and what it had held up, unless it has to wait itself.

        One connection keeps the order; but two nodes that connect to each other at the same time give one of two up.
        """
        link = self.parent if self.is_parent(peer, message.attempt) else self._next(peer, message.attempt)
        if link is None:
            return self._tell_off(peer, message.attempt, now)
        if message.number <= link.number:
            return []
        link.heard_at = now
        if not link.parked:
            link.parked_at = now
        link.parked[message.number] = message
        return self._broken(link, now) if len(link.parked) > PARKED_MAX else self.go_on(link, now)

    def go_on(self, link: Uplink, now: float) -> do.Effects:
        """Take in the next message of a link, if it is there and in its turn."""
        if link is not self.parent and not (link is self.next and link.may_begin):
            return []
        found = None if link.is_busy else link.parked.get(link.number + 1)
        if found is None:
            return []
        if self._trust.must_wait(link, found, now):
            return [do.EdgeAct.LOOK_UP]
        if not link.has_begun:
            return [*self._begun(link, now), do.GoOn(link)]
        link.number += 1
        del link.parked[link.number]
        link.parked_at = now
        try:
            effects = self._take(link, found, now)
        except ProtocolError as error:
            effects = self._lied(link, error, now)
        return [*effects, do.GoOn(link)] if link.parked else effects

    def _take(self, link: Uplink, message: EdgeMessage, now: float) -> do.Effects:
        """Raises `ProtocolError` for what no correct node sends."""
        match message:
            case messages.ItemBatch() | messages.ReplayItems():
                return self._items(link, message, now)
            case messages.ItemPart():
                if link.add(message):
                    return []
                detail = f"sends {len(message.data)} bytes and leaves {message.left} of {link.left}"
                return self._is_no_part(link, detail, now)
            case _ if link.parts:
                return self._is_no_part(link, f"sends a {type(message).__name__} before {link.left} bytes", now)
            case messages.TreeHeartbeat():
                return self._heartbeat(link, message, now)
            case messages.StreamGap():
                return self._lose(link, message.since, message.until)
            case messages.Widened():
                asked = [id for id in message.interests if self._state.wants.is_sent(id)]  # or wanted no more by now
                link.answered(asked, self._state.watermark, message.since)
                if self._state.everything in asked:
                    link.promises_all()
                return self._went_on(link, message.watermark, now)

    def _is_no_part(self, link: Uplink, detail: str, now: float) -> do.Effects:
        return [*self._broken(link, now), do.Refuse(ProtocolError("bad_parts", f"{link.peer} {detail}"))]

    def _tell_off(self, peer: PeerRef, attempt: int, now: float) -> do.Effects:
        """Somebody believes to be this node's parent: what told it otherwise may have been lost."""
        if now < self._tell_off_at:
            return []
        self._tell_off_at = now + TELL_OFF_S
        return [do.Send(peer, messages.DetachFromParent(self._state.stream, attempt))]

    def _broken(
        self, link: Uplink, now: float, *, is_silent: bool = False, end: MoveEnd = MoveEnd.SILENT
    ) -> do.Effects:
        if link is self.next:
            return self._give_up(end, now)
        return [self._detach(link), *self._drop_parent(now, died=link.peer.id if is_silent else None)]

    def _lied(self, link: Uplink, error: ProtocolError, now: float) -> do.Effects:
        """What else a node says is not to be relied on that sends what no correct one does: another is needed."""
        fallen = self._fall_back(self._state.proven) if link is self.parent or self.parent is None else []
        return [*fallen, *self.blamed(link, now), do.Refuse(error)]

    def _fall_back(self, watermark: StreamPosition) -> do.Effects:
        if watermark >= self._state.watermark:
            return []
        self._state.fall_back(watermark)
        return [do.FellBack(watermark)]

    def _items(self, link: Uplink, message: messages.ItemBatch | messages.ReplayItems, now: float) -> do.Effects:
        """The next items, or items of the past."""
        effects: do.Effects = []
        items = self._trust.items(link, message, now)
        error: ProtocolError | None = None
        if isinstance(message, messages.ItemBatch):
            if len(items) < len(message.items):  # the first of them: of a term that is too long ago
                effects += self._lose(link, link.watermark, items[0].position.before if items else message.watermark)
            for at, item in enumerate(items):
                try:
                    self._trust.check_next(link, position := item.position, 1, now)
                except ProtocolError as found:
                    items, error = items[:at], found
                    break
                link.watermark = position
        if items and self._is_for_aside(message, items[0]):
            link.intake = Intake.BUSY
            return [*effects, do.ReadAside(link, message, items[0])]
        return [*effects, do.TakeItems(link, message, items, error)]

    def _is_for_aside(self, message: messages.ItemBatch | messages.ReplayItems, item: StreamItem) -> bool:
        """Of the past, what is signed was read by its producer. What is large comes alone."""
        is_to_read = self._state.last_sent is None and (isinstance(message, messages.ItemBatch) or item.batch is None)
        return is_to_read and self._state.matching.is_for_aside(item)

    def read(self, aside: do.ReadAside, parsed: ParsedItem, now: float) -> do.Effects:
        """A large item was read aside."""
        link = aside.link
        if not self._is_known(link):
            return []  # whoever is the parent now sends it again
        link.intake = Intake.FREE
        link.heard_at = link.parked_at = now
        return [do.TakeItems(link, aside.message, (aside.item,), parsed=parsed), do.GoOn(link)]

    def taken(self, take: do.TakeItems, error: ProtocolError | None, now: float) -> do.Effects:
        """All of a message was taken in, or (``error``) what came before something that is wrong."""
        link, message, effects = take.link, take.message, do.Effects()
        try:
            if error is not None:
                raise error
            if isinstance(message, messages.ItemBatch):
                effects += self._went_on(link, message.watermark, now)
        except ProtocolError as found:
            return self._lied(link, found, now)
        if take.items and take.items[0].is_large:
            effects.append(do.Send(link.peer, messages.ItemTaken(self._state.stream, link.attempt, message.number)))
        return effects

    def stream_ends(self, peer: PeerRef, attempt: int) -> do.Effects:
        """A node says that the stream is over: the parent, or one that has not heard yet that it is it no more."""
        if self.parent is not None and self.is_parent(peer, attempt):
            self.parent.has_ended = True
        return self.over()

    def over(self) -> do.Effects:
        """The stream is over when the parent has said so, and all that it sent before was taken in."""
        is_over = self.parent is not None and self.parent.has_ended and not self.parent.is_busy
        return [do.EdgeAct.OVER] if is_over else []

    def _heartbeat(self, link: Uplink, message: messages.TreeHeartbeat, now: float) -> do.Effects:
        """Nothing for this node, up to a mark."""
        effects = self._went_on(link, message.watermark, now)
        link.is_stale = message.is_stale
        effects.append(do.EdgeAct.FRESHENED)
        if message.path is None:
            return effects
        link.path = message.path
        if any(each.id == self._state.me.id for each in message.path):
            return effects + self._broken(link, now, end=MoveEnd.CIRCLE)
        return [*effects, do.NewPath(message.path)] if link is self.parent or self.parent is None else effects

    def _went_on(self, link: Uplink, watermark: StreamPosition, now: float) -> do.Effects:
        """The parent has come further: as far as this node was, perhaps. Raises `ProtocolError`."""
        self._trust.check_next(link, watermark, 0, now)
        self._trust.came_to(link, watermark)
        self._state.watermark = max(self._state.watermark, watermark)
        found = link.caught_up()
        for ids, since in found:
            self._state.wants.widened(ids, since)
        return [do.EdgeAct.ANSWERED] if found else []

    def _check_behind(self, now: float) -> do.Effects:
        """Whether what this node was told before can be true."""
        link, state = self.parent, self._state
        if link is None or not link.has_begun or link.is_stale is not False or link.watermark >= state.watermark:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since >= BEHIND_S:
            self._behind_since = None
            # It is right, and has sent as old what comes after that: it is to send it again.
            return self._fall_back(min(link.watermark, state.proven)) + self._broken(link, now)
        return []

    def _lose(self, link: Uplink, since: StreamPosition, until: StreamPosition) -> do.Effects:
        self._trust.came_to(link, max(link.watermark, until))
        before = self._state.watermark
        if until <= before:
            return []
        self._state.watermark = until
        self._state.wants.lost(until)
        return [do.ItemsLost(max(since, before), until)]

    # What this node wants

    def ask(self, asks: Sequence[Ask], now: float) -> do.Effects:
        """Ask the parent for more. While this node moves, the new parent is asked when that is over."""
        if self.next is not None and self.next.was_asked:
            return []
        link = self.next if self.parent is None else self.parent
        return self._widen(link, asks, now) if link is not None and (link is self.parent or link.has_begun) else []

    def _widen(self, link: Uplink, asks: Sequence[Ask], now: float) -> do.Effects:
        self._asked_at = now
        return [do.Send(link.peer, message) for message in link.widens(self._state.stream, asks)]

    def released(self, now: float, *, is_final: bool) -> None:
        """Something is wanted no more. ``is_final``: nobody will come back for it."""
        if is_final:
            self._is_narrow_due = True
        elif self._narrow_at is None:
            self._narrow_at = now + NARROW_AFTER_S

    # Time

    def tick(self, now: float) -> do.OneByOne:
        """Give up what takes too long, and tell the parent what is not wanted any more.

        Each step looks at what has come of the effects of those before.
        """
        if self.next is not None and now - self.next.asked_at >= MOVE_S:
            yield from self._give_up(MoveEnd.SILENT, now)
        for link in (self.next, self.parent):
            if link is not None and link.parked and not link.is_busy and now - link.parked_at >= PARKED_S:
                yield from self._broken(link, now)
        if self.parent is not None and not self.parent.is_busy and now - self.parent.heard_at >= SILENT_S:
            yield from self._broken(self.parent, now, is_silent=True)
        yield from self._check_behind(now)
        is_asking = self.parent is not None and self.next is None and self._state.wants.has_pending()
        if is_asking and now - self._asked_at >= ASK_AGAIN_S:
            yield from self.ask(self._state.wants.ask_again(), now)
        is_late = self._narrow_at is not None and now >= self._narrow_at
        if (is_late or self._is_narrow_due) and self.next is None:
            yield from self._give_up_wants(now, is_late=is_late)

    def validate(self) -> None:
        """Assert the invariants."""
        for link in (self.parent, self.next):
            if link is not None:
                link.validate()

    def _give_up_wants(self, now: float, *, is_late: bool) -> do.Effects:
        """Tell the parent what nobody wants any more. ``is_late``: also what was kept in case it is wanted again."""
        state = self._state
        self._is_narrow_due = False
        if is_late:
            self._narrow_at = None
        gone, asks = state.wants.give_up(state.watermark, is_late=is_late)
        for id in gone:
            state.matching.remove(id)
        effects: do.Effects = [do.EdgeAct.OFFER_ALL] if gone else []
        if (parent := self.parent) is not None:
            told = [id for id, was_sent in gone.items() if was_sent]
            effects += self._widen(parent, asks, now)
            effects += [do.Send(parent.peer, each) for each in parent.narrows(state.stream, told, state.everything)]
        if self._narrow_at is None and state.wants.has_unwanted():
            self._narrow_at = now + NARROW_AFTER_S
        return effects
