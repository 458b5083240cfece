"""``peerd ring``: the whole ring, as its nodes describe it: as a drawing, as a graph, or with a verdict."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from peerd.cli.follow import How, follow
from peerd.cli.members import missing_line
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import Terminal, nodes, print_data, print_table, seconds, stdout
from peerd.cli.ring_drawing import DrawnNode, Kind, Symbols, dot, draw_ring, mermaid, symbols_for
from peerd.errors import ExitCode
from peerd.ids import parse_id
from peerd.models.admin import Peer, Ring, RingCheck, RingNode, Status, WalkProgressView
from peerd.words import ago, counted

ROWS_MAX: Final = 40
"""Rows of the list below the drawing; the other formats have all."""
_EXIT: Final = {"consistent": ExitCode.OK, "inconsistent": ExitCode.FAILURE, "partial": ExitCode.PARTIAL}


class Format(StrEnum):
    """How to show the ring."""

    TABLE = "table"
    DOT = "dot"
    JSON = "json"
    MERMAID = "mermaid"


def ring(
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Judge: 0 consistent, 1 with a list of what is wrong, 3 when some are missing or silent."
        ),
    ] = False,
    local: Annotated[bool, typer.Option("--local", help="Ask nobody else: leaf set and table of this daemon.")] = False,
    shape: Annotated[
        Format, typer.Option("--format", help="Drawing and list, Graphviz, JSON, or Mermaid.")
    ] = Format.TABLE,
    socket: SocketOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Draw the ring as its nodes describe it: this daemon asks each of them what it sees.

    Examples: peerd ring; peerd ring --check; peerd ring --format dot | circo -Tsvg > ring.svg
    """
    is_graph = shape in (Format.DOT, Format.MERMAID)
    output = Output.JSON if shape is Format.JSON else output
    if local and (check or is_graph):
        raise typer.BadParameter("--local has only this daemon's view: it goes with --format table or json")
    if check and is_graph:
        raise typer.BadParameter("--check prints a verdict: use --format table or json")
    own = None if check else ask(socket, lambda client: client.ring())
    if local and own is not None:
        _show_local(own, output)
        return
    found = follow(socket, lambda client: client.check_ring(), RingCheck, _progress, "asking the ring")
    if own is None:
        about = None if found.outcome == "consistent" else ask(socket, lambda client: client.status())
        _show_verdict(found, output, about)
        raise typer.Exit(_EXIT[found.outcome])
    if is_graph:
        typer.echo((dot if shape is Format.DOT else mermaid)(found.nodes))
    elif output is not Output.TABLE:
        print_data(output, {**own.model_dump(), **found.model_dump()}, found.nodes)
    else:
        _show_ring(own, found)


def _progress(line: WalkProgressView) -> How:
    silent = f", {line.silent} silent" if line.silent else ""
    return line.answered + line.silent, max(line.found, line.expected), f"{line.answered} nodes answered{silent}"


def verdict(found: RingCheck) -> str:
    """The outcome in a few words."""
    count = nodes(len(members(found)), True)
    if found.outcome == "consistent":
        return f"{count}, consistent"
    if found.outcome == "partial":
        parts = [f"{found.missing_total} missing"] if found.missing_total else []
        parts += [f"{len(found.unanswered)} without an answer"] if found.unanswered else []
        return ", ".join([count, *parts])
    return f"{count}, {found.problems_total} contradiction{'s' if found.problems_total > 1 else ''}"


def members(found: RingCheck) -> list[RingNode]:
    """Nodes that are in the ring."""
    return [node for node in found.nodes if node.is_ready and not node.is_leaving]


def _show_verdict(found: RingCheck, output: Output, about: Status | None) -> None:
    if print_data(output, found, _findings(found)):
        return
    console = stdout()
    cycles = "one cycle" if len(found.cycles) == 1 else f"{len(found.cycles)} cycles"
    took = seconds(found.duration_s)
    console.print(f"{verdict(found)}: {cycles}, {counted(len(found.nodes), 'node')} answered in {took}")
    for heading, lines in (("wrong", found.problems), ("no answer", found.unanswered), ("note", found.notes)):
        for line in lines:
            console.print(f"{heading}: {line}")
    is_cut_off = about is not None and (about.outside is not None or about.is_minority)
    for peer in found.missing:
        advice = "" if is_cut_off else f"; if it will not come back: peerd forget {peer.id[:8]}"
        console.print(f"missing: {peer.id} ({peer.address}): lost {ago(peer.lost_s)}{advice}")
    if found.missing_total > len(found.missing):
        console.print(f"and {found.missing_total - len(found.missing)} more")
    if found.problems_total > len(found.problems):
        console.print(f"and {found.problems_total - len(found.problems)} more")
    if about is not None and about.outside is not None:
        console.print(f"this node is in no ring: {about.outside}. Those that it misses may be well: ask another node")
    elif is_cut_off:
        console.print(
            "more are missing than are here: this may be the smaller side of a partition, and the others well"
        )
    if found.outcome == "inconsistent":
        console.print("a ring repairs itself within a minute of the last change; if this stays, see docs/operating.md")
    elif found.unanswered:
        console.print("are those up? can this machine reach them? `peerd doctor reach` tells who can")


