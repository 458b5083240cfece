"""How long a publisher waits for answers before it asks again: longer where answers have been slow. Pure.

A batch of many events keeps a leaf busy, and a busy machine keeps its daemons waiting. Asking again too soon makes both
worse, because what is repeated has to be looked up, sent and compared with what came before. So the pause is at least
what answers have taken of late, with room for their spread, as TCP does it (RFC 6298, section 2).
"""

from __future__ import annotations

from typing import Final

MEAN_SHARE: Final = 1 / 8
SPREAD_SHARE: Final = 1 / 4
"""How much one answer counts, in the mean and in the spread."""
SPREADS: Final = 4.0
ALLOWANCE_MAX_S: Final = 10.0
"""Slow answers make the pause no longer than this, so that one leaf that is slow on purpose holds up little."""


class Patience:
    """What is known of how long answers take."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._spread_s = 0.0

    def answered(self, took_s: float) -> None:
        """An answer has come, so long after it was first asked for."""
        if self._mean_s is None:
            self._mean_s, self._spread_s = took_s, took_s / 2
            return
        self._spread_s += SPREAD_SHARE * (abs(took_s - self._mean_s) - self._spread_s)
        self._mean_s += MEAN_SHARE * (took_s - self._mean_s)

    def pause_s(self, least_s: float) -> float:
        """How long to wait before the second try; ``least_s``: where answers are quick."""
        if self._mean_s is None:
            return least_s
        return max(least_s, min(self._mean_s + SPREADS * self._spread_s, ALLOWANCE_MAX_S))
