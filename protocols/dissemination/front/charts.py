"""Pictures of streams in the report of ``peerd analyze``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.front import Row
from peerd.lab.charts import Chart, lines

STREAMS_MAX: Final = 8
"""The pictures have the streams with most items."""


def minutes(rows: Sequence[Row], begin: float) -> list[Chart]:
    """What came in vain, and how deep the trees were, as time went by."""
    items: dict[str, int] = {}
    for row in rows:
        items[row["stream"]] = items.get(row["stream"], 0) + row["items_in"]
    most = sorted(items, key=lambda stream: (-items[stream], stream))[:STREAMS_MAX]
    timed = [{**row, "minute": (row["minute_s"] - begin) / 60} for row in rows if row["stream"] in most]
    return [
        Chart(
            "spurious",
            "Items that came in vain",
            "minutes",
            "share",
            lines(timed, "minute", "spurious_share", "stream"),
        ),
        Chart("depth", "Depth of the trees", "minutes", "edges, mean", lines(timed, "minute", "mean_depth", "stream")),
    ]
