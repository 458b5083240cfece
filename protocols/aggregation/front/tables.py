"""The tables that ``peerd analyze`` makes of aggregation's events.

Words: a *level* is one node's step through one prefix length of one aggregation round (San Fermín, section 4); a
*round* is one aggregation, told by its requester when it finished, and by the others' levels in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, functions as F

from peerd.front import LedgerLines, Row, Shown, SparkTable
from peerd.pipeline.ledger import lines_of
from peerd.pipeline.tables import DONE, alone, first_of, of_kind
from protocols.aggregation.front import charts

SWAPPED = "swapped"
PLUGIN = "aggregation"
SWAP_TAG = "53"
"""The tags of aggregation's swaps begin with this, in hexadecimal."""
SHORT_ID_DIGITS = 8


def levels(events: DataFrame) -> DataFrame:
    """One row a finished level, with the swap that ended it.

    A swap's tag is its plugin's name for it; aggregation's is "S", the 16 bytes of the round and one of the level.
    """
    tag = F.concat(F.lit(SWAP_TAG), "round", F.lpad(F.lower(F.hex("level")), 2, "0"))
    level = of_kind(events, "aggregation.level_finished").withColumn(
        "swap_tag", F.when(F.col("outcome") == SWAPPED, tag)
    )
    ends = ("node", "boot", "peer", "swap_tag")
    swaps = (
        of_kind(events, "swap.finished")
        .where((F.col("plugin") == PLUGIN) & (F.col("outcome") == DONE))
        .select(
            *("node", "boot", "peer", F.col("tag").alias("swap_tag"), F.col("id").alias("swap_id")),
            *(F.col(name).alias(f"swap_{name}") for name in ("sent_bytes", "received_bytes", "duration_s")),
        )
    )
    return level.join(first_of(swaps, ends, "swap_id"), list(ends), "left").select(
        *("node", "boot", "id", "round", "level", "outcome", "peer", "contributors", "value_bytes", "duration_s", "ts"),
        *("swap_id", "swap_sent_bytes", "swap_received_bytes", "swap_duration_s"),
    )


def rounds(events: DataFrame, level_table: DataFrame) -> DataFrame:
    """One row a round that any node told of; ``outcome`` is "unfinished" when no requester's answer was recorded.

    ``duration_s`` (completion time), ``completeness``, ``contributors``, ``expected``, ``missing`` and ``value_bytes``
    are the requester's. ``swap_bytes`` is the sum of bytes *sent* in the swaps of the round, so each byte counts once.
    """
    answers = of_kind(events, "aggregation.round_finished").select(
        *("round", F.col("requester").alias("answered"), F.col("query").alias("asked"), "outcome", "duration_s"),
        *("completeness", "contributors", "expected", "missing", "value_bytes"),
        F.col("ts").alias("finished_ts"),
    )
    starts = (
        of_kind(events, "aggregation.round_started")
        .groupBy("round")
        .agg(
            F.countDistinct("node").alias("nodes"),
            F.min("ts").alias("started_ts"),
            F.min("requester").alias("requester"),
            F.min("query").alias("query"),
        )
    )
    work = level_table.groupBy("round").agg(
        F.count(F.when(F.col("outcome") == SWAPPED, 1)).alias("levels_swapped"),
        F.count(F.when(F.col("outcome") == "timed_out", 1)).alias("levels_timed_out"),
        F.count("swap_id").alias("swaps"),
        F.sum("swap_sent_bytes").alias("swap_bytes"),
    )
    parts = (starts, first_of(answers, ["round"], "finished_ts"), work)
    every = reduce(DataFrame.union, (part.select("round") for part in parts)).distinct()
    # To sqlframe the columns of a join are known by either side's name, until they are selected.
    joined = reduce(lambda left, right: left.join(right, "round", "left").select("*"), parts, every)
    return joined.select(
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


def cells(row: Row) -> Row:
    """A round as people read it: a short id, "7 of 8" nodes; the requester's estimate of the ring may be broken."""
    known = row["contributors"] is not None and row["expected"] is not None
    return {
        **row,
        "round": row["round"][:SHORT_ID_DIGITS],
        "completeness": None if row["completeness"] is None else f"{row['completeness']:.1%}",
        "contributors": f"{row['contributors']} of {row['expected']:.1f}".removesuffix(".0") if known else None,
    }


def _rounds(events: DataFrame, built: Mapping[str, DataFrame]) -> DataFrame:
    return rounds(events, built["levels"])


ROUND_COLUMNS: Final = {
    "round": "round",
    "outcome": "outcome",
    "duration_s": "time",
    "completeness": "complete",
    "contributors": "nodes",
    "swap_bytes": "swap bytes",
    "query": "query",
}


def ledger(events: DataFrame) -> DataFrame:
    """What became of the data of the nodes that were expected in each round, by what its requester knows."""
    counts = {"sent": F.round("expected"), "delivered": F.col("contributors"), "dropped": F.col("missing")}
    return lines_of(of_kind(events, "aggregation.round_finished"), "contributions", counts, "missing")


TABLES: Final = (
    SparkTable(
        "levels",
        alone(levels),
        kinds=("aggregation.level_finished",),
        besides=("swap.finished",),
        charts=charts.levels,
    ),
    SparkTable(
        "rounds",
        _rounds,
        Shown("Rounds", ROUND_COLUMNS, ("started_ts", "round"), cells, wide=("query",)),
        ("aggregation.round_started", "aggregation.round_finished", "aggregation.level_finished"),
        charts.rounds,
    ),
)
LEDGER: Final = LedgerLines(ledger, ("aggregation.round_finished",))
