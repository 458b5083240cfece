"""``peerd lab run rollcall/time``: how long until the last answer is in, against the size of the ring."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from peerd.lab.charts import Chart, lines
from peerd.lab.experiment import Column, Experiment, Notify, Point, Row, Settings
from peerd.lab.overlay.rows import COST, POINT
from peerd.lab.simulated import simulate

CALL_EVERY_S: Final = 10.0


def measure(point: Point, notify: Notify) -> Row:
    """Calls from random nodes of a calm ring. Runs in a process of its own."""
    times = [CALL_EVERY_S * number for number in range(int(point.duration_s / CALL_EVERY_S))]
    calls = [{"do": "call", "at_s": at_s, "protocol": "rollcall", "action": "call"} for at_s in times]
    phases = [
        {"name": "settle", "duration_s": point.settle_s},
        {"name": "calls", "duration_s": point.duration_s, "actions": calls},
    ]
    outcome = simulate(point, phases, notify, protocols={"rollcall": {}})
    found = outcome.report.calls
    return {
        "calls": len(found),
        "answered_share": fmean(call["answers"] / point.nodes for call in found),
        "last_answer_s": fmean(call["duration_s"] for call in found),
        **outcome.cost(),
    }


def charts(found: Sequence[Row]) -> list[Chart]:
    """Time against size, a line a topology."""
    drawn = lines(found, "nodes", "last_answer_s", "topology")
    return [Chart("rollcall-time", "Time of a roll call", "nodes", "seconds to the last answer", drawn, x_is_log=True)]


EXPERIMENTS: Final = (
    Experiment(
        "rollcall/time",
        "time until the last node has answered a roll call",
        "nothing: an example",
        takes="--quick: 2 s",
        full=Settings(nodes=(100, 300, 1000), duration_s=100.0, lookups=1),
        quick=Settings(nodes=(10, 20), duration_s=50.0, lookups=1, settle_s=20.0),
        columns=(
            *POINT,
            Column("calls", "calls", "roll calls, from random nodes"),
            Column("answered_share", "answered", "share of the nodes that were heard, mean", 4),
            Column("last_answer_s", "last answer s", "from the call to its last answer, mean", 3),
            *COST,
        ),
        measure=measure,
        charts=charts,
    ),
)
