"""The front of dissemination: its pieces for the HTTP API, client, command line, simulator and pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from peerd.front import Command, Front, LazyCommand, LedgerLines, ScenarioAction, SparkTable

if TYPE_CHECKING:
    from fastapi import APIRouter

    from peerd.client import Client
    from peerd.cluster.demo import DemoPart
    from peerd.lab.experiment import Experiment
    from peerd.sim.checkers import Checker
    from peerd.sim.hostile.member import Behaviour
    from peerd.sim.swarm.work import SwarmWork
    from protocols.dissemination.front.client import DisseminationClient


class DisseminationFront(Front):
    """Each piece is in a module of its own beside this one."""

    name = "dissemination"

    def router(self, service: Any) -> APIRouter:
        from protocols.dissemination.front.http import router

        return router(service)

    def client(self, client: Client) -> DisseminationClient:
        from protocols.dissemination.front.client import DisseminationClient

        return DisseminationClient(client)

    def commands(self) -> Mapping[str, Callable[[], Command]]:
        return {
            "stream": LazyCommand(
                "Publish streams of items; receive the part that you want.", f"{__name__}.commands:app"
            )
        }

    def scenario_actions(self) -> Mapping[str, ScenarioAction]:
        from protocols.dissemination.front.scenario import stream

        return {"stream": stream}

    def demo(self) -> DemoPart:
        from protocols.dissemination.front.demo import StreamDemo

        return StreamDemo()

    def checkers(self) -> Mapping[str, type[Checker]]:
        from protocols.dissemination.front.checkers import NoCircles, NoOrphans, SiblingsFlow, StreamBounds

        return {
            "stream_circles": NoCircles,
            "stream_limits": StreamBounds,
            "stream_orphans": NoOrphans,
            "stream_siblings": SiblingsFlow,
        }

    def swarm_work(self) -> type[SwarmWork]:
        from protocols.dissemination.front.simulator import StreamTraffic

        return StreamTraffic

    def behaviours(self) -> Mapping[str, type[Behaviour]]:
        from protocols.dissemination.front.hostile import BEHAVIOURS

        return BEHAVIOURS

    def ledger(self) -> LedgerLines:
        from protocols.dissemination.front.tables import LEDGER

        return LEDGER

    def panels(self) -> Sequence[Mapping[str, Any]]:
        from protocols.dissemination.front.panels import PANELS

        return PANELS

    def tables(self) -> Sequence[SparkTable]:
        from protocols.dissemination.front.tables import TABLES

        return TABLES

    def experiments(self) -> Sequence[Experiment]:
        from protocols.dissemination.front.lab import EXPERIMENTS

        return EXPERIMENTS
