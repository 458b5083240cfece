"""The limits and times of links, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from peerd import limits
from peerd.linking.allowed_hosts import AllowedHosts

SOCKETS_UNBOUNDED: Final = 1 << 20


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
    """For name resolution and TCP's connect together, then once more for TLS, and for HELLO's answer: one round trip
    each. Nodes link whose round trips take nearly as long, and who does not answer at all costs it once."""
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
    transient_links_host_max: int = limits.TRANSIENT_LINKS_HOST_MAX
    """Incoming connections whose handshake is not done: of all hosts, and of one."""
    dials_max: int = 64
    allowed_hosts: AllowedHosts = field(default_factory=lambda: AllowedHosts(own=("127.0.0.1",)))
    """Which addresses are dialled that only other nodes have named. The default is for a node listening on loopback."""
    accepts_per_second: float = limits.ACCEPTS_PER_SECOND
    accepts_burst: int = limits.ACCEPTS_BURST
    messages_per_second: float = limits.PEER_MESSAGES_PER_SECOND
    messages_burst: int = limits.PEER_MESSAGES_BURST
