"""``peerd measure``: what nodes measure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import (
    RowWriter,
    number,
    print_data,
    print_result,
    print_table,
    printable,
    seconds,
    stderr,
    stdout,
)
from peerd.errors import ExitCode
from peerd.ids import parse_id, short_id
from protocols.measurement import models

if TYPE_CHECKING:
    from peerd.client import Client
    from peerd.client.streams import StreamEntry

View = TypeVar("View", bound=models.MeasureModel)
measure = typer.Typer(help="What nodes measure: list, get, put, watch.", no_args_is_help=True)

NamesArgument = Annotated[list[str], typer.Argument(metavar="NAME...", help="Such as cpu memory rtt.")]
NodeOption = Annotated[
    list[str] | None, typer.Option("--node", metavar="NODE", help="Id, its beginning, or address. May be repeated.")
]
WhereOption = Annotated[
    str, typer.Option(metavar="FILTER", help="Nodes whose tags meet a filter, such as \"role = 'web'\".")
]
WithinOption = Annotated[
    list[str] | None,
    typer.Option(metavar="[NAME=]NUMBER", help="Half the width of the bounds that are good enough. May be repeated."),
]
StaleOption = Annotated[str, typer.Option(metavar="5s", help="Values that are older are marked as stale.")]


def widths(within: list[str] | None, names: list[str]) -> dict[str, float]:
    """Read ``--within``. Raises ``typer.BadParameter``."""
    found: dict[str, float] = {}
    for text in within or []:
        name, equals, width = text.rpartition("=")
        try:
            half_width = float(width)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r}: expected a number, or NAME=NUMBER", param_hint="--within") from error
        if half_width < 0.0 or half_width == float("inf") or half_width != half_width:
            raise typer.BadParameter(f"{text!r}: expected 0 or more", param_hint="--within")
        found.update({name: half_width} if equals else dict.fromkeys(names, half_width))
    return found


async def followed(
    entries: AsyncGenerator[StreamEntry, None], model: type[View], count: int = 0
) -> AsyncGenerator[View, None]:
    """The items of a feed, so many at most (0: all). What else it says is shown on standard error."""
    seen = 0
    async with aclosing(entries):
        async for entry in entries:
            if entry.type != "item":
                stderr().print(f"-- {printable(getattr(entry, 'reason', entry.type))}")
                continue
            yield model.model_validate(entry.data)
            seen += 1
            if seen == count:
                return


def shown_name(name: str) -> str:
    """A name, with the beginning of a peer's id."""
    simple, at, peer = name.partition("@")
    return f"{simple}@{short_id(parse_id(peer))}" if at and len(peer) == 32 else name


@measure.command("list")
def list_(
    everywhere: Annotated[bool, typer.Option("--all", help="Of all nodes, instead of this one.")] = False,
    where: WhereOption = "",
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what this node measures, or with --all the nodes of the ring, their tags, and what they measure."""
    if everywhere or where:
        nodes: models.MeasuredNodes = ask(socket, lambda client: client.measurement.nodes(where))
        if not print_data(output, nodes, nodes.nodes, models.MeasuredNode):
            rows = [(each.node, each.address, _tags(each.tags), " ".join(each.measurements)) for each in nodes.nodes]
            print_table(stdout(), ("node", "address", "tags", "measures"), rows)
        tell_gaps((), nodes.problems)
        return
    own: models.OwnViews = ask(socket, lambda client: client.measurement.own())
    if not print_data(output, own, own.measurements, models.OwnView):
        own_rows = [
            (shown_name(each.name), shown(each.value), seconds(each.age_s), each.source) for each in own.measurements
        ]
        print_table(stdout(), ("name", "value", "age", "source"), own_rows, numbers=("value", "age"))
    tell_gaps((), own.problems)


@measure.command()
def get(
    names: NamesArgument,
    node: NodeOption = None,
    where: WhereOption = "",
    within: WithinOption = None,
    stale: StaleOption = "30s",
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print values of all nodes, or of those named, with their bounds and ages. Exit code 3 when some are missing.

    Examples: peerd measure get cpu; peerd measure get cpu rtt --where "role = 'web'" --within cpu=0.05 --stale 5s
    """
    bounds = widths(within, names)
    answer: models.ValueViews = ask(
        socket,
        lambda client: client.measurement.read(names, nodes=node or (), where=where, within=bounds, stale=stale),
    )
    if not print_data(output, answer, answer.values, models.ValueView):
        print_table(
            stdout(),
            ("node", "name", "value", "within", "age", "told by"),
            [_row(each) for each in answer.values],
            optional=("told by",),
            numbers=("value", "within", "age"),
        )
    tell_gaps(answer.missing, answer.problems)
    if answer.missing or any(each.stale for each in answer.values):
        raise typer.Exit(ExitCode.PARTIAL)


@measure.command()
def put(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    value: Annotated[float, typer.Argument(metavar="VALUE")],
    ttl: Annotated[str, typer.Option(metavar="1m", help="It counts for so long, unless it is put again.")] = "1m",
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have this node measure a value that a script or an application knows.

    Example: peerd measure put queue_length 17 --ttl 2m; a negative number follows --: peerd measure put -- t -3
    """
    answer: models.OwnView = ask(socket, lambda client: client.measurement.put(name, value, ttl))
    print_result(output, answer, f"{answer.name} is {shown(value)} for {ttl}")


@measure.command()
def watch(
    names: NamesArgument,
    node: NodeOption = None,
    where: WhereOption = "",
    within: WithinOption = None,
    stale: StaleOption = "30s",
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="End after so many lines. 0: never.")] = 0,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print values, and then each that leaves its bounds or becomes stale, until interrupted.

    Example: peerd measure watch cpu --within 0.1 --where "role = 'web'"
    """
    bounds = widths(within, names)
    rows = RowWriter(output)

    async def run(client: Client) -> None:
        entries = client.measurement.watch(names, nodes=node or (), where=where, within=bounds, stale=stale)
        async for view in followed(entries, models.ValueView, count):
            if output is Output.TABLE:
                stdout().print(_line(view))
            else:
                rows.write(view)

    ask(socket, run, waiting="")


def _row(view: models.ValueView) -> tuple[object, ...]:
    age = f"{seconds(view.age_s)}{' stale' if view.stale else ''}"
    told_by = "itself" if view.provider == view.node else short_id(parse_id(view.provider))
    return view.node, shown_name(view.name), shown(view.value), bounds_of(view), age, told_by


def _line(view: models.ValueView) -> str:
    stale = "  STALE" if view.stale else ""
    return f"{short_id(parse_id(view.node))}  {shown_name(view.name)}  {shown(view.value)}  {bounds_of(view)}{stale}"


def bounds_of(view: models.ValueView) -> str:
    """From where to where a value is; "exact" where that is one number."""
    return "exact" if view.low == view.high else f"{shown(view.low)} to {shown(view.high)}"


def shown(value: float | None) -> str:
    """A number for people: a whole one as it is, another one in four digits."""
    if value is None:
        return "-"
    return number(value) if value == int(value) else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _tags(tags: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(tags.items())) or "-"


def tell_gaps(missing: Sequence[models.MissingView], problems: Sequence[str]) -> None:
    """Say on standard error which values are missing, and why nodes may be."""
    for each in missing:
        stderr().print(f"missing: {shown_name(each.name)} of {short_id(parse_id(each.node))}: {printable(each.reason)}")
    for problem in problems:
        stderr().print(f"warning: {printable(problem)}")