def _findings(found: RingCheck) -> list[dict[str, str]]:
    """Return the findings as rows."""
    rows = [{"finding": "wrong", "text": line} for line in found.problems]
    rows += [{"finding": "no answer", "text": line} for line in found.unanswered]
    rows += [{"finding": "note", "text": line} for line in found.notes]
    return rows + [{"finding": "missing", "text": f"{peer.id} at {peer.address}"} for peer in found.missing]


def _show_ring(own: Ring, found: RingCheck) -> None:
    console = stdout()
    symbols = symbols_for(console.encoding)
    marks = [DrawnNode(parse_id(node.id), _kind(node, own.id)) for node in found.nodes]
    for line in draw_ring(marks, [verdict(found)], symbols):
        console.write_line(_coloured(console, line, symbols))
    console.print(f"{symbols.own} this node  {symbols.leaf} serving  {symbols.faulty} not serving\n")
    rows = [
        (
            node.id,
            node.address,
            _says(node),
            node.leaf_set_members,
            "-" if node.successor is None else node.successor[:8],
        )
        for node in found.nodes
    ]
    print_table(console, ("node", "address", "state", "leaf set", "next"), rows[:ROWS_MAX], optional=("leaf set",))
    if len(rows) > ROWS_MAX:
        console.print(f"and {len(rows) - ROWS_MAX} more: peerd ring --format json")
    if found.outcome != "consistent":
        console.print(f"{verdict(found)}: peerd ring --check has the list")


def _kind(node: RingNode, own_id: str) -> Kind:
    if node.id == own_id:
        return "own"
    return "leaf" if node.may_serve else "faulty"


def _says(node: RingNode) -> str:
    if node.is_leaving:
        return "has left"
    if not node.is_ready:
        return "joining"
    return "ready" if node.may_serve else "may not serve: lease lapsed"


# The view of one daemon


def _show_local(found: Ring, output: Output) -> None:
    if print_data(output, found, [*_leaves(found), *found.known]):
        return
    console = stdout()
    symbols = symbols_for(console.encoding)
    for line in draw_ring(_local_marks(found), _local_centre(found), symbols):
        console.write_line(_coloured(console, line, symbols))
    console.print(f"{symbols.own} this node  {symbols.leaf} leaf set  {symbols.known} routing table\n")
    rows = _local_rows(found)
    print_table(console, ("node", "address", "place", "rtt"), rows[:ROWS_MAX])
    if len(rows) > ROWS_MAX:
        console.print(f"and {len(rows) - ROWS_MAX} more: peerd peers")
    if found.missing:
        console.print(missing_line(found.missing, len(found.missing)))


def _leaves(found: Ring) -> list[Peer]:
    return list({peer.id: peer for peer in (*found.smaller, *found.larger)}.values())


def _local_marks(found: Ring) -> list[DrawnNode]:
    return [
        DrawnNode(parse_id(found.id), "own"),
        *(DrawnNode(parse_id(peer.id), "leaf") for peer in _leaves(found)),
        *(DrawnNode(parse_id(peer.id), "known") for peer in found.known),
    ]


def _local_centre(found: Ring) -> list[str]:
    return [
        nodes(found.ring_size, found.covers_ring),
        *([f"{len(found.missing)} missing"] if found.missing else []),
        "leaf set complete" if found.is_complete else "leaf set not complete",
    ]


def _local_rows(found: Ring) -> list[tuple[str, str, str, str]]:
    places = {"smaller": "leaf set", "larger": "leaf set", "both": "leaf set", "known": "routing table"}
    everybody = (*_leaves(found), *found.known)
    rows = [(peer.id, peer.address, places[peer.place], seconds(peer.rtt_s)) for peer in everybody]
    return sorted([*rows, (found.id, found.address, "this node", "-")])


def _coloured(console: Terminal, line: str, symbols: Symbols) -> str:
    styles = {symbols.own: "bold green", symbols.leaf: "cyan", symbols.faulty: "bold red", symbols.line: "dim"}
    return "".join(console.styled(character, styles.get(character, "")) for character in line)
