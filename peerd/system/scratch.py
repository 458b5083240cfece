"""Room for values that are larger than memory should hold.

What is written stays in memory at first, and from a threshold on it is in a file, which is mapped when all of it is
there. Files have no name, or lose it as soon as the node opens them, so their room returns with the last view of them.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
from contextlib import suppress
from typing import BinaryIO, Final

from peerd.errors import Unavailable
from peerd.frozen import Frozen
from peerd.limits import FILES_FREE_BYTES_MIN, MIB

NAME: Final = ".value.tmp-"
"""How the name of a file begins: of those that a daemon finds in its state directory when it starts it removes all."""
CHECKED_BYTES: Final = 16 * MIB
"""The free room of the disk is looked at each time that so much has been written."""


class DiskScratch(Frozen):
    """Implements `peerd.api.Scratch`: what takes more than ``memory_bytes`` goes to a file in ``folder``."""

    folder: str
    memory_bytes: int

    def less(self, parts: int) -> DiskScratch:
        """See `peerd.api.Scratch.less`."""
        return DiskScratch(self.folder, self.memory_bytes // parts)

    def writer(self, path: str = "") -> DiskWriter:
        """See `peerd.api.Scratch.writer`."""
        return DiskWriter(self, path)

    def new_file(self) -> str:
        """See `peerd.api.Scratch.new_file`."""
        try:
            descriptor, path = tempfile.mkstemp(prefix=NAME, dir=self.folder)
        except OSError as error:
            raise _no_room(error) from error
        os.close(descriptor)
        return path

    def open_file(self, path: str, bytes_max: int) -> memoryview:
        """See `peerd.api.Scratch.open_file`."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                self.drop_file(path)
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= bytes_max:
                    raise Unavailable(f"a value of {status.st_size} bytes, expected 1 to {bytes_max}")
                return memoryview(mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Unavailable(f"a value could not be read: {error.strerror}") from error

    def drop_file(self, path: str) -> None:
        """See `peerd.api.Scratch.drop_file`."""
        with suppress(OSError):  # what is left of it is removed when the daemon starts
            os.unlink(path)


class DiskWriter:
    """Implements `peerd.api.ScratchWriter`."""

    def __init__(self, scratch: DiskScratch, path: str = "") -> None:
        self.size_bytes = 0
        self._scratch = scratch
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self._unchecked = CHECKED_BYTES
        if path:
            try:
                self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "wb")
            except OSError as error:
                raise _no_room(error) from error

    def __del__(self) -> None:
        """Close the file of a value that was never finished."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """See `peerd.api.ScratchWriter.write`."""
        if self._file is None:
            if self.size_bytes + len(data) <= self._scratch.memory_bytes:
                self._memory += data
                self.size_bytes += len(data)
                return
            self._move_to_file()
        self._append(data)
        self.size_bytes += len(data)

    def overwrite(self, offset: int, data: bytes) -> None:
        """See `peerd.api.ScratchWriter.overwrite`."""
        if self._file is None:
            self._memory[offset : offset + len(data)] = data
            return
        try:
            self._file.flush()
            os.pwrite(self._file.fileno(), data, offset)
        except OSError as error:
            raise _no_room(error) from error

    def read(self, offset: int, size: int) -> bytes:
        """See `peerd.api.ScratchWriter.read`."""
        if self._file is None:
            return bytes(self._memory[offset : offset + size])
        try:
            self._file.flush()
            return os.pread(self._file.fileno(), size, offset)
        except OSError as error:
            raise _no_room(error) from error

    def finish(self) -> memoryview:
        """See `peerd.api.ScratchWriter.finish`."""
        if self._file is None:
            return memoryview(self._memory).toreadonly()
        try:
            with self._file as file:
                file.flush()
                return memoryview(mmap.mmap(file.fileno(), self.size_bytes, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise _no_room(error) from error

    def close(self) -> None:
        """See `peerd.api.ScratchWriter.close`."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                raise _no_room(error) from error

    def _move_to_file(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(dir=self._scratch.folder)  # noqa: SIM115  # closed by `finish`
        except OSError as error:
            raise _no_room(error) from error
        self._append(self._memory)
        self._memory = bytearray()

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        assert self._file is not None
        try:
            self._unchecked += len(data)
            if self._unchecked >= CHECKED_BYTES:
                self._unchecked = 0
                disk = os.fstatvfs(self._file.fileno())
                if disk.f_bavail * disk.f_frsize < len(data) + FILES_FREE_BYTES_MIN:
                    raise OSError(errno.ENOSPC, f"{FILES_FREE_BYTES_MIN} bytes of the disk must stay free")
            self._file.write(data)
        except OSError as error:
            raise _no_room(error) from error


def _no_room(error: Exception) -> Unavailable:
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Unavailable(f"no room for a large value: {detail}")
