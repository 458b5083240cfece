"""``peerd doctor``: tests that the nodes make for the operator."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from peerd.cli.follow import How, follow
from peerd.cli.options import Output, OutputOption, SocketOption
from peerd.cli.output import Terminal, print_data, print_facts, print_table, seconds, stdout
from peerd.errors import ExitCode
from peerd.models.admin import ReachAnswer, ReachPair, ReachProgressView

TARGETS_MAX: Final = 64
MATRIX_NODES_MAX: Final = 16
"""The matrix of who reaches whom is printed for at most this many nodes: a larger one does not fit a terminal."""
ROWS_MAX: Final = 40
_EXIT: Final = {"all": ExitCode.OK, "broken": ExitCode.FAILURE, "partial": ExitCode.PARTIAL}

app = typer.Typer(help="Tests that the nodes make for you: reach.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Tests that the nodes make for you."""


@app.command()
def reach(
    targets: Annotated[
        int, typer.Option(min=1, max=TARGETS_MAX, help="Others that each node pings; in a smaller ring, all of them.")
    ] = TARGETS_MAX,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Test that every node reaches every other: each pings the others, and this daemon collects what came of it.

    Exit code 0 when all do, 1 when some pair fails, 3 when nothing is broken between those that answered, but some
    nodes did not answer. Finds one-way firewalls, wrong `advertise` addresses, nodes at their limits.

    Examples: peerd doctor reach; peerd doctor reach --targets 8 -o json
    """
    found = follow(socket, lambda client: client.reach(targets), ReachAnswer, _progress, "testing")
    if not print_data(output, found, found.pairs or found.failed):
        _show(stdout(), found)
    raise typer.Exit(_EXIT[found.outcome])


def _progress(line: ReachProgressView) -> How:
    return line.measured, max(1, line.total), f"{line.measured} of {line.total} nodes have tested"


def _show(console: Terminal, found: ReachAnswer) -> None:
    addresses = {node.id: node.address for node in found.nodes}
    if found.pairs and len(found.nodes) <= MATRIX_NODES_MAX:
        _show_matrix(console, found)
    others = len(found.nodes) - 1
    coverage = "all others" if found.targets_each >= others else f"{found.targets_each} of {others} others"
    print_facts(
        console,
        [
            ("nodes", f"{len(found.nodes)}, each tested {coverage}"),
            ("pairs", f"{found.pairs_tested} tested, {found.pairs_failed} failed"),
            ("round trips", f"median {seconds(found.rtt_median_s)}, longest {seconds(found.rtt_max_s)}"),
            ("took", seconds(found.duration_s)),
        ],
    )

    def rows(pairs: list[ReachPair]) -> list[tuple[str, str, str, str]]:
        return [
            (
                f"{pair.source[:8]} {addresses.get(pair.source, '')}",
                f"{pair.target[:8]} {addresses.get(pair.target, '')}",
                seconds(pair.rtt_s),
                seconds(pair.expected_s),
            )
            for pair in pairs[:ROWS_MAX]
        ]

    if found.failed:
        print_table(console, ("from", "does not reach"), [row[:2] for row in rows(found.failed)])
        if len(found.failed) > ROWS_MAX:
            console.print(f"and {len(found.failed) - ROWS_MAX} more: -o json has them")
        console.print("both are up: look at firewalls between them, at node.advertise, and at links_max in their logs")
    if found.dead:
        print_table(console, ("answers nobody", "address"), [(node.id[:8], node.address) for node in found.dead])
    untested = [(node.id[:8], node.address, node.reason) for node in found.nodes if node.reason is not None]
    if untested:
        print_table(console, ("could not test", "address", "because it"), untested)
    if found.outliers:
        print_table(console, ("from", "to, unusually slow", "rtt", "expected"), rows(found.outliers))
    if found.outcome == "all":
        console.print("every node that was tested reaches every other that it tried")


def _show_matrix(console: Terminal, found: ReachAnswer) -> None:
    pairs = {(pair.source, pair.target): pair for pair in found.pairs}
    ids = [node.id for node in found.nodes]

    def cell(source: str, target: str) -> str:
        pair = pairs.get((source, target))
        if pair is None:
            return "." if source == target else "?"
        return seconds(pair.rtt_s) if pair.is_reached else "FAILS"

    rows = [(source[:8], *(cell(source, target) for target in ids)) for source in ids]
    print_table(console, ("from \\ to", *(node_id[:8] for node_id in ids)), rows)
