"""The tree of a stream as text, as a graph for dot and for mermaid, and as a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from peerd.cli.output import printable, seconds, size
from peerd.words import counted
from protocols.dissemination.models import StreamTreeNode, StreamTreeView

NODE_DIGITS: Final = 8
"""So much of a node's id is shown, as elsewhere."""
INTERESTS_SHOWN: Final = 2
INTEREST_LENGTH_SHOWN: Final = 48
SLOT_PIXELS: Final = 120
LEVEL_PIXELS: Final = 90
RADIUS_PIXELS: Final = 14
LINE_PIXELS: Final = 12
MARGIN_PIXELS: Final = 50
OWN_FIGURES: Final = ("items_per_s", "bytes_per_s", "late_s", "spurious_share")
"""These have words of their own; the policy's other numbers are shown by their names."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A node where it is drawn: below which other one, and behind which branches of its ancestors."""

    node: StreamTreeNode
    parent: StreamTreeNode | None
    depth: int
    branches: tuple[bool, ...]
    """For each level above, whether another child of the same parent follows."""


def placed(view: StreamTreeView) -> list[Placed]:
    """The nodes from the top, each before its children. One whose parent is not known stands at the top itself.

    Nodes are asked one after the other while the tree changes, so their answers may make a circle; it is opened at the
    node with the smallest id.
    """
    known = {node.node: node for node in view.nodes}
    children: dict[str, list[StreamTreeNode]] = {}
    tops = []
    for node in sorted(view.nodes, key=lambda node: node.node):
        if node.parent in known and node.parent != node.node:
            children.setdefault(node.parent or "", []).append(node)
        else:
            tops.append(node)
    tops.sort(key=lambda node: (node.parent is not None, node.node))
    found: list[Placed] = []
    seen: set[str] = set()
    for top in [*tops, *sorted(view.nodes, key=lambda node: node.node)]:
        found += _below(top, children, seen)
    return found


def _below(top: StreamTreeNode, children: dict[str, list[StreamTreeNode]], seen: set[str]) -> Iterator[Placed]:
    waiting = [Placed(top, None, 0, ())]
    while waiting:
        place = waiting.pop()
        if place.node.node in seen:
            continue
        seen.add(place.node.node)
        yield place
        below = [child for child in children.get(place.node.node, ()) if child.node not in seen]
        for index in reversed(range(len(below))):
            branches = (*place.branches, index < len(below) - 1)
            waiting.append(Placed(below[index], place.node, place.depth + 1, branches))


def as_text(view: StreamTreeView, *, is_wide: bool = False) -> str:
    """One line a node, with branches, and a summary."""
    places = placed(view)
    lines = [f"{view.stream}  shaped by {view.policy}"]
    lines += [f"{_stem(place.branches)}{_about(place.node, is_wide)}" for place in places]
    depth = max((place.depth for place in places), default=0)
    shares = [share for node in view.nodes if (share := node.figures.get("spurious_share")) is not None]
    mean = f", mean spurious share {sum(shares) / len(shares):.1%}" if shares else ""
    lines.append(f"{counted(len(places), 'node')}, depth {depth}{mean}")
    if view.standbys:
        lines.append(f"if the producer dies: {', '.join(node[:NODE_DIGITS] for node in view.standbys)}")
    if view.missing:
        names = ", ".join(node[:NODE_DIGITS] for node in view.missing)
        lines.append(f"{counted(len(view.missing), 'node')} did not answer: {names}")
    return "\n".join(lines)


def _stem(branches: tuple[bool, ...]) -> str:
    if not branches:
        return ""
    return "".join("│  " if follows else "   " for follows in branches[:-1]) + ("├─ " if branches[-1] else "└─ ")


def _about(node: StreamTreeNode, is_wide: bool) -> str:
    parts = [f"{node.node if is_wide else node.node[:NODE_DIGITS]} at {node.address}"]
    if node.parent is None and node.depth == 0:
        parts.append("producer")
    elif node.parent is None:
        parts.append("without a parent")
    parts.append(f"{node.children} of {counted(node.fan_out, 'child', 'children')}")
    parts += _figures(node, is_wide)
    parts.append(_interests(node, is_wide))
    return "  ".join(part for part in parts if part)


def _figures(node: StreamTreeNode, is_wide: bool) -> list[str]:
    figures, shown = node.figures, []
    if "items_per_s" in figures:
        shown.append(f"{figures['items_per_s']:,.3g} items/s")
    if "bytes_per_s" in figures:
        shown.append(f"{size(figures['bytes_per_s'])}/s")
    if figures.get("late_s"):
        shown.append(f"late {seconds(figures['late_s'])}")
    if "spurious_share" in figures:
        shown.append(f"spurious {figures['spurious_share']:.1%}")
    if is_wide:
        shown += [f"{name} {value:,.4g}" for name, value in sorted(figures.items()) if name not in OWN_FIGURES]
    return shown


