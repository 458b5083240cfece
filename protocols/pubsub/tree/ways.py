"""Where to go on from a cell that is not the leaf that was looked for (sections 3.3 and 3.4.1). Pure."""

from __future__ import annotations

from protocols.pubsub.cells import Target, ancestor, cell_at, children, level, parent
from protocols.pubsub.messages import CellState
from protocols.pubsub.ports import Elsewhere
from protocols.pubsub.tree.cell_node import CellNode


def upward(state: CellState, cell: int) -> int:
    """Above a cell that is no node of the tree: what was merged names its parent, else half the level is tried."""
    return parent(cell) if state is CellState.RETIRED else ancestor(cell, level(cell) // 2)


def to_point(node: CellNode, x: int, y: int, *, is_careful: bool) -> tuple[int, bool]:
    """The next cell to ask about a point, and whether it is a half of this one, which is an inner node."""
    if node.state is not CellState.INNER:
        return upward(node.state, node.cell), False
    if is_careful or node.table is None:
        return cell_at(x, y, node.level + 1), True
    found = node.table.at(x, y)
    return found, parent(found) == node.cell


def to_target(node: CellNode, target: Target | None, *, is_careful: bool) -> Elsewhere:
    """The cells to ask instead about an event."""
    if node.state is not CellState.INNER:
        return Elsewhere((upward(node.state, node.cell),), vouched=False)
    halves = children(node.cell)
    cells = list(halves) if is_careful or node.table is None else list(node.table.partition())
    met = tuple(cell for cell in cells if target is None or target.meets(cell))
    return Elsewhere(met, vouched=set(met) <= set(halves))
