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

from msgspec.structs import replace

from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.lib.leases import at_most
from protocols.measurement.guarantee.effects import Effect, SendTo
from protocols.measurement.guarantee.interval import around
from protocols.measurement.guarantee.messages import (
    AGE_UNIT_S,
    STANDING_MAX,
    TOLD_MAX,
    CacheAsk,
    CacheEntry,
    CacheUpdate,
    StandingPromises,
)
from protocols.measurement.guarantee.words import BoundClaim, Known, Measurement, Sample, Terms, Want

HOLDERS_MAX: Final = 256
"""Nodes that one node provides for. Others are told that it does not."""
GUARANTEES_MAX: Final = 4096
"""Promises of one node to one holder."""
UPDATE_MIN_S: Final = 0.5
"""However often a holder wants to hear, or asks, it does no more often than this without news."""
GATHER_MAX_S: Final = 2.5
"""A holder that was told of broken bounds is told of more after this time at the latest, or after its update interval,
which is half of its STALE, if that is shorter; after half of it where more break. So what leaves its bounds once is
told at once, and what does all the time, or many values in turn, cost a holder no more than a word in half this time:
until then a value is as old as it is."""
MOSTLY: Final = 0.5
"""What this node has from others it vouches for as soon as it was told itself that so much of it stands, within two
ticks: when it has asked for it, and not as one bound after the other breaks."""
SEVERAL: Final = 3
"""For fewer holders it costs more to ask for all of it twice in their update interval than that each is provided for by
the owners."""
PASSED_ON: Final = 0.75
"""And after this share of the holder's update interval at the latest, if that is shorter than usual."""
POLLS: Final = 0.75
"""A holder that asks again within this share of its update interval is told when it asks."""
AT_LAST: Final = 1.5
"""Such a one is told after so many update intervals without a question."""
MAX_AGE_MAX_S: Final = 3600.0
"""The longest time for which a promise is kept to a holder that does not ask any more."""
HOPS_MAX: Final = 32
"""Nodes between an owner and a holder. Caches that provide for each other in a circle count up to this, and are rid of
each other: else each would tell the next of a change for as long as the value is not too old."""
NEVER: Final = float("-inf")

KnownAt = Callable[[Measurement, float], Known | None]
"""What a node knows of a measurement at that time, and that is not stale."""
Promised = Callable[[Measurement, Known], BoundClaim]
"""That, as others are told of it."""


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
    passes_on: bool = False
    """Some promises are about what others own."""
    polls: bool = False
    """It asks more often than it wants to be told, and is told when it asks."""
    renewed: set[Measurement] = field(default_factory=set)
    """What this node was told to stand since the last tick and, below, between that and the one before; but for what it
    has told since."""
    renewed_before: set[Measurement] = field(default_factory=set)
    guarantees: dict[Measurement, Guarantee] = field(default_factory=dict)


