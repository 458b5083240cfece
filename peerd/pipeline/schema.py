"""The Spark schemas of event records, generated from the event classes that are handed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from peerd.telemetry.schema import Event, columns_of

_SPARK_TYPES: Final[dict[type, DataType]] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
}


def spark_schema(events: Mapping[str, type[Event]]) -> StructType:
    """A column for every field of these events, all nullable.

    ``events``: as `peerd.telemetry.schema.union` makes it; without any, the common fields are left.
    """
    return StructType([StructField(name, _SPARK_TYPES[kind]) for name, kind in columns_of(events).items()])
