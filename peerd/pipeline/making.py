"""The tables that are made of the table of events: the core's, and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, functions as F

from peerd.front import SparkTable
from peerd.pipeline import clocks, tables
from peerd.telemetry.schema import Event, columns_of

EVENTS: Final = "events"
CLOCKS: Final = "clocks"
TABLES: Final = (EVENTS, "losses", "nodes", "messages", "metrics", CLOCKS)
"""The tables of the core. Plugins add their own (`peerd.front.Front.tables`)."""
TRAFFIC: Final = ("traffic.snapshot",)
METRICS: Final = ("metric.snapshot",)
ROWS_MAX: Final = 10_000
"""The report has at most so many rows of a table, the first ones. All are in the table."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TablesMade:
    """What the tables say. Each list has rows of a table, `ROWS_MAX` at most, as dictionaries in a stable order."""

    boots: int
    """Incarnations of nodes that have recorded events."""
    missing: int
    """Events that were recorded and are in no file, as far as the numbers can tell."""
    told_dropped: int
    """Events that sinks said they had dropped."""
    nodes: list[Row]
    """The rows of `tables.nodes`, in the order in which they came."""
    kinds: list[Row]
    """Rows of (event, nodes, events): what is there."""
    losses: list[Row]
    """The rows of `tables.losses`, those with most missing events first."""
    traffic: list[Row]
    """The rows of `tables.traffic_by_kind`."""
    messages: list[Row]
    """Rows of (message, nodes, sent, received, sent_bytes, received_bytes, sent_per_node)."""
    clocks: list[Row]
    """The rows of the table ``clocks`` (`peerd.pipeline.clocks.offsets`)."""
    protocols: dict[str, list[Row]]
    """The rows of plugins' tables that are shown, by the name of the table."""
    tables: list[str]
    """The tables that were written: those that there are events for."""


class EventTable:
    """The table of events, each of them once. ``known``: every kind that has columns in it."""

    def __init__(self, table: DataFrame, known: Mapping[str, type[Event]]) -> None:
        self.table = table
        self._known = known

    def of(self, patterns: Sequence[str]) -> DataFrame:
        """All events, with the columns of these kinds: a table needs a few of more than a hundred, and planning it
        takes a while for each."""
        kinds = {
            kind: event for kind, event in self._known.items() if any(fnmatchcase(kind, each) for each in patterns)
        }
        return self.with_columns(list(columns_of(kinds))) if 0 < len(kinds) < len(self._known) else self.table

    def with_columns(self, columns: Sequence[str]) -> DataFrame:
        """All events, with these columns."""
        return self.table.select(*columns)


class Tables(Protocol):
    """Where tables go: one that is there is written over."""

    def write(self, name: str, table: DataFrame) -> DataFrame:
        """Write a table; returns it as it is read from there, so that nothing is computed twice."""

    def remove(self, name: str) -> None:
        """Remove a table, if it is there."""

    def frame(self, rows: Iterable[tuple[object, ...]], columns: str) -> DataFrame:
        """Some rows, which are in no table."""


@dataclass(frozen=True, slots=True)
class TableMaker:
    """Makes tables of events, which it is given with each event once. ``wanted``: no others are written."""

    store: Tables
    plugin_tables: Sequence[Sequence[SparkTable]]
    wanted: Collection[str] | None

    def names(self) -> list[str]:
        """Of all tables that there may be."""
        return [*TABLES, *(each.name for ours in self.plugin_tables for each in ours)]

    def is_wanted(self, name: str) -> bool:
        """Whether a table is to be written."""
        return self.wanted is None or name in self.wanted

    def make(self, events: EventTable, losses: DataFrame) -> TablesMade:
        """Write the tables that these events have anything for, over those of an earlier run. ``losses``: of them."""
        run = _Run(self, events, rows_of(tables.kinds(events.table)))
        run.write("losses", lambda: losses.drop("duplicates"), ("*",))
        nodes = run.write("nodes", lambda: tables.nodes(events.table), ("*",))
        messages = run.write("messages", lambda: tables.messages(events.of(TRAFFIC)), TRAFFIC)
        run.write("metrics", lambda: tables.metrics(events.of(METRICS)), METRICS)
        found = run.write_clocks()
        protocols: dict[str, list[Row]] = {}
        for ours in self.plugin_tables:
            protocols |= run.build(ours)
        totals = losses.agg(F.count("*").alias("boots"), *(F.sum(name).alias(name) for name in ("missing", "told")))
        total = rows_of(totals)[0]
        return TablesMade(
            boots=total["boots"],
            missing=total["missing"] or 0,
            told_dropped=total["told"] or 0,
            nodes=[] if nodes is None else rows_of(nodes.orderBy("first_ts", "node", "boot")),
            kinds=run.kinds,
            losses=rows_of(losses.drop("duplicates").orderBy(F.desc("missing"), "node", "boot")),
            traffic=rows_of(
                tables.traffic_by_kind(events.of(("swap.finished",)), messages).orderBy("kind", "plugin", "outcome")
            ),
            messages=[] if messages is None else rows_of(_messages_a_node(messages)),
            clocks=found,
            protocols=protocols,
            tables=run.written,
        )


