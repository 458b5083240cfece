"""How often to probe routing-table entries: as rarely as the observed failures allow. Pure.

After MSPastry's self-tuning (Castro, Costa and Rowstron 2004, section 4.1). With failures of rate mu, an entry probed
every T seconds is dead when it is used with probability ``Pf(T) = 1 - (1 - exp(-T mu)) / (T mu)``; a route of h hops
uses h - 1 entries and one leaf-set member. The period is the longest that keeps the raw loss, before any re-routing, at
the target.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from peerd.ids import DIGIT_VALUES

FAILURES_KEPT: Final = 16
"""K in the paper: failures from which the rate is estimated."""
_BISECTIONS: Final = 32


class FailureRate:
    """Estimate of the failure rate of one node, 1/s, from the latest failures among the known peers."""

    __slots__ = ("_times",)

    def __init__(self, now: float) -> None:
        self._times: deque[float] = deque((now,), maxlen=FAILURES_KEPT)

    def note_failure(self, now: float) -> None:
        """A known peer failed, and only silence showed it: no goodbye, and no link that broke."""
        self._times.append(now)

    def per_second(self, now: float, known: int) -> float:
        """Failures a second of one of ``known`` peers. With few failures so far, as if one happened now: the rate of a
        young node is an upper bound."""
        span_s = now - self._times[0]
        failures = len(self._times) if len(self._times) < FAILURES_KEPT else FAILURES_KEPT - 1
        return failures / (max(1, known) * span_s) if span_s > 0 else 1.0


def dead_probability(period_s: float, rate: float) -> float:
    """That an entry probed every ``period_s`` is dead at a random time: ``Pf(T, mu)`` of the paper."""
    exposure = period_s * rate
    if exposure < 1e-6:
        return exposure / 2
    return 1.0 - -math.expm1(-exposure) / exposure


def table_hops(ring_size: float) -> float:
    """Expected hops through the routing table: those of a route, without the last one, which the leaf set makes."""
    hops = (DIGIT_VALUES - 1) / DIGIT_VALUES * math.log(max(ring_size, 1.0), DIGIT_VALUES)
    return max(0.0, hops - 1.0)


def probe_period_s(
    target_loss: float, rate: float, ring_size: float, detection_s: float, *, low: float, high: float
) -> float:
    """Longest period in [low, high] with a raw loss of at most ``target_loss``; ``low`` when none is short enough.

    ``detection_s``: how long a dead member stays in a leaf set, or an entry after its probe was sent.
    """
    hops = table_hops(ring_size)

    def loss(period_s: float) -> float:
        survives = 1.0 - dead_probability(period_s + detection_s, rate)
        return float(1.0 - (1.0 - dead_probability(detection_s, rate)) * survives**hops)

    if loss(high) <= target_loss:
        return high
    if loss(low) >= target_loss:
        return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if loss(middle) > target_loss else (middle, high)
    return low
