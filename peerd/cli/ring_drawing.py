"""The ring as a drawing in characters (ids clockwise, 000... at the top), and as a graph for other programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from peerd.ids import RING, NodeId, short_id
from peerd.models.admin import RingNode

WIDTH: Final = 64
HEIGHT: Final = 23
LABEL_LENGTH: Final = 8
OUTLINE_POINTS: Final = 360

Kind = Literal["own", "leaf", "known", "faulty"]
_RANK: Final[dict[Kind, int]] = {"known": 0, "leaf": 1, "faulty": 2, "own": 3}


@dataclass(frozen=True, slots=True)
class Symbols:
    """Characters of a drawing."""

    own: str
    leaf: str
    known: str
    faulty: str
    line: str


UNICODE: Final = Symbols("◆", "●", "○", "✗", "·")
ASCII: Final = Symbols("@", "o", "+", "x", ".")


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One node of a drawing."""

    node_id: NodeId
    kind: Kind


def symbols_for(encoding: str) -> Symbols:
    """Return the characters that a terminal of this encoding can show."""
    try:
        "".join((UNICODE.own, UNICODE.leaf, UNICODE.known, UNICODE.faulty, UNICODE.line)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def draw_ring(
    marks: Iterable[DrawnNode],
    centre: Sequence[str],
    symbols: Symbols = UNICODE,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> list[str]:
    """Return the lines of the drawing. A label that would cover another is left out; this node wins a shared place."""
    grid = [[" "] * width for _ in range(height)]
    radius_x, radius_y = (width - 2 * LABEL_LENGTH - 5) / 2, (height - 3) / 2
    for point in range(OUTLINE_POINTS):
        row, column = _place(point / OUTLINE_POINTS, radius_x, radius_y, width, height)
        grid[row][column] = symbols.line
    ordered = sorted(marks, key=lambda mark: (_RANK[mark.kind], mark.node_id))
    for mark in ordered:
        row, column = _place(mark.node_id / RING, radius_x, radius_y, width, height)
        grid[row][column] = getattr(symbols, mark.kind)
    for mark in reversed(ordered):  # this node comes first, so that there is room for its label
        row, column = _place(mark.node_id / RING, radius_x, radius_y, width, height)
        _label(grid, row, column, mark, symbols)
    for offset, text in enumerate(centre):
        _write_over(grid, height // 2 - len(centre) // 2 + offset, (width - len(text)) // 2, text)
    return ["".join(line).rstrip() for line in grid]


def dot(nodes: Sequence[RingNode]) -> str:
    """Return a Graphviz graph: an arrow from each node to its successor, as it says; ``circo`` draws it as a ring."""
    lines = ["digraph ring {", "  layout=circo;", '  node [shape=box, fontname="monospace"];']
    for node in nodes:
        colour = "" if node.may_serve else ", color=red"
        lines.append(f'  "{node.id}" [label="{node.id[:LABEL_LENGTH]}\\n{_quoted(node.address)}"{colour}];')
    lines += [f'  "{node.id}" -> "{node.successor}";' for node in nodes if node.successor is not None]
    return "\n".join([*lines, "}"])


def mermaid(nodes: Sequence[RingNode]) -> str:
    """A Mermaid flowchart of the same arrows."""
    lines = ["flowchart LR"]
    for node in nodes:
        lines.append(f'  n{node.id}["{node.id[:LABEL_LENGTH]}<br/>{_quoted(node.address)}"]')
        if not node.may_serve:
            lines.append(f"  style n{node.id} stroke:red")
    lines += [f"  n{node.id} --> n{node.successor}" for node in nodes if node.successor is not None]
    return "\n".join(lines)


def _quoted(address: str) -> str:
    """Quote an address. A node chose it itself, so nothing in it may end the label."""
    return "".join(character if character.isalnum() or character in ".:-_[]" else "?" for character in address)


def _place(turn: float, radius_x: float, radius_y: float, width: int, height: int) -> tuple[int, int]:
    angle = 2 * math.pi * turn
    column = round((width - 1) / 2 + radius_x * math.sin(angle))
    row = round((height - 1) / 2 - radius_y * math.cos(angle))
    return row, column


def _label(grid: list[list[str]], row: int, column: int, mark: DrawnNode, symbols: Symbols) -> None:
    """Write a node's label on the outside of the ring, if those characters are free."""
    text = short_id(mark.node_id)
    is_right = mark.node_id < RING // 2
    start = column + 2 if is_right else column - 1 - len(text)
    end = start + len(text)
    if start >= 0 and end <= len(grid[row]) and all(cell in (" ", symbols.line) for cell in grid[row][start:end]):
        _write_over(grid, row, start, text)


def _write_over(grid: list[list[str]], row: int, start: int, text: str) -> None:
    for offset, character in enumerate(text):
        if 0 <= row < len(grid) and 0 <= start + offset < len(grid[row]):
            grid[row][start + offset] = character
