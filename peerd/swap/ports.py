"""The interfaces through which the swap layer uses the node around it; what a swap is to do, and its states."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
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


class SwapState(Enum):
    """The stages that one side of a swap goes through."""

    OPENING = "opening"
    """At the initiator: the stream is not open yet."""
    AWAITING_OFFER = "awaiting_offer"
    """At the acceptor: no offer has come yet."""
    HELD = "held"
    """At the acceptor: an offer has come, and the plugin puts off what to do about it."""
    OFFERED = "offered"
    """At the initiator: the offer was sent, and its answer has not come."""
    EXCHANGING = "exchanging"
    """The offer was accepted; the peer's value is not verified yet."""
    VERIFYING = "verifying"
    """The peer's value is verified, and the peer was told; its verdict on ours has not come."""
    DONE = "done"
    FAILED = "failed"
