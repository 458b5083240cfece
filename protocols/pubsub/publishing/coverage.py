"""Which cells an event still has to visit before all that it may match has been looked at. Pure.

The leaves that an event reaches say so (`EventAck`). They may be other cells than those that were probed, because the
publisher guessed, or because the tree has changed meanwhile. So what counts is the area: the publish is complete when
the leaves that answered hold every point of the event's targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from protocols.pubsub.tree.cells import Target, ancestor, enclosing, level, lies_within, sibling

OUTSTANDING_MAX: Final = 4096
"""An event's cells of one tree do not become more than this because of answers. One leaf deep in a tree leaves dozens
of cells of a guess, so those that somebody made up would have the event go to tens of thousands."""


@dataclass(frozen=True, slots=True)
class CoverageChange:
    """What a leaf's answer did to the cells of one tree: these are not outstanding any more, those are now."""

    gone: tuple[int, ...] = ()
    new: tuple[int, ...] = ()


NO_CHANGE = CoverageChange()


class Coverage:
    """The outstanding cells of one event, for each tree that has any. None lies within another, and all meet the
    event's target."""

    __slots__ = ("_targets", "outstanding")

    def __init__(self, targets: Mapping[int, Target]) -> None:
        self._targets = targets
        self.outstanding: dict[int, set[int]] = {}

    @property
    def trees(self) -> Iterable[int]:
        """The trees that the event has to visit."""
        return self._targets

    @property
    def is_complete(self) -> bool:
        """Whether nothing is outstanding."""
        return not self.outstanding

    def target(self, attribute: int) -> Target | None:
        """The event's target in one tree; ``None`` for a tree that it need not visit."""
        return self._targets.get(attribute)

    def expect(self, attribute: int, cells: Iterable[int]) -> None:
        """Begin with these cells, which hold the whole target and do not overlap."""
        if found := set(cells):
            self.outstanding[attribute] = found

    def visit(self, attribute: int, leaf: int) -> bool:
        """The event has visited this leaf; whether that very cell was outstanding, as it mostly is. Else: `cover`."""
        cells = self.outstanding.get(attribute)
        if cells is None or leaf not in cells:
            return False
        cells.remove(leaf)
        if not cells:
            del self.outstanding[attribute]
        return True

    def cover(self, attribute: int, leaf: int) -> CoverageChange:
        """The event has visited this leaf: what lies in it is done.

        An outstanding cell that contains the leaf is replaced by what is left of it, unless that would be too much:
        then it stays as it is, and is tried again.
        """
        return self._replace(attribute, leaf, keep=False)

    def refine(self, attribute: int, leaf: int) -> CoverageChange:
        """The tree has this leaf, which the event has not visited yet: go there with what lies in it."""
        return self._replace(attribute, leaf, keep=True)

    def _replace(self, attribute: int, leaf: int, *, keep: bool) -> CoverageChange:
        cells, target = self.outstanding.get(attribute), self._targets.get(attribute)
        if cells and leaf in cells:
            if keep:  # by far the most usual: the leaf was known
                return NO_CHANGE
            self.visit(attribute, leaf)
            return CoverageChange((leaf,))
        if not cells or target is None or not target.meets(leaf):
            return NO_CHANGE
        outer = next((each for each in enclosing(leaf) if each in cells), None)
        gone: tuple[int, ...]
        new: tuple[int, ...] = ()
        if outer is not None:
            gone, room = (outer,), max(1, OUTSTANDING_MAX + 1 - len(cells))
            new = tuple(islice((cell for cell in _rest(outer, leaf) if target.meets(cell)), room + 1))
            if len(new) + keep > room:
                return NO_CHANGE
        else:
            gone = tuple(sorted(cell for cell in cells if lies_within(cell, leaf)))
            if not gone:
                return NO_CHANGE
        if keep:
            new = (*new, leaf)
        cells.difference_update(gone)
        cells.update(new)
        if not cells:
            del self.outstanding[attribute]
        return CoverageChange(gone, new)


def _rest(outer: int, inner: int) -> Iterable[int]:
    """What is left of a cell without another one that lies in it: one half at each level between the two."""
    return (sibling(ancestor(inner, depth)) for depth in range(level(outer) + 1, level(inner) + 1))