class Provider:
    """All holders of one node."""

    def __init__(self, boot: int, terms: Terms, known: KnownAt, promised: Promised) -> None:
        self._boot, self._terms, self._known, self._as_promised = boot, terms, known, promised
        self.edges: dict[NodeId, HolderEdge] = {}
        self._numbers = 0

    def asked(self, holder: NodeId, ask: CacheAsk, now: float) -> list[Effect]:
        """A holder asks for values, or for what it has to go on."""
        edge = self.edges.get(holder)
        if edge is None and len(self.edges) >= HOLDERS_MAX:
            return self._say(holder, HolderEdge(ask.boot), now, {}, [want.measurement for want in ask.wants])
        is_new = edge is None or edge.boot < ask.boot
        if edge is None or is_new:
            edge = self.edges[holder] = HolderEdge(ask.boot, told_at=now)
        if edge.boot > ask.boot or edge.asked > ask.number:
            return []  # of an earlier boot, or overtaken; one question may be answered in parts
        asked_s = now - edge.heard_at
        edge.asked, edge.heard_at = ask.number, now
        edge.max_age_s = min(MAX_AGE_MAX_S, max(edge.max_age_s, ask.max_age_s))
        edge.update_s = min(self._terms.update_s, max(UPDATE_MIN_S, ask.update_s))
        edge.polls = asked_s <= POLLS * edge.update_s
        for measurement in ask.unwanted:
            edge.guarantees.pop(measurement, None)
        if ask.drops:
            numbers = {promise.number: measurement for measurement, promise in edge.guarantees.items()}
            for measurement in filter(None, map(numbers.get, ask.drops)):
                del edge.guarantees[measurement]
        entries: dict[Measurement, CacheEntry] = {}
        gone = [want.measurement for want in ask.wants if not self._promised(edge, want, now, entries)]
        edge.passes_on = any(promise.claim.hops > 1 for promise in edge.guarantees.values())
        if is_new or entries or gone:  # to a new holder: so that it learns of a restart here
            return self._say(holder, edge, now, entries, gone)
        share = 0.0 if edge.polls else 0.5
        return self._tell(holder, edge, now, [], share) if self._is_to_vouch(edge, now, share) else []

    def _promised(self, edge: HolderEdge, want: Want, now: float, entries: dict[Measurement, CacheEntry]) -> bool:
        """Whether this node can make a promise that a holder lacks, which is one of ``entries`` then."""
        measurement = want.measurement
        known, before = self._known(measurement, now), edge.guarantees.get(measurement)
        if known is None or not _is_enough(known, want.half_width):
            edge.guarantees.pop(measurement, None)
            return False
        if before is None and len(edge.guarantees) >= GUARANTEES_MAX:
            return False
        if before is not None and before.half_width == want.half_width and not before.is_broken:
            entries[measurement] = CacheEntry(before.number, 0, False, before.claim, measurement)
        else:
            replaces, held_until = (0, NEVER) if before is None else (before.number, before.held_until)
            claim = self._promise(edge, want, known)
            entries[measurement] = CacheEntry(self._numbers, replaces, held_until >= now, claim, measurement)
        return True

    def _promise(self, edge: HolderEdge, want: Want, known: Known) -> BoundClaim:
        self._numbers += 1
        theirs = self._as_promised(want.measurement, known)
        interval = around(theirs.interval, theirs.level, want.half_width)
        claim = replace(theirs, interval=interval, hops=theirs.hops + 1)
        edge.guarantees[want.measurement] = Guarantee(self._numbers, want.half_width, claim)
        return claim

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

    def _tell(
        self, holder: NodeId, edge: HolderEdge, now: float, gone: list[Measurement], share: float = 0.5
    ) -> list[Effect]:
        """Say this, and all that is broken, and what is to be said soon anyway, after this share of the update
        interval; nothing, if there is none of it."""
        entries: dict[Measurement, CacheEntry] = {}
        if edge.is_behind:
            edge.is_behind, edge.news_at = False, now
            for measurement, before in list(edge.guarantees.items()):
                if not before.is_broken:
                    continue
                if self._promised(edge, Want(measurement, before.half_width), now, entries):
                    entries[measurement] = _short(entries[measurement], before.claim)
                else:
                    gone.append(measurement)
        current = edge.guarantees if self._is_to_vouch(edge, now, share) else ()
        if current:
            edge.told_at = now
            edge.renewed, edge.renewed_before = set(), set()
        return self._say(holder, edge, now, entries, gone, current) if entries or gone or current else []

    def renewed(self, measurements: Iterable[Measurement]) -> None:
        """This node was told that these still hold."""
        some = set(measurements)
        for edge in self.edges.values():
            edge.renewed |= edge.guarantees.keys() & some

    def passes_on(self) -> bool:
        """Whether so many holders have something from here that others own that it is worth it to ask for that as often
        as they want to hear of it."""
        return sum(edge.passes_on for edge in self.edges.values()) >= SEVERAL

    def tick(self, now: float) -> list[Effect]:
        """To be called a few times in each `Terms.update_s`."""
        effects: list[Effect] = []
        for holder, edge in list(self.edges.items()):
            if not self._may_hold(edge, now):
                del self.edges[holder]
            elif self._is_to_vouch(edge, now) or (edge.is_behind and now - edge.news_at >= _gather_s(edge)):
                effects += self._tell(holder, edge, now, [])
            edge.renewed, edge.renewed_before = set(), edge.renewed
        return effects

    def _is_heard(self, edge: HolderEdge, now: float) -> bool:
        """Whether this node vouches for anything to a holder: it was asked to, lately."""
        return now - edge.heard_at <= self._terms.max_age_s

    def _may_hold(self, edge: HolderEdge, now: float) -> bool:
        """Whether a holder may still take a value of this node for fresh (invariant 27), or has just asked."""
        return self._is_heard(edge, now) or now - edge.vouched_at <= at_most(edge.max_age_s)

    def _is_to_vouch(self, edge: HolderEdge, now: float, share: float = 1.0) -> bool:
        """Whether a holder is to hear of all promises now: after this share of its update interval, of what this node
        has from others when it has just heard of them itself, so that their age does not add up."""
        told_s = now - edge.told_at
        if not self._is_heard(edge, now) or told_s < max(UPDATE_MIN_S, min(share, 0.5) * edge.update_s):
            return False
        if edge.passes_on:
            heard_of = len(edge.guarantees.keys() & (edge.renewed | edge.renewed_before))
            at_last = PASSED_ON if edge.update_s < self._terms.update_s else 1.0
            return heard_of > MOSTLY * len(edge.guarantees) or told_s >= at_last * edge.update_s
        if share == 1.0 and edge.polls:
            share = AT_LAST
        return told_s >= share * edge.update_s

    def _say(
        self,
        holder: NodeId,
        edge: HolderEdge,
        now: float,
        entries: Mapping[Measurement, CacheEntry],
        gone: Iterable[Measurement] = (),
        current: Iterable[Measurement] = (),
    ) -> list[Effect]:
        promised, ended, named = tuple(entries.items()), tuple(gone), list(current)
        vouches = self._is_heard(edge, now)
        if vouches:
            edge.vouched_at = now
        asked, since = (edge.asked, int((now - edge.heard_at) / AGE_UNIT_S)) if vouches else (0, 0)
        is_all = len(edge.guarantees) == len(named) <= STANDING_MAX and len(promised) <= TOLD_MAX
        words: list[Effect] = []
        for at in range(0, max(len(promised), len(ended), 1), TOLD_MAX):
            some, others = promised[at : at + TOLD_MAX], ended[at : at + TOLD_MAX]
            # An entry counts for nothing unless the same word says how old it is.
            stand = self._standing(edge, [*(measurement for measurement, _ in some), *named[:STANDING_MAX]], now)
            newest, told = self._numbers if is_all else 0, tuple(entry for _, entry in some)
            word = CacheUpdate(self._boot, edge.boot, asked, since, told, stand, others, newest)
            words.append(SendTo(holder, word))
            named, is_all = [], False
        return words

    def _standing(self, edge: HolderEdge, measurements: Iterable[Measurement], now: float) -> StandingPromises:
        """What is known to stand of the promises about these."""
        known = ((measurement, self._known(measurement, now)) for measurement in measurements)
        return StandingPromises.of(
            {edge.guarantees[each].number: self._age_s(here, now) for each, here in known if here is not None}
        )

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


def _short(entry: CacheEntry, before: BoundClaim) -> CacheEntry:
    """A promise as a holder is told of it that has the one before."""
    since = entry.claim.since
    if not entry.replaces or since.epoch != before.since.epoch:
        return entry
    return replace(entry, measurement=None, claim=replace(entry.claim, since=Sample(0, since.number)))


def _is_enough(known: Known, half_width: float) -> bool:
    """Whether a node may promise what it knows to a holder that wants such bounds."""
    return known.claim.interval.is_within(half_width) and known.claim.hops < HOPS_MAX
