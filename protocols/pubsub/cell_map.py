"""A map from cells to values that finds what lies above and below a cell quickly. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from protocols.pubsub.cells import children

V = TypeVar("V")


class CellMap(Generic[V]):
    """Cells of one tree with a value each. For each cell it counts how many of its own lie strictly below it."""

    __slots__ = ("_below", "_values")

    def __init__(self) -> None:
        self._values: dict[int, V] = {}
        self._below: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, cell: int) -> bool:
        return cell in self._values

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def get(self, cell: int) -> V | None:
        """The value of exactly this cell."""
        return self._values.get(cell)

    def set(self, cell: int, value: V) -> None:
        """Put a value, or replace the one that the cell has."""
        if cell not in self._values:
            below, above = self._below, cell >> 1
            while above:
                below[above] = below.get(above, 0) + 1
                above >>= 1
        self._values[cell] = value

    def pop(self, cell: int) -> V | None:
        """Take out a cell; its value, or ``None`` where there was none."""
        if cell not in self._values:
            return None
        below, above = self._below, cell >> 1
        while above:
            if below[above] == 1:
                del below[above]
            else:
                below[above] -= 1
            above >>= 1
        return self._values.pop(cell)

    def has_below(self, cell: int) -> bool:
        """Whether a cell of the map lies strictly within this one."""
        return cell in self._below

    def above(self, cell: int) -> list[int]:
        """The cells of the map that this one lies strictly within, the smallest first."""
        found, each = [], cell >> 1
        while each:
            if each in self._values:
                found.append(each)
            each >>= 1
        return found

    def below(self, cell: int) -> list[int]:
        """The cells of the map that lie strictly within this one."""
        found: list[int] = []
        waiting = [cell] if cell in self._below else []
        while waiting:
            for child in children(waiting.pop()):
                if child in self._values:
                    found.append(child)
                if child in self._below:
                    waiting.append(child)
        return found

    def related(self, cell: int) -> list[int]:
        """The cells of the map that lie strictly within this one, or this one within them."""
        return [*self.above(cell), *self.below(cell)]
