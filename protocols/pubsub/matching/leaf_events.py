"""An event at a leaf of this node: match it, once; have it held; acknowledge it; deliver it.

An acknowledgement (`EventAck`) says that the event has visited the leaf and, where the publisher asked for copies, that
so many other nodes hold it. An event that nobody's subscription matches, or that all subscribers' nodes have taken,
needs no copies: nothing of it can be lost any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from peerd.api import HistorySize, Host
from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from peerd.messages import PeerRef
from protocols.pubsub.bodies import event_bytes, id_of, is_proven
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.delivering.copies import Copies, Places, as_trees
from protocols.pubsub.delivering.deliverer import Deliverer
from protocols.pubsub.delivering.history import EventHistory
from protocols.pubsub.delivering.holding import Holding
from protocols.pubsub.delivering.items import items_for
from protocols.pubsub.delivering.replay import Replays
from protocols.pubsub.messages import EVENTS_BYTES_MAX, EventAck, EventBody, SubObject
from protocols.pubsub.names import EventId, Tree
from protocols.pubsub.ports import LeafCells, Schemas, SchemaView, Values
from protocols.pubsub.tree import cells as space

VISITS_KEPT: Final = 32_768
"""So many events are remembered with the leaves that they have visited: a repeated probe is not matched again."""
VISIT_S: Final = 600.0
"""An event whose deliveries are over is forgotten after so long: its publisher has given up trying long before."""
VISIT_BYTES: Final = 1000
"""What one event of these takes, with four leaves, measured."""
COPIES_MAX: Final = 255
FORGED: Final = "the proof of the publisher is not valid"
FORGED_RETRY_MS: Final = 500
TOO_LARGE: Final = "the event is too large to be delivered"


@dataclass(slots=True)
class _Leaf:
    """One visit of a leaf. ``copies``: so many nodes hold the event for it; ``None``: nobody was asked, or not yet
    answered."""

    pieces: int = 0
    copies: int | None = None
    is_asking: bool = False


@dataclass(slots=True)
class _Visit:
    """An event, and the leaves of this node that it has visited. ``pending``: how many items of it are."""

    schema: str
    at_s: float
    leaves: dict[tuple[int, int], _Leaf] = field(default_factory=dict)
    pending: int = 0

    def find(self, place: tuple[int, int]) -> _Leaf | None:
        """The visit of a leaf, or of the one that it was split or moved from."""
        if found := self.leaves.get(place):
            return found
        attribute, cell = place
        return next(
            (leaf for (of, seen), leaf in self.leaves.items() if of == attribute and space.lies_within(cell, seen)),
            None,
        )


_Refusals: TypeAlias = dict[tuple[int, Places, str], list[int]]
"""Numbers of events that cannot be matched, by boot of the publisher, leaves, and why."""


class _Call(Frozen):
    """What one `LeafEvents.arrived` has to answer."""

    schema: SchemaView
    publisher: PeerRef
    copies: int
    now: float
    wall_s: float
    work: dict[tuple[int, int], tuple[int, int, int]]
    """For each leaf, how many filters its events have met, to how many other nodes they go, and how much that is."""


class LeafBroker:
    """Implements `protocols.pubsub.ports.LeafEvents`.

    ``tree_listeners`` are told of every change of the tree: the plugin enters whoever has parked events.
    """

    def __init__(
        self,
        host: Host,
        config: PubSubConfig,
        schemas: Schemas,
        leaves: LeafCells,
        deliverer: Deliverer,
        history: EventHistory,
        replays: Replays,
        answer: Callable[[PeerRef, EventAck], None],
    ) -> None:
        """``answer`` tells a publisher about its events."""
        self._host, self._leaves, self._ledger, self._deliverer = host, leaves, deliverer.ledger, deliverer
        self._history, self._replays, self._answer = history, replays, answer
        self.copies = Copies(host)
        self.holding = Holding(host, config, schemas, leaves, self._deliver_held)
        self.tree_listeners: list[Callable[[Tree, int], None]] = [self.holding.tree_changed]
        self._visits: OrderedDict[EventId, _Visit] = OrderedDict()
        deliverer.pending_changed = self._pending_changed

    # `LeafEvents`

    def arrived(
        self,
        schema: SchemaView,
        publisher: PeerRef,
        events: Sequence[EventBody],
        cells: Sequence[tuple[int, int]],
        copies: int,
        attempt: int,
    ) -> None:
        """See `protocols.pubsub.ports.LeafEvents`. Events of another publisher than the one named are ignored."""
        call = self._call(schema, publisher, min(copies, COPIES_MAX))
        own = [(id_of(event), event) for event in events if event.publisher.id == publisher.id]
        for attribute, cell in cells:
            self._leaves.note_events(Tree(schema.name, attribute), cell, len(own))
        refusals: _Refusals = {}
        valid = [each for each in own if self._visit(call, *each, cells, refusals)]
        self._refuse(call, refusals)
        self._end(call)
        self._secure(call, valid, cells)

    def had(self, events: Sequence[EventBody], cell: tuple[int, int]) -> bool:
        """See `protocols.pubsub.ports.LeafEvents`."""
        visits = (self._visits.get(id_of(event)) for event in events)  # mostly the first one has not come before
        return all(visit is not None and cell in visit.leaves for visit in visits)

    def has_had(self, event: EventId, cell: tuple[int, int]) -> bool:
        """See `protocols.pubsub.ports.LeafEvents`."""
        visit = self._visits.get(event)
        return visit is not None and visit.find(cell) is not None

    def matched_in(self, event: EventId) -> list[tuple[Tree, int]]:
        """The leaves of this node that an event has visited and matched a subscription in, as far as it remembers."""
        visit = self._visits.get(event)
        if visit is None:
            return []
        places = [place for place, leaf in visit.leaves.items() if leaf.pieces]
        return [(Tree(visit.schema, attribute), cell) for attribute, cell in places]

    def installed(self, tree: Tree, cell: int, sub: SubObject) -> None:
        """See `protocols.pubsub.ports.LeafEvents`."""
        if sub.since_ms and not sub.group:
            self._replays.add(tree, cell, sub)

    def tree_changed(self, tree: Tree, cell: int) -> None:
        """See `protocols.pubsub.ports.LeafEvents`."""
        for listener in self.tree_listeners:
            listener(tree, cell)

    # Matching

    def _call(self, schema: SchemaView, publisher: PeerRef, copies: int) -> _Call:
        return _Call(schema, publisher, copies, self._host.now(), self._host.wall_time(), {})

    def _end(self, call: _Call) -> None:
        """All events of a call are matched."""
        for (attribute, cell), work in call.work.items():
            self._leaves.note_deliveries(Tree(call.schema.name, attribute), cell, *work)
        self._deliverer.flush()

    def _visit(
        self,
        call: _Call,
        event_id: EventId,
        event: EventBody,
        cells: Sequence[tuple[int, int]],
        refusals: _Refusals | None = None,
    ) -> bool:
        """Match an event in the leaves that it has not visited yet; whether it can be, else it is among refusals."""
        visit, fresh = self._visits.get(event_id), cells
        if visit is not None:
            fresh = [place for place in cells if visit.find(place) is None]
            if not fresh:
                return True
        size = event_bytes(event)
        values, why_not = self._values(call.schema, event, size)
        if values is None:
            if refusals is not None:
                refusals.setdefault((event.epoch, tuple(fresh), why_not), []).append(event.sequence)
            return False
        if visit is None:
            visit = self._visits[event_id] = _Visit(call.schema.name, call.now)
            self._forget_old(call.now)
        for place in fresh:
            visit.leaves[place] = _Leaf()
        self._history.add(call.schema.name, event_id, event, size, call.now, call.wall_s)
        self._match(call, event_id, event, size, fresh, values, visit)
        return True

    def _forget_old(self, now: float) -> None:
        while self._visits:
            oldest = next(iter(self._visits.values()))
            if len(self._visits) <= VISITS_KEPT and (oldest.pending or now - oldest.at_s <= VISIT_S):
                return
            self._visits.popitem(last=False)

    def history(self) -> HistorySize:
        """What is remembered of events that have visited leaves here."""
        count = len(self._visits)
        return HistorySize("events in leaves", count, count * VISIT_BYTES, VISITS_KEPT * VISIT_BYTES)

    def _values(self, schema: SchemaView, event: EventBody, size: int) -> tuple[Values | None, str]:
        if size > EVENTS_BYTES_MAX:
            return None, TOO_LARGE
        if not is_proven(self._host, schema, event):
            return None, FORGED
        try:
            return schema.decode_values(event.values), ""
        except ProtocolError as error:
            return None, str(error)[:256]

    def _match(
        self,
        call: _Call,
        event_id: EventId,
        event: EventBody,
        size: int,
        cells: Sequence[tuple[int, int]],
        values: Values,
        visit: _Visit,
    ) -> None:
        schema = call.schema
        pieces = self._leaves.match(schema, cells, values)
        if not pieces:
            self._ledger.matched(event_id, 0, 0)
            return
        receivers: dict[tuple[int, int], set[object]] = {}
        for piece in pieces:
            place = _leaf_of(piece, cells)
            visit.leaves[place].pieces += 1
            found = receivers.setdefault(place, set())
            if piece.subscriber.id != self._host.id:
                found.add((piece.group, piece.filter) if piece.group else piece.subscriber)
        for place, found in receivers.items():
            filters, copies, sent = call.work.get(place, (0, 0, 0))
            count = visit.leaves[place].pieces, len(found)
            call.work[place] = filters + count[0], copies + count[1], sent + count[1] * size
        items = items_for(schema, event_id, event, pieces, self._deliverer.is_silent)
        self._ledger.matched(event_id, len(pieces), len(items))
        self._deliverer.deliver(items)

    def _deliver_held(self, schema: SchemaView, event: EventBody, cells: Sequence[tuple[int, int]]) -> None:
        """This node has become the root of leaves that a dead root may not have delivered the event for."""
        call = self._call(schema, self._host.peer, 0)
        self._visit(call, id_of(event), event, cells)
        self._end(call)

    def _pending_changed(self, event_id: EventId, change: int) -> None:
        visit = self._visits.get(event_id)
        if visit is not None:
            visit.pending += change
            self._release_if_over(event_id, visit)

    def _release_if_over(self, event_id: EventId, visit: _Visit) -> None:
        if not visit.pending and not any(leaf.is_asking for leaf in visit.leaves.values()):
            self.copies.release(visit.schema, event_id)

    # Acknowledging

    def _secure(
        self, call: _Call, events: Iterable[tuple[EventId, EventBody]], cells: Sequence[tuple[int, int]]
    ) -> None:
        """Have held what may still be lost, and acknowledge the rest at once."""
        ready: dict[tuple[Places, int], list[EventId]] = {}
        at_risk: dict[Places, list[EventBody]] = {}
        safe: list[EventId] = []
        for event_id, event in events:
            visit = self._visits.get(event_id)
            if visit is None or not visit.pending or not call.copies:
                safe.append(event_id)
                continue
            by_copies, to_ask = self._sort(visit, cells)
            for copies, visited in by_copies.items():
                ready.setdefault((tuple(visited), copies), []).append(event_id)
            if to_ask:
                at_risk.setdefault(tuple(to_ask), []).append(event)
        if safe:
            self._acknowledge(call, safe, tuple(cells), call.copies)
        for (done, copies), ids in ready.items():
            self._acknowledge(call, ids, done, copies)
        for places, found in at_risk.items():
            self._hold(call, found, places)

    @staticmethod
    def _sort(
        visit: _Visit, cells: Sequence[tuple[int, int]]
    ) -> tuple[dict[int, list[tuple[int, int]]], list[tuple[int, int]]]:
        """Leaves that a pending event may be acknowledged for now, by copies, and those that copies are made for."""
        ready: dict[int, list[tuple[int, int]]] = {}
        to_ask = []
        for place in cells:
            leaf = visit.find(place)
            assert leaf is not None
            if leaf.copies is not None:
                ready.setdefault(leaf.copies, []).append(place)
            elif not leaf.is_asking:
                leaf.is_asking = True
                to_ask.append(place)
        return ready, to_ask

    def _hold(self, call: _Call, events: Sequence[EventBody], places: Places) -> None:
        ids = list(map(id_of, events))

        def on_done(done: Places, held: int) -> None:
            for event_id in ids:
                visit = self._visits.get(event_id)
                for leaf in () if visit is None else filter(None, map(visit.find, done)):
                    leaf.is_asking, leaf.copies = False, held
                if visit is not None:
                    self._release_if_over(event_id, visit)
            self._acknowledge(call, ids, done, held)

        self.copies.hold(call.schema.name, events, places, call.copies, on_done)

    def _acknowledge(self, call: _Call, events: Iterable[EventId], places: Places, copies: int) -> None:
        by_epoch: dict[int, list[EventId]] = {}
        for event_id in events:
            by_epoch.setdefault(event_id.epoch, []).append(event_id)
        for epoch, found in by_epoch.items():
            matched = tuple(self._pieces(event_id, places) for event_id in found)
            sequences = tuple(event_id.sequence for event_id in found)
            ack = EventAck(call.schema.name, epoch, sequences, as_trees(places), matched, copies)
            self._answer(call.publisher, ack)

    def _pieces(self, event_id: EventId, places: Places) -> int:
        visit = self._visits.get(event_id)
        return 0 if visit is None else sum(leaf.pieces for place in places if (leaf := visit.find(place)))

    def _refuse(self, call: _Call, refusals: _Refusals) -> None:
        """Tell the publisher what cannot be matched: events with the same fault in one message."""
        for (epoch, places, why_not), sequences in refusals.items():
            # Somebody else may have sent a forged event: then the true one has only to come again.
            retry_ms = FORGED_RETRY_MS if why_not == FORGED else 0
            ack = EventAck(call.schema.name, epoch, tuple(sequences), as_trees(places), (), 0, why_not, retry_ms)
            self._answer(call.publisher, ack)


def _leaf_of(piece: SubObject, cells: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """In which of these leaves a piece is."""
    for attribute, cell in cells[:-1]:
        if piece.attribute == attribute and space.holds_point(cell, piece.low, piece.high):
            return attribute, cell
    return cells[-1]
