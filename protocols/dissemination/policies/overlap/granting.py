"""What the producer does with requests to move nodes (CoDD sections 4 and 5.5): which, where to, and what came of it.

Pure. Requests are collected for a while; the ones with the greatest overhead are looked at, one after the other, each
by a search of the tree; a move that saves enough is ordered.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.dissemination.models import PastMove, PlannedMove
from protocols.dissemination.policies.overlap.events import ReorganisationDecided, ReorganisationMeasured
from protocols.dissemination.policies.overlap.item_bits import from_bits
from protocols.dissemination.policies.overlap.messages import (
    ChildPlace,
    GetOverhead,
    MoveOrder,
    MoveOutcome,
    MoveReport,
    OverheadAnswer,
    Reorganise,
)
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.search import Search
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreeAccess
from protocols.dissemination.statistics.received import ItemSet

BATCH_MAX: Final = 256
"""Requests that are collected; above it, the one with the least overhead is dropped."""
LOOKED_AT_MAX: Final = 2
"""So many requests of a batch are looked at for each move that may be ordered, at most: some find no better place."""
REQUESTERS_MAX: Final = 4096
"""Nodes of which the producer remembers when they asked last, and movers of which it remembers when they moved."""
HISTORY_MAX: Final = 256
MINUTE_S: Final = 60.0
ORDER_S: Final = 5.0
"""A move that has not been reported after so long is taken as not done."""
UNIT: Final = "items in vain for each item of the stream"


@dataclass(frozen=True, slots=True)
class _Request:
    message: Reorganise
    items: ItemSet

    @property
    def child(self) -> PeerRef:
        return self.message.child

    @property
    def asker(self) -> NodeId:
        """The mover's parent, which asks."""
        return self.message.path[0]

    @property
    def cost(self) -> float:
        """What the mover costs those above it where it is now."""
        return self.message.shared + sum(self.message.costs[1:])


@dataclass(slots=True)
class _Looking:
    """The search that is under way."""

    request: _Request
    number: int
    search: Search
    asked_at: float


@dataclass(slots=True)
class _Ordered:
    request: _Request
    to: PeerRef
    gain: float
    cost: float
    """For the new parent alone."""
    nodes_asked: int
    at_s: float


@dataclass(slots=True)
class _Done:
    """A move that was made. The two costs: of the mover for its old parent, had it stayed, and for its new one."""

    request: _Request
    to: PeerRef
    past: PastMove
    cost_there: float | None = None
    cost_here: float | None = None


