"""The two directions of a swap: a value on its way out, and one on its way in.

The digest is XXH3 (128 bits) of the payload, followed by the padding's length (8 bytes, big-endian) when there is
padding. It shows a value that was changed on its way or under its owner's hands; a peer that lies says the digest of
its lie, and who may change bytes in between is kept out by TLS. So nothing is gained by a cryptographic one, and that
took as much processor as all else.
"""

from __future__ import annotations

import struct
from typing import Final

from xxhash import xxh3_128

from peerd.api import SizedBlob, Value
from peerd.driver import Stream
from peerd.errors import ProtocolError
from peerd.swap.config import PADDING_PIECE_BYTES
from peerd.swap.messages import CHUNK_TYPE_ID, SwapPadding
from peerd.wire.codec import encode
from peerd.wire.frames import HEADER, MAGIC, frame_bytes

_PADDING_LENGTH: Final = struct.Struct(">Q")


def payload_of(value: Value) -> memoryview:
    """The bytes of a value, read-only, without copying. Raises ``TypeError`` for a view that is not contiguous."""
    view = memoryview(value.payload if isinstance(value, SizedBlob) else value)
    if not view.c_contiguous:
        raise TypeError("a value to swap must be contiguous")
    return (view if view.format == "B" and view.ndim == 1 else view.cast("B")).toreadonly()


def chunk_header(size_bytes: int) -> bytes:
    """Return the frame header of a chunk."""
    return HEADER.pack(MAGIC, CHUNK_TYPE_ID, 0, size_bytes)


class Outgoing:
    """A value being sent, chunk by chunk; payload first, then padding."""

    def __init__(self, value: Value, chunk_bytes: int) -> None:
        self._payload = payload_of(value)
        self._chunk_bytes = chunk_bytes
        self._header = chunk_header(chunk_bytes)
        self._hash = xxh3_128()
        self._sent_payload = 0
        self._sent_padding = 0
        self.payload_bytes = len(self._payload)
        self.padding_bytes = value.padding_bytes if isinstance(value, SizedBlob) else 0
        self.is_digest_sent = False

    @property
    def total_bytes(self) -> int:
        """Return the size of payload and padding together."""
        return self.payload_bytes + self.padding_bytes

    @property
    def sent_bytes(self) -> int:
        """Return how many bytes were handed to the stream so far."""
        return self._sent_payload + self._sent_padding

    @property
    def is_complete(self) -> bool:
        """Whether everything but the digest was written."""
        return self.sent_bytes == self.total_bytes

    def write_next(self, stream: Stream) -> None:
        """Write one chunk, or one piece of padding. The payload is written as slices of the value itself."""
        chunk = self._payload[self._sent_payload : self._sent_payload + self._chunk_bytes]
        if not chunk:
            piece_bytes = min(PADDING_PIECE_BYTES, self.padding_bytes - self._sent_padding)
            stream.write(frame_bytes(encode(SwapPadding(piece_bytes))))
            stream.write_padding(piece_bytes)
            self._sent_padding += piece_bytes
            return
        stream.write(self._header if len(chunk) == self._chunk_bytes else chunk_header(len(chunk)))
        stream.write(chunk)
        self._hash.update(chunk)
        self._sent_payload += len(chunk)

    def digest(self) -> bytes:
        """Return the digest of the whole value. Call it once, when all was written."""
        if self.padding_bytes:
            self._hash.update(_PADDING_LENGTH.pack(self.padding_bytes))
        return self._hash.digest()


class Incoming:
    """A value being received into ``buffer``. Nothing of it may be used before `verify` has returned true."""

    def __init__(self, buffer: memoryview, padding_bytes: int) -> None:
        self._buffer = buffer
        self._hash = xxh3_128()
        self._received_payload = 0
        self._received_padding = 0
        self._padding_bytes = padding_bytes
        self.padding_due_bytes = 0
        """Bytes of padding that the last `SwapPadding` announced and that have not come; they must come next."""

    @property
    def total_bytes(self) -> int:
        """Return the announced size of payload and padding together."""
        return len(self._buffer) + self._padding_bytes

    @property
    def received_bytes(self) -> int:
        """Return the bytes of whole chunks and padding that have come so far."""
        return self._received_payload + self._received_padding

    def chunk_announced(self, size_bytes: int) -> memoryview:
        """Return the buffer for a chunk of this size. Raises `ProtocolError` when it is more than was announced."""
        stop = self._received_payload + size_bytes
        if stop > len(self._buffer):
            raise ProtocolError("overrun", f"{stop} bytes of {len(self._buffer)} announced")
        return self._buffer[self._received_payload : stop]

    def chunk_received(self, chunk: memoryview) -> None:
        """Count a chunk that has arrived as a whole."""
        self._hash.update(chunk)
        self._received_payload += len(chunk)

    def padding_announced(self, size_bytes: int) -> None:
        """Padding follows. Raises `ProtocolError` when it is early, or more than was announced."""
        if self._received_payload < len(self._buffer):
            raise ProtocolError("padding", "before the end of the payload")
        if not 0 < size_bytes <= self._padding_bytes - self._received_padding:
            raise ProtocolError("overrun", f"{size_bytes} bytes of padding, {self._padding_bytes} announced in all")
        self.padding_due_bytes = size_bytes

    def padding_received(self, size_bytes: int) -> None:
        """Count padding that has come, and was due."""
        self.padding_due_bytes -= size_bytes
        self._received_padding += size_bytes

    def verify(self, digest: bytes) -> bool:
        """Whether the digest matches. Raises `ProtocolError` when bytes are missing. Call it once."""
        if self.received_bytes != self.total_bytes:
            raise ProtocolError("short", f"digest after {self.received_bytes} of {self.total_bytes} bytes")
        if self._padding_bytes:
            self._hash.update(_PADDING_LENGTH.pack(self._padding_bytes))
        return self._hash.digest() == digest

    def value(self) -> Value:
        """Return what was received: a read-only view, or a `SizedBlob` when there was padding."""
        if self._padding_bytes:
            return SizedBlob(bytes(self._buffer), self._padding_bytes)
        return self._buffer.toreadonly()
