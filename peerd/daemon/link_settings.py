"""Everything about links that has a number, and what all connections of one daemon share."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from peerd import limits
from peerd.config import LimitsConfig
from peerd.daemon.identity import PeerIdentity, verify_peer_certificate
from peerd.daemon.resources import SOCKETS_UNBOUNDED, Room
from peerd.daemon.tls import peer_certificate
from peerd.ids import NodeId
from peerd.wire.handshake import LocalNode


def monotonic_s() -> float:
    """Seconds, monotonic. Never ``loop.time()``: uvloop's has a resolution of milliseconds."""
    return time.monotonic_ns() / 1e9


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Durations in seconds, sizes in bytes. Tests shorten them; operators move those in ``[limits]``."""

    heartbeat_s: float = 5.0
    """A link on which nothing was sent for this long gets a heartbeat."""
    silence_s: float = 14.0
    """A link on which nothing was received for this long is closed: two heartbeats lost, and some slack. With the sweep
    it is what makes a half-open link end within 15 s, whatever the kernel thinks of it."""
    unused_s: float = limits.LINK_UNUSED_S
    """A link that carried nothing but heartbeats for this long is closed; it comes back when it is needed."""
    evictable_s: float = 10.0
    """At ``links_max`` a newcomer takes the place of the link unused for longest, if that is at least this long."""
    dial_timeout_s: float = 5.0
    """Name resolution, TCP connect, TLS and HELLO together."""
    backoff_min_s: float = 0.1
    backoff_max_s: float = 30.0
    backoff_reset_s: float = 5.0
    """A link that lived this long was a good one: the next loss is re-dialled at once."""
    backoff_wait_s: float = 1.0
    """A frame waits for a dial that is due within this; else it fails at once, so that callers can route around."""
    duplicate_grace_s: float = 5.0
    """A second connection within this age of the first is a simultaneous dial, a later one a reconnect."""
    close_linger_s: float = 1.0
    """After our Goodbye, how long what the peer still had under way is read."""
    link_age_max_s: float = 43_200.0
    """Older links are made anew (the dialler at a random age from half of it on), so that a handshake looks at the
    certificates and the deny list again."""
    expiry_grace_s: float = 300.0
    """How long a link outlives the peer's certificate."""
    sweep_s: float = 0.5
    """How often the time limits of links are looked at."""
    hello_timeout_s: float = limits.HELLO_TIMEOUT_S
    tls_handshake_timeout_s: float = limits.TLS_HANDSHAKE_TIMEOUT_S
    tls_shutdown_timeout_s: float = limits.TLS_SHUTDOWN_TIMEOUT_S
    frame_idle_s: float = limits.FRAME_IDLE_S
    write_deadline_s: float = limits.WRITE_DEADLINE_S
    write_high_water_bytes: int = limits.WRITE_HIGH_WATER_BYTES
    send_queue_bytes_max: int = limits.SEND_QUEUE_BYTES_MAX
    links_max: int = limits.LINKS_MAX
    sockets_max: int = SOCKETS_UNBOUNDED
    """Links, streams and handshakes together, so that descriptors are left for everything else."""
    streams_max: int = 4 * limits.SWAP_SESSIONS_MAX
    transient_links_max: int = limits.TRANSIENT_LINKS_MAX
    dials_max: int = 64
    accepts_per_second: float = limits.ACCEPTS_PER_SECOND
    accepts_burst: int = limits.ACCEPTS_BURST
    messages_per_second: float = limits.PEER_MESSAGES_PER_SECOND
    messages_burst: int = limits.PEER_MESSAGES_BURST

    @classmethod
    def from_config(cls, config: LimitsConfig, room: Room | None = None) -> LinkSettings:
        """The defaults with the operator's limits, lowered to what the system has ``room`` for."""
        room = room or Room(config.links_max, SOCKETS_UNBOUNDED)
        return cls(
            links_max=room.links,
            sockets_max=room.sockets,
            transient_links_max=config.transient_links_max,
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
    exempt_types: frozenset[int] = frozenset()
    """Type ids that the message rate does not count."""
    now: Callable[[], float] = monotonic_s
    wall_time: Callable[[], float] = time.time
    """Unix seconds, for certificates only."""

    def certified(
        self, connection: ssl.SSLObject | ssl.SSLSocket | None, expected: NodeId | None
    ) -> PeerIdentity | None:
        """Whom the peer's certificate proves; ``None`` without TLS. Raises `HandshakeRefused`."""
        if self.tls is None or connection is None:
            return None
        return verify_peer_certificate(
            peer_certificate(connection),
            cluster=self.local.cluster,
            expected=expected,
            denied=self.denied,
            denied_serials=self.denied_serials,
        )
