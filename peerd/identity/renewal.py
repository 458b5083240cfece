"""When a node renews its certificate. Pure: wall-clock times in, decisions out.

It renews after half of the certificate's lifetime, plus a random tenth, so that nodes that joined together do not ask
together; after each failure the pause doubles. So an issuer may be away for nearly half a lifetime without harm.
"""

from __future__ import annotations

from typing import Final, Literal

from peerd.api import Rng

RENEW_AT: Final = 0.5
SPREAD: Final = 0.1
ERROR_AT: Final = 0.8
RETRY_FIRST: Final = 1 / 1440
"""The first pause as a fraction of the certificate's lifetime: a minute if that is a day."""
RETRY_LONGEST: Final = 1 / 24
"""The longest pause as a fraction of the lifetime: an hour if that is a day."""


RenewalState = Literal["ok", "warning", "error", "expired"]
"""The state of the renewal. warning: renewal is due and has failed; error: little of the lifetime is left."""


class RenewalClock:
    """Follows one certificate after the other. Times are Unix seconds."""

    def __init__(self, rng: Rng, issued_at: float, expires_at: float) -> None:
        self._rng = rng
        self.failures = 0
        self.follow(issued_at, expires_at)

    def follow(self, issued_at: float, expires_at: float) -> None:
        """Start again with a new certificate, which is now in use."""
        self.issued_at, self.expires_at = issued_at, expires_at
        self.life_s = max(expires_at - issued_at, 1.0)
        self.failures = 0
        self.due_at = issued_at + self.life_s * (RENEW_AT + SPREAD * self._rng.random())

    def hurry(self, now: float, within_s: float) -> None:
        """Renew earlier: at a random time within ``within_s`` seconds, because the root has changed."""
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
        """How the renewal stands now."""
        if now >= self.expires_at:
            return "expired"
        if now >= self.issued_at + ERROR_AT * self.life_s:
            return "error"
        return "warning" if self.failures else "ok"
