"""Estimates how much of a stream a filter lets through, from histograms of the attributes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from math import inf, prod
from typing import Any, Final

from peerd.frozen import Frozen
from peerd.lib.filter.meaning import Fits, Presence, Test, Within
from peerd.lib.filter.normal import Conjunct, normal_form
from peerd.lib.filter.patterns import PatternKind
from peerd.lib.filter.ranges import Cut
from peerd.lib.filter.tree import Node
from peerd.lib.filter.values import STRICT, Key, View

BUCKETS_DEFAULT: Final = 64
GUESSES: Final[Mapping[PatternKind, float]] = {
    PatternKind.CONTAINS: 0.1,
    PatternKind.LIKE: 0.1,
    PatternKind.MATCHES: 0.1,
}
"""The assumed share of texts that fit a pattern, as nobody can know it without trying."""
RANGE_GUESS: Final = 1 / 3
"""The assumed share of events in a range of an attribute that has no histogram."""
POINT_GUESS: Final = 0.01
"""The assumed share of events with one value of an attribute that has no histogram."""


class Histogram(Frozen):
    """Equally many values between any two neighbouring edges; a value that is frequent is an edge several times."""

    view: View
    edges: tuple[Key, ...]
    present: float
    """The share of events in which the attribute can be read through the view."""
    distinct: int
    """The number of different values that were seen."""

    @staticmethod
    def of(values: Iterable[Any], view: View = View.NUMBER, buckets: int = BUCKETS_DEFAULT) -> Histogram:
        """Make a histogram of an attribute's values in a sample of events (``None`` where it is missing)."""
        total, keys = 0, []
        for value in values:
            total += 1
            if value is not None and (key := STRICT[view](value)) is not None:
                keys.append(key)
        keys.sort()
        buckets = max(1, min(buckets, len(keys) - 1))
        edges = tuple(keys[(len(keys) - 1) * edge // buckets] for edge in range(buckets + 1)) if keys else ()
        return Histogram(view, edges, len(keys) / total if total else 0.0, len(set(keys)))

    def share(self, test: Within) -> float:
        """The share of all events for which the test is true, as far as the histogram can tell; 0 to 1."""
        if not self.edges:
            return 0.0
        share = 0.0
        for low, high in test.ranges.intervals():
            between = self._below(high, 1.0) - self._below(low, 0.0)
            # A single value between two edges has no width, but events may well have that value.
            share += max(between, 0.5 / max(1, self.distinct)) if self._touches(low, high) else 0.0
        return self.present * min(1.0, share)

    def _touches(self, low: Cut | None, high: Cut | None) -> bool:
        return (low is None or low <= (self.edges[-1], 0)) and (high is None or high > (self.edges[0], 0))

    def _below(self, cut: Cut | None, unbounded: float) -> float:
        """The share of the values that lie before a cut."""
        if cut is None:
            return unbounded
        key, after = cut
        buckets = max(1, len(self.edges) - 1)
        index = bisect_right(self.edges, key) if after else bisect_left(self.edges, key)
        if index == 0:
            return 0.0
        if index == len(self.edges):
            return 1.0
        low, high = self.edges[index - 1], self.edges[index]
        if isinstance(key, str) or low == high:
            part = 0.5 if key != low else 0.0
        else:
            part = _part(key, low, high)
        return (index - 1 + part) / buckets


def _part(key: Key, low: Key, high: Key) -> float:
    """Return how far the key lies between two edges, from 0 to 1; the middle where doubles cannot tell."""
    try:
        start, end = float(low), float(high)
        return (float(key) - start) / (end - start) if start < end and end - start < inf else 0.5
    except OverflowError:
        return 0.5


def selectivity(node: Node, histograms: Mapping[str, Histogram]) -> float:
    """The share of events that match, from 0 to 1: attributes are taken as independent, alternatives, too.

    Raises `FilterTooLarge` as `normal_form` does.
    """
    missed = prod(1.0 - _conjunct(conjunct, histograms) for conjunct in normal_form(node).conjuncts)
    return 1.0 - missed


def _conjunct(conjunct: Conjunct, histograms: Mapping[str, Histogram]) -> float:
    return prod((_test(test, histograms.get(test.name)) for test in conjunct.tests), start=1.0)


def _test(test: Test, histogram: Histogram | None) -> float:
    present = 1.0 if histogram is None else histogram.present
    if isinstance(test, Presence):
        return present if test.present else 1.0 - present
    if isinstance(test, Fits):
        guess = GUESSES[test.pattern.kind]
        return present * (1.0 - guess if test.negated else guess)
    if histogram is not None and histogram.view is test.view:
        return histogram.share(test)
    points, excluded = test.ranges.points(test.view), (~test.ranges).points(test.view)
    if points is not None:
        return present * min(1.0, POINT_GUESS * len(points))
    return present * (max(0.0, 1.0 - POINT_GUESS * len(excluded)) if excluded is not None else RANGE_GUESS)
