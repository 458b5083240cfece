"""What the swap layer needs from the node around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from peerd.api import AcceptSwap, RefuseSwap, SwapRequest
from peerd.driver import Clock, Storage, Transport
from peerd.messages import PeerRef
from peerd.telemetry.schema import Event


class SwapDriver(Clock, Transport, Storage, Protocol):
    """What the swap layer needs of `peerd.driver.Driver`."""


class SwapNode(Protocol):
    """`peerd.node.node.Node`, as the swap layer uses it."""

    @property
    def driver(self) -> SwapDriver: ...

    @property
    def peer(self) -> PeerRef: ...

    def swap_requested(self, plugin: str, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Ask the plugin that the swap is for; it decides before this returns."""

    def run_as(self, plugin: str, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a plugin's callback; what it raises is not ours to catch."""

    def emit(self, event: Event) -> int: ...
