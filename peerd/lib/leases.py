"""Leases: what somebody else's word is worth, and until when, by the clock of who relies on it. Pure.

No two clocks are compared, and no message is taken to have come at once. Who relies on a word has asked for it, and
counts from when it asked: the word was said later than that. Who gives a word says how long ago it heard the question,
so that one question dates all words that follow it. `DRIFT_MAX` is all that is assumed of clocks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

DRIFT_MAX: Final = 0.05
"""A second by any clock is a second give or take this share of it. Crystals are off by a thousandth of that."""
_SLOWEST: Final = (1.0 - DRIFT_MAX) / (1.0 + DRIFT_MAX)
ASKS_KEPT: Final = 64
"""Questions to one peer whose words can be dated, the newest ones."""


def at_least(elapsed_s: float) -> float:
    """So much time has passed by one clock at least, when this has passed by another."""
    return elapsed_s * _SLOWEST


def at_most(elapsed_s: float) -> float:
    """So much time has passed by one clock at most, when this has passed by another."""
    return elapsed_s / _SLOWEST


class Asks:
    """When one node asked one peer which question. Numbers grow, and none is used twice in a boot."""

    __slots__ = ("_asked_at",)

    def __init__(self) -> None:
        self._asked_at: OrderedDict[int, float] = OrderedDict()

    def note(self, number: int, now: float) -> None:
        """A question of this number is sent."""
        self._asked_at[number] = now
        if len(self._asked_at) > ASKS_KEPT:
            self._asked_at.popitem(last=False)

    def said_at(self, number: int, since_s: float) -> float | None:
        """A word was said no earlier than this, by this node's clock. ``None``: nobody can tell.

        ``since_s``: so long after it had heard the question of that number, the peer said it, by its own clock.
        """
        asked_at = self._asked_at.get(number)
        return None if asked_at is None else asked_at + at_least(since_s)
