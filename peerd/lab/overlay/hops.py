"""``overlay/hops``: how many hops lookups take in a calm ring, and what the ring costs.

Rowstron and Druschel, *Pastry* (Middleware 2001), figures 4 (mean hops against the number of nodes) and 5 (distribution
of hops).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from peerd.ids import DIGIT_VALUES
from peerd.lab.charts import Chart, Line, lines, reference, values
from peerd.lab.experiment import Column, Experiment, Notify, Point, Row, Settings
from peerd.lab.overlay import rows
from peerd.lab.simulated import lookups_action, simulate
from peerd.sim.checkers import TableCoverage
from peerd.sim.simulation import Simulation

ABOVE_LOG: Final = 0.1
"""The mean number of hops may be this much above log16 N."""


def expected_hops(nodes: int) -> float:
    """Return log16 N."""
    return math.log(nodes, DIGIT_VALUES) if nodes > 1 else 0.0


def measure(point: Point, notify: Notify) -> Row:
    """Run a ring without faults, whose tables have had time to fill, and lookups from random nodes to random keys."""
    phases = [
        {"name": "settle", "duration_s": point.settle_s},
        {"name": "lookups", "duration_s": point.duration_s, "actions": [lookups_action(point)]},
        rows.DRAIN,
    ]
    outcome = simulate(point, phases, notify, weigh_at="lookups")
    filled, share = coverage(outcome.simulation)
    return {
        **rows.lookups_row(outcome.report.workloads[0]),
        "expected_hops": round(expected_hops(point.nodes) + ABOVE_LOG, 4),
        "full_tables_share": filled,
        "cells_share": share,
        "links": links(outcome.simulation),
        **outcome.cost(),
    }


def coverage(simulation: Simulation) -> tuple[float, float]:
    """Return the share of nodes whose routing table has no fillable cell empty and no dead entry, and of such cells."""
    checker, live = TableCoverage(), simulation.live_nodes()
    full = sum(not checker.check_node(simulation, place) for place in live)
    return round(full / max(len(live), 1), 4), round(checker.filled / max(checker.fillable, 1), 6)


def links(simulation: Simulation) -> float:
    """Return the mean number of open connections of a node."""
    live = simulation.live_nodes()
    return round(sum(len(place.driver.links) for place in live) / max(len(live), 1), 2)


def hops_charts(found: Sequence[Row]) -> list[Chart]:
    """Draw the mean number of hops against the size, and the distribution."""
    sizes = [nodes for nodes in values(found, "nodes") if nodes > 1]
    theory = reference("log16 N", [(nodes, expected_hops(nodes)) for nodes in sizes])
    return [
        Chart(
            "hops",
            "Hops of a lookup in a calm ring",
            "nodes",
            "mean hops",
            (*lines(found, "nodes", "mean_hops", "topology", name="measured"), theory),
            x_is_log=True,
            x_ticks=tuple(sizes),
        ),
        Chart(
            "hops-distribution",
            "Distribution of hops in a calm ring",
            "hops",
            "share of lookups",
            shares(found),
            x_ticks=tuple(range(_longest(found))),
        ),
    ]


def shares(found: Sequence[Row]) -> tuple[Line, ...]:
    """Return the share of the lookups by hops, a line for each size and topology."""
    flat = [
        {**row, "hops": hops, "share": row["hops_shares"][hops] if hops < len(row["hops_shares"]) else 0.0}
        for row in found
        for hops in range(_longest(found))
    ]
    return lines(flat, "hops", "share", "nodes", "topology")


def _longest(found: Sequence[Row]) -> int:
    return max((len(row["hops_shares"]) for row in found), default=0)


HOPS: Final = Column("mean_hops", "mean hops", "from source to root, of the delivered lookups")
STRETCH: Final = Column("stretch", "stretch", "latency of the path over the direct latency to the root, ratio of means")
FULL: Final = Column("full_tables_share", "full tables", "share of nodes with every fillable table cell filled", 3)
QUICK: Final = Settings(nodes=(50, 100), duration_s=100.0, lookups=1000, settle_s=100.0)

EXPERIMENTS: Final = (
    Experiment(
        "overlay/hops",
        "hops, cost and state in a calm ring, against its size",
        "Pastry (Rowstron and Druschel 2001), figures 4 and 5",
        takes="--quick: 10 s; in full: 12 min",
        full=Settings(nodes=(100, 300, 1000, 5000), duration_s=600.0, lookups=20_000),
        quick=QUICK,
        columns=(
            *rows.POINT,
            *rows.JUDGED,
            HOPS,
            Column("expected_hops", "log16 N + 0.1", "what the mean should not exceed"),
            Column("hops_p50", "p50", "median of the hops"),
            Column("hops_p95", "p95", "of the hops"),
            Column("hops_p99", "p99", "of the hops"),
            STRETCH,
            FULL,
            Column("cells_share", "cells", "share of all fillable cells that are filled", 4),
            *rows.TRAFFIC,
            Column("links", "links", "open connections of a node, mean", 1),
            Column("node_kib", "KiB/node", "resident memory of the simulator, a node; differs from run to run", 0),
            *rows.COST,
        ),
        measure=measure,
        charts=hops_charts,
    ),
)
