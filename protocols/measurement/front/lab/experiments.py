"""The experiments ``measurement/...`` of ``peerd lab``: chapter 7 of the paper (Chandramouli), and what it leaves open.

Nodes hang on random routers of an Inet graph, as the paper's do, where the folder that ``PEERD_DATA`` names has one;
else they are random points of a square with the same mean round trip. docs/reproducing/bounded-caching.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from peerd.lab.experiment import Beginning, Column, Draw, Experiment, Notify, Point, Row, Settings, Values
from peerd.lab.overlay import rows
from peerd.lab.topologies import measured_or_square
from protocols.measurement.front.lab import aggregates, bounds, charts, run
from protocols.measurement.front.lab.claims import PAPER_SAYS
from protocols.measurement.front.lab.optimum import best_caches, without_caches
from protocols.measurement.front.lab.workload import FAR, FAR_SIBLINGS

PAPER: Final = "Chandramouli"
INET: Final = "topology/inet-3000.txt"
MEAN_RTT: Final = "80ms"
NODES: Final = 250
QUICK_NODES: Final = 60
"""Enough for the 40 owners of W1."""
SECONDS: Final = 1000.0
QUICK_SECONDS: Final = 128.0
SETTLE_S: Final = 600.0
QUICK_SETTLE_S: Final = 30.0


def topology() -> str:
    """The Inet graph of `PEERD_DATA` where there is one, else random points of a square; the mean is the same."""
    return measured_or_square("inet-3000", INET, MEAN_RTT)


WAY: Final = Column(
    "way",
    "way",
    "naive: owners are asked. scrape: of all nodes. alone: who asks caches. squares: by coordinates. tree: by routes. "
    "by tag: whichever has the tag of the owners",
)
CACHE: Final = Column("cache", "cache", "values that a node caches at most; 0: none")
WORKLOAD: Final = Column(
    "workload",
    "workload",
    "groups of NQNO, NQFO, FQNO and FQFO; far: one of near nodes far apart",
)
TRAFFIC: Final = (
    Column("foreground_per_s", "foreground/s", "messages of reads a second, all nodes together"),
    Column("background_per_s", "background/s", "all other messages of caching"),
    Column("total_per_s", "total/s", "both"),
    Column("messages", "messages", "of both, in the whole time"),
)
WARM: Final = (
    Column("warm_foreground_per_s", "warm foreground/s", "the same without the first fifth of the time"),
    Column("warm_total_per_s", "warm total/s", "the same of both"),
)
ANSWERS: Final = (
    Column("answered", "answers", "of reads that are over, without the first fifth of the time, as all that follows"),
    Column("missing", "missing", "values without an answer"),
    Column("stale", "stale", "values that nobody has vouched for in time"),
    Column("outside_share", "outside", "share of values that were out of their bounds as the answer came", 4),
    Column("latency_ms", "latency ms", "until an answer is whole, mean", 1),
    Column("latency_p99_ms", "p99 ms", "99 % take no longer", 1),
    Column("at_once_share", "at once", "share of reads that need no message", 3),
)
BESIDE: Final = (
    Column("of_no_cache", "/ no cache", "the warm total, in multiples of what it is without caches", 3),
    Column("reads_of_no_cache", "reads / no cache", "the same of the foreground", 3),
)
WORST: Final = Column("worst_bucket", "worst 16 s", "the largest total in 16 s, in multiples of that without caches", 3)
BROKEN: Final = Column("broken_per_s", "updates", "a second and measurement, that one holder would be sent", 3)
APART: Final = (
    Column("tree_per_s", "tree/s", "messages a second on who is below whom in the tree; in no total"),
    Column("directory_per_s", "nodes/s", "messages a second on which nodes there are; in no total"),
)
STEP: Final = Column("step_s", "step s", "a value makes a step so often", 0)
SIGMA: Final = Column("sigma", "sigma", "deviation of a step", 1)
OWNERS: Final = Column("n_o", "n_o", "owners of each query")

SAME: Final = ("nodes", "topology", "seed", "workload", "n_q", "n_o", "sigma", "step_s", "rises")
"""What has to be the same for two rows to be compared."""


def beside_no_cache(found: Sequence[Row]) -> list[Row]:
    """Add what traffic is in multiples of that of the same tree, queries and values without caches."""
    base = {_key(row): row for row in found if row.get("cache") == 0 and row.get("way", "tree") == "tree"}
    return [{**row, **_compared(row, base.get(_key(row)))} for row in found]


def _key(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in SAME)


def _compared(row: Row, base: Row | None) -> Row:
    if base is None or not base.get("warm_total_per_s") or row.get("warm_total_per_s") is None:
        return {"of_no_cache": None, "reads_of_no_cache": None, "worst_bucket": None}
    pairs = zip(_totals(row), _totals(base), strict=False)
    return {
        "of_no_cache": round(row["warm_total_per_s"] / base["warm_total_per_s"], 4),
        "reads_of_no_cache": round(row["warm_foreground_per_s"] / base["warm_foreground_per_s"], 4),
        "worst_bucket": round(max(one / other for one, other in pairs if other), 3),
    }


def _totals(row: Row) -> list[float]:
    return [one + other for one, other in zip(row["foreground_of"], row["background_of"], strict=True)]


def measure_optimum(point: Point, notify: Notify) -> Row:
    """Run a point, and find the least that its reads and updates could have cost along the same tree."""
    return measure_beside_optimum(run.prepare(point, notify), point, notify)


def measure_beside_optimum(ring: run.FormedRing, point: Point, notify: Notify) -> Row:
    """The same on a ring that has formed."""
    row, monitoring = run.measured(ring, point, notify)
    if monitoring is None:
        return row
    parents, queries = run.parents_of(monitoring.simulation), monitoring.queries()
    rates = {owner: count / point.duration_s for owner, count in monitoring.broken().items()}
    best = best_caches(parents, queries, rates)
    return {
        **row,
        "optimum_per_s": round(best.cost, 3),
        "none_per_s": round(without_caches(parents, queries), 3),
        "caches": sum(len(nodes) for nodes in best.caches.values()),
        "over_optimum": round(row["warm_total_per_s"] / best.cost, 3),
    }


def ring_beside_optimum(point: Point) -> str:
    """As `run.ring_of`, but no ring is shared with points that go on in another way."""
    return f"optimum {run.ring_of(point)}"


@dataclass(frozen=True, slots=True)
class CachingFigure:
    """One experiment."""

    title: str
    figure: str
    columns: Sequence[Column]
    charts: Draw
    variants: Sequence[Values]
    takes: str = "--quick: 20 s"
    seconds: float = SECONDS
    measure: Callable[[Point, Notify], Row] = run.measure
    beginning: Beginning | None = run.BEGINNING
    derive: Callable[[Sequence[Row]], list[Row]] = beside_no_cache

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name."""
        full = Settings((NODES,), self.seconds, 0, SETTLE_S, (topology(),))
        quick = Settings((QUICK_NODES,), QUICK_SECONDS, 0, QUICK_SETTLE_S, (topology(),))
        return Experiment(
            name,
            self.title,
            f"{PAPER}, {self.figure}",
            takes=self.takes,
            full=full,
            quick=quick,
            columns=(*rows.POINT, *self.columns, *rows.COST),
            measure=self.measure,
            charts=self.charts,
            variants=tuple(self.variants),
            derive=self.derive,
            beginning=self.beginning,
            paper=PAPER_SAYS.get(name, ""),
        )


