"""What a node knows of measurements that it may cache (section 4.2.5). Pure.

The paper sends some replies and updates over T, so that nodes on the way learn of costs and rates. Here whoever reads
again says what it paid the last time, and a cache that renews its place says how often it was updated: what is read
once is not worth a cache, and no message is sent for the statistics alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from peerd.frozen import Frozen
from peerd.ids import NodeId
from protocols.measurement.guarantee.words import Measurement, Want

SEEN_MAX: Final = 16_384
"""Measurements that a node has statistics of. Of more there are none."""
CHILDREN_MAX: Final = 64
"""Caches below this node that are known of one measurement."""
GAIN: Final = 0.5
"""The share of the last period in a rate of updates."""
KEPT: Final = 0.75
"""What is left of a count of reads after a period. Reads that come as often as decisions are none in one period and two
in another."""
PRIOR: Final = 4.0
"""The updates of a value count beside so many at the rate that is usual among the values which are read with it."""
READERS_MAX: Final = 32
"""Nodes that are told apart whose reads of one measurement pass here."""
READER_PERIODS: Final = 3
"""Who has not read for so many periods is no reader any more. One that reads once a period may be missing in one."""
RATE_MIN: Final = 1e-3
"""Reads a second below which a measurement is forgotten, if it is not cached."""
EVER: Final = float("inf")
SAMPLES: Final = 128
"""The last ones of an owner, from which it reckons how often bounds of some width would be broken."""
STALE_MIN_S: Final = 1.0
"""Who wants younger values than this is not served by caches, whose provider need not say more often that it lives."""


class SeenCache(Frozen):
    """A cache whose way to its provider leads through this node, or ends here."""

    want: Want
    update_s: float
    updates_s: float
    heard_at: float


@dataclass(slots=True)
class SeenMeasurement:
    """One measurement. ``tightest``, ``youngest_s``: what was asked for in this period; and in the last one that had
    any reads."""

    group: Hashable
    """The same for values that are read together, lately."""
    reads: float = 0.0
    """Counted in ``seconds``, all fading; ``passing``: those of others among them, on their way through here, and
    ``way``: the messages of these up to here, with an answer from here."""
    passing: float = 0.0
    way: float = 0.0
    seconds: float = 0.0
    counted_at: float = -EVER
    """When a read of what is held here was counted, the last time."""
    reads_s: float = 0.0
    tightest: float = EVER
    youngest_s: float = EVER
    half_width: float = EVER
    max_age_s: float = EVER
    cost: float = 0.0
    """Messages of one read beyond this node."""
    updates: int = 0
    updates_s: float = 0.0
    """Updates a second: as they come here, or as somebody else has told last."""
    below: dict[NodeId, SeenCache] = field(default_factory=dict)
    worth_s: float = 0.0
    readers: dict[NodeId, int] = field(default_factory=dict)
    """Whose reads pass here, and for how many periods more they count."""


class CacheCandidate(Frozen):
    """A measurement that this node may cache, or does. Rates are a second: what is read here, what ``cost`` messages
    each read takes beyond, updates that would come here, and those that caches below would get from here."""

    want: Want
    update_s: float
    reads_s: float
    cost: float
    updates_s: float
    below_s: float
    is_cached: bool
    group: Hashable
    """The same for values that are read together, and have a part of their way in common."""
    worth_s: float = 0.0
    """For so long it would have saved messages to cache it, without a break; 0 where it is cached."""
    passing: float = 0.0
    """The share of reads that are of others, on their way through here; ``way_s``: messages a second that bring these
    here and an answer back; ``readers``: how many nodes they are of."""
    way_s: float = 0.0
    readers: int = 0


class Statistics:
    """Caches say every ``renewed_s`` seconds that they are there. ``woken`` is called when there is a first one."""

    def __init__(self, renewed_s: float, woken: Callable[[], None]) -> None:
        self._renewed_s, self._woken = renewed_s, woken
        self._seen: dict[Measurement, SeenMeasurement] = {}

    def _of(self, measurement: Measurement) -> SeenMeasurement | None:
        seen = self._seen.get(measurement)
        if seen is None and len(self._seen) < SEEN_MAX:
            seen = self._seen[measurement] = SeenMeasurement(measurement)
            self._woken()
        return seen

    def __len__(self) -> int:
        """Measurements that anything is known of."""
        return len(self._seen)

    def read(
        self,
        want: Want,
        max_age_s: float,
        cost: float = 0.0,
        hint_s: float = 0.0,
        *,
        group: Hashable = None,
        is_counted: bool = True,
    ) -> None:
        """A client asks this node, or another node does, together with all of ``group``; the last time it cost so much
        beyond, if that is known."""
        seen = self._of(want.measurement) if max_age_s >= STALE_MIN_S else None
        if seen is None:
            return
        seen.group = seen.group if group is None else group
        seen.reads += is_counted
        seen.tightest = min(seen.tightest, want.half_width)
        seen.youngest_s = min(seen.youngest_s, max_age_s)
        if cost > 0.0:
            seen.cost, seen.updates_s = cost, hint_s

    def passes(self, measurement: Measurement, max_age_s: float, reader: NodeId, way: float) -> None:
        """A READ of another node comes by; up to here, with an answer from here, it takes so many messages."""
        seen = self._seen.get(measurement) if max_age_s >= STALE_MIN_S else None
        if seen is not None:
            seen.passing += 1.0
            seen.way += way
            if reader in seen.readers or len(seen.readers) < READERS_MAX:
                seen.readers[reader] = READER_PERIODS

    def read_held(self, want: Want, max_age_s: float, now: float, kept_s: float, group: Hashable = None) -> None:
        """A client reads what this node holds. If it did not, the answer of one question would do for ``kept_s``."""
        seen = self._of(want.measurement)
        if seen is not None:
            is_counted = now - seen.counted_at >= kept_s
            seen.counted_at = now if is_counted else seen.counted_at
            self.read(want, max_age_s, group=group, is_counted=is_counted)

    def paid(self, measurement: Measurement, cost: float, hint_s: float, group: Hashable = None) -> None:
        """A READ by this node has cost so much, its share of what it had in common with others: with those of
        ``group``, if not with all that were read with it."""
        if (seen := self._seen.get(measurement)) is not None:
            seen.cost, seen.updates_s, seen.group = cost, hint_s, seen.group if group is None else group

    def known(self, measurement: Measurement) -> tuple[float, float]:
        """Messages of a READ beyond this node, and updates a second; zeros: nobody has said."""
        seen = self._seen.get(measurement)
        return (0.0, 0.0) if seen is None else (seen.cost, seen.updates_s)

    def cache_below(self, holder: NodeId, cache: SeenCache) -> None:
        """A cache says, on the way through or to this node, that it is there."""
        seen = self._of(cache.want.measurement)
        if seen is not None and (holder in seen.below or len(seen.below) < CHILDREN_MAX):
            seen.below[holder] = cache

    def updated(self, measurement: Measurement) -> None:
        """Bounds that this node holds were broken."""
        if (seen := self._seen.get(measurement)) is not None:
            seen.updates += 1

    def updates_s(self, measurement: Measurement) -> float:
        """How often that happened lately, a second."""
        seen = self._seen.get(measurement)
        return 0.0 if seen is None else seen.updates_s

    def candidates(self, now: float, elapsed_s: float, cached: Collection[Measurement]) -> list[CacheCandidate]:
        """All that may be worth it after a period of so many seconds; the next one begins."""
        found: list[CacheCandidate] = []
        for measurement, seen in list(self._seen.items()):
            is_cached = measurement in cached
            seen.seconds += elapsed_s
            seen.reads_s = seen.reads / seen.seconds
            if is_cached:
                seen.updates_s += GAIN * (seen.updates / elapsed_s - seen.updates_s)
            seen.below = {
                node: each for node, each in seen.below.items() if now - each.heard_at <= 2.0 * self._renewed_s
            }
            if seen.tightest < EVER:
                seen.half_width, seen.max_age_s = seen.tightest, seen.youngest_s
                seen.tightest = seen.youngest_s = EVER
            if seen.half_width < EVER or seen.below:
                found.append(self._candidate(measurement, seen, is_cached=is_cached))
            seen.reads, seen.passing = KEPT * seen.reads, KEPT * seen.passing
            seen.way, seen.seconds = KEPT * seen.way, KEPT * seen.seconds
            seen.readers = {node: left - 1 for node, left in seen.readers.items() if left > 1}
            seen.updates = 0
            if not is_cached and seen.reads_s < RATE_MIN and not seen.below:
                del self._seen[measurement]
        return _alike(found, elapsed_s / GAIN)

    def lasting(self, candidate: CacheCandidate, counted_s: float, saved_s: float) -> CacheCandidate:
        """The same, with how long it would have been worth it by now: in the period that is over, of which so many
        seconds count, caching it would have saved so much."""
        seen = self._seen.get(candidate.want.measurement)
        if seen is None:
            return candidate
        seen.worth_s = 0.0 if candidate.is_cached or saved_s <= 0.0 else seen.worth_s + counted_s
        return replace(candidate, worth_s=seen.worth_s)

    @staticmethod
    def _candidate(measurement: Measurement, seen: SeenMeasurement, *, is_cached: bool) -> CacheCandidate:
        below = list(seen.below.values())
        half_width = min([seen.half_width, *(each.want.half_width for each in below)])
        update_s = min([seen.max_age_s / 2.0, *(each.update_s for each in below)])
        below_s = sum(each.updates_s for each in below)
        known_s = max([seen.updates_s, *(each.updates_s for each in below)])
        updates_s = seen.updates_s if is_cached else known_s
        return CacheCandidate(
            Want(measurement, half_width),
            update_s,
            seen.reads_s,
            seen.cost,
            updates_s,
            below_s,
            is_cached,
            seen.group,
            passing=seen.passing / seen.reads if seen.reads else 0.0,
            way_s=seen.way / seen.seconds if seen.seconds else 0.0,
            readers=len(seen.readers),
        )


def _alike(candidates: list[CacheCandidate], counted_s: float) -> list[CacheCandidate]:
    """Rates of few updates are one of chance, and values that are read together are often of a kind: those that were
    counted in so many seconds count beside `PRIOR` at the mean rate of their group."""
    of: dict[Hashable, list[float]] = {}
    for each in candidates:
        of.setdefault(each.group, []).append(each.updates_s)
    usual = {group: sum(rates) / len(rates) for group, rates in of.items()}
    return [
        replace(each, updates_s=(each.updates_s * counted_s + PRIOR) / (counted_s + PRIOR / mean))
        if (mean := usual[each.group])
        else each
        for each in candidates
    ]


def updates_s(samples: Sequence[tuple[float, float]], half_width: float) -> float:
    """Updates a second that a holder of such bounds would have had during these samples: times and values, in order."""
    if len(samples) < 2:
        return 0.0
    updates, low, high = -1, EVER, -EVER  # what is held at first is no update
    for _, value in samples:
        if not low <= value <= high:
            low, high = value - half_width, value + half_width
            updates += 1
    return updates / max(1e-3, samples[-1][0] - samples[0][0])
