"""The front of aggregation: its pieces for the HTTP API, client, command line, simulator and pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerd.front import Command, Front, LazyCommand, LedgerLines, NodeOption, RingTable, ScenarioAction, SparkTable

if TYPE_CHECKING:
    from fastapi import APIRouter

    from peerd.client import Client
    from peerd.cluster.demo import DemoPart
    from peerd.lab.experiment import Experiment
    from peerd.sim.checkers import Checker
    from peerd.sim.hostile.member import Behaviour
    from peerd.sim.swarm.work import SwarmWork
    from protocols.aggregation.front.client import AggregationClient

HERE = __name__


class AggregationFront(Front):
    """Each piece is in a module of its own beside this one."""

    name = "aggregation"

    def router(self, service: Any) -> APIRouter:
        from protocols.aggregation.front.http import router

        return router(service)

    def commands(self) -> Mapping[str, Callable[[], Command]]:
        return {
            "aggregate": LazyCommand("Aggregate a function of all nodes' files.", f"{HERE}.commands:aggregate"),
            "answers": LazyCommand("Show the answers that this node was given.", f"{HERE}.given:answers"),
        }

    def demo(self) -> DemoPart:
        from protocols.aggregation.front.demo import AggregationDemo

        return AggregationDemo()

    def client(self, client: Client) -> AggregationClient:
        from protocols.aggregation.front.client import AggregationClient

        return AggregationClient(client)

    def init_options(self) -> Sequence[NodeOption]:
        return (NodeOption("--data", "DIR", "Folder whose files aggregates read. Default: none.", _data_root),)

    def cluster_options(self) -> Sequence[NodeOption]:
        help = "Folder whose files aggregates read; each daemon reads a part of them. Default: none."
        return (NodeOption("--data", "DIR", help, _shared_data_root),)

    def scenario_actions(self) -> Mapping[str, ScenarioAction]:
        from protocols.aggregation.front.scenario import ask, give_numbers

        return {"numbers": give_numbers, "aggregate": ask}

    def checkers(self) -> Mapping[str, type[Checker]]:
        from protocols.aggregation.front.simulator import CountedOnce

        return {"aggregation_once": CountedOnce}

    def swarm_work(self) -> type[SwarmWork]:
        from protocols.aggregation.front.simulator import Rounds

        return Rounds

    def behaviours(self) -> Mapping[str, type[Behaviour]]:
        from protocols.aggregation.front.hostile import BEHAVIOURS

        return BEHAVIOURS

    def experiments(self) -> Sequence[Experiment]:
        from protocols.aggregation.front.lab.experiments import EXPERIMENTS
        from protocols.aggregation.front.lab.large_experiments import LARGE

        return *EXPERIMENTS, *LARGE

    def panels(self) -> Sequence[Mapping[str, Any]]:
        from protocols.aggregation.front.panels import PANELS

        return PANELS

    def ledger(self) -> LedgerLines:
        from protocols.aggregation.front.tables import LEDGER

        return LEDGER

    def ring_tables(self) -> Sequence[RingTable]:
        from protocols.aggregation.front.ring_table import AGGREGATION

        return (AGGREGATION,)

    def tables(self) -> Sequence[SparkTable]:
        from protocols.aggregation.front.tables import TABLES

        return TABLES


def _data_root(text: str) -> dict[str, object]:
    return {"data_root": str(Path(text).expanduser().absolute())}


def _shared_data_root(text: str) -> dict[str, object]:
    return {**_data_root(text), "share": "{k}/{n}"}
