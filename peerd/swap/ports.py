"""The interfaces through which the swap layer uses the node around it, and what it has one swap do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from peerd.api import SwapCallbacks, SwapDecision, SwapRequest, Value
from peerd.driver import Clock, Storage, Transport
from peerd.frozen import Frozen
from peerd.messages import PeerRef
from peerd.telemetry.schema import Event


class SwapDriver(Clock, Transport, Storage, Protocol):
    """The part of `peerd.driver.Driver` that the swap layer needs."""


class SwapNode(Protocol):
    """The part of `peerd.node.node.Node` that the swap layer uses."""

    @property
    def driver(self) -> SwapDriver: ...

    @property
    def peer(self) -> PeerRef: ...

    def swap_requested(self, plugin: str, request: SwapRequest) -> SwapDecision:
        """Ask the plugin that the swap is for."""

    def run_from(self, peer: PeerRef, plugin: str, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a plugin's callback with what this peer sent. A plugin that blames the peer costs it its link."""

    def emit(self, event: Event) -> int: ...


class Intent(Frozen):
    """The request of an initiator."""

    plugin: str
    tag: bytes
    callbacks: SwapCallbacks
    deadline_s: float
    value: Value | None = None
    """``None``: the connection is only prepared, until `SwapSession.offer`."""
    is_fetch: bool = False
    silence_s: float | None = None
