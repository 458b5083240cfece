"""``overlay/stretch``: how much longer a lookup's path is than the direct one, and how much of that is due to tables.

Rowstron and Druschel, *Pastry* (Middleware 2001), figure 6 (distance travelled, relative to the direct distance). What
Castro, Druschel, Hu and Rowstron (*Exploiting network proximity in peer-to-peer overlay networks*, 2002) compare with
is a table whose every cell holds the nearest node that fits: it is computed here for the very same ring (see `paths`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from peerd.lab.charts import Chart, Line, lines, values
from peerd.lab.experiment import Column, Experiment, Notify, Point, Row, Settings
from peerd.lab.overlay import rows
from peerd.lab.overlay.paths import Walked, pairs, perfect_tables, random_tables, shipped, through, walk
from peerd.lab.simulated import lookups_action, simulate
from peerd.node.node import SENT, SENT_BYTES, Traffic
from peerd.sim.simulation import Simulation
from peerd.sim.workload import PAYLOAD

AGES_S: Final = (60.0, 600.0)
"""How long after the last join the ring is looked at, seconds; it is looked at once more at the end of the run."""
LOOKUPS_S: Final = 60.0
"""For so long real lookups are sent at the end, to check that messages take the computed paths."""
CALM, LOOKUPS = "calm", "lookups"
NAMES: Final = {60.0: "minute", 600.0: "ten"}
END: Final = "end"


@dataclass
class Looks:
    """The measurements of one ring."""

    count: int
    """How many walks there are."""
    begun_s: float = 0.0
    node_seconds: float = 0.0
    sent: Traffic = field(default_factory=Traffic)
    walked: dict[str, Walked] = field(default_factory=dict)
    control_per_s: float = 0.0
    bytes_per_s: float = 0.0
    links: float = 0.0

    def begin(self, simulation: Simulation) -> None:
        """Begin when the last node has joined."""
        self.begun_s, self.node_seconds = simulation.now, simulation.truth.node_seconds
        self.sent = simulation.traffic()

    def take(self, name: str, simulation: Simulation) -> None:
        """Walk through the tables as they are now."""
        self.walked[name] = walk(simulation, pairs(simulation, self.count), shipped)

    def finish(self, simulation: Simulation) -> None:
        """Measure a last time, before any lookup has been sent, and compare with other tables."""
        wanted = pairs(simulation, self.count)
        self.take(END, simulation)
        self.walked["perfect"] = walk(simulation, wanted, through(perfect_tables(simulation)))
        self.walked["random"] = walk(simulation, wanted, through(random_tables(simulation)))
        node_seconds = max(simulation.truth.node_seconds - self.node_seconds, 1e-9)
        live = simulation.live_nodes()
        self.links = sum(len(place.driver.links) for place in live) / max(len(live), 1)
        for type_id, counts in simulation.traffic().items():
            before = self.sent[type_id]
            if type_id not in PAYLOAD:
                self.control_per_s += (counts[SENT] - before[SENT]) / node_seconds
            self.bytes_per_s += (counts[SENT_BYTES] - before[SENT_BYTES]) / node_seconds

    def row(self) -> Row:
        """Return the columns; those of an age that was not reached are `None`."""
        perfect = self.walked["perfect"].stretch
        row: Row = {
            "perfect": round(perfect, 4),
            "random": round(self.walked["random"].stretch, 4),
            "perfect_hops": round(self.walked["perfect"].mean_hops, 4),
            "path_hops": round(self.walked[END].mean_hops, 4),
            "astray": self.walked[END].astray,
            "calm_per_s": round(self.control_per_s, 4),
            "calm_bytes_per_s": round(self.bytes_per_s, 2),
            "links": round(self.links, 2),
        }
        for name in (*NAMES.values(), END):
            walked = self.walked.get(name)
            row[f"{name}_stretch"] = None if walked is None else round(walked.stretch, 4)
            row[f"{name}_ratio"] = None if walked is None else round(walked.stretch / perfect, 4)
        return row


def measure(point: Point, notify: Notify) -> Row:
    """Measure a ring without lookups while its tables improve; then send lookups from random nodes to random keys."""
    ages_s = [age_s for age_s in AGES_S if age_s < point.duration_s]
    bounds_s = [0.0, *ages_s, point.duration_s]
    calm = [f"{CALM} {age_s:g}" for age_s in bounds_s[:-1]]
    names = dict(zip(calm[1:], (NAMES[age_s] for age_s in ages_s), strict=True))
    looks = Looks(point.lookups)

    def look(phase: str, simulation: Simulation) -> None:
        if phase == calm[0]:
            looks.begin(simulation)
        elif phase in names:
            looks.take(names[phase], simulation)
        elif phase == LOOKUPS:
            looks.finish(simulation)
            if point.duration_s in NAMES:
                looks.walked[NAMES[point.duration_s]] = looks.walked[END]

    brief = replace(point, duration_s=LOOKUPS_S)
    phases = [
        *(
            {"name": name, "duration_s": until_s - from_s}
            for name, from_s, until_s in zip(calm, bounds_s, bounds_s[1:], strict=False)
        ),
        {"name": LOOKUPS, "duration_s": LOOKUPS_S, "actions": [lookups_action(brief)]},
        rows.DRAIN,
    ]
    outcome = simulate(point, phases, notify, look=look)
    return {**rows.lookups_row(outcome.report.workloads[0]), **looks.row(), **outcome.cost()}


def charts(found: Sequence[Row]) -> list[Chart]:
    """Draw the stretch against the size, and relative to perfect tables."""
    return [
        Chart(
            "stretch",
            "Path of a lookup relative to the direct way, in the end",
            "nodes",
            "stretch (ratio of mean latencies)",
            _lines(found, measured="end_stretch", perfect="perfect", random="random"),
            x_is_log=True,
            x_ticks=values(found, "nodes"),
        ),
        Chart(
            "stretch-age",
            "Path of a lookup relative to the path through perfect tables",
            "nodes",
            "stretch over that of perfect tables",
            _lines(found, **{"one minute": "minute_ratio", "in the end": "end_ratio"}),
            x_is_log=True,
            x_ticks=values(found, "nodes"),
        ),
    ]


def _lines(found: Sequence[Row], **columns: str) -> tuple[Line, ...]:
    return tuple(
        line
        for name, column in columns.items()
        if (known := [row for row in found if row[column] is not None])
        for line in lines(known, "nodes", column, "topology", name=name)
    )


EXPERIMENTS: Final = (
    Experiment(
        "overlay/stretch",
        "latency of paths relative to the direct way and to perfect tables, in several topologies",
        "Pastry (Rowstron and Druschel 2001), figure 6",
        takes="--quick: 20 s",
        full=Settings(
            nodes=(200, 500, 1000), duration_s=600.0, lookups=10_000, topologies=("euclidean", "sphere", "transit-stub")
        ),
        quick=Settings(nodes=(50, 100), duration_s=120.0, lookups=1000, topologies=("euclidean", "sphere")),
        columns=(
            *rows.POINT,
            Column("perfect", "perfect", "stretch with the nearest node that fits in every cell of every table"),
            Column("random", "random", "stretch with any node that fits in every cell"),
            Column("minute_stretch", "1 min", "stretch of the ring's own tables, one minute after the last join"),
            Column("minute_ratio", "/ perfect", "the same over that of perfect tables", 3),
            Column("ten_stretch", "10 min", "stretch after ten minutes, where more are measured"),
            Column("ten_ratio", "/ perfect", "the same over that of perfect tables", 3),
            Column("end_stretch", "end", "stretch at the end of the calm time (--duration)"),
            Column("end_ratio", "/ perfect", "the same over that of perfect tables", 3),
            Column("path_hops", "hops", "mean hops in the end"),
            Column("perfect_hops", "perfect hops", "mean hops through perfect tables"),
            Column(
                "calm_per_s", "control/s", "control messages sent, a second a node, from the last join to the end", 3
            ),
            Column("calm_bytes_per_s", "bytes/s", "their bytes", 1),
            Column("links", "links", "open connections of a node, mean", 1),
            Column("stretch", "by the clock", "stretch of real lookups, sent in the minute after that"),
            *rows.JUDGED,
            *rows.COST,
        ),
        measure=measure,
        charts=charts,
    ),
)
