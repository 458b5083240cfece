"""How often bounds of some width around a value would be broken, which is what a cache costs (section 4.2.5). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocols.measurement.guarantee.interval import Interval, around

SAMPLES: Final = 128
"""The last ones, from which a rate is reckoned."""


def updates_s(samples: Sequence[tuple[float, float]], half_width: float) -> float:
    """Updates a second that a holder of such bounds would have had during these samples: times and values, in order."""
    if len(samples) < 2:
        return 0.0
    updates, bounds = 0, Interval(samples[0][1], samples[0][1])
    for number, (_, value) in enumerate(samples):
        if number == 0 or not bounds.holds(value):
            bounds = around(Interval(value, value), value, half_width)
            updates += number > 0
    return updates / max(1e-3, samples[-1][0] - samples[0][0])
