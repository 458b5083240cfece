"""The tables that ``peerd analyze`` makes of publish/subscribe's events."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from peerd.front import LedgerLines, Shown, SparkTable
from peerd.pipeline.ledger import lines_of
from peerd.pipeline.tables import alone, of_kind
from protocols.pubsub.delivering.ledger import FILTERED, LEAF_REASONS
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
    publisher = F.regexp_extract("publication", "^[^-]*", 0).alias("publisher")
    delivered = of_kind(events, "pubsub.event_delivered").select("node", publisher, "subscriber", "latency_s")
    off = built.get("clocks")
    if off is not None:
        for who, sign in (("node", -1), ("publisher", 1)):
            ahead = off.select(F.col("node").alias(who), F.col("offset_s").alias("_ahead_s"))
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
    """What became of publications, by what their publishers know, and of matches: of an event with a subscription of a
    node. What the disk has for a node that is away is matched again later, and does not count before.

    Events that a subscriber's or a publisher's node dropped are counted beside that.
    """
    known = F.col("outcome").isin("received", "replicated")
    is_matched = F.col("matched") > 0
    publications = {
        "sent": F.lit(1),
        "delivered": (known & is_matched).cast("int"),
        "filtered": (known & ~is_matched).cast("int"),
        "dropped": (F.col("outcome") == "failed").cast("int"),
    }
    matches = {"sent": F.col("matched") - F.coalesce("kept", F.lit(0)), "delivered": F.col("delivered")}
    part = F.when(F.col("reason") == FILTERED, "filtered").otherwise("dropped").alias("part")
    unit = F.when(F.col("reason").isin(*LEAF_REASONS), "matches").otherwise("events for readers").alias("unit")
    lines = (
        lines_of(of_kind(events, "pubsub.event_published"), "publications", publications, "failed"),
        lines_of(of_kind(events, "pubsub.node_load"), "matches", matches),
        of_kind(events, "pubsub.events_dropped").select(unit, part, "reason", F.col("dropped").alias("count")),
    )
    return reduce(DataFrame.unionByName, lines)


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
)
LEDGER: Final = LedgerLines(ledger, ("pubsub.event_published", "pubsub.node_load", "pubsub.events_dropped"))
