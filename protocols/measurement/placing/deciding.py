"""What a node caches (section 4.2.5): the best by benefit for what it takes, under two budgets. Pure.

All is reckoned in messages a second. The paper leaves out what it costs to keep a cache vouched for, and to bring it in
and out; here both count, so that a cache is not made that costs more than the reads which it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.placing.statistics import CacheCandidate

SPLICE_MESSAGES: Final = 8.0
"""A cache that comes and goes costs about so many: over T to its provider, the answer, children that move, the end."""
PAYS_WITHIN_S: Final = 120.0
"""A new cache is worth it when it has saved these within this time."""
RELIEF: Final = 0.1
"""What it is worth that this node sends an update in place of its provider: T branches over ten caches below."""
STAYS: Final = 1.25
"""What is cached counts for so much more than what may replace it."""
VouchedFor = Callable[[CacheCandidate], float]
"""Messages a second by which a value is kept vouched for: its share of what is said anyway to the same provider."""


def benefit(candidate: CacheCandidate, vouching_s: float) -> float:
    """Messages that caching it saves, a second: B_read + B_update less what is sent to vouch for it.

    The paper takes all updates that the provider is rid of for saved. But this node sends them in its place, and gets
    one itself: all that is saved is that nobody has too many holders.
    """
    read_s = candidate.reads_s * candidate.cost
    return read_s + RELIEF * candidate.below_s - candidate.updates_s - vouching_s


def decide(
    candidates: Iterable[CacheCandidate], values_max: int, updates_max: float, vouched_for: VouchedFor
) -> dict[Measurement, CacheCandidate]:
    """What to cache from now on, of at most so many values, with at most so many updates a second to those below."""
    ranked: list[tuple[float, CacheCandidate]] = []
    for each in candidates:
        saved = benefit(each, vouched_for(each))
        if saved <= (0.0 if each.is_cached else SPLICE_MESSAGES / PAYS_WITHIN_S):
            continue
        taken = each.below_s / updates_max + 1.0 / max(1, values_max)
        ranked.append((saved / taken * (STAYS if each.is_cached else 1.0), each))
    ranked.sort(key=lambda pair: pair[0], reverse=True)
    chosen: dict[Measurement, CacheCandidate] = {}
    spent = 0.0
    for _, each in ranked:
        if len(chosen) < values_max and spent + each.below_s <= updates_max:
            chosen[each.want.measurement] = each
            spent += each.below_s
    return chosen
