"""How late the event loop runs its timers; with this an overloaded daemon is told from a slow network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from peerd.daemon.links.settings import monotonic_s

INTERVAL_S: Final = 0.5


class LoopLag:
    """Measures continuously; `last_s` is the newest value, `take_max_s` the largest since it was last asked."""

    def __init__(self, interval_s: float = INTERVAL_S, now: Callable[[], float] = monotonic_s) -> None:
        self.last_s = 0.0
        self._interval_s = interval_s
        self._now = now
        self._max_s = 0.0
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure from now on."""
        self._due_at = self._now() + self._interval_s
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take_max_s(self) -> float:
        """The largest lag since the last call, seconds."""
        largest, self._max_s = max(self._max_s, self.last_s), 0.0
        return largest

    def _tick(self) -> None:
        self.last_s = max(0.0, self._now() - self._due_at)
        self._max_s = max(self._max_s, self.last_s)
        self.start()
