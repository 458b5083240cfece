"""A sum or mean over all nodes that one of them watches, with bounds (beyond chapter 7): in T, and as rivals would.

Each node's value changes once in `STEP_S`, at a moment of its own. ``within``: by how much the mean may be wrong, as a
share of what one value ranges over; the sum may be wrong by as much for each node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import fsum
from random import Random
from statistics import fmean
from typing import Final, TypeVar
from unittest.mock import patch

from peerd.ids import NodeId
from peerd.lab.experiment import Beginning, Notify, Point, Row
from peerd.sim.rng import fork
from peerd.sim.simulation import Simulation
from peerd.sim.world import rare_collections
from protocols.measurement.aggregates import subtree
from protocols.measurement.aggregates.budget import child_half_widths
from protocols.measurement.front.lab.counting import by_message, difference, rates_row, received, sent
from protocols.measurement.front.lab.run import FOUND_S, TTL_S, VALUE, FormedRing, formed, plugin_at, ring_with
from protocols.measurement.front.lab.series import cpu_series, shifted
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.readings import NoReading, Reading
from protocols.measurement.standing import StandingQuery

STEP_S: Final = 1.0
WARM_S: Final = 60.0
"""So long all is told for the first time, and nothing is counted."""
STALE_S: Final = 60.0
"""So old parts may be: as long as an aggregate in T can have it, as each node is heard of in that time anyway."""
OWNERS: Final[Row] = {
    "system": False,
    "placing": "owners",
    "cache_values": 0,
    "max_age": f"{STALE_S:g}s",
    "update_interval": f"{STALE_S / 4:g}s",
    "ask_interval": f"{STALE_S / 3 - 1:g}s",
    "describe_interval": "50m",
}
TREE: Final[Row] = {**OWNERS, "placing": "tree"}
SETTINGS: Final[Mapping[str, Row]] = {"tree": TREE, "even": TREE, "star": OWNERS, "scrape": OWNERS}
"""By way. tree: the plugin's own. even: the same tree, with the same share of the imprecision for the filter of each
node (Jain et al. 2008, PRISM, whose shares are fixed here). star: the parts are told to who asks, each with the same
bounds (Olston et al. 2003). scrape: who asks reads all values once in `STEP_S`."""
K = TypeVar("K")


def even_half_widths(function: str, half_width: float, counts: Mapping[K, int]) -> dict[K, float]:
    """As `child_half_widths`, with the same share for the filter of each node of the tree."""
    nodes = 1 + sum(counts.values())
    return {child: half_width * count / nodes for child, count in counts.items()}


FLOOR: Final = 1.0
"""Bounds as wide as this are hardly ever broken: what is sent all the same keeps the answer up."""
WITHIN: Final = (0.005, 0.02, 0.1, FLOOR)
VARIANTS: Final = tuple(
    {"source": source, "function": function, "within": within, "way": way}
    for source in ("walk", "cpu")
    for function, way, several in (
        ("SUM", "tree", WITHIN),
        ("SUM", "even", WITHIN),
        ("SUM", "star", WITHIN),
        ("SUM", "scrape", (FLOOR,)),
        ("MEAN", "tree", WITHIN[1:2]),
    )
    for within in several
)
SPLITS: Final = {"even": even_half_widths}


def ring_of(point: Point) -> str:
    """As `run.ring_of`."""
    return f"aggregates {ring_with(point, SETTINGS[str(point.variant['way'])])}"


def prepare(point: Point, notify: Notify) -> FormedRing:
    """Let a ring form."""
    return formed(point, SETTINGS[str(point.variant["way"])], notify)


def measure(point: Point, notify: Notify) -> Row:
    """Run a point from its beginning."""
    return measure_on(prepare(point, notify), point, notify)


def measure_on(ring: FormedRing, point: Point, notify: Notify) -> Row:
    """Let one node watch the aggregate on such a ring, and count. Without the file of real series there is no row."""
    if ring.outcome.report.failure is not None:
        return ring.outcome.cost()
    begun, simulation = time.process_time(), ring.outcome.simulation
    rng = fork(point.seed, "measurement", "aggregates")
    steps = 2 + int((FOUND_S + WARM_S + point.duration_s) / STEP_S)
    values = SOURCES[str(point.variant["source"])](rng, len(simulation.live_nodes()), steps)
    row: Row = {"total_per_s": None}
    if values:
        split = SPLITS.get(str(point.variant["way"]), child_half_widths)
        with rare_collections(), patch.object(subtree, "child_half_widths", split):
            watched = WatchedAggregate(simulation, point.variant, values, rng)
            watched.begin()
            notify("watch", simulation.now)
            row = watched.count(point.duration_s)
    cost = {"events": simulation.engine.events, "simulated_s": round(simulation.now, 3)}
    processor_s = round(ring.processor_s + time.process_time() - begun, 2)
    return {**row, **ring.outcome.cost(), **cost, "processor_s": processor_s}


BEGINNING: Final = Beginning(ring_of, prepare, measure_on)


def _walks(rng: Random, nodes: int, steps: int) -> list[list[float]]:
    """Random walks with normal steps of deviation 1."""
    return [list(accumulate(rng.gauss(0.0, 1.0) for _ in range(steps))) for _ in range(nodes)]


def _processors(rng: Random, nodes: int, steps: int) -> list[list[float]]:
    """Real series, a sample a step; none without their file."""
    return shifted(cpu_series(), rng, nodes, steps) if cpu_series() else []


SOURCES: Final[Mapping[str, Callable[[Random, int, int], list[list[float]]]]] = {"walk": _walks, "cpu": _processors}


def beside_others(found: Sequence[Row]) -> list[Row]:
    """Add how much is sent for broken bounds, and what the total is in multiples of reading all values each second."""

    def total(row: Row, way: str) -> float | None:
        key = [row[name] for name in ("nodes", "topology", "seed", "source")]
        same = (each for each in found if [each[name] for name in ("nodes", "topology", "seed", "source")] == key)
        return next((each.get("total_per_s") for each in same if (each["way"], each["within"]) == (way, FLOOR)), None)

    made = []
    for row in found:
        own, floor, scrape = row.get("total_per_s"), total(row, row["way"]), total(row, "scrape")
        above = None if own is None or floor is None else round(own - floor, 3)
        share = None if own is None or not scrape else round(own / scrape, 4)
        made.append({**row, "above_floor_per_s": above, "of_scrape": share})
    return made


class WatchedAggregate:
    """The values of all nodes, and what the one that asks knows of their sum or mean."""

    def __init__(
        self, simulation: Simulation, variant: Mapping[str, object], values: Sequence[Sequence[float]], rng: Random
    ) -> None:
        self._simulation, self._values, self._rng = simulation, values, rng
        self._way, self._function = str(variant["way"]), str(variant["function"])
        self._places = simulation.live_nodes()
        self._asker = rng.choice(self._places)
        ranges = fmean(max(each) - min(each) for each in values)
        self._half_width = float(str(variant["within"])) * ranges
        """Of each value, and of the mean."""
        self._shown_by = len(values) if self._function == "MEAN" else 1
        self._width = self._half_width * len(values) / self._shown_by
        self._now: list[float] = [each[0] for each in values]
        self._scraped: dict[NodeId, Interval] = {}
        self._query: StandingQuery | None = None

    def begin(self) -> None:
        """Values change from now on, and one node asks."""
        for node, place in enumerate(self._places):
            plugin_at(place).put(VALUE, self._now[node], TTL_S)
            plugin_at(place).readings.kept_max = 0
        plugin = plugin_at(self._asker)
        plugin.directory.refreshed(lambda: None, fresh_s=0.0)
        self._simulation.run_for(FOUND_S)
        for node in range(len(self._places)):
            self._later(self._rng.uniform(0.0, STEP_S), self._step, node, 1)
        if self._way == "star":
            plugin.watching.hold({VALUE: self._half_width}, [each.id for each in self._places], STALE_S)
        elif self._way == "scrape":
            self._scrape()
        else:
            text = f"WATCH SELECT {self._function}({VALUE}) FROM nodes WITHIN {self._width:.9f} STALE {STALE_S:g}s"
            self._query = plugin.queries.watch(text)
            self._query.feed.reader()
        self._simulation.run_for(WARM_S)

    def count(self, duration_s: float) -> Row:
        """What is sent in this time, and how good the answer is, looked at once a second."""
        before, heard = sent(self._simulation), received(self._asker)
        known: list[Interval | None] = []
        outside = 0
        for _ in range(int(duration_s)):
            self._simulation.run_for(1.0)
            known.append(interval := self._answer())
            outside += interval is not None and not interval.holds(fsum(self._now) / self._shown_by)
        counts = difference(before, sent(self._simulation))
        told = [each for each in known if each is not None]
        return {
            **rates_row(counts, duration_s),
            "asker_per_s": rates_row(difference(heard, received(self._asker)), duration_s)["total_per_s"],
            "by_message": by_message(counts, duration_s),
            "unknown_share": round(1 - len(told) / len(known), 4),
            "outside_share": round(outside / len(told), 4) if told else None,
            "width_share": round(fmean(each.half_width for each in told) / self._width, 4) if told else None,
        }

    def _later(self, delay_s: float, act: Callable[..., None], *args: object) -> None:
        self._simulation.after(delay_s, lambda: act(*args))

    def _step(self, node: int, step: int) -> None:
        self._now[node] = self._values[node][step]
        plugin_at(self._places[node]).put(VALUE, self._now[node], TTL_S)
        if step + 1 < len(self._values[node]):
            self._later(STEP_S, self._step, node, step + 1)

    def _scrape(self) -> None:
        plugin = plugin_at(self._asker)
        wants = [Want(Measurement(each.id, VALUE), 0.0) for each in self._places if each is not self._asker]

        def told(answers: list[Reading | NoReading]) -> None:
            known = (each for each in answers if isinstance(each, Reading))
            self._scraped.update((each.measurement.owner, each.interval) for each in known)

        plugin.readings.read(wants, STALE_S, told)
        self._later(STEP_S, self._scrape)

    def _answer(self) -> Interval | None:
        """What the asker would tell a client now."""
        plugin, parts = plugin_at(self._asker), dict(self._scraped)
        if self._query is not None:
            told = self._query.aggregate and plugin.aggregates.answer(self._query.aggregate)
            return told.interval if told else None
        for each in self._places:
            held = plugin.caching.read(Measurement(each.id, VALUE), self._simulation.now)
            if held is not None:
                parts[each.id] = held.claim.interval
        if len(parts) < len(self._places):
            return None
        low, high = fsum(each.low for each in parts.values()), fsum(each.high for each in parts.values())
        return Interval(low / self._shown_by, high / self._shown_by)
