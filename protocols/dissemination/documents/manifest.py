"""What an item says about the document that is attached to it, and how the document is cut into chunks."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Annotated, Final

from msgspec import Meta

from peerd.api import SizedBlob, Value
from peerd.errors import ProtocolError
from peerd.limits import KIB, MIB
from peerd.messages import U32, U64, Struct

DIGEST_BYTES: Final = 32
DOCUMENT_ID_BYTES: Final = 16
CHUNKS_MAX: Final = 1024
"""Chunks of one document; its manifest has a digest of each, and travels in one control frame."""
CHUNK_BYTES_MIN: Final = 256 * KIB
CHUNK_BYTES_MAX: Final = 16 * MIB
DOCUMENT_BYTES_MAX: Final = CHUNKS_MAX * CHUNK_BYTES_MAX
SPREAD_CHUNKS: Final = 64
"""Chunks that a document is cut into at least, as far as they stay large enough to be worth a connection each."""
LARGE_ENOUGH_BYTES: Final = 1 * MIB
FILE_NAME_MAX: Final = 255

DocumentId = Annotated[bytes, Meta(min_length=DOCUMENT_ID_BYTES, max_length=DOCUMENT_ID_BYTES)]
"""The first bytes of a digest of the manifest: equal content has the same id in every stream, and no other has it."""


class Attachment(Struct):
    """The manifest of a document. ``digests``: the SHA-256 of each chunk, one after the other."""

    name: Annotated[str, Meta(max_length=FILE_NAME_MAX)]
    size: U64
    chunk_bytes: U32
    digests: Annotated[bytes, Meta(max_length=CHUNKS_MAX * DIGEST_BYTES)]
    content_type: Annotated[str, Meta(max_length=128)] = ""

    @property
    def id(self) -> bytes:
        """How messages name the document."""
        head = b"%d %d " % (self.size, self.chunk_bytes)
        return sha256(head + self.digests).digest()[:DOCUMENT_ID_BYTES]

    @property
    def count(self) -> int:
        """The number of its chunks."""
        return len(self.digests) // DIGEST_BYTES

    def size_of(self, chunk: int) -> int:
        """How many bytes a chunk has: the last one may be shorter."""
        return min(self.chunk_bytes, self.size - chunk * self.chunk_bytes)

    def digest_of(self, chunk: int) -> bytes:
        """What the digest of a chunk has to be."""
        return self.digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES]

    def check(self) -> None:
        """Raises `ProtocolError` for a manifest that no correct producer makes."""
        if not CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX or not 0 < self.size <= DOCUMENT_BYTES_MAX:
            raise ProtocolError("document", f"{self.size} bytes in chunks of {self.chunk_bytes}")
        if len(self.digests) != DIGEST_BYTES * -(-self.size // self.chunk_bytes):
            raise ProtocolError("document", f"{len(self.digests)} bytes of digests for {self.size} bytes")


def chunk_bytes_for(size: int) -> int:
    """How large the chunks of a document are.

    Small documents have enough chunks for several nodes to serve different ones; large ones few enough for a manifest.
    """
    chunk_bytes = CHUNK_BYTES_MIN
    while chunk_bytes < LARGE_ENOUGH_BYTES and size > SPREAD_CHUNKS * chunk_bytes:
        chunk_bytes *= 2
    while size > CHUNKS_MAX * chunk_bytes:
        chunk_bytes *= 2
    return chunk_bytes


def digest(piece: Value) -> bytes:
    """The digest of a chunk. What the simulator only counts of it says nothing."""
    return sha256(piece.payload if isinstance(piece, SizedBlob) else piece).digest()


def bitmap(have: int, count: int) -> bytes:
    """A set of chunks as messages have it: a bit for each, the first one lowest."""
    return have.to_bytes(-(-count // 8), "little")


def read_bitmap(data: bytes, count: int) -> int:
    """Raises `ProtocolError` for one of another size, or with chunks that there are not."""
    have = int.from_bytes(data, "little")
    if len(data) != -(-count // 8) or have >> count:
        raise ProtocolError("document", f"a map of {len(data)} bytes for {count} chunks")
    return have


def chunks_of(have: int) -> Iterable[int]:
    """The chunks of a set, in order."""
    while have:
        lowest = have & -have
        yield lowest.bit_length() - 1
        have ^= lowest
