"""What a daemon's sink and a collector say to each other: lines of JSON, over TLS between members of the cluster.

The daemon begins with a `SinkHello`, and hears a `LastStored`: the number of its last event that is on the collector's
disk. Then each `EventBatch` is followed by so many bytes of event lines, and answered by a `BatchStored` when they are
on the disk. One that refuses ends the connection. There is one batch under way at a time: two one-way latencies each,
which is the least for an acknowledgement, and a collector that is slow fills the daemon's bounded queue, not its own
memory.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from peerd.limits import KIB, MIB

VERSION: Final = 1
WORD_BYTES_MAX: Final = 1 * KIB
BATCH_BYTES_MAX: Final = 1 * MIB
"""A sink sends 64 KiB and the rest of a line at once."""
REASON_LENGTH_MAX: Final = 200

W = TypeVar("W", bound="SinkWord")


class SinkWord(msgspec.Struct, frozen=True):
    """A line of JSON."""

    def line(self) -> bytes:
        """As it is sent."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def read(cls: type[W], line: bytes) -> W:
        """Raises ``ValueError`` for what is no such word."""
        return msgspec.json.decode(line, type=cls)


class SinkHello(SinkWord, frozen=True):
    """A sink of this node, in this boot."""

    peerd_sink: int
    node: str
    boot: int


class LastStored(SinkWord, frozen=True):
    """The number of the last event of that node and boot that is on the disk; 0: none is."""

    last: int


class EventBatch(SinkWord, frozen=True):
    """So many bytes of lines follow."""

    bytes: int


class BatchStored(SinkWord, frozen=True):
    """They are on the disk. ``new``: how many lines were not there already. ``refused``: why they are not."""

    new: int = 0
    refused: str = ""
