"""One node's part in the guarantee: owner of its measurements, holder of others', provider of both. Pure.

What holds (docs name it the guarantee): of an answer that is not stale, with the age a and a claim that begins with the
sample s, there is a moment, at most a before the answer, up to which the value was inside the interval ever since s, by
the owner's readings. That needs no bound on delay, order, loss, pauses and restarts; only that clocks keep to
`peerd.lib.leases.DRIFT_MAX`, and that providers say what they know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from peerd.frozen import Frozen
from peerd.ids import NodeId
from protocols.measurement.guarantee.effects import Effect, Moved
from protocols.measurement.guarantee.holder import Heard, Holder
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.guarantee.owner import Owner
from protocols.measurement.guarantee.provider import Provider
from protocols.measurement.guarantee.words import (
    BoundClaim,
    Known,
    Measurement,
    NoSignatures,
    Signatures,
    Terms,
    Want,
)


class CacheAnswer(Frozen):
    """A value, for whoever asks. ``provider``: who told this node, or the node itself."""

    claim: BoundClaim
    age_s: float
    provider: NodeId
    is_stale: bool


class Caching:
    """Events go in as method calls, with the time by this node's clock; each returns what is to be done, in order."""

    def __init__(self, me: NodeId, boot: int, terms: Terms, signatures: Signatures | None = None) -> None:
        self.me, self.boot, self._terms = me, boot, terms
        self.signatures = NoSignatures() if signatures is None else signatures
        self.owner = Owner(me, boot, self.signatures)
        self.holder = Holder(boot, terms, self.signatures)
        self.provider = Provider(boot, terms, self.fresh, self.owner.promised)

    # Owner

    def sampled(self, values: Mapping[str, float], asked_at: float, now: float) -> list[Effect]:
        """The source of own measurements was asked at that time, and has answered."""
        measurements = [self.owner.sampled(name, value, asked_at) for name, value in values.items()]
        return self._changed({each: True for each in measurements if each is not None}, now)

    def failed(self, names: Iterable[str], now: float) -> list[Effect]:
        """The source of own measurements has not answered, and is not going to."""
        return self._changed({self.owner.failed(name): False for name in names}, now)

    # Holder

    def want(self, wants: Iterable[Want], provider: NodeId, now: float, update_s: float | None = None) -> list[Effect]:
        """Hold measurements of other nodes from now on, as that provider tells them, at least so often."""
        return self.holder.want(wants, provider, now, update_s)

    def seek(self, wants: Sequence[Want], now: float, update_s: float) -> CacheAsk:
        """A question that is to find who provides these; see `Holder.seek`."""
        return self.holder.seek(wants, now, update_s)

    def unwant(self, measurements: Collection[Measurement], now: float) -> list[Effect]:
        """Hold them no more."""
        return [*self.holder.unwant(measurements, now), *self._changed(dict.fromkeys(measurements, False), now)]

    # Messages and time

    def asked(self, holder: NodeId, ask: CacheAsk, now: float) -> list[Effect]:
        """A node asks this one to provide."""
        return self.provider.asked(holder, ask, now)

    def heard(self, provider: NodeId, word: CacheUpdate, now: float) -> list[Effect]:
        """A provider says something."""
        return self._done(self.holder.heard(provider, word, now), now)

    def tick(self, now: float) -> list[Effect]:
        """To be called a few times in each `Terms.update_s`."""
        return [*self._done(self.holder.tick(now, passes_on=self.provider.passes_on()), now), *self.provider.tick(now)]

    def _done(self, done: Heard, now: float) -> list[Effect]:
        self.provider.renewed(done.renewed)
        return [*done.effects, *self._changed(done.changed, now)]

    def _changed(self, measurements: Mapping[Measurement, bool], now: float) -> list[Effect]:
        """This node knows something else of these; the value says whether what it knew held until now."""
        effects = self.provider.changed(measurements, now) if measurements else []
        return [*effects, *map(Moved, measurements)]

    # Reading

    def _known(self, measurement: Measurement) -> Known | None:
        return self.owner.known(measurement) or self.holder.known(measurement)

    def fresh(self, measurement: Measurement, now: float) -> Known | None:
        """What this node knows and may pass on."""
        known = self._known(measurement)
        return known if known is not None and now - known.basis <= self._terms.max_age_s else None

    def read(self, measurement: Measurement, now: float, max_age_s: float | None = None) -> CacheAnswer | None:
        """What this node knows; ``None``: nothing."""
        known, held = self._known(measurement), self.holder.held.get(measurement)
        if known is None and held is not None:
            return CacheAnswer(held.claim, max(0.0, now - held.basis), held.provider, is_stale=True)
        if known is None:
            return None
        age_s = max(0.0, now - known.basis)
        limit_s = self._terms.max_age_s if max_age_s is None else min(max_age_s, self._terms.max_age_s)
        return CacheAnswer(known.claim, age_s, held.provider if held is not None else self.me, is_stale=age_s > limit_s)
