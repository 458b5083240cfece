"""Spot checks: now and then a holder or reader asks an owner whether what a cache has told is true.

A cache may make up values, or hold back that bounds were broken. Signatures of owners show the first at once and the
second never, at 64 bytes a value; a question to the owner about one value in a while shows both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from peerd.api import Host, Part, handles
from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id
from peerd.lib.leases import at_most
from peerd.limits import SIGNATURE_BYTES
from peerd.messages import Message, PeerRef, encode_struct
from protocols.measurement.events import BoundViolated
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import BoundClaim, Known, Measurement, SignatureVerdict
from protocols.measurement.placing.along import FoundAlong
from protocols.measurement.placing.messages import CheckClaim, ClaimChecked
from protocols.measurement.sources.past import PastSamples
from protocols.measurement.traffic import TrafficCounts

ANSWER_S: Final = 2.0
"""An answer that takes longer says nothing. So the question was at most so long on its way, and the owner leaves out
what it has read later than that before the claim's age."""
CHECK_S: Final = 64.0
"""At most one value is checked in this time."""
READS: Final = 16
"""After the first, one of so many answers to READs is checked, each of which has cost two messages and more: so checks,
of two messages, are a small part of what reads cost."""


class OwnerSignatures:
    """Implements `Signatures` with the keys that nodes describe themselves with: ids follow from keys, so none can be
    another node's.

    A signature is of the sample and its value. What a cache adds is the interval around it, and how old that is.
    """

    def __init__(self, host: Host, keys: Callable[[], Mapping[NodeId, bytes]]) -> None:
        self._host, self._keys = host, keys

    def signed(self, measurement: Measurement, claim: BoundClaim) -> BoundClaim:
        return replace(claim, signature=self._host.sign(_statement(measurement, claim))[:SIGNATURE_BYTES])

    def verdict(self, measurement: Measurement, claim: BoundClaim) -> SignatureVerdict:
        key = self._keys().get(measurement.owner, b"")
        if not (claim.signature and key):
            return SignatureVerdict.UNSIGNED
        statement = _statement(measurement, claim)
        is_signed = self._host.verify_by_key(measurement.owner, statement, claim.signature, key)
        return SignatureVerdict.GENUINE if is_signed and claim.interval.holds(claim.value) else SignatureVerdict.FORGED


def _statement(measurement: Measurement, claim: BoundClaim) -> bytes:
    sample = BoundClaim(claim.value, claim.value, Interval(claim.value, claim.value), claim.since)
    return b"measured " + encode_struct(sample) + measurement.name.encode()


class SpotChecks(Part):
    """``distrust`` is called with who has told something wrong."""

    def __init__(
        self,
        host: Host,
        caching: Caching,
        past: PastSamples,
        traffic: TrafficCounts,
        peer_of: Callable[[NodeId], PeerRef | None],
        distrust: Callable[[NodeId], None],
    ) -> None:
        self._host, self._caching, self._past = host, caching, past
        self._traffic, self._peer_of, self._distrust = traffic, peer_of, distrust
        self._looked_at = self._checked_at = float("-inf")
        """When it was looked last whether there is anything held to check, and when something was checked."""

    def tick(self, now: float) -> None:
        """Every now and then, ask about any value that is held from another node than its owner."""
        if now - self._looked_at >= CHECK_S:
            self._looked_at = now
            held = self._caching.holder.held.items()
            self._check(
                FoundAlong(each, Known(value.claim, value.basis), value.provider, 0)
                for each, value in held
                if value.vouched
            )

    def read(self, found: Sequence[FoundAlong]) -> None:
        """The same of answers to a READ."""
        checked_s = self._host.now() - self._checked_at
        if checked_s == math.inf or (checked_s >= CHECK_S and not self._host.rng.randrange(READS)):
            self._check(found)

    def _check(self, told: Iterable[FoundAlong]) -> None:
        by_others = [each for each in told if each.provider != each.measurement.owner]
        if not by_others:
            return
        self._checked_at = self._host.now()
        one = self._host.rng.choice(by_others)
        owner = self._peer_of(one.measurement.owner)
        if owner is None:
            return
        known = one.known
        claim = replace(known.claim, signature=b"")
        question = CheckClaim(one.measurement.name, claim, max(0.0, self._host.now() - known.basis))
        self._host.request(owner, question, ANSWER_S, partial(self._told, one.measurement, one.provider), lambda: None)

    def _told(self, measurement: Measurement, provider: NodeId, answer: Message, source: PeerRef) -> None:
        if not isinstance(answer, ClaimChecked):
            raise ProtocolError("wrong_answer", f"{type(answer).__name__} is no answer to CheckClaim")
        if answer.is_known and not answer.is_true:
            self.lied(measurement, provider, "violated")
        else:
            self._traffic.checked("true" if answer.is_known else "unknown")

    def lied(self, measurement: Measurement, cache: NodeId, outcome: str) -> None:
        """A cache has told something wrong."""
        self._traffic.checked(outcome)
        owner, by = format_id(measurement.owner), format_id(cache)
        self._host.emit(BoundViolated(name=measurement.name, owner=owner, cache=by))
        self._distrust(cache)

    def is_signed(self, measurement: Measurement, claim: BoundClaim, cache: NodeId) -> bool:
        """Whether what a cache has answered to a READ may be believed, where owners sign what they measure."""
        verdict = self._caching.signatures.verdict(measurement, claim)
        if verdict is SignatureVerdict.FORGED:
            self.lied(measurement, cache, "forged")
        return verdict is SignatureVerdict.GENUINE

    @handles(CheckClaim)
    def _asked(self, question: CheckClaim, source: PeerRef) -> ClaimChecked:
        """Which values were read since the claim began, and are old enough for it to be about them; the first one of
        this boot is at any age. A sample that there has not been yet is a lie."""
        since, holds = question.claim.since, question.claim.interval.holds
        newest = self._caching.owner.known(Measurement(self._host.id, question.name))
        if newest is None:
            return ClaimChecked(is_known=False, is_true=False)
        if (since.epoch, since.number) > (newest.claim.since.epoch, newest.claim.since.number):
            return ClaimChecked(is_known=True, is_true=False)
        until = self._host.now() - at_most(question.age_s) - ANSWER_S
        first = since.number if since.epoch == newest.claim.since.epoch else 0
        later = [(at, value) for number, at, value in self._past.numbered(question.name) if number >= first]
        judged = [value for index, (at, value) in enumerate(later) if at <= until or (first and index == 0)]
        return ClaimChecked(True, all(holds(value) for value in judged))
