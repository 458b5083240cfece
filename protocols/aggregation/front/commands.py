"""``peerd aggregate``: ask all nodes, watch the round, print the answer and the nodes that are missing from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, cast

import typer

from peerd.cli.locations import admin_address
from peerd.cli.options import Output, OutputOption, SocketOption
from peerd.cli.output import RowWriter, Terminal, number, print_data, print_table, seconds, size, stderr, stdout
from peerd.client import Client
from peerd.errors import Bug, ExitCode
from peerd.ids import short_id
from peerd.quantities import parse_duration
from peerd.words import counted
from protocols.aggregation.answer import Answer, RoundProgress
from protocols.aggregation.answers import recipients
from protocols.aggregation.collector import Basis
from protocols.aggregation.figures import Estimate, Figure, Figures, GroupedAnswer
from protocols.aggregation.front.client import AggregationClient, Skipped
from protocols.aggregation.front.values import keys_of, print_value
from protocols.aggregation.groups import GROUPS_MAX, GROUPS_MAX_DEFAULT
from protocols.aggregation.query import FORMATS, QUERY_HELP, Format, Query, parse_query

TOP_DEFAULT = 20
SHOWN_MISSING_MAX = 20
NAMED_INLINE_MAX = 4
"""How many missing nodes the verdict's line names at most."""

STAGES = {
    "started": "the question goes out",
    "enrolled": "nodes report that they take part",
    "result_ready": "a tree is complete",
    "fetching": "fetching the result",
    "checking": "asking some contributors whether they are",
}


