"""The table ``ledger``: what was sent has been delivered, filtered or dropped for a reason; the rest is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, functions as F

from peerd.front import LedgerLines, Shown, SparkTable

LEDGER: Final = "ledger"
SENT: Final = "sent"
DROPPED: Final = "dropped"
PARTS: Final = (SENT, "delivered", "filtered", DROPPED)
"""What a line can be of."""
SHOWN: Final = Shown(
    "What became of all that was sent",
    {name: name for name in ("system", "unit", *PARTS, "unknown", "reasons")},
    ("system", "unit"),
)


def ledger_table(lines: Mapping[str, LedgerLines]) -> SparkTable:
    """The table, of the lines of each protocol, by its name."""

    def build(events: DataFrame, built: Mapping[str, DataFrame]) -> DataFrame:
        line = ("unit", "part", F.col("reason").cast("string"), F.col("count").cast("bigint"))
        parts = [each.build(events).select(F.lit(name).alias("system"), *line) for name, each in lines.items()]
        return balances(reduce(DataFrame.unionByName, parts))

    kinds = [kind for each in lines.values() for kind in each.kinds]
    return SparkTable(LEDGER, build, SHOWN, kinds)


def lines_of(events: DataFrame, unit: str, counts: Mapping[str, Column], reason: str = "") -> DataFrame:
    """A line for each of `PARTS` in ``counts``: the sum of these numbers over all events. ``reason``: of all drops."""
    why = {part: F.lit(reason) if part == DROPPED else F.lit(None) for part in counts}
    parts = [
        F.struct(F.lit(part).alias("part"), why[part].alias("reason"), F.sum(count).cast("bigint").alias("count"))
        for part, count in counts.items()
    ]
    of_all = events.agg(F.array(*parts).alias("_parts")).select(F.explode("_parts").alias("_part"))
    return of_all.select(F.lit(unit).alias("unit"), *(F.col(f"_part.{name}") for name in ("part", "reason", "count")))


def balances(lines: DataFrame) -> DataFrame:
    """One row a system and unit: how many of each of `PARTS`, ``unknown``: the rest of what was sent, and ``reasons``:
    of those that were dropped. Of what nobody counts as sent, ``sent`` and ``unknown`` are null.

    ``lines``: system, unit, part, reason, count.
    """
    by_reason = lines.groupBy("system", "unit", "part", "reason").agg(F.sum("count").alias("count")).where("count != 0")
    told = F.when(F.col("part") == DROPPED, F.concat_ws(" ", "reason", F.col("count").cast("string")))
    sums = by_reason.groupBy("system", "unit").agg(
        *(_sum(part).alias(part) for part in PARTS),
        F.coalesce(F.array_join(F.sort_array(F.collect_list(told)), ", "), F.lit("")).alias("reasons"),
    )
    rest = F.col(SENT) - sum((F.coalesce(part, F.lit(0)) for part in PARTS[1:]), F.lit(0))
    found = (F.coalesce(part, F.lit(0)).alias(part) for part in PARTS[1:])
    return sums.select("system", "unit", SENT, *found, rest.alias("unknown"), "reasons")


def _sum(part: str) -> Column:
    return F.sum(F.when(F.col("part") == part, F.col("count")))
