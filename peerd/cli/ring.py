"""``peerd ring``: the ring as the daemon sees it, drawn."""

from __future__ import annotations

from rich.text import Text

from peerd.admin_models import Peer, Ring
from peerd.cli.options import Output, OutputOption, SocketOption, ask
from peerd.cli.output import nodes, print_json, print_table, seconds, stdout
from peerd.cli.ring_drawing import Mark, Symbols, draw_ring, symbols_for
from peerd.ids import parse_id

ROWS_MAX = 40
"""Rows of the list below the drawing; `peerd peers` has all."""


def ring(socket: SocketOption = None, output: OutputOption = Output.TABLE) -> None:
    """Draw the ring as this daemon sees it: its leaf set, and what else it knows."""
    found = ask(socket, lambda client: client.ring())
    if output is Output.JSON:
        print_json(found)
        return
    console = stdout()
    symbols = symbols_for(console.encoding)
    for line in draw_ring(marks(found), centre(found), symbols):
        console.print(_coloured(line, symbols), no_wrap=True)
    console.print(f"{symbols.own} this node  {symbols.leaf} leaf set  {symbols.known} routing table\n")
    rows = _rows(found)
    print_table(console, ("node", "address", "place", "rtt"), rows[:ROWS_MAX])
    if len(rows) > ROWS_MAX:
        console.print(f"and {len(rows) - ROWS_MAX} more: peerd peers")


def leaves(found: Ring) -> list[Peer]:
    """Every distinct member of the leaf set."""
    return list({peer.id: peer for peer in (*found.smaller, *found.larger)}.values())


def marks(found: Ring) -> list[Mark]:
    """What is drawn."""
    return [
        Mark(parse_id(found.id), "own"),
        *(Mark(parse_id(peer.id), "leaf") for peer in leaves(found)),
        *(Mark(parse_id(peer.id), "known") for peer in found.known),
    ]


def centre(found: Ring) -> list[str]:
    """The words inside the ring."""
    return [
        nodes(found.ring_size, found.covers_ring),
        "leaf set complete" if found.is_complete else "leaf set not complete",
    ]


def _rows(found: Ring) -> list[tuple[str, str, str, str]]:
    places = {"smaller": "leaf set", "larger": "leaf set", "both": "leaf set", "known": "routing table"}
    rows = [(peer.id, peer.address, places[peer.place], seconds(peer.rtt_s)) for peer in (*leaves(found), *found.known)]
    return sorted([*rows, (found.id, found.address, "this node", "-")])


def _coloured(line: str, symbols: Symbols) -> Text:
    text = Text(line)
    text.highlight_words([symbols.own], "bold green")
    text.highlight_words([symbols.leaf], "cyan")
    text.highlight_words([symbols.line], "dim")
    return text
