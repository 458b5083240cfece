"""Subtree filters (section 4.2.1): which nodes are at or below a node of T. Pure.

A few are named one by one. Of more there is a Bloom filter, whose size goes by that of the ring and not by what is in
it, so that filters of children are joined by an or of their bits. It may say of a node that it is there when it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import ID_BITS, NodeId

EXACT_MAX: Final = 128
"""So many nodes are named one by one: 2 KiB."""
BITS_A_NODE: Final = 16
"""With `HASHES`, one in a thousand of those that are not there is taken to be, where a whole ring is in the filter."""
HASHES: Final = 6
BITS_MIN: Final = 1 << 12
BITS_MAX: Final = 1 << 18
"""32 KiB: beyond 16,000 nodes more and more are taken to be where they are not, which costs messages only."""
_PART_BITS: Final = ID_BITS // HASHES


class SubtreeFilter(Frozen):
    """``ids`` are there. ``bits``: a Bloom filter of ``size`` bits, which says what may be there besides; 0: none."""

    ids: frozenset[NodeId] = frozenset()
    bits: int = 0
    size: int = 0

    def __contains__(self, node: object) -> bool:
        if node in self.ids:
            return True
        return (
            bool(self.size) and isinstance(node, NodeId) and all(self.bits >> at & 1 for at in _places(node, self.size))
        )

    def __len__(self) -> int:
        """How many nodes there are, about."""
        return len(self.ids) + (self.bits.bit_count() // HASHES)


def bloom_size(nodes: float) -> int:
    """Bits of a filter in a ring of so many nodes: a power of two."""
    size = BITS_MIN
    while size < nodes * BITS_A_NODE and size < BITS_MAX:
        size *= 2
    return size


def joined(own: NodeId, below: Iterable[SubtreeFilter], nodes: float) -> SubtreeFilter:
    """The filter of a node, by those of its children, in a ring of so many nodes."""
    parts = list(below)
    ids = frozenset({own}).union(*(each.ids for each in parts))
    if len(ids) <= EXACT_MAX and not any(each.size for each in parts):
        return SubtreeFilter(ids)
    size = max(bloom_size(nodes), *(each.size for each in parts))
    bits = 0
    for each in parts:
        bits |= _widened(each.bits, each.size, size)
    for node in ids:
        for at in _places(node, size):
            bits |= 1 << at
    return SubtreeFilter(frozenset(), bits, size)


def _places(node: NodeId, size: int) -> Iterator[int]:
    """Ids are hashes of keys, so their parts are as good as hashes."""
    for number in range(HASHES):
        yield (node >> number * _PART_BITS) % size


def _widened(bits: int, size: int, wanted: int) -> int:
    """The same filter with more bits: what is a place modulo the one size may be any of these modulo the other."""
    while 0 < size < wanted:
        bits |= bits << size
        size *= 2
    return bits
