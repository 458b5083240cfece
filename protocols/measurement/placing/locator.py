"""The k-nearest mapped cache locator (section 3.2), and what the paper's GNP servers tell (section 3.3). Pure.

A `SquareMap` has what a node knows of where all nodes are, and tells from that alone; who knows the same, is told the
same. Sets that differ by a few nodes differ in a few candidates, which costs a cache hit and nothing else: nobody has
to know that it is somebody's candidate, and who is asked in vain passes the question on.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from peerd.ids import NodeId, id_to_bytes
from protocols.measurement.directory import by_value
from protocols.measurement.placing.squares import ORDERS, Spot, Square, common_order, square_of

NEAREST: Final = 4
"""The paper's k. A larger one spreads owners over more candidates: of 250 nodes on a disc, 12 owners near each other
have 5.2 candidates between them with 2 and 6.6 with 4, and the busiest node is chosen 109 and 69 times, of 11 in the
mean."""


class MappedNode(NamedTuple):
    """A node of a square, at the point of the other squares to which it is mapped."""

    x: int
    y: int
    z: int
    rank: int
    """Which of two equally near ones comes first."""
    node: NodeId


def _hash(*parts: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=16).digest())


class SquareMap:
    """Where nodes are, all of them that are known and have said it."""

    def __init__(self, spots: Mapping[NodeId, Spot], regions: Mapping[NodeId, str] = MappingProxyType({})) -> None:
        self.spots = spots
        """The paper's get_coords."""
        self.regions = regions
        """Of owners whose regions are those of a tag, its value: those with the same one share candidates (section
        5.2)."""
        self._inside: dict[Square, list[NodeId]] = {}
        self._mapped: dict[Square, list[MappedNode]] = {}
        self._chosen: dict[tuple[Square, NodeId | str], NodeId | None] = {}
        for node, spot in spots.items():
            for order in range(1, ORDERS):
                self._inside.setdefault(square_of(spot, order), []).append(node)

    def region(self, centre: Spot, radius_ms: float) -> Iterator[NodeId]:
        """The nodes whose round trip to the centre is at most this (get_region)."""
        return (node for node, spot in self.spots.items() if spot.rtt_ms(centre) <= radius_ms)

    def sibling_candidates(self, owner: NodeId) -> dict[Square, NodeId]:
        """An owner's candidates in all of its sibling squares in which there are nodes (get_sibling_representatives).

        Smaller squares come first: there are more of them around the owner than farther away.
        """
        own = [square_of(self.spots[owner], order) for order in range(1, ORDERS)]
        found = {each: self.candidate(each, owner) for square in own for each in square.siblings()}
        return {square: node for square, node in found.items() if node is not None}

    def closest_candidate(self, reader: NodeId, owner: NodeId) -> NodeId | None:
        """The one in the reader's subsquare of the smallest square with both in it (get_closest_representative).

        ``None``: none is nearer than the owner, which is so in a smallest square; or one of them is nowhere.
        """
        here, there = self.spots.get(reader), self.spots.get(owner)
        if here is None or there is None or (order := common_order(here, there)) == 1:
            return None
        found = self.candidate(square_of(here, order - 1), owner)
        if found is None or found == reader:
            return found
        return found if here.rtt_ms(self.spots[found]) < here.rtt_ms(there) else None

    def candidate(self, square: Square, owner: NodeId) -> NodeId | None:
        """The cache locator function: of a sibling square of the owner, the node that is to cache for it."""
        region = self.regions.get(owner, owner)
        if (square, region) not in self._chosen:
            self._chosen[square, region] = self._choose(square, region)
        return self._chosen[square, region]

    def _choose(self, square: Square, region: NodeId | str) -> NodeId | None:
        if isinstance(region, str):
            return next(iter(by_value(region, self._inside.get(square, ()))), None)
        near = self._nearest(square, self.spots[region])
        return near[_hash(id_to_bytes(region)) % len(near)] if near else None

    def _nearest(self, square: Square, spot: Spot) -> list[NodeId]:
        """The k nodes that are mapped nearest to a place. In order of x, so that those far away are not looked at."""
        mapped = self.mapped(square)
        found: list[tuple[int, int, NodeId]] = []
        at = bisect_left(mapped, (spot.x,))
        for side in (range(at, len(mapped)), range(at - 1, -1, -1)):
            for each in map(mapped.__getitem__, side):
                across = (each.x - spot.x) ** 2
                if len(found) == NEAREST and across > found[-1][0]:
                    break
                far = across + (each.y - spot.y) ** 2 + (each.z - spot.z) ** 2
                if len(found) < NEAREST or far <= found[-1][0]:
                    insort(found, (far, each.rank, each.node))
                    del found[NEAREST:]
        return [node for _, _, node in found]

    def mapped(self, square: Square) -> list[MappedNode]:
        """The nodes of a square in order of x, each at a random point of the sibling squares: the same at whoever
        reckons it."""
        if square not in self._mapped:
            siblings, side = square.siblings(), square.side_ms
            mapped = []
            for node in self._inside.get(square, ()):
                rank = drawn = _hash(id_to_bytes(node), bytes((square.order, *square.cell)))
                drawn, number = divmod(drawn, len(siblings))
                x, y, z = siblings[number].corner_ms
                drawn, right = divmod(drawn, side)
                drawn, up = divmod(drawn, side)
                mapped.append(MappedNode(x + right, y + up, z + drawn % side, rank, node))
            self._mapped[square] = sorted(mapped)
        return self._mapped[square]
