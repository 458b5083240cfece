"""What a node knows of its own measurements. Pure.

The owner is to its source what a holder is to its provider: it asks, and counts from when it asked. A source that is
slow to answer, or silent, makes the value old, and so does a pause of the owner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from peerd.ids import NodeId
from protocols.measurement.guarantee.centre import Centre
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.guarantee.words import BoundClaim, Known, Measurement, Sample


@dataclass(slots=True)
class _Owned:
    known: Known | None
    number: int
    centre: Centre


class Owner:
    """All measurements of one node."""

    def __init__(self, me: NodeId, boot: int) -> None:
        self._me, self._boot = me, boot
        self._owned: dict[str, _Owned] = {}

    def sampled(self, name: str, value: float, asked_at: float) -> Measurement | None:
        """The source was asked at that time, and has answered; returns what has changed.

        ``None``: it was asked earlier than for the value that is there. What is no finite number counts as a failure.
        """
        measurement = Measurement(self._me, name)
        if not math.isfinite(value):
            self.failed(name)
            return measurement
        owned = self._owned.setdefault(name, _Owned(None, 0, Centre(value)))
        if owned.known is not None and asked_at < owned.known.basis:
            return None
        owned.number += 1
        owned.centre.add(value)
        claim = BoundClaim(value, owned.centre.place, Interval(value, value), Sample(self._boot, owned.number))
        owned.known = Known(claim, asked_at)
        return measurement

    def failed(self, name: str) -> Measurement:
        """The source has nothing that could be told."""
        if (owned := self._owned.get(name)) is not None:
            owned.known = None
        return Measurement(self._me, name)

    def known(self, measurement: Measurement) -> Known | None:
        """What may be passed on, if anything."""
        owned = self._owned.get(measurement.name) if measurement.owner == self._me else None
        return None if owned is None else owned.known
