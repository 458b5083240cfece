"""Updates by the width of bounds (section 7.4.4): of latencies in the simulated network, and of real series.

In the network, nodes measure their latency to another node, each second, by a question and its answer, and the running
mean is what is cached. Of each width there is one node that holds all of these values, straight from their owners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import fmean
from typing import Final

from peerd.lab.experiment import Notify, Point, Row
from peerd.lab.simulated import simulate
from peerd.sim.rng import fork
from peerd.sim.simulation import Place, Simulation
from peerd.sim.world import rare_collections
from protocols.measurement.front.lab.counting import RECEIVED
from protocols.measurement.front.lab.run import FOUND_S, OVERLAY, TTL_S, VALUE, plugin_at
from protocols.measurement.front.lab.series import broken_share, cpu_series, planetlab_series
from protocols.measurement.guarantee.messages import CacheUpdate
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.readings import NoReading, Reading

NETWORK: Final = "network"
WIDTHS: Final = {
    NETWORK: (0.01, 0.06, 0.11, 0.16, 0.21, 0.26, 0.31, 0.36, 0.41),
    "planetlab": (0.1, 0.2, 0.4, 1.0, 2.0, 4.0, 10.0, 20.0, 40.0),
    "cpu": (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0),
}
"""From the lower to the upper bound: of latencies in milliseconds, the paper's in the network; of processors in
standard deviations of each."""
UNITS: Final = {
    NETWORK: ("width, ms", "updates a second and measurement"),
    "planetlab": ("width, ms", "updates a slice"),
    "cpu": ("width, standard deviations", "updates a sample"),
}
PAIRS: Final = 50
LATENCY: Final = "latency"
MEAN: Final = "latency_mean"
MEAN_OVER: Final = "1m"
PING_S: Final = 1.0
SETTLED_S: Final = 80.0
"""From so long after the first value on, means are over a full minute."""
SETTINGS: Final[Row] = {
    "system": False,
    "placing": "owners",
    "cache_values": 0,
    "max_age": "1h",
    "update_interval": "1h",
    "ask_interval": "15m",
    "describe_interval": "50m",
    "smoothed": {MEAN: {"of": LATENCY, "mean": MEAN_OVER}},
}
"""So long that no update is sent for another reason than that bounds are broken."""


def measure(point: Point, notify: Notify) -> Row:
    """Find how many updates bounds of each width need."""
    source = str(point.variant["source"])
    begun = time.process_time()
    row = _network(point, notify) if source == NETWORK else _series(source, point.seed)
    updates = row.get("updates_of") or [None]
    width_unit, update_unit = UNITS[source]
    return {
        "widths": list(WIDTHS[source]),
        "width_unit": width_unit,
        "update_unit": update_unit,
        "simulated_s": 0.0,
        **row,
        "narrowest": updates[0],
        "widest": updates[-1],
        "processor_s": round(time.process_time() - begun, 2),
    }


def _series(source: str, seed: int) -> Row:
    """Real series; without their file there is no result."""
    series = cpu_series() if source == "cpu" else planetlab_series(seed)
    if not series:
        return {"updates_of": None, "measurements": 0}
    updates = [fmean(broken_share(each, width / 2) for each in series) for width in WIDTHS[source]]
    return {"updates_of": [round(each, 5) for each in updates], "measurements": len(series)}


def _network(point: Point, notify: Notify) -> Row:
    phases = [{"name": "settle", "duration_s": point.settle_s}]
    outcome = simulate(point, phases, notify, protocols={"measurement": SETTINGS}, overlay=OVERLAY)
    if outcome.report.failure is not None:
        return outcome.cost()
    simulation, rng = outcome.simulation, fork(point.seed, "measurement", "bounds")
    with rare_collections():
        pings = _Pings(simulation, rng, min(PAIRS, point.nodes // 2))
        pings.begin()
        notify("ping", simulation.now)
        simulation.run_for(SETTLED_S)
        holders = pings.hold([width / 2 for width in WIDTHS[NETWORK]])
        simulation.run_for(FOUND_S)
        before = [_updates_at(each) for each in holders]
        simulation.run_for(point.duration_s)
    heard = [_updates_at(each) - count for each, count in zip(holders, before, strict=True)]
    per_s = [round(count / point.duration_s / len(pings.pairs), 5) for count in heard]
    cost = {**outcome.cost(), "simulated_s": round(simulation.now, 3)}
    return {"updates_of": per_s, "measurements": len(pings.pairs), **cost}


class _Pings:
    """Nodes that each measure their latency to one other."""

    def __init__(self, simulation: Simulation, rng: Random, count: int) -> None:
        self._simulation, self._rng = simulation, rng
        self._live = simulation.live_nodes()
        owners = rng.sample(self._live, count)
        self.pairs = [(owner, rng.choice([each for each in self._live if each is not owner])) for owner in owners]

    def begin(self) -> None:
        """Let nodes know each other, and ping from now on."""
        for place in self._live:
            plugin_at(place).put(VALUE, 0.0, TTL_S)
            plugin_at(place).readings.kept_max = 0
        for owner, other in self.pairs:
            plugin_at(owner).directory.refreshed(lambda: None, fresh_s=0.0)
            self._simulation.after(FOUND_S + self._rng.uniform(0.0, PING_S), _bound(self._ping, owner, other))
        self._simulation.run_for(FOUND_S)

    def hold(self, half_widths: Sequence[float]) -> list[Place]:
        """A node for each of these half-widths, which holds all values with such bounds from now on."""
        owners = {owner.id for owner, _ in self.pairs}
        holders = self._rng.sample([each for each in self._live if each.id not in owners], len(half_widths))
        for holder, half_width in zip(holders, half_widths, strict=True):
            plugin_at(holder).watching.hold({MEAN: half_width}, owners, 2 * TTL_S)
        return holders

    def _ping(self, owner: Place, other: Place) -> None:
        plugin, asked_at = plugin_at(owner), self._simulation.now

        def told(answers: list[Reading | NoReading]) -> None:
            plugin.put(LATENCY, 1000 * (self._simulation.now - asked_at), TTL_S)

        plugin.readings.read([Want(Measurement(other.id, VALUE), 0.0)], plugin.config.max_age, told)
        self._simulation.after(PING_S, _bound(self._ping, owner, other))


def _bound(act: Callable[[Place, Place], None], one: Place, other: Place) -> Callable[[], None]:
    return lambda: act(one, other)


def _updates_at(place: Place) -> int:
    return place.node.traffic[CacheUpdate.TYPE_ID][RECEIVED]
