"""Where event logs are, and their lines as a DataFrame: read once, each with what Spark needs to judge it.

A source is a path or pattern of any file system that Spark reads (``file:``, ``hdfs:``, ``s3a:``), and Spark lists it:
what is below a folder at any depth, as far as it is named like an event file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from peerd.errors import Unavailable
from peerd.pipeline.schema import spark_schema
from peerd.telemetry.schema import COMMON_FIELDS, SCHEMA_VERSION, Event

FINISHED: Final = "*.ndjson{,.gz}"
WITH_PARTS: Final = "*.ndjson{,.gz,.part}"
"""Names of event files: ``.part`` are those that a daemon writes now, or had open when it was killed."""
UNPACKED: Final = 8
"""A compressed file is about so many times as long when it is read."""
PART_SUFFIX: Final = ".part"
FOLDER_HOUR: Final = r"/dt=(\d{4}-\d\d-\d\d)/hr=(\d\d)/"
FOLDER_S: Final = 2 * 3600.0
"""A folder has the events of an hour, and of some more for which its daemon had no time yet."""
RAW: Final = "raw"
"""The column with a whole line, as a VARIANT, where it has more than the other columns can hold: an event of a kind
that is not known here (its plugin is not installed), or of a newer version."""
FILE: Final = "_file"
IS_GOOD: Final = "_is_good"
IS_NEWER: Final = "_is_newer"
OF_LINE: Final = (FILE, IS_GOOD, IS_NEWER)
"""Columns that say something of the line, and are in no table."""
NEEDED: Final = tuple(name for name in COMMON_FIELDS if name != "cause")


@dataclass(frozen=True, slots=True)
class FolderHours:
    """Hours as folders are named, such as ``2026-11-2713``, the first and the last one whose folders may have events of
    the time that is asked for; empty: there is no such limit."""

    since: str = ""
    until: str = ""

    def may_have(self, path: str) -> bool:
        """Whether the folder of this file may have such events; where it does not name an hour, it may."""
        hour = re.search(FOLDER_HOUR, path)
        return hour is None or (hour[1] + hour[2] >= self.since and (not self.until or hour[1] + hour[2] <= self.until))


@dataclass(frozen=True, slots=True)
class Sources:
    """What is read. ``since_s``, ``until_s``: seconds since 1970 by the nodes' clocks; events of then and before it."""

    paths: Sequence[str]
    has_parts: bool = True
    since_s: float | None = None
    until_s: float | None = None

    @property
    def hours(self) -> FolderHours:
        """Of the folders that are to be read."""
        since = "" if self.since_s is None else _hour(self.since_s - FOLDER_S)
        return FolderHours(since, "" if self.until_s is None else _hour(self.until_s))


def check_here(paths: Sequence[str]) -> None:
    """Raise `Unavailable` for a path of this machine that is not there, before Spark takes its seconds to start."""
    for path in paths:
        if not re.search(r"[*?\[{]|^\w+:", path) and not Path(path).exists():
            raise _missing(path)


def _missing(path: str) -> Unavailable:
    return Unavailable(f"{path}: there is no such file or folder, or nothing fits the pattern")


def is_small(paths: Sequence[str], bytes_max: int) -> bool:
    """Whether these are files of this machine, of at most so many bytes as they are read. Looks at no more of them."""
    left = bytes_max
    for path in map(Path, paths):
        if not path.exists():
            return False  # a pattern, or elsewhere
        for file in path.rglob("*.ndjson*") if path.is_dir() else (path,):
            with contextlib.suppress(FileNotFoundError):  # its daemon may just have given it another name
                left -= file.stat().st_size * (UNPACKED if file.suffix == ".gz" else 1)
            if left < 0:
                return False
    return True


def read_lines(spark: SparkSession, sources: Sources) -> DataFrame:
    """The lines that are not empty, in a column ``value``. Raises `Unavailable` where there is no event file."""
    names = WITH_PARTS if sources.has_parts else FINISHED
    reader = spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", names)
    where = " ".join(sources.paths)
    try:
        lines = reader.text([_as_pattern(path) for path in sources.paths])
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        path = plain((error.getMessageParameters() or {}).get("path", where))
        raise _missing(path) from error
    if not lines.inputFiles():
        raise Unavailable(f"no event files (*.ndjson, *.ndjson.gz) in {where}")
    return lines.where(_is_of_the_time(sources.hours))


def plain(uri: str) -> str:
    """A file's address as people write it."""
    return re.sub(r"^file:/+", "/", unquote(uri))


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


def _hour(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d%H")


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
