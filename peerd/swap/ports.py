"""The interfaces through which the swap layer uses the node around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from peerd.api import AcceptSwap, RefuseSwap, SwapRequest, Value
from peerd.driver import Clock, Storage, Transport
from peerd.messages import PeerRef
from peerd.swap.config import SwapConfig
from peerd.telemetry.schema import Event, SwapFinished

if TYPE_CHECKING:
    from peerd.swap.session import SwapSession


class SwapDriver(Clock, Transport, Storage, Protocol):
    """The part of `peerd.driver.Driver` that the swap layer needs."""


class SwapNode(Protocol):
    """The part of `peerd.node.node.Node` that the swap layer uses."""

    @property
    def driver(self) -> SwapDriver: ...

    @property
    def peer(self) -> PeerRef: ...

    def swap_requested(self, plugin: str, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Ask the plugin that the swap is for; it decides before this returns."""

    def run_as(self, plugin: str, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a plugin's callback; what it raises is not ours to catch."""

    def emit(self, event: Event) -> int: ...


class SessionOwner(Protocol):
    """The part of `peerd.swap.layer.SwapLayer` that one session uses."""

    @property
    def config(self) -> SwapConfig: ...

    @property
    def driver(self) -> SwapDriver: ...

    def admit(self, session: SwapSession, payload_bytes: int, padding_bytes: int) -> str | None:
        """Reserve room for what the peer will send; otherwise the reason why not."""

    def decide(self, session: SwapSession, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Limits first, then the plugin's word. Raises `ProtocolError` when the plugin blames the peer."""

    def unsendable(self, value: Value) -> str | None:
        """Why this node may not send a value; ``None`` when it may."""

    def ended(self, session: SwapSession, event: SwapFinished) -> None:
        """The session is over: give back its slot and its bytes, and record it."""

    def report(self, session: SwapSession, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a plugin's callback now."""
