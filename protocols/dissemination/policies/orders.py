"""Orders to move, of all policies: what came of those that a node has given, and how it obeys one that it got. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.ports import TreeAccess

What = TypeVar("What")
"""What a policy knows of an order that it has given."""


class GivenOrders(Generic[What]):
    """Orders whose end this node has still to hear of, by their numbers, oldest first."""

    def __init__(self) -> None:
        self._number = 0
        self.open: dict[int, tuple[NodeId, What, float]] = {}
        """Who was ordered, and until when its report is waited for."""

    def give(self, mover: NodeId, what: What, until_s: float) -> int:
        """The number of a new order."""
        self._number += 1
        self.open[self._number] = mover, what, until_s
        return self._number

    def ended(self, peer: PeerRef, number: int) -> What | None:
        """A node says what came of an order. ``None``: it has no such order, or that is over."""
        return self.open.pop(number)[1] if number in self.open and self.open[number][0] == peer.id else None

    def late(self, now: float) -> list[tuple[int, What]]:
        """Those that nobody has reported in time, which are over, too."""
        late = [number for number, (_, _, until_s) in self.open.items() if now >= until_s]
        return [(number, self.open.pop(number)[1]) for number in late]


@dataclass(frozen=True, slots=True)
class OrderedMove:
    """A node above says: leave your parent, ``left``, for one of ``places``, the first that takes you.

    ``name``: who has given it, and its number there. ``on_end(to)``: it was obeyed, or (``None``) was not. ``waits_s``:
    so long it may wait until this node may move at all.
    """

    name: tuple[NodeId, int]
    left: PeerRef
    places: Sequence[PeerRef]
    at_s: float
    on_end: Callable[[PeerRef | None], None]
    waits_s: float = 0.0


class TakenOrder:
    """The order that this node obeys: one at a time, and only as long as it has the parent that it is to leave."""

    def __init__(self, tree: TreeAccess) -> None:
        self._tree = tree
        self._order: OrderedMove | None = None
        self._places: list[PeerRef] = []
        self._moving_to: PeerRef | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is one."""
        return self._order is not None

    def obey(self, order: OrderedMove) -> None:
        """Begin, unless there is one already. Nothing is said of the same one: the network repeats messages."""
        if self._order is None:
            self._order, self._places, self._moving_to = order, list(order.places), None
            self.tick()
        elif self._order.name != order.name:
            order.on_end(None)

    def tick(self) -> None:
        """Begin to move, or wait until that may be."""
        order, parent = self._order, self._tree.parent
        if order is None or self._moving_to is not None:
            return
        if self._places and parent is not None and parent.id == order.left.id:
            if self._tree.move_to(self._places[0]):
                self._moving_to = self._places.pop(0)
                return
            if self._tree.now() - order.at_s < order.waits_s:
                return
        self._order = None
        order.on_end(None)

    def ended(self, peer: PeerRef, *, is_moved: bool) -> None:
        """A move is over: the one that was ordered, perhaps."""
        order, to = self._order, self._moving_to
        if order is None or to is None or to.id != peer.id:
            return
        self._moving_to = None
        if is_moved:
            self._order = None
            order.on_end(peer)
        else:
            self.tick()
