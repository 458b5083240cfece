"""What all connections of one daemon share, and the operator's limits of them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from peerd.config import LimitsConfig, NodeConfig, PeerdConfig, split_address
from peerd.errors import HandshakeRefused
from peerd.identity.node_identity import PeerIdentity, verify_peer_certificate
from peerd.identity.tls import peer_certificate
from peerd.ids import NodeId, format_id
from peerd.linking.allowed_hosts import AllowedHosts
from peerd.linking.settings import SOCKETS_UNBOUNDED, LinkSettings
from peerd.messages import PeerRef
from peerd.system.resources import Room
from peerd.wire.handshake import LocalNode

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that goes on while the machine is suspended. A lease is over by then, and others act on that."""


def monotonic_s() -> float:
    """Seconds, monotonic. Never ``loop.time()``: uvloop's has a resolution of milliseconds."""
    return time.clock_gettime_ns(_CLOCK) / 1e9


def link_settings(config: PeerdConfig, room: Room | None = None, own: PeerRef | None = None) -> LinkSettings:
    """The defaults with the operator's limits, lowered to what the system has ``room`` for.

    ``own`` is where this node is reached.
    """
    return replace(limit_settings(config.limits, room), allowed_hosts=allowed_hosts(config.node, own))


def allowed_hosts(config: NodeConfig, own: PeerRef | None) -> AllowedHosts:
    """Return which addresses are dialled that only other nodes have named."""
    hosts = [split_address(text)[0] for text in (config.listen, *config.bootstrap)]
    return AllowedHosts(config.allowed_networks, hosts if own is None else [*hosts, own.host])


def limit_settings(config: LimitsConfig, room: Room | None = None) -> LinkSettings:
    """The part of `link_settings` that is in ``[limits]``."""
    room = room or Room(config.links_max, SOCKETS_UNBOUNDED)
    return LinkSettings(
        links_max=room.links,
        sockets_max=room.sockets,
        transient_links_max=config.transient_links_max,
        transient_links_host_max=config.transient_links_host_max,
        accepts_per_second=config.accepts_per_second,
        accepts_burst=config.accepts_burst,
        send_queue_bytes_max=config.send_queue_bytes,
        messages_per_second=config.peer_messages_per_second,
        messages_burst=config.peer_messages_burst,
        link_age_max_s=config.link_age_max,
    )


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """The two sides of mutual TLS."""

    server: ssl.SSLContext
    client: ssl.SSLContext


@dataclass(slots=True)
class LinkContext:
    """What every connection of this daemon needs to know. ``tls`` is ``None`` only on loopback."""

    local: LocalNode
    settings: LinkSettings = field(default_factory=LinkSettings)
    tls: TlsContexts | None = None
    denied: frozenset[NodeId] = frozenset()
    denied_serials: frozenset[int] = frozenset()
    cut: frozenset[NodeId] = frozenset()
    """Nodes with which there is no link because an operator has cut it for a drill."""
    now: Callable[[], float] = monotonic_s
    wall_time: Callable[[], float] = time.time
    """Unix seconds, for certificates only."""

    def certified(
        self, connection: ssl.SSLObject | ssl.SSLSocket | None, expected: NodeId | None
    ) -> PeerIdentity | None:
        """Return the identity that the peer's certificate proves; ``None`` without TLS. Raises `HandshakeRefused`."""
        if self.tls is None or connection is None:
            return None
        identity = verify_peer_certificate(
            peer_certificate(connection),
            cluster=self.local.cluster,
            expected=expected,
            denied=self.denied,
            denied_serials=self.denied_serials,
        )
        if identity.node_id in self.cut:
            raise HandshakeRefused("cut", f"links with {format_id(identity.node_id)} are cut, for a drill")
        return identity
