"""Where the centre of new bounds is to be: at the last value, or at the level of the value in the long run. Pure.

A value that comes back to its level leaves bounds around the level less often; one that drifts, such as a mean over an
hour, those around its last value. Which of them a measurement is, it shows itself: both are tried on every value, with
bounds that nobody holds, and the one counts that was broken less often of late.

Updates as a share of samples on the 11 CPU series of NAB, with a half-width of 0.5 standard deviations, at the last
value / at the level / as chosen here: 0.252 / 0.159 / 0.165; of their means over an hour 0.030 / 0.041 / 0.031. What
did not help: to predict the value by its slope (0.374), and to make bounds wider when they are broken and narrower
while they are not, with the same width in the mean (0.173 to 0.204).
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from protocols.measurement.guarantee.interval import Interval, around

LEVEL_GAIN: Final = 0.05
"""The share of a new value in the level, which so forgets within some 20 samples. It hardly matters: from 0.02 to 0.5
updates on the same series go from 0.158 of the samples to 0.163."""
SPREAD_GAIN: Final = 0.01
"""The share of a new value in the variance."""
TRIED_WIDTH: Final = 0.5
"""Half the width of the bounds that are tried, in standard deviations."""
FORGET: Final = 0.998
"""What an update counts after one more sample."""
CLEARLY: Final = 1.0
"""So many updates fewer, and the other way is taken."""


class Centre:
    """The values of one measurement."""

    __slots__ = ("_by_level", "_by_value", "_is_at_level", "_level", "_value", "_variance")

    def __init__(self, value: float) -> None:
        self._value = self._level = value
        self._variance = 0.0
        self._by_level, self._by_value = _Tried(value), _Tried(value)
        self._is_at_level = True

    def add(self, value: float) -> None:
        """The next value."""
        change = value - self._level
        self._value = value
        self._level += LEVEL_GAIN * change
        self._variance += SPREAD_GAIN * (change * change - self._variance)
        half_width = TRIED_WIDTH * sqrt(self._variance)
        self._by_level.add(value, self._level, half_width)
        self._by_value.add(value, value, half_width)
        lead = self._by_value.updates - self._by_level.updates
        if abs(lead) > CLEARLY:
            self._is_at_level = lead > 0

    @property
    def place(self) -> float:
        """Where the centre is to be."""
        return self._level if self._is_at_level else self._value


class _Tried:
    """Bounds that nobody holds, and how often they had to be moved of late."""

    __slots__ = ("interval", "updates")

    def __init__(self, value: float) -> None:
        self.interval = Interval(value, value)
        self.updates = 0.0

    def add(self, value: float, level: float, half_width: float) -> None:
        self.updates *= FORGET
        if not self.interval.holds(value):
            self.interval = around(Interval(value, value), level, half_width)
            self.updates += 1.0
