"""Files that are published with items, and files that are written from documents: for commands and the client."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from peerd.errors import PeerdError

if TYPE_CHECKING:
    from protocols.dissemination.models import AttachedDocument

READ_BYTES: Final = 1 << 20
NAME_BYTES_MAX: Final = 120
UNSAFE: Final = re.compile(r"[^\w.,+=@ -]+")

Progress = Callable[[int, int], None]
"""``progress(done_bytes, all_bytes)``."""


async def pieces_of(path: Path, size: int, progress: Progress) -> AsyncGenerator[bytes, None]:
    """The content of a file. Raises `PeerdError` when it is not as long as it was."""
    sent = 0
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, min(READ_BYTES, size - sent)):
            yield piece
            sent += len(piece)
            progress(sent, size)
    if sent < size:
        raise PeerdError(f"{path} became shorter while it was read")


def safe_name(name: str) -> str:
    """A file name that leads nowhere else: names come from other machines, and may be anything.

    Of a path only the last part is taken; it never begins with a dot or a dash.
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    cleaned = UNSAFE.sub("_", last).lstrip(".-").strip()
    while len(cleaned.encode()) > NAME_BYTES_MAX:
        cleaned = cleaned[1:]
    return cleaned.lstrip(".-") or "document"


async def write_document(
    read: Callable[[int], AsyncGenerator[bytes, None]], document: AttachedDocument, path: Path, progress: Progress
) -> str:
    """Write a document to a file, which appears under its name when it is whole. Returns its SHA-256.

    ``read(begin)`` gives the document's bytes from there on; what an earlier, interrupted call has written is gone on
    with. Raises `PeerdError` when the disk refuses.
    """
    unfinished = path.with_name(f".{path.name}.part")
    found = hashlib.sha256()
    try:
        begin = await asyncio.to_thread(_already, unfinished, found, document.size)
        with unfinished.open("ab") as file:
            async with aclosing(read(begin)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
                    found.update(piece)
                    begin += len(piece)
                    progress(begin, document.size)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if begin != document.size:
            raise PeerdError(f"{document.name!r} ended after {begin} of {document.size} bytes")
        os.replace(unfinished, path)
    except OSError as error:
        raise PeerdError(f"cannot write {path}: {error.strerror}") from error
    return found.hexdigest()


def _already(unfinished: Path, found: hashlib._Hash, size: int) -> int:
    """How much is there from an earlier time; it goes into the digest."""
    if not unfinished.exists():
        return 0
    if unfinished.stat().st_size > size:
        unfinished.unlink()
        return 0
    with unfinished.open("rb") as file:
        while piece := file.read(READ_BYTES):
            found.update(piece)
        return file.tell()
