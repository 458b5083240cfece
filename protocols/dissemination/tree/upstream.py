"""The parent of one node in one stream, and the change from one parent to another. Pure.

A move: `Attach` to the new parent, `Ready` from it, `Begin` to it. From then on both parents send; what comes twice is
dropped. Once the new one has begun, and the way up from it is known to be clear (`Climbed`), the old one is told
`DetachFromParent`. Nothing stops meanwhile, so a move costs the subscriptions no time at all. An orphan has nothing to
lose, and takes the stream from its new parent before the way up is known to be clear.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.messages import (
    Attach,
    AttachRefusal,
    Begin,
    Climbed,
    Declined,
    DetachFromParent,
    ItemBatch,
    ItemPart,
    ItemTaken,
    Ready,
    ReplayItems,
    StreamGap,
    StreamItem,
    TreeHeartbeat,
    Widened,
)
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.tree.below import Below
from protocols.dissemination.tree.climbing import Climbing
from protocols.dissemination.tree.latest import LatestItems
from protocols.dissemination.tree.links import PARKED_MAX, PARKED_S, EdgeMessage, Intake, Uplink, UplinkStage
from protocols.dissemination.tree.search import MoveEnd
from protocols.dissemination.tree.state import MOVE_S, SILENT_S, MemberState, bad_item
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

    def __init__(self, state: MemberState, latest: LatestItems, below: Below, attempts_from: int) -> None:
        self._state, self._latest, self._below = state, latest, below
        self.climbing = Climbing(state)
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

    def is_parent(self, peer: PeerRef, attempt: int) -> bool:
        """Whether a node is this node's parent by this attempt."""
        return self.parent is not None and (self.parent.peer.id, self.parent.attempt) == (peer.id, attempt)

    def knows(self, peer: NodeId) -> bool:
        """Whether a node is this node's parent, or is to be."""
        return any(link is not None and link.peer.id == peer for link in (self.parent, self.next))

    # Moving

    def move_to(self, peer: PeerRef, instead_of: NodeId | None = None) -> bool:
        """Get another parent, or a first one; whether that has begun. `MemberOwner.ended` follows if so."""
        if peer.id == self._state.me.id:
            return False
        if self.next is not None or (self.parent is not None and self.parent.peer.id == peer.id):
            return False
        if not self._trust.may_be_parent(peer.id):
            return False
        if self.parent is not None and not self.climbing.may_move():
            return False
        self.climbing.is_moving = True
        self._instead_of = instead_of
        self._attach(peer, self._state.now)
        return True

    def _attach(self, peer: PeerRef, begun_at: float) -> None:
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
        state.send(peer, Attach(state.stream, self._attempts, texts, after, *flags, self._instead_of, state.creator))

    def ready(self, peer: PeerRef, message: Ready) -> None:
        """The new parent can begin, or (for an orphan) has begun."""
        link = self._next(peer, message.attempt)
        if link is None or link.has_begun:
            return
        state = self._state
        if link.is_orphan:
            since = message.since
            if self.is_new:
                state.watermark = state.proven = max(state.watermark, since)
            self._begun(link)
        elif state.wants.has_pending() or not link.wants.issuperset(state.wants.sent()):
            self._attach(peer, link.asked_at)  # this node wants more by now: the new parent has to have that too
        else:
            link.comes_to(UplinkStage.ASKED)
            state.send(peer, Begin(state.stream, link.attempt, state.watermark))

    def _begun(self, link: Uplink) -> None:
        link.comes_to(UplinkStage.BEGUN)
        link.heard_at = self._state.now
        if link.is_orphan:
            self._latest.unsettled()
            self._state.wants.complete_since(self._state.watermark, link.wants)
            self.is_new = False
            self._below.answered()
            self._widen(link, self._state.wants.ask_again())
        self._commit_if_done()

    def climbed(self, message: Climbed) -> None:
        """The way up from the new parent was looked at."""
        link = self.next
        if link is None or link.attempt != message.attempt:
            return
        if message.is_clear:
            link.is_clear = True
            self._commit_if_done()
        else:
            self._give_up(MoveEnd.CIRCLE)

    def in_circle(self, attempt: int) -> None:
        """The check of a move of this node has come back to it."""
        if self.next is not None and self.next.attempt == attempt:
            self._give_up(MoveEnd.CIRCLE)

    def _commit_if_done(self) -> None:
        link, old = self.next, self.parent
        if link is None or not link.has_begun or not link.is_clear:
            return
        self.parent, self.next, self.died = link, None, None
        error = self._take_over(link)
        if link.path is not None:
            self._state.set_path(link.path)
        if old is not None:
            self._state.send(old.peer, DetachFromParent(self._state.stream, old.attempt))
            self._widen(link, self._state.wants.ask_again())
        self.climbing.moved(link.peer)
        self._state.owner.ended(link.peer, MoveEnd.MOVED, None, ())
        self._refuse(link, error)

    def _take_over(self, link: Uplink) -> ProtocolError | None:
        """What a new parent has sent counts from now on, also where the one before has sent something newer.

        For that one promises nothing any more, and the new one knows only of what it has sent itself. Returns what is
        wrong with it, if anything: to be told when all else is done.
        """
        found: ProtocolError | None = None
        if link.last_sent is not None:
            sent, link.last_sent = link.last_sent.newest(), None
            self._latest.unsettled()
            try:
                for parsed in sent:
                    self._latest.arrived(parsed)
            except ProtocolError as error:
                found = error
        self._latest.freshened(is_stale=self.is_stale)
        return found

    def _refuse(self, link: Uplink, error: ProtocolError | None) -> None:
        """Part with a node because of what it has sent earlier, whoever's message is handled now."""
        if error is not None:
            if link in (self.parent, self.next):
                self._broken(link)
            self._state.owner.blame(link.peer, error)

    def declined(self, peer: PeerRef, message: Declined) -> None:
        """The new parent does not want to."""
        if self._next(peer, message.attempt) is not None:
            why = AttachRefusal(message.why) if message.why in AttachRefusal.__members__.values() else None
            self._give_up(MoveEnd.DECLINED, why, message.children)

    def _give_up(self, end: MoveEnd, why: AttachRefusal | None = None, children: Sequence[PeerRef] = ()) -> None:
        link, self.next = self.next, None
        assert link is not None
        if end is not MoveEnd.DECLINED:
            self._state.send(link.peer, DetachFromParent(self._state.stream, link.attempt))
        if self.parent is not None and link.was_asked:
            self._widen(self.parent, self._state.wants.ask_again())
        parent = None if self.parent is None else self.parent.peer
        self.climbing.moved(parent)
        if link.has_begun:
            self._latest.freshened(is_stale=self.is_stale)  # before the next attempt, which `ended` may begin at once
        self._state.owner.ended(link.peer, end, why, children)
        if link.has_begun and self.parent is None and self.next is None:
            self._state.owner.orphaned()

    def _next(self, peer: PeerRef, attempt: int) -> Uplink | None:
        link = self.next
        return link if link is not None and link.peer.id == peer.id and link.attempt == attempt else None

    # Losing the parent

    def gone(self, peer: NodeId) -> None:
        """A node is out of reach."""
        if self.next is not None and self.next.peer.id == peer:
            self._give_up(MoveEnd.SILENT)
        if self.parent is not None and self.parent.peer.id == peer:
            self._drop_parent(died=peer)

    def dismissed(self, peer: PeerRef, attempt: int) -> None:
        """The parent says that it is none."""
        if self._next(peer, attempt) is not None:
            self._give_up(MoveEnd.DECLINED)
        elif self.is_parent(peer, attempt):
            self._drop_parent()

    def _drop_parent(self, died: NodeId | None = None) -> None:
        self.parent, self.died = None, died
        self._latest.freshened(is_stale=self.is_stale)
        if self.next is None:
            self._state.owner.orphaned()
        elif self.next.has_begun:
            self._refuse(self.next, self._take_over(self.next))
        elif not self.next.is_orphan:
            self._attach(self.next.peer, self._state.now)  # now there is nothing to wait for

    def leave(self) -> None:
        """This node leaves the tree."""
        for link in (self.next, self.parent):
            if link is not None:
                self._state.send(link.peer, DetachFromParent(self._state.stream, link.attempt))
        self.parent = self.next = None

    # Becoming the producer, and being it no more

    def at_producer(self) -> None:
        """Nobody is above this node from now on."""
        self.leave()
        self.died = self._behind_since = self._narrow_at = None
        self._is_narrow_due = True
        self.climbing.moved(None)

    def at_member(self) -> None:
        """This node has had the stream, as its producer, and needs a parent now."""
        self.is_new = False
        self._latest.freshened(is_stale=self.is_stale)

    # The stream

    def in_order(self, peer: PeerRef, message: EdgeMessage) -> Iterator[EdgeMessage]:
        """What can be taken in now that this has come: nothing, this, or this and what had overtaken it.

        One connection keeps the order; but two nodes that connect to each other at the same time give one of two up.
        """
        link = self._link(peer, message.attempt)
        if link is None:
            self._tell_off(peer, message.attempt)
            return
        if message.number <= link.number:
            return
        link.heard_at = self._state.now
        if not link.parked:
            link.parked_at = self._state.now
        link.parked[message.number] = message
        if len(link.parked) > PARKED_MAX:
            self._broken(link)
            return
        yield from self._parked(link)

    def _parked(self, link: Uplink) -> Iterator[EdgeMessage]:
        while self._link(link.peer, link.attempt) is link and (link is self.parent or link.may_begin):
            if link.is_busy:
                return
            found = link.parked.get(link.number + 1)
            if found is None or self._trust.must_wait(link, found):
                return
            link.number += 1
            del link.parked[link.number]
            link.parked_at = self._state.now
            yield found

    def waiting(self, peer: PeerRef) -> Iterator[EdgeMessage]:
        """What came too early, such as before this parent was known to have begun, and can be taken in now."""
        for link in (self.parent, self.next):
            if link is not None and link.peer.id == peer.id and link.parked:
                yield from self._parked(link)

    def _heard(self, peer: PeerRef, message: EdgeMessage) -> Uplink | None:
        """The link that a message of the stream came on; ``None``: none that this node has (any more)."""
        link = self._link(peer, message.attempt)
        if link is not None and link is self.next and not link.has_begun:
            self._begun(link)
        if link is not None and link.parts and not isinstance(message, ItemPart | ItemBatch | ReplayItems):
            self._broken(link)
            raise ProtocolError("bad_parts", f"{link.peer} sends a {type(message).__name__} before {link.left} bytes")
        return link

    def _link(self, peer: PeerRef, attempt: int) -> Uplink | None:
        return self.parent if self.is_parent(peer, attempt) else self._next(peer, attempt)

    def _tell_off(self, peer: PeerRef, attempt: int) -> None:
        """Somebody believes to be this node's parent: what told it otherwise may have been lost."""
        if self._state.now >= self._tell_off_at:
            self._tell_off_at = self._state.now + TELL_OFF_S
            self._state.send(peer, DetachFromParent(self._state.stream, attempt))

    def _broken(self, link: Uplink, *, is_silent: bool = False, end: MoveEnd = MoveEnd.SILENT) -> None:
        if link is self.next:
            self._give_up(end)
        else:
            self._state.send(link.peer, DetachFromParent(self._state.stream, link.attempt))
            self._drop_parent(died=link.peer.id if is_silent else None)

    def take_batch(self, peer: PeerRef, message: ItemBatch) -> None:
        """The next items."""
        link = self._heard(peer, message)
        if link is None:
            return
        with self._unless_it_lies(link):
            items = self._trust.items(link, message)
            if len(items) < len(message.items):  # the first of them: of a term that is too long ago
                self._lose(link, link.watermark, items[0].position.before if items else message.watermark)
            for item in items:
                self._trust.check_next(link, position := item.position, 1)
                link.watermark = position
                if self._is_for_aside(link, item):
                    self._look_aside(link, item, message)
                    return
                self._take(link, item, None)
            self._taken(link, message, items)

    @contextmanager
    def _unless_it_lies(self, link: Uplink) -> Iterator[None]:
        """What else a node says is not to be relied on that sends what no correct one does: another is needed."""
        try:
            yield
        except ProtocolError:
            if link is self.parent or self.parent is None:
                self._below.fall_back(self._state.proven)
            if link in (self.parent, self.next):
                self._broken(link)
            raise

    def _take(self, link: Uplink, item: StreamItem, parsed: ParsedItem | None) -> None:
        """An item is in turn. ``parsed``: it was parsed, and if it is the next of the stream matched, before."""
        if link.last_sent is not None:  # what a node sends that is to be the parent waits until it is
            link.keep(self._state.parsed(item))
        elif (position := item.position) > self._state.watermark:
            self._state.watermark = self._state.proven = position
            self._below.carried(item, parsed)
        else:  # it came from the parent before; or nobody here wanted it until now
            self._below.remembered(item, parsed)

    def _taken(self, link: Uplink, message: ItemBatch | ReplayItems, items: Sequence[StreamItem]) -> None:
        """All of a message was taken in."""
        if isinstance(message, ItemBatch):
            self._went_on(link.peer, link, message.watermark)
        if items and items[0].is_large:
            self._state.send(link.peer, ItemTaken(self._state.stream, link.attempt, message.number))

    def may_end(self) -> bool:
        """The parent says that the stream is over; whether all that it sent before was taken in."""
        link = self.parent
        if link is not None and link.is_busy:
            link.has_ended = True
            return False
        return True

    def is_over(self) -> bool:
        """Whether the parent has said so, and all that it sent before was taken in by now."""
        return self.parent is not None and self.parent.has_ended and not self.parent.is_busy

    # Large items

    def part(self, peer: PeerRef, message: ItemPart) -> None:
        """The next part of a payload."""
        link = self._heard(peer, message)
        if link is None:
            return
        if not link.add(message):
            size = len(message.data)
            self._broken(link)
            raise ProtocolError("bad_parts", f"{link.peer} sends {size} bytes and leaves {message.left} of {link.left}")

    def _is_for_aside(self, link: Uplink, item: StreamItem) -> bool:
        return self._state.last_sent is None and self._state.matching.is_for_aside(item)

    def _look_aside(self, link: Uplink, item: StreamItem, message: ItemBatch | ReplayItems) -> None:
        """Have an item read, and matched if it is the next of the stream, while the loop goes on."""
        matching = self._state.matching
        is_next = isinstance(message, ItemBatch) and item.position > self._state.watermark
        link.intake = Intake.BUSY

        def done(parsed: ParsedItem) -> None:
            if link not in (self.parent, self.next):
                return  # whoever is the parent now sends it again
            link.intake = Intake.FREE
            link.heard_at = link.parked_at = self._state.now
            if isinstance(message, ItemBatch):
                self._take(link, item, parsed)
            else:
                self._below.remembered(item, parsed)
            self._taken(link, message, (item,))
            self._below.went_on(link.peer)

        def failed(error: BaseException) -> None:
            if not isinstance(error, ItemError):
                raise error
            self._refuse(link, bad_item(error))

        (matching.prepare if is_next else matching.read)(item, done, failed)

    def heartbeat(self, peer: PeerRef, message: TreeHeartbeat) -> None:
        """Nothing for this node, up to a mark."""
        link = self._heard(peer, message)
        if link is None:
            return
        self._went_on(peer, link, message.watermark)
        link.is_stale = message.is_stale
        self._latest.freshened(is_stale=self.is_stale)
        if message.path is not None:
            link.path = message.path
            if any(each.id == self._state.me.id for each in message.path):
                self._broken(link, end=MoveEnd.CIRCLE)
            elif link is self.parent or self.parent is None:
                self._state.set_path(message.path)

    def _went_on(self, peer: PeerRef, link: Uplink, watermark: StreamPosition) -> None:
        with self._unless_it_lies(link):
            self._trust.check_next(link, watermark, 0)
        self._trust.came_to(link, watermark)
        self._state.watermark = max(self._state.watermark, watermark)
        self._catch_up(link)

    def _catch_up(self, link: Uplink) -> None:
        """The parent has come further: as far as this node was, perhaps."""
        if found := link.caught_up():
            for ids, since in found:
                self._state.wants.widened(ids, since)
            self._below.answered()

    def _check_behind(self) -> None:
        """Whether what this node was told before can be true."""
        link, state = self.parent, self._state
        if link is None or not link.has_begun or link.is_stale is not False or link.watermark >= state.watermark:
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = state.now
        elif state.now - self._behind_since >= BEHIND_S:
            self._behind_since = None
            self._below.fall_back(min(link.watermark, state.proven))
            self._broken(link)  # it is right, and has sent as old what comes after that: it is to send it again

    def gap(self, peer: PeerRef, message: StreamGap) -> None:
        """Something is lost."""
        link = self._heard(peer, message)
        if link is not None:
            self._lose(link, message.since, message.until)

    def _lose(self, link: Uplink, since: StreamPosition, until: StreamPosition) -> None:
        self._trust.came_to(link, max(link.watermark, until))
        if until > self._state.watermark:
            since = max(since, self._state.watermark)
            self._state.watermark = until
            self._state.wants.lost(until)
            self._below.lost(since, until)

    # What this node wants

    def ask(self, asks: Sequence[Ask]) -> None:
        """Ask the parent for more. While this node moves, the new parent is asked when that is over."""
        if self.next is not None and self.next.was_asked:
            return
        link = self.next if self.parent is None else self.parent
        if link is not None and (link is self.parent or link.has_begun):
            self._widen(link, asks)

    def _widen(self, link: Uplink, asks: Sequence[Ask]) -> None:
        self._asked_at = self._state.now
        for message in link.widens(self._state.stream, asks):
            self._state.send(link.peer, message)

    def replay(self, peer: PeerRef, message: ReplayItems) -> None:
        """Items of the past."""
        link = self._heard(peer, message)
        if link is None:
            return
        with self._unless_it_lies(link):
            items = self._trust.items(link, message)
            for item in items:
                if link.last_sent is not None:
                    link.keep(self._state.parsed(item))
                elif item.batch is None and self._is_for_aside(link, item):
                    self._look_aside(link, item, message)
                    return
                else:
                    self._below.remembered(item, None)
            self._taken(link, message, items)

    def widened(self, peer: PeerRef, message: Widened) -> None:
        """The parent has begun to send more."""
        link = self._heard(peer, message)
        if link is not None:
            asked = [id for id in message.interests if self._state.wants.is_sent(id)]  # or wanted no more by now
            link.answered(asked, self._state.watermark, message.since)
            if self._state.everything in asked:
                link.promises_all()
            self._went_on(peer, link, message.watermark)

    def released(self, *, is_final: bool) -> None:
        """Something is wanted no more. ``is_final``: nobody will come back for it."""
        if is_final:
            self._is_narrow_due = True
        elif self._narrow_at is None:
            self._narrow_at = self._state.now + NARROW_AFTER_S

    # Time

    def tick(self) -> None:
        """Give up what takes too long, and tell the parent what is not wanted any more."""
        now = self._state.now
        if self.next is not None and now - self.next.asked_at >= MOVE_S:
            self._give_up(MoveEnd.SILENT)
        for link in (self.next, self.parent):
            if link is not None and link.parked and not link.is_busy and now - link.parked_at >= PARKED_S:
                self._broken(link)
        if self.parent is not None and not self.parent.is_busy and now - self.parent.heard_at >= SILENT_S:
            self._broken(self.parent, is_silent=True)
        self._check_behind()
        is_asking = self.parent is not None and self.next is None and self._state.wants.has_pending()
        if is_asking and now - self._asked_at >= ASK_AGAIN_S:
            self.ask(self._state.wants.ask_again())
        is_late = self._narrow_at is not None and now >= self._narrow_at
        if (is_late or self._is_narrow_due) and self.next is None:
            self._give_up_wants(is_late=is_late)

    def validate(self) -> None:
        """Assert the invariants."""
        for link in (self.parent, self.next):
            if link is not None:
                link.validate()

    def _give_up_wants(self, *, is_late: bool) -> None:
        """Tell the parent what nobody wants any more. ``is_late``: also what was kept in case it is wanted again."""
        self._is_narrow_due = False
        if is_late:
            self._narrow_at = None
        gone, asks = self._state.wants.give_up(self._state.watermark, is_late=is_late)
        told = [id for id, was_sent in gone.items() if was_sent]
        for id in gone:
            self._state.matching.remove(id)
        if gone:
            self._latest.offer_all()
        if self.parent is not None:
            self._widen(self.parent, asks)
            for message in self.parent.narrows(self._state.stream, told, self._state.everything):
                self._state.send(self.parent.peer, message)
        if self._narrow_at is None and self._state.wants.has_unwanted():
            self._narrow_at = self._state.now + NARROW_AFTER_S
