"""How much there was of something a second, of late, and what work weighs beside bytes that are sent. Pure.

A node is busy because of what it sends or because of what it computes. So that both count in one figure, work has a
price in bytes: one for each microsecond of a processor, as if its link took 8 Mbit/s. The work itself is counted, and
not timed, so that a simulator counts the same as a daemon.
"""

from __future__ import annotations

import math
from typing import Final

METER_S: Final = 60.0
"""What was counted so long ago weighs 1/e of what is counted now."""
EVENT_BYTES: Final = 40
"""The price of an event that visits a leaf: it is read, looked up among the filters, and acknowledged."""
FILTER_BYTES: Final = 2
"""The price of a filter that it meets."""
MESSAGE_BYTES: Final = 50
"""The price of a message with events, beside its size: it is encoded, encrypted, looked after, and answered."""


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
