"""``peerd analyze``: event logs of a cluster or of a simulation, as tables."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from peerd.cli.main import INTERRUPTED, exit_code
from peerd.cli.options import Output, OutputOption
from peerd.cli.output import RowWriter, Terminal, print_data, print_table, printable, stderr, stdout
from peerd.cli.story import print_story
from peerd.errors import PeerdError, Unavailable
from peerd.plugins import NAME, find_events, find_fronts, gather
from peerd.quantities import parse_duration
from peerd.report.cells import cell
from peerd.report.lives import bar, ends_of, times_of
from peerd.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from peerd.front import Shown, SparkTable
    from peerd.pipeline.findings import Report
    from peerd.pipeline.follow import BatchDone, TablesRenewed
    from peerd.pipeline.sources import Sources

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
LIFE_COLUMNS = {"node": "node", "boot": "boot", "life": "from the first to its last event", "end": "end"}
LIFE_WIDTH = 50


class TableEngine(enum.StrEnum):
    """What makes the tables."""

    SPARK = enum.auto()
    DUCKDB = enum.auto()


UNKNOWN_COLUMNS = {"event": "event", "nodes": "nodes", "events": "events"}
QUICK_BYTES_MAX = 64 * 1024 * 1024
"""For at most this much input Spark runs without its optimising compilers: they would take longer than they save."""
FOLLOWED_COLUMNS = ("at", "batch", "events", "corrupt", "duplicates", "tables", "duration_s")
INTERVAL_MIN_S = 1.0
"""Spark needs about so long for a batch that has next to nothing."""
ROWS_MAX = 50
"""Rows of a printed table; the JSON and the Parquet files have all of them."""


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


def interval_of(text: str) -> float:
    """Read a duration of `INTERVAL_MIN_S` at least. Raises ``typer.BadParameter``."""
    try:
        interval_s = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text}: {error}", param_hint="--every") from None
    if interval_s < INTERVAL_MIN_S:
        raise typer.BadParameter(f"{text}: at least {INTERVAL_MIN_S:g} s", param_hint="--every")
    return interval_s


def spark_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise typer.BadParameter(f"{text}: expected a setting of Spark, such as spark.executor.memory=4g")
    return key, value


def _names(text: str) -> frozenset[str] | None:
    """The tables that are wanted; ``None``: all."""
    if not text:
        return None
    from peerd.pipeline.making import TABLES

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
    engine: Annotated[
        TableEngine,
        typer.Option(help="duckdb makes the same tables without Java, of what this machine has (extra `duckdb`)."),
    ] = TableEngine.SPARK,
    master: Annotated[
        str, typer.Option(help="Spark master: local[THREADS] is this machine; spark://HOST:PORT, yarn, k8s://...")
    ] = "local[2]",
    driver_memory: Annotated[str, typer.Option(help="Memory of Spark's JVM here, or of DuckDB.")] = "1g",
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
    is_delta: Annotated[
        bool, typer.Option("--delta", help="Write Delta tables, which others see whole at any moment (extra `delta`).")
    ] = False,
    output: OutputOption = Output.TABLE,
    parts: Annotated[
        bool, typer.Option("--parts/--no-parts", help="Also read *.ndjson.part: files still open, or of killed nodes.")
    ] = True,
    is_followed: Annotated[
        bool, typer.Option("--follow", help="Go on with what is written later, also after a restart.")
    ] = False,
    every: Annotated[str, typer.Option(metavar="DURATION", help="With --follow: how often to look for more.")] = "10s",
    once: Annotated[
        bool, typer.Option("--once", help="With --follow: end when all that is there has been read.")
    ] = False,
    page: Annotated[
        bool, typer.Option("--report/--no-report", help="Write a report with pictures into an --out of this machine.")
    ] = True,
    explain: Annotated[
        str, typer.Option(metavar="ID", help="Then print what became of this, as `peerd report --explain` does.")
    ] = "",
) -> None:
    """Turn event logs into Parquet tables (events, losses, nodes, messages, metrics, and those of each protocol).

    Needs the extra `spark` and Java 17 or newer, or `--engine duckdb`. Corrupt lines are left out, and counted.
    """
    now_s, settings = time.time(), dict(map(spark_setting, conf or ()))
    since_s, until_s = (time_of(text, now_s) if text else None for text in (since, until))
    options = _Options(master, driver_memory, settings, since_s, until_s, tables, parts, is_delta)
    _check_together(engine, options, is_followed=is_followed, once=once)
    left = "it goes on from here with the same --out" if is_followed else "the tables are not complete"
    with _failures_told(left if engine is TableEngine.DUCKDB else f"Spark has stopped, and {left}"):
        report = None
        if is_followed:
            follow_logs(sources, out, options, None if once else interval_of(every), output)
        else:
            run = _run_on_duckdb if engine is TableEngine.DUCKDB else _run
            report = run(sources, out, options, stderr())
        has_page = page and not tables and write_page(out)
        if explain:
            print_story(Path(out), explain, output)
    if report is not None and not explain:
        _print(report, output, out, has_begun_late=bool(since), has_page=has_page)


def _check_together(engine: TableEngine, options: _Options, *, is_followed: bool, once: bool) -> None:
    """Raise ``typer.BadParameter`` for options of which one says nothing beside the other."""
    if once and not is_followed:
        raise typer.BadParameter("it needs --follow", param_hint="--once")
    if engine is TableEngine.DUCKDB and (is_followed or options.settings or options.is_delta):
        raise typer.BadParameter("--follow, --delta and --conf are of Spark", param_hint="--engine")


@contextlib.contextmanager
def _failures_told(left: str) -> Iterator[None]:
    """Tell what goes wrong in one line, and end with its exit code. ``left``: what an interrupt leaves."""
    errors = stderr()
    try:
        yield
    except KeyboardInterrupt:
        errors.print(f"peerd analyze: interrupted; {left}")
        raise typer.Exit(INTERRUPTED) from None
    except PeerdError as error:
        errors.print(f"peerd analyze: {error}")
        raise typer.Exit(exit_code(error)) from error


def _print(report: Report, output: Output, out: str, *, has_begun_late: bool, has_page: bool) -> None:
    if not print_data(output, report_as_json(report)):
        shown = {table.name: table.shown for ours in plugin_tables() for table in ours if table.shown is not None}
        print_report(report, shown, out, stdout(), has_begun_late=has_begun_late)
        if has_page:
            stdout().print(f"to look at: {Path(out, 'report.html')}")
    for warning in warnings_of(report):
        stderr().print(f"warning: {warning}", "yellow")


def write_page(out: str) -> bool:
    """Write the report's pages beside the tables, if these are of this machine."""
    if ":" in out:
        return False
    from peerd.report.making import write_report

    try:
        write_report(Path(out), plugin_tables())
    except PeerdError as error:  # the tables are there
        stderr().print(f"warning: there is no report: {error}", "yellow")
        return False
    return True


