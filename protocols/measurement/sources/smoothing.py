"""Mean and deviation of a measurement over a time, while its samples come, in bounded memory. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import floor, sqrt
from typing import Final

BUCKETS: Final = 60
"""A window is so many equal parts of time."""


@dataclass(slots=True)
class _Bucket:
    """The samples of one part of time. ``squares``: of their distances from their mean, summed."""

    number: int
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def merge(self, count: int, mean: float, squares: float) -> None:
        """Add samples of which this is known (Chan, Golub and LeVeque 1983): no difference of large sums is taken."""
        apart, all_count = mean - self.mean, self.count + count
        self.mean += apart * count / all_count
        self.squares += squares + apart * apart * self.count * count / all_count
        self.count = all_count


class Smoothing:
    """The measurement ``name`` is the mean, or the standard deviation, of the samples of ``of`` in the window.

    Exact for the samples of the last 60 parts of time, the one that is going on included: so the window is between 59
    and 60 sixtieths of what it is called. Each sample counts the same. The deviation is that of these samples
    themselves (divided by their number); of one sample it is 0.
    """

    def __init__(self, name: str, of: str, window_s: float, *, is_deviation: bool = False) -> None:
        self.name, self.of = name, of
        self._width_s, self._is_deviation = window_s / BUCKETS, is_deviation
        self._buckets: deque[_Bucket] = deque()

    def add(self, value: float, at_s: float) -> float:
        """Take the next sample; return what is asked for of all in the window. Times that go back count as the last."""
        buckets, number = self._buckets, floor(at_s / self._width_s)
        if not buckets or buckets[-1].number < number:
            buckets.append(_Bucket(number))
        buckets[-1].merge(1, value, 0.0)
        while buckets[0].number <= buckets[-1].number - BUCKETS:
            buckets.popleft()
        whole = _Bucket(number)
        for bucket in buckets:
            whole.merge(bucket.count, bucket.mean, bucket.squares)
        return sqrt(whole.squares / whole.count) if self._is_deviation else whole.mean
