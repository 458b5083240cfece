"""The search for a better place in the tree (CoDD figure 7): breadth-first from the producer, with pruning. Pure.

The overhead of a place is what the move would add *to the system* (section 4): a node below p gets its items through p
and all nodes above p, so it is the sum of ``|docs(n) minus docs(a)|`` over p and those above it. That sum grows from
each node to its children by at least what the node itself added. So once 2 x overhead is not below the best place
found, at the first level, there is nothing better below: the paper's factor 2, which in this form holds at every level.

Two things are cheaper than in the paper. A node answers for its children as well, because it knows what it sends them;
only children that can still win are asked. And all nodes of a level are asked at once: a search takes one round trip
for each level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.policies.overlap.messages import ChildPlace

NODES_ASKED_MAX: Final = 256
"""A search ends when so many nodes have been asked: it takes the best place of those."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node that the mover could go below. ``cost``: items in vain at it and all above it, per item of the stream."""

    peer: PeerRef
    cost: float
    missing: float
    """At the node itself."""
    shared: float = 0.0
    """At the node as the mover's parent."""


class Search:
    """One search: ``begin`` and ``answered`` return the nodes to ask next, none while others have to answer first."""

    def __init__(
        self, mover: NodeId, parent: NodeId, on_path: Mapping[NodeId, float], limit: float, pruning: float
    ) -> None:
        self.mover = mover
        self.parent = parent
        self.limit = limit
        """Only places that cost less are of use."""
        self.best: Place | None = None
        self.asked = 0
        self._on_path = on_path
        """What the mover costs those that it is below now, for itself alone."""
        self._pruning = pruning
        self._open: dict[NodeId, Place] = {}
        self._next: dict[NodeId, Place] = {}

    @property
    def is_over(self) -> bool:
        """Whether nobody is left to answer."""
        return not self._open

    def begin(self, root: PeerRef, has_room: bool, children: Iterable[ChildPlace]) -> list[PeerRef]:
        """Begin at the producer, which has every item."""
        return self._took(Place(root, 0.0, 0.0), has_room, children, 0.0)

    def answered(
        self, node: NodeId, missing: float, shared: float, has_room: bool, children: Iterable[ChildPlace]
    ) -> list[PeerRef]:
        """A node has answered. ``shared``: what the mover would cost it as its parent."""
        place = self._open.pop(node, None)
        if place is None:
            return []
        own = self._on_path.get(node, missing)
        above = place.cost - place.missing
        return self._took(Place(place.peer, above + own, own), has_room, children, above + max(own, shared))

    def no_answer(self) -> list[PeerRef]:
        """Those that have not answered will not: go on without them."""
        self._open.clear()
        return self._go_on()

    def _took(self, place: Place, has_room: bool, children: Iterable[ChildPlace], as_parent: float) -> list[PeerRef]:
        if place.peer.id != self.parent and has_room and self._is_better(as_parent):
            self.best, self.limit = (
                replace(place, cost=as_parent, shared=as_parent - place.cost + place.missing),
                as_parent,
            )
        if self._is_better(place.cost + (self._pruning - 1) * place.missing):
            for child in children:
                if child.peer.id != self.mover:
                    missing = self._on_path.get(child.peer.id, child.missing)
                    self._next[child.peer.id] = Place(child.peer, place.cost + missing, missing)
        return self._go_on()

    def _is_better(self, cost: float) -> bool:
        return cost < self.limit

    def _go_on(self) -> list[PeerRef]:
        """The next level, when this one has answered."""
        if self._open:
            return []
        level, self._next = self._next, {}
        promising = sorted((place for place in level.values() if self._is_better(place.cost)), key=_cost)
        some = promising[: NODES_ASKED_MAX - self.asked]
        self.asked += len(some)
        self._open = {place.peer.id: place for place in some}
        return [place.peer for place in some]


def _cost(place: Place) -> tuple[float, NodeId]:
    return place.cost, place.peer.id
