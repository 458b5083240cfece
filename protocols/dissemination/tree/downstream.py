"""The children of one node in one stream: what each wants, has been sent, and has been told. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.messages import (
    DEPTH_MAX,
    Attach,
    AttachRefusal,
    Beat,
    Begin,
    Carry,
    Declined,
    Dismiss,
    Narrow,
    Ready,
    ReplayItems,
    StreamGap,
    Widen,
    Widened,
)
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import Holder, Interest, ParsedItem
from protocols.dissemination.tree.links import ChildStage, Downlink
from protocols.dissemination.tree.state import BEAT_ITEMS, BEAT_S, MemberState, in_messages, mark

OFFER_S: Final = 10.0
"""A child that does not begin for so long is forgotten."""
CHILDREN_TOLD_MAX: Final = 32


class Needs(Protocol):
    """How children's wants get to the parent."""

    def need(
        self, holder: Holder, interests: Sequence[Interest], after: StreamPosition | None, then: Callable[[], None]
    ) -> None:
        """Have these complete; ``then`` is called when they are as complete as they will be, perhaps at once."""

    def release(self, holder: Holder, ids: Sequence[bytes] | None = None) -> None:
        """They (or all) are wanted no more."""


Admit = Callable[[PeerRef, Sequence[Interest]], bool]
"""Whether this node is willing to take one more child: its fan-out limit."""


