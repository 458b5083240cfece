"""When a node renews its certificate. Pure: wall-clock times in, decisions out.

At half of the certificate's life, plus a random tenth so that nodes that joined together do not ask together; after a
failure with a doubling pause. Half a life is left then: an issuer may be away that long before anybody notices.
"""

from __future__ import annotations

from typing import Final, Literal

from peerd.api import Rng

RENEW_AT: Final = 0.5
SPREAD: Final = 0.1
ERROR_AT: Final = 0.8
RETRY_FIRST: Final = 1 / 1440
"""Of the life: a minute for a day."""
RETRY_LONGEST: Final = 1 / 24
"""Of the life: an hour for a day."""


RenewalState = Literal["ok", "warning", "error", "expired"]
"""How worrying it is. warning: it is time, and it failed; error: little life is left."""


class RenewalClock:
    """Follows one certificate after the other. Times are Unix seconds."""

    def __init__(self, rng: Rng, issued_at: float, expires_at: float) -> None:
        self._rng = rng
        self.failures = 0
        self.follow(issued_at, expires_at)

    def follow(self, issued_at: float, expires_at: float) -> None:
        """A new certificate is in use."""
        self.issued_at, self.expires_at = issued_at, expires_at
        self.life_s = max(expires_at - issued_at, 1.0)
        self.failures = 0
        self.due_at = issued_at + self.life_s * (RENEW_AT + SPREAD * self._rng.random())

    def hurry(self, now: float, within_s: float) -> None:
        """Renew at a random time within ``within_s`` at the latest: the root has changed."""
        self.due_at = min(self.due_at, now + within_s * self._rng.random())

    def is_due(self, now: float) -> bool:
        """Whether to ask an issuer now."""
        return now >= self.due_at

    def failed(self, now: float) -> float:
        """No certificate came: returns the pause until the next attempt, seconds."""
        self.failures += 1
        longest = self.life_s * min(RETRY_LONGEST, RETRY_FIRST * 2.0 ** min(self.failures - 1, 16))
        pause_s = max(1.0, longest * self._rng.uniform(0.5, 1.0))
        self.due_at = now + pause_s
        return pause_s

    def state(self, now: float) -> RenewalState:
        """See `RenewalState`."""
        if now >= self.expires_at:
            return "expired"
        if now >= self.issued_at + ERROR_AT * self.life_s:
            return "error"
        return "warning" if self.failures else "ok"