class _Options(NamedTuple):
    """What is asked for, besides what is read and where tables go. Times are seconds since 1970."""

    master: str
    driver_memory: str
    settings: Mapping[str, str]
    since_s: float | None
    until_s: float | None
    tables: str
    has_parts: bool
    is_delta: bool

    def sources(self, paths: Sequence[str]) -> Sources:
        """What is read."""
        from peerd.pipeline.sources import Sources

        return Sources(paths, self.has_parts, self.since_s, self.until_s)


def _run(paths: Sequence[str], out: str, options: _Options, errors: Terminal) -> Report:
    from peerd.pipeline.requirements import check_requirements

    check_requirements(options.master)
    from peerd.pipeline.job import run_job
    from peerd.pipeline.session import is_local
    from peerd.pipeline.sources import check_here

    if is_local(options.master):
        check_here(paths)
    asked = _asked_of_spark(options)
    with errors.status("starting Spark") as status, _session(paths, options) as spark:
        return run_job(spark, options.sources(paths), out, progress=status.update, **asked)


def _run_on_duckdb(paths: Sequence[str], out: str, options: _Options, errors: Terminal) -> Report:
    from peerd.pipeline.duck import duckdb_connection, run_on_duckdb, threads_of, use_duckdb
    from peerd.pipeline.tail import check_of_this_machine

    check_of_this_machine(paths)
    threads = threads_of(options.master)
    use_duckdb()
    asked = _asked(options)
    with errors.status("starting DuckDB") as status, duckdb_connection(threads, options.driver_memory) as connection:
        return run_on_duckdb(connection, options.sources(paths), out, progress=status.update, **asked)


def _asked(options: _Options) -> dict[str, Any]:
    """What any job is told of events and tables."""
    return {"events": find_events(), "plugin_tables": plugin_tables(), "wanted": _names(options.tables)}


def _asked_of_spark(options: _Options) -> dict[str, Any]:
    from peerd.pipeline.requirements import check_delta

    if options.is_delta:
        check_delta()
    return {**_asked(options), "is_delta": options.is_delta}


def follow_logs(paths: Sequence[str], out: str, options: _Options, interval_s: float | None, output: Output) -> None:
    """Bring the tables up to date, each interval, or once, and print a line each time."""
    from peerd.pipeline.requirements import check_requirements, is_connect

    check_requirements(options.master)
    from peerd.pipeline.follow import follow
    from peerd.pipeline.session import is_local
    from peerd.pipeline.sources import has_scheme
    from peerd.pipeline.tail import check_of_this_machine

    if is_connect(options.master):
        raise Unavailable("--follow runs in the program that begins it: Spark Connect has no such thing")
    is_here = is_local(options.master) and not any(map(has_scheme, paths))
    if is_here:
        check_of_this_machine(paths)
    elif options.has_parts:
        stderr().print("reading files when they are finished (*.ndjson, *.ndjson.gz): others grow only on this machine")
    asked, told = _asked_of_spark(options), _Told(output)
    with _session(paths, options, is_short=interval_s is None) as spark:
        follow(spark, options.sources(paths), out, interval_s=interval_s, is_here=is_here, told=told, **asked)


