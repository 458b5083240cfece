"""The search for better places (CoDD figure 7): one question for a batch of movers goes down from a granter. Pure.

The overhead of a place is what the move would add *to the system* (section 4): a node below p gets its items through p
and all nodes between p and the granter, so it is the sum of ``|docs(n) minus docs(a)|`` over those. That sum only grows
on the way down; so a node passes on a mover to those children only below which there could be a place of use.

Each node answers its parent when those that it has asked have, with the best of what it has found: a sweep takes one
round trip for each level, and two messages for each node that is asked, however many movers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from peerd.ids import NodeId
from peerd.lib.admission import Admission
from peerd.messages import PeerRef
from protocols.dissemination.messages import DEPTH_MAX
from protocols.dissemination.policies.overlap.item_bits import from_bits
from protocols.dissemination.policies.overlap.messages import (
    PLACES_MAX,
    SOUGHT_BYTES_MAX,
    SOUGHT_MAX,
    FreePlace,
    GetOverhead,
    ItemBits,
    OverheadAnswer,
    Sought,
)
from protocols.dissemination.policies.overlap.overlaps import Overlaps
from protocols.dissemination.policies.overlap.settings import OverlapSettings
from protocols.dissemination.ports import TreeAccess
from protocols.dissemination.statistics.received import ItemSet

WIDTH: Final = 3
"""A mover is passed on to so many children at most, those that it costs least."""
SWEEPS_MAX: Final = 64
"""Sweeps that a node takes part in at a time; of more, it answers the oldest with what it has."""
SWEEPS_A_SECOND: Final = 20
"""Sweeps that a node takes from a parent in the long run. It has some ancestors, each with a sweep at a time."""
PARENTS_MAX: Final = 4
LEVEL_S: Final = 0.25
"""A node waits by so much less for those below it than its parent waits for it, so that its answer is in time."""
ROOM_MAX: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Mover:
    """What a granter looks for. ``branch``: the child that it is below now, where there is nothing better."""

    bits: ItemBits
    items: ItemSet
    limit: float
    branch: NodeId
    as_child: float | None
    """What it would cost the granter besides, as its own child; ``None``: it is that now."""


@dataclass(slots=True)
class _Sweep:
    asker: PeerRef | None
    """``None``: this node itself, as the granter."""
    number: int
    """The asker's."""
    ends_at: float
    places: list[list[FreePlace]]
    waiting: dict[NodeId, list[int]] = field(default_factory=dict)
    """For each child that was asked the movers, by their place in the list."""
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Swept:
    """The result of a granter's sweep: for each mover the best places, best first."""

    number: int
    places: Sequence[Sequence[FreePlace]]
    nodes: int


