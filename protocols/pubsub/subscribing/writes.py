"""Waits for the disk: all that durable subscriptions have taken from one batch."""

from __future__ import annotations

from collections.abc import Callable


class Writes:
    """Writes that are under way; when the last one has ended, who waits for them is told once."""

    def __init__(self) -> None:
        self._pending = 0
        self._has_failed = False
        self._on_done: Callable[[bool], None] | None = None

    @property
    def is_durable(self) -> bool:
        """Whether all of it is on disk."""
        return self._pending == 0 and not self._has_failed

    def begin(self) -> None:
        """One more is under way."""
        self._pending += 1

    def end(self, is_durable: bool) -> None:
        """One has ended."""
        self._pending -= 1
        self._has_failed |= not is_durable
        self._tell()

    def when_done(self, callback: Callable[[bool], None]) -> None:
        """Call back once, at once if nothing is under way, saying whether all of it is on disk."""
        self._on_done = callback
        self._tell()

    def _tell(self) -> None:
        if self._pending == 0 and self._on_done is not None:
            callback, self._on_done = self._on_done, None
            callback(not self._has_failed)
