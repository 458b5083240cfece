"""Aggregates of rows of whose values only bounds are known, as intervals that contain the true aggregate. Pure.

Rows of T? may or may not belong, so they widen the interval: ``COUNT(*)`` lies between |T+| and |T+| + |T?|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import Final, TypeAlias

from protocols.measurement.guarantee.interval import Interval

Intervals: TypeAlias = Sequence[Interval]


def aggregate(
    function: str, sure: Intervals, maybe: Intervals, likely: Sequence[float]
) -> tuple[float, Interval] | None:
    """An estimate and bounds of COUNT, SUM, MEAN, MIN or MAX; ``None``, as in SQL, if it is of no value at all.

    ``sure`` and ``maybe`` are bounds of rows of T+ and T?; the estimate is of the ``likely`` values. A count is the sum
    of ones.
    """
    if not sure and not maybe:
        return (0, Interval(0, 0)) if function == "COUNT" else None
    bounds = _FUNCTIONS[function](sure, maybe)
    middle = _FUNCTIONS[function]([Interval(value, value) for value in likely], []).low if likely else bounds.low
    return min(max(middle, bounds.low), bounds.high), bounds


def _sum(sure: Intervals, maybe: Intervals) -> Interval:
    low = fsum([*(each.low for each in sure), *(min(0, each.low) for each in maybe)])
    return Interval(low, fsum([*(each.high for each in sure), *(max(0, each.high) for each in maybe)]))


def _negated(intervals: Intervals) -> Intervals:
    return [Interval(-each.high, -each.low) for each in intervals]


def _mean(sure: Intervals, maybe: Intervals) -> Interval:
    return Interval(-_greatest_mean(_negated(sure), _negated(maybe)), _greatest_mean(sure, maybe))


def _greatest_mean(sure: Intervals, maybe: Intervals) -> float:
    """The greatest mean: those that may belong do if they lie above it."""
    taken = [each.high for each in sure]
    for value in sorted((each.high for each in maybe), reverse=True):
        if taken and value <= fsum(taken) / len(taken):
            break
        taken.append(value)
    return fsum(taken) / len(taken)


def _max(sure: Intervals, maybe: Intervals) -> Interval:
    lows = [each.low for each in sure]
    return Interval(max(lows) if lows else min(each.low for each in maybe), max(each.high for each in (*sure, *maybe)))


def _min(sure: Intervals, maybe: Intervals) -> Interval:
    return _negated([_max(_negated(sure), _negated(maybe))])[0]


_FUNCTIONS: Final[dict[str, Callable[[Intervals, Intervals], Interval]]] = {
    "COUNT": _sum,
    "SUM": _sum,
    "MEAN": _mean,
    "MIN": _min,
    "MAX": _max,
}
