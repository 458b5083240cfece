"""What a node holds of other nodes' measurements: cache entries (section 2.2). Pure.

A value counts as fresh by its age alone, which is reckoned from the owner's reading on, along the whole way, by the
clocks of those who had it, each rounded up. So a cache in the middle cannot keep a value fresh by itself, and nor can
two that provide for each other.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.lib.leases import Asks, at_most
from protocols.measurement.guarantee.effects import Disbelieved, Effect, ProviderLate, ProviderLost, SendTo
from protocols.measurement.guarantee.messages import WANTED_MAX, CacheAsk, CacheEntry, CacheUpdate
from protocols.measurement.guarantee.words import (
    BoundClaim,
    Known,
    Measurement,
    Sample,
    Signatures,
    SignatureVerdict,
    Terms,
    Want,
)

STOP_S: Final = 1.0
"""A provider hears so soon that something of it is not wanted any more: else it sends updates for nothing."""
ASKS: Final = 2.5
"""A provider is asked to go on at least once in so many update intervals: a word counts for the older, the longer ago
the question was by which it is dated."""
PASSING_ASKS: Final = 0.5
"""The same, where it is passed on to others, and has to be young."""
YOUNG: Final = 1.5
"""That is what is wanted more often than in so many of the intervals in which all are told anyway."""
LATE: Final = 2.2
"""A value that has come to be older than so many update intervals is not kept young enough."""
NEVER: Final = float("-inf")


@dataclass(slots=True)
class HeldValue:
    """A value from a provider. One that is not ``vouched`` for is kept for those who want a stale one."""

    provider: NodeId
    boot: int
    number: int
    claim: BoundClaim
    basis: float
    vouched: bool = True


@dataclass(slots=True)
class ProviderEdge:
    """One provider."""

    asks: Asks = field(default_factory=Asks)
    boot: int = 0
    asked_at: float = NEVER
    often_s: float = math.inf
    """All that is wanted of it is to be vouched for so often, if not as often as all are."""
    promises: dict[int, Measurement] = field(default_factory=dict)
    """What this node holds of it, by the numbers of its promises in its boot."""
    unknown: set[int] = field(default_factory=set)
    """Promises of it that this node does not know."""
    has_missed: bool = False
    """It has replaced a promise that this node does not know: all is asked for anew."""
    unwanted: dict[Measurement, None] = field(default_factory=dict)
    """What it may still promise, and this node wants no more, or from another one."""


SOUGHT_MAX: Final = 256
"""Questions for whoever can provide whose answers are waited for, the newest ones."""


class WantedValue(Frozen):
    """What this node wants, and from whom: vouched for so often, if not as often as all are."""

    half_width: float
    provider: NodeId
    update_s: float


class Heard(Frozen):
    """What a word of a provider has done. ``changed``: this node holds another claim of these, or none any more; the
    value says whether the one before held until this one."""

    changed: dict[Measurement, bool]
    renewed: list[Measurement]
    effects: list[Effect]


class Holder:
    """All that one node holds."""

    def __init__(self, boot: int, terms: Terms, signatures: Signatures) -> None:
        self._boot, self._terms, self._signatures = boot, terms, signatures
        self.wanted: dict[Measurement, WantedValue] = {}
        self._wanted_of: dict[NodeId, dict[Measurement, None]] = {}
        """The same by provider."""
        self._sought: dict[Measurement, tuple[float, float, int]] = {}
        """Half-width and update interval of what whoever answers is to provide, and the number of the question."""
        self._sought_at: OrderedDict[int, float] = OrderedDict()
        """When these were asked for, by the number of the question."""
        self.held: dict[Measurement, HeldValue] = {}
        self._edges: dict[NodeId, ProviderEdge] = {}
        self._numbers = 0

    # Wanting

    def want(self, wants: Iterable[Want], provider: NodeId, now: float, update_s: float | None = None) -> list[Effect]:
        """Hold these from now on. Where another node provides one, it goes on until the new one does.

        ``update_s``: they are to be vouched for at least so often, if not as often as all are.
        """
        often_s = self._terms.update_s if update_s is None else update_s
        for want in wants:
            self._sought.pop(want.measurement, None)
            self._set_wanted(want.measurement, WantedValue(want.half_width, provider, often_s))
        return self._ask(provider, now)

    def _set_wanted(self, measurement: Measurement, wanted: WantedValue) -> None:
        self._forget_wanted(measurement)
        self.wanted[measurement] = wanted
        self._wanted_of.setdefault(wanted.provider, {})[measurement] = None

    def seek(self, wants: Sequence[Want], now: float, update_s: float) -> CacheAsk:
        """A question for these, at most `WANTED_MAX`, to nobody in particular: who answers is to provide them.

        What is held of them goes on until then. A question that nobody has answered may be asked again.
        """
        self._numbers += 1
        self._sought_at[self._numbers] = now
        if len(self._sought_at) > SOUGHT_MAX:
            self._sought_at.popitem(last=False)
        self._sought.update((want.measurement, (want.half_width, update_s, self._numbers)) for want in wants)
        return CacheAsk(self._boot, self._numbers, self._terms.max_age_s, self._often_s(update_s), tuple(wants))

    def _found(
        self, provider: NodeId, asked: int, entries: Iterable[tuple[Measurement, CacheEntry]], asked_at: float
    ) -> None:
        """Somebody answers a question that was for nobody in particular."""
        up = self._up(provider)
        up.asks.note(asked, asked_at)
        up.asked_at = max(up.asked_at, asked_at)
        for measurement, _ in entries:
            half_width, update_s, number = self._sought.get(measurement, (0.0, 0.0, 0))
            if number == asked:  # else it is news of who has answered the question before
                del self._sought[measurement]
                self._set_wanted(measurement, WantedValue(half_width, provider, update_s))
                up.often_s = min(up.often_s, update_s)

    def unwant(self, measurements: Iterable[Measurement], now: float) -> list[Effect]:
        """Hold them no more, so that nothing is sent for them."""
        providers: dict[NodeId, None] = {}
        for measurement in measurements:
            self._sought.pop(measurement, None)
            wanted, held = self._forget_wanted(measurement), self.held.get(measurement)
            if held is not None:
                self._let_go(measurement, held)
                del self.held[measurement]
            for provider in dict.fromkeys(each.provider for each in (wanted, held) if each is not None):
                providers[provider] = None
        return [effect for provider in providers for effect in self._ask(provider, now)]

    def alike(self, measurement: Measurement) -> int:
        """How many values are wanted of the provider of this one, or of its owner if nobody provides it yet."""
        wanted = self.wanted.get(measurement)
        provider = measurement.owner if wanted is None else wanted.provider
        return len(self._wanted_of.get(provider, ()))

    def _let_go(self, measurement: Measurement, held: HeldValue) -> None:
        """Its provider need not keep this promise any more."""
        up = self._up(held.provider)
        if up.boot == held.boot and up.promises.pop(held.number, None) is not None:
            up.unwanted[measurement] = None

    def _forget_wanted(self, measurement: Measurement) -> WantedValue | None:
        wanted = self.wanted.pop(measurement, None)
        if wanted is not None:
            of_provider = self._wanted_of[wanted.provider]
            del of_provider[measurement]
            if not of_provider:
                del self._wanted_of[wanted.provider]
        return wanted

    def _up(self, provider: NodeId) -> ProviderEdge:
        return self._edges.setdefault(provider, ProviderEdge())

    def _often_s(self, update_s: float) -> float:
        return min(update_s, self._terms.update_s)

    def update_s(self, measurement: Measurement) -> float:
        """How often what this node wants is to be vouched for."""
        return self._often_s(self.wanted[measurement].update_s)

    def _lacks(self, measurement: Measurement, wanted: WantedValue, boot: int) -> bool:
        held = self.held.get(measurement)
        if held is None or not held.vouched or (held.provider, held.boot) != (wanted.provider, boot):
            return True
        return not held.claim.interval.is_within(wanted.half_width)

    def _is_wanted_of(self, measurement: Measurement, provider: NodeId) -> bool:
        wanted = self.wanted.get(measurement)
        return wanted is not None and wanted.provider == provider

    def _ask(self, provider: NodeId, now: float) -> list[Effect]:
        """Ask a provider for all that is wanted and lacking, and to go on with the rest."""
        up = self._up(provider)
        theirs = [(each, self.wanted[each]) for each in self._wanted_of.get(provider, ())]
        lacks = [each for each in theirs if up.has_missed or self._lacks(*each, up.boot)]
        lacking = [Want(measurement, wanted.half_width) for measurement, wanted in lacks]
        up.often_s = min((wanted.update_s for _, wanted in theirs), default=math.inf)
        unknown, unwanted = sorted(up.unknown), [each for each in up.unwanted if not self._is_wanted_of(each, provider)]
        up.has_missed = False
        up.unknown.clear()
        up.unwanted.clear()
        up.asked_at = now
        asks: list[Effect] = []
        for first in range(0, max(len(lacking), len(unknown), len(unwanted), 1), WANTED_MAX):
            self._numbers += 1
            up.asks.note(self._numbers, now)
            part = slice(first, first + WANTED_MAX)
            some = tuple(lacking[part]), tuple(unknown[part]), tuple(unwanted[part])
            max_age_s, often_s = self._terms.max_age_s, self._often_s(up.often_s)
            asks.append(SendTo(provider, CacheAsk(self._boot, self._numbers, max_age_s, often_s, *some)))
        return asks

    # Hearing

    def heard(self, provider: NodeId, word: CacheUpdate, now: float) -> Heard:
        """A provider says something, now or any time ago."""
        done = Heard({}, [], [])
        entries = self._named(provider, word)
        if word.holder_boot == self._boot and (asked_at := self._sought_at.get(word.asked)) is not None:
            self._found(provider, word.asked, entries, asked_at)
        if word.holder_boot != self._boot:
            return done
        if word.entries:  # also of one from which nothing is wanted: it is told so
            self._up(provider)
        up = self._edges.get(provider)
        if up is None or word.boot < up.boot:
            return done
        is_behind = word.boot > up.boot > 0
        if word.boot > up.boot:
            up.promises.clear()
            up.unknown.clear()
        up.boot = word.boot
        said_at = up.asks.said_at(word.asked, word.since_s)
        ages = {} if said_at is None else word.standing.ages_s()
        if len(entries) < len(word.entries):
            up.has_missed, named = True, {entry.number for _, entry in entries}
            up.unknown.update(entry.number for entry in word.entries if entry.number not in named)
        for measurement, entry in entries:
            self._take(provider, word.boot, measurement, entry, done, is_dated=entry.number in ages)
        for measurement in word.gone:
            self._gone(provider, measurement, done)
        if said_at is not None:
            is_behind |= self._stand(provider, word, ages, said_at, done)
        if is_behind:
            done.effects.extend(self._ask(provider, now))
        return done

    def _named(self, provider: NodeId, word: CacheUpdate) -> list[tuple[Measurement, CacheEntry]]:
        """The entries of a word, and what they are about, but for those that replace a promise which is not known."""
        up, found = self._edges.get(provider), []
        promises = up.promises if up is not None and up.boot == word.boot else {}
        for entry in word.entries:
            if entry.measurement is not None:
                found.append((entry.measurement, entry))
            elif (measurement := promises.get(entry.replaces)) is not None:
                since = Sample(self.held[measurement].claim.since.epoch, entry.claim.since.number)
                found.append((measurement, replace(entry, claim=replace(entry.claim, since=since))))
        return found

    def _stand(
        self, provider: NodeId, word: CacheUpdate, ages: Mapping[int, float], said_at: float, done: Heard
    ) -> bool:
        """These promises stand, said their provider; whether there are any that this node wants and has not got."""
        up = self._up(provider)
        unknown = []
        for number, age_s in ages.items():
            measurement = up.promises.get(number)
            if measurement is None:
                unknown.append(number)
            else:
                self._renew(measurement, said_at - at_most(age_s), done)
        if not word.newest:
            return False
        missed = [
            measurement
            for number, measurement in up.promises.items()
            if number <= word.newest and number not in ages and self.held[measurement].vouched
        ]
        for measurement in missed:
            self._distrust(measurement, self.held[measurement], done)
        if not (missed or unknown):
            return False
        lacks = any(self._lacks(each, self.wanted[each], up.boot) for each in self._wanted_of.get(provider, ()))
        if not lacks:
            up.unknown.update(unknown)  # nobody wants them here: what was to say so was lost
        return lacks

    def _renew(self, measurement: Measurement, basis: float, done: Heard) -> None:
        held = self.held[measurement]
        if held.vouched:
            held.basis = max(held.basis, basis)
            done.renewed.append(measurement)

    @staticmethod
    def _distrust(measurement: Measurement, held: HeldValue, done: Heard) -> None:
        """Nobody vouches for this any more, as far as this node knows."""
        if held.vouched:
            held.vouched = False
            done.changed[measurement] = False

    def _take(
        self,
        provider: NodeId,
        boot: int,
        measurement: Measurement,
        entry: CacheEntry,
        done: Heard,
        *,
        is_dated: bool,
    ) -> None:
        """A promise that this node may not have. Its age is in the same word, if it can be told."""
        wanted, held, up = self.wanted.get(measurement), self.held.get(measurement), self._up(provider)
        is_here = held is not None and (held.provider, held.boot) == (provider, boot)
        if wanted is None or (wanted.provider != provider and not is_here):
            up.unwanted[measurement] = None
            return
        if held is not None and is_here and entry.number < held.number + held.vouched:
            return  # it has this one, or a later one
        is_enough = is_dated and entry.claim.interval.is_within(wanted.half_width)
        claim = self._believed(provider, measurement, entry.claim, done) if is_enough else None
        if claim is None:
            if held is not None and is_here:
                self._distrust(measurement, held, done)
            return
        if held is not None and is_here:
            up.promises.pop(held.number, None)
        elif held is not None:
            self._let_go(measurement, held)
        is_known = held is not None and is_here and held.vouched and held.number == entry.replaces
        self.held[measurement] = HeldValue(provider, boot, entry.number, claim, NEVER)
        up.promises[entry.number] = measurement
        done.changed[measurement] = is_known and entry.is_continuous and done.changed.get(measurement, True)

    def _believed(
        self, provider: NodeId, measurement: Measurement, claim: BoundClaim, done: Heard
    ) -> BoundClaim | None:
        """What this node holds of a claim: with a signature only if it has checked that, since it shows it to others;
        ``None``: nothing, as its owner has not signed it."""
        verdict = self._signatures.verdict(measurement, claim)
        if verdict is SignatureVerdict.GENUINE:
            return claim
        if provider == measurement.owner:  # their link shows who says that
            return replace(claim, signature=b"")
        done.effects.append(Disbelieved(measurement, provider, verdict is SignatureVerdict.FORGED))
        return None

    def _gone(self, provider: NodeId, measurement: Measurement, done: Heard) -> None:
        wanted, held = self.wanted.get(measurement), self.held.get(measurement)
        if held is not None and held.provider == provider:
            self._distrust(measurement, held, done)
        if wanted is not None and wanted.provider == provider:
            done.effects.append(ProviderLost(measurement, provider))

    # Time

    def tick(self, now: float, *, passes_on: bool = False) -> Heard:
        """Drop what nobody has vouched for in time, and ask those who have not been asked for a while.

        ``passes_on``: to others, all of it at once. So all providers are asked at once, and each time that this node is
        to hear of them: then nothing of it is older than the way to it.
        """
        done = Heard({}, [], [])
        for measurement, held in self.held.items():
            if held.vouched and now - held.basis > self._terms.max_age_s:
                self._distrust(measurement, held, done)
                if measurement in self.wanted:
                    done.effects.append(ProviderLost(measurement, held.provider))
            elif held.vouched and held.provider != measurement.owner and self._is_late(measurement, held, now):
                done.effects.append(ProviderLate(measurement))
        providers = self.providers()
        self._edges = {provider: edge for provider, edge in self._edges.items() if provider in providers}
        due = {provider: self._due(self._up(provider), now, passes_on=passes_on) for provider in providers}
        least = 0.5 if passes_on and max(due.values(), default=0.0) >= 1.0 else 1.0
        for provider, share in due.items():
            if share >= least:
                done.effects.extend(self._ask(provider, now))
        return done

    def _due(self, up: ProviderEdge, now: float, *, passes_on: bool) -> float:
        """How much is over of the time after which a provider is asked again."""
        asked_s = now - up.asked_at
        if (up.unknown or up.unwanted) and asked_s >= STOP_S:
            return 1.0
        has_to_be_young = passes_on and up.often_s < YOUNG * self._terms.update_s
        intervals = PASSING_ASKS if has_to_be_young else ASKS
        return asked_s / min(self._terms.ask_s, intervals * self._often_s(up.often_s))

    def _is_late(self, measurement: Measurement, held: HeldValue, now: float) -> bool:
        wanted = self.wanted.get(measurement)
        return wanted is not None and wanted.provider == held.provider and now - held.basis > LATE * wanted.update_s

    def lost(self, provider: NodeId) -> list[Effect]:
        """A node is not to be reached. What it owns is asked for again anyway."""
        wanted = self._wanted_of.get(provider, ())
        return [ProviderLost(measurement, provider) for measurement in wanted if measurement.owner != provider]

    def is_provider(self, node: NodeId) -> bool:
        """Whether it provides for this node, or may, or has still to hear that it need not."""
        return node in self._edges

    def providers(self) -> KeysView[NodeId]:
        """All that provide for this node, or are to, or have still to hear that it wants something no more."""
        return dict.fromkeys(self._providers()).keys()

    def _providers(self) -> Iterator[NodeId]:
        yield from self._wanted_of
        for held in self.held.values():
            if held.vouched:
                yield held.provider
        for provider, up in self._edges.items():
            if up.unknown or up.unwanted:
                yield provider

    def known(self, measurement: Measurement) -> Known | None:
        """What may be passed on, unless it is too old by now."""
        held = self.held.get(measurement)
        if held is None or not held.vouched:
            return None
        return Known(held.claim, held.basis)