class Downstream:
    """The upper ends of a node's edges to its children."""

    def __init__(self, state: MemberState, needs: Needs, admit: Admit) -> None:
        self._state = state
        self._needs = needs
        self._admit = admit
        self.children: dict[NodeId, Downlink] = {}
        self.is_member: Callable[[], bool] = lambda: state.is_source
        """Whether this node is in the tree; set by who makes the parts."""
        self.has_uplink: Callable[[NodeId], bool] = lambda peer: False
        """Whether a node is this node's parent, or is to be; set by who makes the parts."""

    # Coming and going

    def attach(self, peer: PeerRef, message: Attach) -> bool:
        """A node wants to be a child; whether it may, so far."""
        try:
            interests = [self._state.kind.parse(text) for text in message.wants]
        except InterestError as error:
            self._decline(peer, message.attempt, AttachRefusal.INTEREST, str(error)[:256])
            return False
        if (why := self._why_not(peer, interests)) is not None:
            self._decline(peer, message.attempt, why)
            return False
        before = self.children.get(peer.id)
        if before is not None and before.attempt > message.attempt:
            return False
        after = None if message.is_new or self._state.given is not None else message.after.position
        wants = {each.id: each for each in interests}
        child = Downlink(peer, message.attempt, self._state.now, wants, after, message.is_orphan)
        self.children[peer.id] = child
        if before is not None:
            self._needs.release(peer.id, [id for id in before.wants if id not in wants])
        self._needs.need(peer.id, interests, after, partial(self._complete, child))
        return True

    def _why_not(self, peer: PeerRef, interests: Sequence[Interest]) -> AttachRefusal | None:
        state = self._state
        if peer.id in state.path or peer.id == state.me.id or self.has_uplink(peer.id):
            return AttachRefusal.BELOW
        if not self.is_member():
            return AttachRefusal.NOT_A_MEMBER
        if len(state.path) >= DEPTH_MAX:
            return AttachRefusal.DEPTH
        if peer.id not in self.children and not self._admit(peer, interests):
            return AttachRefusal.FULL
        return None

    def _decline(self, peer: PeerRef, attempt: int, why: AttachRefusal, detail: str = "") -> None:
        near = tuple(child.peer for child in self.children.values() if child.stage is ChildStage.LIVE)
        self._state.send(peer, Declined(self._state.stream, attempt, why, near[:CHILDREN_TOLD_MAX], detail))

    def _complete(self, child: Downlink) -> None:
        """What a child wants is as complete here as it will be."""
        if self.children.get(child.peer.id) is not child or child.stage is not ChildStage.WAITING:
            return
        state = self._state
        since = state.since(list(child.wants.values()), child.after)
        state.send(child.peer, Ready(state.stream, child.attempt, mark(since), mark(state.through)))
        if child.is_orphan:
            self._go_live(child, since)
        else:
            child.stage, child.since_s = ChildStage.OFFERED, state.now

    def begin(self, peer: PeerRef, message: Begin) -> None:
        """A child says from where on it wants the stream."""
        child = self.children.get(peer.id)
        if child is None or child.attempt != message.attempt:
            self._state.send(peer, Dismiss(self._state.stream, message.attempt))
            return
        if child.stage is not ChildStage.OFFERED:
            raise ProtocolError("not_offered", f"{peer} begins what was not offered to it")
        child.after = message.after.position
        self._go_live(child, self._state.since(list(child.wants.values()), child.after))

    def _go_live(self, child: Downlink, since: StreamPosition) -> None:
        state = self._state
        child.stage = ChildStage.LIVE
        if state.given is not None:
            self._give_newest(child)
            return
        if child.after is not None and since > child.after:
            state.send(child.peer, StreamGap(state.stream, mark(child.after), mark(since)))
        child.told = min(since, state.through)
        child.queue = [held for held in state.buffer.after(since) if self._is_wanted(child, held)]
        self._flush(child, is_due=True)

    def _give_newest(self, child: Downlink) -> None:
        """A child begins with what this node has of each object: how old that is does not matter."""
        state = self._state
        child.given = state.make_given()
        self._want(child)
        child.told = state.through
        child.queue = [] if state.given is None else self._due(child, state.given.newest())
        self._flush(child, is_due=True)

    @staticmethod
    def _want(child: Downlink) -> None:
        if child.given is not None:
            child.given.want(child.wants.values())

    def _due(self, child: Downlink, some: Iterable[ParsedItem]) -> list[ParsedItem]:
        return [held for held in some if self._state.is_for(child.given, held)]

    def _is_wanted(self, child: Downlink, held: ParsedItem) -> bool:
        return any(self._state.kind.matches(interest, held.content) for interest in child.wants.values())

    def detach(self, peer: PeerRef, attempt: int) -> None:
        """A child goes."""
        child = self.children.get(peer.id)
        if child is not None and child.attempt == attempt:
            self.remove(peer.id)

    def remove(self, peer: NodeId) -> None:
        """Forget a child."""
        if self.children.pop(peer, None) is not None:
            self._needs.release(peer)

    def dismiss_all(self) -> None:
        """This node leaves the tree: its children have to look for other parents."""
        for child in list(self.children.values()):
            self._state.send(child.peer, Dismiss(self._state.stream, child.attempt))
            self.remove(child.peer.id)

    # What a child wants

    def widen(self, peer: PeerRef, message: Widen) -> None:
        """A child wants more."""
        child = self._live(peer)
        if child is None:
            return
        try:
            interests = [self._state.kind.parse(text) for text in message.wants]
        except InterestError as error:
            raise ProtocolError("bad_interest", str(error)[:256]) from error
        after = None if message.is_new else message.after.position
        self._needs.need(peer.id, interests, after, partial(self._widened, child, interests, after))

    def _widened(self, child: Downlink, interests: Sequence[Interest], after: StreamPosition | None) -> None:
        if self.children.get(child.peer.id) is not child:
            return
        state = self._state
        self._flush(child, is_due=True)
        since = state.since(interests, after)
        child.wants.update((each.id, each) for each in interests if state.wants.is_held(each.id, child.peer.id))
        if state.given is not None:
            self._want(child)
            past = self._due(child, state.given.newest())
        else:
            past = [
                held
                for held in state.buffer.after(since)
                if any(state.kind.matches(interest, held.content) for interest in interests)
            ]
        for some in in_messages(past):
            state.send(child.peer, ReplayItems(state.stream, tuple(held.item for held in some)))
        ids = tuple(each.id for each in interests)
        state.send(child.peer, Widened(state.stream, ids, mark(since), mark(state.through)))

    def narrow(self, peer: PeerRef, message: Narrow) -> None:
        """A child wants less."""
        child = self._live(peer)
        if child is not None:
            for id in message.interests:
                child.wants.pop(id, None)
            self._want(child)
            self._needs.release(peer.id, message.interests)

    def _live(self, peer: PeerRef) -> Downlink | None:
        child = self.children.get(peer.id)
        if child is None:  # it was forgotten, and may not know it yet
            return None
        if child.stage is not ChildStage.LIVE:
            raise ProtocolError("not_begun", f"{peer} changes what it wants before the stream has begun")
        return child

    # The stream

    def flow(self, held: ParsedItem, ids: set[bytes]) -> None:
        """An item for the children that want one of these interests."""
        for child in self.children.values():
            if child.stage is ChildStage.LIVE:
                if not ids.isdisjoint(child.wants) and self._state.is_for(child.given, held):
                    child.queue.append(held)
                else:
                    child.passed += 1

    def offer(self, some: Sequence[ParsedItem]) -> None:
        """What this node has of some objects, though the stream may be further: to each child that has to have it."""
        for child in self.children.values():
            if child.stage is not ChildStage.LIVE:
                continue
            for part in in_messages(self._due(child, some)):
                self._flush(child, is_due=False)
                items = tuple(held.item for held in part)
                self._state.send(child.peer, ReplayItems(self._state.stream, items))

    def unsettle(self) -> None:
        """This node gets its items from another parent."""
        for child in self.children.values():
            if child.given is not None:
                child.given.unsettle()

    def tell_all(self) -> None:
        """Send all children a beat now."""
        for child in self.children.values():
            if child.stage is ChildStage.LIVE:
                self._flush(child, is_due=False)
                self._beat(child, None)

    def gap(self, since: StreamPosition, until: StreamPosition) -> None:
        """This node, and so its children, have lost something."""
        for child in self.children.values():
            if child.stage is ChildStage.LIVE and child.told < until:
                self._flush(child, is_due=False)
                self._state.send(child.peer, StreamGap(self._state.stream, mark(max(since, child.told)), mark(until)))
                child.told = until

    def flush(self) -> None:
        """Send what the current call has brought."""
        for child in self.children.values():
            if child.stage is ChildStage.LIVE and (child.queue or child.passed >= BEAT_ITEMS):
                self._flush(child, is_due=child.passed >= BEAT_ITEMS)

    def beat(self) -> None:
        """Tell children how far they have come, and forget those that never began."""
        now = self._state.now
        for child in list(self.children.values()):
            if child.stage is ChildStage.LIVE:
                self._flush(child, is_due=now - child.beat_at >= BEAT_S or child.path_told != self._state.path_version)
            elif child.stage is ChildStage.OFFERED and now - child.since_s >= OFFER_S:
                self.remove(child.peer.id)

    def _flush(self, child: Downlink, *, is_due: bool) -> None:
        state = self._state
        queue, child.queue = child.queue, []
        parts = list(in_messages(queue))
        for at, some in enumerate(parts):
            is_last = at == len(parts) - 1
            through = state.through if is_last else some[-1].position
            state.send(child.peer, Carry(state.stream, tuple(held.item for held in some), mark(through)))
            child.told, child.passed, child.beat_at = through, 0, state.now
        is_path_new = child.path_told != state.path_version
        if (is_due and not parts) or is_path_new:
            path = (*state.path, state.me.id) if is_path_new else None
            self._beat(child, path)

    def _beat(self, child: Downlink, path: tuple[NodeId, ...] | None) -> None:
        state = self._state
        state.send(child.peer, Beat(state.stream, mark(state.through), path, state.is_stale))
        child.told, child.passed, child.beat_at = state.through, 0, state.now
        if path is not None:
            child.path_told = state.path_version

    def validate(self) -> None:
        """Assert the invariants."""
        for child in self.children.values():
            assert child.stage is ChildStage.LIVE or not child.queue
            assert child.told <= max(self._state.through, child.told)
