"""Where event logs are, and their lines as a DataFrame: read once, each with what Spark needs to judge it.

A source is a path or pattern of any file system that Spark reads (``file:``, ``hdfs:``, ``s3a:``), and Spark lists it:
what is below a folder at any depth, as far as it is named like an event file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from peerd.pipeline.schema import spark_schema
from peerd.pipeline.sources import (
    FILE,
    FOLDER_HOUR,
    IS_GOOD,
    IS_NEWER,
    NEEDED,
    RAW,
    FolderHours,
    Sources,
    missing,
    nothing_in,
    plain,
)
from peerd.telemetry.schema import SCHEMA_VERSION, Event

FINISHED: Final = "*.ndjson{,.gz}"
WITH_PARTS: Final = "*.ndjson{,.gz,.part}"
"""Names of event files: ``.part`` are those that a daemon writes now, or had open when it was killed."""
ANY_DEPTH: Final = "recursiveFileLookup"
NAMES: Final = "pathGlobFilter"
LINES: Final = "value string, file string"
"""The columns of a stream of lines; ``file`` is where a line is, if Spark does not know it."""
FOLLOWED_BYTES: Final = 256 * 1024 * 1024
"""A micro-batch has about so many bytes of files, or one file. What is there when a job begins comes in several."""
ANY_AGE: Final = {"maxFileAge": "36500d"}
"""By default a stream of Spark leaves out files that are a week older than the newest one."""


def read_lines(spark: SparkSession, sources: Sources) -> DataFrame:
    """The lines that are not empty, in a column ``value``. Raises `Unavailable` where there is no event file."""
    names = WITH_PARTS if sources.has_parts else FINISHED
    reader = spark.read.option(ANY_DEPTH, "true").option(NAMES, names)
    with _missing_told(sources):
        lines = reader.text([_as_pattern(path) for path in sources.paths])
        has_files = bool(lines.inputFiles())
    if not has_files:
        raise nothing_in(sources.paths)
    return lines.where(_is_of_the_time(sources.hours))


def stream_finished(spark: SparkSession, sources: Sources) -> DataFrame:
    """The lines of finished files of any file system, as a stream of `LINES`: a file's come when it is there, under its
    name. Raises `Unavailable` where there is no such folder."""
    reader = spark.readStream.format("text").options(**ANY_AGE, maxBytesPerTrigger=str(FOLLOWED_BYTES))
    reader = reader.option(ANY_DEPTH, "true").option(NAMES, FINISHED)
    with _missing_told(sources):
        streams = [reader.load(_as_pattern(path)) for path in sources.paths]
    wanted = (stream.where(_is_of_the_time(sources.hours)) for stream in streams)
    return reduce(
        DataFrame.unionByName, (lines.select("value", F.col("_metadata.file_path").alias("file")) for lines in wanted)
    )


@contextmanager
def _missing_told(sources: Sources) -> Iterator[None]:
    """Raise `Unavailable` where Spark does not find one of the paths."""
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        told = (error.getMessageParameters() or {}).get("path", " ".join(sources.paths))
        raise missing(plain(told)) from error


def _as_pattern(path: str) -> str:
    """A path that is there is no pattern: what would be one in it is protected from Spark."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path) if Path(path).exists() else path


def _is_of_the_time(hours: FolderHours) -> Column:
    """Whether a file's folder may have events of the time: where not, Spark does not open it."""
    path = F.col("_metadata.file_path")
    hour = F.concat(F.regexp_extract(path, FOLDER_HOUR, 1), F.regexp_extract(path, FOLDER_HOUR, 2))
    wanted = hour >= hours.since
    if hours.until:
        wanted &= hour <= hours.until
    return (hour == "") | wanted


def parse(
    lines: DataFrame, events: Mapping[str, type[Event]], sources: Sources, file: Column | None = None
) -> DataFrame:
    """Lines as events, with the columns of `spark_schema`, `RAW`, `FILE`, and what is true of the line.

    A line is *good* that has the fields of each event. A field of another type than it should be is null, or a text
    where it should be one; so it is with fields of events that are not known here. Lines of other times than is asked
    for are left out. ``file``: the file that a line is of, where Spark does not know it.
    """
    wide = spark_schema(events)
    # Something here has to be not deterministic to Spark, which then does not move a condition on what was parsed to
    # below it: there every line would be parsed once more. `input_file_name` is such.
    name = F.input_file_name() if file is None else F.when(F.monotonically_increasing_id() >= 0, file)
    parsed = lines.where(F.length(F.trim("value")) > 0).select(
        "value", name.alias(FILE), F.from_json("value", wide).alias("_event")
    )
    is_good = reduce(and_, (F.col(f"_event.{name}").isNotNull() for name in NEEDED))
    is_foreign = is_good & ~F.col("_event.event").isin(list(events))
    is_newer = is_good & (F.col("_event.schema_version") > SCHEMA_VERSION)
    ts, is_wanted = F.col("_event.ts"), F.lit(True)
    if sources.since_s is not None:
        is_wanted &= ts >= sources.since_s
    if sources.until_s is not None:
        is_wanted &= ts < sources.until_s
    return parsed.where(~is_good | is_wanted).select(
        "_event.*",
        F.when(is_foreign | is_newer, F.try_parse_json("value")).alias(RAW),
        FILE,
        is_good.alias(IS_GOOD),
        is_newer.alias(IS_NEWER),
    )
