"""The job behind ``peerd analyze``: event logs in, Parquet tables and a report out.

The source is read once, into the table of events; all else is made of that. Bad lines do not stop the job, and are
counted: a line that lacks a field of every event is *corrupt*; one with the number of an event that was read before is
a *duplicate*. Neither gets into a table. A second run overwrites the tables with the same content. An event of a kind
that is not known here, because its plugin is not installed, has its common fields in the table of events, and all of
them in the column ``raw``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession, functions as F

from peerd.front import SparkTable
from peerd.pipeline import source, tables
from peerd.pipeline.making import EVENTS, TABLES, Row, TableMaker, TablesMade
from peerd.pipeline.source import Sources
from peerd.pipeline.store import TableStore
from peerd.telemetry.schema import Event

CORRUPT_FILES_MAX: Final = 20
"""The report names at most this many files with corrupt lines."""
LISTINGS_MAX: Final = 5
FILE_GONE: Final = "FILE_NOT_EXIST"
"""Spark's name for it."""
_HIDDEN: Final = "_events"
"""The name of the table of events while the others are made of it, where it is not wanted itself."""


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Lines that were read."""

    lines: int
    good: int
    """Those that are events, and may have come twice."""
    newer_schema: int
    """Events written by a newer version: fields that this version does not know are only in the column ``raw``."""
    corrupt_files: list[Row]
    """Rows of (file, corrupt), those with most corrupt lines first, at most `CORRUPT_FILES_MAX`."""

    @property
    def corrupt(self) -> int:
        """Lines that are no events."""
        return self.lines - self.good


@dataclass(frozen=True, slots=True)
class Report(TablesMade):
    """The findings of the job."""

    files: int
    part_files: int
    lines: int
    events: int
    corrupt: int
    corrupt_files: list[Row]
    """See `LineCounts`."""
    duplicates: int
    newer_schema: int
    unknown: list[Row]
    """Those of ``kinds`` that no installed plugin declares."""


RESERVED: Final = frozenset((*TABLES, *(each.name for each in fields(Report))))
"""Names that a plugin's table cannot have: tables are folders side by side, and fields of one report."""


def run_job(
    spark: SparkSession,
    sources: Sources,
    out: str,
    *,
    events: Mapping[str, type[Event]],
    plugin_tables: Sequence[Sequence[SparkTable]],
    wanted: Collection[str] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Report:
    """Read the sources, and write the core's and the plugins' tables for which they have events into ``out``.

    ``events``: every kind that is known; ``plugin_tables``: those of each plugin, in the order in which they are built;
    ``wanted``: no other tables are written. Raises `Unavailable` without a file, and when a table would be written over
    one.
    """
    store = TableStore(spark, out)
    maker = TableMaker(store, plugin_tables, wanted)
    name = EVENTS if maker.is_wanted(EVENTS) else _HIDDEN

    def read() -> tuple[Sequence[str], LineCounts]:
        lines = source.read_lines(spark, sources)
        files = lines.inputFiles()
        store.check_apart(files, maker.names())
        progress(f"reading {len(files)} files")
        return files, write_events(source.parse(lines, events, sources), lambda good: store.write(name, good))

    files, counts = _until_files_stay(read, progress)
    progress(f"counting {counts.good:,} events")
    table = store.read(name)
    losses = tables.losses(table).persist()
    duplicates = losses.agg(F.sum("duplicates")).first()[0] or 0
    if duplicates:
        progress(f"leaving out {duplicates:,} events that came twice")
        table = store.rewrite(name, tables.once(table, losses.where("duplicates > 0")))
        losses.unpersist()
        losses = tables.losses(table).persist()
    progress("making tables")
    made = maker.make(table, losses)
    losses.unpersist()
    if name == _HIDDEN:
        store.remove(name)
    return Report(
        **{each.name: getattr(made, each.name) for each in fields(made)},
        files=len(files),
        part_files=sum(path.endswith(source.PART_SUFFIX) for path in files),
        lines=counts.lines,
        events=counts.good - duplicates,
        corrupt=counts.corrupt,
        corrupt_files=counts.corrupt_files,
        duplicates=duplicates,
        newer_schema=counts.newer_schema,
        unknown=[row for row in made.kinds if row["event"] not in events],
    )


def _until_files_stay(read: Callable[[], Result], progress: Callable[[str], None]) -> Result:
    """Read, again if a file was there when Spark listed them, and was not when it was opened: its daemon has finished
    it meanwhile, and given it another name."""
    for _ in range(LISTINGS_MAX - 1):
        try:
            return read()
        except (Py4JJavaError, PySparkException) as error:
            if FILE_GONE not in str(error):
                raise
            progress("a file got another name meanwhile: reading again")
    return read()


def write_events(parsed: DataFrame, write: Callable[[DataFrame], object]) -> LineCounts:
    """Write the good ones of what `source.parse` gave; returns what was counted meanwhile, in the same pass."""
    counts = Observation("lines")
    write(parsed.observe(counts, *_line_counts()).where(source.IS_GOOD).drop(*source.OF_LINE))
    counted = counts.get
    files_at = [(row["item"], row["count"]) for row in counted["corrupt_files"] if row["item"]]
    corrupt = [{"file": source.plain(uri), "corrupt": count} for uri, count in files_at]
    return LineCounts(counted["lines"], counted["good"], counted["newer"], corrupt[:CORRUPT_FILES_MAX])


def _line_counts() -> list[Any]:
    """What is counted while the source is read."""
    is_good, is_newer = F.col(source.IS_GOOD), F.col(source.IS_NEWER)
    # All good lines are counted under null, so that there is a place more than names.
    files = F.expr(f"approx_top_k(if({source.IS_GOOD}, null, {source.FILE}), {CORRUPT_FILES_MAX + 1})")
    return [
        F.count(F.lit(1)).alias("lines"),
        F.count(F.when(is_good, 1)).alias("good"),
        F.count(F.when(is_newer, 1)).alias("newer"),
        files.alias("corrupt_files"),
    ]