def _interests(node: StreamTreeNode, is_wide: bool) -> str:
    if not node.interests:
        return ""
    shown = node.interests if is_wide else node.interests[:INTERESTS_SHOWN]
    texts = [_short(text or "everything", is_wide) for text in shown]
    more = len(node.interests) - len(shown)
    return f"wants {'; '.join(texts)}{f'; and {more} more' if more else ''}"


def _short(text: str, is_wide: bool) -> str:
    is_long = not is_wide and len(text) > INTEREST_LENGTH_SHOWN
    return f"{text[: INTEREST_LENGTH_SHOWN - 1]}…" if is_long else text


# Graphs


def _labels(node: StreamTreeNode) -> list[str]:
    return [node.node[:NODE_DIGITS], *_figures(node, False)]


def as_dot(view: StreamTreeView) -> str:
    """The graph; ``dot -Tsvg`` draws it."""
    lines = ["digraph stream {", "  node [shape=box, fontname=monospace, style=filled];"]
    for place in placed(view):
        node = place.node
        label = "\\n".join(part.replace('"', "'") for part in _labels(node))
        lines.append(f'  "{_key(node)}" [label="{label}", fillcolor="{_colour(node)}"];')
        if place.parent is not None:
            lines.append(f'  "{_key(place.parent)}" -> "{_key(node)}";')
    return "\n".join([*lines, "}"])


def as_mermaid(view: StreamTreeView) -> str:
    """The graph in the language of mermaid, which Markdown pages draw."""
    lines = ["flowchart TD"]
    for place in placed(view):
        label = "<br/>".join(escape(part, {'"': "'"}) for part in _labels(place.node))
        lines.append(f'  n{_key(place.node)}["{label}"]')
        if place.parent is not None:
            lines.append(f"  n{_key(place.parent)} --> n{_key(place.node)}")
    return "\n".join(lines)


def _key(node: StreamTreeNode) -> str:
    """The id, which comes from another machine: nothing in it may end a word of the graph's language."""
    return "".join(letter for letter in node.node if letter.isalnum())


def _colour(node: StreamTreeNode) -> str:
    """White for no spurious items, red for nothing else."""
    share = min(max(node.figures.get("spurious_share", 0.0), 0.0), 1.0)
    return f"#ff{255 - round(160 * share):02x}{255 - round(160 * share):02x}"


# A picture


def as_svg(view: StreamTreeView) -> str:
    """The tree from above: a circle a node, redder with its spurious share; what is known of it is its tooltip."""
    places = placed(view)
    x = _columns(places)
    width = 2 * MARGIN_PIXELS + SLOT_PIXELS * max([*x.values(), 1.0])
    height = 2 * MARGIN_PIXELS + LEVEL_PIXELS * max((place.depth for place in places), default=0)
    title = _xml(f"{view.stream}, shaped by {view.policy}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{title}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        '<g font-family="sans-serif" font-size="11">',
        f'<text x="{width / 2:.0f}" y="20" text-anchor="middle" font-size="14">{title}</text>',
    ]
    at = {
        place.node.node: (MARGIN_PIXELS + SLOT_PIXELS * x[place.node.node], MARGIN_PIXELS + LEVEL_PIXELS * place.depth)
        for place in places
    }
    for place in places:
        if place.parent is not None:
            (x1, y1), (x2, y2) = at[place.parent.node], at[place.node.node]
            lines.append(f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" stroke="#888" fill="none"/>')
    lines += [_circle(place.node, *at[place.node.node]) for place in places]
    return "\n".join([*lines, "</g>", "</svg>"])


def _columns(places: list[Placed]) -> dict[str, float]:
    """Where each node stands from left to right: leaves side by side, the others above the middle of their children."""
    children: dict[str, list[str]] = {}
    for place in places:
        if place.parent is not None:
            children.setdefault(place.parent.node, []).append(place.node.node)
    columns: dict[str, float] = {}
    leaves = [place.node.node for place in places if place.node.node not in children]
    columns.update({node: float(index) for index, node in enumerate(leaves)})
    for place in reversed(places):  # children before their parents
        below = children.get(place.node.node)
        if below:
            columns[place.node.node] = (columns[below[0]] + columns[below[-1]]) / 2
    return columns


def _circle(node: StreamTreeNode, x: float, y: float) -> str:
    about, colour = _xml(_about(node, True)), _colour(node)
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS_PIXELS}" fill="{colour}" stroke="#446"/>'
    lines = [f"<g><title>{about}</title>{circle}"]
    for index, part in enumerate(_labels(node)):
        below = y + RADIUS_PIXELS + LINE_PIXELS * (index + 1)
        lines.append(f'<text x="{x:.1f}" y="{below:.1f}" text-anchor="middle">{_xml(part)}</text>')
    return "".join([*lines, "</g>"])


def _xml(text: str) -> str:
    """Text from other machines in a picture: XML has no control characters."""
    return escape(printable(text))
