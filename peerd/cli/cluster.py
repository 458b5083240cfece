"""``peerd cluster``: real daemons on this machine, started quickly and tidied away completely."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from peerd.cli.main import INTERRUPTED
from peerd.cli.node_options import with_node_options
from peerd.cli.options import Output, OutputOption
from peerd.cli.output import print_data, print_table, size, stderr, stdout
from peerd.cli.terminal import Waiting
from peerd.cluster.layout import DEFAULT_NAME, NodeRecord, NodeTables, Tables, socket_file
from peerd.cluster.local import NODES_MAX, READY_TIMEOUT_S, Forming, LocalCluster, NodeStatus
from peerd.errors import ExitCode, Unavailable
from peerd.words import counted

app = typer.Typer(
    help="A cluster of real daemons on this machine: up, status, kill, partition, heal, down.", no_args_is_help=True
)

Name = Annotated[str, typer.Option(help="Name of the cluster; each name has a folder of its own.")]
Directory = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of the cluster. Default: peerd/clusters/NAME in the user's state directory."),
]


@app.command()
@with_node_options(lambda front: front.cluster_options())
def up(
    nodes: Annotated[int, typer.Option("-n", "--nodes", min=1, max=NODES_MAX, help="How many daemons.")] = 5,
    name: Name = DEFAULT_NAME,
    directory: Directory = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay; Ctrl-C ends the cluster.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Event logs and log files outlive the cluster.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of every daemon; {k} and {n} in it stand for its number and how many there are.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until the ring must be complete.")] = READY_TIMEOUT_S,
    output: OutputOption = Output.TABLE,
    *,
    protocol_settings: Mapping[str, object],
) -> None:
    """Start daemons on loopback, with mutual TLS under a CA of their own, and wait until their ring is complete."""
    console = stderr()
    with interruptible():
        cluster = LocalCluster(directory, name=name, keep=keep)
        settings = _settings(set_ or [], protocol_settings, nodes)
        try:
            with console.status("starting daemons") as status:
                cluster.up(nodes, settings=settings, timeout_s=timeout, progress=partial(_show_forming, status))
            _print_status(cluster, output)
            if not foreground:
                cluster.detach()
                _print_hints(cluster)
                return
            console.print("up; Ctrl-C ends the cluster")
            cluster.watch(lambda node: console.print(f"node {node.index} {_ending(node)}"))
            raise Unavailable("no daemon is left")
        except BaseException:
            if cluster.is_ours:
                cluster.down()
            raise


@app.command()
def status(name: Name = DEFAULT_NAME, directory: Directory = None, output: OutputOption = Output.TABLE) -> None:
    """Show every daemon. Ends with 0 when all are ready, else with 3."""
    found = _print_status(LocalCluster(directory, name=name), output)
    if not all(_state(node) == "ready" for node in found):
        raise typer.Exit(ExitCode.PARTIAL)


@app.command()
def kill(
    node: Annotated[int, typer.Argument(metavar="K", min=0, help="Number of the daemon.")],
    name: Name = DEFAULT_NAME,
    directory: Directory = None,
) -> None:
    """Kill one daemon with SIGKILL: it has no chance to say goodbye."""
    killed = LocalCluster(directory, name=name).kill(node)
    typer.echo(f"killed node {killed.index} ({killed.id[:8]}, {killed.address})")


@app.command()
def partition(
    sizes: Annotated[str, typer.Argument(metavar="5/4", help="How many daemons are in each group, by their numbers.")],
    name: Name = DEFAULT_NAME,
    directory: Directory = None,
) -> None:
    """Cut all links between groups of daemons, as if the network between them had failed, until `heal`."""
    if not all(part.isdecimal() for part in sizes.split("/")):
        raise typer.BadParameter(f"{sizes!r}: expected the sizes of the groups, such as 5/4", param_hint="SIZES")
    cluster = LocalCluster(directory, name=name)
    groups = cluster.partition([int(part) for part in sizes.split("/")])
    shown = " | ".join(
        f"{group[0].index} to {group[-1].index}" if len(group) > 1 else str(group[0].index) for group in groups
    )
    typer.echo(f"cut: nodes {shown}; `{cluster.layout.command('heal')}` ends it")


@app.command()
def heal(name: Name = DEFAULT_NAME, directory: Directory = None) -> None:
    """End a partition: all daemons may have links with each other again."""
    LocalCluster(directory, name=name).partition([])
    typer.echo("healed: the daemons look for each other again")


@app.command()
def down(
    name: Name = DEFAULT_NAME,
    directory: Directory = None,
    keep: Annotated[bool | None, typer.Option("--keep/--no-keep", help="Leave event logs and log files.")] = None,
) -> None:
    """Stop every daemon and remove everything that the cluster wrote."""
    cluster = LocalCluster(directory, name=name)
    count = len(cluster.record().nodes)
    with stderr().status(f"stopping {counted(count, 'daemon')}"):
        cluster.down(keep=keep)
    kept = f"; logs and events are in {cluster.layout.directory}" if cluster.layout.directory.exists() else ""
    typer.echo(f"stopped {counted(count, 'daemon')}{kept}")


# Inside


@contextmanager
def interruptible() -> Iterator[None]:
    """TERM and HUP act as Ctrl-C, so that they too leave nothing behind; all three end with `INTERRUPTED`."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _settings(texts: Sequence[str], flags: Mapping[str, object], count: int) -> NodeTables | None:
    """``--set`` options, and those of plugins, as configuration of each node. Raises `ConfigError`."""
    if not texts and not flags:
        return None
    from peerd.config import PeerdConfig, sources as config_sources
    from peerd.plugins import find_plugins, plugin_models

    schema = config_sources.ConfigSchema(PeerdConfig, plugin_models(find_plugins()))

    def of_node(index: int) -> Tables:
        def fill(value: object) -> object:
            if isinstance(value, Mapping):
                return {key: fill(inner) for key, inner in value.items()}
            return value.replace("{k}", str(index)).replace("{n}", str(count)) if isinstance(value, str) else value

        of_flags = config_sources.read_flags({key: fill(value) for key, value in flags.items()})
        of_sets = config_sources.read_sets([str(fill(text)) for text in texts], schema)
        return config_sources.merge([of_flags, of_sets]).tree

    return of_node


