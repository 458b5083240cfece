"""A running ring as a data source of Spark; docs/spark.md is the users' page.

from peerd.spark import register

register(spark)
spark.read.format("peerd").option("query", "SELECT node, cpu FROM nodes").load("measurement")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Have this session know the format "peerd"."""
    from peerd.spark.source import RingSource

    spark.dataSource.register(RingSource)
    # Without it Spark fetches all that a daemon holds, and throws most of it away.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
