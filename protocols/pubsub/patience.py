"""How long a publisher waits for answers before it asks again: longer where answers have been slow. Pure.

A batch of many events keeps a leaf busy, and a busy machine keeps its daemons waiting. Asking again too soon makes both
worse, because what is repeated has to be looked up, sent and compared with what came before. So the pause is at least
what answers have taken of late, with room for their spread, as TCP does it (RFC 6298, sections 2 and 3). Answers to
what was sent twice do not count, because nobody knows which of the two they answer.
"""

from __future__ import annotations

from typing import Final

MEAN_SHARE: Final = 1 / 8
SPREAD_SHARE: Final = 1 / 4
"""How much one answer counts, in the mean and in the spread."""
SPREADS: Final = 4.0
EVENT_S: Final = 0.01
"""Each event of a batch may keep the leaf busy for so long."""
FIRST_S: Final = 2.0
"""The least pause before any answer has come. Each of the first answers may need a new link, which takes three round
trips; to send the event again to hundreds of leaves that have it costs more than to wait for them."""
ALLOWANCE_MAX_S: Final = 10.0
"""Slow answers make the pause no longer than this, so that one leaf that is slow on purpose holds up little."""


class Patience:
    """What is known of how long answers take."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._spread_s = 0.0

    def answered(self, took_s: float) -> None:
        """An answer to a first try has come after so long."""
        if self._mean_s is None:
            self._mean_s, self._spread_s = took_s, took_s / 2
            return
        self._spread_s += SPREAD_SHARE * (abs(took_s - self._mean_s) - self._spread_s)
        self._mean_s += MEAN_SHARE * (took_s - self._mean_s)

    def pause_s(self, least_s: float, events: int) -> float:
        """How long to wait before so many events are sent again; ``least_s``: one event, where answers are quick."""
        usual_s = FIRST_S if self._mean_s is None else self._mean_s + SPREADS * self._spread_s
        return max(least_s, min(usual_s, ALLOWANCE_MAX_S)) + EVENT_S * (events - 1)
