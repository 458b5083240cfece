"""``overlay/failure``: many nodes vanish at once, or the network is cut in two. How long until there is one ring again?

Pastry (2001), section 3.4, has 10 % of the nodes fail silently; MSPastry (2004) has lookups while nodes fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from peerd.lab.charts import Chart, lines, values
from peerd.lab.experiment import Column, Experiment, Notify, Point, Row, Settings, Values
from peerd.lab.overlay import rows
from peerd.lab.simulated import lookups_action, simulate
from peerd.sim.report import ScenarioReport

VANISH, PARTITION = "vanish", "partition"
POLL_S: Final = 0.1
PARTITION_S: Final = 600.0
"""The length of a partition: long enough that each side removes the other one."""
REPAIRING, AFTER = "repair", "after"


def measure(point: Point, notify: Notify) -> Row:
    """Run the fault, lookups from the moment from which the ring can be repaired, and lookups after the repair."""
    fault, share = point.variant["fault"], point.variant["share"]
    strike: list[dict[str, Any]] = []
    before: list[Row] = [{"name": "settle", "duration_s": point.settle_s}]
    if fault == VANISH:
        strike = [{"do": "silence", "share": share}]
    else:
        assert isinstance(share, float)  # the share of the smaller part
        cut = {"do": "partition", "shares": [1.0 - share, share], "duration": PARTITION_S}
        before.append({"name": PARTITION, "duration_s": PARTITION_S, "actions": [cut]})
        strike = [{"do": "heal"}]
    wait = {"do": "wait_whole", "limit_s": point.duration_s, "poll_s": POLL_S}
    phases = [
        *before,
        {"name": REPAIRING, "duration_s": point.duration_s, "actions": [*strike, lookups_action(point), wait]},
        rows.DRAIN,
        {"name": AFTER, "duration_s": point.duration_s, "actions": [lookups_action(point)]},
        rows.DRAIN,
    ]
    outcome = simulate(point, phases, notify)
    return {**row_of(outcome.report), "false_evictions": outcome.evictions.false, **outcome.cost()}


def row_of(report: ScenarioReport) -> Row:
    """Return the seconds to a whole ring, and the outcome of lookups by when they were sent."""
    keys = ("lookups", "correct", "wrong", "lost", "orphaned", "correct_per_mille", "bytes_per_s")
    made: Row = {"repaired_s": report.repairs[0].took_s if report.repairs else None}
    for workload in report.workloads:
        made |= rows.with_prefix(workload.phase, rows.lookups_row(workload), *keys)
    return made


def charts(found: Sequence[Row]) -> list[Chart]:
    """Draw the seconds to repair, and the lookups that failed meanwhile, against the share of the nodes."""
    percent = [{**row, "percent": 100 * row["share"]} for row in found]
    failed = [
        {**row, "failed_per_mille": 1000 - row[f"{REPAIRING}_correct_per_mille"]}
        for row in percent
        if row.get(f"{REPAIRING}_correct_per_mille") is not None
    ]
    x, by = "share of the nodes that vanish, or are cut off, per cent", ("fault", "nodes", "topology")
    ticks = values(percent, "percent")
    return [
        Chart(
            "repair",
            "Time until the ring is whole again",
            x,
            "seconds",
            lines(percent, "percent", "repaired_s", *by),
            x_ticks=ticks,
        ),
        Chart(
            "repair-failures",
            "Lookups that failed while the ring was repaired",
            x,
            "per mille of the lookups",
            lines(failed, "percent", "failed_per_mille", *by),
            x_ticks=ticks,
        ),
    ]


def _lookups(phase: str, when: str) -> tuple[Column, ...]:
    return (
        Column(f"{phase}_lookups", f"{phase}: lookups", f"sent {when}, whose outcome counts"),
        Column(f"{phase}_wrong", "wrong", f"of those sent {when}: delivered by another node than the root"),
        Column(f"{phase}_lost", "lost", f"of those sent {when}: not delivered within 60 s"),
    )


SHARES: Final = {VANISH: (0.1, 0.2, 0.3, 0.4, 0.5), PARTITION: (0.5, 0.1)}
VARIANTS: Final[tuple[Values, ...]] = tuple(
    {"fault": fault, "share": share} for fault, shares in SHARES.items() for share in shares
)

EXPERIMENTS: Final = (
    Experiment(
        "overlay/failure",
        "time to one consistent ring after mass failure or a partition of 10 minutes",
        "Pastry (2001), section 3.4; MSPastry (2004), section 5",
        takes="--quick: 25 s",
        full=Settings(nodes=(1000,), duration_s=300.0, lookups=10_000),
        quick=Settings(nodes=(60,), duration_s=120.0, lookups=600, settle_s=60.0),
        columns=(
            *rows.POINT,
            Column("fault", "fault", "vanish: nodes lose power at once; partition: the network is cut for 10 minutes"),
            Column("share", "share", "of the nodes that vanish, or are in the smaller part"),
            Column("repaired_s", "whole after s", "from the fault (partition: its end) to a whole ring, to 0.1 s", 1),
            *_lookups(REPAIRING, "from that moment, for the measured time"),
            *_lookups(AFTER, "later, for as long"),
            Column("false_evictions", "false", "running nodes that a node took for dead; in a partition, all of them"),
            *rows.COST,
        ),
        measure=measure,
        charts=charts,
        variants=VARIANTS,
    ),
)
