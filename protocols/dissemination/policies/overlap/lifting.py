"""Keeping the tree low: a node takes a child of one of its children, when it has room or can make some. Pure.

Moves by overlap put a node, with all below it, where it costs least; where its equals have room only at their leaves,
the tree grows deeper with each of them. Whoever is moved to its grandparent costs nobody anything: the grandparent gets
what it needs already, and the parent in between is rid of it. So this needs no search, and nobody's leave.

Near the producer most nodes are full. There a child without children goes below a sibling that has room and
gets the same, and a child of that one comes in its place, with all below it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.policies.overlap.events import MovedDown, MovedUp
from protocols.dissemination.policies.overlap.messages import (
    MoveToGrandparent,
    MoveToSibling,
    RoomAbove,
    RoomBelow,
)
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreeAccess

OFFER_EVERY_S: Final = 1.0
"""Room is offered so often at most; and a child is sent up or down so often at most, however often room is offered."""
OFFER_AGAIN_S: Final = 5.0
"""To one child, room is offered so often at most: it has nobody to send, perhaps. The same to the parent."""
COUNTED_MAX: Final = 0xFFFF


@dataclass(slots=True)
class _Child:
    children: int = 0
    """How many it has, as it has told."""
    offered_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _Going:
    """A move of this node on its parent's word."""

    from_parent: PeerRef
    to_parent: PeerRef
    is_up: bool


class Lifter:
    """One node's part: it offers room to its children, and sends its own children up and down."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, overlaps: Overlaps) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self._known: dict[NodeId, _Child] = {}
        self._offered_at = float("-inf")
        self._offered_above_at = float("-inf")
        self._sent_up_at = float("-inf")
        self._sent_down_at = float("-inf")
        self._going: _Going | None = None

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
        """Offer room, to the children and to the parent."""
        tree, now = self._tree, self._tree.now()
        if not self._settings.reorganise or (tree.parent is None and not tree.is_producer) or not tree.has_room():
            return
        if now - self._offered_at >= OFFER_EVERY_S:
            self._offer_to_child(now)
        if tree.parent is not None and now - self._offered_above_at >= OFFER_AGAIN_S:
            self._offered_above_at = now
            if self._to_send_up() is not None:
                tree.send(tree.parent, RoomBelow(tree.stream))

    def _offer_to_child(self, now: float) -> None:
        """Offer room to one of the children that have children, and want what this node wants.

        Others had better not stay below this node at all, and more of the same would hold them here.
        """
        waiting = [
            (each.offered_at, -each.children, id)
            for id, each in self._known.items()
            if each.children and now - each.offered_at >= OFFER_AGAIN_S
        ]
        if not waiting:
            return
        self._offered_at = now
        peers = self._peers()
        for _, _, child in sorted(waiting):
            if child in peers and self._part_for(child) <= self._settings.threshold:
                self._known[child].offered_at = now
                self._tree.send(peers[child], RoomAbove(self._tree.stream))
                return

    def _peers(self) -> dict[NodeId, PeerRef]:
        return {child.peer.id: child.peer for child in self._tree.children() if child.peer.id in self._known}

    def _part_for(self, child: NodeId) -> float:
        """The part of what a child needs that this node does not want itself; infinite where nothing is known."""
        sent = self._overlaps.received.sent_to(child)
        items = None if sent is None else self._overlaps.settled(sent, self._tree.now())
        if items is None or not items.items:
            return math.inf
        return 0.0 if self._tree.is_producer else self._overlaps.shared(items, child) / items.share

    # Up

    def offered(self, peer: PeerRef) -> None:
        """The parent has room: send it a child."""
        tree, now = self._tree, self._tree.now()
        if tree.parent is None or tree.parent.id != peer.id or now - self._sent_up_at < OFFER_EVERY_S:
            return
        self._sent_up_at = now
        child = self._to_send_up()
        if child is not None:
            tree.send(child, MoveToGrandparent(tree.stream, peer))

    def _to_send_up(self) -> PeerRef | None:
        """The child that had better be one level higher.

        One that this node gets much for, which it is rid of then; else the one with the most children, if any has some.
        """
        best: tuple[bool, int, NodeId] | None = None
        peers = self._peers()
        for child in peers:
            is_unlike = self._settings.threshold < self._part_for(child) < math.inf
            worth = is_unlike, self._known[child].children, child
            if (is_unlike or worth[1]) and (best is None or worth > best):
                best = worth
        return None if best is None else peers[best[2]]

    def ordered_up(self, peer: PeerRef, to_parent: PeerRef) -> None:
        """The parent says that its own parent has room: go there."""
        tree = self._tree
        if tree.parent is None or tree.parent.id != peer.id:
            return
        if len(tree.path) >= 2 and tree.path[-2] == to_parent.id and tree.move_to(to_parent):
            self._going = _Going(peer, to_parent, is_up=True)

    # Down

    def offered_below(self, peer: PeerRef) -> None:
        """A child has room, and a child to send up. Where this node is full, send it one that has no children.

        Not below another leaf: the more nodes have children, the more get something in vain when interests change.
        """
        tree, now = self._tree, self._tree.now()
        if peer.id not in self._known or tree.has_room() or now - self._sent_down_at < OFFER_EVERY_S:
            return
        if not self._settings.reorganise or self._part_for(peer.id) > self._settings.threshold:
            return
        for child, ref in self._peers().items():
            if child != peer.id and not self._known[child].children and self._gets(peer.id, child):
                self._sent_down_at = now
                tree.send(ref, MoveToSibling(tree.stream, peer))
                return

    def _gets(self, child: NodeId, other: NodeId) -> bool:
        """Whether a child gets nearly all that another one needs."""
        sent = self._overlaps.received.sent_to(other)
        items = None if sent is None else self._overlaps.settled(sent, self._tree.now())
        if items is None or not items.items:
            return False
        return self._overlaps.missing_at(child, items) <= self._settings.threshold * items.share

    def ordered_down(self, peer: PeerRef, to_parent: PeerRef) -> None:
        """The parent says that another child of it has room: go there, without children."""
        tree = self._tree
        if tree.parent is not None and tree.parent.id == peer.id and not self._known and tree.move_to(to_parent):
            self._going = _Going(peer, to_parent, is_up=False)

    def move_ended(self, peer: PeerRef, is_done: bool) -> None:
        """A move is over: this one, perhaps."""
        going, self._going = self._going, None
        if going is None or not is_done or going.to_parent.id != peer.id:
            return
        stream, left, parent = map(format_id, (self._tree.stream, going.from_parent.id, peer.id))
        if going.is_up:
            self._tree.emit(MovedUp(stream=stream, from_parent=left, parent=parent, children=self.children))
        else:
            self._tree.emit(MovedDown(stream=stream, from_parent=left, parent=parent))
