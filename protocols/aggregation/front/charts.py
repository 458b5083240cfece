"""Pictures of rounds in the report of ``peerd analyze``."""

from __future__ import annotations

from collections.abc import Sequence

from peerd.front import Row
from peerd.lab.charts import Chart, lines


def levels(rows: Sequence[Row], begin: float) -> list[Chart]:
    """How long nodes took for each level: the mean, and the range over nodes and rounds."""
    outcomes = {row["outcome"] for row in rows}
    name = outcomes.pop() if len(outcomes) == 1 else ""  # what is the same in all rows names no line
    by_outcome = lines(rows, "level", "duration_s", "outcome", name=name)
    return [Chart("levels", "Rounds, level by level", "level", "seconds a node", by_outcome)]


def rounds(rows: Sequence[Row], begin: float) -> list[Chart]:
    """How long rounds took, and how complete their answers were, as time went by."""
    timed = [{**row, "minute": (row["started_ts"] - begin) / 60} for row in rows if row["started_ts"] is not None]
    return [
        Chart(
            "rounds", "Time to the answer", "minutes", "seconds", lines(timed, "minute", "duration_s", name="rounds")
        ),
        Chart(
            "completeness",
            "Completeness",
            "minutes",
            "share of all nodes",
            lines(timed, "minute", "completeness", name="rounds"),
        ),
    ]
