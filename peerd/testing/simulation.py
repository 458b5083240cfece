"""Simulated rings for tests: nodes that have joined and settled, and the invariants of a ring at rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from peerd.api import Plugin, PluginConfig
from peerd.overlay.config import OverlayConfig
from peerd.sim.checkers import CONTINUOUS, QUIESCENT, Checker
from peerd.sim.latency import LatencyModel
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Simulation
from peerd.telemetry.sinks import EventSink

READY_LIMIT_S: Final = 120.0
REST_LIMIT_S: Final = 300.0
REST_POLL_S: Final = 1.0


def ring(
    count: int,
    seed: int = 0,
    *,
    plugins: Callable[[int], Sequence[Plugin]] = lambda index: (),
    overlay: OverlayConfig | None = None,
    network: NetworkConfig | None = None,
    latency: LatencyModel | None = None,
    sink: EventSink | None = None,
    checkers: Sequence[Checker] = (),
    spacing_s: float = 0.2,
    settle_s: float = 5.0,
    check_every: int = 0,
    services: Mapping[str, PluginConfig] | None = None,
) -> Simulation:
    """A simulation of ``count`` nodes that have all joined and settled; virtual time goes on from there.

    ``plugins(index)`` makes the plugins of a node, anew for each of its incarnations. ``check_every``: after every so
    many events ask the node that one touched for its invariants (`peerd.api.Plugin.validate`), and the ``checkers``
    that hold always.
    """
    simulation = Simulation(
        seed,
        plugins=plugins,
        overlay=overlay,
        network=network,
        latency=latency,
        sink=sink,
        checkers=checkers,
        check_every=check_every,
        services=services,
    )
    simulation.start(count, spacing_s=spacing_s)
    simulation.run_for(spacing_s * count)
    simulation.run_until(simulation.is_ready, limit_s=READY_LIMIT_S)
    simulation.run_for(settle_s)
    return simulation


def always() -> list[Checker]:
    """Make the checkers that peerd asks at every instant of a run with checks, to be given to `ring`."""
    return [kind() for kind in CONTINUOUS]


def run_to_rest(simulation: Simulation, checkers: Iterable[Checker] = (), limit_s: float = REST_LIMIT_S) -> float:
    """Run until the ring is whole again and ``checkers`` find nothing; returns how many virtual seconds that took.

    Raises `peerd.sim.world.SimulationFailure`, with all that does not hold, when it takes longer than ``limit_s``.
    """
    begun = simulation.now
    asked = [*(kind() for kind in QUIESCENT), *checkers]
    while any(checker.check(simulation) for checker in asked):
        if simulation.now >= begun + limit_s:
            simulation.check(asked)
        simulation.run_for(min(REST_POLL_S, begun + limit_s - simulation.now))
    return simulation.now - begun
