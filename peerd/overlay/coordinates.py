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

ORIGIN: Final = Coordinate(0.0, 0.0, 0.0, HEIGHT_MIN_MS, ERROR_MAX)


class Vivaldi:
    """The coordinate of this node; `current` is what goes into messages."""

    __slots__ = ("_random", "current", "samples")

    def __init__(self, rng: Rng) -> None:
        self._random: Callable[[float, float], float] = rng.uniform
        self.current = ORIGIN
        self.samples = 0

    def observe(self, rtt_s: float, other: Coordinate) -> None:
        """One measured round trip to a node at ``other``."""
        if not 0.0 < rtt_s <= RTT_MAX_S:
            return
        own, rtt_ms = self.current, rtt_s * 1000.0
        predicted_ms = own.rtt_s(other) * 1000.0
        weight = own.error / (own.error + other.error) if own.error + other.error > 0 else 0.5
        sample_error = abs(predicted_ms - rtt_ms) / max(rtt_ms, NEAR_MS)
        error = sample_error * _GAIN * weight + own.error * (1.0 - _GAIN * weight)
        pull_ms = max(-_PULL_MAX_MS, min(_PULL_MAX_MS, _GAIN * weight * (rtt_ms - predicted_ms)))
        self.current = self._moved(other, pull_ms, min(ERROR_MAX, max(ERROR_MIN, error)))
        self.samples += 1

    def _moved(self, other: Coordinate, pull_ms: float, error: float) -> Coordinate:
        """Away from ``other`` by ``pull_ms`` (towards it, when negative), in the plane and in height."""
        own = self.current
        dx, dy, dz = own.x - other.x, own.y - other.y, own.z - other.z
        plane = math.sqrt(dx * dx + dy * dy + dz * dz)
        heights = own.height + other.height
        if plane < 1e-3:  # at one place: any direction will do
            dx, dy, dz = (self._random(-1.0, 1.0) for _ in range(DIMENSIONS))
            plane = math.sqrt(dx * dx + dy * dy + dz * dz) or 1.0
            share = 1.0 / plane
        else:
            share = 1.0 / (plane + heights)
        height = max(HEIGHT_MIN_MS, own.height + pull_ms * own.height / (plane + heights))
        return Coordinate(
            _bounded(own.x + pull_ms * dx * share),
            _bounded(own.y + pull_ms * dy * share),
            _bounded(own.z + pull_ms * dz * share),
            min(POSITION_MAX_MS, height),
            error,
        )


def _bounded(position_ms: float) -> float:
    return max(-POSITION_MAX_MS, min(POSITION_MAX_MS, position_ms))
