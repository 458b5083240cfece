"""The node as the hosts of its plugins use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from peerd.api import Plugin, Priority
from peerd.driver import Driver
from peerd.errors import PeerMisbehaved
from peerd.messages import Message, PeerRef
from peerd.node.requests import Requests
from peerd.node.settings import NodeSettings
from peerd.overlay.overlay import Overlay
from peerd.overlay.ports import Upcalls
from peerd.services.records.upcalls import RecordUpcalls
from peerd.services.service import Service
from peerd.swap.layer import SwapLayer
from peerd.telemetry.schema import Event

S = TypeVar("S", bound=Service)


class HostNode(Upcalls, Protocol):
    """What `peerd.node.host.PluginHost` needs of `peerd.node.node.Node`, and no more."""

    @property
    def driver(self) -> Driver: ...
    @property
    def settings(self) -> NodeSettings: ...
    @property
    def peer(self) -> PeerRef: ...
    @property
    def plugins(self) -> Mapping[str, Plugin]: ...
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

    @property
    def record_upcalls(self) -> RecordUpcalls: ...
