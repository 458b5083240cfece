"""What ``peerd analyze`` makes of this plugin's events: one row a roll call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, functions as F

from peerd.front import Shown, SparkTable
from peerd.pipeline.tables import of_kind


def roll_calls(events: DataFrame, built: Mapping[str, DataFrame]) -> DataFrame:
    """``answered`` is told by those who answered, ``answers`` by the caller: the difference was lost on the way."""
    answered = of_kind(events, "rollcall.answered").groupBy("call").agg(F.countDistinct("node").alias("answered"))
    finished = of_kind(events, "rollcall.finished").select("call", "node", "ts", "answers", "expected", "duration_s")
    return finished.join(answered, "call", "left")


COLUMNS: Final = {
    "node": "caller",
    "answered": "answered",
    "answers": "heard",
    "expected": "expected",
    "duration_s": "last answer",
}
TABLES: Final = (
    SparkTable("roll_calls", roll_calls, Shown("Roll calls", COLUMNS, ("ts", "call")), ("rollcall.finished",)),
)
