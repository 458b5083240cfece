"""How often others may make a node decide, move, or work out a place: the end of every storm. Pure."""

from __future__ import annotations

from typing import Final

DECISIONS_AT_ONCE: Final = 2
DECISIONS_A_ROUND: Final = 1
"""In the long run. A decision orders at most two moves."""
ORDERS_AT_ONCE: Final = 2
ORDERS_A_ROUND: Final = 2
"""In the long run: a node is ordered to move by its parent and by that one's parent, each in its own turn."""
PLACES_AT_ONCE: Final = 100
PLACES_A_SECOND: Final = 50
"""Newcomers that a node works a place out for, in the long run; who gets no answer asks again."""


class Pace:
    """Something that may be done so many times at once, and once each ``every_s`` seconds in the long run."""

    def __init__(self, at_once: int, every_s: float, now: float) -> None:
        self._at_once = float(at_once)
        self._every_s = every_s
        self._left = self._at_once
        self._at_s = now

    def take(self, now: float) -> bool:
        """Whether it may be done now; if so, it counts."""
        self._left = min(self._at_once, self._left + (now - self._at_s) / self._every_s)
        self._at_s = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