def _session(
    paths: Sequence[str], options: _Options, *, is_short: bool = True
) -> contextlib.AbstractContextManager[SparkSession]:
    from peerd.pipeline.session import spark_session
    from peerd.pipeline.sources import is_small

    is_quick = is_short and is_small(paths, QUICK_BYTES_MAX)
    return spark_session(options.master, options.driver_memory, is_quick=is_quick, settings=options.settings)


class _Told:
    """Prints what has come: a line each, for people or as data."""

    def __init__(self, output: Output) -> None:
        self._rows = None if output is Output.TABLE else RowWriter(output, FOLLOWED_COLUMNS)
        self._console, self._errors = stdout(), stderr()

    def __call__(self, news: BatchDone | TablesRenewed) -> None:
        from peerd.pipeline.follow import BatchDone

        row = followed_row(news)
        if self._rows is not None:
            self._rows.write({"at": time.time(), **row})
            return
        what = f"{counted(news.events, 'new event')}" if isinstance(news, BatchDone) else "tables renewed"
        made = "" if row["tables"] is None else f": {', '.join(row['tables'])}"
        self._console.print(f"{datetime.now(UTC):%H:%M:%S} {what} in {news.duration_s:.1f} s{made}")
        if row["corrupt"]:
            files = ", ".join(each["file"] for each in row["corrupt_files"][:3])
            self._warn(f"{counted(row['corrupt'], 'corrupt line')}: {files}")
        if row["duplicates"]:
            self._warn(counted(row["duplicates"], "copy of an event", "copies of events"))

    def _warn(self, left_out: str) -> None:
        self._errors.print(f"warning: left out {left_out}", "yellow")


def followed_row(news: BatchDone | TablesRenewed) -> dict[str, Any]:
    """What `peerd.pipeline.follow.follow` tells, JSON-ready: ``batch`` is null where tables were made anew."""
    from peerd.pipeline.follow import TablesRenewed

    if isinstance(news, TablesRenewed):
        nothing = dict.fromkeys(("batch", "events", "corrupt", "corrupt_files", "duplicates"))
        return {**nothing, "tables": news.tables, "duration_s": news.duration_s}
    return {
        "batch": news.batch,
        "events": news.events,
        "corrupt": news.counts.corrupt,
        "corrupt_files": news.counts.corrupt_files,
        "duplicates": news.duplicates,
        "tables": None,
        "duration_s": news.duration_s,
    }


def plugin_tables() -> list[Sequence[SparkTable]]:
    """Return the tables of each plugin, and that of what they have sent. Raises `ConfigError` when two tables have one
    name."""
    from peerd.pipeline.findings import RESERVED
    from peerd.pipeline.ledger import LEDGER, ledger_table

    fronts, taken = find_fronts(), {*RESERVED, LEDGER}
    gather(fronts, "table", lambda front: ((table.name, table) for table in front.tables()), taken, _bad_name)
    ledgers = gather(fronts, "ledger", lambda front: [(front.name, lines)] if (lines := front.ledger()) else [])
    return [*(front.tables() for front in fronts.values()), [ledger_table(ledgers)]]


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
    off = [row for row in report.clocks if row["is_off"]]
    if off:
        told = ", ".join(f"{row['node'][:8]} {row['offset_s']:+.2f} s (± {row['error_s']:.2f})" for row in off[:3])
        more = f" and {len(off) - 3} more" if len(off) > 3 else ""
        found.append(f"clocks that are off the others': {told}{more}")
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
    print_nodes(report.nodes, console)
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


def print_nodes(nodes: Sequence[dict[str, Any]], console: Terminal) -> None:
    """Print who was up when, as a picture."""
    if not nodes:
        return
    begin, end = times_of(nodes)
    lives = (bar(row, begin, end, LIFE_WIDTH) for row in nodes)
    rows = [{**row, "life": life, "end": how} for row, life, how in zip(nodes, lives, ends_of(nodes), strict=True)]
    _print_table(console, f"Who was up when, within {end - begin:,.1f} s", LIFE_COLUMNS, rows)


def print_traffic(report: Mapping[str, Any], console: Terminal) -> None:
    """Print bytes by kind, of a report as JSON."""
    _print_table(console, "Bytes by kind", TRAFFIC_COLUMNS, report["traffic"])


def print_ledger(rows: Sequence[dict[str, Any]], console: Terminal) -> None:
    """Print the rows of the table ``ledger``."""
    from peerd.pipeline.ledger import SHOWN

    _print_table(console, SHOWN.title, SHOWN.columns, rows)


def _print_table(
    console: Terminal, title: str, columns: Mapping[str, str], rows: Sequence[dict[str, Any]], wide: Sequence[str] = ()
) -> None:
    cells = [[printable(cell(name, row[name])) for name in columns] for row in rows[:ROWS_MAX]]
    numbers = [heading for name, heading in columns.items() if not any(isinstance(row[name], str) for row in rows)]
    console.print()
    print_table(console, list(columns.values()), cells, title, numbers=numbers)
    if len(rows) > ROWS_MAX:
        console.print(f"{len(rows) - ROWS_MAX} more rows")
