"""What a node counts in windows (section 3.2.3): how many items come, and how many it wants itself. Pure."""

from __future__ import annotations

from typing import Final

from protocols.dissemination.policies.cost.messages import RATE_MAX

SMOOTHING: Final = 0.5
"""The weight of the newest window in a rate."""


class Rates:
    """Items a second: those that this node's subscriptions want, and all that come."""

    def __init__(self) -> None:
        self.own = 0.0
        self.all = 0.0
        self.is_known = False
        self._own = self._all = 0

    def count(self, *, is_own: bool) -> None:
        """An item."""
        self._all += 1
        self._own += is_own

    def end_window(self, seconds: float) -> None:
        """The window is over, after so long."""
        weight = SMOOTHING if self.is_known else 1.0
        self.own = min(RATE_MAX, self.own + weight * (self._own / seconds - self.own))
        self.all = min(RATE_MAX, self.all + weight * (self._all / seconds - self.all))
        self.is_known = self.is_known or self._all > 0
        self._own = self._all = 0


def is_far(new: float, old: float, tau: float) -> bool:
    """Whether a number is to be told again."""
    return new > old * (1 + tau) or new * (1 + tau) < old
