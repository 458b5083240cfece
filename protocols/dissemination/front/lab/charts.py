"""The figures of CoDD's evaluation, beside what the paper says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from peerd.lab.charts import Chart, Line, lines, reference
from peerd.lab.experiment import Draw, Row

SHARE = "spurious share"
MEAN = "mean over all members"
RATIO = "after / before"
TOGETHER = 10
"""So many moves are one point of the chart over moves."""


def _ways(found: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(str(row["way"]) for row in found))


def _in_order(found: Sequence[Row], values: str, places: str = "") -> tuple[Line, ...]:
    """A line for each way: the values in a list, over their ranks or the numbers in another list; mean over seeds."""
    made = []
    for way in _ways(found):
        rows = [row for row in found if row["way"] == way and row.get(values)]
        if rows:
            length = min(len(row[values]) for row in rows)
            at = rows[0][places][:length] if places else [100 * rank / length for rank in range(length)]
            points = []
            for rank, x in enumerate(at):
                several = [row[values][rank] for row in rows]
                points.append((float(x), fmean(several), min(several), max(several)))
            made.append(Line(way, tuple(points)))
    return tuple(made)


def default(found: Sequence[Row]) -> list[Chart]:
    """Figures 9, 11, 12 and 17."""
    ways = [row["way"] for row in found]
    means = {way: [row for row in found if row["way"] == way] for way in dict.fromkeys(ways)}
    course = list(_in_order(found, "course", "course_items"))
    if course and "siena" in means:
        level, last = fmean(row["spurious"] for row in means["siena"]), course[0].points[-1][0]
        course.append(reference("siena", [(0.0, level), (last, level)]))
    ranked = "members, from the greatest on, %"
    return [
        Chart("default-depth", "Weighted depth of members", ranked, "depth", _in_order(found, "depths_ranked")),
        Chart("default-spurious", "Spurious share of members", ranked, SHARE, _in_order(found, "spurious_ranked")),
        Chart("default-course", "Spurious share over time", "items", MEAN, tuple(course)),
        Chart("default-ratio", "Share in vain after a move over before", "moves in order", RATIO, _ratios(found)),
    ]


def _ratios(found: Sequence[Row]) -> tuple[Line, ...]:
    """The ratios of figure 18: the mean, the least and the greatest of so many moves that follow each other."""
    values: list[float] = next((row["ratios"] for row in found if row.get("ratios")), [])
    parts = [(at, values[at : at + TOGETHER]) for at in range(0, len(values), TOGETHER)]
    points = tuple((at + len(part) / 2, fmean(part), min(part), max(part)) for at, part in parts)
    return (Line("mean and range", points), reference("as before", [(0.0, 1.0), (float(len(values)), 1.0)]))


def deltas(found: Sequence[Row]) -> list[Chart]:
    """Figures 22 to 24."""
    made = over("delta", "delta", "What a move must save", "most_classes", moves=True)(found)
    made.append(
        Chart(
            "delta-moves-per-look",
            "Moves for each request that is looked at",
            "delta",
            "moves a reorganisation",
            lines(found, "delta", "moves_per_look", "most_classes"),
        )
    )
    two = [{**row, "way": f"delta {row['delta']}"} for row in found if row["most_classes"] == 2]
    ranked = _in_order(two, "ratios_ranked")
    made.append(
        Chart("delta-ratio", "Share in vain after a move over before", "moves in order of it, %", RATIO, ranked)
    )
    return made


def sizes(found: Sequence[Row]) -> list[Chart]:
    """Figures 10 and 14."""
    nodes = sorted({row["nodes"] for row in found})
    log = reference("log6 n", [(float(n), math.log(n, 6)) for n in nodes])
    depth = (*lines(found, "nodes", "depth", "way", "fan_out"), log)
    return [
        Chart("nodes-depth", "Mean weighted depth", "members", "depth", depth, x_is_log=True),
        Chart("nodes-spurious", "Spurious share", "members", MEAN, lines(found, "nodes", "spurious", "way", "fan_out")),
    ]


def over(name: str, x: str, title: str, *by: str, moves: bool = False) -> Draw:
    """Draw the spurious share over a parameter, and the moves where these are what the figure is about."""

    def draw(found: Sequence[Row]) -> list[Chart]:
        made = [Chart(f"{name}-spurious", title, x, MEAN, lines(found, x, "spurious", *by))]
        if moves:
            counted = lines(found, x, "moves_per_100", *by)
            made.append(Chart(f"{name}-moves", f"{title}: moves", x, "moves in 100 items", counted))
        return made

    return draw
