"""The core's tables that the job makes of event records; each function is one table, from columns of `spark_schema`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyspark.sql import DataFrame, Window, functions as F

DONE = "done"
"""The outcome of a swap that went well."""


def of_kind(events: DataFrame, kind: str) -> DataFrame:
    """Return the events of one kind."""
    return events.where(F.col("event") == kind)


def alone(table: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame, Mapping[str, DataFrame]], DataFrame]:
    """A protocol's table that is made of the events, and of no other table."""
    return lambda events, built: table(events)


def messages(events: DataFrame) -> DataFrame:
    """Count control messages by node and type: the last cumulative snapshot of each boot.

    Columns node, boot, message, sent, received, sent_bytes, received_bytes, ts (of the snapshot). A node that was
    killed counts up to its last snapshot.
    """
    latest = Window.partitionBy("node", "boot", "message").orderBy(F.col("id").desc())
    return (
        of_kind(events, "traffic.snapshot")
        .withColumn("_rank", F.row_number().over(latest))
        .where("_rank = 1")
        .select("node", "boot", "message", "sent", "received", "sent_bytes", "received_bytes", "ts")
    )


def metrics(events: DataFrame) -> DataFrame:
    """Counters and gauges at the times at which they had changed: node, boot, ts, metric, labels, value."""
    return of_kind(events, "metric.snapshot").select("node", "boot", "ts", "metric", "labels", "value")


def unknown(events: DataFrame, known: Iterable[str]) -> DataFrame:
    """Kinds of events that are not known here, with the numbers of nodes and of events, the most frequent first."""
    return (
        events.where(~F.col("event").isin(list(known)))
        .groupBy("event")
        .agg(F.countDistinct("node").alias("nodes"), F.count(F.lit(1)).alias("events"))
        .orderBy(F.col("events").desc(), "event")
    )


def losses(events: DataFrame) -> DataFrame:
    """Count the missing events of each (node, boot). Event numbers start at 1 without holes: a hole is a loss.

    ``records`` distinct events, ``missing`` numbers between the first and the last one, ``missing_before`` numbers
    below the first (files that rotation removed, or that were not handed in), ``told`` records that the sink itself
    said it dropped (part of ``missing``, unless at the very end), ``first_id``, ``last_id``. Whether there were events
    after ``last_id`` is unknown. A ``sink.dropped`` line carries the number of a dropped record, and is not an event.
    """
    is_telling = F.col("event") == "sink.dropped"
    own_id = F.when(~is_telling, F.col("id"))
    return (
        events.groupBy("node", "boot")
        .agg(
            F.countDistinct(own_id).alias("records"),
            F.min(own_id).alias("first_id"),
            F.max(own_id).alias("last_id"),
            F.coalesce(F.sum(F.when(is_telling, F.col("records"))), F.lit(0)).alias("told"),
        )
        .withColumn("missing", F.coalesce(F.col("last_id") - F.col("first_id") + 1 - F.col("records"), F.lit(0)))
        .withColumn("missing_before", F.coalesce(F.col("first_id") - 1, F.lit(0)))
        .select("node", "boot", "records", "first_id", "last_id", "missing", "missing_before", "told")
    )


def traffic_by_kind(events: DataFrame, message_table: DataFrame) -> DataFrame:
    """Bytes by kind: ``control`` (frames, from the snapshots) and one ``swap`` row a plugin and outcome (done, failed).

    Columns kind, plugin, outcome, count (messages sent, swaps initiated), sent_bytes, received_bytes. Bytes sent by one
    are received by another: add up one column, not both.
    """
    control = message_table.agg(
        F.lit("control").alias("kind"),
        F.lit(None).cast("string").alias("plugin"),
        F.lit(None).cast("string").alias("outcome"),
        F.coalesce(F.sum("sent"), F.lit(0)).alias("count"),
        F.coalesce(F.sum("sent_bytes"), F.lit(0)).alias("sent_bytes"),
        F.coalesce(F.sum("received_bytes"), F.lit(0)).alias("received_bytes"),
    )
    swaps = (
        of_kind(events, "swap.finished")
        .groupBy("plugin", F.when(F.col("outcome") == DONE, DONE).otherwise("failed").alias("outcome"))
        .agg(
            F.count(F.when(F.col("initiated"), 1)).alias("count"),
            F.sum("sent_bytes").alias("sent_bytes"),
            F.sum("received_bytes").alias("received_bytes"),
        )
        .select(F.lit("swap").alias("kind"), "plugin", "outcome", "count", "sent_bytes", "received_bytes")
    )
    return control.unionByName(swaps)
