"""Programs that are to be interrupted as from a terminal."""

from __future__ import annotations

import signal


def take_interrupts() -> None:
    """For ``Popen(preexec_fn=...)``: what runs in the background ignores SIGINT, and so would its child."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
