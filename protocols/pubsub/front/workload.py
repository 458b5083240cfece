"""The thesis's data: schema, events and subscriptions drawn as in tables 4.2 and 4.3 (Li 2008, section 4.1.2).

A domain is cut into sub-ranges of one size, which are popular by Zipf's law. An event takes a value from one of them
for each attribute. A subscription names each attribute with some probability; its range begins at such a value, and its
length is Zipf-distributed, too, up to a share of the domain. Two things the thesis leaves open: we deal the ranks out
to the sub-ranges at random (from a fixed seed), and lengths are `LENGTHS` steps up to the bound, short ones most
popular.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, Final

LENGTHS: Final = 100
RANKS_SEED: Final = 2008
Ranges = Mapping[str, tuple[float, float]]
"""By attribute: the least and the greatest value that match."""
CROWD: Final[Ranges] = {"attr1": (5000.0, 5001.0)}
"""What a crowd subscribes to: one point, at which no leaf can be split."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One row of tables 4.2 and 4.3."""

    name: str
    low: float
    high: float
    present: float
    """The chance that a subscription names the attribute."""
    popularity_skew: float
    subrange: float
    length_skew: float
    length_max: float
    """Share of the domain."""


THESIS: Final = (
    Drawn("attr1", 0.0, 10_000.0, 0.5, 0.6, 100.0, 0.8, 0.5),
    Drawn("attr2", -10_000.0, 10_000.0, 0.5, 0.5, 20.0, 0.6, 0.4),
    Drawn("attr3", 0.0, 3_000.0, 0.5, 0.4, 10.0, 0.5, 0.3),
    Drawn("attr4", 0.0, 200.0, 0.5, 0.3, 1.0, 0.4, 0.2),
)


class Zipf:
    """Ranks from 0 up to, not including, ``count``; rank k has the weight 1 / (k + 1) ** skew."""

    def __init__(self, count: int, skew: float) -> None:
        self._sums = list(accumulate((rank + 1) ** -skew for rank in range(count)))

    def draw(self, rng: Random) -> int:
        return min(bisect_left(self._sums, rng.random() * self._sums[-1]), len(self._sums) - 1)


class ThesisWorkload:
    """Draws events and subscriptions.

    ``focus``: all events lie in this part of each domain, from its middle on. ``crowd``: the share of subscriptions
    that are all the same, and of events that match these.
    """

    def __init__(self, rng: Random, schema: str = "thesis", focus: float | None = None, crowd: float = 0.0) -> None:
        self.schema = schema
        self._rng = rng
        self._focus, self._crowd = focus, crowd
        dealt = Random(RANKS_SEED)
        self._places: dict[str, tuple[Zipf, list[int], Zipf]] = {}
        for drawn in THESIS:
            count = round((drawn.high - drawn.low) / drawn.subrange)
            order = list(range(count))
            dealt.shuffle(order)
            popularity, lengths = Zipf(count, drawn.popularity_skew), Zipf(LENGTHS, drawn.length_skew)
            self._places[drawn.name] = popularity, order, lengths

    def document(self, **more: Any) -> dict[str, Any]:
        """The schema, as it is declared."""
        attributes = [{"name": each.name, "type": "float", "low": each.low, "high": each.high} for each in THESIS]
        return {"name": self.schema, "attributes": attributes, **more}

    def event(self) -> dict[str, float]:
        """The values of one event, all attributes."""
        values = {drawn.name: self._value(drawn) for drawn in THESIS}
        if self._is_of_crowd():
            values |= {name: (low + high) / 2 for name, (low, high) in CROWD.items()}
        return values

    def subscription(self) -> str:
        """The filter of one subscription; it names one attribute at least."""
        return filter_of(self.ranges())

    def ranges(self) -> Ranges:
        """The ranges of one subscription; it names one attribute at least."""
        if self._is_of_crowd():
            return CROWD
        while True:
            ranges = {drawn.name: self._range(drawn) for drawn in THESIS if self._rng.random() < drawn.present}
            if ranges:
                return ranges

    def _is_of_crowd(self) -> bool:
        return self._crowd > 0 and self._rng.random() < self._crowd

    def concentrate(self, focus: float | None) -> None:
        """From now on all events lie in this part of each domain, from its middle on; ``None``: wherever they like."""
        self._focus = focus

    def _value(self, drawn: Drawn, spread: bool = False) -> float:
        if self._focus is not None and not spread:
            middle = (drawn.low + drawn.high) / 2
            return middle + self._rng.random() * self._focus * (drawn.high - drawn.low)
        popularity, order, _ = self._places[drawn.name]
        return drawn.low + (order[popularity.draw(self._rng)] + self._rng.random()) * drawn.subrange

    def _range(self, drawn: Drawn) -> tuple[float, float]:
        _, _, lengths = self._places[drawn.name]
        step = drawn.length_max * (drawn.high - drawn.low) / LENGTHS
        low = self._value(drawn, spread=True)
        high = min(drawn.high, low + (lengths.draw(self._rng) + self._rng.random()) * step)
        return low, high


def filter_of(ranges: Ranges) -> str:
    """The text of a filter for these ranges, whose ends belong to them."""
    return " AND ".join(f"{name} BETWEEN {low!r} AND {high!r}" for name, (low, high) in ranges.items())
