"""What becomes of SIGHUP while nobody is there to reload: nothing. Its default would end the process."""

from __future__ import annotations

import signal


def ignore_hangups() -> None:
    """From now on, until somebody handles the signal."""
    signal.signal(signal.SIGHUP, _nothing)


def _nothing(number: int, frame: object) -> None:
    """A handler, and not ``SIG_IGN``, which processes that are started from here would inherit."""