def caches(*sizes: int, **choices: float | str) -> list[Values]:
    """A variant of the tree for each size of the caches."""
    return [{"way": "tree", "cache": size, **choices} for size in sizes]


def ways(*names: str, **choices: float | str) -> list[Values]:
    """A variant for each way of caching, with caches of 100 values."""
    return [{"way": name, "cache": 100, **choices} for name in names]


def workloads(texts: Iterable[str], cache: int, n_q: int, n_o: int) -> list[Values]:
    """A variant for each workload, with such caches and without."""
    return [each for text in texts for each in caches(cache, 0, workload=text, n_q=n_q, n_o=n_o)]


MORE_NEAR_QUERIERS: Final = ("0,0,2,2", "1,0,2,1", "2,0,2,0", "2,1,0,1", "2,2,0,0")
MORE_NEAR_OWNERS: Final = ("0,0,0,4", "0,0,1,3", "0,0,2,2", "0,0,3,1", "0,0,4,0")
FAST_STEP_S: Final = 0.25
FAST_SIGMA: Final = 36.0
"""Steps so often and so long that bounds of +-10 are broken three times a second."""
ONE: Final[dict[str, float | str]] = {"workload": FAR_SIBLINGS, "n_q": 4, "n_o": 1}
REGION: Final[dict[str, float | str]] = {"workload": FAR, "n_q": 5, "n_o": 12}

