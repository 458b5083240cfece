"""One simulation of the lab: a scenario, run by the runner that ``peerd sim`` has, and what it cost."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from peerd.api import Plugin
from peerd.ids import parse_id
from peerd.lab.experiment import Notify, Point, Row
from peerd.lab.topologies import table_of
from peerd.limits import KIB
from peerd.overlay.membership import LEFT
from peerd.sim.report import ScenarioReport
from peerd.sim.runner import Runner
from peerd.sim.scenario import parse_scenario
from peerd.sim.simulation import Simulation
from peerd.system.proc import resident_bytes
from peerd.telemetry.schema import PeerFailed

SPACING_S: Final = 0.1
"""The pause between two joins, in virtual seconds."""
READY_LIMIT_S: Final = 300.0


@dataclass
class Outcome:
    """The results of a simulation, from which rows are made."""

    report: ScenarioReport
    simulation: Simulation
    evictions: Evictions
    processor_s: float
    node_kib: float | None
    """Resident memory that a node of the ring took, at the beginning of the phase that was asked for."""

    def cost(self) -> Row:
        """Return the columns that every row has: what the simulation cost."""
        return {
            "simulated_s": round(self.report.simulated_s, 3),
            "events": self.report.events,
            "processor_s": round(self.processor_s, 2),
            "node_kib": None if self.node_kib is None else round(self.node_kib, 1),
            "failure": self.report.failure,
        }


class Evictions:
    """A sink of event records that counts how often a running node was taken for dead."""

    def __init__(self) -> None:
        self.simulation: Simulation | None = None
        self.total = 0
        self.false = 0

    def write(self, record: dict[str, object]) -> None:
        """Count the event if it says that a node was taken for dead, and whether that was wrong."""
        if record["event"] != PeerFailed.KIND or record["evidence"] == LEFT or self.simulation is None:
            return
        accused = self.simulation.places.get(parse_id(str(record["peer"])))
        self.total += 1
        self.false += accused is not None and accused.is_live

    def close(self) -> None:
        """Do nothing: there is no file to close."""


def join_phase(point: Point) -> Row:
    """Return a phase in which all nodes join and nothing else happens."""
    begin_s = SPACING_S * point.nodes
    return {"name": "join", "actions": [{"do": "wait_ready", "at_s": begin_s, "limit_s": READY_LIMIT_S}]}


def lookups_action(point: Point, at_s: float = 0.0) -> Row:
    """Return an action that sends about the point's number of lookups in its duration."""
    return {
        "do": "workload",
        "at_s": at_s,
        "rate_per_s": max(point.lookups, 1) / point.duration_s,
        "duration_s": point.duration_s,
    }


def simulate(
    point: Point,
    phases: list[Row],
    notify: Notify,
    *,
    weigh_at: str = "",
    look: Callable[[str, Simulation], None] = lambda phase, simulation: None,
    plugins: Callable[[int], Sequence[Plugin]] | None = None,
    **tables: Any,
) -> Outcome:
    """Run a scenario of these phases after the ring has formed. ``tables`` are more tables of a scenario file.

    ``look`` is called with the simulation at the beginning of each phase; it must not change anything. ``weigh_at``
    names the phase at whose beginning the memory of a node is measured, which is meaningful only in a process that
    has simulated nothing before. ``plugins`` makes those of a node, in place of what ``tables`` say of protocols.
    """
    tree = {
        "name": point.experiment,
        "seed": point.seed,
        "nodes": point.nodes,
        "spacing_s": SPACING_S,
        "topology": table_of(point.topology),
        "phases": [join_phase(point), *phases],
        **tables,
    }
    evictions, weights = Evictions(), [live_bytes()]

    def progress(phase: str, now_s: float) -> None:
        if phase == weigh_at:
            weights.append(live_bytes())
        look(phase, runner.simulation)
        notify(phase, now_s)

    runner = Runner(parse_scenario(tree), point.seed, evictions, plugins)
    evictions.simulation = runner.simulation
    begun = time.process_time()
    report = runner.execute(progress)
    processor_s = time.process_time() - begun
    before, after = weights[0], weights[-1]
    is_weighed = len(weights) > 1 and before is not None and after is not None
    node_kib = (after - before) / KIB / point.nodes if is_weighed and before is not None and after is not None else None
    return Outcome(report, runner.simulation, evictions, processor_s, node_kib)


def live_bytes() -> int | None:
    """Resident memory of this process, without what is garbage; ``None`` where the system does not tell."""
    gc.collect()
    return resident_bytes()
