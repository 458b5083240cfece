"""What a node knows of its own measurements. Pure.

The owner is to its source what a holder is to its provider: it asks, and counts from when it asked. A source that is
slow to answer, or silent, makes the value old, and so does a pause of the owner.
"""

from __future__ import annotations

from typing import NamedTuple

from peerd.ids import NodeId
from protocols.measurement.guarantee.centre import Centre
from protocols.measurement.guarantee.interval import VALUE_MAX, Interval
from protocols.measurement.guarantee.words import BoundClaim, Known, Measurement, Sample, Signatures


class _Owned(NamedTuple):
    centre: Centre
    known: Known


class Owner:
    """All measurements of one node."""

    def __init__(self, me: NodeId, boot: int, signatures: Signatures) -> None:
        self._me, self._boot, self._signatures = me, boot, signatures
        self._owned: dict[str, _Owned] = {}
        self._samples = 0

    def sampled(self, name: str, value: float, asked_at: float) -> Measurement | None:
        """The source was asked at that time, and has answered; returns what has changed.

        ``None``: it was asked earlier than for the value that is there. What is no number, or too large, is a failure.
        """
        measurement = Measurement(self._me, name)
        if not abs(value) <= VALUE_MAX:
            self.failed(name)
            return measurement
        owned = self._owned.get(name)
        if owned is not None and asked_at < owned.known.basis:
            return None
        centre = Centre(value) if owned is None else owned.centre
        centre.add(value)
        self._samples += 1
        claim = BoundClaim(value, centre.place, Interval(value, value), Sample(self._boot, self._samples))
        self._owned[name] = _Owned(centre, Known(claim, asked_at))
        return measurement

    def failed(self, name: str) -> Measurement:
        """The source has nothing that could be told. Names come and go, so nothing of it is kept."""
        self._owned.pop(name, None)
        return Measurement(self._me, name)

    def known(self, measurement: Measurement) -> Known | None:
        """What may be passed on, if anything."""
        owned = self._owned.get(measurement.name) if measurement.owner == self._me else None
        return None if owned is None else owned.known

    def promised(self, measurement: Measurement, known: Known) -> BoundClaim:
        """What a node knows, as it promises it to others: of this node's own with a signature, made once a sample."""
        owned, claim = self._owned.get(measurement.name), known.claim
        if measurement.owner != self._me or owned is None or claim.signature:
            return claim
        signed = self._signatures.signed(measurement, claim)
        if owned.known is known and signed is not claim:
            self._owned[measurement.name] = owned._replace(known=Known(signed, known.basis))
        return signed
