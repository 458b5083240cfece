"""What is known of an aggregate over some nodes, and how those of several groups of nodes make one. Pure.

A *partial* aggregate is the interval in which the aggregate of the ``counted`` nodes lies. What it guarantees: for each
counted node there is a moment no older than the age, so that the aggregate of the values that these nodes had read at
their moments is in the interval. These are not one moment: two values that change at nearly the same time may be told
in either order. No node is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, inf
from typing import Final

from peerd.frozen import Frozen
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval

FUNCTIONS: Final = ("SUM", "MEAN", "COUNT", "MIN", "MAX")
"""Their places are what travels: ONLY APPEND. A mean is a sum until it is shown, a count is a sum of ones."""
COUNT_MAX: Final = (1 << 32) - 1
"""Nodes that a word can count; more are told as that, since only nodes that nobody has are so many."""
EXTREMES: Final = frozenset({"MIN", "MAX"})


class PartialAggregate(Frozen):
    """Of ``expected`` nodes, that are known to belong to the region, so many are ``counted``.

    ``interval``: ``None`` where the aggregate is of no value at all. ``basis``: by the clock of who has it; each value
    in it was so at some moment that is no earlier. Infinite: there is nothing in it that could grow old.
    """

    interval: Interval | None
    counted: int
    expected: int
    basis: float

    def contains(self, other: PartialAggregate) -> bool:
        """Whether what this one says is still true when the other one is."""
        if (self.counted, self.expected) != (other.counted, other.expected):
            return False
        if self.interval is None or other.interval is None:
            return self.interval is other.interval
        return self.interval.contains(other.interval)


NOTHING: Final = PartialAggregate(None, 0, 0, inf)
"""Of no node."""


def merged(function: str, parts: Iterable[PartialAggregate]) -> PartialAggregate:
    """The aggregate of all these nodes together; as old as the oldest of them.

    A sum beyond `VALUE_MAX` is told as that: only values that nobody measures come there.
    """
    of = list(parts)
    intervals = [each.interval for each in of if each.interval is not None]
    interval = None
    if intervals:
        take = {"MIN": min, "MAX": max}.get(function, fsum)
        low, high = take(each.low for each in intervals), take(each.high for each in intervals)
        interval = Interval(max(-VALUE_MAX, min(low, VALUE_MAX)), max(-VALUE_MAX, min(high, VALUE_MAX)))
    counted = min(COUNT_MAX, sum(each.counted for each in of))
    expected = min(COUNT_MAX, sum(each.expected for each in of))
    return PartialAggregate(interval, counted, expected, min((each.basis for each in of), default=inf))


def of_one(function: str, value: float | None, certainty: bool | None, basis: float) -> PartialAggregate:
    """The aggregate of one node, whose condition holds, does not, or may hold (``None``).

    ``value``: ``None`` where the source does not answer. What is not known is not counted, unless bounds can be told
    all the same: where nobody can tell whether a condition holds, a count lies between none and one.
    """
    ones = {True: Interval(1, 1), False: Interval(0, 0), None: Interval(0, 1)}
    if function == "COUNT":
        return PartialAggregate(ones[certainty], 1, 1, basis)
    if certainty is False:
        return PartialAggregate(None if function in EXTREMES else ones[False], 1, 1, basis)
    if value is None or (certainty is None and function in EXTREMES):
        return PartialAggregate(None, 0, 1, basis)
    low, high = (value, value) if certainty else (min(0.0, value), max(0.0, value))
    return PartialAggregate(Interval(low, high), 1, 1, basis)


def shown(function: str, partial: PartialAggregate) -> Interval | None:
    """What to tell of it: of a mean, the sum by the number of nodes. Its condition is about what is exact, such as
    tags, so that all counted nodes belong to it."""
    interval = partial.interval
    if interval is None or function != "MEAN":
        return interval
    return Interval(interval.low / partial.counted, interval.high / partial.counted)
