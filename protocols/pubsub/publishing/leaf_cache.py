"""The leaves that this node's events have reached, and the addresses of their roots: the way there is one hop. Pure.

An entry is only a guess: the tree may have changed, and another node may have become the root. Whoever gets an event
for a cell that is not his passes it on, and the answer of the leaf that it ends at corrects the entry.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.pubsub.names import Tree
from protocols.pubsub.tree.cell_map import CellMap

NAMED_MAX: Final = 8
"""So many nodes that were named lately for a leaf may answer for it."""


@dataclass(slots=True)
class _Helped:
    """Who does the work of a leaf's root for this node, since when, and who was named for that lately.

    ``helper`` is ``None`` where it is the root itself again.
    """

    helper: PeerRef | None = None
    since: float = 0.0
    named: tuple[NodeId, ...] = ()


class LeafCache:
    """Leaves of all trees, at most ``entries_max``; those that answered least lately go first."""

    def __init__(self, entries_max: int, age_max_s: float) -> None:
        self.entries_max = entries_max
        self._age_max_s = age_max_s
        self._trees: dict[Tree, CellMap[PeerRef]] = {}
        self._answered: OrderedDict[tuple[Tree, int], float] = OrderedDict()
        """When each leaf answered last, the oldest first."""
        self._helped: dict[tuple[Tree, int], _Helped] = {}

    def __len__(self) -> int:
        return len(self._answered)

    def answered(self, tree: Tree, cell: int, owner: PeerRef, now: float) -> None:
        """The root of a leaf has answered. Cells that overlap it are no leaves (any more)."""
        if not self.entries_max:
            return
        cells = self._trees.setdefault(tree, CellMap())
        for other in cells.related(cell):
            self.forget(tree, other)
        if not _is(cells.get(cell), owner.id):
            self._helped.pop((tree, cell), None)
        self._trees.setdefault(tree, cells).set(cell, owner)
        self._answered[tree, cell] = now
        self._answered.move_to_end((tree, cell))
        while len(self._answered) > self.entries_max:
            self.forget(*next(iter(self._answered)))

    def forget(self, tree: Tree, cell: int) -> None:
        """A leaf has not answered, or is none."""
        self._helped.pop((tree, cell), None)
        if self._answered.pop((tree, cell), None) is not None:
            cells = self._trees[tree]
            cells.pop(cell)
            if not cells:
                del self._trees[tree]

    def forget_owner(self, owner: NodeId) -> None:
        """A node cannot be reached: forget all leaves of which it is the root."""
        found = [(tree, cell) for tree, cells in self._trees.items() for cell in cells if _is(cells.get(cell), owner)]
        found += [place for place, known in self._helped.items() if _is(known.helper, owner)]
        for tree, cell in found:
            self.forget(tree, cell)

    # Helpers of roots (`protocols.pubsub.tree.sharing`)

    def helped(self, tree: Tree, cell: int, helper: PeerRef, source: NodeId, now: float) -> None:
        """The root of a leaf, or a helper that was named before, names a helper, or the root. Nobody else may."""
        root = self.owner(tree, cell)
        if root is None or not (root.id == source or self.is_helper(tree, cell, source)):
            return
        known = self._helped.setdefault((tree, cell), _Helped())
        known.helper, known.since = (None if helper.id == root.id else helper), now
        known.named = (*known.named[1 - NAMED_MAX :], helper.id)

    def helper(self, tree: Tree, cell: int) -> PeerRef | None:
        """Who does the work of a leaf's root for this node now."""
        found = self._helped.get((tree, cell))
        return None if found is None else found.helper

    def is_helper(self, tree: Tree, cell: int, node: NodeId) -> bool:
        """Whether a node was named as a helper, now or before: its answer may have been on its way."""
        found = self._helped.get((tree, cell))
        return found is not None and node in found.named

    def helper_answered(self, tree: Tree, cell: int, now: float) -> None:
        """A helper has answered for the root."""
        self._answered[tree, cell] = now
        self._answered.move_to_end((tree, cell))

    def root_answered(self, tree: Tree, cell: int, sent_at: float) -> None:
        """The root has answered what was sent then: if that was to a helper, it helps no longer."""
        found = self._helped.get((tree, cell))
        if found is not None and sent_at >= found.since:
            found.helper = None

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
        assert self._helped.keys() <= self._answered.keys()
        for cells in self._trees.values():
            assert cells and not any(cells.above(cell) for cell in cells), "leaves do not overlap"


def _is(peer: PeerRef | None, node_id: NodeId) -> bool:
    return peer is not None and peer.id == node_id
