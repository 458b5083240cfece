"""Cuts a bulk stream into control frames and chunks, however it arrives, copying payload only once.

The driver asks for a buffer and fills it. The reader hands out, in turn, the 8 bytes of a frame header, then either a
small control body or a slice of the value's own destination, so received payload is never moved again.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from peerd.errors import Bug, ProtocolError
from peerd.limits import FRAME_HEADER_BYTES, KIB, SWAP_CHUNK_BYTES_MAX
from peerd.swap.messages import CHUNK_TYPE_ID, CONTROL_BYTES_MAX
from peerd.wire.frames import parse_header

_DISCARD_BYTES: Final = 16 * KIB


class BulkSink(Protocol):
    """Gets frames and chunks from the reader. Any method may raise `ProtocolError`, or call `BulkReader.discard`."""

    def control_received(self, type_id: int, body: bytes) -> None:
        """Take a whole control frame, which is not decoded yet."""

    def chunk_announced(self, size_bytes: int) -> memoryview:
        """A chunk's header came: return the buffer for its bytes, of exactly that size."""

    def chunk_received(self, chunk: memoryview) -> None:
        """Note that the whole chunk has arrived."""


class _Stage(Enum):
    HEADER = 0
    CONTROL = 1
    CHUNK = 2
    DISCARD = 3


class BulkReader:
    """The receiving half of one bulk stream."""

    def __init__(self, sink: BulkSink) -> None:
        self._sink = sink
        self._header = memoryview(bytearray(FRAME_HEADER_BYTES))
        self._stage = _Stage.HEADER
        self._target = self._header
        self._filled = 0
        self._type_id = 0

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next received bytes; it is never empty."""
        return self._target[self._filled :]

    def buffer_updated(self, size_bytes: int) -> None:
        """Take this many bytes, which were put into the last buffer. Raises `ProtocolError`."""
        if self._stage is _Stage.DISCARD:
            return
        self._filled += size_bytes
        if self._filled > len(self._target):
            raise Bug(f"the driver put {self._filled} bytes into a buffer of {len(self._target)}")
        if self._filled == len(self._target):
            self._target_full()

    def discard(self) -> None:
        """Ignore whatever still comes, and release the destination."""
        self._stage = _Stage.DISCARD
        self._target = memoryview(bytearray(_DISCARD_BYTES))
        self._filled = 0

    def _target_full(self) -> None:
        stage, target = self._stage, self._target
        if stage is _Stage.HEADER:
            self._header_received()
            return
        self._expect(_Stage.HEADER, self._header)
        if stage is _Stage.CHUNK:
            self._sink.chunk_received(target)
        else:
            self._sink.control_received(self._type_id, bytes(target))

    def _header_received(self) -> None:
        type_id, flags, size_bytes = parse_header(self._header, 0, SWAP_CHUNK_BYTES_MAX)
        if flags:
            raise ProtocolError("bad_flags", f"flags {flags:#04x} on a bulk stream")
        if size_bytes == 0:
            raise ProtocolError("malformed", f"empty frame of type {type_id:#06x}")
        if type_id == CHUNK_TYPE_ID:
            self._expect(_Stage.CHUNK, self._sink.chunk_announced(size_bytes))
            return
        if size_bytes > CONTROL_BYTES_MAX:
            raise ProtocolError("oversize", f"frame {type_id:#06x} of {size_bytes} bytes, cap {CONTROL_BYTES_MAX}")
        self._type_id = type_id
        self._expect(_Stage.CONTROL, memoryview(bytearray(size_bytes)))

    def _expect(self, stage: _Stage, target: memoryview) -> None:
        self._stage, self._target, self._filled = stage, target, 0
