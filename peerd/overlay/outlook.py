"""Estimates how long the rest of a path takes, from this node's own tables, in order to compare next hops. Pure.

Every node's tables look alike: a cell of row r holds the nearest of some N / 16**(r + 1) nodes, and the members of a
leaf set are random places. So the mean round trips to this node's own entries, row by row, and to its own members say
what the hops of other nodes cost, although this node knows nothing about them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from peerd.frozen import Frozen
from peerd.ids import DIGIT_VALUES, RING, NodeId, ring_distance, shared_prefix_digits
from peerd.limits import LEAF_SET_SIZE


class Outlook(Frozen):
    """Expectations in a ring of so many nodes. Its times are round trips, seconds."""

    ring_size: float
    last_s: float
    """To the root, from a node that knows it: it may be anywhere."""
    rows_s: tuple[float, ...]
    """From a node that shares r digits with the key to the end, for r = 0, 1, ...; after these ``last_s``."""

    @classmethod
    def of(cls, ring_size: float, members_s: Iterable[float], rows_s: Iterable[Iterable[float]]) -> Outlook:
        """From the round trips to the members of the leaf set, and to the entries of each row of the table."""
        last_s = _mean(members_s, 0.0)
        hops_s: list[float] = []
        nodes = ring_size
        for row in rows_s:
            if nodes <= LEAF_SET_SIZE:
                break  # who shares so many digits with a key has its root in its leaf set
            hops_s.append(_mean(row, last_s))
            nodes /= DIGIT_VALUES
        rest_s = [last_s + sum(hops_s[row:]) for row in range(len(hops_s))]
        return cls(ring_size, last_s, tuple(rest_s))

    def rest_s(self, key: NodeId, node_id: NodeId) -> float:
        """From that node to the root of ``key``; 0 where that node is the root for certain."""
        nodes_between = ring_distance(key, node_id) * self.ring_size / RING
        if nodes_between <= LEAF_SET_SIZE / 2:
            # Nodes are strewn at random: this is the probability that another one is closer to the key, on either side.
            return self.last_s * -math.expm1(-2.0 * nodes_between)
        digits = shared_prefix_digits(key, node_id)
        return self.rows_s[digits] if digits < len(self.rows_s) else self.last_s


def _mean(values: Iterable[float], otherwise: float) -> float:
    known = list(values)
    return sum(known) / len(known) if known else otherwise
