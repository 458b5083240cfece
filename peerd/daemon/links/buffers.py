"""Memory for received values: anonymous, or above a threshold a mapped file that is already unlinked."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from pathlib import Path
from typing import Final

from peerd.errors import Unavailable
from peerd.limits import FILES_FREE_BYTES_MIN, MIB

HUGE_PAGES_FROM_BYTES: Final = 1 * MIB


def allocate(size_bytes: int, *, spill_threshold_bytes: int, directory: Path | None) -> memoryview:
    """A writable buffer of exactly ``size_bytes``. Raises `Unavailable` when memory or disk is short.

    Above the threshold the kernel may write it out to ``directory``; the file was unlinked at once, so nothing is
    left behind by a crash, and the space returns when the last view is gone.
    """
    try:
        if size_bytes <= spill_threshold_bytes or directory is None:
            return _anonymous(size_bytes)
        with tempfile.TemporaryFile(dir=directory) as file:
            _reserve(file.fileno(), size_bytes)
            return memoryview(mmap.mmap(file.fileno(), size_bytes))
    except (MemoryError, OSError) as error:
        raise Unavailable(f"no room for a value of {size_bytes} bytes: {error}") from error


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Give an empty file its size, and all of its room on the disk. Raises `OSError` when that is short.

    A page for which the disk has no room when it is first written kills the whole process (SIGBUS). Most file systems
    set the room aside at once; for others the C library writes to each block. Where there is neither, the free room is
    looked at and no more.
    """
    disk = os.fstatvfs(descriptor)
    if disk.f_bavail * disk.f_frsize < size_bytes + FILES_FREE_BYTES_MIN:
        raise OSError(errno.ENOSPC, f"{FILES_FREE_BYTES_MIN} bytes of the disk must stay free")
    try:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(descriptor, 0, size_bytes)
            return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    os.ftruncate(descriptor, size_bytes)


def _anonymous(size_bytes: int) -> memoryview:
    """Map anonymous memory. The kernel zeroes it page by page as it fills; zeroing 64 MiB at once would take 33 ms."""
    if size_bytes < HUGE_PAGES_FROM_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(bytearray(size_bytes))
    area = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(area)
