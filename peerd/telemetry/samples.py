"""The values of metrics, as they are counted and as they are shown."""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeAlias


class Distribution:
    """The observations of one histogram: how many fell into each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """By the upper bound of the bucket, which belongs to it; the last has none."""
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


Labels: TypeAlias = tuple[str, ...]
"""The values of a metric's labels, in the order in which it declares them."""
Sample: TypeAlias = tuple[Labels, "float | Distribution"]
