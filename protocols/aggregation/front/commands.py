"""``peerd aggregate``: ask all nodes, watch the round, print the answer and the nodes that are missing from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any, cast

import typer

from peerd.cli.locations import admin_address
from peerd.cli.options import Output, OutputOption, SocketOption
from peerd.cli.output import Terminal, number, print_data, print_table, seconds, size, stderr, stdout
from peerd.client import Client
from peerd.errors import Bug, ExitCode
from peerd.ids import short_id
from peerd.quantities import parse_duration
from peerd.words import counted
from protocols.aggregation.answer import Answer, RoundProgress
from protocols.aggregation.collector import Basis
from protocols.aggregation.figures import Estimate, Figure, Figures
from protocols.aggregation.front.client import AggregationClient
from protocols.aggregation.front.values import keys_of, print_value
from protocols.aggregation.groups import GROUPS_HARD_MAX, GROUPS_MAX_DEFAULT, GroupedAnswer
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
        int, typer.Option(min=1, max=GROUPS_HARD_MAX, help="Groups kept; the rest is a reported remainder.")
    ] = GROUPS_MAX_DEFAULT,
    deadline: Annotated[
        str | None, typer.Option(metavar="30s", help="Answer with what there is after this long.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Groups shown.")] = TOP_DEFAULT,
    require: Annotated[
        float, typer.Option(min=0, max=1, metavar="0..1", help="Exit with 3 when the completeness is below.")
    ] = 1.0,
    shares: Annotated[bool, typer.Option("--shares", help="List how many files and records each node read.")] = False,
    progress: Annotated[bool, typer.Option("--progress/--no-progress", help="Show how the round goes on.")] = True,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Aggregate a function of all nodes' files. Exit code 3 for a partial answer, unless it meets --require."""
    # Here first: a mistake is found without a daemon, and shown with a caret.
    asked = parse_query(query, files=files, format=_format(format), pattern=pattern, groups_max=groups_max)
    if deadline is not None:
        _check_deadline(deadline)
    watcher = _Watcher(stderr() if progress else None)
    answer = asyncio.run(_ask(socket, asked, deadline, top, watcher))
    if not print_data(output, answer.to_json(), _rows(answer, asked)):
        print_answer(answer, stdout(), asked.by)
        if shares:
            print_shares(answer, stdout())
    print_gaps(answer, stderr())
    if not is_enough(answer, require):
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


async def _ask(socket: str | None, query: Query, deadline: str | None, top: int, watcher: _Watcher) -> Answer:
    async with Client(admin_address(socket)) as client:
        lines = AggregationClient(client).aggregate(
            str(query),
            files=query.files,
            format=query.format,
            pattern=query.pattern,
            groups_max=query.groups_max,
            deadline=deadline,
            top=top,
        )
        with watcher:
            async with aclosing(lines):
                async for line in lines:
                    if isinstance(line, Answer):
                        return line
                    watcher.show(line)
    raise Bug("the client ended a round without an answer and without an error")


def _format(text: str | None) -> Format | None:
    if text is not None and text not in FORMATS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(FORMATS)}", param_hint="--format")
    return cast(Format | None, text)


def _check_deadline(text: str) -> None:
    try:
        parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--deadline") from error


class _Watcher:
    """Progress on standard error: one live line on a terminal, nothing elsewhere."""

    def __init__(self, terminal: Terminal | None) -> None:
        self._terminal = terminal

    def __enter__(self) -> None:
        """Begin without showing anything."""

    def __exit__(self, *_: object) -> None:
        if self._terminal is not None:
            self._terminal.overwrite("")

    def show(self, progress: RoundProgress) -> None:
        """Show how far the round has come."""
        if self._terminal is not None:
            self._terminal.overwrite(progress_line(progress))


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
