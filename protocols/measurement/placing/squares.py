"""The latency space, cut into squares again and again (section 3.1). Pure.

The paper's space is that of GNP; here it is Vivaldi's, which the overlay has anyway (`peerd.api.Coordinate`), in three
dimensions: a "square" is a cube, and one of order i + 1 has 8 of order i. A *height* stands for the access link, which
is on the way to and from a node whichever way it goes. It does not say which of two others is nearer, so squares do not
know it; a round trip does.

All nodes cut the same space, wherever the ring's nodes are in it: `TOP_MS` wide, which is more than any round trip on
Earth, those by a satellite among them. Who is outside counts as being at its edge. Vivaldi begins at the origin, so
there is where a small ring is: the origin is a third of the way into the space, and so a third or two thirds of the way
into the square of every order, and never at the edge of one.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import or_
from typing import Annotated, Final

from msgspec import Meta

from peerd.api import POSITION_MAX_MS, Coordinate
from peerd.frozen import Frozen
from peerd.messages import Struct

SIDE_MS: Final = 16
"""The side of a square of order 1. In one of them, everybody asks owners: coordinates are hardly more exact."""
ORDERS: Final = 8
"""There is one square of this order: the space."""
TOP_MS: Final = SIDE_MS << (ORDERS - 1)
ORIGIN_MS: Final = TOP_MS // 3
"""Where the origin is, from the edge of the space."""
MOVED_MS: Final = SIDE_MS // 2
"""A node that has moved by less is described where it was, so that it does not change squares to and fro."""
ERROR_MAX: Final = 0.5
"""A node with a larger error does not know where it is."""

_MS_MAX: Final = int(POSITION_MAX_MS)
_Ms = Annotated[int, Meta(ge=-_MS_MAX, le=_MS_MAX)]


class Spot(Struct):
    """Where a node says that it is: its coordinate, in whole milliseconds, which are a few bytes."""

    x: _Ms
    y: _Ms
    z: _Ms
    height: Annotated[int, Meta(ge=0, le=_MS_MAX)] = 0

    def rtt_ms(self, other: Spot) -> float:
        """The round trip that is expected."""
        return math.dist((self.x, self.y, self.z), (other.x, other.y, other.z)) + self.height + other.height


def spot_of(coordinate: Coordinate, told: Spot | None) -> Spot | None:
    """What a node says, that has told this before: the same, until it has moved; ``None``: it does not know."""
    x, y, z, height, error = coordinate.x, coordinate.y, coordinate.z, coordinate.height, coordinate.error
    if error > ERROR_MAX:
        return told
    if told is not None and math.dist((x, y, z, height), (told.x, told.y, told.z, told.height)) < MOVED_MS:
        return told
    return Spot(round(x), round(y), round(z), round(height))


Cell = tuple[int, ...]


class Square(Frozen):
    """One of an order: ``cell`` counts squares of that order from the edge of the space, in each dimension."""

    order: int
    cell: Cell

    @property
    def side_ms(self) -> int:
        """How wide it is."""
        return SIDE_MS << (self.order - 1)

    @property
    def corner_ms(self) -> tuple[int, ...]:
        """Where it begins."""
        return tuple(each * self.side_ms - ORIGIN_MS for each in self.cell)

    def siblings(self) -> tuple[Square, ...]:
        """The other squares of the same square of the next order, always in the same order."""
        family = [tuple((each & ~1) + (number >> at & 1) for at, each in enumerate(self.cell)) for number in range(8)]
        return tuple(Square(self.order, cell) for cell in family if cell != self.cell)


def square_of(spot: Spot, order: int) -> Square:
    """The one in which a node is."""
    return Square(order, tuple(each >> (order - 1) for each in _smallest(spot)))


def common_order(one: Spot, other: Spot) -> int:
    """The order of the smallest square in which both are."""
    return 1 + reduce(or_, (a ^ b for a, b in zip(_smallest(one), _smallest(other), strict=True))).bit_length()


def _smallest(spot: Spot) -> Cell:
    return tuple(min(max(each + ORIGIN_MS, 0), TOP_MS - 1) // SIDE_MS for each in (spot.x, spot.y, spot.z))
