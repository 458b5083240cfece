"""Pictures of measurement queries in the report of ``peerd analyze``."""

from __future__ import annotations

from collections.abc import Sequence

from peerd.front import Row
from peerd.lab.charts import Chart, lines


def minutes(rows: Sequence[Row], begin: float) -> list[Chart]:
    """Which share of the values was known where it was asked for, and what nodes sent, as time went by."""
    timed = [{**row, "minute": (row["minute_s"] - begin) / 60} for row in rows]
    asked = [("reads over the tree", "tree_questions"), ("questions to owners", "owner_questions")]
    told = [("broken bounds", "updates_broken"), ("time-outs", "updates_time_out")]
    sent = tuple(line for label, name in (*asked, *told) for line in lines(timed, "minute", name, name=label))
    return [
        Chart(
            "hits",
            "Values known where they are asked for",
            "minutes",
            "share",
            lines(timed, "minute", "hit_rate", name="all nodes"),
        ),
        Chart("measurement-sent", "Messages for measurements", "minutes", "messages a minute", sent),
    ]
