"""Keeping the tree low: a node with room takes a child of one of its children. Pure.

Moves by overlap put a node, with all below it, where it costs least; where its equals have room only at their leaves,
the tree grows deeper with each of them. Whoever is moved to its grandparent costs nobody anything: the grandparent gets
what it needs already, and the parent in between is rid of it. So this needs no search, and nobody's leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.policies.orders import OrderedMove, TakenOrder
from protocols.dissemination.policies.overlap.events import MovedUp
from protocols.dissemination.policies.overlap.messages import MoveToGrandparent, RoomAbove
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreeAccess
from protocols.dissemination.statistics.changes import since_change

OFFER_EVERY_S: Final = 1.0
"""Room is offered so often at most; and a child is sent up so often at most, however often room is offered."""
OFFER_AGAIN_S: Final = 5.0
"""To one child, room is offered so often at most: it has nobody to send, perhaps."""
FOREIGN_MAX: Final = 0.02
"""So much of what a child needs may be of no use to this node itself: the child still counts as wanting the same."""
COUNTED_MAX: Final = 0xFFFF


@dataclass(slots=True)
class _Child:
    children: int = 0
    """How many it has, as it has told."""
    offered_at: float = float("-inf")


class Lifter:
    """One node's part: it offers room to its children, and sends its own children up."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, overlaps: Overlaps, taken: TakenOrder) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self._taken = taken
        self._known: dict[NodeId, _Child] = {}
        self._offered_at = float("-inf")
        self._sent_at = float("-inf")

    @property
    def children(self) -> int:
        """How many there are."""
        return min(COUNTED_MAX, len(self._known))

    def child_came(self, child: NodeId) -> None:
        """A child is there."""
        self._known[child] = _Child()

    def child_went(self, child: NodeId) -> None:
        """A child is gone."""
        self._known.pop(child, None)

    def child_told(self, child: NodeId, children: int) -> None:
        """A child says how many children it has."""
        if child in self._known:
            self._known[child].children = children

    def tick(self) -> None:
        """Offer room to one of the children that have children, and want what this node wants.

        Others had better not stay below this node at all, and more of the same would hold them here.
        """
        tree, now = self._tree, self._tree.now()
        if not self._settings.reorganise or tree.is_producer or now - self._offered_at < OFFER_EVERY_S:
            return
        waiting = [
            (each.offered_at, -each.children, id)
            for id, each in self._known.items()
            if each.children and now - each.offered_at >= OFFER_AGAIN_S
        ]
        if not waiting or not tree.room() or tree.parent is None:
            return
        self._offered_at = now
        peers = {child.peer.id: child.peer for child in tree.children()}
        for _, _, child in sorted(waiting):
            if child in peers and self._is_alike(child):
                self._known[child].offered_at = now
                tree.send(peers[child], RoomAbove(tree.stream))
                return

    def _is_alike(self, child: NodeId) -> bool:
        """Whether this node wants all itself that the child needs. Where nothing is known yet it is no.

        Only the items since that has last changed are looked at, and next to nothing may be missing: a branch that is
        brought nearer although it is about to be of no use here costs more than the level that it saves.
        """
        received = self._overlaps.received
        sent = received.sent_to(child)
        if sent is None:
            return False
        items = self._overlaps.settled(sent, self._tree.now())
        items = since_change(items, received.own) if items.items else items
        return bool(items.items) and len(items.items - received.own) <= FOREIGN_MAX * len(items.items)

    def offered(self, peer: PeerRef) -> None:
        """The parent has room: send it the child with the most children."""
        tree, now = self._tree, self._tree.now()
        if tree.parent is None or tree.parent.id != peer.id or now - self._sent_at < OFFER_EVERY_S:
            return
        self._sent_at = now
        children = {child.peer.id: child.peer for child in tree.children() if child.peer.id in self._known}
        largest = max(children, key=lambda child: (self._known[child].children, child), default=None)
        if largest is not None and self._known[largest].children:
            tree.send(children[largest], MoveToGrandparent(tree.stream, peer))

    def ordered(self, peer: PeerRef, to_parent: PeerRef) -> None:
        """The parent says that its own parent has room: go there."""
        tree = self._tree
        if tree.parent is None or tree.parent.id != peer.id:
            return
        if len(tree.path) >= 2 and tree.path[-2] == to_parent.id:
            self._taken.obey(OrderedMove((peer.id, 0), peer, (to_parent,), tree.now(), partial(self._went_up, peer)))

    def _went_up(self, left: PeerRef, to: PeerRef | None) -> None:
        if to is not None:
            stream, from_parent, parent = map(format_id, (self._tree.stream, left.id, to.id))
            self._tree.emit(MovedUp(stream=stream, from_parent=from_parent, parent=parent, children=self.children))
