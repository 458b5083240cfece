"""Carries out transformations: orders to the nodes that move, one after another, and what came of them. Pure.

The moves of a transformation have an order (a swap first frees the place that the second node takes). So the next node
is told when the one before has moved; if one cannot, the rest is left undone, and a later round sees the tree as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.models import AT_MS_MAX, PastMove
from protocols.dissemination.policies.cost.transformations import Family, Transformation

HISTORY_MAX: Final = 64
MEASURE_WINDOWS: Final = 1.5
"""What a change has brought is looked at after so many windows, when all figures are new, and before the next round."""
UNIT: Final = "items that are late, times their delay, a second"
ORDERS_MAX: Final = 1 << 32


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
    order: int
    deadline_s: float
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


class _MyOrder(NamedTuple):
    """An order that this node has got, and carries out."""

    giver: PeerRef
    number: int
    to: NodeId


@dataclass(slots=True)
class Orders:
    """What a node has ordered, and what it was ordered to do."""

    give: Callable[[PeerRef, int, PeerRef], None]
    """Tell a node, by the number of the order, to get a parent."""
    on_ended: Callable[[OrderedChange], None]
    current: OrderedChange | None = None
    mine: _MyOrder | None = None
    past: deque[OrderedChange] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))
    clock_ms: int = 0
    """When the newest item was published, milliseconds since 1970: there is no other clock that shows the date here."""
    _number: int = 0

    def begin(
        self,
        transformation: Transformation,
        family: Family,
        peers: Mapping[NodeId, PeerRef],
        predicted: float,
        deadline_s: float,
    ) -> None:
        """Begin a change."""
        touched = frozenset(family.touched(transformation))
        before = family.loss_of(touched)
        assert before is not None, "a transformation touches relatives only"
        parents = {move.node: family.old_parent(move.node) for move in transformation.moves}
        self._number = (self._number + 1) % ORDERS_MAX
        self.current = OrderedChange(
            transformation, parents, peers, touched, before, predicted, self._number, deadline_s
        )
        self._next(self.current)

    def _next(self, change: OrderedChange) -> None:
        move = change.transformation.moves[change.moved]
        self.give(change.peers[move.node], change.order, change.peers[move.to])

    def ended(self, peer: PeerRef, order: int, *, is_moved: bool, now: float, timeout_s: float) -> None:
        """A node says what came of an order."""
        change = self.current
        if change is None or change.order != order or change.transformation.moves[change.moved].node != peer.id:
            return
        if not is_moved:
            self._end(now)
            return
        change.moved += 1
        if change.is_complete:
            self._end(now)
        else:
            change.deadline_s = now + timeout_s
            self._next(change)

    def tick(self, now: float) -> None:
        """Give up what takes too long."""
        if self.current is not None and now >= self.current.deadline_s:
            self._end(now)

    def _end(self, now: float) -> None:
        change, self.current = self.current, None
        assert change is not None
        change.ended_s, change.ended_ms = now, self.clock_ms
        if change.moved:
            self.past.append(change)
        self.on_ended(change)

    def to_measure(self, now: float, window_s: float) -> OrderedChange | None:
        """The last change, when it is old enough to see what it has brought."""
        change = self.past[-1] if self.past and self.current is None else None
        if change is None or change.measured is not None or not change.is_complete or change.ended_s is None:
            return None
        age_s = now - change.ended_s
        return change if MEASURE_WINDOWS * window_s <= age_s <= 4 * MEASURE_WINDOWS * window_s else None

    def history(self) -> list[PastMove]:
        """What was changed lately, oldest first."""
        return [change.past_move() for change in self.past]

    # Being ordered

    def obey(self, giver: PeerRef, number: int, to: NodeId) -> None:
        """This node moves on somebody's order."""
        self.mine = _MyOrder(giver, number, to)

    def obeyed(self, to: NodeId) -> _MyOrder | None:
        """A move is over: the order that it was for."""
        mine = self.mine
        if mine is None or mine.to != to:
            return None
        self.mine = None
        return mine
