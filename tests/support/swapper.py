"""A plugin that only swaps, and reports how far it has come."""

from __future__ import annotations

from collections.abc import Callable

from peerd.api import AcceptSwap, Plugin, RefuseSwap, SwapCallbacks, SwapRequest, Value
from peerd.messages import PeerRef

OPENING_LATENCIES = {"opened": 4, "accepted": 5, "offered": 5, "done here": 6, "done there": 7}
"""One-way latencies from the call of ``swap`` for small values, with a peer that has a link already."""


class Swapper(Plugin):
    """Accepts every swap; ``told(what)`` hears of the offer and of the end at either side."""

    name = "swapper"
    told: Callable[[str], None] = staticmethod(lambda what: None)

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Give something in return."""
        self.told("offered")
        return AcceptSwap(b"theirs", SwapCallbacks(self._done("there"), self.told))

    def begin(self, peer: PeerRef) -> None:
        """Swap something small."""
        self.host.swap(peer, b"", b"ours", SwapCallbacks(self._done("here"), self.told))

    def _done(self, side: str) -> Callable[[Value], None]:
        return lambda value: self.told(f"done {side}")
