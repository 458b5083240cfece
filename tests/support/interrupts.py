"""Makes programs react to interrupts as on a terminal."""

from __future__ import annotations

import signal


def take_interrupts() -> None:
    """For ``Popen(preexec_fn=...)``: programs in the background ignore SIGINT, which their children inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
