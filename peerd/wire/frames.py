"""Length-prefixed frames.

Every frame starts with 8 bytes, big-endian::

    0       1          3       4            8
    +-------+----------+-------+------------+------------------+
    | magic | type id  | flags | length u32 | body (length) ...
    +-------+----------+-------+------------+------------------+

``magic`` is 0x50 plus the framing version (1). With `FLAG_REQUEST` or `FLAG_REPLY` set, the body starts with a u32
correlation number. A length over the cap is refused from the header alone, before anything is allocated for it.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from peerd.errors import ProtocolError
from peerd.limits import CONTROL_FRAME_BYTES_MAX, FRAME_HEADER_BYTES

MAGIC: Final = 0x51
FLAG_REQUEST: Final = 0x01
FLAG_REPLY: Final = 0x02
FLAGS_KNOWN: Final = FLAG_REQUEST | FLAG_REPLY

HEADER: Final = struct.Struct(">BHBI")
CORRELATION: Final = struct.Struct(">I")
CORRELATION_BYTES: Final = CORRELATION.size
assert HEADER.size == FRAME_HEADER_BYTES


Frame: TypeAlias = tuple[int, int, bytes]
"""One whole frame, not yet decoded: type id, flags, body. A plain tuple, because every message is one at both ends."""


def frame_size(frame: Frame) -> int:
    """Size on the wire in bytes, header included."""
    return FRAME_HEADER_BYTES + len(frame[2])


def frame_bytes(frame: Frame) -> bytes:
    """The frame as bytes: header and body."""
    type_id, flags, body = frame
    return HEADER.pack(MAGIC, type_id, flags, len(body)) + body


def parse_header(data: bytes | bytearray | memoryview, offset: int, cap: int) -> tuple[int, int, int]:
    """(type id, flags, body length) of the header at ``offset``. Raises `ProtocolError` for a bad or oversized one."""
    magic, type_id, flags, length = HEADER.unpack_from(data, offset)
    if magic != MAGIC:
        raise ProtocolError("bad_magic", f"first byte {magic:#04x}, expected {MAGIC:#04x}")
    if length > cap:
        raise ProtocolError("oversize", f"frame of {length} bytes, cap {cap}")
    if flags & ~FLAGS_KNOWN or flags == FLAGS_KNOWN:
        raise ProtocolError("bad_flags", f"flags {flags:#04x}")
    return type_id, flags, length


class FrameDecoder:
    """Cuts a byte stream into frames, in whatever pieces the stream arrives.

    ``cap`` bounds a body and may be raised once the peer is known. After `feed` has raised, the decoder is dead: close
    the connection.
    """

    def __init__(self, cap: int = CONTROL_FRAME_BYTES_MAX) -> None:
        self.cap = cap
        self._rest = b""

    @property
    def is_mid_frame(self) -> bool:
        """Whether an incomplete frame is waiting for its tail (arm the idle timer)."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, in order. Raises `ProtocolError`."""
        if self._rest:
            data = self._rest + data
        frames: list[Frame] = []
        offset, end, cap, unpack = 0, len(data), self.cap, HEADER.unpack_from
        while end - offset >= FRAME_HEADER_BYTES:
            magic, type_id, flags, length = unpack(data, offset)
            if magic != MAGIC or length > cap or flags > FLAG_REPLY:
                parse_header(data, offset, cap)  # says what is wrong
            start = offset + FRAME_HEADER_BYTES
            stop = start + length
            if stop > end:
                break
            frames.append((type_id, flags, data[start:stop]))
            offset = stop
        self._rest = data[offset:] if offset else data
        return frames
