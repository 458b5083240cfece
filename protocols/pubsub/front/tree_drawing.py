"""A tree of cells as text, as a graph in dot's language, and as the square with its rectangles. Pure."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from peerd.words import counted
from protocols.pubsub.models import TreeLeaf, TreeView
from protocols.pubsub.tree.cells import SIDE, area_of, cell_of_text

PICTURE_PIXELS: Final = 640
MARGIN: Final = 40
OWNER_DIGITS: Final = 8
"""So much of a node's id is shown, as elsewhere."""
LABEL_MIN_PIXELS: Final = 34
"""A rectangle that is smaller in either direction gets no label, only a tooltip."""


def as_text(view: TreeView) -> str:
    """One line a cell, indented by its level; leaves say what they hold."""
    lines = [f"{view.schema_name}.{view.attribute}"]
    for cell in view.cells:
        mark = cell.bits[-1:] or "whole"
        lines.append(f"{'  ' * len(cell.bits)}{mark}  {_about(cell)}")
    leaves = [cell for cell in view.cells if cell.state == "leaf"]
    held = sum(cell.subs for cell in leaves)
    lines.append(f"{counted(len(leaves), 'leaf', 'leaves')}, {counted(held, 'piece', 'pieces')} of subscriptions")
    if not view.is_complete:
        lines.append("some cells did not answer: the tree is not shown whole")
    return "\n".join(lines)


def _about(cell: TreeLeaf) -> str:
    if cell.state != "leaf":
        return cell.state
    owner = f", at {cell.owner[:OWNER_DIGITS]}" if cell.owner else ""
    held = f"leaf: {counted(cell.subs, 'piece', 'pieces')}, {counted(cell.load, 'event', 'events')} a minute{owner}"
    return f"{held}; ranges from {_span(cell.x)} to {_span(cell.y)}"


def _span(ends: tuple[str, str]) -> str:
    return f"[{ends[0]}, {ends[1]})"


def as_dot(view: TreeView) -> str:
    """The graph; ``dot -Tsvg`` draws it."""
    lines = ["digraph tree {", "  node [shape=box, fontname=monospace];"]
    for cell in view.cells:
        label = f"{cell.bits or 'whole'}\\n{cell.state}" + (f"\\n{cell.subs}" if cell.state == "leaf" else "")
        lines.append(f'  n{cell.bits} [label="{label}"];')
        if cell.bits:
            lines.append(f"  n{cell.bits[:-1]} -> n{cell.bits};")
    return "\n".join([*lines, "}"])


def as_svg(view: TreeView) -> str:
    """The square: x is the lower end of a range, y its upper end, and each leaf a rectangle, darker with its load."""
    size = PICTURE_PIXELS + 2 * MARGIN
    leaves = [cell for cell in view.cells if cell.state == "leaf"]
    most = max((cell.load for cell in leaves), default=0) or 1
    title = escape(f"{view.schema_name}.{view.attribute}: subscriptions to ranges, by their ends")
    low, high = _domain(view)
    base, bottom = size - MARGIN, size - MARGIN / 3
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" font-family="sans-serif" font-size="11">',
        f"<title>{title}</title>",
        f'<rect width="{size}" height="{size}" fill="white"/>',
        *(_rectangle(cell, cell.load / most) for cell in leaves),
        f'<path d="M{MARGIN} {MARGIN + PICTURE_PIXELS} l{PICTURE_PIXELS} {-PICTURE_PIXELS}" stroke="#888"/>',
        f'<text x="{size / 2:.0f}" y="{MARGIN / 2:.0f}" text-anchor="middle" font-size="14">{title}</text>',
        f'<text x="{MARGIN}" y="{bottom:.0f}">{low}</text>',
        f'<text x="{size / 2:.0f}" y="{bottom:.0f}" text-anchor="middle">lower end</text>',
        f'<text x="{base}" y="{bottom:.0f}" text-anchor="end">{high}</text>',
        f'<g transform="translate({MARGIN * 2 / 3:.0f} {base}) rotate(-90)"><text>{low}</text>',
        f'<text x="{PICTURE_PIXELS / 2:.0f}" text-anchor="middle">upper end</text>',
        f'<text x="{PICTURE_PIXELS}" text-anchor="end">{high}</text></g>',
        "</svg>",
    ]
    return "\n".join(lines)


def _domain(view: TreeView) -> tuple[str, str]:
    """The ends of the whole square, as the first cell tells them."""
    ends = view.cells[0].x if view.cells else ("", "")
    return escape(ends[0]), escape(ends[1])


def _rectangle(cell: TreeLeaf, share: float) -> str:
    area = area_of(cell_of_text(cell.bits))
    scale = PICTURE_PIXELS / SIDE
    x, width = MARGIN + area.x_low * scale, (area.x_high - area.x_low) * scale
    y, height = MARGIN + PICTURE_PIXELS - area.y_high * scale, (area.y_high - area.y_low) * scale
    blue = round(245 - 120 * share)
    about = escape(f"{cell.bits or 'whole'}: {_about(cell)}")
    box = (
        f'<g><title>{about}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="rgb({blue},{blue + 5},255)" stroke="#446"/>'
    )
    if min(width, height) < LABEL_MIN_PIXELS:
        return box + "</g>"
    return box + f'<text x="{x + 4:.1f}" y="{y + 14:.1f}">{cell.subs}</text></g>'
