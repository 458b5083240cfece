"""The second parent: who takes a node when its parent dies, asked before that happens. Pure.

Without it an orphan searches: its grandparent has the one place that the dead node leaves, and most of the siblings are
sent on from there, a round trip for each try. So each node asks for a place while nothing is wrong (`SecondParent`),
and who has promised one says so by itself when it can keep it no longer (`Places`). At rest nothing is sent.

A place is kept for the death of one parent. Children of other parents are promised the same place, because they would
not come at the same time; and it is no obstacle for a node that joins now. So places cost the tree no room.

Nothing about the tree depends on what is promised here: the orphan attaches as any other, with the same check for
circles, and where the promise was empty it goes on with its search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.messages import DEPTH_MAX, PLACES_TOLD_MAX, Reserve, Reserved, Unreserve
from protocols.dissemination.tree import effects as do
from protocols.dissemination.tree.links import ChildStage, Downlink
from protocols.dissemination.tree.owner import PLACES_MAX
from protocols.dissemination.tree.search import MoveEnd, ParentSearch
from protocols.dissemination.tree.state import MemberState
from protocols.dissemination.tree.upstream import Upstream

SETTLED_S: Final = 5.0
"""A node that has a new parent looks for a second one after this: many a newcomer moves on, and who is made to change
its parent again and again does not search each time."""
ASK_S: Final = 2.0
"""A node that does not answer for so long has no place."""
ASKED_MAX: Final = 16
"""Nodes that are asked for a place in one search."""
AGAIN_S: Final = 5.0
AGAIN_MAX_S: Final = 600.0
"""From one search to the next, if nobody has had a place or it was taken back at once: doubled each time."""
HELD_S: Final = 60.0
"""A place that was kept for so long was a good one: when it is lost, the next search does not have to wait."""


class SecondParent:
    """The lower end: whom this node turns to when its parent dies."""

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self.peer: PeerRef | None = None
        """Who has promised a place."""
        self.of: NodeId | None = None
        """The parent whose death it is for."""
        self._search = ParentSearch(self._may_ask, state.owner.draw, ASKED_MAX)
        self._asked: PeerRef | None = None
        self._asked_at = 0.0
        self._had_at = 0.0
        self._next_at = 0.0
        self._pause_s = AGAIN_S

    def tick(self, parent: PeerRef | None, now: float, *, is_moving: bool) -> do.Effects:
        """Time has passed. An orphan keeps what it has: this is the moment that it was for."""
        if parent is None:
            return []
        effects: do.Effects = []
        if parent.id != self.of:
            effects += self.leave(except_for=parent.id)
            self.of = parent.id
            self._next_at, self._pause_s = now + SETTLED_S, AGAIN_S
        current = self._search.current
        if current is not None and now - self._asked_at >= ASK_S:
            self._search.ended(current, MoveEnd.SILENT, ())
        is_due = self.peer is None and not self._search.is_active and now >= self._next_at
        above = self._state.ancestors[-2::-1]
        if is_due and above and not is_moving:
            self._next_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, AGAIN_MAX_S)
            self._asked = None
            self._search.begin(above)
        return effects + self._ask(now)

    def _may_ask(self, peer: PeerRef) -> bool:
        return self.of is not None and peer.id not in (self._state.me.id, self.of)

    def _ask(self, now: float) -> do.Effects:
        """Ask whom the search has come to, unless that was done."""
        before, self._asked = self._asked, self._search.current
        if self._asked is None or self._asked is before or self.of is None:
            return []
        self._asked_at = now
        return [do.Send(self._asked, Reserve(self._state.stream, self.of))]

    def answered(self, peer: PeerRef, message: Reserved, now: float) -> do.Effects:
        """A node promises a place, or does not, or not any more."""
        if message.parent != self.of:
            return []
        if self._search.current is not None and self._search.current.id == peer.id:
            if message.is_kept:
                self.peer, self._had_at = peer, now
            self._search.ended(peer, MoveEnd.MOVED if message.is_kept else MoveEnd.DECLINED, message.children)
        elif not message.is_kept and self.peer is not None and self.peer.id == peer.id:
            self._lost(now)
        return self._ask(now)

    def gone(self, peer: NodeId, now: float) -> do.Effects:
        """A node is out of reach."""
        if self._search.current is not None and self._search.current.id == peer:
            self._search.ended(self._search.current, MoveEnd.SILENT, ())
        if self.peer is not None and self.peer.id == peer:
            self._lost(now)
        return self._ask(now)

    def _lost(self, now: float) -> None:
        self.peer = None
        if now - self._had_at >= HELD_S:
            self._next_at, self._pause_s = now + SETTLED_S, AGAIN_S

    def leave(self, except_for: NodeId | None = None) -> do.Effects:
        """The place is not needed any more. ``except_for``: this node has it now."""
        asked = [peer for peer in (self.peer, self._search.current) if peer is not None and peer.id != except_for]
        self._search.stop()
        self.peer = self.of = None
        return [do.Send(peer, Unreserve(self._state.stream)) for peer in asked]


class _Place(Frozen):
    peer: PeerRef
    parent: NodeId


class Places:
    """The upper end: the places that this node has promised."""

    def __init__(self, state: MemberState, children: Mapping[NodeId, Downlink], up: Upstream) -> None:
        self._state, self._children, self._up = state, children, up
        self._kept: dict[NodeId, _Place] = {}

    def asked(self, peer: PeerRef, message: Reserve) -> do.Effects:
        """A node asks for a place in case its parent dies."""
        self._kept.pop(peer.id, None)
        place = _Place(peer, message.parent)
        others = sum(each.parent == place.parent for each in self._kept.values())
        has_room = others < self._state.owner.room_after(place.parent)
        is_kept = len(self._kept) < PLACES_MAX and self._may(place) and has_room
        if is_kept:
            self._kept[peer.id] = place
        return [self._answer(place, is_kept=is_kept)]

    def _may(self, place: _Place) -> bool:
        """Whether this node's own way to the producer leads by neither of the two."""
        state = self._state
        way = (*state.path, state.me.id)
        is_free = place.parent not in way and place.peer.id not in way and not self._up.knows(place.peer.id)
        return is_free and self._up.is_member and len(way) < DEPTH_MAX

    def _answer(self, place: _Place, *, is_kept: bool) -> do.Send:
        near: Sequence[PeerRef] = ()
        if not is_kept:
            near = [child.peer for child in self._children.values() if child.stage is ChildStage.LIVE]
            near = [peer for peer in near if peer.id not in (place.peer.id, place.parent)][:PLACES_TOLD_MAX]
        return do.Send(place.peer, Reserved(self._state.stream, place.parent, is_kept, tuple(near)))

    def released(self, peer: NodeId) -> None:
        """A node needs its place no more, or is out of reach."""
        self._kept.pop(peer, None)

    def check(self) -> do.Effects:
        """Take back what cannot be kept, the newest first."""
        for child in [child for child in self._kept if child in self._children]:
            del self._kept[child]
        if not self._kept:
            return []
        counts = Counter(each.parent for each in self._kept.values())
        room = {parent: self._state.owner.room_after(parent) for parent in counts}
        effects: do.Effects = []
        for place in reversed(list(self._kept.values())):
            if counts[place.parent] > room[place.parent] or not self._may(place):
                counts[place.parent] -= 1
                effects.append(self._take_back(place))
        return effects

    def _take_back(self, place: _Place) -> do.Send:
        del self._kept[place.peer.id]
        return self._answer(place, is_kept=False)

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._kept) <= PLACES_MAX
        assert self._state.me.id not in self._kept

    def leave(self) -> do.Effects:
        """This node leaves the tree."""
        return [self._take_back(place) for place in list(self._kept.values())]
