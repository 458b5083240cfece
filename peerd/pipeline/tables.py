"""The core's tables that the job makes of event records; each function is one table, from columns of `spark_schema`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

DONE: Final = "done"
"""The outcome of a swap that went well."""
CANCELLED: Final = "cancelled"
"""Nobody wanted its value any more, such as that of a result when another one is as full: nothing went wrong."""


def of_kind(events: DataFrame, kind: str) -> DataFrame:
    """Return the events of one kind."""
    return events.where(F.col("event") == kind)


def alone(table: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame, Mapping[str, DataFrame]], DataFrame]:
    """A protocol's table that is made of the events, and of no other table."""
    return lambda events, built: table(events)


def first_of(rows: DataFrame, names: Sequence[str], order: str) -> DataFrame:
    """Of rows that are alike in these columns the first one, in the order of another."""
    number = F.row_number().over(Window.partitionBy(*names).orderBy(order))
    return rows.withColumn("_number", number).where("_number = 1").drop("_number")


def nodes(events: DataFrame) -> DataFrame:
    """One row a node and boot: node, boot, address, first_ts, last_ts, events, ready_s (null: it never was ready) and
    stopped, the reason with which it ended, null if it never said that it does."""
    kind = F.col("event")
    return events.groupBy("node", "boot").agg(
        F.max(F.when(kind == "node.started", F.col("address"))).alias("address"),
        F.min("ts").alias("first_ts"),
        F.max("ts").alias("last_ts"),
        F.count(F.when(kind != "sink.dropped", 1)).alias("events"),
        F.min(F.when(kind == "node.ready", F.col("duration_s"))).alias("ready_s"),
        F.max(F.when(kind == "node.stopped", F.col("reason"))).alias("stopped"),
    )


def messages(events: DataFrame) -> DataFrame:
    """Count control messages by node and type: the last cumulative snapshot of each boot, whose counts are the largest.

    Columns node, boot, message, sent, received, sent_bytes, received_bytes, ts (the latest). A node that was killed
    counts up to its last snapshot.
    """
    names = ("sent", "received", "sent_bytes", "received_bytes", "ts")
    counts = (F.max(name).alias(name) for name in names)
    return of_kind(events, "traffic.snapshot").groupBy("node", "boot", "message").agg(*counts)


def metrics(events: DataFrame) -> DataFrame:
    """Counters and gauges at the times at which they had changed: node, boot, ts, metric, labels, value."""
    return of_kind(events, "metric.snapshot").select("node", "boot", "ts", "metric", "labels", "value")


def kinds(events: DataFrame) -> DataFrame:
    """Count the events of each kind, and the nodes that recorded any: event, nodes, events; the most frequent first."""
    by_node = events.groupBy("event", "node").agg(F.count(F.lit(1)).alias("events"))
    counts = by_node.groupBy("event").agg(F.count(F.lit(1)).alias("nodes"), F.sum("events").alias("events"))
    return counts.orderBy(F.col("events").desc(), "event")


def numbers_as_bits(marked: DataFrame) -> DataFrame:
    """Of rows (node, boot, id, own_id, told), by node, boot and bucket of 32,768 numbers: how many ``ids`` and
    ``own_ids`` there are, counted as bits, whatever the order of the files, and how many ``lines``; the `number_ends`.
    """
    return marked.groupBy("node", "boot", F.bitmap_bucket_number("id").alias("_bucket")).agg(
        F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position("id"))).alias("ids"),
        F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position("own_id"))).alias("own_ids"),
        *number_ends(),
    )


def number_ends() -> list[Column]:
    """What `losses` needs of each group besides how many numbers there are."""
    return [
        F.count(F.lit(1)).alias("lines"),
        F.min("own_id").alias("first_id"),
        F.max("own_id").alias("last_id"),
        F.sum("told").alias("told"),
    ]


