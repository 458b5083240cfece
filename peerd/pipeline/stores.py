"""Which store of tables a job writes to."""

from __future__ import annotations

from pyspark.sql import SparkSession

from peerd.errors import Unavailable
from peerd.pipeline.connect import is_connected
from peerd.pipeline.store import ConnectStore, TableStore


def table_store(spark: SparkSession, out: str, *, is_delta: bool = False) -> TableStore:
    """The tables in ``out``, as this session can work with them. Raises `Unavailable` where it cannot."""
    if not is_delta:
        return ConnectStore(spark, out) if is_connected(spark) else TableStore(spark, out)
    if is_connected(spark):
        raise Unavailable("Delta tables are not written over Spark Connect")
    from peerd.pipeline.delta import DeltaStore  # its library is an extra

    return DeltaStore(spark, out)
