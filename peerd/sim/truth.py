"""What only the simulator knows: who should answer for a key, who died when, and whether anything disturbs the network.

The constants are the times that the invariants of docs/simulator.md refer to.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from math import inf
from typing import Final, Protocol

from peerd.ids import NodeId, closest
from peerd.sim.network import Network
from peerd.sim.observed import Place

DETECT_S: Final = 15.0
"""After so many seconds the silent death of a node has been noticed."""
REPAIR_S: Final = 30.0
"""After so many seconds more, tables have been repaired."""
HEAL_S: Final = 60.0
"""After so many seconds without any disturbance of the network, there is one consistent ring again."""
SERVE_TWICE_S: Final = 15.0
"""For so many seconds after a membership change two nodes may answer for one key."""


class Populated(Protocol):
    """The part of a simulation that is used here."""

    def live_nodes(self) -> list[Place]:
        """The nodes that run."""


class RingOracle:
    """A set of ids in ring order."""

    __slots__ = ("ids",)

    def __init__(self, ids: Iterable[NodeId] = ()) -> None:
        self.ids = sorted(ids)

    @classmethod
    def of(cls, simulation: Populated) -> RingOracle:
        """All running nodes, whether they have joined or not; `Truth.ready` has those that have."""
        return cls(place.id for place in simulation.live_nodes())

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, node_id: NodeId) -> bool:
        position = bisect_left(self.ids, node_id)
        return position < len(self.ids) and self.ids[position] == node_id

    def add(self, node_id: NodeId) -> None:
        """Add an id; harmless when it is there."""
        if node_id not in self:
            insort(self.ids, node_id)

    def discard(self, node_id: NodeId) -> None:
        """Remove an id; harmless when it is not there."""
        if node_id in self:
            del self.ids[bisect_left(self.ids, node_id)]

    def root(self, key: NodeId) -> NodeId:
        """The id numerically closest to ``key``. Raises ``ValueError`` for an empty ring."""
        position = bisect_left(self.ids, key)
        count = len(self.ids)
        return closest(key, {self.ids[(position + step) % count] for step in (-1, 0)} if count else ())

    def neighbours(self, node_id: NodeId, count: int) -> tuple[list[NodeId], list[NodeId]]:
        """(smaller, larger): the ``count`` nearest on each side, nearest first, without the node itself."""
        ids = self.ids
        position = bisect_left(ids, node_id)
        reach = min(count, len(ids) - 1)
        smaller = [ids[(position - step) % len(ids)] for step in range(1, reach + 1)]
        larger = [ids[(position + step) % len(ids)] for step in range(1, reach + 1)]
        return smaller, larger


class Truth:
    """Kept up to date by `peerd.sim.simulation.Simulation`."""

    def __init__(self, network: Network) -> None:
        self.ready = RingOracle()
        """Nodes that run, have joined and are not leaving: the closest of them is the right root of a key."""
        self.running: list[int] = []
        """Indices of the nodes that run, ascending."""
        self.since: dict[NodeId, float] = {}
        """When a node last began to run: its start or resumption."""
        self.ended: dict[NodeId, float] = {}
        """When the last incarnation of a node ended; not in it while one runs."""
        self.paused: set[int] = set()
        """Indices of paused nodes. The set is never iterated, so its order does not matter."""
        self._network = network
        self._version = -1
        self._is_disturbed = False
        self._calm_since = -inf
        self._node_s = 0.0
        self._counted_at = 0.0

    # Membership

    def runs(self, place: Place) -> None:
        """A new incarnation started, or a paused one goes on."""
        self._count()
        insort(self.running, place.index)
        self.since[place.id] = self._network.engine.now
        self.ended.pop(place.id, None)
        self.paused.discard(place.index)

    def rests(self, place: Place, *, is_paused: bool) -> None:
        """A node does not run any more; harmless when it did not."""
        position = bisect_left(self.running, place.index)
        if position < len(self.running) and self.running[position] == place.index:
            self._count()
            del self.running[position]
        self.ready.discard(place.id)
        if is_paused:
            self.paused.add(place.index)
        else:
            self.paused.discard(place.index)
            self.ended.setdefault(place.id, self._network.engine.now)

    @property
    def node_seconds(self) -> float:
        """Seconds that all nodes together have been running since the beginning."""
        self._count()
        return self._node_s

    def _count(self) -> None:
        now = self._network.engine.now
        self._node_s += (now - self._counted_at) * len(self.running)
        self._counted_at = now

    # Disturbances

    def disturb(self, until_s: float) -> None:
        """A fault that ends by itself, such as a clog, lasts until then."""
        self._calm_since = max(self._calm_since, until_s)

    def observe(self) -> None:
        """Look at the network when it may have changed."""
        network = self._network
        if self._version == network.version:
            return
        self._version = network.version
        is_disturbed = network.is_disturbed or bool(self.paused)
        if self._is_disturbed and not is_disturbed:
            self._calm_since = max(self._calm_since, network.engine.now)
        self._is_disturbed = is_disturbed

    def calm_s(self) -> float:
        """For how many seconds nothing has been lost, cut, clogged or paused: 0 while anything is, else from its end.

        Infinite if nothing ever was. Deaths do not count as disturbances.
        """
        self.observe()
        return 0.0 if self._is_disturbed else max(0.0, self._network.engine.now - self._calm_since)


def answers_for(place: Place, key: NodeId) -> bool:
    """Whether this node would deliver a message for ``key`` that it got now, instead of passing it on or waiting."""
    return place.node.is_ready and place.node.overlay.serves(key)