class Granter:
    """The producer's part. ``clock_ms``: the wall clock for the history, milliseconds since 1970."""

    def __init__(
        self,
        tree: TreeAccess,
        settings: OverlapSettings,
        overlaps: Overlaps,
        places: Callable[[ItemSet], Sequence[ChildPlace]],
    ) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self._places = places
        """What a set of items would cost each child of this node."""
        self._asked: OrderedDict[NodeId, int] = OrderedDict()
        self._moved: OrderedDict[NodeId, int] = OrderedDict()
        self._batch: dict[NodeId, _Request] = {}
        self._batch_at = 0.0
        self._chosen: deque[_Request] = deque()
        self._grants = 0
        """Moves that may still be ordered of the batch that was chosen last."""
        self._looking: _Looking | None = None
        self._ordered: dict[int, _Ordered] = {}
        self._number = 0
        self._orders: deque[float] = deque()
        self._done: OrderedDict[int, _Done] = OrderedDict()
        self.clock_ms = 0
        """The newest item's time: the history's clock."""

    # Requests

    def requested(self, message: Reorganise) -> None:
        """A node wants a child moved. Its time-out: ``request_items`` items of the stream between two requests.

        The paper counts the items that the node has received. Those cannot be more than the stream has had.
        """
        request = _Request(message, from_bits(message.items))
        number, asker = self._overlaps.received.through, request.asker
        if not self._settings.reorganise or not request.items.items or not message.costs:
            return
        mover = request.child.id
        for table, node in ((self._asked, asker), (self._moved, mover)):
            if node in table and 0 <= number - table[node] < self._settings.request_items:
                return
        if not self._batch:
            self._batch_at = self._tree.now()
        self._batch[mover] = request
        if sum(each.asker == asker for each in self._batch.values()) >= self._settings.children:
            _remember(self._asked, asker, number)
        if len(self._batch) > BATCH_MAX:
            del self._batch[min(self._batch.values(), key=_by_cost).child.id]

    def tick(self) -> None:
        """Time passes."""
        now, settings = self._tree.now(), self._settings
        if self._looking is not None and now - self._looking.asked_at >= settings.answer_timeout:
            self._ask(self._looking, self._looking.search.no_answer())
        for number, ordered in list(self._ordered.items()):
            if now - ordered.at_s >= ORDER_S:
                self._decided(number, "silent")
        if self._batch and now - self._batch_at >= settings.batch_interval:
            best = sorted(self._batch.values(), key=_by_cost, reverse=True)
            self._chosen = deque(best[: settings.top * LOOKED_AT_MAX])
            self._grants = settings.top
            self._batch.clear()
        self._look()

    # Searches

    def _look(self) -> None:
        """Look at the next request, as long as more moves may be ordered."""
        now = self._tree.now()
        while self._orders and now - self._orders[0] >= MINUTE_S:
            self._orders.popleft()
        while self._looking is None and self._chosen and len(self._orders) < self._settings.moves_per_minute:
            request = self._chosen.popleft()
            self._number += 1
            on_path = dict(zip(request.message.path, request.message.costs, strict=True))
            limit = request.cost * (1 - self._settings.delta)
            search = Search(request.child.id, request.asker, on_path, limit, self._settings.pruning)
            self._looking = _Looking(request, self._number, search, now)
            me = self._tree.me
            self._ask(self._looking, search.begin(me, self._tree.has_room(), self._places(request.items)))

    def _ask(self, looking: _Looking, peers: Sequence[PeerRef]) -> None:
        looking.asked_at = self._tree.now()
        message = GetOverhead(self._tree.stream, looking.number, looking.request.message.items)
        for peer in peers:
            self._tree.send(peer, message)
        if looking.search.is_over and self._looking is looking:
            self._looking = None
            self._order(looking)

    def answered(self, peer: PeerRef, message: OverheadAnswer) -> None:
        """A node says what the mover would cost it."""
        looking = self._looking
        if looking is None or message.search != looking.number:
            return
        self._ask_more(
            looking,
            looking.search.answered(peer.id, message.missing, message.shared, message.has_room, message.children),
        )
        if self._looking is None:
            self._look()

    def _ask_more(self, looking: _Looking, peers: Sequence[PeerRef]) -> None:
        if peers or looking.search.is_over:
            self._ask(looking, peers)

    def _order(self, looking: _Looking) -> None:
        request, best = looking.request, looking.search.best
        if best is None:
            self._emit(request, request.asker, "no_gain", 0.0, looking.search.asked)
            return
        now = self._tree.now()
        self._grants -= 1
        if not self._grants:
            self._chosen.clear()
        self._orders.append(now)
        gain = request.cost - best.cost
        self._ordered[looking.number] = _Ordered(request, best.peer, gain, best.shared, looking.search.asked, now)
        order = MoveOrder(self._tree.stream, looking.number, request.asker, best.peer)
        self._tree.send(request.child, order)

    def reported(self, peer: PeerRef, message: MoveReport) -> None:
        """A mover has moved, or has not."""
        ordered = self._ordered.get(message.number)
        if ordered is not None and ordered.request.child.id == peer.id:
            self._decided(message.number, "moved" if message.is_done else "declined")

    def _decided(self, number: int, outcome: str) -> None:
        ordered = self._ordered.pop(number)
        request = ordered.request
        self._emit(request, ordered.to.id, outcome, ordered.gain, ordered.nodes_asked)
        if outcome == "moved":
            _remember(self._moved, request.child.id, self._overlaps.received.through)
            past = PastMove(
                at_ms=self.clock_ms,
                what="move",
                node=format_id(request.child.id),
                from_parent=format_id(request.asker),
                to_parent=format_id(ordered.to.id),
                predicted=request.message.shared - ordered.cost,
                measured=None,
                unit=UNIT,
            )
            self._done[number] = _Done(request, ordered.to, past)
            if len(self._done) > HISTORY_MAX:
                self._done.popitem(last=False)

    def _emit(self, request: _Request, to: NodeId, outcome: str, gain: float, nodes_asked: int) -> None:
        stream, child, parent = format_id(self._tree.stream), format_id(request.child.id), format_id(to)
        self._tree.emit(
            ReorganisationDecided(
                stream=stream, child=child, parent=parent, outcome=outcome, gain=gain, nodes_asked=nodes_asked
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
        elif node == done.to.id:
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
        found = [_planned(each.request, each.to, each.gain) for each in self._ordered.values()]
        looking = self._looking
        if looking is not None:
            best = looking.search.best
            gain = looking.request.message.costs[0] if best is None else looking.request.cost - best.cost
            found.append(_planned(looking.request, None if best is None else best.peer, gain))
        waiting = [*self._chosen, *sorted(self._batch.values(), key=_by_cost, reverse=True)]
        return found + [_planned(request, None, request.message.costs[0]) for request in waiting]

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


def _by_cost(request: _Request) -> tuple[float, NodeId]:
    return request.cost, request.asker


def _remember(table: OrderedDict[NodeId, int], node: NodeId, number: int) -> None:
    table[node] = number
    table.move_to_end(node)
    if len(table) > REQUESTERS_MAX:
        table.popitem(last=False)
