"""Writing files so that neither a crash nor a power cut leaves half of one."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace ``path`` so that a crash at any point leaves the old or the new content. Raises ``OSError``."""
    # A worker thread may be saving the same file while the daemon stops and saves it: each has its own temporary file.
    temporary = path.with_name(f".{path.name}.{threading.get_ident()}.tmp")
    # A temporary file that exists already, from a crash or made by an attacker in a folder like /tmp, would keep its
    # owner and mode, so it is removed first and never written to.
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_new_file(path: Path, content: bytes, mode: int, *, is_kept: bool = True) -> None:
    """Create ``path`` with exactly ``mode`` from the first byte on; an existing file is never overwritten.

    For keys: a key that others could read for a moment may be stolen, and a key whose file a power cut removes, after
    its id was published, is lost (but for what is not kept, there is no waiting for the disk). When the disk is full no
    part of the file is left, as the next start would take it for a damaged key. Raises ``FileExistsError`` or another
    ``OSError``.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)  # the umask may have taken bits away
            file.write(content)
            file.flush()
            if is_kept:
                os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    if is_kept:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory survive a power cut. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
