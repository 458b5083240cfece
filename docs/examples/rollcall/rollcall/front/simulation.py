"""What the simulator learns: an action for scenarios, an invariant, and work for the swarm."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from peerd.errors import ConfigError, Unavailable
from peerd.front import Report
from peerd.ids import short_id
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from peerd.sim.swarm.work import SwarmWork
from rollcall.plugin import RollCall
from rollcall.roll import Roll


def plugin_of(place: Place) -> RollCall:
    """The plugin of a simulated node. Raises ``KeyError`` when the node runs without it."""
    return cast(RollCall, place.node.plugins[RollCall.name])


def call(place: Place, arguments: Mapping[str, Any], report: Report) -> None:
    """Action ``call``: one roll call; its outcome becomes a row of the report."""
    for name in arguments:
        raise ConfigError("the action takes no arguments", key=f"arguments.{name}")
    plugin_of(place).call(
        lambda roll: report(
            {"answers": len(roll.answers), "expected": roll.expected, "duration_s": round(roll.duration_s, 6)}
        )
    )


class NewestRollComplete(Checker):
    """The newest roll of the whole ring names every running node and no other. For a ring at rest, after a call."""

    name = "roll complete"

    def check(self, simulation: Simulation) -> list[str]:
        """Compare the newest roll with what only the simulator knows: who runs."""
        running = {place.id for place in simulation.live_nodes()}
        rolls = [plugin_of(place).last for place in simulation.live_nodes()]
        newest = max((roll for roll in rolls if roll is not None), key=lambda roll: roll.begun_s, default=None)
        if newest is None:
            return []
        missing, strange = sorted(running - set(newest.answers)), sorted(set(newest.answers) - running)
        return [
            *(f"{short_id(node)} runs and is not on the newest roll" for node in missing),
            *(f"{short_id(node)} is on the newest roll and does not run" for node in strange),
        ]


class RollCallWork(SwarmWork):
    """Calls while faults strike; in the ring that has been repaired, everybody must answer."""

    proof: Roll | None = None

    def act(self, place: Place) -> None:
        """Whoever is out of reach is missing, and that is no fault of the plugin."""
        with suppress(Unavailable):
            plugin_of(place).call(lambda roll: None)

    def prove(self, place: Place) -> None:
        """One more call."""

        def finished(roll: Roll) -> None:
            self.proof = roll

        plugin_of(place).call(finished)

    def verdict(self) -> list[str]:
        """Judge it."""
        if self.proof is None:
            return ["the call in the calm ring did not end"]
        return NewestRollComplete().check(self.simulation)
