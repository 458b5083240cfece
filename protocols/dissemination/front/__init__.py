"""The front of dissemination: its pieces for the HTTP API, client, command line, simulator and pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from peerd.front import Front, ScenarioAction

if TYPE_CHECKING:
    from peerd.lab.experiment import Experiment
    from peerd.sim.checkers import Checker
    from peerd.sim.swarm.work import SwarmWork


class DisseminationFront(Front):
    """Each piece is in a module of its own beside this one."""

    name = "dissemination"

    def scenario_actions(self) -> Mapping[str, ScenarioAction]:
        from protocols.dissemination.front.scenario import stream

        return {"stream": stream}

    def checkers(self) -> Mapping[str, type[Checker]]:
        from protocols.dissemination.front.checkers import NoCircles, NoOrphans, StreamBounds

        return {"stream_circles": NoCircles, "stream_limits": StreamBounds, "stream_orphans": NoOrphans}

    def swarm_work(self) -> type[SwarmWork]:
        from protocols.dissemination.front.simulator import StreamTraffic

        return StreamTraffic

    def experiments(self) -> Sequence[Experiment]:
        from protocols.dissemination.front.lab import EXPERIMENTS

        return EXPERIMENTS
