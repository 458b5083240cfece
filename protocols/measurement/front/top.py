"""``peerd top``: a live table of the ring's nodes, from what they measure."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import print_data, print_table, size, stderr, stdout
from peerd.words import counted
from protocols.measurement import models
from protocols.measurement.front.measure import StaleOption, WhereOption, WithinOption, followed, shown, widths

if TYPE_CHECKING:
    from peerd.client import Client

COLUMNS: Final = (
    "cpu",
    "load1",
    "memory",
    "disk",
    "network_receive_bytes_per_second",
    "network_transmit_bytes_per_second",
    "processes",
)
HEADINGS: Final = {
    "network_receive_bytes_per_second": "net in",
    "network_transmit_bytes_per_second": "net out",
    "processes": "procs",
    "load1": "load",
}
SHARES: Final = frozenset({"cpu", "memory", "disk"})
CLEAR: Final = "\x1b[H\x1b[J"


def top(
    columns: Annotated[
        list[str] | None, typer.Option("-c", "--column", metavar="NAME", help="A measurement to show. May be repeated.")
    ] = None,
    sort: Annotated[str, typer.Option(metavar="NAME", help="Highest first; node, address or a column.")] = "cpu",
    where: WhereOption = "",
    within: WithinOption = None,
    stale: StaleOption = "10s",
    interval: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two pictures.")] = 2.0,
    rows: Annotated[int, typer.Option("-n", "--rows", min=1, help="Nodes shown.")] = 40,
    once: Annotated[bool, typer.Option("--once", help="Print one table, and end.")] = False,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a live table of the ring's nodes. It costs the ring next to nothing: values move only beyond their bounds.

    In a pipe, with --once or with -o one table is printed. A value with ~ is older than --stale.

    Examples: peerd top; peerd top --sort memory --where "role = 'web'"; peerd top -c cpu -c queue_length
    """
    names = columns or list(COLUMNS)
    if sort not in (*names, "node", "address"):
        raise typer.BadParameter(
            f"{sort!r} is not shown; expected node, address or {', '.join(names)}", param_hint="--sort"
        )
    bounds = widths(within, names)

    async def run(client: Client) -> None:
        if once or output is not Output.TABLE or not sys.stdout.isatty():
            nodes = await client.measurement.nodes(where)
            measured = {each.removesuffix("@") for node in nodes.nodes for each in node.measurements}
            answer = models.ValueViews(values=[], problems=nodes.problems)
            if asked := [name for name in names if name in measured]:  # a daemon has no rates in its first second
                answer = await client.measurement.read(asked, where=where, within=bounds, stale=stale)
            if not print_data(output, answer, answer.values, models.ValueView):
                _show(nodes, answer.values, names, sort, rows)
            return
        values: dict[tuple[str, str], models.ValueView] = {}
        async with asyncio.TaskGroup() as group:
            following = group.create_task(_follow(client, names, where, bounds, stale, values))
            while not following.done():
                nodes = await client.measurement.nodes(where)
                sys.stdout.write(CLEAR)
                _show(nodes, list(values.values()), names, sort, rows)
                await asyncio.wait({following}, timeout=interval)

    ask(socket, run, waiting="")


async def _follow(
    client: Client,
    names: list[str],
    where: str,
    bounds: dict[str, float],
    stale: str,
    values: dict[tuple[str, str], models.ValueView],
) -> None:
    """Keep the newest value of each that is watched."""
    entries = client.measurement.watch(names, where=where, within=bounds, stale=stale)
    async for view in followed(entries, models.ValueView):
        values[view.node, view.name] = view


def _show(nodes: models.MeasuredNodes, found: list[models.ValueView], names: list[str], sort: str, rows: int) -> None:
    values = {(each.node, each.name): each for each in found}

    def rank(node: models.MeasuredNode) -> tuple[float, str]:
        value = values.get((node.node, sort))
        return (-value.value if value is not None else float("inf"), node.address if sort == "address" else node.node)

    table = [
        (node.node, node.address, *(_cell(name, values.get((node.node, name))) for name in names))
        for node in sorted(nodes.nodes, key=rank)[:rows]
    ]
    headings = ("node", "address", *(HEADINGS.get(name, name) for name in names))
    without = sum(1 for node in nodes.nodes if not any((node.node, name) in values for name in names))
    missing = f"; {counted(without, 'node')} without any value" if without else ""
    stdout().print(f"{time.strftime('%H:%M:%S')}  {counted(len(nodes.nodes), 'node')}{missing}", "bold")
    print_table(stdout(), headings, table, optional=("address",), numbers=headings[2:])
    for problem in nodes.problems:
        stderr().print(f"warning: {problem}")


def _cell(name: str, value: models.ValueView | None) -> str:
    if value is None:
        return "-"
    mark = "~" if value.stale else ""
    if name in SHARES:
        return f"{mark}{value.value:.0%}"
    if name.endswith(("_bytes", "_bytes_per_second")):
        return f"{mark}{size(value.value)}"
    return f"{mark}{shown(value.value)}"