class Sweeper:
    """One node's part in sweeps: its own, as a granter, and those that come by."""

    def __init__(self, tree: TreeAccess, settings: OverlapSettings, overlaps: Overlaps) -> None:
        self._tree = tree
        self._settings = settings
        self._overlaps = overlaps
        self._sweeps: dict[int, _Sweep] = {}
        self._number = 0
        self._admission: Admission[NodeId] = Admission(SWEEPS_A_SECOND, SWEEPS_MAX, keys_max=PARENTS_MAX)

    def score(self, place: FreePlace) -> float:
        """What a place counts for: a level is worth some items in vain."""
        return place.cost + self._settings.level_gain * place.depth

    # The granter's

    def begin(self, number: int, movers: Sequence[Mover]) -> list[Swept]:
        """Look for places below this node. What is known at once comes back, the rest from `answered` and `tick`."""
        sweep = self._add(None, number, 0, len(movers))
        room = self._room()
        asks: dict[NodeId, list[tuple[int, Sought]]] = {}
        for at, mover in enumerate(movers):
            limit = mover.limit
            if room and mover.as_child is not None and mover.as_child < limit:
                place = FreePlace(self._tree.me, mover.as_child, mover.as_child, room, 0)
                sweep.places[at].append(place)
                limit = self.score(place)
            self._spread(asks, at, Sought(mover.bits, 0.0, limit), mover.items, 0, mover.branch)
        return self._ask(sweep, asks, 0)

    def bound(self, items: ItemSet, branch: NodeId) -> float:
        """The least that a place below another child of this node could count for."""
        costs = (
            self._overlaps.missing_at(child.peer.id, items)
            for child in self._tree.children()
            if child.peer.id != branch
        )
        return min(costs, default=1.0) + self._settings.level_gain

    # Those that come by

    def asked(self, peer: PeerRef, message: GetOverhead) -> None:
        """A node above looks for places."""
        parent, me = self._tree.parent, self._tree.me
        if parent is None or parent.id != peer.id or not self._admission.take(peer.id, self._tree.now(), 1):
            return
        sweep = self._add(peer, message.sweep, message.depth, len(message.movers))
        room = self._room()
        asks: dict[NodeId, list[tuple[int, Sought]]] = {}
        for at, mover in enumerate(message.movers):
            items = from_bits(mover.items)
            missing, limit = self._overlaps.missing(items), mover.limit
            cost = min(float(DEPTH_MAX), mover.cost + missing)
            if room:
                shared = max(missing, self._overlaps.shared(items))
                place = FreePlace(me, min(float(DEPTH_MAX), mover.cost + shared), shared, room, message.depth)
                if self.score(place) < limit:
                    sweep.places[at].append(place)
                    limit = self.score(place)
            self._spread(asks, at, replace(mover, cost=cost, limit=limit), items, message.depth, None)
        self._ask(sweep, asks, message.depth)

    def answered(self, peer: PeerRef, message: OverheadAnswer) -> list[Swept]:
        """A child has found what it could."""
        sweep = self._sweeps.get(message.sweep)
        movers = None if sweep is None else sweep.waiting.get(peer.id)
        if sweep is None or movers is None or len(movers) != len(message.places):
            return []
        del sweep.waiting[peer.id]
        sweep.nodes = min(0xFFFFFFFF, sweep.nodes + message.nodes)
        for at, places in zip(movers, message.places, strict=True):
            sweep.places[at] = sorted((*sweep.places[at], *places), key=self._order)[:PLACES_MAX]
        return [] if sweep.waiting else self._over(message.sweep)

    def child_went(self, child: NodeId) -> list[Swept]:
        """Do not wait for a child that is gone."""
        found: list[Swept] = []
        for number, sweep in list(self._sweeps.items()):
            if sweep.waiting.pop(child, None) is not None and not sweep.waiting:
                found += self._over(number)
        return found

    def tick(self) -> list[Swept]:
        """Do not wait for ever."""
        now = self._tree.now()
        late = [number for number, sweep in self._sweeps.items() if now >= sweep.ends_at]
        return [found for number in late for found in self._over(number)]

    def _order(self, place: FreePlace) -> tuple[float, int, NodeId]:
        return self.score(place), place.depth, place.peer.id

    def _room(self) -> int:
        tree = self._tree
        return min(ROOM_MAX, tree.room()) if tree.is_producer or tree.parent is not None else 0

    def _add(self, asker: PeerRef | None, number: int, depth: int, movers: int) -> _Sweep:
        if len(self._sweeps) >= SWEEPS_MAX:
            self._over(min(number for number, each in self._sweeps.items() if each.asker is not None))
        wait_s = max(LEVEL_S, self._settings.answer_timeout - LEVEL_S * depth)
        self._number += 1
        sweep = _Sweep(asker, number, self._tree.now() + wait_s, [[] for _ in range(movers)])
        self._sweeps[self._number] = sweep
        return sweep

    def _spread(
        self,
        asks: dict[NodeId, list[tuple[int, Sought]]],
        at: int,
        mover: Sought,
        items: ItemSet,
        depth: int,
        without: NodeId | None,
    ) -> None:
        """Which children a mover is passed on to."""
        most = mover.limit - self._settings.level_gain * (depth + 1)
        costs = [
            (cost, self._tree.random(), child.peer.id)
            for child in self._tree.children()
            if child.peer.id != without
            and (cost := mover.cost + self._overlaps.missing_at(child.peer.id, items)) < most
        ]
        for _, _, child in sorted(costs)[:WIDTH] if depth < DEPTH_MAX - 1 else ():
            asks.setdefault(child, []).append((at, mover))

    def _ask(self, sweep: _Sweep, asks: dict[NodeId, list[tuple[int, Sought]]], depth: int) -> list[Swept]:
        number = self._number
        peers = {child.peer.id: child.peer for child in self._tree.children()}
        for child, movers in asks.items():
            some = list(_fitting(movers))
            sweep.waiting[child] = [at for at, _ in some]
            told = tuple(mover for _, mover in some)
            self._tree.send(peers[child], GetOverhead(self._tree.stream, number, depth + 1, told))
        return [] if sweep.waiting else self._over(number)

    def _over(self, number: int) -> list[Swept]:
        """Tell the asker."""
        sweep = self._sweeps.pop(number)
        places = [sorted(each, key=self._order)[:PLACES_MAX] for each in sweep.places]
        if sweep.asker is None:
            return [Swept(sweep.number, places, sweep.nodes - 1)]
        told = OverheadAnswer(self._tree.stream, sweep.number, tuple(map(tuple, places)), sweep.nodes)
        self._tree.send(sweep.asker, told)
        return []


def _fitting(movers: Iterable[tuple[int, Sought]]) -> Iterable[tuple[int, Sought]]:
    """As many as one question takes."""
    size = 0
    for count, (at, mover) in enumerate(movers):
        size += len(mover.items.bits)
        if count == SOUGHT_MAX or size > SOUGHT_BYTES_MAX:
            return
        yield at, mover
