"""How long the paths through a ring are, computed from the tables of all nodes at one instant, and the true delays.

The same pairs of a source and a key are walked through the tables that the nodes have, through *perfect* tables (every
cell holds the nearest node that fits it) and through *random* ones (every cell holds any node that fits it), with the
nodes' own leaf sets. So the results differ only by how near the entries are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from peerd import limits
from peerd.ids import NodeId, digit, shared_prefix_digits
from peerd.messages import PeerRef
from peerd.overlay.routing import Step, next_step
from peerd.overlay.table import RoutingTable
from peerd.sim.rng import fork, random_id
from peerd.sim.simulation import Place, Simulation

NextHop = Callable[[Place, NodeId], PeerRef | None]
"""Returns the node to which a node sends a key; ``None`` if the key stays there."""
Tables = Mapping[NodeId, RoutingTable]
PAIRS: Final = "paths"
"""The name of the stream of randomness that sources and keys come from."""


@dataclass(frozen=True, slots=True)
class Walked:
    """Sums over many walks."""

    walks: int
    astray: int
    """How many walks ended at another node than the root of their key."""
    hops: int
    path_s: float
    direct_s: float
    """The direct latencies from source to root. Walks that went astray or began at the root are in neither sum."""

    @property
    def stretch(self) -> float:
        """Latency of the path over the direct latency, as a ratio of means."""
        return self.path_s / self.direct_s if self.direct_s else 1.0

    @property
    def mean_hops(self) -> float:
        """The mean number of hops of all walks."""
        return self.hops / self.walks if self.walks else 0.0


def pairs(simulation: Simulation, count: int) -> list[tuple[Place, NodeId]]:
    """Draw pairs of a joined node and a key; the same ones for the same seed and nodes."""
    rng, ids = fork(simulation.seed, PAIRS), sorted(simulation.truth.ready.ids)
    return [(simulation.places[rng.choice(ids)], random_id(rng)) for _ in range(count)] if ids else []


def walk(simulation: Simulation, wanted: list[tuple[Place, NodeId]], next_hop: NextHop) -> Walked:
    """Follow every key from its source to the node where it stays."""
    astray = hops = 0
    path_s = direct_s = 0.0
    network, places, ready = simulation.network, simulation.places, simulation.truth.ready
    for source, key in wanted:
        at, taken, elapsed_s = source, 0, 0.0
        while taken < limits.HOPS_MAX and (peer := next_hop(at, key)) is not None:
            following = places[peer.id]
            elapsed_s += network.latency_s(at.port, following.port)
            at, taken = following, taken + 1
        root = places[ready.root(key)]
        astray += at is not root
        hops += taken
        if at is root and root is not source:
            path_s += elapsed_s
            direct_s += network.latency_s(source.port, root.port)
    return Walked(len(wanted), astray, hops, path_s, direct_s)


def shipped(place: Place, key: NodeId) -> PeerRef | None:
    """Return the next hop that the node itself would choose now, if it suspected nobody."""
    state = place.node.overlay.state
    return next_step(key, state.leaves, state.table, (), state.way_s).peer


def through(tables: Tables) -> NextHop:
    """Return the same decision as a function, with other tables."""

    def next_hop(place: Place, key: NodeId) -> PeerRef | None:
        step, peer = next_step(key, place.node.overlay.state.leaves, tables[place.id], ())
        return peer if step is Step.FORWARD else None

    return next_hop


def perfect_tables(simulation: Simulation) -> Tables:
    """Return tables with the nearest node that fits in every cell."""
    latency_s = simulation.network.latency_s
    return _tables(simulation, lambda place, other: (latency_s(place.port, other.port), other.id))


def random_tables(simulation: Simulation) -> Tables:
    """Return tables with a random node that fits in every cell."""
    rng: Random = fork(simulation.seed, "random tables")
    return _tables(simulation, lambda place, other: (rng.random(), other.id))


def _tables(simulation: Simulation, badness: Callable[[Place, Place], tuple[float, NodeId]]) -> Tables:
    ready = [simulation.places[node_id] for node_id in sorted(simulation.truth.ready.ids)]
    made: dict[NodeId, RoutingTable] = {}
    for place in ready:
        best: dict[tuple[int, int], tuple[tuple[float, NodeId], Place]] = {}
        for other in ready:
            if other is not place:
                row = shared_prefix_digits(place.id, other.id)
                cell, bad = (row, digit(other.id, row)), badness(place, other)
                if cell not in best or bad < best[cell][0]:
                    best[cell] = bad, other
        table = made[place.id] = RoutingTable(place.id)
        for _, other in best.values():
            table.consider(other.peer, lambda _: None)
    return made
