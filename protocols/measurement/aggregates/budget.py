"""How the imprecision that a node may have is split between its own filter and those of its children. Pure.

The widths of all filters of a subtree of sums add up to the one that was asked for. A node's own filter, on its
subtree's sum, stops the many changes that undo each other, with a small share: the sum of n values that move on their
own moves as the root of n, while it may be wrong by n times what each may be.

`tests/support/sums.py` counts the words. Tried on the processor series of NAB and on random walks, also
with steps of all sizes, of 250 nodes, as words in a tree like a star and in one of four children each, beside those
with this share: as much for each level, 1.2 to 2.6 times as many and 1.2 to 2.4; shares that follow the words of the
children (Olston's way), 1.1 to 2.7 and 1.0 to 1.4; shares by their estimated variances (PRISM's), 1.0 to 2.2 and 0.9 to
1.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from protocols.measurement.aggregates.partial import EXTREMES

OWN_SHARE: Final = 0.1
"""Of what a node may be wrong by, so much is for the filter on its subtree; the rest is its children's. From 0.05 to
0.15 it hardly matters how many words there are; the more, the fewer come near the root."""
K = TypeVar("K")


def child_half_widths(function: str, half_width: float, counts: Mapping[K, int]) -> dict[K, float]:
    """Half the width of the bounds of each child, by how many nodes it speaks for.

    The ends of the greatest of some intervals are those of one of them, so that each may be as wide as the whole.
    """
    if function in EXTREMES:
        return dict.fromkeys(counts, half_width)
    nodes = max(1, sum(counts.values()))
    return {child: (1.0 - OWN_SHARE) * half_width * (count / nodes) for child, count in counts.items()}
