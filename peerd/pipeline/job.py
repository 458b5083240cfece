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
from fnmatch import fnmatchcase
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession, functions as F

from peerd.front import SparkTable
from peerd.pipeline import source, tables
from peerd.pipeline.source import Sources
from peerd.pipeline.store import TableStore
from peerd.telemetry.schema import Event

TABLES: Final = ("events", "losses", "messages", "metrics")
"""The tables of the core. Plugins add their own (`peerd.front.Front.tables`)."""
CORRUPT_FILES_MAX: Final = 20
"""The report names at most this many files with corrupt lines."""
ROWS_MAX: Final = 10_000
"""The report has at most so many rows of a table, the first ones. All are in the table."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of the job. Each list has rows of a table, `ROWS_MAX` at most, as dictionaries in a stable order."""

    files: int
    part_files: int
    lines: int
    events: int
    boots: int
    """Incarnations of nodes that have recorded events."""
    corrupt: int
    corrupt_files: list[Row]
    """Rows of (file, corrupt), those with most corrupt lines first, at most `CORRUPT_FILES_MAX`."""
    duplicates: int
    newer_schema: int
    """Events written by a newer version: fields that this version does not know are only in the column ``raw``."""
    missing: int
    """Events that were recorded and are in no file, as far as the numbers can tell."""
    told_dropped: int
    """Events that sinks said they had dropped."""
    kinds: list[Row]
    """Rows of (event, nodes, events): what is there."""
    unknown: list[Row]
    """Those of them that no installed plugin declares."""
    losses: list[Row]
    """The rows of `tables.losses`, those with most missing events first."""
    traffic: list[Row]
    """The rows of `tables.traffic_by_kind`."""
    messages: list[Row]
    """Rows of (message, nodes, sent, received, sent_bytes, received_bytes, sent_per_node)."""
    protocols: dict[str, list[Row]]
    """The rows of plugins' tables that are shown, by the name of the table."""
    tables: list[str]
    """The tables that were written: those that there are events for."""


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
    lines, store = source.read_lines(spark, sources), TableStore(spark, out)
    files = lines.inputFiles()
    store.check_apart(files, [*TABLES, *(each.name for ours in plugin_tables for each in ours)])
    job = _Job(store, wanted)
    progress(f"reading {len(files)} files")
    counted = job.read(source.parse(lines, events, sources))
    progress(f"counting {counted['good']:,} events")
    losses = tables.losses(job.events).persist()
    duplicates = losses.agg(F.sum("duplicates")).first()[0] or 0
    if duplicates:
        progress(f"leaving out {duplicates:,} events that came twice")
        job.leave_out(losses.where("duplicates > 0"))
        losses.unpersist()
        losses = tables.losses(job.events).persist()
    kinds = _rows(tables.kinds(job.events))
    job.kinds = [row["event"] for row in kinds]
    progress("making tables")
    job.write("losses", losses.drop("duplicates"), ("*",))
    messages = job.write("messages", tables.messages(job.events), ("traffic.snapshot",))
    job.write("metrics", tables.metrics(job.events), ("metric.snapshot",))
    protocols: dict[str, list[Row]] = {}
    for ours in plugin_tables:
        protocols |= job.build(ours)
    totals = _rows(losses.agg(F.count("*").alias("boots"), *(F.sum(name).alias(name) for name in ("missing", "told"))))
    files_at = [(row["item"], row["count"]) for row in counted["corrupt_files"] if row["item"]]
    corrupt = [{"file": source.plain(uri), "corrupt": count} for uri, count in files_at]
    report = Report(
        files=len(files),
        part_files=sum(path.endswith(source.PART_SUFFIX) for path in files),
        lines=counted["lines"],
        events=counted["good"] - duplicates,
        boots=totals[0]["boots"],
        corrupt=counted["lines"] - counted["good"],
        corrupt_files=corrupt[:CORRUPT_FILES_MAX],
        duplicates=duplicates,
        newer_schema=counted["newer"],
        missing=totals[0]["missing"] or 0,
        told_dropped=totals[0]["told"] or 0,
        kinds=kinds,
        unknown=[row for row in kinds if row["event"] not in events],
        losses=_rows(losses.drop("duplicates").orderBy(F.desc("missing"), "node", "boot")),
        traffic=_rows(tables.traffic_by_kind(job.events, messages).orderBy("kind", "plugin", "outcome")),
        messages=[] if messages is None else _rows(_messages_a_node(messages)),
        protocols=protocols,
        tables=job.written,
    )
    losses.unpersist()
    job.end()
    return report


class _Job:
    """The tables of one run: those that are wanted and that there are events for."""

    events: DataFrame
    kinds: list[str]

    def __init__(self, store: TableStore, wanted: Collection[str] | None) -> None:
        self._store, self._wanted = store, wanted
        self.written = ["events"] if self.is_wanted("events") else []
        # All tables are made of it, so it is there meanwhile in any case.
        self._name = "events" if self.is_wanted("events") else "_events"

    def read(self, parsed: DataFrame) -> Row:
        """Write the good ones of what was parsed into the table of events; returns `_line_counts`."""
        counts = Observation("lines")
        good = parsed.observe(counts, *_line_counts()).where(source.IS_GOOD).drop(*source.OF_LINE)
        self.events = self._store.write(self._name, good)
        counted: Row = counts.get
        return counted

    def leave_out(self, doubled: DataFrame) -> None:
        """Leave each event once of those (node, boot) that have any twice."""
        self.events = self._store.rewrite(self._name, tables.once(self.events, doubled))

    def end(self) -> None:
        """Take away what was only there to make the others of it."""
        if not self.is_wanted("events"):
            self._store.remove(self._name)

    def is_wanted(self, name: str) -> bool:
        """Whether a table is to be written."""
        return self._wanted is None or name in self._wanted

    def write(self, name: str, table: DataFrame, kinds: Sequence[str]) -> DataFrame | None:
        """Write a table that is made of events of these kinds, if there are any and it is wanted; ``None``: there are
        none."""
        if not any(fnmatchcase(kind, pattern) for kind in self.kinds for pattern in kinds):
            if self.is_wanted(name):
                self._store.remove(name)  # of an earlier run: it would say what is not there
            return None
        if not self.is_wanted(name):
            return table
        self.written.append(name)
        return self._store.write(name, table)

    def build(self, ours: Sequence[SparkTable]) -> dict[str, list[Row]]:
        """Write the tables of one plugin; returns the rows of those that are shown."""
        built: dict[str, DataFrame] = {}
        rows: dict[str, list[Row]] = {}
        for each in ours:
            lazy = each.build(self.events, built)
            table = self.write(each.name, lazy, each.kinds)
            built[each.name] = lazy if table is None else table
            if table is not None and each.shown is not None and self.is_wanted(each.name):
                rows[each.name] = _rows(table.orderBy(*(F.asc_nulls_last(name) for name in each.shown.order_by)))
        return rows


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


def _rows(table: DataFrame) -> list[Row]:
    return [row.asDict() for row in table.limit(ROWS_MAX).collect()]
