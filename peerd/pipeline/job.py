"""The job behind ``peerd analyze``: event logs in, Parquet tables and a report out.

Bad lines do not stop it, and are counted: a line that is not JSON, does not fit the schema or lacks the common fields
is *corrupt*; one with the number of an event that was read before is a *duplicate*. Neither gets into a table. A second
run overwrites the tables with the same content. An event of a kind that is not known here, because its plugin is not
installed, has its common fields in the table of events, and its whole text in the column ``raw``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.storagelevel import StorageLevel

from peerd.errors import Unavailable
from peerd.front import SparkTable
from peerd.pipeline import tables
from peerd.pipeline.schema import CORRUPT_COLUMN, RAW_COLUMN, spark_schema
from peerd.telemetry.schema import SCHEMA_VERSION, Event

FINISHED_SUFFIX: Final = ".ndjson"
PART_SUFFIX: Final = ".ndjson.part"
TABLES: Final = ("events", "messages", "metrics")
"""The tables of the core. Plugins add their own (`peerd.front.Front.tables`)."""
UNPACKED: Final = 8
"""A compressed file is about so many times as long when it is read."""
CORRUPT_FILES_MAX: Final = 20
"""The report names at most this many files with corrupt lines."""
OUTPUT_FILE_BYTES: Final = 256 * 1024 * 1024
"""Input for each Parquet file of the table of events: few and large ones read best."""
EVENT_KEY: Final = ("node", "boot", "id")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of the job. Each list has the rows of a table, as dictionaries in a stable order."""

    files: int
    part_files: int
    lines: int
    events: int
    corrupt: int
    corrupt_files: list[Row]
    """Rows of (file, corrupt), those with most corrupt lines first, at most `CORRUPT_FILES_MAX`."""
    duplicates: int
    newer_schema: int
    """Events written by a newer version: fields that this version does not know are only in the column ``raw``."""
    unknown: list[Row]
    """Rows of (event, nodes, events): the kinds that no installed plugin declares."""
    losses: list[Row]
    """The rows of `tables.losses`."""
    traffic: list[Row]
    """The rows of `tables.traffic_by_kind`."""
    messages: list[Row]
    """Rows of (message, nodes, sent, received, sent_bytes, received_bytes, sent_per_node)."""
    protocols: dict[str, list[Row]]
    """The rows of plugins' tables that are shown, by the name of the table."""

    @property
    def missing(self) -> int:
        """Events that were recorded and are in no file, as far as the numbers can tell."""
        return sum(row["missing"] for row in self.losses)

    @property
    def told_dropped(self) -> int:
        """The number of events that sinks said they had dropped."""
        return sum(row["told"] for row in self.losses)


RESERVED: Final = frozenset((*TABLES, *(each.name for each in fields(Report)), "missing", "told_dropped"))
"""Names that a plugin's table cannot have: tables are folders side by side, and fields of one report."""


def find_event_files(directory: Path, *, include_parts: bool = True) -> list[Path]:
    """List the event files anywhere below a directory, sorted.

    ``.part`` files are what a daemon writes now or had open when it was killed; where the finished file is there too
    (a copy taken around the rename), only that one counts. Raises `Unavailable` when there is none.
    """
    found = {*directory.rglob(f"*{FINISHED_SUFFIX}"), *directory.rglob(f"*{FINISHED_SUFFIX}.gz")}
    if include_parts:
        whole = {path.with_suffix("") if path.suffix == ".gz" else path for path in found}
        found |= {path for path in directory.rglob(f"*{PART_SUFFIX}") if path.with_suffix("") not in whole}
    files = sorted(path.resolve() for path in found if path.is_file())
    if not files:
        raise Unavailable(f"no *{FINISHED_SUFFIX} files below {directory}")
    return files


def size_bytes(files: list[Path]) -> int:
    """Return the size of all the files together, as they are read."""
    return sum(path.stat().st_size * (UNPACKED if path.suffix == ".gz" else 1) for path in files)


def check_out(files: Iterable[Path], out: Path, tables: Iterable[str]) -> None:
    """Raise `Unavailable` where a table would be written over event files."""
    folders = {out.resolve() / name for name in tables}
    for file in files:
        if over := folders.intersection(file.parents):
            raise Unavailable(
                f"the table {over.pop()} would be written over the event file {file}: choose another --out"
            )


