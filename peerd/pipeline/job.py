"""The job behind ``peerd analyze``: event logs in, Parquet tables and a report out.

Reading is forgiving and counted: a line that is no JSON, that does not fit the schema or that lacks the common fields
is *corrupt*, one with the number of an event that was read already is a *duplicate*; neither reaches a table. Running
it again overwrites the tables with the same content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.storagelevel import StorageLevel

from peerd.errors import Unavailable
from peerd.pipeline import tables
from peerd.pipeline.schema import CORRUPT_COLUMN, spark_schema
from peerd.telemetry.schema import SCHEMA_VERSION

FINISHED_SUFFIX: Final = ".ndjson"
PART_SUFFIX: Final = ".ndjson.part"
TABLES: Final = ("events", "rounds", "messages", "levels")
CORRUPT_FILES_MAX: Final = 20
"""Files with corrupt lines that the report names."""
OUTPUT_FILE_BYTES: Final = 256 * 1024 * 1024
"""Input for each Parquet file of the table of events: few and large ones read best."""
EVENT_KEY: Final = ("node", "boot", "id")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """What the job found. The lists are rows of tables, as dictionaries in a stable order."""

    files: int
    part_files: int
    lines: int
    events: int
    corrupt: int
    corrupt_files: list[Row]
    """file, corrupt: the worst first, at most `CORRUPT_FILES_MAX`."""
    duplicates: int
    newer_schema: int
    """Events written by a newer version: fields that this version does not know are left out."""
    losses: list[Row]
    """`tables.losses`."""
    rounds: list[Row]
    """`tables.rounds`."""
    traffic: list[Row]
    """`tables.traffic_by_kind`."""
    messages: list[Row]
    """message, nodes, sent, received, sent_bytes, received_bytes, sent_per_node."""

    @property
    def missing(self) -> int:
        """Events that were recorded and are in no file, as far as the numbers can tell."""
        return sum(row["missing"] for row in self.losses)

    @property
    def told_dropped(self) -> int:
        """Events that a sink said it dropped."""
        return sum(row["told"] for row in self.losses)


def find_event_files(directory: Path, *, include_parts: bool = True) -> list[Path]:
    """Event files anywhere below a directory, sorted.

    ``.part`` files are what a daemon writes now or had open when it was killed; where the finished file is there too
    (a copy taken around the rename), only that one counts. Raises `Unavailable` when there is none.
    """
    found = set(directory.rglob(f"*{FINISHED_SUFFIX}"))
    if include_parts:
        found |= {path for path in directory.rglob(f"*{PART_SUFFIX}") if path.with_suffix("") not in found}
    files = sorted(path.resolve() for path in found if path.is_file())
    if not files:
        raise Unavailable(f"no *{FINISHED_SUFFIX} files below {directory}")
    return files


def size_bytes(files: list[Path]) -> int:
    """Of all the files together."""
    return sum(path.stat().st_size for path in files)


def run_job(
    spark: SparkSession,
    directory: Path,
    out: Path,
    *,
    include_parts: bool = True,
    progress: Callable[[str], None] = lambda step: None,
) -> Report:
    """Read the event files below ``directory`` and write `TABLES` into ``out``. Raises `Unavailable` without a file."""
    files = find_event_files(directory, include_parts=include_parts)
    progress(f"reading {len(files)} files")
    raw = read_events(spark, files).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counts = _count_lines(raw)
        good = raw.where(~_is_bad()).drop(CORRUPT_COLUMN, "_file").dropDuplicates(list(EVENT_KEY))
        progress(f"writing {sum(row['good'] for row in counts)} events")
        events = _write(spark, good.coalesce(1 + size_bytes(files) // OUTPUT_FILE_BYTES), out, "events")
    finally:
        raw.unpersist()
    progress("joining rounds, levels and messages")
    message_table = _write(spark, tables.messages(events), out, "messages")
    level_table = _write(spark, tables.levels(events), out, "levels")
    round_table = _write(spark, tables.rounds(events, level_table), out, "rounds")
    event_count = events.count()
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
        losses=_rows(tables.losses(events).orderBy("node", "boot")),
        rounds=_rows(round_table.orderBy(F.col("started_ts").asc_nulls_last(), "round")),
        traffic=_rows(tables.traffic_by_kind(events, message_table).orderBy("kind", "plugin", "outcome")),
        messages=_rows(_messages_a_node(message_table)),
    )


def read_events(spark: SparkSession, files: list[Path]) -> DataFrame:
    """Every line of the files with the columns of `spark_schema`, and ``_file``, the file that it is from."""
    return (
        spark.read.schema(spark_schema())
        .option("mode", "PERMISSIVE")
        .option("columnNameOfCorruptRecord", CORRUPT_COLUMN)
        .json([_as_glob(path) for path in files])
        .withColumn("_file", F.col("_metadata.file_name"))
    )


def _as_glob(path: Path) -> str:
    """Spark expands patterns in paths; these are names."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path.as_posix())


def _is_bad() -> Any:
    """Not JSON, not of the schema, or not an event (``{}`` is fine JSON)."""
    return F.col(CORRUPT_COLUMN).isNotNull() | F.concat(*(F.col(name) for name in (*EVENT_KEY, "event"))).isNull()


def _count_lines(raw: DataFrame) -> list[Row]:
    """file, lines, good, newer: a row a file that has a line."""
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
    """Write one table and give it back as it is on disk, so that nothing is computed twice."""
    path = str(out.resolve() / name)
    table.write.mode("overwrite").parquet(path)
    return spark.read.parquet(path)


def _rows(table: DataFrame) -> list[Row]:
    return [row.asDict() for row in table.collect()]
