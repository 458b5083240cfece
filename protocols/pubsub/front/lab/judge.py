"""Which subscriptions match which events, worked out apart from the filter language and the indexes of the protocol."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from protocols.pubsub.front.workload import Ranges


def matches(ranges: Ranges, values: Mapping[str, float]) -> bool:
    """Whether each value lies within its range."""
    return all(low <= values[name] <= high for name, (low, high) in ranges.items())


class MatchFinder:
    """Finds the events that a subscription matches: those with the rarest of its ranges, compared one by one."""

    def __init__(self, events: Sequence[Mapping[str, float]]) -> None:
        """All events have the same attributes."""
        self._events = events
        self._sorted = {
            name: sorted((values[name], index) for index, values in enumerate(events))
            for name in (events[0] if events else ())
        }

    def of(self, ranges: Ranges) -> list[int]:
        """The indexes of the events that match, in order."""
        if not self._events:
            return []
        rarest = min((self._within(name, *ends) for name, ends in ranges.items()), key=len)
        return sorted(index for _, index in rarest if matches(ranges, self._events[index]))

    def _within(self, name: str, low: float, high: float) -> Sequence[tuple[float, int]]:
        ordered = self._sorted[name]
        return ordered[bisect_left(ordered, (low, -1)) : bisect_right(ordered, (high, len(ordered)))]