FIGURES: Final = {
    "traffic": CachingFigure(
        "traffic over time, with caches and without",
        "figures 7.2 and 7.3",
        (CACHE, *TRAFFIC, *WARM, *BESIDE, BROKEN, *APART, *ANSWERS),
        charts.in_time("traffic", "Traffic over time, W1", charts.cached),
        caches(100, 0),
    ),
    "cache-size": CachingFigure(
        "total traffic by the size of caches",
        "figure 7.4",
        (CACHE, *TRAFFIC, *BESIDE),
        charts.bars("cache-size", "Total traffic by the size of caches, W1", charts.column("cache")),
        caches(0, 1, 2, 5, 10, 20, 50, 100),
    ),
    "volatility": CachingFigure(
        "traffic while values become more volatile",
        "figure 7.5",
        (CACHE, *TRAFFIC, WORST, BROKEN),
        charts.volatility,
        caches(100, 0, rises=1, step_s=FAST_STEP_S, sigma=FAST_SIGMA),
    ),
    "near-queriers": CachingFigure(
        "total traffic as more queriers are near each other",
        "figure 7.6",
        (WORKLOAD, CACHE, *TRAFFIC, *BESIDE),
        charts.bars("near-queriers", "Total traffic as more queriers are near each other", charts.workload_of),
        workloads(MORE_NEAR_QUERIERS, cache=100, n_q=5, n_o=4),
    ),
    "near-owners": CachingFigure(
        "total traffic as more owners are near each other",
        "figure 7.7",
        (WORKLOAD, CACHE, *TRAFFIC, *BESIDE),
        charts.bars("near-owners", "Total traffic as more owners are near each other, caches of 8", charts.workload_of),
        workloads(MORE_NEAR_OWNERS, cache=8, n_q=4, n_o=10),
    ),
    "bounds": CachingFigure(
        "updates by the width of bounds, of latencies and of real series",
        "figure 7.8",
        (
            Column("source", "source", "network: latencies in the simulation; planetlab, cpu: real series"),
            Column("measurements", "measurements", "values that are held, or series"),
            Column("narrowest", "narrowest", "updates with the narrowest bounds", 4),
            Column("widest", "widest", "updates with the widest", 4),
        ),
        charts.bounds,
        [{"source": source} for source in bounds.WIDTHS],
        seconds=500.0,
        measure=bounds.measure,
        beginning=None,
        derive=list,
    ),
    "latency": CachingFigure(
        "latency of four near queriers of one owner far away",
        "figure 7.9",
        (WAY, SIGMA, BROKEN, *ANSWERS, *TRAFFIC),
        charts.latencies,
        [each for sigma in (7.0, 20.0, 60.0) for each in ways("naive", "squares", "tree", sigma=sigma, **ONE)],
        seconds=480.0,
    ),
    "total": CachingFigure(
        "total traffic of five near queriers of 12 near owners far away",
        "figure 7.10",
        (WAY, *TRAFFIC, *WARM, *ANSWERS),
        charts.bars("total", "Total traffic, 12 owners far away", charts.way),
        [*ways("naive", "alone", "squares", "tree", **REGION), *caches(0, **REGION)],
        seconds=480.0,
    ),
    "rivals": CachingFigure(
        "W1 with all ways of caching, and without",
        "beyond chapter 7",
        (WAY, CACHE, *TRAFFIC, *WARM, *BESIDE, *ANSWERS),
        charts.bars("rivals", "Total traffic, W1", charts.way),
        [*ways("naive", "alone", "squares", "tree"), *caches(0)],
        seconds=480.0,
    ),
    "tags": CachingFigure(
        "total traffic of far queriers of far owners that have a tag in common",
        "section 5.2",
        (WAY, *TRAFFIC, *WARM, *ANSWERS),
        charts.bars("tags", "Total traffic, owners with a tag in common", charts.way),
        ways("naive", "squares", "squares by tag", "tree", "tree by tag", workload="0,0,0,2"),
        seconds=480.0,
    ),
    "scraping": CachingFigure(
        "W1 where all who ask scrape all nodes, as monitoring servers do",
        "beyond chapter 7",
        (WAY, *TRAFFIC, *ANSWERS),
        charts.bars("scraping", "Total traffic, W1", charts.way),
        ways("naive", "tree", "scrape"),
        seconds=160.0,
    ),
    "steps": CachingFigure(
        "W1 where values change more often or less",
        "which does not say how often they do",
        (CACHE, STEP, BROKEN, *TRAFFIC, *BESIDE),
        charts.over(
            "steps", "Total traffic by how often values change, W1", "step_s", "seconds a step", label=charts.way
        ),
        [each for step_s in (1.0, 2.0, 4.0, 8.0, 16.0) for each in caches(100, 0, step_s=step_s)],
        seconds=480.0,
    ),
    "optimum": CachingFigure(
        "total traffic beside the least along the same tree, of small workloads",
        "beyond chapter 7",
        (
            CACHE,
            OWNERS,
            *WARM,
            Column("optimum_per_s", "optimum/s", "messages a second of the offline optimum"),
            Column("over_optimum", "/ optimum", "the warm total in multiples of it"),
            Column("none_per_s", "no cache/s", "messages a second of the reads where nothing is cached"),
            Column("caches", "caches", "values that nodes cache in the optimum"),
        ),
        charts.optimum,
        [each for owners in (1, 2) for each in caches(100, n_o=owners)],
        measure=measure_optimum,
        beginning=Beginning(ring_beside_optimum, run.prepare, measure_beside_optimum),
        derive=list,
    ),
    "aggregates": CachingFigure(
        "messages of a sum or mean over all nodes, in the tree and told directly",
        "beyond chapter 7",
        (
            Column("source", "source", "walk: random walks; cpu: real processor series"),
            Column("function", "function", "of the values of all nodes"),
            Column("within", "within", "the mean may be wrong by so much, as a share of the range of a value", 3),
            Column(
                "way",
                "way",
                "tree: filters on sums. even: the same with evenly split bounds. star: filters on the parts, told to "
                "who asks. scrape: who asks reads all values each second",
            ),
            TRAFFIC[2],
            Column("above_floor_per_s", "for bounds/s", "of them, those that there are not where nothing is broken"),
            Column("asker_per_s", "asker/s", "messages a second that come to who asks"),
            Column("of_scrape", "/ scrape", "the total, in multiples of reading all values each second", 3),
            Column("unknown_share", "unknown", "share of seconds in which there was no answer", 4),
            Column(
                "outside_share", "outside", "share of answers whose bounds the true one has left, as words travel", 4
            ),
            Column("width_share", "width", "bounds of the answer, in multiples of what was asked for", 3),
        ),
        charts.aggregates,
        aggregates.VARIANTS,
        seconds=120.0,
        measure=aggregates.measure,
        beginning=aggregates.BEGINNING,
        derive=aggregates.beside_others,
    ),
}
EXPERIMENTS: Final = tuple(plan.experiment(f"measurement/{name}") for name, plan in FIGURES.items())
