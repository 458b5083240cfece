"""What the overlay needs from the node around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peerd.api import Host, NeighbourChange
from peerd.ids import NodeId
from peerd.messages import PeerRef


class Upcalls(Protocol):
    """What the overlay calls when a message or the ring concerns the plugins."""

    def forward(
        self,
        key: NodeId,
        type_id: int,
        body: bytes,
        source: PeerRef,
        next_hop: PeerRef,
        hops: int,
        previous_hop: PeerRef,
    ) -> PeerRef | None:
        """Ask the owning plugin about a routed message passing through: the next hop to use, ``None`` to stop it."""

    def deliver(self, key: NodeId, type_id: int, body: bytes, source: PeerRef) -> None:
        """Hand a routed or broadcast message that arrived here to its plugin, after the current handler."""

    def neighbours_changed(self, change: NeighbourChange) -> None:
        """Tell every plugin that the leaf set changed, after the current handler."""

    def ready_changed(self, is_ready: bool) -> None:
        """The node may (or may no longer) deliver keys."""


class OverlayHost(Host, Protocol):
    """A plugin's host, plus what only the overlay may do."""

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        """Connect to an address whose node is not known yet; ``done(None)`` when nobody of this cluster answers."""

    def disconnect(self, peer: PeerRef, reason: str) -> None:
        """Close the control link, if any."""

    def is_linked(self, peer: PeerRef) -> bool:
        """Whether a control link to this peer is up."""

    def linked_at(self, peer: PeerRef) -> float | None:
        """Since when a control link to this peer is up: what was sent before waited until then. ``None``: it is not."""

    def boot_epoch_of(self, peer: PeerRef) -> int | None:
        """The boot epoch of the peer at the other end of the control link; ``None``: there is no link."""

    def charge(self, peer: PeerRef, messages: int) -> None:
        """The message that is being handled stands for so many more. Raises `ProtocolError` above the peer's rate."""

    @property
    def upcalls(self) -> Upcalls:
        """What is told of the overlay."""
