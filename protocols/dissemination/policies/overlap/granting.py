"""What a node does with requests to move nodes below it (CoDD sections 4 and 5.5): which, and where to. Pure.

In the paper the producer grants every move. Here the first node on a request's way up that has another branch which
would serve the mover grants it, as the mover and its new parent are both below that node; so a larger tree has more
granters. Requests are collected for a while; places for those with the greatest overhead are looked for by one sweep of
the subtree; moves that save enough are ordered. What has no better place there goes on up.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.models import PastMove, PlannedMove
from protocols.dissemination.policies.orders import GivenOrders
from protocols.dissemination.policies.overlap.events import ReorganisationDecided, ReorganisationMeasured
from protocols.dissemination.policies.overlap.item_bits import from_bits
from protocols.dissemination.policies.overlap.messages import (
    SOUGHT_MAX,
    FreePlace,
    MoveOrder,
    MoveOutcome,
    MoveReport,
    Reorganise,
)
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.policies.overlap.sweeping import Mover, Sweeper, Swept
from protocols.dissemination.ports import TreeAccess
from protocols.dissemination.statistics.received import ItemSet

BATCH_MAX: Final = 256
"""Requests that are collected; above it, the one with the least overhead is dropped."""
LOOKED_AT_MAX: Final = 2
"""So many requests of a batch are looked at for each move that may be ordered, at most: some find no better place."""
REQUESTERS_MAX: Final = 4096
"""Nodes of which a granter remembers when they asked last, and movers of which it remembers when they moved."""
HISTORY_MAX: Final = 256
MINUTE_S: Final = 60.0
ORDER_S: Final = 5.0
"""A move that has not been reported after so long is taken as not done."""
UNIT: Final = "items in vain for each item of the stream"


@dataclass(frozen=True, slots=True)
class _Request:
    message: Reorganise
    """With this node at the end of its path."""
    items: ItemSet
    limit: float
    """What a place must count for less than."""
    as_child: float | None
    """See `Mover`."""

    @property
    def child(self) -> PeerRef:
        return self.message.child

    @property
    def asker(self) -> NodeId:
        """The mover's parent, which asks."""
        return self.message.path[0]

    @property
    def branch(self) -> NodeId:
        """The child of this node that the mover is below, or is."""
        return self.message.path[-2] if len(self.message.path) > 1 else self.child.id

    @property
    def cost(self) -> float:
        """What the mover costs those below this node where it is now."""
        return _cost(self.message)


@dataclass(slots=True)
class _Ordered:
    request: _Request
    to: PeerRef
    gain: float
    cost: float
    """For the new parent alone."""
    nodes_asked: int


@dataclass(slots=True)
class _Done:
    """A move that was made. The two costs: of the mover for its old parent, had it stayed, and for its new one."""

    request: _Request
    to: NodeId
    past: PastMove
    cost_there: float | None = None
    cost_here: float | None = None


