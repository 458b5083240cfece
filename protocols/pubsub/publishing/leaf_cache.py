"""The leaves that this node's events have reached, and the addresses of their roots: the way there is one hop. Pure.

An entry is only a guess: the tree may have changed, and another node may have become the root. Whoever gets an event
for a cell that is not his passes it on, and the answer of the leaf that it ends at corrects the entry.
"""

from __future__ import annotations

from collections import OrderedDict

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.pubsub.names import Tree
from protocols.pubsub.tree.cell_map import CellMap


class LeafCache:
    """Leaves of all trees, at most ``entries_max``; those that answered least lately go first."""

    def __init__(self, entries_max: int, age_max_s: float) -> None:
        self.entries_max = entries_max
        self._age_max_s = age_max_s
        self._trees: dict[Tree, CellMap[PeerRef]] = {}
        self._answered: OrderedDict[tuple[Tree, int], float] = OrderedDict()
        """When each leaf answered last, the oldest first."""

    def __len__(self) -> int:
        return len(self._answered)

    def answered(self, tree: Tree, cell: int, owner: PeerRef, now: float) -> None:
        """The root of a leaf has answered. Cells that overlap it are no leaves (any more)."""
        if not self.entries_max:
            return
        cells = self._trees.setdefault(tree, CellMap())
        for other in cells.related(cell):
            self.forget(tree, other)
        self._trees.setdefault(tree, cells).set(cell, owner)
        self._answered[tree, cell] = now
        self._answered.move_to_end((tree, cell))
        while len(self._answered) > self.entries_max:
            self.forget(*next(iter(self._answered)))

    def forget(self, tree: Tree, cell: int) -> None:
        """A leaf has not answered, or is none."""
        if self._answered.pop((tree, cell), None) is not None:
            cells = self._trees[tree]
            cells.pop(cell)
            if not cells:
                del self._trees[tree]

    def forget_owner(self, owner: NodeId) -> None:
        """A node cannot be reached: forget all leaves of which it is the root."""
        found = [(tree, cell) for tree, cells in self._trees.items() for cell in cells if _is(cells.get(cell), owner)]
        for tree, cell in found:
            self.forget(tree, cell)

    def known(self, tree: Tree, now: float) -> CellMap[PeerRef] | None:
        """The remembered leaves of one tree with their roots; ``None`` where there are none."""
        while self._answered:
            oldest, answered_at = next(iter(self._answered.items()))
            if now - answered_at <= self._age_max_s:
                break
            self.forget(*oldest)
        return self._trees.get(tree)

    def owner(self, tree: Tree, cell: int) -> PeerRef | None:
        """The root of a remembered leaf."""
        cells = self._trees.get(tree)
        return None if cells is None else cells.get(cell)

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._answered) <= self.entries_max
        assert len(self._answered) == sum(len(cells) for cells in self._trees.values())
        for cells in self._trees.values():
            assert cells and not any(cells.above(cell) for cell in cells), "leaves do not overlap"


def _is(peer: PeerRef | None, node_id: NodeId) -> bool:
    return peer is not None and peer.id == node_id
