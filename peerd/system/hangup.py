"""Ignores SIGHUP while no daemon is there to reload: by default the signal would end the process."""

from __future__ import annotations

import signal


def ignore_hangups() -> None:
    """Ignore SIGHUP from now on, until a handler is installed."""
    signal.signal(signal.SIGHUP, _nothing)


def _nothing(number: int, frame: object) -> None:
    """A handler that does nothing. ``SIG_IGN`` would be inherited by processes that are started from here."""
