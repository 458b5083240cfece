"""Rings whose nodes are far apart: what is slow is not dead."""

from __future__ import annotations

from peerd.api import LookupResult
from peerd.ids import NodeId
from peerd.sim.checkers import RingOracle
from peerd.sim.latency import SphereLatency
from peerd.sim.network import NetworkConfig
from peerd.sim.observed import Place
from peerd.sim.simulation import Simulation, Watcher
from peerd.telemetry.schema import Event, PeerSuspected

OPPOSITE_S = 0.85
"""One way to the opposite side of the sphere: round trips up to 1.7 s."""


class Suspicions(Watcher):
    """Counts them."""

    def __init__(self) -> None:
        self.count = 0

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> str | None:
        self.count += isinstance(event, PeerSuspected)
        return None


def test_paths_without_jitter_make_nobody_suspect() -> None:
    """Their deviation goes to nothing: without a margin any answer that waits for a moment is late."""
    ring = Simulation(1, latency=SphereLatency(1, OPPOSITE_S), network=NetworkConfig(jitter=0.0))
    suspicions, found = Suspicions(), list[LookupResult]()
    ring.watch(suspicions)
    ring.start(40, spacing_s=2.0)
    ring.run_until(ring.is_ready, limit_s=600.0)
    ring.run_for(300.0)
    before, oracle = suspicions.count, RingOracle.of(ring)
    for _ in range(1800):
        sender = ring.rng.choice(ring.live_nodes())
        sender.node.overlay.lookup(NodeId(ring.rng.getrandbits(128)), found.append, 20.0)
        ring.run_for(1.0)
    ring.run_for(30.0)
    assert suspicions.count - before <= 5, "some are of links that had to be dialled first"
    assert len(found) == 1800
    assert all(each.root is not None and each.root.id == oracle.root(each.key) for each in found)