def run_job(
    spark: SparkSession,
    directory: Path,
    out: Path,
    *,
    events: Mapping[str, type[Event]],
    plugin_tables: Sequence[Sequence[SparkTable]],
    include_parts: bool = True,
    progress: Callable[[str], None] = lambda step: None,
) -> Report:
    """Read the event files below ``directory`` and write the core's and the plugins' tables into ``out``.

    ``events``: every kind that is known; ``plugin_tables``: those of each plugin, in the order in which they are built.
    Raises `Unavailable` without a file, and when a table would be written over one.
    """
    files = find_event_files(directory, include_parts=include_parts)
    check_out(files, out, [*TABLES, *(each.name for ours in plugin_tables for each in ours)])
    progress(f"reading {len(files)} files")
    raw = read_events(spark, files, events).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counts = _count_lines(raw)
        good = raw.where(~_is_bad()).drop(CORRUPT_COLUMN, "_file").dropDuplicates(list(EVENT_KEY))
        progress(f"writing {sum(row['good'] for row in counts)} events")
        table = _write(spark, good.coalesce(1 + size_bytes(files) // OUTPUT_FILE_BYTES), out, "events")
    finally:
        raw.unpersist()
    progress("joining tables")
    message_table = _write(spark, tables.messages(table), out, "messages")
    _write(spark, tables.metrics(table), out, "metrics")
    protocols: dict[str, list[Row]] = {}
    for ours in plugin_tables:
        protocols |= _build(spark, table, ours, out)
    event_count = table.count()
    corrupt_files = [{"file": row["file"], "corrupt": row["lines"] - row["good"]} for row in counts]
    worst = sorted(corrupt_files, key=lambda row: (-row["corrupt"], row["file"]))[:CORRUPT_FILES_MAX]
    return Report(
        files=len(files),
        part_files=sum(path.name.endswith(PART_SUFFIX) for path in files),
        lines=sum(row["lines"] for row in counts),
        events=event_count,
        corrupt=sum(row["corrupt"] for row in corrupt_files),
        corrupt_files=[row for row in worst if row["corrupt"]],
        duplicates=sum(row["good"] for row in counts) - event_count,
        newer_schema=sum(row["newer"] for row in counts),
        unknown=_rows(tables.unknown(table, events)),
        losses=_rows(tables.losses(table).orderBy("node", "boot")),
        traffic=_rows(tables.traffic_by_kind(table, message_table).orderBy("kind", "plugin", "outcome")),
        messages=_rows(_messages_a_node(message_table)),
        protocols=protocols,
    )


def _build(spark: SparkSession, events: DataFrame, ours: Sequence[SparkTable], out: Path) -> dict[str, list[Row]]:
    """Write the tables of one plugin; returns the rows of those that are shown."""
    built: dict[str, DataFrame] = {}
    rows: dict[str, list[Row]] = {}
    for each in ours:
        built[each.name] = _write(spark, each.build(events, built), out, each.name)
        if each.shown is not None:
            rows[each.name] = _rows(built[each.name].orderBy(*(F.asc_nulls_last(name) for name in each.shown.order_by)))
    return rows


def read_events(spark: SparkSession, files: list[Path], events: Mapping[str, type[Event]]) -> DataFrame:
    """Read every line of the files, with the columns of `spark_schema`, `RAW_COLUMN`, and ``_file``, its file."""
    lines = spark.read.text([_as_glob(path) for path in files]).where(F.length(F.trim("value")) > 0)
    wide, common = spark_schema(events), spark_schema({})
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    parsed = lines.select(
        "value",
        F.col("_metadata.file_name").alias("_file"),
        F.from_json("value", wide, options).alias("_wide"),
        # A field of an unknown event may have the name of a known one, but another type.
        F.from_json("value", common, options).alias("_common"),
    )
    is_foreign = F.col(f"_common.{CORRUPT_COLUMN}").isNull() & ~F.col("_common.event").isin(list(events))
    columns = [
        F.when(is_foreign, F.col(f"_common.{name}") if name in common.names else F.lit(None)).otherwise(
            F.col(f"_wide.{name}")
        )
        for name in wide.names
    ]
    is_newer = F.col("_common.schema_version") > SCHEMA_VERSION
    return parsed.select(
        *(column.alias(name) for column, name in zip(columns, wide.names, strict=True)),
        F.when(is_foreign | is_newer, F.col("value")).alias(RAW_COLUMN),
        "_file",
    )


def _as_glob(path: Path) -> str:
    """Protect a path from Spark, which would expand characters of a pattern in it."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path.as_posix())


def _is_bad() -> Any:
    """Return the condition for a corrupt line: not JSON, not of the schema, or without an event's fields (``{}``)."""
    return F.col(CORRUPT_COLUMN).isNotNull() | F.concat(*(F.col(name) for name in (*EVENT_KEY, "event"))).isNull()


def _count_lines(raw: DataFrame) -> list[Row]:
    """Return one row of (file, lines, good, newer) for each file that is not empty."""
    is_newer = ~_is_bad() & (F.col("schema_version") > SCHEMA_VERSION)
    counted = raw.groupBy(F.col("_file").alias("file")).agg(
        F.count(F.lit(1)).alias("lines"),
        F.count(F.when(~_is_bad(), 1)).alias("good"),
        F.count(F.when(is_newer, 1)).alias("newer"),
    )
    return _rows(counted)


def _messages_a_node(message_table: DataFrame) -> DataFrame:
    return (
        message_table.groupBy("message")
        .agg(
            F.countDistinct("node").alias("nodes"),
            *(F.sum(name).alias(name) for name in ("sent", "received", "sent_bytes", "received_bytes")),
        )
        .withColumn("sent_per_node", F.col("sent") / F.col("nodes"))
        .orderBy(F.col("sent").desc(), "message")
    )


def _write(spark: SparkSession, table: DataFrame, out: Path, name: str) -> DataFrame:
    """Write one table, and return it as read from disk, so that nothing is computed twice."""
    path = str(out.resolve() / name)
    table.write.mode("overwrite").parquet(path)
    return spark.read.parquet(path)


def _rows(table: DataFrame) -> list[Row]:
    return [row.asDict() for row in table.collect()]
