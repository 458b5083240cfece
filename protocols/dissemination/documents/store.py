"""The documents that this node keeps on disk: what each is, how much of it is here, and which one has to go.

The bytes are in the plugin's files, and what they are is in its store: so a partial document is gone on with after a
restart, and a complete one is there again.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from peerd.api import Host
from peerd.errors import PeerdError, Unavailable
from protocols.dissemination.documents.manifest import Attachment

KEPT_MAX: Final = 1000
"""Documents in the store, however small."""
STORE_PREFIX: Final = "document."
DRAFT_PREFIX: Final = "draft-"
FILE_PREFIX: Final = "document-"


@dataclass(slots=True, eq=False)
class KeptDocument:
    """One document. ``at``: when it came, by the wall clock, in milliseconds: the oldest goes first."""

    attachment: Attachment
    stream: str
    item: str
    at: int
    is_complete: bool = False
    id: bytes = b""

    @property
    def file(self) -> str:
        """The name of its file."""
        return FILE_PREFIX + self.id.hex()


class DocumentStore:
    def __init__(self, host: Host, bytes_max: Callable[[], int]) -> None:
        self._host, self._bytes_max = host, bytes_max
        self.files = host.store.files()
        self._kept: dict[bytes, KeptDocument] = {}
        self.drafted_bytes = 0
        """What documents that are being published will take."""
        self._load()

    def __iter__(self) -> Iterator[KeptDocument]:
        return iter(sorted(self._kept.values(), key=lambda kept: (kept.at, kept.id)))

    def get(self, id: bytes) -> KeptDocument | None:
        """A document by its id."""
        return self._kept.get(id)

    def evict(self, size: int, is_used: Callable[[bytes], bool], exchanged: Container[bytes]) -> Iterator[KeptDocument]:
        """Let go of old documents, one by one, until there is room for a new one.

        ``is_used``: what must stay. ``exchanged``: what others have asked for lately, too; it goes last.
        """

        # What is not complete, and is not going on either, is worth least.
        def worth(kept: KeptDocument) -> tuple[bool, bool, int, bytes]:
            return kept.id in exchanged, kept.is_complete, kept.at, kept.id

        for kept in sorted(self._kept.values(), key=worth):
            if size > self._bytes_max() or self.has_room(size):
                return
            if not is_used(kept.id):
                self.remove(kept)
                yield kept

    @property
    def bytes(self) -> int:
        """What all take, or will take when they are complete."""
        return self.drafted_bytes + sum(kept.attachment.size for kept in self._kept.values())

    def has_room(self, size: int) -> bool:
        """Whether there is room for a new document."""
        return self.bytes + size <= self._bytes_max() and len(self._kept) < KEPT_MAX

    def add(self, attachment: Attachment, stream: str, item: str, *, is_complete: bool = False) -> KeptDocument:
        """Put a document in the store; ask `has_room` before."""
        kept = KeptDocument(attachment, stream, item, round(self._host.wall_time() * 1000), is_complete, attachment.id)
        self._kept[kept.id] = kept
        self._save(kept)
        return kept

    def completed(self, kept: KeptDocument) -> None:
        """All of it is here."""
        kept.is_complete = True
        self._save(kept)

    def incomplete(self, kept: KeptDocument) -> None:
        """A part of it cannot be read any more."""
        kept.is_complete = False
        self._save(kept)

    def remove(self, kept: KeptDocument) -> None:
        """Let go of one."""
        self._kept.pop(kept.id, None)
        self.files.delete(kept.file)
        try:
            self._host.store.delete(STORE_PREFIX + kept.id.hex())
        except Unavailable:
            return  # the next start finds no file for it, and forgets it

    def _save(self, kept: KeptDocument) -> None:
        attachment = kept.attachment
        data = {
            "name": attachment.name,
            "size": attachment.size,
            "chunk_bytes": attachment.chunk_bytes,
            "digests": b64encode(attachment.digests).decode(),
            "content_type": attachment.content_type,
            "stream": kept.stream,
            "item": kept.item,
            "at": kept.at,
            "is_complete": kept.is_complete,
        }
        try:
            self._host.store.put(STORE_PREFIX + kept.id.hex(), json.dumps(data).encode())
        except Unavailable:
            return  # it is here until this node stops

    def _load(self) -> None:
        """What an earlier start has left: documents are found again, and what belongs to none is deleted."""
        store = self._host.store
        keys = [key for key in sorted(store.keys()) if key.startswith(STORE_PREFIX)]
        try:
            sizes = self.files.sizes()
        except Unavailable:
            return
        for key in keys:
            kept = _read(store.get(key) or b"")
            if kept is None or STORE_PREFIX + kept.id.hex() != key or kept.file not in sizes:
                with suppress(Unavailable):  # the disk refuses: the next start tries again
                    store.delete(key)
                continue
            kept.is_complete = kept.is_complete and sizes[kept.file] == kept.attachment.size
            self._kept[kept.id] = kept
        known = {kept.file for kept in self._kept.values()}
        for name in sizes:
            if name not in known and name.startswith((FILE_PREFIX, DRAFT_PREFIX)):
                self.files.delete(name)


def _read(data: bytes) -> KeptDocument | None:
    """What `DocumentStore` has saved; ``None`` for what it has not."""
    try:
        saved = json.loads(data)
        attachment = Attachment(
            str(saved["name"]),
            int(saved["size"]),
            int(saved["chunk_bytes"]),
            b64decode(saved["digests"]),
            str(saved["content_type"]),
        )
        attachment.check()
        kept = KeptDocument(
            attachment, str(saved["stream"]), str(saved["item"]), int(saved["at"]), bool(saved["is_complete"])
        )
    except (ValueError, KeyError, TypeError, PeerdError):
        return None
    kept.id = attachment.id
    return kept
