"""The clocks of one simulated machine: a monotonic one that may drift, and a time of day that may be anything."""

from __future__ import annotations

from typing import Final

WALL_TIME_START_S: Final = 1_767_225_600.0
"""2026-01-01T00:00:00Z: where the virtual wall clock starts."""
DRIFT_MAX: Final = 1e-4
"""A crystal is rarely off by more than 100 parts in a million."""


class SimClock:
    """The clock of one machine; it is right until it is set wrong. ``now`` is always the true virtual time, seconds."""

    __slots__ = ("_at", "_rate", "_since", "offset_s", "strobe_period_s", "strobe_s")

    def __init__(self) -> None:
        self._since = 0.0
        self._at = 0.0
        self._rate = 1.0
        self.offset_s = 0.0
        """By how many seconds the time of day is ahead."""
        self.strobe_s = 0.0
        """In addition, by how many seconds it is ahead and behind by turns."""
        self.strobe_period_s = 0.0

    def set_drift(self, now: float, drift: float) -> None:
        """From now on one of its seconds takes ``1 / (1 + drift)`` true ones. The monotonic clock does not jump."""
        self._since, self._at = now, self.monotonic(now)
        self._rate = 1.0 + drift

    def monotonic(self, now: float) -> float:
        """Return the machine's monotonic time: the seconds since the simulation began, as it counts them."""
        return self._at + (now - self._since) * self._rate

    def true_s(self, delay_s: float) -> float:
        """Return how long a delay by this clock takes in true virtual time."""
        return delay_s / self._rate

    def wall(self, now: float) -> float:
        """Return the time of day by the machine's clock, Unix seconds."""
        strobe_s = 0.0
        if self.strobe_period_s > 0:
            strobe_s = self.strobe_s if now // self.strobe_period_s % 2 == 0 else -self.strobe_s
        return WALL_TIME_START_S + self.monotonic(now) + self.offset_s + strobe_s
