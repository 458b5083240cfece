"""A node that is ordered to move: it does so, and tells both parents afterwards what it has needed. Pure."""

from __future__ import annotations

from functools import partial
from typing import Final

from peerd.messages import PeerRef
from protocols.dissemination.policies.orders import OrderedMove, TakenOrder
from protocols.dissemination.policies.overlap.item_bits import to_bits
from protocols.dissemination.policies.overlap.messages import MoveOrder, MoveOutcome, MoveReport
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreeAccess

OUTCOME_ITEMS: Final = 50
"""What came of a move is judged by so many items of the stream at least: fewer say next to nothing."""
ORDER_WAITS_S: Final = 2.0
"""A node that has let the check of somebody's move pass must stay for a while: so long an order waits for that."""


class OrderedMover:
    """One node's part as a mover. Orders count from nodes above it alone, and between two there are some items."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, overlaps: Overlaps, taken: TakenOrder) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self._taken = taken
        self._moved: tuple[PeerRef, MoveOrder, PeerRef] | None = None
        """Granter, order and parent before, until what came of it is told."""
        self._moved_at: int | None = None
        """The stream's newest item at the last move on order."""

    def ordered(self, peer: PeerRef, message: MoveOrder, *, is_busy: bool) -> None:
        """A node above this one says where to go. ``is_busy``: this node is looking for a parent itself."""
        tree, left = self._tree, self._tree.parent
        if left is None or peer.id not in tree.path:
            return  # the tree has changed, and the granter has still to hear of that
        since = None if self._moved_at is None else self._overlaps.received.watermark - self._moved_at
        is_early = since is not None and 0 <= since < self._settings.request_items
        ended = partial(self._ended, peer, message, left)
        if left.id != message.from_parent or is_busy or is_early:
            ended(None)
        else:
            places = message.to_parent, *message.others
            self._taken.obey(OrderedMove((peer.id, message.number), left, places, tree.now(), ended, ORDER_WAITS_S))

    def _ended(self, granter: PeerRef, order: MoveOrder, left: PeerRef, to: PeerRef | None) -> None:
        if to is not None:
            self._moved, self._moved_at = (granter, order, left), self._overlaps.received.watermark
        told = MoveReport(self._tree.stream, order.number, to is not None, (to or order.to_parent).id)
        self._tree.send(granter, told)

    def tick(self) -> None:
        """Some items after a move: tell its old parent and its new one what this node has needed since, to judge it."""
        moved, since, tree, received = self._moved, self._moved_at, self._tree, self._overlaps.received
        enough = max(OUTCOME_ITEMS, self._settings.request_items)
        if moved is None or since is None or tree.parent is None or 0 <= received.watermark - since < enough:
            return
        (granter, order, left), self._moved = moved, None
        items = received.needed().within(since, received.watermark)
        if not items.is_empty:
            told = MoveOutcome(tree.stream, order.number, tree.me.id, granter, to_bits(items))
            for peer in (left, tree.parent):
                tree.send(peer, told)
