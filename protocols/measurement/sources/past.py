"""The last samples of each measurement, for questions about times that are over. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

SAMPLES_MAX: Final = 720
"""Samples of one measurement: an hour of one every five seconds. Each takes 32 bytes."""
PAST_NAMES_MAX: Final = 512
"""Measurements; with `SAMPLES_MAX` samples each they take 12 MiB."""


class PastSamples:
    """Bounded in samples of a measurement, and in measurements: for a new one, the one that was silent longest goes."""

    def __init__(self, samples_max: int = SAMPLES_MAX, names_max: int = PAST_NAMES_MAX) -> None:
        self._samples_max, self._names_max = samples_max, names_max
        self._samples: dict[str, tuple[array[float], array[float], array[int], array[float]]] = {}
        """Times, values, numbers, times by a clock that does not jump. The name that was silent longest is first."""

    def add(self, name: str, at_s: float, value: float, number: int = 0, now: float = 0.0) -> None:
        """Remember a sample, and its number in this boot. One that is older than the last of its name is not taken."""
        none = (array("d"), array("d"), array("Q"), array("d"))
        times, values, numbers, clock = self._samples.pop(name, none)
        if len(self._samples) >= self._names_max:
            del self._samples[next(iter(self._samples))]
        self._samples[name] = times, values, numbers, clock
        if times and at_s < times[-1]:
            return
        times.append(at_s)
        values.append(value)
        numbers.append(number)
        clock.append(now)
        if len(times) > self._samples_max:  # a few kilobytes move, which is quicker than to reckon with places
            del times[0], values[0], numbers[0], clock[0]

    def range(self, name: str, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """Times and values of what is remembered from ``start_s`` to ``end_s``, both included, in order."""
        times, values, _, _ = self._samples.get(name, ((), (), (), ()))
        first, last = bisect_left(times, start_s), bisect_right(times, end_s)
        return list(zip(times[first:last], values[first:last], strict=True))

    def last(self, name: str, count: int) -> list[tuple[float, float]]:
        """Times and values of the last samples, so many at most, in order."""
        times, values, _, _ = self._samples.get(name, ((), (), (), ()))
        return list(zip(times[-count:], values[-count:], strict=True))

    def numbered(self, name: str) -> list[tuple[int, float, float]]:
        """Numbers, times by the clock that does not jump, and values of all that have a number, in order."""
        _, values, numbers, clock = self._samples.get(name, ((), (), (), ()))
        return [each for each in zip(numbers, clock, values, strict=True) if each[0]]
