"""How long a bit travels from one node to another: one fixed one-way delay for each pair, seconds.

Models know nodes by index. The delay of a pair never changes during a run (jitter is the network's), so that proximity
means something and a measured RTT can be compared with the truth. Here are the models that are a formula; those that
come from a file or a graph are in `peerd.sim.topology.sites` and `peerd.sim.topology.graph`.
"""

from __future__ import annotations

import math
from typing import Protocol

from peerd.sim.rng import fork


class LatencyModel(Protocol):
    """A function of two node indices. Each link calls it once, so it may take some microseconds."""

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
    On a torus opposite sides touch, no node is at an edge, and the mean is 0.38 of the side, the largest 0.71.
    """

    def __init__(self, seed: int, side_s: float = 0.08, minimum_s: float = 0.001, *, is_torus: bool = False) -> None:
        self._seed = seed
        self._side_s = side_s
        self._minimum_s = minimum_s
        self._is_torus = is_torus
        self._points: dict[int, tuple[float, float]] = {}

    def point(self, index: int) -> tuple[float, float]:
        """Return the position of a node."""
        point = self._points.get(index)
        if point is None:
            generator = fork(self._seed, "coordinates", index)
            point = self._points[index] = (generator.random() * self._side_s, generator.random() * self._side_s)
        return point

    def latency_s(self, source: int, target: int) -> float:
        """Minimum plus straight-line distance, the shortest way round on a torus."""
        points = self._points
        a, b = points.get(source) or self.point(source), points.get(target) or self.point(target)
        if not self._is_torus:
            return self._minimum_s + math.dist(a, b)
        across, along = abs(a[0] - b[0]), abs(a[1] - b[1])
        side_s = self._side_s
        return self._minimum_s + math.hypot(min(across, side_s - across), min(along, side_s - along))


class SphereLatency:
    """Nodes at random points of a sphere; delay is a minimum plus the great-circle distance.

    ``half_turn_s`` is the one-way delay between opposite points. The mean distance is half of it.
    """

    def __init__(self, seed: int, half_turn_s: float = 0.1, minimum_s: float = 0.001) -> None:
        self._seed = seed
        self._half_turn_s = half_turn_s
        self._minimum_s = minimum_s
        self._points: dict[int, tuple[float, float, float]] = {}

    def point(self, index: int) -> tuple[float, float, float]:
        """Where a node is: a unit vector, uniform on the sphere (Archimedes: uniform height and longitude)."""
        point = self._points.get(index)
        if point is None:
            generator = fork(self._seed, "coordinates", index)
            height = 2.0 * generator.random() - 1.0
            longitude = 2.0 * math.pi * generator.random()
            radius = math.sqrt(1.0 - height * height)
            point = self._points[index] = (radius * math.cos(longitude), radius * math.sin(longitude), height)
        return point

    def latency_s(self, source: int, target: int) -> float:
        """Minimum plus great-circle distance."""
        # computed from the chord, which is exact for near points too, unlike the arc cosine of a product
        chord = math.dist(self.point(source), self.point(target))
        return self._minimum_s + self._half_turn_s * 2.0 * math.asin(min(chord / 2.0, 1.0)) / math.pi
