"""``peerd analyze --follow``: the tables of event logs that are being written, as they grow.

The table of events has what was written within two intervals; the others are made of it anew, as the job does it that
reads all at once, and no longer than half of the time. What was done is in Spark's checkpoint, so that a process that
was killed at any moment goes on where it was, and each event is in the table once: there is no event that comes too
late, and none that is let in twice.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming import StreamingQuery

from peerd.front import SparkTable
from peerd.pipeline import tables
from peerd.pipeline.batches import CHECKPOINT, EventBatches
from peerd.pipeline.findings import LineCounts
from peerd.pipeline.job import write_events
from peerd.pipeline.line_stream import stream_lines
from peerd.pipeline.lines import LINES, parse, read_lines, stream_finished
from peerd.pipeline.making import EVENTS, EventTable, TableMaker
from peerd.pipeline.sources import OF_LINE, NothingThere, Sources, nothing_in
from peerd.pipeline.store import TableStore
from peerd.pipeline.stores import table_store
from peerd.pipeline.tail import EventFileTail
from peerd.telemetry.schema import Event

POLL_S: Final = 1.0
"""How often the other tables are looked at, whether they are to be made anew."""


@dataclass(frozen=True, slots=True)
class BatchDone:
    """What was new; it is in the table of events now."""

    batch: int
    counts: LineCounts
    duplicates: int
    """Events that were there already."""
    duration_s: float

    @property
    def events(self) -> int:
        """New events in the table."""
        return self.counts.good - self.duplicates


@dataclass(frozen=True, slots=True)
class TablesRenewed:
    """All other tables were made anew, of all events until now."""

    tables: list[str]
    duration_s: float


Told = Callable[[BatchDone | TablesRenewed], None]


def follow(
    spark: SparkSession,
    sources: Sources,
    out: str,
    *,
    events: Mapping[str, type[Event]],
    plugin_tables: Sequence[Sequence[SparkTable]],
    wanted: Collection[str] | None = None,
    is_delta: bool = False,
    interval_s: float | None,
    is_here: bool = True,
    told: Told,
) -> None:
    """Bring the tables in ``out`` up to date, each interval; with ``None`` once, and with that it ends.

    ``is_here``: the sources are files of this machine, and so is Spark; then files are read while they grow. The other
    arguments are those of `run_job`. Raises `Unavailable` as that does; without an interval also when there is no file.
    """
    store = table_store(spark, out, is_delta=is_delta)
    maker = TableMaker(store, plugin_tables, wanted if wanted is None else {EVENTS, *wanted})
    lines, files = _growing(spark, sources) if is_here else _finished(spark, sources)
    if interval_s is None and not files:
        raise nothing_in(sources.paths)
    store.check_apart(files, maker.names())
    following = _Following(spark, sources, events, store, maker, told)
    writer = lines.writeStream.foreachBatch(following.take)
    writer = writer.option("checkpointLocation", store.path(CHECKPOINT))
    if interval_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(1000 * interval_s)} milliseconds")
    query = writer.start()
    while not _has_ended(query, following):
        if interval_s is not None:
            following.make_tables_if_due()
    following.make_tables_if_due(is_last=True)


def _growing(spark: SparkSession, sources: Sources) -> tuple[DataFrame, list[str]]:
    """A stream of the lines of files of this machine, and the files that are there now."""
    paths = [os.path.abspath(path) for path in sources.paths]  # other processes read them, of Spark's
    tail = EventFileTail(paths, sources.has_parts, sources.hours)
    return stream_lines(spark, tail), list(tail.ends())


def _finished(spark: SparkSession, sources: Sources) -> tuple[DataFrame, list[str]]:
    """The same of finished files of any file system."""
    lines = stream_finished(spark, sources)
    try:
        return lines, read_lines(spark, replace(sources, has_parts=False)).inputFiles()
    except NothingThere:
        return lines, []


def _has_ended(query: StreamingQuery, following: _Following) -> bool:
    """Wait a little whether it ends. Raises what it has ended with."""
    try:
        return bool(query.awaitTermination(POLL_S))
    except StreamingQueryException:
        if following.failure is not None:
            raise following.failure from None  # Spark has only its text
        raise


class _Following:
    """Takes batches, on a thread of Spark's, and makes tables, on that of the caller; one at a time."""

    def __init__(
        self,
        spark: SparkSession,
        sources: Sources,
        events: Mapping[str, type[Event]],
        store: TableStore,
        maker: TableMaker,
        told: Told,
    ) -> None:
        self._sources, self._known, self._store, self._maker, self._told = sources, events, store, maker, told
        self.failure: Exception | None = None
        columns = self._parsed(spark.createDataFrame([], LINES)).drop(*OF_LINE).schema
        self._batches = EventBatches(store, columns)
        self._batches.recover()
        self._lock = threading.Lock()
        # An earlier process may have been killed before it had made them.
        self._is_behind = not self._batches.is_empty
        self._made_at, self._made_for_s = 0.0, 0.0

    def _parsed(self, lines: DataFrame) -> DataFrame:
        return parse(lines, self._known, self._sources, F.col("file"))

    def take(self, lines: DataFrame, number: int) -> None:
        """Take a batch, again if need be. See `pyspark.sql.streaming.DataStreamWriter.foreachBatch`."""
        try:
            with self._lock:
                began, folder = time.monotonic(), self._batches.folder(number)
                self._batches.begin()
                counts = write_events(self._parsed(lines), lambda good: self._store.write(folder, good))
                duplicates = self._batches.add(number)
                self._is_behind = True
                self._told(BatchDone(number, counts, duplicates, time.monotonic() - began))
        except Exception as error:
            self.failure = error
            raise

    def make_tables_if_due(self, *, is_last: bool = False) -> None:
        """Make the other tables of all events, if there are new ones, and this takes no more than half of the time."""
        began = time.monotonic()
        if not self._is_behind or (began - self._made_at < self._made_for_s and not is_last):
            return
        with self._lock:
            events = self._batches.events()
            losses = tables.losses(events).persist()
            made = self._maker.make(EventTable(events, self._known), losses)
            losses.unpersist()
            self._is_behind = False
        self._made_at = time.monotonic()
        self._made_for_s = self._made_at - began
        self._told(TablesRenewed(made.tables, self._made_for_s))
