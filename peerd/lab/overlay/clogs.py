"""``overlay/clogs``: paths that stop for seconds, now and then. Is a live node taken for dead? Does traffic grow?

No paper has this figure. The fault is FoundationDB's: its simulator clogs random pairs of machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.lab.charts import Chart, lines, values
from peerd.lab.experiment import Column, Experiment, Notify, Point, Row, Settings
from peerd.lab.overlay import rows
from peerd.lab.simulated import lookups_action, simulate
from peerd.sim.simulation import Simulation

LONGEST_S: Final = 5.0
REROUTES: Final = "peerd_overlay_reroutes_total"


def measure(point: Point, notify: Notify) -> Row:
    """Run the same ring and lookups with a probability that each path stops each second. No node ever dies."""
    clogged = {"do": "impair", "clog": point.variant["clog"], "clog_longest": LONGEST_S, "duration": point.duration_s}
    phases = [
        {"name": "settle", "duration_s": point.settle_s},
        {"name": "clogs", "duration_s": point.duration_s, "actions": [clogged, lookups_action(point)]},
        rows.DRAIN,
    ]
    outcome = simulate(point, phases, notify)
    row = rows.lookups_row(outcome.report.workloads[0])
    delivered = row["correct"] + row["wrong"]
    reroutes = total(outcome.simulation, REROUTES)
    return {
        **row,
        "false_evictions": outcome.evictions.false,
        "reroutes": reroutes,
        "reroutes_per_lookup": round(reroutes / delivered, 4) if delivered else None,
        **outcome.cost(),
    }


def total(simulation: Simulation, metric: str) -> int:
    """Return the sum of a counter over all nodes."""
    return int(
        sum(
            value
            for place in simulation.live_nodes()
            for (name, _), value in place.driver.metrics.items()
            if name == metric
        )
    )


def derive(found: Sequence[Row]) -> list[Row]:
    """Return each row with its traffic relative to the row of the same ring without clogs."""
    calm = {_twin(row): row["bytes_per_s"] for row in found if row["clog"] == 0.0}
    return [
        {**row, "traffic_ratio": round(row["bytes_per_s"] / calm[_twin(row)], 4) if calm.get(_twin(row)) else None}
        for row in found
    ]


def _twin(row: Row) -> tuple[object, ...]:
    return row["nodes"], row["topology"], row["seed"]


def charts(found: Sequence[Row]) -> list[Chart]:
    """Draw the traffic against the probability of clogs."""
    percent = [{**row, "percent": 100 * row["clog"]} for row in found]
    return [
        Chart(
            "clogs",
            "Traffic when paths stop for up to 5 s",
            "probability that a path stops, per cent a second",
            "traffic, relative to none",
            lines(percent, "percent", "traffic_ratio", "nodes", "topology"),
            x_ticks=values(percent, "percent"),
        )
    ]


EXPERIMENTS: Final = (
    Experiment(
        "overlay/clogs",
        "false evictions and traffic when paths stop for up to 5 s",
        "no paper: the clogging of FoundationDB's simulator, as a question to the overlay",
        takes="--quick: 10 s; in full: 1 min",
        full=Settings(nodes=(300,), duration_s=600.0, lookups=6000),
        quick=Settings(nodes=(60,), duration_s=120.0, lookups=600, settle_s=60.0),
        columns=(
            *rows.POINT,
            Column("clog", "clogs", "probability, a second, that a path stops, for up to 5 s", 3),
            *rows.JUDGED,
            Column("false_evictions", "false evictions", "times that a node took a running one for dead"),
            Column("reroutes_per_lookup", "re-routes", "hops that refused or did not answer in time, a lookup", 3),
            Column("delay_p50_s", "p50 s", "median time from sending to delivery, seconds", 3),
            Column("delay_p95_s", "p95 s", "of that time", 3),
            *rows.TRAFFIC,
            Column("traffic_ratio", "traffic ratio", "bytes/s over those of the same ring without clogs", 3),
            *rows.COST,
        ),
        measure=measure,
        charts=charts,
        derive=derive,
        variants=tuple({"clog": clog} for clog in (0.0, 0.005, 0.01, 0.02)),
    ),
)
