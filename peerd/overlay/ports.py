"""What the overlay needs from the node around it, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from peerd.api import Coordinate, Host, LeafSet, LookupResult, NeighbourChange
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef


class OverlayHost(Host, Protocol):
    """A plugin's host, plus what only the overlay may do."""

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        """Connect to an address whose node is not known yet; ``done(None)`` when nobody of this cluster answers."""

    def disconnect(self, peer: PeerRef, reason: str) -> None:
        """Close the control link, if any."""

    def is_linked(self, peer: PeerRef) -> bool:
        """Whether a control link to this peer is up: only then does an answer's delay tell the round-trip time."""

    def forward_upcall(
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

    def deliver_upcall(self, key: NodeId, type_id: int, body: bytes, source: PeerRef) -> None:
        """Hand a routed or broadcast message that arrived here to its plugin, after the current handler."""

    def neighbours_changed_upcall(self, change: NeighbourChange) -> None:
        """Tell every plugin that the leaf set changed, after the current handler."""

    def ready_changed_upcall(self, is_ready: bool) -> None:
        """The node may (or may no longer) deliver keys."""


class Router(Protocol):
    """The overlay as the node uses it."""

    @property
    def is_ready(self) -> bool:
        """Whether this node has joined and its leaf set is complete."""

    def route(self, key: NodeId, message: Message) -> None: ...
    def multicast(self, keys: Iterable[NodeId], message: Message) -> None: ...
    def broadcast(self, message: Message) -> None: ...
    def lookup(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float) -> None: ...
    def leaf_set(self) -> LeafSet: ...
    def prefix_row(self, bits: int) -> tuple[PeerRef, ...]: ...
    def replica_set(self, key: NodeId, count: int) -> tuple[PeerRef, ...]: ...
    def estimated_ring_size(self) -> float: ...
    def next_hop(self, key: NodeId) -> PeerRef | None: ...
    def rtt(self, peer: PeerRef) -> float | None: ...
    def estimated_rtt(self, peer: PeerRef) -> float | None: ...

    @property
    def coordinate(self) -> Coordinate: ...

    def known_peers(self) -> tuple[PeerRef, ...]:
        """Live peers worth remembering across a restart, at most `KNOWN_PEERS_MAX`."""

    def join(self, bootstrap: Iterable[tuple[str, int]], known: Iterable[PeerRef]) -> None:
        """Join through any of these addresses; retries for ever with back-off. No address at all: found a ring."""

    def leave(self) -> None:
        """Say goodbye to the neighbours; nothing is delivered here afterwards."""

    def peer_heard(self, peer: PeerRef) -> None:
        """Any traffic counts as a heartbeat."""

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """The driver lost the link and could not get it back, or the peer refused a connection."""
