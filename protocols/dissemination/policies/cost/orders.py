"""Carries out transformations: orders to the nodes that move, one after another, and what came of them. Pure.

The moves of a transformation have an order (a swap first frees the place that the second node takes). So the next node
is told when the one before has moved; if one cannot, the rest is left undone, and a later round sees the tree as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.models import AT_MS_MAX, PastMove
from protocols.dissemination.policies.cost.messages import OrderEnded, OrderToMove
from protocols.dissemination.policies.cost.transformations import Family, Transformation
from protocols.dissemination.policies.orders import GivenOrders
from protocols.dissemination.ports import TreeAccess

HISTORY_MAX: Final = 64
MEASURE_WINDOWS: Final = 1.5
"""What a change has brought is looked at after so many windows, when all figures are new, and before the next round."""
UNIT: Final = "items that are late, times their delay, a second"


@dataclass(eq=False, slots=True)
class OrderedChange:
    """A transformation that is under way, or was made."""

    transformation: Transformation
    parents: Mapping[NodeId, NodeId]
    """Of the nodes that move, before."""
    peers: Mapping[NodeId, PeerRef]
    touched: frozenset[NodeId]
    before: float
    predicted: float
    moved: int = 0
    ended_s: float | None = None
    ended_ms: int = 0
    """The same by the producer's clock, for people."""
    measured: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all moves were made."""
        return self.moved == len(self.transformation.moves)

    def past_move(self) -> PastMove:
        """For people."""
        move = self.transformation.moves[0]
        return PastMove(
            at_ms=min(self.ended_ms, AT_MS_MAX),
            what=self.transformation.kind.value,
            node=format_id(move.node),
            from_parent=format_id(self.parents[move.node]),
            to_parent=format_id(move.to),
            predicted=self.predicted,
            measured=self.measured,
            unit=UNIT,
        )


class Changes:
    """What a node has changed in its family, and changes: one transformation at a time, and of that one move."""

    def __init__(self, tree: TreeAccess, timeout_s: float, on_ended: Callable[[OrderedChange], None]) -> None:
        self._tree = tree
        self._timeout_s = timeout_s
        self._on_ended = on_ended
        self._given: GivenOrders[OrderedChange] = GivenOrders()
        self._past: deque[OrderedChange] = deque(maxlen=HISTORY_MAX)
        self.clock_ms = 0
        """When the newest item was published, milliseconds since 1970: no other clock shows the date here."""

    @property
    def is_busy(self) -> bool:
        """Whether one is under way."""
        return bool(self._given.open)

    def begin(
        self, transformation: Transformation, family: Family, peers: Mapping[NodeId, PeerRef], predicted: float
    ) -> None:
        """Begin a change."""
        touched = frozenset(family.touched(transformation))
        before = family.loss_of(touched)
        assert before is not None, "a transformation touches relatives only"
        parents = {move.node: family.old_parent(move.node) for move in transformation.moves}
        self._next(OrderedChange(transformation, parents, peers, touched, before, predicted))

    def _next(self, change: OrderedChange) -> None:
        move = change.transformation.moves[change.moved]
        number = self._given.give(move.node, change, self._tree.now() + self._timeout_s)
        self._tree.send(change.peers[move.node], OrderToMove(self._tree.stream, number, change.peers[move.to]))

    def reported(self, peer: PeerRef, message: OrderEnded) -> None:
        """A node says what came of an order."""
        change = self._given.ended(peer, message.order)
        if change is not None:
            change.moved += message.is_moved
            if message.is_moved and not change.is_complete:
                self._next(change)
            else:
                self._end(change)

    def tick(self) -> None:
        """Give up what takes too long."""
        for _, change in self._given.late(self._tree.now()):
            self._end(change)

    def _end(self, change: OrderedChange) -> None:
        change.ended_s, change.ended_ms = self._tree.now(), self.clock_ms
        if change.moved:
            self._past.append(change)
        self._on_ended(change)

    def to_measure(self, now: float, window_s: float) -> OrderedChange | None:
        """The last change, when it is old enough to see what it has brought."""
        change = self._past[-1] if self._past and not self.is_busy else None
        if change is None or change.measured is not None or not change.is_complete or change.ended_s is None:
            return None
        age_s = now - change.ended_s
        return change if MEASURE_WINDOWS * window_s <= age_s <= 4 * MEASURE_WINDOWS * window_s else None

    def history(self) -> list[PastMove]:
        """What was changed lately, oldest first."""
        return [change.past_move() for change in self._past]
