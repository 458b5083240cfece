"""How long a bit travels from one node to another: one fixed one-way delay for each pair, seconds.

Models know nodes by index. The delay of a pair never changes during a run (jitter is the network's), so that proximity
means something and a measured RTT can be compared with the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from peerd.errors import ConfigError
from peerd.sim.rng import fork


class LatencyModel(Protocol):
    """A function of two node indices."""

    def latency_s(self, source: int, target: int) -> float:
        """One-way delay, seconds, at least 0; the same whenever it is asked."""


class ConstantLatency:
    """Every pair is equally far apart."""

    def __init__(self, latency_s: float = 0.02) -> None:
        self._latency_s = latency_s

    def latency_s(self, source: int, target: int) -> float:
        """The constant."""
        return self._latency_s


class EuclideanLatency:
    """Nodes at random points of a square; delay is a minimum plus the distance.

    ``side_s`` is the side of the square as a one-way delay: the mean distance is about 0.52 of it, the largest 1.41.
    """

    def __init__(self, seed: int, side_s: float = 0.08, minimum_s: float = 0.001) -> None:
        self._seed = seed
        self._side_s = side_s
        self._minimum_s = minimum_s
        self._points: dict[int, tuple[float, float]] = {}

    def point(self, index: int) -> tuple[float, float]:
        """Where a node is."""
        point = self._points.get(index)
        if point is None:
            generator = fork(self._seed, "coordinates", index)
            point = self._points[index] = (generator.random() * self._side_s, generator.random() * self._side_s)
        return point

    def latency_s(self, source: int, target: int) -> float:
        """Minimum plus straight-line distance."""
        return self._minimum_s + math.dist(self.point(source), self.point(target))


class MatrixLatency:
    """Measured delays between sites; node ``i`` is at site ``i mod sites``.

    ``rows[a][b]`` is the one-way delay from site a to site b, seconds. Raises `ConfigError` unless the matrix is
    square, finite and not negative. Two nodes of one site are at least ``local_s`` apart.
    """

    def __init__(self, rows: Sequence[Sequence[float]], local_s: float = 0.0005) -> None:
        size = len(rows)
        if size == 0 or any(len(row) != size for row in rows):
            raise ConfigError("a latency matrix must be square and not empty", key="network.matrix_s")
        if any(not math.isfinite(value) or value < 0 for row in rows for value in row):
            raise ConfigError("a latency must be a number of seconds, 0 or more", key="network.matrix_s")
        self._rows = [list(row) for row in rows]
        self._local_s = local_s

    def latency_s(self, source: int, target: int) -> float:
        """The delay between the two nodes' sites."""
        size = len(self._rows)
        a, b = source % size, target % size
        return max(self._rows[a][b], self._local_s) if a == b else self._rows[a][b]