def aggregate(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="See above.")],
    files: Annotated[str, typer.Option(metavar="GLOB", help="Files below each node's data root.")] = "**/*",
    format: Annotated[str | None, typer.Option(metavar="|".join(FORMATS), help="What a record is.")] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Named groups become fields; each match is a record.")
    ] = None,
    groups_max: Annotated[
        int, typer.Option(min=1, max=GROUPS_MAX, help="Groups kept; the rest is a remainder.")
    ] = GROUPS_MAX_DEFAULT,
    deadline: Annotated[
        str | None, typer.Option(metavar="30s", help="Answer with what there is after this long.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Groups shown.")] = TOP_DEFAULT,
    every: Annotated[
        str | None, typer.Option(metavar="10s", help="Ask again and again; a round that would be late is skipped.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="With --every: end after so many answers.")] = None,
    to: Annotated[
        str, typer.Option(metavar="all|FILTER", help="Who is given the answer, for `peerd answers`.")
    ] = "requester",
    require: Annotated[
        float, typer.Option(min=0, max=1, metavar="0..1", help="Exit with 3 when the completeness is below.")
    ] = 1.0,
    shares: Annotated[bool, typer.Option("--shares", help="List how much each node read.")] = False,
    progress: Annotated[bool, typer.Option("--progress/--no-progress", help="Show how the round goes on.")] = True,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Aggregate a function of all nodes' files. Exit code 3 for a partial answer, unless it meets --require."""
    # Here first: a mistake is found without a daemon, and shown with a caret.
    asked = parse_query(query, files=files, format=_format(format), pattern=pattern, groups_max=groups_max)
    if deadline is not None:
        _duration(deadline, "--deadline")
    if rounds is not None and every is None:
        raise typer.BadParameter("it needs --every", param_hint="--rounds")
    recipients(to)
    period_s = None if every is None else _duration(every, "--every")
    watcher = _Watcher(stderr() if progress else None)
    printer = _Printer(asked, output, shares, is_repeated=every is not None)
    enough = True

    def answered(answer: Answer) -> None:
        nonlocal enough
        printer.show(answer)
        enough = enough and is_enough(answer, require)

    asyncio.run(_ask(socket, asked, _Asking(deadline, top, to, period_s, rounds), watcher, answered))
    if not enough:
        raise typer.Exit(ExitCode.PARTIAL)


# The epilog of the help, typed as it is and not reflowed.
aggregate.__doc__ = f"{aggregate.__doc__}\n\n\b\n" + QUERY_HELP.replace("\n\n", "\n\n\b\n")


def _rows(answer: Answer, asked: Query) -> list[dict[str, Any]]:
    """For JSONL and CSV: a row for each group, or the one value. Of an estimate the number that it is about."""
    value = answer.value
    if not isinstance(value, GroupedAnswer):
        return [_cells(value)]
    names = asked.by if len(asked.by) > 1 else ("group",)
    return [
        {**dict(zip(names, keys_of(group, len(names)), strict=True)), **_cells(each)}
        for group, each in value.groups.items()
    ]


def _cells(figure: Figure | Figures) -> dict[str, Any]:
    figures = figure.figures if isinstance(figure, Figures) else {"value": figure}
    plain = {name: each.estimate if isinstance(each, Estimate) else each for name, each in figures.items()}
    return {name: asdict(each) if is_dataclass(each) else each for name, each in plain.items()}


def is_enough(answer: Answer, require: float) -> bool:
    """Whether an answer satisfies ``--require``: it is complete, or as complete as that option demands."""
    return answer.outcome == "complete" or (require < 1.0 and answer.completeness >= require)


@dataclass(frozen=True, slots=True)
class _Asking:
    """How to ask: ``period_s`` is ``None`` for once; otherwise ``rounds`` says how often, ``None`` for ever."""

    deadline: str | None
    top: int
    to: str
    period_s: float | None
    rounds: int | None


async def _ask(
    socket: str | None, query: Query, how: _Asking, watcher: _Watcher, answered: Callable[[Answer], None]
) -> None:
    async with Client(admin_address(socket)) as client:
        options = {"files": query.files, "format": query.format, "pattern": query.pattern}
        wanted: dict[str, Any] = {**options, "groups_max": query.groups_max, "deadline": how.deadline}
        wanted |= {"top": how.top, "to": how.to}
        service, text, left = AggregationClient(client), str(query), how.rounds
        lines: AsyncGenerator[RoundProgress | Answer | Skipped, None]
        if how.period_s is None:
            lines, left = service.aggregate(text, **wanted), 1
        else:
            lines = service.every(how.period_s, text, **wanted)
        with watcher:
            async with aclosing(lines):
                async for line in lines:
                    if not isinstance(line, Answer):
                        watcher.show(line)
                        continue
                    watcher.clear()
                    answered(line)
                    left = None if left is None else left - 1
                    if left == 0:
                        return
    raise Bug("the client ended a round without an answer and without an error")


class _Printer:
    """Prints answers in the format that was asked for; repeated ones with the time at which they came."""

    def __init__(self, asked: Query, output: Output, shares: bool, *, is_repeated: bool) -> None:
        self._asked, self._output, self._shares = asked, output, shares
        self._writer = RowWriter(output) if is_repeated and output is not Output.TABLE else None
        self._is_repeated = is_repeated

    def show(self, answer: Answer) -> None:
        """Print an answer, and on standard error what it lacks."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds") if self._is_repeated else ""
        if self._writer is not None:
            whole = self._output in (Output.JSON, Output.YAML)
            for row in [answer.to_json()] if whole else _rows(answer, self._asked):
                self._writer.write({"at": at, **row})
        elif not print_data(self._output, answer.to_json(), _rows(answer, self._asked)):
            if at:
                stdout().print(f"--- {at}")
            print_answer(answer, stdout(), self._asked.by)
            if self._shares:
                print_shares(answer, stdout())
        print_gaps(answer, stderr())


def _format(text: str | None) -> Format | None:
    if text is not None and text not in FORMATS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(FORMATS)}", param_hint="--format")
    return cast(Format | None, text)


def _duration(text: str, option: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if seconds <= 0:
        raise typer.BadParameter(f"{text!r} is no time", param_hint=option)
    return seconds


class _Watcher:
    """Progress on standard error: one live line on a terminal, nothing elsewhere."""

    def __init__(self, terminal: Terminal | None) -> None:
        self._terminal = terminal

    def __enter__(self) -> None:
        """Begin without showing anything."""

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the line away."""
        if self._terminal is not None:
            self._terminal.overwrite("")

    def show(self, line: RoundProgress | Skipped) -> None:
        """Show how far the round has come; rounds that were skipped are said whether or not progress is shown."""
        if isinstance(line, Skipped):
            self.clear()
            stderr().print(f"skipped {counted(line.rounds, 'round')}: {line.reason}")
        elif self._terminal is not None:
            self._terminal.overwrite(progress_line(line))


def progress_line(progress: RoundProgress) -> str:
    """Return one line with the time, the nodes so far, and the stage."""
    level = "" if progress.level is None else f", level {progress.level}"
    have = f"{progress.enrolled} of {progress.expected} nodes enrolled, {progress.contributors} in the result"
    return f"{progress.elapsed_s:6.2f} s  {have}{level}  {STAGES.get(progress.stage, progress.stage)}"


def print_answer(answer: Answer, console: Terminal, by: Sequence[str] = ()) -> None:
    """Print the value, then the verdict and the figures of the round."""
    print_value(answer.value, console, by)
    about = "about " if answer.expected_basis is Basis.ESTIMATE else ""
    report = answer.report
    console.print()
    console.print(
        f"{answer.outcome}: {answer.contributors} of {about}{counted(answer.expected, 'node')} "
        f"({answer.completeness:.1%}), {seconds(answer.duration_s)}{_missing(answer)}"
    )
    console.print(
        f"{report.records_selected:,} of {counted(report.records, 'record')} in {counted(report.files_read, 'file')} "
        f"({size(report.bytes_read)}); result {size(answer.value_bytes)}, {size(answer.moved_bytes)} moved"
    )
    if answer.contributors:
        console.print(_spread(answer))


def _missing(answer: Answer) -> str:
    """The missing nodes on the line of the verdict, where they are few; `print_gaps` has them all."""
    if not answer.missing_count:
        return ""
    if answer.missing_count > NAMED_INLINE_MAX or len(answer.missing) < answer.missing_count:
        return f"; {answer.missing_count} missing"
    names = [f"{short_id(each.node)} ({each.address or 'unknown address'}): {each.reason}" for each in answer.missing]
    return f"; missing {', '.join(names)}"


def _spread(answer: Answer) -> str:
    """Return one line on how much the nodes have read."""
    shares, parts = answer.shares, []
    for what, spread in (("files", shares.files), ("records", shares.records)):
        if spread.least == spread.most:
            parts.append(f"{spread.most:,} {what}")
        else:
            parts.append(f"{spread.least:,} to {spread.most:,} {what} (median {number(spread.median)})")
    without = f"; {shares.without_files:,} without any file" if shares.without_files else ""
    return f"each node: {', '.join(parts)}{without}"


def print_shares(answer: Answer, console: Terminal) -> None:
    """Print how much each node has read."""
    rows = [(share.node, f"{share.files:,}", f"{share.records:,}") for share in answer.shares.listed]
    print_table(console, ("node", "files", "records"), rows, numbers=("files", "records"))


def print_gaps(answer: Answer, console: Terminal) -> None:
    """Print on standard error what the answer lacks: nodes, with reasons, and files that were missing or unreadable."""
    for warning in answer.warnings:
        console.print(f"warning: {warning}")
    if answer.missing_count:
        console.print(f"{answer.missing_count} node{'s are' if answer.missing_count > 1 else ' is'} missing:")
        for missing in answer.missing[:SHOWN_MISSING_MAX]:
            console.print(f"  {short_id(missing.node)}  {missing.address or '-'}  {missing.reason}")
        if answer.missing_count > SHOWN_MISSING_MAX:
            console.print(f"  and {answer.missing_count - SHOWN_MISSING_MAX} more (-o json names up to 256)")
    report = answer.report
    counted = {
        "files not readable": report.files_unreadable,
        "binary files skipped": report.files_binary,
        "files skipped": report.files_skipped,
        "folders not readable": report.folders_unreadable,
        "records rejected": report.records_rejected,
        "lines cut": report.lines_truncated,
    }
    found = [f"{count:,} {what}" for what, count in counted.items() if count]
    if found:
        console.print(f"note: {', '.join(found)}")
        for note in report.notes:
            console.print(f"  {note}")
    if 0 < report.records == report.records_rejected:
        console.print("every record was rejected: check --format and the fields' names; plain text needs a --pattern")
