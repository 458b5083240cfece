"""Pictures of publish/subscribe in the report of ``peerd analyze``."""

from __future__ import annotations

from collections.abc import Sequence

from peerd.front import Row
from peerd.lab.charts import Chart, Line


def deliveries(rows: Sequence[Row], begin: float) -> list[Chart]:
    """For which share of the pairs of publisher and subscriber events came within a time."""
    found = []
    for name, label in (("p50_s", "half of a pair's events"), ("p99_s", "99 % of a pair's events")):
        times = sorted(row[name] for row in rows)
        shares = [(time, (number + 1) / len(times)) for number, time in enumerate(times)]
        found.append(Line(label, tuple((time, share, share, share) for time, share in shares)))
    return [Chart("deliveries", "Delivered within", "seconds", "share of pairs", tuple(found))]


def load(rows: Sequence[Row], begin: float) -> list[Chart]:
    """How evenly pieces of subscriptions, and events to match, are spread over the nodes."""
    found = []
    for name in ("pieces", "matched"):
        total = sum(row[name] for row in rows)
        heavy = sorted((row[name] for row in rows), reverse=True)
        if total:
            found.append(
                Line(name, tuple((at, one / total, one / total, one / total) for at, one in enumerate(heavy, 1)))
            )
    return [Chart("load", "Load of the nodes", "nodes, those with most first", "share of all", tuple(found))]
