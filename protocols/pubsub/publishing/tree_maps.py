"""Which leaves the trees have, as far as a publishing node has been told: it guesses these, not random cells. Pure.

Random region probing (Program 3.3) misses: a guess that is too high costs the way from there to the leaves, one that
is too deep a way up first, and all events pass through the same few inner nodes. The root of a tree knows all leaves,
so a node that publishes asks it once (`CellQuestion`). From then on its events set out to all leaves from one place,
which is where sending together (section 3.4.2) saves most.

A map is a hint, and nobody need keep it up to date. Where a leaf was split meanwhile, the event is passed on; where it
was merged into a larger one, the event is sent back (`ProbePub.remembered`). The answer of the leaf that it ends at
corrects the map.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from protocols.pubsub.names import Tree
from protocols.pubsub.tree.cell_map import CellMap

MAPS_MAX: Final = 256
"""Trees of which a node keeps a map; the longest unused goes first."""
MAP_CELLS_MAX: Final = 1024
"""Leaves in one map."""
ASK_EVERY_S: Final = 60.0
"""Between two questions about one tree, as long as some of its leaves are not known."""


class _TreeMap:
    __slots__ = ("cells", "may_ask_at")

    def __init__(self) -> None:
        self.cells: CellMap[bool] = CellMap()
        self.may_ask_at = -math.inf


class TreeMaps:
    """The maps of one node."""

    def __init__(self) -> None:
        self._maps: OrderedDict[Tree, _TreeMap] = OrderedDict()

    def __len__(self) -> int:
        return len(self._maps)

    def of(self, tree: Tree) -> CellMap[bool]:
        """The leaves of a tree that are known; perhaps none. False: it is not clear whether the cell is one still."""
        found = self._maps.get(tree)
        if found is None:
            found = self._maps[tree] = _TreeMap()
        self._maps.move_to_end(tree)
        while len(self._maps) > MAPS_MAX:
            self._maps.popitem(last=False)
        return found.cells

    def may_ask(self, tree: Tree, now: float) -> bool:
        """Whether the root of a tree may be asked now; if so, it will be."""
        found = self._maps.get(tree)
        if found is None or now < found.may_ask_at:
            return False
        found.may_ask_at = now + ASK_EVERY_S
        return True

    def told(self, tree: Tree, cells: Iterable[int]) -> None:
        """The root of the tree names its leaves. What leaves themselves have said is newer."""
        known = self.of(tree)
        for cell in cells:
            if cell not in known and not known.related(cell) and len(known) < MAP_CELLS_MAX:
                known.set(cell, True)

    def answered(self, tree: Tree, cell: int) -> None:
        """A leaf has answered: cells that overlap it are no leaves (any more)."""
        found = self._maps.get(tree)
        if found is None or found.cells.get(cell):
            return
        for other in found.cells.related(cell):
            found.cells.pop(other)
        if cell in found.cells or len(found.cells) < MAP_CELLS_MAX:
            found.cells.set(cell, True)

    def not_answered(self, tree: Tree, cell: int) -> None:
        """No leaf has answered for a cell in time, or it lies in a larger one now: it is a guess until one answers."""
        found = self._maps.get(tree)
        if found is not None and cell in found.cells:
            found.cells.set(cell, False)

    def validate(self) -> None:
        """Assert the invariants."""
        assert len(self._maps) <= MAPS_MAX
        for found in self._maps.values():
            assert len(found.cells) <= MAP_CELLS_MAX
            assert not any(found.cells.above(cell) for cell in found.cells), "leaves do not overlap"