def losses(events: DataFrame, numbers: Callable[[DataFrame], DataFrame] = numbers_as_bits) -> DataFrame:
    """Count the missing events of each (node, boot). Event numbers start at 1 without holes: a hole is a loss.

    ``records`` distinct events, ``missing`` numbers between the first and the last one, ``missing_before`` numbers
    below the first (files that rotation removed, or that were not handed in), ``told`` records that the sink itself
    said it dropped (part of ``missing``, unless at the very end), ``first_id``, ``last_id``; ``duplicates``: lines
    with a number that another one has. Whether there were events after ``last_id`` is unknown. A ``sink.dropped`` line
    carries the number of a dropped record, and is not an event.

    ``numbers``: how numbers are counted; see `numbers_as_bits`.
    """
    is_telling = F.col("event") == "sink.dropped"
    marked = events.select(
        *("node", "boot", "id", F.when(~is_telling, F.col("id")).alias("own_id")),
        F.when(is_telling, F.col("records")).alias("told"),
    )
    return (
        numbers(marked)
        .groupBy("node", "boot")
        .agg(
            F.sum("own_ids").alias("records"),
            (F.sum("lines") - F.sum("ids")).alias("duplicates"),
            F.min("first_id").alias("first_id"),
            F.max("last_id").alias("last_id"),
            F.coalesce(F.sum("told"), F.lit(0)).alias("told"),
        )
        .withColumn("missing", F.coalesce(F.col("last_id") - F.col("first_id") + 1 - F.col("records"), F.lit(0)))
        .withColumn("missing_before", F.coalesce(F.col("first_id") - 1, F.lit(0)))
        .select("node", "boot", "records", "first_id", "last_id", "missing", "missing_before", "told", "duplicates")
    )


def spans(events: DataFrame) -> DataFrame:
    """Rows of (node, boot, first, last, lines, ids): the lowest and the highest number of each incarnation's events,
    how many lines there are, and how many numbers."""
    by_bucket = events.groupBy("node", "boot", F.bitmap_bucket_number("id").alias("_bucket")).agg(
        F.min("id").alias("first"),
        F.max("id").alias("last"),
        F.count(F.lit(1)).alias("lines"),
        F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position("id"))).alias("ids"),
    )
    return by_bucket.groupBy("node", "boot").agg(
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("lines").alias("lines"),
        F.sum("ids").alias("ids"),
    )


def once(events: DataFrame, doubled: DataFrame) -> DataFrame:
    """The events of a table of Parquet files, each once. ``doubled``: the (node, boot) that have any twice.

    Only names of rows are compared and moved around, not the rows, of which each has the columns of all kinds.
    """
    row = (F.col("_metadata.file_path"), F.col("_metadata.row_index"))
    named = events.select("*", row[0].alias("_path"), row[1].alias("_row"))
    order = Window.partitionBy("node", "boot", "id").orderBy("_path", "_row")
    again = (
        named.join(F.broadcast(doubled.select("node", "boot")), ["node", "boot"], "left_semi")
        .select("_path", "_row", F.row_number().over(order).alias("_copy"))
        .where("_copy > 1")
    )
    return named.join(again, ["_path", "_row"], "left_anti").drop("_path", "_row")


def traffic_by_kind(events: DataFrame, message_table: DataFrame | None) -> DataFrame:
    """Bytes by kind: ``control`` (frames, from the snapshots) and one ``swap`` row a plugin and outcome: done,
    cancelled by one side as not needed, or failed.

    Columns kind, plugin, outcome, count (messages sent, swaps initiated), sent_bytes, received_bytes. Bytes sent by one
    are received by another: add up one column, not both.
    """
    said = F.col("outcome")
    is_cancelled = said.isin(CANCELLED, f"peer_cancelled:{CANCELLED}")
    outcome = F.when(said == DONE, DONE).when(is_cancelled, CANCELLED).otherwise("failed")
    swaps = (
        of_kind(events, "swap.finished")
        .groupBy("plugin", outcome.alias("outcome"))
        .agg(
            F.count(F.when(F.col("initiated"), 1)).alias("count"),
            F.sum("sent_bytes").alias("sent_bytes"),
            F.sum("received_bytes").alias("received_bytes"),
        )
        .select(F.lit("swap").alias("kind"), "plugin", "outcome", "count", "sent_bytes", "received_bytes")
    )
    if message_table is None:
        return swaps
    control = message_table.agg(
        F.lit("control").alias("kind"),
        F.lit(None).cast("string").alias("plugin"),
        F.lit(None).cast("string").alias("outcome"),
        F.sum("sent").alias("count"),
        F.sum("sent_bytes").alias("sent_bytes"),
        F.sum("received_bytes").alias("received_bytes"),
    )
    return control.unionByName(swaps)