class Granter:
    """One node's part: it grants moves of nodes below it to places below it."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, overlaps: Overlaps) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self.sweeper = Sweeper(tree, settings, overlaps)
        self._asked: OrderedDict[NodeId, int] = OrderedDict()
        self._moved: OrderedDict[NodeId, int] = OrderedDict()
        self._batch: dict[NodeId, _Request] = {}
        self._batch_at = 0.0
        self._chosen: deque[_Request] = deque()
        self._grants = 0
        """Moves that may still be ordered of the batch that was chosen last."""
        self._looking: Sequence[_Request] = ()
        """Those that the sweep under way is for."""
        self._given: GivenOrders[_Ordered] = GivenOrders()
        self._sweeps = 0
        self._orders: deque[float] = deque()
        self._done: OrderedDict[int, _Done] = OrderedDict()
        self.clock_ms = 0
        """The newest item's time: the history's clock."""

    # Requests

    def takes(self, message: Reorganise) -> bool:
        """A node wants a child moved: whether this node sees to that, or else drops it; if not, it goes on up.

        ``message``: with this node at the end of its path. An asker's time-out is ``request_items`` items of the stream
        between two requests. The paper counts the items that the node has received. Those cannot be more than the
        stream has had.
        """
        if not self._settings.reorganise or not message.costs:
            return True
        request = self._request(message)
        best = self.sweeper.bound(request.items, request.branch)
        if request.as_child is not None and self._tree.room():
            best = min(best, request.as_child)
        if best >= request.limit:
            return self._tree.is_producer
        number, asker, mover = self._overlaps.received.watermark, request.asker, request.child.id
        for table, node in ((self._asked, asker), (self._moved, mover)):
            if node in table and 0 <= number - table[node] < self._settings.request_items:
                return True
        if not self._batch:
            self._batch_at = self._tree.now()
        self._batch[mover] = request
        if sum(each.asker == asker for each in self._batch.values()) >= self._settings.children:
            _remember(self._asked, asker, number)
        if len(self._batch) > BATCH_MAX:
            del self._batch[min(self._batch.values(), key=_by_cost).child.id]
        return True

    def _request(self, message: Reorganise) -> _Request:
        settings, items, levels = self._settings, from_bits(message.items), len(message.path) - 1
        limit = _cost(message) * (1 - settings.delta) + settings.level_gain * levels
        as_child = None
        if levels:
            shared = 0.0 if self._tree.is_producer else self._overlaps.shared(items)
            as_child = max(0.0, shared - message.costs[-1])
        return _Request(message, items, limit, as_child)

    def tick(self) -> list[Reorganise]:
        """Time passes. Returns what is to go on up, as the other methods do."""
        now, settings = self._tree.now(), self._settings
        passed_on = self._found(self.sweeper.tick())
        for number, ordered in self._given.late(now):
            self._decided(number, ordered, ordered.to.id, "silent")
        if self._batch and not self._looking and now - self._batch_at >= settings.batch_interval:
            best = sorted(self._batch.values(), key=_by_cost, reverse=True)
            self._chosen = deque(best[: settings.top * LOOKED_AT_MAX])
            self._grants = settings.top
            self._batch.clear()
        return passed_on + self._look()

    # Sweeps

    def _look(self) -> list[Reorganise]:
        """Look at the next requests, as long as more moves may be ordered."""
        passed_on: list[Reorganise] = []
        while not self._looking and self._chosen and self._may_order() > 0:
            self._looking = [self._chosen.popleft() for _ in range(min(SOUGHT_MAX, len(self._chosen)))]
            self._sweeps += 1
            movers = [Mover(r.message.items, r.items, r.limit, r.branch, r.as_child) for r in self._looking]
            passed_on += self._found(self.sweeper.begin(self._sweeps, movers))
        return passed_on

    def _may_order(self) -> int:
        now = self._tree.now()
        while self._orders and now - self._orders[0] >= MINUTE_S:
            self._orders.popleft()
        return min(self._grants, self._settings.moves_per_minute - len(self._orders))

    def swept(self, found: Sequence[Swept]) -> list[Reorganise]:
        """A sweep is over: order what moves it has found."""
        return self._found(found) + self._look()

    def _found(self, found: Sequence[Swept]) -> list[Reorganise]:
        passed_on: list[Reorganise] = []
        for each in found:
            looked, self._looking = self._looking, ()
            taken: dict[NodeId, int] = {}
            for request, places in zip(looked, each.places, strict=True):
                free = [place for place in places if self._is_of_use(request, place, taken)]
                if not free:
                    passed_on += self._without(request, each.nodes)
                elif self._may_order() > 0:
                    taken[free[0].peer.id] = taken.get(free[0].peer.id, 0) + 1
                    self._order(request, free, each.nodes)
            if self._may_order() <= 0:
                self._chosen.clear()
        return passed_on

    def _is_of_use(self, request: _Request, place: FreePlace, taken: dict[NodeId, int]) -> bool:
        going = {mover for mover, _, _ in self._given.open.values()}  # two must not go below each other
        is_elsewhere = place.peer.id not in going | {request.child.id, request.asker}
        return is_elsewhere and self.sweeper.score(place) < request.limit and taken.get(place.peer.id, 0) < place.room

    def _without(self, request: _Request, nodes_asked: int) -> list[Reorganise]:
        """There is no better place below this node."""
        if not self._tree.is_producer:
            return [request.message]
        self._emit(request, request.asker, "no_gain", 0.0, nodes_asked)
        return []

    def _order(self, request: _Request, places: Sequence[FreePlace], nodes_asked: int) -> None:
        now, best = self._tree.now(), places[0]
        self._grants -= 1
        self._orders.append(now)
        ordered = _Ordered(request, best.peer, request.cost - best.cost, best.shared, nodes_asked)
        number = self._given.give(request.child.id, ordered, now + ORDER_S)
        others = tuple(place.peer for place in places[1:])
        self._tree.send(request.child, MoveOrder(self._tree.stream, number, request.asker, best.peer, others))

    def reported(self, peer: PeerRef, message: MoveReport) -> None:
        """A mover has moved, or has not."""
        ordered = self._given.ended(peer, message.number)
        if ordered is not None:
            self._decided(message.number, ordered, message.to_parent, "moved" if message.is_done else "declined")

    def _decided(self, number: int, ordered: _Ordered, to: NodeId, outcome: str) -> None:
        request = ordered.request
        self._emit(request, to, outcome, ordered.gain, ordered.nodes_asked)
        if outcome == "moved":
            _remember(self._moved, request.child.id, self._overlaps.received.watermark)
            past = PastMove(
                at_ms=self.clock_ms,
                what="move",
                node=format_id(request.child.id),
                from_parent=format_id(request.asker),
                to_parent=format_id(to),
                predicted=request.message.shared - ordered.cost,
                measured=None,
                unit=UNIT,
            )
            self._done[number] = _Done(request, to, past)
            if len(self._done) > HISTORY_MAX:
                self._done.popitem(last=False)

    def _emit(self, request: _Request, to: NodeId, outcome: str, gain: float, nodes_asked: int) -> None:
        self._tree.emit(
            ReorganisationDecided(
                stream=format_id(self._tree.stream),
                child=format_id(request.child.id),
                parent=format_id(to),
                outcome=outcome,
                gain=gain,
                nodes_asked=nodes_asked,
                asker=format_id(request.asker),
            )
        )

    # What came of it

    def measured(self, node: NodeId, message: MoveOutcome) -> None:
        """The old or the new parent of a mover tells what it would cost it by now."""
        done = self._done.get(message.number)
        if done is None or done.past.measured is not None:
            return
        if node == done.request.asker:
            done.cost_there = message.cost
        elif node == done.to:
            done.cost_here = message.cost
        if done.cost_there is not None and done.cost_here is not None:
            measured = done.cost_there - done.cost_here
            done.past = done.past.model_copy(update={"measured": measured})
            stream, child = format_id(self._tree.stream), format_id(done.request.child.id)
            self._tree.emit(
                ReorganisationMeasured(stream=stream, child=child, predicted=done.past.predicted, measured=measured)
            )

    def plan(self) -> list[PlannedMove]:
        """What is ordered, is being looked at, or waits to be; best first."""
        found = [_planned(each.request, each.to, each.gain) for _, each, _ in self._given.open.values()]
        waiting = [*self._looking, *self._chosen, *sorted(self._batch.values(), key=_by_cost, reverse=True)]
        return found + [_planned(request, None, request.cost) for request in waiting]

    def history(self) -> list[PastMove]:
        """The moves of late, oldest first."""
        return [done.past for done in self._done.values()]


def _planned(request: _Request, to: PeerRef | None, gain: float) -> PlannedMove:
    return PlannedMove(
        what="move",
        node=format_id(request.child.id),
        from_parent=format_id(request.asker),
        to_parent=None if to is None else format_id(to.id),
        gain=gain,
        unit=UNIT,
    )


def _cost(message: Reorganise) -> float:
    """What the mover costs those below the end of its path: that one needs its items wherever below it they go."""
    if len(message.path) == 1:
        return max(0.0, message.shared - message.costs[0])
    return message.shared + sum(message.costs[1:-1])


def _by_cost(request: _Request) -> tuple[float, NodeId]:
    return request.cost, request.asker


def _remember(table: OrderedDict[NodeId, int], node: NodeId, number: int) -> None:
    table[node] = number
    table.move_to_end(node)
    if len(table) > REQUESTERS_MAX:
        table.popitem(last=False)
