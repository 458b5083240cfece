"""Cells: the nodes of a distributed 2d-tree, as numbers. Pure (Li 2008, sections 3.2 and 3.2.1).

An attribute's domain is mapped to whole numbers from 0 up to `SIDE`, so its range ``[low, high]`` is a point of a
square of that side: x is the lower end, y the upper end. A *cell* is a rectangle that comes from halving the square, by
turns on the x axis and on the y axis. It is written as one number: a leading 1, and then one bit a halving, 0 for the
lower half. The thesis writes the same as a text of zeros and ones behind the attribute's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta

COORDINATE_BITS: Final = 32
SIDE: Final = 1 << COORDINATE_BITS
"""Coordinates are below this."""
LEVEL_LIMIT: Final = 60
"""No cell is deeper: its number takes at most 61 bits."""
AREAS_KEPT: Final = 1 << 14
"""Rectangles that are remembered: the same cells are asked about all the time."""
WHOLE: Final = 1
"""The cell that is the whole square: the root of a tree."""

Cell = Annotated[int, Meta(ge=WHOLE, lt=1 << (LEVEL_LIMIT + 1))]
Coordinate = Annotated[int, Meta(ge=0, lt=SIDE)]


def level(cell: int) -> int:
    """Return how many halvings made the cell; 0 for `WHOLE`."""
    return cell.bit_length() - 1


def parent(cell: int) -> int:
    """Return the cell of which this one is a half. The parent of `WHOLE` is 0, which is no cell."""
    return cell >> 1


def children(cell: int) -> tuple[int, int]:
    """Return the two halves."""
    return cell << 1, cell << 1 | 1


def sibling(cell: int) -> int:
    """Return the other half of the parent."""
    return cell ^ 1


def ancestor(cell: int, at_level: int) -> int:
    """Return the cell at a level that this one lies in, or is."""
    return cell >> (level(cell) - at_level)


def lies_within(inner: int, outer: int) -> bool:
    """Whether a cell is another one or lies in it."""
    shift = inner.bit_length() - outer.bit_length()
    return shift >= 0 and inner >> shift == outer


def are_related(one: int, other: int) -> bool:
    """Whether one of the two lies in the other."""
    return lies_within(one, other) or lies_within(other, one)


def text(cell: int) -> str:
    """Return the halvings as the thesis writes them, such as ``001``; empty for `WHOLE`."""
    return format(cell, "b")[1:]


def cell_of_text(bits: str) -> int:
    """Read what `text` returned. Raises ``ValueError`` for anything else, and for too many halvings."""
    if len(bits) > LEVEL_LIMIT or set(bits) - {"0", "1"}:
        raise ValueError(f"a cell is written with at most {LEVEL_LIMIT} zeros and ones")
    return int("1" + bits, 2)


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle: x from ``x_low`` up to, not including, ``x_high``; y likewise."""

    x_low: int
    x_high: int
    y_low: int
    y_high: int


@lru_cache(maxsize=AREAS_KEPT)
def area_of(cell: int) -> Area:
    """Return the rectangle of a cell."""
    x_low = y_low = 0
    x_size = y_size = SIDE
    depth = level(cell)
    for index in range(depth):
        bit = cell >> (depth - 1 - index) & 1
        if index % 2 == 0:
            x_size >>= 1
            x_low += bit * x_size
        else:
            y_size >>= 1
            y_low += bit * y_size
    return Area(x_low, x_low + x_size, y_low, y_low + y_size)


def cell_at(x: int, y: int, at_level: int) -> int:
    """Return the cell of a level that holds a point: the bits of x and y by turns, x first (Program 3.2)."""
    cell = WHOLE
    for index in range(at_level):
        value = x if index % 2 == 0 else y
        cell = cell << 1 | (value >> (COORDINATE_BITS - 1 - index // 2) & 1)
    return cell


@dataclass(frozen=True, slots=True)
class Target:
    """The points that an event may match: all x <= ``value`` <= y (section 3.2).

    ``length_max``: no stored range is longer, because of the cut-off line (section 3.5). ``value`` is ``None`` where
    the event does not say what it is: then every point is meant.
    """

    value: int | None
    length_max: int = SIDE

    def meets(self, cell: int) -> bool:
        """Whether some point of the cell belongs to the target."""
        area = area_of(cell)
        if area.y_high <= area.x_low:  # below the diagonal: no range has its upper end before its lower one
            return False
        if self.value is None:
            return max(0, area.y_low - (area.x_high - 1)) <= self.length_max
        if area.x_low > self.value or area.y_high <= self.value:
            return False
        shortest = max(area.y_low, self.value) - min(area.x_high - 1, self.value)
        return shortest <= self.length_max


def met_cells(target: Target, cells: Iterable[int]) -> Iterator[int]:
    """Return those of the cells that an event has to visit, in order."""
    return (cell for cell in cells if target.meets(cell))
