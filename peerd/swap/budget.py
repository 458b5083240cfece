"""Limits how many bytes of receive buffers may exist, in memory and in spilled files."""

from __future__ import annotations

from peerd.errors import Bug
from peerd.swap.config import SwapConfig


class ReceiveBudget:
    """Counts what is reserved. Reserve before allocating, release once; sizes up to ``spill_bytes`` are memory."""

    def __init__(self, config: SwapConfig) -> None:
        self._config = config
        self.memory_bytes = 0
        self.spilled_bytes = 0

    def reconfigure(self, config: SwapConfig) -> None:
        """Other limits for what is reserved from now on. ``spill_bytes`` must stay: it says what counts as memory."""
        self._config = config

    def reserve(self, size_bytes: int) -> bool:
        """Take room for one value; ``False``, with nothing taken, when there is not enough."""
        if size_bytes > self._config.spill_bytes:
            if self.spilled_bytes + size_bytes > self._config.spilled_bytes_max:
                return False
            self.spilled_bytes += size_bytes
            return True
        if self.memory_bytes + size_bytes > self._config.memory_bytes_max:
            return False
        self.memory_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Give back what `reserve` took. Raises `Bug` when that was never taken."""
        if size_bytes > self._config.spill_bytes:
            self.spilled_bytes -= size_bytes
        else:
            self.memory_bytes -= size_bytes
        if self.memory_bytes < 0 or self.spilled_bytes < 0:
            raise Bug(f"swap budget released twice: {self.memory_bytes} memory, {self.spilled_bytes} spilled")
