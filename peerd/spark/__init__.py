"""A running ring as a data source of Spark; docs/spark.md is the users' page.

from peerd.spark import register, ship

register(spark)
ship(spark, Path("/var/tmp"))  # for workers without peerd
spark.read.format("peerd").option("query", "SELECT node, cpu FROM nodes").load("measurement")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peerd.spark.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "ship"]


def register(spark: SparkSession) -> None:
    """Have this session know the format "peerd"."""
    from peerd.spark.source import RingSource

    spark.dataSource.register(RingSource)
    # Without it Spark fetches all that a daemon holds, and throws most of it away.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
