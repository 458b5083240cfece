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
"""A peer may take this long from the first byte of a frame to the last; a slower one is cut off (slowloris attack)."""

LINK_UNUSED_S: Final = 1500.0
"""A link is closed after it has carried nothing but heartbeats for this long. It is longer than
``overlay.table_probe_max``, so that entries of routing tables stay linked: else a lookup would dial at each hop."""

# msgpack. Control frames hold small records, but 64 KiB of empty maps already take 4.7 MiB when decoded.
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
TRANSIENT_LINKS_HOST_MAX: Final = 32
LINKS_MAX: Final = 512
SEND_QUEUE_BYTES_MAX: Final = 4 * MIB
SEND_HIGH_WATER_BYTES: Final = 1 * MIB
"""A peer counts as slow when more than this is queued for it, or more than half of what may be queued."""
SEND_LOW_WATER_SHARE: Final = 4
"""A slow peer is writable again when its queue is down to the high-water mark divided by this."""
WRITE_HIGH_WATER_BYTES: Final = 256 * KIB
WRITE_DEADLINE_S: Final = 10.0
PEER_MESSAGES_PER_SECOND: Final = 2000.0
PEER_MESSAGES_BURST: Final = 8000

HELLO_PLUGINS_MAX: Final = 32
"""A handshake carries the versions of at most this many plugins."""

# One node's bookkeeping (peerd.node.node)
REFUSALS_TOLD_MAX: Final = 1024
"""Plugins are told of at most this many failed sends (peer, message type, reason) after one handler; others are only
counted."""
REQUESTS_OUTSTANDING_MAX: Final = 4096
TIMERS_PER_PLUGIN_MAX: Final = 16384
ROUTED_BODY_BYTES_MAX: Final = 48 * KIB
"""The largest encoded message that is routed or broadcast: with its envelope it must fit into a control frame."""
DEDUPE_WINDOW: Final = 65536
HOPS_MAX: Final = 64

# Overlay
LEAF_SET_SIZE: Final = 16
KNOWN_PEERS_MAX: Final = 64

# Swap
SWAP_TAG_BYTES_MAX: Final = 64
SWAP_SESSIONS_MAX: Final = 16
SWAP_SPILL_BYTES: Final = 64 * MIB

# Messages
KERNEL_TYPE_IDS: Final = range(0x0001, 0x0100)
"""The message type ids of the kernel. Plugins have higher ones. 0x0050 to 0x005E were those of multicast groups, which
are gone, and are not given again."""

# Statements that are signed (peerd.driver.Identity)
STATEMENT_BYTES_MAX: Final = CONTROL_FRAME_BYTES_MAX
"""The largest statement that is signed or checked; for more, sign a digest of it."""
SIGNATURE_BYTES: Final = 64
"""Of Ed25519. A proof is one, and behind it the signer's certificate."""
PROOF_BYTES_MAX: Final = 2 * KIB
"""A signature and a certificate, which has 600 to 850 bytes."""

# Plugin store
STORE_VALUE_BYTES_MAX: Final = 1 * MIB
STORE_KEYS_MAX: Final = 10_000

# HTTP
HTTP_REQUESTS_MAX: Final = 64
"""A listener serves at most this many requests and streams at once, not counting probes; more are answered with 503."""
HTTP_CONNECTIONS_SPARE: Final = 16
"""A listener takes this many connections more: for probes, and for requests that are still arriving."""
# Plugin logs
LOGS_PER_PLUGIN_MAX: Final = 512
"""A log that nobody writes costs a folder; what its records may take is for the plugin to bound."""
LOG_RECORD_BYTES_MAX: Final = 1 * MIB + 64 * KIB
"""A value of 1 MiB, and what its plugin writes before it: at most a document's manifest, of 33 KiB and a little."""
LOG_RECORD_OVERHEAD_BYTES: Final = 32
"""Each record counts for this much more than its length: its header on disk, and its bookkeeping in memory."""
LOG_BYTES_MAX: Final = 72 * MIB
"""The largest size of one log, each record counted with its overhead: 64 MiB, and what comes on top."""
LOG_WAITING_BYTES_MAX: Final = 8 * MIB
"""A log may have this much appended that is not durable yet. More is refused, as the disk is too slow for it."""
LOG_READ_BYTES_MAX: Final = 1 * MIB
"""One read returns at most this much, but always at least one record."""

# Plugin files
FILES_PER_PLUGIN_MAX: Final = 4096
FILE_BYTES_MAX: Final = 64 * 1024 * MIB
FILE_PIECE_BYTES_MAX: Final = 16 * MIB
"""A file is written and read in pieces of at most this size, one after the other, so that none keeps others waiting."""
FILES_FREE_BYTES_MIN: Final = 256 * MIB
"""No file grows where less than this is free: the rest of the disk is for the daemon's own state, and for others."""

# Event log
EVENT_QUEUE_RECORDS_MAX: Final = 10_000
EVENT_TEXT_LENGTH_MAX: Final = 1024
