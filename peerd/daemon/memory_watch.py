"""Ends a daemon that gets no memory any more: it cannot serve, and its supervisor starts it anew.

One allocation that fails may be one value that is too large; the daemon goes on. Several within a minute mean that
there is nothing left, and without this they would go on for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

FAILURES_MAX: Final = 5
WINDOW_S: Final = 60.0
"""With so many failures within so long the daemon ends."""
END_S: Final = 5.0
"""An orderly end also needs memory: after this the process ends without one."""


class MemoryWatch:
    """Counts allocations that failed. ``give_up`` is called once."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up: Callable[[], None] | None = give_up
        self._failed_at: deque[float] = deque(maxlen=FAILURES_MAX)

    def failed(self, error: object, now: float) -> None:
        """Something has failed; if that was an allocation, count it."""
        if not isinstance(error, MemoryError) or self._give_up is None:
            return
        self._failed_at.append(now)
        if len(self._failed_at) == FAILURES_MAX and now - self._failed_at[0] < WINDOW_S:
            give_up, self._give_up = self._give_up, None
            give_up()


def tell_loop_of_memory(error: BaseException) -> None:
    """Have the event loop's handler, which has a `MemoryWatch`, hear of an allocation that failed elsewhere."""
    if isinstance(error, MemoryError):
        asyncio.get_running_loop().call_exception_handler({"message": "no memory", "exception": error})
