"""What a node caches (section 4.2.5): the best by benefit for what it takes, under two budgets. Pure.

All is reckoned in messages a second. The paper leaves out what it costs to keep a cache vouched for, and to bring it in
and out; here both count, so that a cache is not made that costs more than the reads which it saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.placing.statistics import READERS_MAX, CacheCandidate

SPLICE_MESSAGES: Final = 8.0
"""A cache that comes and goes costs about so many: over T to its provider, the answer, children that move, the end."""
PAYS_WITHIN_S: Final = 120.0
"""A new cache is worth it when it saves these within this time, and would have saved them already since it has been
asked for so often. Nobody knows how long reads go on: to pay as much for a cache as going without has cost is at most
twice too much (five times where others are waited for, by `PASSING`). And who would save the most begins first, on
whose cache the others then find that they save less."""
PASSING: Final = 0.25
"""Time in which a cache on the way would have been worth it counts so much, where who asks had better cache instead."""
RELIEF: Final = 0.1
"""What it is worth that this node sends an update in place of its provider: T branches over ten caches below."""
STAYS: Final = 1.25
"""What is cached counts for so much more than what may replace it."""
VouchedFor = Callable[[CacheCandidate], float]
"""Messages a second by which a value is kept vouched for: its share of what is said anyway to the same provider."""


class _Weighed(NamedTuple):
    """``need``: the least part of its group that has to be cached for it to be worth it. ``saved``: `benefit`."""

    need: float
    saved: float
    candidate: CacheCandidate


def benefit(candidate: CacheCandidate, vouching_s: float) -> float:
    """Messages that caching it saves, a second: B_read + B_update less what is sent to vouch for it.

    The paper takes all updates that the provider is rid of for saved. But this node sends them in its place, and gets
    one itself: all that is saved is that nobody has too many holders.
    """
    read_s = candidate.reads_s * candidate.cost
    return read_s + RELIEF * candidate.below_s - candidate.updates_s - vouching_s


def counted(candidate: CacheCandidate, vouching_s: float) -> float:
    """The share of a period that counts as one in which to cache it would have saved messages.

    A cache on the way saves each reader a part of its way. Once it is there, caches of the readers' own save too little
    ever to come, even where all of these together would cost less than READs up to it, and this one, do. There, they
    are waited for. Many readers, whose own caches would cost more, have one in common at once.
    """
    others_s = (candidate.readers - 1) * (candidate.updates_s + vouching_s)
    is_common = candidate.way_s <= others_s or candidate.readers >= READERS_MAX
    return 1.0 if is_common else 1.0 - candidate.passing + PASSING * candidate.passing


def _weighed(candidate: CacheCandidate, vouching_s: float) -> _Weighed:
    """A read of what is not cached of a group takes the way that they have in common all the same: so each value that
    is saves no more than this part of what a read costs."""
    saved, read_s = benefit(candidate, vouching_s), candidate.reads_s * candidate.cost
    paid = read_s - saved
    if not candidate.is_cached:
        paid += SPLICE_MESSAGES / min(PAYS_WITHIN_S, candidate.worth_s) if candidate.worth_s else math.inf
    return _Weighed(paid / read_s if read_s else math.copysign(math.inf, paid), saved, candidate)


def _worth(some: list[_Weighed], size: int) -> list[_Weighed]:
    """As many of these as are worth it where only they are cached, of a group of ``size``."""
    ordered = sorted(some, key=attrgetter("need"))
    count = next((count for count in range(len(some), 0, -1) if ordered[count - 1].need < count / size), 0)
    return ordered[:count]


def decide(
    candidates: Iterable[CacheCandidate], values_max: int, updates_max: float, vouched_for: VouchedFor
) -> dict[Measurement, CacheCandidate]:
    """What to cache from now on, of at most so many values, with at most so many updates a second to those below.

    Values that are read together are decided on together: the best groups come first, and of one for which there is
    not enough room only what pays for itself.
    """
    groups: dict[Hashable, list[_Weighed]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.group, []).append(_weighed(candidate, vouched_for(candidate)))
    ranked: list[tuple[float, list[_Weighed], int]] = []
    for group in groups.values():
        if worth := _worth(group, len(group)):
            taken = sum(each.candidate.below_s / updates_max + 1.0 / max(1, values_max) for each in worth)
            stays = STAYS if any(each.candidate.is_cached for each in worth) else 1.0
            ranked.append((stays * sum(each.saved for each in worth) / taken, worth, len(group)))
    ranked.sort(key=itemgetter(0), reverse=True)
    chosen: dict[Measurement, CacheCandidate] = {}
    spent = 0.0
    for _, worth, size in ranked:
        values, updates_s, room = len(chosen), spent, []
        for each in sorted(worth, key=lambda each: (each.candidate.is_cached, each.saved), reverse=True):
            if values < values_max and updates_s + each.candidate.below_s <= updates_max:
                values, updates_s = values + 1, updates_s + each.candidate.below_s
                room.append(each)
        for each in _worth(room, size):
            chosen[each.candidate.want.measurement] = each.candidate
            spent += each.candidate.below_s
    return chosen
