"""Network coordinates, which predict the round trip to a peer without a message to it. Pure state.

Vivaldi (Dabek, Cox, Kaashoek and Morris 2004, section 3) in three dimensions with a height, which stands for the access
link. Positions are milliseconds, so that a coordinate is readable; each node moves its own by a fraction of the error
of every round trip that it measures anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from peerd.api import POSITION_MAX_MS as POSITION_MAX_MS, Coordinate as Coordinate, Rng

DIMENSIONS: Final = 3
ERROR_MAX: Final = 1.5
ERROR_MIN: Final = 0.01
HEIGHT_MIN_MS: Final = 0.05
RTT_MAX_S: Final = 30.0

NEAR_MS: Final = 10.0
"""Below this round trip an error counts as if it were of this one: two nodes in one room are 1 ms apart, and to predict
5 ms there is no error of 400 %."""

_GAIN: Final = 0.25
"""Both c_c and c_e of the paper."""
_PULL_MAX_MS: Final = 250.0
"""How far one sample may move a node: false ones, or those taken through a full queue, must not move it far."""
_AT_ONE_PLACE_MS: Final = 1e-3

ORIGIN: Final = Coordinate(0.0, 0.0, 0.0, HEIGHT_MIN_MS, ERROR_MAX)


class Vivaldi:
    """The coordinate of this node; `current` is what goes into messages."""

    __slots__ = ("_current", "_error", "_height", "_random", "_x", "_y", "_z", "samples")

    def __init__(self, rng: Rng) -> None:
        self._random: Callable[[float, float], float] = rng.uniform
        self._x, self._y, self._z = ORIGIN.x, ORIGIN.y, ORIGIN.z
        self._height, self._error = ORIGIN.height, ORIGIN.error
        self._current: Coordinate | None = ORIGIN
        self.samples = 0

    @property
    def current(self) -> Coordinate:
        """Where this node is, as far as it knows."""
        if self._current is None:
            self._current = Coordinate(self._x, self._y, self._z, self._height, self._error)
        return self._current

    def observe(self, rtt_s: float, other: Coordinate) -> None:
        """One measured round trip to a node at ``other``."""
        if not 0.0 < rtt_s <= RTT_MAX_S:
            return
        dx, dy, dz, rtt_ms = self._x - other.x, self._y - other.y, self._z - other.z, rtt_s * 1000.0
        plane = math.sqrt(dx * dx + dy * dy + dz * dz)
        distance = plane + self._height + other.height
        own_error = self._error
        weight = own_error / (own_error + other.error) if own_error + other.error > 0 else 0.5
        sample_error = abs(distance - rtt_ms) / max(rtt_ms, NEAR_MS)
        error = sample_error * _GAIN * weight + own_error * (1.0 - _GAIN * weight)
        self._error = min(ERROR_MAX, max(ERROR_MIN, error))
        self._move(max(-_PULL_MAX_MS, min(_PULL_MAX_MS, _GAIN * weight * (rtt_ms - distance))), (dx, dy, dz), distance)
        self._current = None
        self.samples += 1

    def _move(self, pull_ms: float, away: tuple[float, float, float], distance: float) -> None:
        """Away from the other node by ``pull_ms`` (towards it, when negative), in the plane and in height."""
        dx, dy, dz = away
        share = pull_ms / distance
        self._height = min(POSITION_MAX_MS, max(HEIGHT_MIN_MS, self._height * (1.0 + share)))
        if abs(dx) + abs(dy) + abs(dz) < _AT_ONE_PLACE_MS:  # any direction will do
            dx, dy, dz = (self._random(-1.0, 1.0) for _ in range(DIMENSIONS))
            share = pull_ms / (math.sqrt(dx * dx + dy * dy + dz * dz) or 1.0)
        self._x = _bounded(self._x + dx * share)
        self._y = _bounded(self._y + dy * share)
        self._z = _bounded(self._z + dz * share)


def _bounded(position_ms: float) -> float:
    if -POSITION_MAX_MS <= position_ms <= POSITION_MAX_MS:
        return position_ms
    return max(-POSITION_MAX_MS, min(POSITION_MAX_MS, position_ms))
