"""How much there was of something a second, of late. Pure."""

from __future__ import annotations

import math
from typing import Final

METER_S: Final = 60.0
"""What was counted so long ago weighs 1/e of what is counted now."""


class Meter:
    """A decaying sum of what was added."""

    __slots__ = ("_at", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = 0.0

    def add(self, amount: float, now: float) -> None:
        """So much more."""
        self._sum = self._decayed(now) + amount
        self._at = now

    def take_out(self, other: Meter, now: float) -> None:
        """What the other one has counted was counted here, too, and will not be any more."""
        self.add(-other.rate(now) * METER_S, now)
        self._sum = max(0.0, self._sum)

    def rate(self, now: float) -> float:
        """How much a second."""
        return self._decayed(now) / METER_S

    def _decayed(self, now: float) -> float:
        return self._sum * math.exp((self._at - now) / METER_S)