def _show_forming(status: Waiting, forming: Forming) -> None:
    """Show how far the ring has formed."""
    text = f"ring: {forming.complete} of {forming.expected} nodes complete, {forming.answering} answer"
    status.update(text, forming.complete, forming.expected)


def _print_status(cluster: LocalCluster, output: Output) -> list[NodeStatus]:
    found = cluster.status()
    if not print_data(output, [_as_json(cluster, node) for node in found]):
        headings = ("node", "id", "address", "process", "state", "memory", "links", "ring", "missing")
        print_table(stdout(), headings, [_row(node) for node in found], optional=("memory", "process"))
        for line in _missing_lines(found):
            stdout().print(line)
    return found


def _row(node: NodeStatus) -> tuple[object, ...]:
    process = node.node.process.pid if node.node.process and node.is_alive else "-"
    memory = "-" if node.resident_bytes is None else size(node.resident_bytes)
    says = node.status
    ring = (
        "-" if says is None or not says.ring_size else f"{'' if says.is_ring_size_exact else '~'}{says.ring_size:.0f}"
    )
    links = "-" if says is None else says.links
    lost = "-" if says is None or not says.ring_size else says.missing
    return node.node.index, node.node.id[:8], node.node.address, process, _state(node), memory, links, ring, lost


def _missing_lines(found: Sequence[NodeStatus]) -> list[str]:
    """Return a line for each node that others miss, with how many of them miss it."""
    numbers = {node.node.id: node.node.index for node in found}
    missed_by: dict[str, list[int]] = {}
    for node in found:
        if node.status is not None and node.status.outside is None:
            for peer in node.status.missing_members:
                name = f"node {numbers[peer.id]}" if peer.id in numbers else peer.id[:8]
                missed_by.setdefault(name, []).append(node.node.index)
    return [f"{name} is missing; expected by {', '.join(map(str, by))}" for name, by in sorted(missed_by.items())]


def _state(node: NodeStatus) -> str:
    if not node.is_alive:
        return _ending(node.node)
    if node.status is None:
        return "silent"
    if node.status.outside is not None and node.status.state in ("joining", "ready", "degraded"):
        return "outside"
    return node.status.state or ("ready" if node.status.is_ready else "joining")


def _ending(node: NodeRecord) -> str:
    """Say how a node that does not run any more has ended."""
    if node.exit_status is None:
        return "gone"
    if node.exit_status < 0:
        return f"ended: {signal.Signals(-node.exit_status).name}"
    return f"ended: exit {node.exit_status}"


def _as_json(cluster: LocalCluster, node: NodeStatus) -> dict[str, Any]:
    return {
        "node": node.node.index,
        "id": node.node.id,
        "address": node.node.address,
        "pid": node.node.process.pid if node.node.process and node.is_alive else None,
        "state": _state(node),
        "exit_status": node.node.exit_status,
        "resident_bytes": node.resident_bytes,
        "socket": str(socket_file(cluster.record(), node.node.index)),
        "log": str(cluster.layout.log_file(node.node.index)),
        "status": None if node.status is None else node.status.model_dump(),
    }


def _print_hints(cluster: LocalCluster) -> None:
    socket = socket_file(cluster.record(), 0)
    folder = cluster.layout.directory
    for line in (
        f"ask a node:   export PEERD_SOCKET={shlex.quote(str(socket))}; peerd ring",
        f"logs, events: {folder}",
        f"end it:       {cluster.layout.command('down')}",
    ):
        typer.echo(line, err=True)
