"""A node that is ordered to move: it does so, and tells both parents afterwards what it has needed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from peerd.messages import PeerRef
from protocols.dissemination.policies.overlap.item_bits import to_bits
from protocols.dissemination.policies.overlap.messages import MoveOrder, MoveOutcome, MoveReport
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreeAccess

OUTCOME_ITEMS: Final = 50
"""What came of a move is judged by so many items of the stream at least: fewer say next to nothing."""
ORDER_WAITS_S: Final = 2.0
"""A node that has let the check of somebody's move pass must stay for a while: so long an order waits for that."""


@dataclass(slots=True)
class _Order:
    granter: PeerRef
    message: MoveOrder
    left: PeerRef
    at_s: float
    places: list[PeerRef] = field(default_factory=list)
    """Where it may go, next first."""
    moving_to: PeerRef | None = None


@dataclass(frozen=True, slots=True)
class _Moved:
    """A move that this node was ordered to make, and has made."""

    order: _Order
    number: int
    """The stream's newest item at that time."""


class OrderedMover:
    """One node's part as a mover. Orders count from nodes above it alone, and between two there are some items."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, overlaps: Overlaps) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self._order: _Order | None = None
        self._moved: _Moved | None = None
        self._moved_at: int | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an order is being carried out."""
        return self._order is not None

    def ordered(self, peer: PeerRef, message: MoveOrder, *, is_busy: bool) -> None:
        """A node above this one says where to go. ``is_busy``: this node is looking for a parent itself."""
        tree, left = self._tree, self._tree.parent
        if peer.id not in tree.path:
            return  # the tree has changed, and the granter has still to hear of that
        since = None if self._moved_at is None else self._overlaps.received.watermark - self._moved_at
        is_early = since is not None and 0 <= since < self._settings.request_items
        if left is None or left.id != message.from_parent or self._order is not None or is_busy or is_early:
            self._report(peer, message, is_done=False, to=message.to_parent)
            return
        self._order = _Order(peer, message, left, tree.now(), [message.to_parent, *message.others])
        self._go()

    def _go(self) -> None:
        """Begin to move, or wait until that may be."""
        order, parent = self._order, self._tree.parent
        if order is None or order.moving_to is not None:
            return
        if order.places and parent is not None and parent.id == order.left.id:
            if self._tree.move_to(order.places[0]):
                order.moving_to = order.places.pop(0)
                return
            if self._tree.now() - order.at_s < ORDER_WAITS_S:
                return
        self._order = None
        self._report(order.granter, order.message, is_done=False, to=order.message.to_parent)

    def move_ended(self, peer: PeerRef, is_done: bool) -> None:
        """A move is over: the one that was ordered, perhaps."""
        order = self._order
        if order is None or order.moving_to is None or order.moving_to.id != peer.id:
            return
        if not is_done:
            order.moving_to = None
            self._go()
            return
        self._order = None
        self._moved_at = self._overlaps.received.watermark
        self._moved = _Moved(order, self._moved_at)
        self._report(order.granter, order.message, is_done=True, to=peer)

    def tick(self) -> None:
        """Time passes."""
        self._go()
        self._tell_outcome()

    def _report(self, granter: PeerRef, order: MoveOrder, *, is_done: bool, to: PeerRef) -> None:
        self._tree.send(granter, MoveReport(self._tree.stream, order.number, is_done, to.id))

    def _tell_outcome(self) -> None:
        """Some items after a move: what this node has needed since, for its old parent and its new one to judge."""
        moved, tree, received = self._moved, self._tree, self._overlaps.received
        enough = max(OUTCOME_ITEMS, self._settings.request_items)
        if moved is None or tree.parent is None or 0 <= received.watermark - moved.number < enough:
            return
        self._moved = None
        items = received.needed().within(moved.number, received.watermark)
        if not items.is_empty:
            order = moved.order
            told = MoveOutcome(tree.stream, order.message.number, tree.me.id, order.granter, to_bits(items))
            for peer in (order.left, tree.parent):
                tree.send(peer, told)
