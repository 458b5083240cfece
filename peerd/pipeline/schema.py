"""The Spark schema of event records, generated from `peerd.telemetry.schema`."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructField, StructType

from peerd.errors import Bug
from peerd.telemetry.schema import COMMON_FIELDS, event_types, field_types

CORRUPT_COLUMN: Final = "_corrupt_record"
"""Where Spark puts the text of a line that does not fit the schema."""

_SPARK_TYPES: Final[dict[type, DataType]] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
}


def event_columns() -> dict[str, type]:
    """Column to Python type: the common fields, then the union of all events' fields in order of first appearance.

    Raises `Bug` when two classes disagree about a field, or an event reuses a common name.
    """
    columns: dict[str, type] = {name: kind for name, (kind, _) in COMMON_FIELDS.items()}
    for kind, event_type in event_types().items():
        for name, (python_type, _) in field_types(event_type).items():
            if name in COMMON_FIELDS or columns.setdefault(name, python_type) is not python_type:
                raise Bug(f"{kind}: field {name} is {python_type.__name__}, elsewhere something else")
            if python_type not in _SPARK_TYPES:
                raise Bug(f"{kind}: field {name} has type {python_type.__name__}, which a flat table cannot hold")
    return columns


def spark_schema() -> StructType:
    """Every column, all nullable, and `CORRUPT_COLUMN`."""
    fields = [StructField(name, _SPARK_TYPES[kind]) for name, kind in event_columns().items()]
    return StructType([*fields, StructField(CORRUPT_COLUMN, StringType())])
