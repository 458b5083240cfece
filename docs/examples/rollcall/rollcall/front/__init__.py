"""The front of roll call: every piece that a protocol can add to its surroundings.

Each piece is imported where it is used, so that a daemon that nobody asks over HTTP loads no FastAPI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from peerd.front import Command, Front, LazyCommand, NodeOption, ScenarioAction, SparkTable

if TYPE_CHECKING:
    from fastapi import APIRouter

    from peerd.client import Client
    from peerd.lab.experiment import Experiment
    from peerd.sim.checkers import Checker
    from peerd.sim.swarm.work import SwarmWork
    from rollcall.front.client import RollCallClient


class RollCallFront(Front):
    """Each piece is in a module of its own beside this one."""

    name = "rollcall"

    # Daemon

    def router(self, service: Any) -> APIRouter:
        from rollcall.front.http import router

        return router(service)

    def operator_router(self, service: Any) -> APIRouter:
        from rollcall.front.http import operator_router

        return operator_router(service)

    # Client and command line

    def client(self, client: Client) -> RollCallClient:
        from rollcall.front.client import RollCallClient

        return RollCallClient(client)

    def commands(self) -> Mapping[str, Callable[[], Command]]:
        return {
            "rollcall": LazyCommand("Ask every node who is there, and since when.", "rollcall.front.commands:rollcall"),
            "label": LazyCommand("What this node is called in roll calls.", "rollcall.front.commands:label"),
        }

    def init_options(self) -> Sequence[NodeOption]:
        return (NodeOption("--label", "TEXT", "Name of this node for people. Default: none.", _label_setting),)

    def cluster_options(self) -> Sequence[NodeOption]:
        help = "Name of each node for people; {k} becomes its number. Default: none."
        return (NodeOption("--label", "TEXT", help, _label_setting),)

    # Simulator and lab

    def scenario_actions(self) -> Mapping[str, ScenarioAction]:
        from rollcall.front.simulation import call

        return {"call": call}

    def checkers(self) -> Mapping[str, type[Checker]]:
        from rollcall.front.simulation import NewestRollComplete

        return {"rollcall_complete": NewestRollComplete}

    def swarm_work(self) -> type[SwarmWork]:
        from rollcall.front.simulation import RollCallWork

        return RollCallWork

    def experiments(self) -> Sequence[Experiment]:
        from rollcall.front.lab import EXPERIMENTS

        return EXPERIMENTS

    # Pipeline

    def tables(self) -> Sequence[SparkTable]:
        from rollcall.front.tables import TABLES

        return TABLES


def _label_setting(text: str) -> dict[str, object]:
    return {"label": text}
