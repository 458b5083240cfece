"""``peerd analyze``: event logs of a cluster or of a simulation, as tables."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from peerd.cli.main import INTERRUPTED, exit_code
from peerd.cli.options import Output, OutputOption
from peerd.cli.output import Terminal, print_data, print_table, printable, stderr, stdout
from peerd.errors import PeerdError
from peerd.plugins import NAME, find_events, find_fronts, gather
from peerd.quantities import parse_duration
from peerd.words import counted

if TYPE_CHECKING:
    from peerd.front import Shown, SparkTable
    from peerd.pipeline.job import Report

TRAFFIC_COLUMNS = {
    "kind": "kind",
    "plugin": "plugin",
    "outcome": "outcome",
    "count": "count",
    "sent_bytes": "bytes sent",
    "received_bytes": "bytes received",
}
MESSAGE_COLUMNS = {
    "message": "message",
    "nodes": "nodes",
    "sent_per_node": "sent a node",
    "sent": "sent",
    "received": "received",
    "sent_bytes": "bytes sent",
}
LOSS_COLUMNS = {
    "node": "node",
    "boot": "boot",
    "records": "records",
    "missing": "missing",
    "missing_before": "missing before",
    "told": "dropped by sink",
}
UNKNOWN_COLUMNS = {"event": "event", "nodes": "nodes", "events": "events"}
QUICK_BYTES_MAX = 64 * 1024 * 1024
"""For at most this much input Spark runs without its optimising compilers: they would take longer than they save."""
TOP_MESSAGES = 10
ROWS_MAX = 50
"""Rows of a printed table; the JSON and the Parquet files have all of them."""
ID_COLUMNS = ("node",)
ID_LENGTH = 8


def time_of(text: str, now_s: float) -> float:
    """Read a time, seconds since 1970: a date with or without a time of day (UTC if it names no zone), or a duration:
    so long ago. Raises ``typer.BadParameter``."""
    with contextlib.suppress(ValueError):
        return now_s - parse_duration(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text}: expected a time such as 2026-11-27 or 2026-11-27T14:30, or how long ago, such as 2h"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise typer.BadParameter(f"{text}: expected a setting of Spark, such as spark.executor.memory=4g")
    return key, value


def _names(text: str) -> frozenset[str] | None:
    """The tables that are wanted; ``None``: all."""
    if not text:
        return None
    from peerd.pipeline.job import TABLES

    known = [*TABLES, *(table.name for ours in plugin_tables() for table in ours)]
    wanted = frozenset(name.strip() for name in text.split(","))
    if unknown := sorted(wanted.difference(known)):
        raise typer.BadParameter(f"{', '.join(unknown)}: the tables are {', '.join(known)}", param_hint="--tables")
    return wanted


def analyze(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Event logs (*.ndjson, *.ndjson.gz): files, patterns, or folders with any at any depth; of this "
            "machine or of a file system that Spark reads (hdfs:, s3a:).",
        ),
    ],
    out: Annotated[str, typer.Option(help="Where the Parquet tables go; tables already there are overwritten.")],
    master: Annotated[
        str, typer.Option(help="Spark master: local[THREADS] is this machine; spark://HOST:PORT, yarn, k8s://...")
    ] = "local[2]",
    driver_memory: Annotated[str, typer.Option(help="Memory of Spark's JVM here.")] = "1g",
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only events from then on: 2026-11-27T14:30 (UTC), or 2h: so long ago.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only events before then.")] = "",
    tables: Annotated[
        str, typer.Option(metavar="NAME,...", help="Write no other tables. Default: all that there are events for.")
    ] = "",
    output: OutputOption = Output.TABLE,
    parts: Annotated[
        bool, typer.Option("--parts/--no-parts", help="Also read *.ndjson.part: files still open, or of killed nodes.")
    ] = True,
) -> None:
    """Turn event logs into Parquet tables (events, losses, messages, metrics, and those of each protocol), and report.

    Needs the extra `spark` and Java 17 or newer. Corrupt lines are counted and left out; they do not fail the run.
    """
    errors = stderr()
    now_s, settings = time.time(), dict(map(_setting, conf or ()))
    since_s, until_s = (time_of(text, now_s) if text else None for text in (since, until))
    try:
        options = _Options(master, driver_memory, settings, since_s, until_s, tables, parts)
        report = _run(sources, out, options, errors)
    except KeyboardInterrupt:
        errors.print("peerd analyze: interrupted; Spark has ended, and the tables are not complete")
        raise typer.Exit(INTERRUPTED) from None
    except PeerdError as error:
        errors.print(f"peerd analyze: {error}")
        raise typer.Exit(exit_code(error)) from error
    if not print_data(output, report_as_json(report)):
        shown = {table.name: table.shown for ours in plugin_tables() for table in ours if table.shown is not None}
        print_report(report, shown, out, stdout(), has_begun_late=bool(since))
    for warning in warnings_of(report):
        errors.print(f"warning: {warning}", "yellow")


class _Options(NamedTuple):
    """What is asked for, besides what is read and where tables go. Times are seconds since 1970."""

    master: str
    driver_memory: str
    settings: Mapping[str, str]
    since_s: float | None
    until_s: float | None
    tables: str
    has_parts: bool


def _run(paths: Sequence[str], out: str, options: _Options, errors: Terminal) -> Report:
    from peerd.pipeline.requirements import check_requirements

    check_requirements()
    from peerd.pipeline.job import run_job
    from peerd.pipeline.session import is_local, spark_session
    from peerd.pipeline.source import Sources, check_here, is_small

    if is_local(options.master):
        check_here(paths)
    wanted, is_quick = _names(options.tables), is_small(paths, QUICK_BYTES_MAX)
    session = spark_session(options.master, options.driver_memory, is_quick=is_quick, settings=options.settings)
    with errors.status("starting Spark") as status, session as spark:
        return run_job(
            spark,
            Sources(paths, options.has_parts, options.since_s, options.until_s),
            out,
            events=find_events(),
            plugin_tables=plugin_tables(),
            wanted=wanted,
            progress=status.update,
        )


def plugin_tables() -> list[Sequence[SparkTable]]:
    """Return the tables of each plugin. Raises `ConfigError` when two tables have one name."""
    from peerd.pipeline.job import RESERVED

    fronts = find_fronts()
    gather(fronts, "table", lambda front: ((table.name, table) for table in front.tables()), RESERVED, _bad_name)
    return [front.tables() for front in fronts.values()]


def _bad_name(plugin: str, name: str) -> str | None:
    return None if NAME.fullmatch(name) else f"a name must match {NAME.pattern}"


def report_as_json(report: Report) -> dict[str, Any]:
    """The report's fields, JSON-ready; each plugin's table is a field of its own."""
    told = dataclasses.asdict(report)
    protocols = told.pop("protocols")
    return {**told, **protocols}


def warnings_of(report: Report) -> list[str]:
    """Return warnings about input that the tables leave out, such as corrupt lines."""
    found = []
    if report.corrupt:
        places = ", ".join(f"{row['file']} ({row['corrupt']})" for row in report.corrupt_files[:3])
        found.append(f"left out because corrupt: {report.corrupt} of {counted(report.lines, 'line')}: {places}")
    if report.missing:
        found.append(
            f"missing between others: {counted(report.missing, 'event')} ({report.told_dropped} told by sinks)"
        )
    if report.duplicates:
        found.append(
            f"came twice: {counted(report.duplicates, 'event')} (copies, or two runs in one directory); one of each is "
            "kept"
        )
    if report.newer_schema:
        found.append(
            f"of a newer schema: {counted(report.newer_schema, 'event')}; fields unknown here are in the column raw"
        )
    if report.unknown:
        kinds = ", ".join(row["event"] for row in report.unknown[:3])
        more = f" and {len(report.unknown) - 3} kinds more" if len(report.unknown) > 3 else ""
        count = sum(row["events"] for row in report.unknown)
        found.append(
            f"of kinds that no plugin installed here declares: {counted(count, 'event')} ({kinds}{more}); they are "
            "whole in the column raw of the table events"
        )
    return found


def print_report(
    report: Report, shown: Mapping[str, Shown], out: str, console: Terminal, *, has_begun_late: bool = False
) -> None:
    """Print the tables for people. ``has_begun_late``: what was before was not asked for, and is no gap."""
    console.print(
        f"{counted(report.events, 'event')} of {counted(report.boots, 'boot')} of nodes from "
        f"{counted(report.files, 'file')} "
        f"({report.part_files} unfinished); {counted(report.corrupt, 'corrupt line')}, {report.missing} missing, "
        f"{report.told_dropped} dropped by sinks"
    )
    for name, rows in report.protocols.items():
        how = shown[name]
        if rows:
            _print_table(console, how.title, how.columns, [how.cells(row) for row in rows], how.wide)
    if report.traffic:
        _print_table(console, "Bytes by kind", TRAFFIC_COLUMNS, report.traffic)
    if report.messages:
        _print_table(console, "Messages by type", MESSAGE_COLUMNS, report.messages)
    if report.unknown:
        _print_table(console, "Events of unknown kinds", UNKNOWN_COLUMNS, report.unknown)
    before = () if has_begun_late else ("missing_before",)
    incomplete = [row for row in report.losses if any(row[name] for name in ("missing", "told", *before))]
    if incomplete:
        _print_table(console, "Logs with gaps", LOSS_COLUMNS, incomplete)
    console.print()
    console.print(f"tables in {out}: {', '.join(report.tables)}")


def print_traffic(report: Mapping[str, Any], console: Terminal) -> None:
    """Print two tables of a report as JSON: bytes by kind, and the most frequent messages."""
    _print_table(console, "Bytes by kind", TRAFFIC_COLUMNS, report["traffic"])
    most = sorted(report["messages"], key=lambda row: -row["sent"])[:TOP_MESSAGES]
    _print_table(console, f"The {len(most)} most frequent messages", MESSAGE_COLUMNS, most)


def _print_table(
    console: Terminal, title: str, columns: Mapping[str, str], rows: Sequence[dict[str, Any]], wide: Sequence[str] = ()
) -> None:
    cells = [[_cell(name, row[name]) for name in columns] for row in rows[:ROWS_MAX]]
    numbers = [heading for name, heading in columns.items() if not any(isinstance(row[name], str) for row in rows)]
    console.print()
    print_table(console, list(columns.values()), cells, title, numbers=numbers)
    if len(rows) > ROWS_MAX:
        console.print(f"{len(rows) - ROWS_MAX} more rows")


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name in ID_COLUMNS:
        return str(value)[:ID_LENGTH]
    if isinstance(value, float):
        return f"{value:.3f} s" if name.endswith("_s") else f"{value:.1f}".removesuffix(".0")
    if isinstance(value, int):
        return f"{value:,}"
    return printable(value)
