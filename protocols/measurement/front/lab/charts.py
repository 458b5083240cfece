"""The figures of chapter 7, beside what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Final

from peerd.lab.charts import Chart, Line, Stack, lines, reference, values
from peerd.lab.experiment import Draw, Row
from protocols.measurement.front.lab.counting import CACHING
from protocols.measurement.front.lab.run import BUCKET_S

RATE: Final = "messages a second"
Label = Callable[[Row], str]


def way(row: Row) -> str:
    """What people call a way of caching."""
    if row.get("way") == "tree" and row.get("cache") == 0:
        return "no cache"
    return str(row.get("way"))


def cached(row: Row) -> str:
    """The size of the caches."""
    return f"cache {row.get('cache')}"


def workload_of(row: Row) -> str:
    """The workload, and whether it is without caches."""
    return f"{row.get('workload')}" + ("" if row.get("cache") else "\nno cache")


def column(name: str) -> Label:
    """Call rows by a column."""
    return lambda row: f"{row.get(name)}"


def _alike(found: Iterable[Row], label: Label) -> dict[str, list[Row]]:
    made: dict[str, list[Row]] = {}
    for row in found:
        made.setdefault(label(row), []).append(row)
    return made


def in_time(name: str, title: str, label: Label) -> Draw:
    """Draw the traffic of each 16 s, foreground and background: the mean over seeds, the least and the greatest."""

    def draw(found: Sequence[Row]) -> list[Chart]:
        made = [
            Line(f"{kind}, {what}", _points([row[f"{kind}_of"] for row in rows if row.get(f"{kind}_of")]))
            for what, rows in _alike(found, label).items()
            for kind in CACHING
        ]
        return [Chart(name, title, "seconds", RATE, tuple(made))]

    return draw


def _points(series: Sequence[Sequence[float]]) -> tuple[tuple[float, float, float, float], ...]:
    buckets = zip(*series, strict=True)
    return tuple((BUCKET_S * at, fmean(ys), min(ys), max(ys)) for at, ys in enumerate(buckets, 1))


def volatility(found: Sequence[Row]) -> list[Chart]:
    """Figure 7.5, with the totals of both, and how often bounds were broken."""
    title = "Traffic while values become more volatile"
    alike = _alike(found, cached)
    totals = [
        Line(f"total, {what}", _points([_totals(row) for row in rows if row.get("foreground_of")]))
        for what, rows in alike.items()
    ]
    kept = [row for row in found if row.get("cache") and row.get("broken_of")]
    broken = Line("updates a second and measurement", _points([row["broken_of"] for row in kept]))
    parts = in_time("volatility", title, cached)(kept)[0].lines
    return [
        Chart("volatility", title, "seconds", RATE, (*parts, *totals)),
        Chart("volatility-updates", "How often bounds are broken", "seconds", "a second", (broken,)),
    ]


def _totals(row: Row) -> list[float]:
    return [one + other for one, other in zip(row["foreground_of"], row["background_of"], strict=True)]


def bars(name: str, title: str, label: Label, value: str = "messages") -> Draw:
    """Draw a bar for each kind of row: foreground and background traffic, means over seeds."""

    def draw(found: Sequence[Row]) -> list[Chart]:
        alike = {
            what: [row for row in rows if row.get(value) is not None] for what, rows in _alike(found, label).items()
        }
        alike = {what: rows for what, rows in alike.items() if rows}
        stacks = tuple(
            Stack(kind, tuple(fmean(row[f"{kind}_per_s"] for row in rows) for rows in alike.values()))
            for kind in CACHING
        )
        return [Chart(name, title, "", RATE, categories=tuple(alike), stacks=stacks if alike else ())]

    return draw


def latencies(found: Sequence[Row]) -> list[Chart]:
    """Figure 7.9, over the update rate."""
    named = [{**row, "called": way(row), "broken": round(row.get("broken_per_s") or 0.0, 2)} for row in found]
    took = lines(named, "sigma", "latency_ms", "called")
    return [Chart("latency", "Time until an answer is whole", "deviation of a step", "milliseconds", took)]


def over(name: str, title: str, x: str, what: str, y: str = "total_per_s", label: Label = way) -> Draw:
    """Draw a rate over a parameter."""

    def draw(found: Sequence[Row]) -> list[Chart]:
        named = [{**row, "called": label(row)} for row in found]
        return [Chart(name, title, what, RATE if y.endswith("per_s") else y, lines(named, x, y, "called"))]

    return draw


def bounds(found: Sequence[Row]) -> list[Chart]:
    """Figure 7.8: one chart for each source of values."""
    made = []
    for source, rows in _alike(found, column("source")).items():
        kept = [row for row in rows if row.get("updates_of")]
        if kept:
            series = zip(*(row["updates_of"] for row in kept), strict=True)
            points = tuple(
                (width, fmean(ys), min(ys), max(ys)) for width, ys in zip(kept[0]["widths"], series, strict=True)
            )
            x, y = kept[0]["width_unit"], kept[0]["update_unit"]
            made.append(Chart(f"bounds-{source}", "Updates by the width of bounds", x, y, (Line(source, points),)))
    return made


def optimum(found: Sequence[Row]) -> list[Chart]:
    """The total beside the least."""
    names = {"warm_total_per_s": "measured", "optimum_per_s": "offline optimum", "none_per_s": "no cache"}
    several = [
        Line(what, lines(found, "n_o", key)[0].points)
        for key, what in names.items()
        if any(row.get(key) is not None for row in found)
    ]
    return [Chart("optimum", "The total beside the least", "owners of a query", RATE, tuple(several))]


def aggregates(found: Sequence[Row]) -> list[Chart]:
    """What all nodes send, and what comes to who asks, over the imprecision; of sums, one chart for each source."""
    made = []
    for source, rows in _alike(found, column("source")).items():
        sums = [{**row, "percent": 100 * row["within"]} for row in rows if row["function"] == "SUM"]
        bounded = [row for row in sums if row["way"] != "scrape"]
        for name, key, what in (("", "total_per_s", "sent by all"), ("-asker", "asker_per_s", "that come to who asks")):
            scraped = [row[key] for row in sums if row["way"] == "scrape" and row.get(key) is not None]
            level = [(at, fmean(scraped)) for at in values(bounded, "percent") if scraped]
            drawn = (*lines(bounded, "percent", key, "way"), reference("scrape", level))
            title, x = f"A sum over all nodes: messages {what}", "percent of a value's range"
            made.append(Chart(f"aggregates-{source}{name}", title, x, RATE, drawn, x_is_log=True, y_is_log=True))
    return made
