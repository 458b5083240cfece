"""What a node has promised to its holders: guarantee entries (section 2.2). Pure.

The paper compares each new *value* with the bounds of a holder. Where the provider is itself a cache that is not
enough: its new interval may reach out of the holder's, and a later value leave the holder's without leaving the
provider's. So here the interval of a holder contains that of its provider, or the holder is told.

Nothing that is said relies on what this node remembers of its holders: a node that has lost it says nothing, and the
holders' values grow old.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.lib.leases import at_most
from protocols.measurement.guarantee.effects import Effect, SendTo
from protocols.measurement.guarantee.interval import around
from protocols.measurement.guarantee.messages import (
    STANDING_MAX,
    TOLD_MAX,
    CacheAsk,
    CacheEntry,
    CacheUpdate,
    StandingPromises,
)
from protocols.measurement.guarantee.words import BoundClaim, Known, Measurement, Terms, Want

HOLDERS_MAX: Final = 256
"""Nodes that one node provides for. Others are told that it does not."""
GUARANTEES_MAX: Final = 4096
"""Promises of one node to one holder."""
UPDATE_MIN_S: Final = 0.5
"""However often a holder wants to hear, it does no more often than this without news."""
GATHER_MAX_S: Final = 2.5
"""A holder that was told of broken bounds is told of more after this time at the latest, or after its update interval,
which is half of its STALE, if that is shorter; after half of it where more break. So what leaves its bounds once is
told at once, and what does all the time, or many values in turn, cost a holder no more than a word in half this time:
until then a value is as old as it is."""
MAX_AGE_MAX_S: Final = 3600.0
"""The longest time for which a promise is kept to a holder that does not ask any more."""
HOPS_MAX: Final = 32
"""Nodes between an owner and a holder. Caches that provide for each other in a circle count up to this, and are rid of
each other: else each would tell the next of a change for as long as the value is not too old."""
NEVER: Final = float("-inf")

KnownAt = Callable[[Measurement, float], Known | None]
"""What a node knows of a measurement at that time, and that is not stale."""


@dataclass(slots=True)
class Guarantee:
    """A promise to one holder; mirrors its cache entry. ``held_until``: then it was broken, and its holder has still to
    be told."""

    number: int
    half_width: float
    claim: BoundClaim
    held_until: float = math.inf

    @property
    def is_broken(self) -> bool:
        """Whether it does not hold any more."""
        return self.held_until < math.inf


@dataclass(slots=True)
class HolderEdge:
    """One holder."""

    boot: int
    asked: int = 0
    max_age_s: float = 0.0
    update_s: float = 0.0
    heard_at: float = NEVER
    told_at: float = NEVER
    """When all promises were last vouched for at once."""
    vouched_at: float = NEVER
    """When any was."""
    news_at: float = NEVER
    """When the holder was last told of broken bounds."""
    is_behind: bool = False
    """Some promises are broken."""
    guarantees: dict[Measurement, Guarantee] = field(default_factory=dict)


class Provider:
    """All holders of one node."""

    def __init__(self, boot: int, terms: Terms, known: KnownAt) -> None:
        self._boot, self._terms, self._known = boot, terms, known
        self.edges: dict[NodeId, HolderEdge] = {}
        self._numbers = 0

    def asked(self, holder: NodeId, ask: CacheAsk, now: float) -> list[Effect]:
        """A holder asks for values, or for what it has to go on."""
        edge = self.edges.get(holder)
        if edge is None and len(self.edges) >= HOLDERS_MAX:
            return self._say(holder, HolderEdge(ask.boot), now, gone=[want.measurement for want in ask.wants])
        is_new = edge is None or edge.boot < ask.boot
        if edge is None or is_new:
            edge = self.edges[holder] = HolderEdge(ask.boot, told_at=now)
        if edge.boot > ask.boot or edge.asked >= ask.number:
            return []  # of an earlier boot, or overtaken
        edge.asked, edge.heard_at = ask.number, now
        edge.max_age_s = min(MAX_AGE_MAX_S, max(edge.max_age_s, ask.max_age_s))
        edge.update_s = min(self._terms.update_s, max(UPDATE_MIN_S, ask.update_s))
        for measurement in ask.unwanted:
            edge.guarantees.pop(measurement, None)
        if ask.drops:
            numbers = {promise.number: measurement for measurement, promise in edge.guarantees.items()}
            for measurement in filter(None, map(numbers.get, ask.drops)):
                del edge.guarantees[measurement]
        entries, gone = [], []
        for want in ask.wants:
            entry = self._promised(edge, want, now)
            gone.append(want.measurement) if entry is None else entries.append(entry)
        has_news = is_new or entries or gone  # to a new holder: so that it learns of a restart here
        return self._say(holder, edge, now, entries, gone) if has_news else []

    def _promised(self, edge: HolderEdge, want: Want, now: float) -> CacheEntry | None:
        """The promise that a holder lacks, made anew if need be; ``None``: this node cannot make it."""
        known, before = self._known(want.measurement, now), edge.guarantees.get(want.measurement)
        if known is None or not _is_enough(known, want.half_width):
            edge.guarantees.pop(want.measurement, None)
            return None
        if before is None and len(edge.guarantees) >= GUARANTEES_MAX:
            return None
        if before is None:
            return self._promise(edge, want, known, 0)
        if before.half_width == want.half_width and not before.is_broken:
            return CacheEntry(want.measurement, before.number, 0, before.claim)
        return self._promise(edge, want, known, before.number if before.held_until >= now else 0)

    def _promise(self, edge: HolderEdge, want: Want, known: Known, follows: int) -> CacheEntry:
        self._numbers += 1
        theirs = known.claim
        interval = around(theirs.interval, theirs.level, want.half_width)
        claim = BoundClaim(theirs.value, theirs.level, interval, theirs.since, theirs.hops + 1)
        edge.guarantees[want.measurement] = Guarantee(self._numbers, want.half_width, claim)
        return CacheEntry(want.measurement, self._numbers, follows, claim)

    def changed(self, measurements: Mapping[Measurement, bool], now: float) -> list[Effect]:
        """This node knows something else of these: tell the holders whose bounds that breaks, at once but for those
        that were just told of others (`GATHER_MAX_S`).

        The value says whether what it knew before held until now.
        """
        effects: list[Effect] = []
        known = {measurement: self._known(measurement, now) for measurement in measurements}
        for holder, edge in self.edges.items():
            has_broken, gone = False, []
            for measurement, is_continuous in measurements.items():
                promise, here = edge.guarantees.get(measurement), known[measurement]
                if promise is None:
                    continue
                if here is None or not _is_enough(here, promise.half_width):
                    del edge.guarantees[measurement]
                    gone.append(measurement)
                elif not (is_continuous and promise.claim.interval.contains(here.claim.interval)):
                    has_broken = edge.is_behind = True
                    promise.held_until = min(promise.held_until, now if is_continuous else NEVER)
            if gone or (has_broken and now - edge.news_at >= _gather_s(edge) / 2):
                effects += self._tell(holder, edge, now, gone)
        return effects

    def _tell(self, holder: NodeId, edge: HolderEdge, now: float, gone: list[Measurement]) -> list[Effect]:
        """Say this, and all that is broken, and what is to be said soon anyway; nothing, if there is none of it."""
        entries = []
        if edge.is_behind:
            edge.is_behind, edge.news_at = False, now
            for measurement, promise in list(edge.guarantees.items()):
                if promise.is_broken:
                    entry = self._promised(edge, Want(measurement, promise.half_width), now)
                    gone.append(measurement) if entry is None else entries.append(entry)
        current = edge.guarantees if self._is_due_soon(edge, now) else ()
        if current:
            edge.told_at = now
        return self._say(holder, edge, now, entries, gone, current) if entries or gone or current else []

    def renewed(self, measurements: Iterable[Measurement], now: float) -> list[Effect]:
        """This node was told that these still hold: tell the holders at once, so that age does not add up."""
        effects: list[Effect] = []
        some = set(measurements)
        for holder, edge in self.edges.items():
            if self._is_due_soon(edge, now) and not some.isdisjoint(edge.guarantees):
                effects += self._tell(holder, edge, now, [])
        return effects

    def tick(self, now: float) -> list[Effect]:
        """To be called a few times in each `Terms.update_s`."""
        effects: list[Effect] = []
        for holder, edge in list(self.edges.items()):
            if not self._may_hold(edge, now):
                del self.edges[holder]
            elif now - edge.told_at >= edge.update_s or (edge.is_behind and now - edge.news_at >= _gather_s(edge)):
                effects += self._tell(holder, edge, now, [])
        return effects

    def _is_heard(self, edge: HolderEdge, now: float) -> bool:
        """Whether this node vouches for anything to a holder: it was asked to, lately."""
        return now - edge.heard_at <= self._terms.max_age_s

    def _may_hold(self, edge: HolderEdge, now: float) -> bool:
        """Whether a holder may still take a value of this node for fresh (invariant 27), or has just asked."""
        return self._is_heard(edge, now) or now - edge.vouched_at <= at_most(edge.max_age_s)

    def _is_due_soon(self, edge: HolderEdge, now: float) -> bool:
        """Whether a holder is to hear of all promises about now."""
        return self._is_heard(edge, now) and now - edge.told_at >= edge.update_s / 2

    def _say(
        self,
        holder: NodeId,
        edge: HolderEdge,
        now: float,
        entries: Iterable[CacheEntry] = (),
        gone: Iterable[Measurement] = (),
        current: Iterable[Measurement] = (),
    ) -> list[Effect]:
        promised, ended, named = tuple(entries), tuple(gone), list(current)
        vouches = self._is_heard(edge, now)
        if vouches:
            edge.vouched_at = now
        asked, since_s = (edge.asked, now - edge.heard_at) if vouches else (0, 0.0)
        is_all = len(edge.guarantees) == len(named) <= STANDING_MAX and len(promised) <= TOLD_MAX
        words: list[Effect] = []
        for at in range(0, max(len(promised), len(ended), 1), TOLD_MAX):
            some, others = promised[at : at + TOLD_MAX], ended[at : at + TOLD_MAX]
            # An entry counts for nothing unless the same word says how old it is.
            stand = self._standing(edge, [*(entry.measurement for entry in some), *named[:STANDING_MAX]], now)
            newest = self._numbers if is_all else 0
            word = CacheUpdate(self._boot, edge.boot, asked, since_s, some, stand, others, newest)
            words.append(SendTo(holder, word))
            named, is_all = [], False
        return words

    def _standing(
        self, edge: HolderEdge, measurements: Iterable[Measurement], now: float
    ) -> tuple[StandingPromises, ...]:
        """What is known to stand of the promises about these, the equally old together."""
        numbers: dict[float, dict[int, None]] = {}
        for measurement in measurements:
            if (known := self._known(measurement, now)) is not None:
                numbers.setdefault(self._age_s(known, now), {})[edge.guarantees[measurement].number] = None
        return tuple(StandingPromises(age_s, tuple(sorted(each))) for age_s, each in numbers.items())

    @staticmethod
    def _age_s(known: Known, now: float) -> float:
        return max(0.0, now - known.basis)

    def validate(self, now: float) -> None:
        """Assert that each promise contains what this node knows."""
        for holder, edge in self.edges.items():
            for measurement, promise in edge.guarantees.items():
                known = self._known(measurement, now)
                if not (promise.is_broken or known is None or promise.claim.interval.contains(known.claim.interval)):
                    raise Bug(f"the bounds of {measurement.name} at {holder} do not contain those here")


def _gather_s(edge: HolderEdge) -> float:
    return min(GATHER_MAX_S, edge.update_s)


def _is_enough(known: Known, half_width: float) -> bool:
    """Whether a node may promise what it knows to a holder that wants such bounds."""
    return known.claim.interval.is_within(half_width) and known.claim.hops < HOPS_MAX
