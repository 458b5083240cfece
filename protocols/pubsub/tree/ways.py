"""Where to go on from a cell that is not the leaf that was looked for (sections 3.3 and 3.4.1). Pure."""

from __future__ import annotations

from protocols.pubsub.messages import CellState
from protocols.pubsub.ports import Elsewhere
from protocols.pubsub.tree.cell_node import CellNode
from protocols.pubsub.tree.cells import Target, ancestor, is_alternate, level, parent, part_at


def upward(state: CellState, cell: int) -> int:
    """Above a cell that is no node of the tree: what was merged or moved home names that, else half the level is
    tried."""
    is_known = state is CellState.RETIRED or is_alternate(cell)
    return parent(cell) if is_known else ancestor(cell, level(cell) // 2)


def to_point(node: CellNode, x: int, y: int, *, is_careful: bool) -> tuple[int, bool]:
    """The next cell to ask about a point, and whether it is a part of this one, which is an inner node."""
    if not node.is_inner:
        return upward(node.state, node.cell), False
    if is_careful or node.table is None:
        return part_at(node.parts, x, y), True
    found = node.table.at(x, y)
    return found, parent(found) == node.cell


def to_target(node: CellNode, target: Target | None, *, is_careful: bool) -> Elsewhere:
    """The cells to ask instead about an event."""
    if not node.is_inner:
        return Elsewhere((upward(node.state, node.cell),), vouched=False)
    cells = node.parts if is_careful or node.table is None else node.table.partition()
    met = tuple(cell for cell in cells if target is None or target.meets(cell))
    return Elsewhere(met, vouched=set(met) <= set(node.parts))
