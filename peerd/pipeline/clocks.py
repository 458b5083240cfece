"""How far the nodes' clocks are from each other, by what two nodes have told of the same moment.

Both ends of a link record when it was up (``link.up``), and both ends of a swap when its connection was open
(``swap.finished``). Between the two lie the way of a message and the difference of the clocks. Of a swap that way is
known from how long opening took; who dialled a link records later by about the same time everywhere. What is left is
of the clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from peerd.front import Row
from peerd.pipeline.tables import DONE, of_kind

COLUMNS: Final = "node string, offset_s double, error_s double, is_off boolean, pairs bigint"
"""Of the table."""
KINDS: Final = ("link.up", "swap.finished")
EDGES_MAX: Final = 200_000
"""Pairs of nodes that are looked at, those that have met most often."""
EARLY_SHARE: Final = 1 / 4
"""Who begins a swap may write to its connection after four latencies, of TCP and TLS; one later the other may."""
LATE_MAX_S: Final = 0.5
SWEEPS_MAX: Final = 200
NOTED_S: Final = 0.25
"""A clock that is off by less is not worth a word."""
SETTLED_S: Final = 1e-4
SHARE_WITHIN: Final = 0.9
"""Of a node's neighbours so many agree with its offset within its error."""


def pairs(events: DataFrame) -> DataFrame:
    """Rows of (kind, node, peer, diff_s, pairs): by how much ``node``, which dialled or began, recorded the same later
    than ``peer``, less the way of a message as far as it is known: the median of so many times."""
    links = _matched(of_kind(events, "link.up"), "link", F.col("dialled"), F.col("ts"), F.lit(0.0), ())
    swaps = of_kind(events, "swap.finished").where((F.col("outcome") == DONE) & F.col("opened_s").isNotNull())
    opened = F.col("ts") - F.col("duration_s") + F.col("opened_s")
    both = links.unionByName(_matched(swaps, "swap", F.col("initiated"), opened, F.col("opened_s"), ("plugin", "tag")))
    edges = both.groupBy("kind", "node", "peer").agg(F.median("diff_s").alias("diff_s"), F.count("*").alias("pairs"))
    return edges.orderBy(F.desc("pairs"), "kind", "node", "peer").limit(EDGES_MAX)


def _matched(
    events: DataFrame, kind: str, is_first: Column, at: Column, took_s: Column, names: Sequence[str]
) -> DataFrame:
    """What both ends tell of the same; the n-th of one is the n-th of the other."""
    told = events.where(F.col("peer").isNotNull()).select(
        *("node", "peer", *names),
        at.alias("at"),
        took_s.alias("took_s"),
        F.coalesce(is_first, F.lit(False)).alias("is_first"),
    )
    order = Window.partitionBy("node", "peer", "is_first", *names).orderBy("at")
    numbered = told.withColumn("number", F.row_number().over(order))
    first = numbered.where("is_first").select(
        *("node", "peer", "number", *names), F.col("at").alias("first_ts"), "took_s"
    )
    second = numbered.where("not is_first").select(
        *(F.col("peer").alias("node"), F.col("node").alias("peer"), "number", *names),
        F.col("at").alias("second_ts"),
    )
    diff = (F.col("first_ts") - F.col("second_ts") + F.col("took_s") * EARLY_SHARE).alias("diff_s")
    both = first.join(second, ["node", "peer", "number", *names])
    return both.select(F.lit(kind).alias("kind"), "node", "peer", diff)


def offsets(edges: Iterable[Row]) -> list[Row]:
    """Rows of (node, offset_s, error_s, is_off, pairs), of `pairs`: how far each clock is ahead of the median of
    all clocks, and within how much `SHARE_WITHIN` of the node's neighbours agree with that.

    Of nodes that have met, directly or over others; those that have not are told apart by a median of their own.
    """
    neighbours: dict[str, list[tuple[str, float]]] = {}
    met: dict[str, int] = {}
    for alike in _by_kind(edges).values():
        for node, peer, ahead in _ahead(alike):
            neighbours.setdefault(node, []).append((peer, ahead))
            neighbours.setdefault(peer, []).append((node, -ahead))
        for edge in alike:
            for node in (edge["node"], edge["peer"]):
                met[node] = met.get(node, 0) + edge["pairs"]
    found: dict[str, float] = {}
    for nodes in _parts(neighbours):
        found |= _settled(nodes, neighbours)
    rows = []
    for node, offset in sorted(found.items()):
        error = _within([abs(ahead - (offset - found[peer])) for peer, ahead in neighbours[node]])
        is_off = abs(offset) > max(NOTED_S, 3 * error)
        rows.append({"node": node, "offset_s": offset, "error_s": error, "is_off": is_off, "pairs": met[node]})
    return rows


def _ahead(edges: Sequence[Row]) -> Iterator[tuple[str, str, float]]:
    """By how much the first clock of two is ahead of the other, of edges of one kind.

    Where each of two nodes was the first once, the way of the message cancels out. Else it is taken for what it usually
    is, by those, or by most pairs if that can be the way of a message.
    """
    diffs = {(edge["node"], edge["peer"]): edge["diff_s"] for edge in edges}
    both = {ends: diff for ends, diff in diffs.items() if ends[::-1] in diffs}
    late = median([(diff + diffs[ends[::-1]]) / 2 for ends, diff in both.items()] or diffs.values())
    late = late if 0.0 <= late <= LATE_MAX_S else 0.0
    for (node, peer), diff in diffs.items():
        if (node, peer) not in both:
            yield node, peer, diff - late
        elif node < peer:
            yield node, peer, (diff - diffs[peer, node]) / 2


def _by_kind(edges: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for edge in edges:
        found.setdefault(edge["kind"], []).append(edge)
    return found


def _parts(neighbours: Mapping[str, Sequence[tuple[str, float]]]) -> Iterable[list[str]]:
    """The nodes that have met, directly or over others; the one with most neighbours first."""
    left = dict.fromkeys(sorted(neighbours, key=lambda node: (-len(neighbours[node]), node)))
    while left:
        part = [next(iter(left))]
        del left[part[0]]
        for node in part:  # it grows meanwhile
            for peer, _ in neighbours[node]:
                if peer in left:
                    del left[peer]
                    part.append(peer)
        yield part


def _settled(nodes: Sequence[str], neighbours: Mapping[str, Sequence[tuple[str, float]]]) -> dict[str, float]:
    """The offsets that agree with most neighbours: each begins with what the first of them says, and then is the median
    of what all say, until none changes."""
    found = {nodes[0]: 0.0}
    for node in nodes:  # each but the first has a neighbour before it
        for peer, ahead in neighbours[node]:
            found.setdefault(peer, found[node] - ahead)
    for _ in range(SWEEPS_MAX):
        moved = 0.0
        for node in nodes:
            offset = median(found[peer] + ahead for peer, ahead in neighbours[node])
            moved = max(moved, abs(offset - found[node]))
            found[node] = offset
        if moved < SETTLED_S:
            break
    middle = median(found.values())
    return {node: offset - middle for node, offset in found.items()}


def _within(residuals: Sequence[float]) -> float:
    ordered = sorted(residuals)
    return ordered[min(len(ordered) - 1, int(SHARE_WITHIN * len(ordered)))]
