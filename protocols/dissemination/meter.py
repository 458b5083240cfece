"""What goes through one node of a stream, counted and as rates. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import exp
from operator import attrgetter, sub
from typing import Final

TAU_S: Final = 10.0
"""Rates are means that forget with this time constant."""


@dataclass(slots=True)
class StreamCounts:
    """What happened, since the node takes part or since some moment."""

    items_in: int = 0
    bytes_in: int = 0
    items_out: int = 0
    bytes_out: int = 0
    spurious: int = 0
    """Items that came, and that no subscription of this node wanted."""
    refused: int = 0
    """Nodes that were not taken as children."""
    late_ms: int = 0
    """How long after they were published the items came that subscriptions of this node wanted, all together, by the
    clocks of their producers and of this node: where these differ it may be negative."""
    held_ms: int = 0
    """How long subscriptions of this node held values of objects, all together; see `Freshness`."""
    outdated_ms: int = 0
    """For how much of that time these were out of date."""

    def minus(self, other: StreamCounts) -> StreamCounts:
        """What happened since the other counts were taken."""
        return StreamCounts(*map(sub, _numbers(self), _numbers(other)))

    def copy(self) -> StreamCounts:
        """As they are now."""
        return StreamCounts(*_numbers(self))


_NAMES: Final = tuple(each.name for each in fields(StreamCounts))
_numbers: Final[Callable[[StreamCounts], tuple[int, ...]]] = attrgetter(*_NAMES)
"""All of them, in the order in which they are declared: this runs four times a second in every stream."""


class StreamMeter:
    """Counts, and the rates of each of them a second."""

    def __init__(self, now: float) -> None:
        self.counts = StreamCounts()
        self._before = StreamCounts()
        self._at_s = now
        self.rates: dict[str, float] = dict.fromkeys(_NAMES, 0.0)

    def tick(self, now: float) -> None:
        """Time has passed."""
        passed_s = now - self._at_s
        if passed_s <= 0:
            return
        since, self._before, self._at_s = self.counts.minus(self._before), self.counts.copy(), now
        kept = exp(-passed_s / TAU_S)
        for (name, rate), count in zip(self.rates.items(), _numbers(since), strict=True):
            self.rates[name] = rate * kept + count / passed_s * (1 - kept)

    def figures(self) -> dict[str, float]:
        """What people see."""
        counts, rates = self.counts, self.rates
        wanted = counts.items_in - counts.spurious
        fidelity = {"fidelity": 1 - counts.outdated_ms / counts.held_ms} if counts.held_ms else {}
        return {
            "items_per_s": rates["items_in"],
            "bytes_per_s": rates["bytes_in"],
            "items_out_per_s": rates["items_out"],
            "bytes_out_per_s": rates["bytes_out"],
            "items_in": counts.items_in,
            "items_out": counts.items_out,
            "spurious_share": counts.spurious / counts.items_in if counts.items_in else 0.0,
            "late_s": max(0.0, counts.late_ms / 1000 / wanted) if wanted else 0.0,
            **fidelity,
        }
