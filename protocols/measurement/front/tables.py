"""The tables that ``peerd analyze`` makes of the events of measurement queries."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from peerd.front import LedgerLines, Row, Shown, SparkTable
from peerd.pipeline.ledger import lines_of
from peerd.pipeline.tables import alone, of_kind
from protocols.measurement.front import charts

SENT: Final = (
    *("asks", "updates_broken", "updates_time_out", "updates_gone", "owner_questions", "node_questions"),
    *("tree_questions", "tree_answers", "splices", "moves", "checked"),
    *("aggregate_asks", "aggregate_words"),
)
"""What nodes send, by kind; not the answers to questions."""


def _figures() -> list[Column]:
    """What clients asked and which share of it was known, what that cost, and how tight the held bounds were."""
    return [
        *(F.sum(name).alias(name) for name in ("reads", "values", "stale", "missing", "violated", *SENT)),
        (F.sum("cached") / F.nullif(F.sum("values"), F.lit(0))).alias("hit_rate"),
        F.avg("relative_width").alias("relative_width"),
    ]


def minutes(events: DataFrame) -> DataFrame:
    """One row a minute (seconds since 1970, or since the simulation began), in which nodes told of the one before."""
    minute = (F.floor(F.col("ts") / 60) * 60).cast("long").alias("minute_s")
    held = (F.sum(name).alias(name) for name in ("held_values", "holders"))
    nodes = F.countDistinct("node").alias("nodes")
    return of_kind(events, "measurement.traffic").groupBy(minute).agg(nodes, *_figures(), *held)


def nodes(events: DataFrame) -> DataFrame:
    """One row a node: all that its clients asked and that it sent, and the most that it held and provided."""
    most = (F.max(name).alias(name) for name in ("held_values", "holders"))
    return of_kind(events, "measurement.traffic").groupBy("node").agg(*_figures(), *most)


def cells(row: Row) -> Row:
    """A node's row as people read it."""
    return row | {name: f"{row[name]:.0%}" for name in ("hit_rate", "relative_width") if row[name] is not None}


_SHOWN: Final = ("node", "reads", "values", "hit_rate", "relative_width", "violated", *SENT, "held_values", "holders")


def ledger(events: DataFrame) -> DataFrame:
    """What became of the values that clients have asked for."""
    counts = {"sent": F.col("values"), "delivered": F.col("values") - F.col("missing"), "dropped": F.col("missing")}
    return lines_of(of_kind(events, "measurement.traffic"), "values", counts, "missing")


TABLES: Final = (
    SparkTable("measurement_minutes", alone(minutes), kinds=("measurement.traffic",), charts=charts.minutes),
    SparkTable(
        "measurement_nodes",
        alone(nodes),
        Shown("Measurement queries by node", {name: name.replace("_", " ") for name in _SHOWN}, ("node",), cells),
        ("measurement.traffic",),
    ),
)
LEDGER: Final = LedgerLines(ledger, ("measurement.traffic",))
