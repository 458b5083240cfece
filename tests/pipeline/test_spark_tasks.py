"""Simulations as tasks of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from peerd.cli.lab_sweep import _run_on_spark
from peerd.errors import Unavailable
from peerd.lab.experiment import COST, Point, Row
from peerd.lab.pool import run_point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytestmark = pytest.mark.spark

POINT = Point("overlay/hops", 5, "constant", duration_s=5.0, lookups=10, settle_s=1.0, seed=1)


def no_watch(point: Point, phase: str, now_s: float) -> None:
    """Spark tells of no phases."""


def without_cost(row: Row | None) -> Row:
    assert row is not None
    return {name: value for name, value in row.items() if name not in COST}


def test_a_sweep_on_spark_has_the_rows_that_it_has_here(spark: SparkSession) -> None:
    other = Point(**{**POINT.to_json(), "seed": 2})
    broken = Point(**{**POINT.to_json(), "experiment": "no/such"})
    found = {each.point.digest: each for each in _run_on_spark(spark, [POINT, broken, other], no_watch)}
    for point in (POINT, other):
        assert without_cost(found[point.digest].row) == without_cost(run_point(point))
    assert found[broken.digest].row is None and "no experiment 'no/such'" in found[broken.digest].error


def test_what_a_task_raises_is_its_result_and_no_module_is_told_in_words(spark: SparkSession) -> None:
    from peerd.pipeline.spark_tasks import run_tasks

    told = dict(run_tasks(spark, int, ["7", "seven", "8"]))
    assert told["7"] == 7 and told["8"] == 8
    assert "invalid literal for int() with base 10: 'seven'" in str(told["seven"])

    def elsewhere(item: int) -> int:
        raise ModuleNotFoundError("No module named 'numpy'")

    with pytest.raises(Unavailable, match="a worker has no numpy: install peerd there"):
        list(run_tasks(spark, elsewhere, [1]))
