"""Every limit has a name, and lives here unless an operator may move it (then it is a config field).

Sizes are bytes, durations seconds. What the numbers rest on is in `docs/architecture.md`, "Limits".
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Frames (peerd.wire)
FRAME_HEADER_BYTES: Final = 8
PREAUTH_FRAME_BYTES_MAX: Final = 16 * KIB
CONTROL_FRAME_BYTES_MAX: Final = 64 * KIB
SWAP_CHUNK_BYTES_MAX: Final = 4 * MIB
FRAME_IDLE_S: Final = 10.0
"""From the first byte of a frame to its last one; a peer slower than this is cut off (slowloris)."""

LINK_UNUSED_S: Final = 1500.0
"""A link that carried nothing but heartbeats for so long is closed. Longer than ``overlay.table_probe_max``: entries of
routing tables stay linked, or a lookup would pay for a dial at each hop."""

# msgpack: control frames hold small records; an array of 64 KiB of empty maps already costs 4.7 MiB
ARRAY_LENGTH_MAX: Final = 4096
MAP_LENGTH_MAX: Final = 256

# Handshake
HELLO_TIMEOUT_S: Final = 5.0
TLS_HANDSHAKE_TIMEOUT_S: Final = 5.0
TLS_SHUTDOWN_TIMEOUT_S: Final = 2.0
NAME_LENGTH_MAX: Final = 64
HOST_LENGTH_MAX: Final = 253
DETAIL_LENGTH_MAX: Final = 512

# Accepting and holding links (peerd.daemon)
ACCEPTS_PER_SECOND: Final = 50.0
ACCEPTS_BURST: Final = 100
TRANSIENT_LINKS_MAX: Final = 64
LINKS_MAX: Final = 512
SEND_QUEUE_BYTES_MAX: Final = 4 * MIB
SEND_HIGH_WATER_BYTES: Final = 1 * MIB
"""With more than this queued for it, or half of what may be, a peer is slow."""
SEND_LOW_WATER_SHARE: Final = 4
"""A slow peer is writable again at the high-water mark divided by this."""
WRITE_HIGH_WATER_BYTES: Final = 256 * KIB
WRITE_DEADLINE_S: Final = 10.0
PEER_MESSAGES_PER_SECOND: Final = 2000.0
PEER_MESSAGES_BURST: Final = 8000

HELLO_PLUGINS_MAX: Final = 32
"""Plugins of a node whose versions go into its handshakes."""

# One node's bookkeeping (peerd.node.node)
REFUSALS_TOLD_MAX: Final = 1024
"""(Peer, message type, reason) that plugins are told of after one handler; the rest is only counted."""
REQUESTS_OUTSTANDING_MAX: Final = 4096
TIMERS_PER_PLUGIN_MAX: Final = 16384
ROUTED_BODY_BYTES_MAX: Final = 48 * KIB
"""A routed or broadcast message, encoded: it must fit a control frame together with its envelope."""
DEDUPE_WINDOW: Final = 65536
HOPS_MAX: Final = 64

# Overlay
LEAF_SET_SIZE: Final = 16
KNOWN_PEERS_MAX: Final = 64

# Groups
GROUP_BODY_BYTES_MAX: Final = 44 * KIB
"""A multicast's message, encoded: it travels inside a routed one."""
ANYCAST_BODY_BYTES_MAX: Final = 8 * KIB
"""An anycast's message, encoded: it shares a frame with the list of who was asked."""

# Swap
SWAP_TAG_BYTES_MAX: Final = 64
SWAP_SESSIONS_MAX: Final = 16
SWAP_SPILL_BYTES: Final = 64 * MIB

# Messages
KERNEL_TYPE_IDS: Final = range(0x0001, 0x0100)
"""Message type ids of the kernel; plugins have those above."""

# Plugin store
STORE_VALUE_BYTES_MAX: Final = 1 * MIB
STORE_KEYS_MAX: Final = 10_000

# HTTP
HTTP_REQUESTS_MAX: Final = 64
"""Requests and streams under way at a listener, probes apart; above it the answer is 503."""
HTTP_CONNECTIONS_SPARE: Final = 16
"""Connections beyond those requests: for probes, and for heads that are still coming in."""
# Plugin logs
LOGS_PER_PLUGIN_MAX: Final = 16
LOG_RECORD_BYTES_MAX: Final = 1 * MIB
LOG_RECORD_OVERHEAD_BYTES: Final = 32
"""Charged for each record on top of its length: what goes with it on disk and in memory."""
LOG_BYTES_MAX: Final = 64 * MIB
"""Of one log, charged."""
LOG_WAITING_BYTES_MAX: Final = 8 * MIB
"""Appended and not durable yet: the disk is too slow for more."""
LOG_READ_BYTES_MAX: Final = 1 * MIB
"""One read gives no more than this, but always one record."""

# Event log
EVENT_QUEUE_RECORDS_MAX: Final = 10_000
EVENT_TEXT_LENGTH_MAX: Final = 1024
