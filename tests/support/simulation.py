"""Ready-made simulated rings, and small networks of trivial nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from peerd.api import Plugin
from peerd.overlay.config import OverlayConfig
from peerd.services.groups.config import GroupsConfig
from peerd.services.records.config import RecordsConfig
from peerd.sim.latency import LatencyModel
from peerd.sim.network import NetworkConfig
from peerd.sim.records import RecordSink
from peerd.sim.simulation import Simulation

READY_LIMIT_S = 120.0


def ring(
    count: int,
    seed: int = 0,
    *,
    plugins: Callable[[int], Sequence[Plugin]] = lambda index: (),
    overlay: OverlayConfig | None = None,
    groups: GroupsConfig | None = None,
    records: RecordsConfig | None = None,
    network: NetworkConfig | None = None,
    latency: LatencyModel | None = None,
    sink: RecordSink | None = None,
    spacing_s: float = 0.2,
    settle_s: float = 5.0,
    check_every: int = 0,
) -> Simulation:
    """A simulation of ``count`` nodes that have all joined and settled; virtual time goes on from there."""
    simulation = Simulation(
        seed,
        plugins=plugins,
        overlay=overlay,
        groups=groups,
        records=records,
        network=network,
        latency=latency,
        sink=sink,
        check_every=check_every,
    )
    simulation.start(count, spacing_s=spacing_s)
    simulation.run_for(spacing_s * count)
    simulation.run_until(simulation.is_ready, limit_s=READY_LIMIT_S)
    simulation.run_for(settle_s)
    return simulation
