"""The service manager's protocol: one datagram each for ready, stopping, watchdog. Without systemd it does nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping


class ServiceManager:
    """Talks to ``NOTIFY_SOCKET`` when there is one. The watchdog is fed by the event loop: a stuck loop is noticed."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(watchdog_us) / 1e6 if watchdog_us.isdigit() and is_ours else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def notify(self, *assignments: str) -> None:
        """Send ``READY=1``, ``STOPPING=1``, ``STATUS=...``; it is not an error when the manager does not listen."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(self._address)
            sock.send("\n".join(assignments).encode())

    def reloading(self) -> None:
        """Say that the configuration is being read again, until ``READY=1``. sd_notify(3) demands the time with it."""
        self.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reading the configuration")

    def start_watchdog(self) -> None:
        """Feed the watchdog three times in its interval, from the loop."""
        if self.watchdog_s > 0:
            self.notify("WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(self.watchdog_s / 3, self.start_watchdog)

    def stop_watchdog(self) -> None:
        """Stop telling the watchdog that the daemon is alive."""
        if self._timer is not None:
            self._timer.cancel()
