"""The front of measurement queries: their pieces for the HTTP API, client, command line, simulator and pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from peerd.front import Command, Front, LazyCommand, LedgerLines, NodeOption, RingTable, SparkTable

if TYPE_CHECKING:
    from fastapi import APIRouter

    from peerd.client import Client
    from peerd.lab.experiment import Experiment
    from peerd.sim.checkers import Checker
    from peerd.sim.hostile.member import Behaviour
    from peerd.sim.swarm.work import SwarmWork
    from protocols.measurement.front.client import MeasurementClient

HERE = __name__


class MeasurementFront(Front):
    """Each piece is in a module of its own beside this one."""

    name = "measurement"

    def router(self, service: Any) -> APIRouter:
        from protocols.measurement.front.http import router

        return router(service)

    def client(self, client: Client) -> MeasurementClient:
        from protocols.measurement.front.client import MeasurementClient

        return MeasurementClient(client)

    def commands(self) -> Mapping[str, Callable[[], Command]]:
        return {
            "measure": LazyCommand("What nodes measure: list, get, put, watch.", f"{HERE}.measure:measure"),
            "query": LazyCommand("Ask in SQL what nodes measure, with bounds.", f"{HERE}.query:query"),
            "top": LazyCommand("A live table of the ring's nodes.", f"{HERE}.top:top"),
        }

    def init_options(self) -> Sequence[NodeOption]:
        return (NodeOption("--tags", "KEY=VALUE,...", "What this node is, for queries: role=web,rack=3.", _tags),)

    def cluster_options(self) -> Sequence[NodeOption]:
        help = "What each node is, for queries; {k} is its number: 'role=web,rack={k}'."
        return (NodeOption("--tags", "KEY=VALUE,...", help, _tags),)

    def checkers(self) -> Mapping[str, type[Checker]]:
        from protocols.measurement.front.simulator import GuaranteeHolds

        return {"measurement_guarantee": GuaranteeHolds}

    def behaviours(self) -> Mapping[str, type[Behaviour]]:
        from protocols.measurement.front.hostile import BEHAVIOURS

        return BEHAVIOURS

    def swarm_work(self) -> type[SwarmWork]:
        from protocols.measurement.front.simulator import Measuring

        return Measuring

    def experiments(self) -> Sequence[Experiment]:
        from protocols.measurement.front.lab.experiments import EXPERIMENTS

        return EXPERIMENTS

    def panels(self) -> Sequence[Mapping[str, Any]]:
        from protocols.measurement.front.panels import PANELS

        return PANELS

    def ledger(self) -> LedgerLines:
        from protocols.measurement.front.tables import LEDGER

        return LEDGER

    def ring_tables(self) -> Sequence[RingTable]:
        from protocols.measurement.front.ring_table import MEASUREMENT

        return (MEASUREMENT,)

    def tables(self) -> Sequence[SparkTable]:
        from protocols.measurement.front.tables import TABLES

        return TABLES


def _tags(text: str) -> dict[str, object]:
    """Raises ``ValueError``."""
    tags: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not (key and equals):
            raise ValueError(f"{part!r}: expected KEY=VALUE, several with commas between them")
        tags[key.strip()] = value.strip()
    return {"tags": tags}
