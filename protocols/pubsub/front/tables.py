"""The tables that ``peerd analyze`` makes of publish/subscribe's events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from peerd.front import Shown, SparkTable
from peerd.pipeline.tables import alone, of_kind
from protocols.pubsub.front import charts

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def _latencies(name: str) -> list[Column]:
    """Mean, percentiles and maximum of a column of seconds."""
    shares = [F.percentile(name, F.lit(share)).alias(f"{label}_s") for label, share in PERCENTILES.items()]
    return [F.avg(name).alias("mean_s"), *shares, F.max(name).alias("max_s")]


def installations(events: DataFrame) -> DataFrame:
    """One row a level of the trees: how many pieces of subscriptions were installed there, and how long that took."""
    return (
        of_kind(events, "pubsub.subscription_installed")
        .groupBy("level")
        .agg(F.count(F.lit(1)).alias("pieces"), *_latencies("latency_s"), F.avg("hops").alias("tries"))
    )


def deliveries(events: DataFrame, built: Mapping[str, DataFrame]) -> DataFrame:
    """One row a publisher and subscriber: events that the subscriber's node has taken, and how long that took.

    A publication's name begins with its publisher's id. A time is that of the leaf, which tells of it, less that of the
    publisher; where a clock of these is off, it is corrected.
    """
    publisher = F.substring_index("publication", "-", 1).alias("publisher")
    delivered = of_kind(events, "pubsub.event_delivered").select("node", publisher, "subscriber", "latency_s")
    off = built.get("clocks")
    if off is not None:
        for who, sign in (("node", -1), ("publisher", 1)):
            ahead = F.broadcast(off.select(F.col("node").alias(who), F.col("offset_s").alias("_ahead_s")))
            corrected = F.col("latency_s") + sign * F.coalesce("_ahead_s", F.lit(0.0))
            delivered = delivered.join(ahead, who, "left").withColumn("latency_s", corrected).drop("_ahead_s")
    return delivered.groupBy("publisher", "subscriber").agg(F.count(F.lit(1)).alias("events"), *_latencies("latency_s"))


def load(events: DataFrame) -> DataFrame:
    """One row a node that ever reported: the most leaves and pieces that it had, and what happened there in all."""
    return (
        of_kind(events, "pubsub.node_load")
        .groupBy("node")
        .agg(
            *(F.max(name).alias(name) for name in ("leaves", "pieces", "pending")),
            *(F.sum(name).alias(name) for name in ("published", "matched", "delivered")),
        )
    )


def ledger(events: DataFrame) -> DataFrame:
    """One row a kind of end: of publications by outcome, of deliveries, and of drops by reason.

    ``unknown`` is the outcome of a publication that not all leaves have acknowledged in time.
    """
    ended = of_kind(events, "pubsub.event_published").select(
        F.concat(F.lit("published: "), "outcome").alias("what"), F.lit(1).alias("events")
    )
    delivered = of_kind(events, "pubsub.event_delivered").select(F.lit("delivered").alias("what"), F.lit(1))
    dropped = of_kind(events, "pubsub.events_dropped").select(
        F.concat(F.lit("dropped: "), "reason").alias("what"), F.col("dropped").alias("events")
    )
    return ended.union(delivered).union(dropped).groupBy("what").agg(F.sum("events").alias("events"))


_TIMES: Final = {"mean_s": "mean", "p50_s": "50 %", "p90_s": "90 %", "p99_s": "99 %", "max_s": "longest"}
TABLES: Final = (
    SparkTable(
        "pubsub_installations",
        alone(installations),
        Shown(
            "Installed subscriptions", {"level": "level", "pieces": "pieces", **_TIMES, "tries": "tries"}, ("level",)
        ),
        ("pubsub.subscription_installed",),
    ),
    SparkTable("pubsub_deliveries", deliveries, kinds=("pubsub.event_delivered",), charts=charts.deliveries),
    SparkTable(
        "pubsub_load",
        alone(load),
        Shown(
            "Publish/subscribe by node",
            {name: name for name in ("node", "leaves", "pieces", "published", "matched", "delivered", "pending")},
            ("node",),
        ),
        ("pubsub.node_load",),
        charts.load,
    ),
    SparkTable(
        "pubsub_ledger",
        alone(ledger),
        Shown("What became of events", {"what": "what", "events": "events"}, ("what",)),
        ("pubsub.event_published", "pubsub.event_delivered", "pubsub.events_dropped"),
    ),
)
