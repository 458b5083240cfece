"""The node as the hosts of its plugins use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from peerd.api import NeighbourChange, Priority
from peerd.driver import Driver
from peerd.errors import PeerMisbehaved
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.node.record_upcalls import RecordUpcalls
from peerd.node.requests import Requests
from peerd.node.settings import NodeSettings
from peerd.overlay.overlay import Overlay
from peerd.services.service import Service
from peerd.swap.layer import SwapLayer
from peerd.telemetry.schema import Event

S = TypeVar("S", bound=Service)


class HostNode(Protocol):
    """What `peerd.node.host.PluginHost` needs of `peerd.node.node.Node`, and no more."""

    @property
    def driver(self) -> Driver: ...
    @property
    def settings(self) -> NodeSettings: ...
    @property
    def peer(self) -> PeerRef: ...
    @property
    def overlay(self) -> Overlay: ...
    @property
    def swaps(self) -> SwapLayer: ...
    @property
    def requests(self) -> Requests: ...
    @property
    def cause(self) -> int | None:
        """The id of the event that caused the running handler."""

    @property
    def speaker(self) -> PeerRef | None:
        """Who is to blame for what the running handler works on, if that is anybody."""

    @property
    def is_stopped(self) -> bool: ...

    def service(self, kind: type[S]) -> S:
        """The built-in service of a kind; another object after it was restarted."""

    def new_epoch(self) -> str: ...
    def send(self, peer: PeerRef, message: Message, priority: Priority = Priority.NORMAL) -> None: ...
    def emit(self, event: Event) -> int: ...

    def misbehaved(self, plugin: str, peer: PeerRef, error: PeerMisbehaved) -> None: ...

    def run_as(self, plugin: str, callback: Callable[..., Any], *arguments: Any, cause: int | None = None) -> None:
        """Call back into a plugin, unless the node has stopped."""

    def run_later(
        self, speaker: PeerRef | None, plugin: str, callback: Callable[..., Any], *arguments: Any, cause: int | None
    ) -> None:
        """As `run_as`, for what was begun while a message of this peer was handled, if any was."""

    def call_plugin(
        self,
        service: str,
        plugin: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        then: Callable[[Any], None] | None,
    ) -> None: ...

    # Upcalls of record store and overlay

    @property
    def record_upcalls(self) -> RecordUpcalls: ...
    def deliver(self, key: NodeId, type_id: int, body: bytes, source: PeerRef) -> None: ...
    def forward(
        self,
        key: NodeId,
        type_id: int,
        body: bytes,
        source: PeerRef,
        next_hop: PeerRef,
        hops: int,
        previous_hop: PeerRef,
    ) -> PeerRef | None: ...
    def neighbours_changed(self, change: NeighbourChange) -> None: ...
    def ready_changed(self, is_ready: bool) -> None: ...
