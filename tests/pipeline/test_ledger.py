"""The ledger: what was sent, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark


def test_what_is_not_accounted_for_is_unknown(spark: SparkSession) -> None:
    from peerd.pipeline.ledger import balances

    lines = spark.createDataFrame(
        [
            ("a", "items", "sent", None, 100),
            ("a", "items", "sent", None, 900),
            ("a", "items", "delivered", None, 700),
            ("a", "items", "filtered", None, 200),
            ("a", "items", "dropped", "slow", 60),
            ("a", "items", "dropped", "full", 1),
            ("a", "items", "dropped", "full", 9),
            ("a", "items", "dropped", "never", 0),
            ("a", "readers", "dropped", "slow", 3),
            ("b", "values", "sent", None, 5),
            ("b", "values", "delivered", None, 5),
        ],
        "system string, unit string, part string, reason string, count bigint",
    )
    rows = {(row["system"], row["unit"]): row.asDict() for row in balances(lines).collect()}
    numbers = ("sent", "delivered", "filtered", "dropped", "unknown")
    assert {key: tuple(row[name] for name in numbers) for key, row in rows.items()} == {
        ("a", "items"): (1000, 700, 200, 70, 30),
        ("a", "readers"): (None, 0, 0, 3, None),
        ("b", "values"): (5, 5, 0, 0, 0),
    }
    assert rows["a", "items"]["reasons"] == "full 10, slow 60" and rows["b", "values"]["reasons"] == ""
