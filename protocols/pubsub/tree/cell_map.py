"""A map from cells to values that finds what lies above and below a cell quickly. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from protocols.pubsub.tree.cells import alternate, children, enclosing, home, is_alternate, parent

V = TypeVar("V")


class CellMap(Generic[V]):
    """Cells of one tree with a value each. For each cell at home it counts how many of them lie strictly below it."""

    __slots__ = ("_alternates", "_below", "_values")

    def __init__(self) -> None:
        self._values: dict[int, V] = {}
        self._below: dict[int, int] = {}
        self._alternates = 0
        """How many of the cells are: there are few, and mostly none that has to be looked for."""

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, cell: int) -> bool:
        return cell in self._values

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def get(self, cell: int) -> V | None:
        """The value of exactly this cell."""
        return self._values.get(cell)

    def at(self, home_cell: int) -> int | None:
        """Where a rectangle is, at home or at its alternate; ``None`` where the map has neither."""
        if home_cell in self._values:
            return home_cell
        return other if self._alternates and (other := alternate(home_cell)) in self._values else None

    def set(self, cell: int, value: V) -> None:
        """Put a value, or replace the one that the cell has."""
        if cell not in self._values:
            self._alternates += is_alternate(cell)
            below, above = self._below, parent(cell)
            while above:
                below[above] = below.get(above, 0) + 1
                above >>= 1
        self._values[cell] = value

    def pop(self, cell: int) -> V | None:
        """Take out a cell; its value, or ``None`` where there was none."""
        if cell not in self._values:
            return None
        self._alternates -= is_alternate(cell)
        below, above = self._below, parent(cell)
        while above:
            if below[above] == 1:
                del below[above]
            else:
                below[above] -= 1
            above >>= 1
        return self._values.pop(cell)

    def has_below(self, home_cell: int) -> bool:
        """Whether a cell of the map lies strictly within this one, which is at home."""
        return home_cell in self._below

    def above(self, cell: int) -> list[int]:
        """The cells of the map that this one lies strictly within, the smallest first."""
        if self._alternates:
            return [each for each in enclosing(cell) if each != cell and each in self._values]
        found, each = [], parent(cell)
        while each:
            if each in self._values:
                found.append(each)
            each >>= 1
        return found

    def below(self, cell: int) -> list[int]:
        """The cells of the map that lie strictly within this one."""
        found: list[int] = []
        waiting = [home(cell)] if home(cell) in self._below else []
        while waiting:
            above = waiting.pop()
            if self._alternates and (other := alternate(above)) in self._values and other != cell:
                found.append(other)
            for child in children(above):
                if child in self._values:
                    found.append(child)
                if child in self._below:
                    waiting.append(child)
        return found

    def related(self, cell: int) -> list[int]:
        """The cells of the map that lie strictly within this one, or this one within them."""
        return [*self.above(cell), *self.below(cell)]
