"""Event classes, NDJSON and the Spark schema say the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from peerd.plugins import find_events
from peerd.telemetry.schema import COMMON_FIELDS, SCHEMA_VERSION, Event, field_types
from peerd.telemetry.sinks import encode_record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

SAMPLES: dict[type, Any] = {str: 'a "quoted"\nline \u2028 ü \\', int: 2**53 + 1, float: 0.1, bool: True}


def samples() -> list[Event]:
    """Each class with every field set, and again with null wherever it may be."""
    made = []
    for event_type in find_events().values():
        fields = field_types(event_type)
        full = {name: SAMPLES[kind] for name, (kind, _) in fields.items()}
        sparse = {name: None if may_be_null else SAMPLES[kind] for name, (kind, may_be_null) in fields.items()}
        made += [event_type(**full), event_type(**sparse)]
    return made


def test_schema_is_the_union_of_all_classes() -> None:
    from peerd.pipeline.schema import spark_schema

    schema = spark_schema(find_events())
    wanted = [*COMMON_FIELDS, *(name for event_type in find_events().values() for name in field_types(event_type))]
    assert schema.fieldNames() == [*dict.fromkeys(wanted)]
    assert all(field.nullable for field in schema.fields)
    assert {schema[name].dataType.simpleString() for name in ("id", "ts", "event", "initiated")} == {
        "bigint",
        "double",
        "string",
        "boolean",
    }


@pytest.mark.spark
def test_every_event_class_round_trips(spark: SparkSession, tmp_path: Path) -> None:
    from peerd.pipeline.lines import parse, read_lines
    from peerd.pipeline.sources import IS_GOOD, Sources

    events = samples()
    stamps = {"schema_version": SCHEMA_VERSION, "ts": 1.5, "mono_s": 0.25, "node": "a" * 32, "boot": 1, "cause": None}
    records = [{**stamps, "id": number, "event": event.KIND, **event.columns()} for number, event in enumerate(events)]
    path = tmp_path / "events-a-1-1.ndjson"
    path.write_bytes(b"".join(encode_record(record) for record in records))
    sources = Sources([str(path)])
    parsed = parse(read_lines(spark, sources), find_events(), sources)
    rows = {row["id"]: row.asDict() for row in parsed.collect()}
    assert len(rows) == len(records)
    for record, event in zip(records, events, strict=True):
        row = rows[record["id"]]
        assert row[IS_GOOD] and row["raw"] is None
        assert {name: row[name] for name in record} == record
        assert type(event)(**{name: row[name] for name in field_types(type(event))}) == event
