"""The tables that the job makes of event records; each function is one table, from columns of `spark_schema`.

Words: a *level* is one node's step through one prefix length of one aggregation round (San Fermín, section 4); a
*round* is one aggregation, told by its requester when it finished, and by the others' levels in any case.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window, functions as F

DONE = "done"
SWAPPED = "swapped"
AGGREGATION = "aggregation"
SWAP_TAG = "53"
"""How the tags of its swaps begin, in hexadecimal."""


def _of_kind(events: DataFrame, kind: str) -> DataFrame:
    return events.where(F.col("event") == kind)


def messages(events: DataFrame) -> DataFrame:
    """Control messages a node and type: the last cumulative snapshot of each boot.

    Columns node, boot, message, sent, received, sent_bytes, received_bytes, ts (of the snapshot). A node that was
    killed counts up to its last snapshot.
    """
    latest = Window.partitionBy("node", "boot", "message").orderBy(F.col("id").desc())
    return (
        _of_kind(events, "traffic.snapshot")
        .withColumn("_rank", F.row_number().over(latest))
        .where("_rank = 1")
        .select("node", "boot", "message", "sent", "received", "sent_bytes", "received_bytes", "ts")
    )


def levels(events: DataFrame) -> DataFrame:
    """One row a finished level, with the swap that ended it.

    A swap's tag is its plugin's name for it; aggregation's is "S", the 16 bytes of the round and one of the level.
    """
    tag = F.concat(F.lit(SWAP_TAG), "round", F.lpad(F.lower(F.hex("level")), 2, "0"))
    level = _of_kind(events, "aggregation.level_finished").withColumn("tag", F.when(F.col("outcome") == SWAPPED, tag))
    swap = (
        _of_kind(events, "swap.finished")
        .where((F.col("plugin") == AGGREGATION) & (F.col("outcome") == DONE))
        .select(
            *("node", "boot", "peer", "tag", F.col("id").alias("swap_id")),
            *(F.col(name).alias(f"swap_{name}") for name in ("sent_bytes", "received_bytes", "duration_s")),
        )
        .dropDuplicates(["node", "boot", "peer", "tag"])
    )
    return level.join(swap, ["node", "boot", "peer", "tag"], "left").select(
        *("node", "boot", "id", "round", "level", "outcome", "peer", "contributors", "value_bytes", "duration_s", "ts"),
        *("swap_id", "swap_sent_bytes", "swap_received_bytes", "swap_duration_s"),
    )


def rounds(events: DataFrame, level_table: DataFrame) -> DataFrame:
    """One row a round that any node told of; ``outcome`` is "unfinished" when no requester's answer was recorded.

    ``duration_s`` (completion time), ``completeness``, ``contributors``, ``expected``, ``missing`` and ``value_bytes``
    are the requester's. ``swap_bytes`` is the sum of bytes *sent* in the swaps of the round, so each byte counts once.
    """
    answers = (
        _of_kind(events, "aggregation.round_finished")
        .select(
            *("round", F.col("requester").alias("answered"), F.col("query").alias("asked"), "outcome", "duration_s"),
            *("completeness", "contributors", "expected", "missing", "value_bytes"),
            F.col("ts").alias("finished_ts"),
        )
        .dropDuplicates(["round"])
    )
    starts = (
        _of_kind(events, "aggregation.round_started")
        .groupBy("round")
        .agg(
            F.countDistinct("node").alias("nodes"),
            F.min("ts").alias("started_ts"),
            F.first("requester", ignorenulls=True).alias("requester"),
            F.first("query", ignorenulls=True).alias("query"),
        )
    )
    work = level_table.groupBy("round").agg(
        F.count(F.when(F.col("outcome") == SWAPPED, 1)).alias("levels_swapped"),
        F.count(F.when(F.col("outcome") == "timed_out", 1)).alias("levels_timed_out"),
        F.count("swap_id").alias("swaps"),
        F.sum("swap_sent_bytes").alias("swap_bytes"),
    )
    return (
        starts.join(answers, "round", "full")
        .join(work, "round", "full")
        .select(
            "round",
            F.coalesce("answered", "requester").alias("requester"),
            F.coalesce("asked", "query").alias("query"),
            F.coalesce("outcome", F.lit("unfinished")).alias("outcome"),
            *("started_ts", "finished_ts", "duration_s", "completeness", "contributors", "expected", "missing"),
            *("value_bytes", F.coalesce("nodes", F.lit(0)).alias("nodes")),
            *(
                F.coalesce(name, F.lit(0)).alias(name)
                for name in ("levels_swapped", "levels_timed_out", "swaps", "swap_bytes")
            ),
        )
    )


def losses(events: DataFrame) -> DataFrame:
    """What is missing of each (node, boot), by the event numbers, which start at 1 and leave nothing out.

    ``records`` distinct events, ``missing`` numbers between the first and the last one, ``missing_before`` numbers
    below the first (files that rotation removed, or that were not handed in), ``told`` records that the sink itself
    said it dropped (part of ``missing``, unless at the very end), ``first_id``, ``last_id``. What came after
    ``last_id`` nobody can know. A ``sink.dropped`` line carries the number of a dropped record: it is none of its own.
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
        _of_kind(events, "swap.finished")
        .groupBy("plugin", F.when(F.col("outcome") == DONE, DONE).otherwise("failed").alias("outcome"))
        .agg(
            F.count(F.when(F.col("initiated"), 1)).alias("count"),
            F.sum("sent_bytes").alias("sent_bytes"),
            F.sum("received_bytes").alias("received_bytes"),
        )
        .select(F.lit("swap").alias("kind"), "plugin", "outcome", "count", "sent_bytes", "received_bytes")
    )
    return control.unionByName(swaps)
