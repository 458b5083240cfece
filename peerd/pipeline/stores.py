"""Which store of tables a job writes to."""

from __future__ import annotations

from pyspark.sql import SparkSession

from peerd.pipeline.connect import is_connected
from peerd.pipeline.store import ConnectStore, TableStore


def table_store(spark: SparkSession, out: str) -> TableStore:
    """The tables in ``out``, as this session can work with them. Raises `Unavailable` where it cannot."""
    return ConnectStore(spark, out) if is_connected(spark) else TableStore(spark, out)
