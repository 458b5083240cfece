"""Simulates a full disk, also for C code that writes without Python's ``os``."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Within it no file that this process writes can be larger than the write-ahead log in the folder is now.

    The kernel refuses (EFBIG, since Python ignores SIGXFSZ), so the code under test sees a real failed write.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal = folder / "state.db-wal"
    size = wal.stat().st_size if wal.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
