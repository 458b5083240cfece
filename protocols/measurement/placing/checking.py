"""Spot checks: now and then a holder asks an owner whether what a cache has told is true.

A cache may make up values, or hold back that bounds were broken. Signatures of owners would show the first and not the
second, at some hundred bytes a value; a question to the owner about one held value in a while shows both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from peerd.api import Host, Part, handles
from peerd.errors import ProtocolError
from peerd.ids import NodeId, format_id
from peerd.lib.leases import at_most
from peerd.messages import Message, PeerRef
from protocols.measurement.events import BoundViolated
from protocols.measurement.guarantee.caching import Caching
from protocols.measurement.guarantee.words import Measurement
from protocols.measurement.placing.messages import CheckClaim, ClaimChecked
from protocols.measurement.sources.past import PastSamples
from protocols.measurement.traffic import TrafficCounts

ANSWER_S: Final = 2.0
"""An answer that takes longer says nothing. So the question was at most so long on its way, and the owner leaves out
what it has read later than that before the claim's age."""
CHECK_S: Final = 64.0
"""One value is checked in this time."""


class SpotChecks(Part):
    """``distrust`` is called with what a cache has told wrongly."""

    def __init__(
        self,
        host: Host,
        caching: Caching,
        past: PastSamples,
        traffic: TrafficCounts,
        peer_of: Callable[[NodeId], PeerRef | None],
        distrust: Callable[[Measurement], None],
    ) -> None:
        self._host, self._caching, self._past = host, caching, past
        self._traffic, self._peer_of, self._distrust = traffic, peer_of, distrust
        self._checked_at = float("-inf")

    def tick(self, now: float) -> None:
        """Every now and then, ask about any value that is held from another node than its owner."""
        if now - self._checked_at < CHECK_S:
            return
        self._checked_at = now
        held = self._caching.holder.held
        from_caches = [each for each, value in held.items() if value.vouched and value.provider != each.owner]
        if not from_caches:
            return
        measurement = self._host.rng.choice(from_caches)
        owner, value = self._peer_of(measurement.owner), held[measurement]
        if owner is None:
            return
        question = CheckClaim(measurement.name, value.claim, max(0.0, self._host.now() - value.basis))
        told = partial(self._told, measurement, value.provider)
        self._host.request(owner, question, ANSWER_S, told, lambda: None)

    def _told(self, measurement: Measurement, provider: NodeId, answer: Message, source: PeerRef) -> None:
        if not isinstance(answer, ClaimChecked):
            raise ProtocolError("wrong_answer", f"{type(answer).__name__} is no answer to CheckClaim")
        outcome = "unknown" if not answer.is_known else "true" if answer.is_true else "violated"
        self._traffic.checked(outcome)
        if outcome == "violated":
            owner, cache = format_id(measurement.owner), format_id(provider)
            self._host.emit(BoundViolated(name=measurement.name, owner=owner, cache=cache))
            held = self._caching.holder.held.get(measurement)
            if held is not None and held.provider == provider:
                self._distrust(measurement)

    @handles(CheckClaim)
    def _asked(self, question: CheckClaim, source: PeerRef) -> ClaimChecked:
        claim = question.claim
        until = self._host.now() - at_most(question.age_s) - ANSWER_S
        samples = self._past.since(question.name, claim.since.number)
        if claim.since.epoch != self._caching.boot or not samples:
            return ClaimChecked(is_known=False, is_true=False)
        return ClaimChecked(True, all(claim.interval.holds(value) for at, value in samples if at <= until))