class _Run:
    """The tables that are made at once of the same events."""

    def __init__(self, maker: TableMaker, events: EventTable, kinds: list[Row]) -> None:
        self._maker, self._events, self.kinds = maker, events, kinds
        self._off: DataFrame | None = None
        """The clocks that are off: node, offset_s."""
        self._there = [row["event"] for row in kinds]
        self.written = [EVENTS] if maker.is_wanted(EVENTS) else []

    def write(self, name: str, table: Callable[[], DataFrame], kinds: Sequence[str]) -> DataFrame | None:
        """Write a table that is made of events of these kinds, if there are any and it is wanted; ``None``: there are
        none."""
        return self._put(name, table()) if self._has(name, kinds) else None

    def _put(self, name: str, table: DataFrame) -> DataFrame:
        if not self._maker.is_wanted(name):
            return table
        self.written.append(name)
        return self._maker.store.write(name, table)

    def _has(self, name: str, kinds: Sequence[str]) -> bool:
        """Whether there is anything for a table; where not, none of an earlier run says what is not there."""
        is_there = any(fnmatchcase(kind, pattern) for kind in self._there for pattern in kinds)
        if not is_there and self._maker.is_wanted(name):
            self._maker.store.remove(name)
        return is_there

    def write_clocks(self) -> list[Row]:
        """Write the table of clocks, if any two nodes have met; returns its rows. Plugins' tables may need them too."""
        plugins = (each.name for ours in self._maker.plugin_tables for each in ours)
        if not self._has(CLOCKS, clocks.KINDS) or not any(map(self._maker.is_wanted, (CLOCKS, *plugins))):
            return []
        found = clocks.offsets(row.asDict() for row in clocks.pairs(self._events.of(clocks.KINDS)).collect())
        if not found:
            if self._maker.is_wanted(CLOCKS):
                self._maker.store.remove(CLOCKS)
            return []
        table = self._put(CLOCKS, self._maker.store.frame((tuple(row.values()) for row in found), clocks.COLUMNS))
        if any(row["is_off"] for row in found):
            self._off = table.where("is_off").select("node", "offset_s")
        return found[:ROWS_MAX]

    def build(self, ours: Sequence[SparkTable]) -> dict[str, list[Row]]:
        """Write the tables of one plugin; returns the rows of those that are shown."""
        built = _Built(self._events, ours)
        if self._off is not None:
            built.made[CLOCKS] = self._off
        rows: dict[str, list[Row]] = {}
        for each in ours:
            if not self._has(each.name, each.kinds):
                continue
            table = built.made[each.name] = self._put(each.name, built[each.name])
            if each.shown is not None and self._maker.is_wanted(each.name):
                rows[each.name] = rows_of(table.orderBy(*(F.asc_nulls_last(name) for name in each.shown.order_by)))
        return rows


class _Built(Mapping[str, DataFrame]):
    """The tables of one plugin, each made when it is first asked for: to plan a table takes Spark a while, even one
    that is never computed."""

    def __init__(self, events: EventTable, ours: Sequence[SparkTable]) -> None:
        self._events, self._ours = events, {each.name: each for each in ours}
        self.made: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self.made:
            ours = self._ours[name]
            self.made[name] = ours.build(self._events.of((*ours.kinds, *ours.besides)), self)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ours)

    def __len__(self) -> int:
        return len(self._ours)


def rows_of(table: DataFrame) -> list[Row]:
    """The first `ROWS_MAX` rows."""
    return [row.asDict() for row in table.limit(ROWS_MAX).collect()]


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
