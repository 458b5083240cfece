"""Cells: the nodes of a distributed 2d-tree, as numbers. Pure (Li 2008, sections 3.2 and 3.2.1).

An attribute's domain is mapped to whole numbers from 0 up to `SIDE`, so its range ``[low, high]`` is a point of a
square of that side: x is the lower end, y the upper end. A *cell* is a rectangle that comes from halving the square, by
turns on the x axis and on the y axis. It is written as one number: a leading 1, and then one bit a halving, 0 for the
lower half. The thesis writes the same as a text of zeros and ones behind the attribute's name.

Each cell has two places on the ring to choose from, and a number for each: its *home*, and its *alternate*, which is
the same rectangle under another key. A leaf begins at home; `protocols.pubsub.tree.heat` moves it where that is less
busy. The alternate counts as the only part of its home, and the halves count as parts of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta

from peerd.frozen import Frozen

COORDINATE_BITS: Final = 32
SIDE: Final = 1 << COORDINATE_BITS
"""Coordinates are below this."""
LEVEL_LIMIT: Final = 60
"""No cell is deeper: its number takes at most 61 bits."""
AREAS_KEPT: Final = 1 << 14
"""Rectangles that are remembered: the same ones are asked about all the time."""
WHOLE: Final = 1
"""The cell that is the whole square: the root of a tree."""

HOMES: Final = (1 << (LEVEL_LIMIT + 1)) - 1
"""How many cells there are at home. The number of a cell's alternate is greater by so much."""
ALTERNATE_MARK: Final = "a"
"""What `text` writes behind the halvings of an alternate."""

Cell = Annotated[int, Meta(ge=WHOLE, le=2 * HOMES)]
Coordinate = Annotated[int, Meta(ge=0, lt=SIDE)]


def is_alternate(cell: int) -> bool:
    """Whether it is the second place of a rectangle."""
    return cell > HOMES


def alternate(home_cell: int) -> int:
    """Return the second place of a cell that is at home."""
    return home_cell + HOMES


def home(cell: int) -> int:
    """Return the first place of a rectangle."""
    return cell - HOMES if cell > HOMES else cell


def level(cell: int) -> int:
    """Return how many halvings made the cell; 0 for `WHOLE`."""
    return home(cell).bit_length() - 1


def parent(cell: int) -> int:
    """Return the cell that this one is a half of, or the alternate. The parent of `WHOLE` is 0, which is no cell."""
    return cell - HOMES if cell > HOMES else cell >> 1


def children(home_cell: int) -> tuple[int, int]:
    """Return the two halves of a cell that is at home. An alternate is not split: it returns home before."""
    return home_cell << 1, home_cell << 1 | 1


def sibling(cell: int) -> int:
    """Return the other half of the parent, for a cell that is at home."""
    return cell ^ 1


def ancestor(cell: int, at_level: int) -> int:
    """Return the cell at a level, at home, that this one lies in, or is."""
    return home(cell) >> (level(cell) - at_level)


def enclosing(cell: int) -> Iterator[int]:
    """The cell, and all that it lies in, up to the whole square."""
    yield cell
    while cell != WHOLE:
        if is_alternate(cell):
            cell = home(cell)
        else:
            cell >>= 1
            yield alternate(cell)
        yield cell


def lies_within(inner: int, outer: int) -> bool:
    """Whether a cell is another one or lies in it."""
    inside, around = home(inner), home(outer)
    shift = inside.bit_length() - around.bit_length()
    if not shift:
        return inner == outer or (inside == around and is_alternate(inner))
    return shift > 0 and inside >> shift == around


def are_related(one: int, other: int) -> bool:
    """Whether one of the two lies in the other."""
    return lies_within(one, other) or lies_within(other, one)


def text(cell: int) -> str:
    """Return the halvings as the thesis writes them, such as ``001``; empty for `WHOLE`. Of an alternate: ``001a``."""
    return format(home(cell), "b")[1:] + ALTERNATE_MARK * is_alternate(cell)


def cell_of_text(bits: str) -> int:
    """Read what `text` returned. Raises ``ValueError`` for anything else, and for too many halvings."""
    halvings = bits.removesuffix(ALTERNATE_MARK)
    if len(halvings) > LEVEL_LIMIT or set(halvings) - {"0", "1"}:
        raise ValueError(f"a cell is written with at most {LEVEL_LIMIT} zeros and ones")
    cell = int("1" + halvings, 2)
    return cell if halvings == bits else alternate(cell)


class Area(Frozen):
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
        bit = home(cell) >> (depth - 1 - index) & 1
        if index % 2 == 0:
            x_size >>= 1
            x_low += bit * x_size
        else:
            y_size >>= 1
            y_low += bit * y_size
    return Area(x_low, x_low + x_size, y_low, y_low + y_size)


def cell_at(x: int, y: int, at_level: int) -> int:
    """Return the cell of a level, at home, that holds a point: the bits of x and y by turns, x first (Program 3.2)."""
    by_turns = int(f"{x:b}", 4) << 1 | int(f"{y:b}", 4)  # read with base 4, the bits of a number stand apart
    return (1 << 2 * COORDINATE_BITS | by_turns) >> 2 * COORDINATE_BITS - at_level


def holds_point(cell: int, x: int, y: int) -> bool:
    """Whether a point lies in a cell."""
    return cell_at(x, y, level(cell)) == home(cell)


def part_at(parts: Sequence[int], x: int, y: int) -> int:
    """Return which part of a cell holds a point of the cell."""
    return next((part for part in parts if holds_point(part, x, y)), parts[0])


class Target(Frozen):
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
