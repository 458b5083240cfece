"""A simulated ring whose nodes measure three things each, and clients of the first of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from peerd.messages import Message
from peerd.sim.checkers import Checker
from peerd.sim.latency import LatencyModel
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place, Simulation
from peerd.telemetry.schema import Event
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.events import MeasurementTraffic
from protocols.measurement.front.simulator import WITHIN, GuaranteeHolds, SimulatedQueries, plugin_of
from protocols.measurement.plugin import MeasurementQueries
from protocols.measurement.readings import NoReading, Reading

STALE_S = 8.0


class Sent(Checker):
    """Counts messages of measurement queries, and keeps what nodes tell of them."""

    def __init__(self) -> None:
        self.counts: Counter[type[Message]] = Counter()
        self.traffic: dict[int, list[MeasurementTraffic]] = {}

    def emitted(self, simulation: Simulation, place: Place, event: Event) -> None:
        if isinstance(event, MeasurementTraffic):
            self.traffic.setdefault(place.index, []).append(event)

    def sent(self, simulation: Simulation, place: Place, message: Message) -> None:
        if isinstance(message, MeasurementQueries.messages):
            self.counts[type(message)] += 1


class Ring:
    """Nodes that measure three things each, and a client of the first of them."""

    def __init__(
        self,
        nodes: int,
        seed: int = 1,
        network: NetworkConfig | None = None,
        checkers: Sequence[Checker] = (),
        latency: LatencyModel | None = None,
        **settings: Any,
    ) -> None:
        config = MeasurementConfig.model_validate({"tags": {"role": "web"}, "placing": "owners"} | settings)
        self.oracle, self.sent = GuaranteeHolds(), Sent()
        self.simulation = Simulation(
            seed,
            plugins=lambda index: [SimulatedQueries(index, config)],
            checkers=[self.oracle, self.sent, *checkers],
            check_every=20,
            network=network,
            latency=latency,
        )
        self.simulation.start(nodes)
        self.simulation.run_until(self.simulation.is_ready, limit_s=120)
        self.simulation.run_for(15)

    @property
    def places(self) -> list[Place]:
        return self.simulation.nodes

    def plugin(self, index: int = 0) -> SimulatedQueries:
        found = plugin_of(self.places[index])
        assert found is not None
        return found

    def read(self, *names: str, index: int = 0, stale_s: float = STALE_S) -> list[Reading | NoReading]:
        """What a client is told."""
        told: list[list[Reading | NoReading]] = []

        def take(answers: list[Reading | NoReading] | Exception) -> None:
            assert isinstance(answers, list)
            told.append(answers)

        self.plugin(index).asking.read(names, lambda entry: True, WITHIN, stale_s, take)
        self.simulation.run_until(lambda: bool(told), limit_s=30)
        return told[0]
