"""The job behind ``peerd analyze``: event logs in, Parquet tables and a report out.

The source is read once, into the table of events; all else is made of that. Bad lines do not stop the job, and are
counted: a line that lacks a field of every event is *corrupt*; one with the number of an event that was read before is
a *duplicate*. Neither gets into a table. A second run overwrites the tables with the same content. An event of a kind
that is not known here, because its plugin is not installed, has its common fields in the table of events, and all of
them in the column ``raw``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession, functions as F

from peerd.front import SparkTable
from peerd.pipeline import tables
from peerd.pipeline.findings import CORRUPT_FILES_MAX, LineCounts, Report, report_of
from peerd.pipeline.lines import parse, read_lines
from peerd.pipeline.making import EVENTS, EventTable, TableMaker
from peerd.pipeline.sources import FILE, IS_GOOD, IS_NEWER, OF_LINE, Sources, plain, until_files_stay
from peerd.pipeline.store import TableStore
from peerd.pipeline.stores import table_store
from peerd.telemetry.schema import Event

FILE_GONE: Final = "FILE_NOT_EXIST"
"""Spark's name for it."""
_HIDDEN: Final = "_events"
"""The name of the table of events while the others are made of it, where it is not wanted itself."""


def run_job(
    spark: SparkSession,
    sources: Sources,
    out: str,
    *,
    events: Mapping[str, type[Event]],
    plugin_tables: Sequence[Sequence[SparkTable]],
    wanted: Collection[str] | None = None,
    is_delta: bool = False,
    progress: Callable[[str], None] = lambda step: None,
) -> Report:
    """Read the sources, and write the core's and the plugins' tables for which they have events into ``out``.

    ``events``: every kind that is known; ``plugin_tables``: those of each plugin, in the order in which they are built;
    ``wanted``: no other tables are written; ``is_delta``: they are tables of Delta Lake. Raises `Unavailable` without a
    file, and when a table would be written over one.
    """
    store = table_store(spark, out, is_delta=is_delta)
    maker = TableMaker(store, plugin_tables, wanted)
    with _name_of_events(maker, store) as name:

        def read() -> tuple[Sequence[str], LineCounts]:
            lines = read_lines(spark, sources)
            files = [file for file in lines.inputFiles() if sources.hours.may_have(file)]
            store.check_apart(files, maker.names())
            progress(f"reading {len(files)} files")
            return files, write_events(parse(lines, events, sources), lambda good: store.draft(name, good))

        files, counts = until_files_stay(read, _is_gone, progress)
        progress(f"counting {counts.good:,} events")
        table = store.read(name)
        losses = tables.losses(table).persist()
        duplicates = losses.agg(F.sum("duplicates")).first()[0] or 0
        if not duplicates:
            store.settle(name)
        else:
            progress(f"leaving out {duplicates:,} events that came twice")
            table = store.rewrite(name, tables.once(table, losses.where("duplicates > 0")))
            losses.unpersist()
            losses = tables.losses(table).persist()
        progress("making tables")
        made = maker.make(EventTable(table, events), losses)
        losses.unpersist()
    return report_of(made, files, counts, duplicates, events)


@contextlib.contextmanager
def _name_of_events(maker: TableMaker, store: TableStore) -> Iterator[str]:
    """Where the table of events is meanwhile; it is removed at the end, if it is not wanted."""
    if maker.is_wanted(EVENTS):
        yield EVENTS
        return
    try:
        yield _HIDDEN
    except BaseException:
        with contextlib.suppress(Py4JError, PySparkException, OSError):  # Spark may be what has failed
            store.remove(_HIDDEN)
        raise
    store.remove(_HIDDEN)


def _is_gone(error: Exception) -> bool:
    return isinstance(error, (Py4JJavaError, PySparkException)) and FILE_GONE in str(error)


def write_events(parsed: DataFrame, write: Callable[[DataFrame], object]) -> LineCounts:
    """Write the good ones of what `parse` gave; returns what was counted meanwhile, in the same pass."""
    counts = Observation("lines")
    write(parsed.observe(counts, *_line_counts()).where(IS_GOOD).drop(*OF_LINE))
    counted = counts.get
    files_at = [(row["item"], row["count"]) for row in counted["corrupt_files"] if row["item"]]
    corrupt = [{"file": plain(uri), "corrupt": count} for uri, count in files_at]
    return LineCounts(counted["lines"], counted["good"], counted["newer"], corrupt[:CORRUPT_FILES_MAX])


def _line_counts() -> list[Any]:
    """What is counted while the source is read."""
    is_good, is_newer = F.col(IS_GOOD), F.col(IS_NEWER)
    # All good lines are counted under null, so that there is a place more than names.
    files = F.expr(f"approx_top_k(if({IS_GOOD}, null, {FILE}), {CORRUPT_FILES_MAX + 1})")
    return [
        F.count(F.lit(1)).alias("lines"),
        F.count(F.when(is_good, 1)).alias("good"),
        F.count(F.when(is_newer, 1)).alias("newer"),
        files.alias("corrupt_files"),
    ]
