"""A plugin's large files: one folder, written and read in a thread of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peerd.api import SizedBlob, Value
from peerd.daemon.storage.log_files import Work
from peerd.errors import Bug, Unavailable
from peerd.lib.group_log import LOG_NAME
from peerd.limits import FILE_BYTES_MAX, FILE_PIECE_BYTES_MAX, FILES_FREE_BYTES_MIN, FILES_PER_PLUGIN_MAX


class PluginFiles:
    """Implements `peerd.api.Files`. ``work`` runs one job after the other, so that they stay in order."""

    def __init__(self, folder: Path, work: Work, free_bytes_min: int = FILES_FREE_BYTES_MIN) -> None:
        self._folder, self._work, self._free_bytes_min = folder, work, free_bytes_min

    def sizes(self) -> dict[str, int]:
        """See `peerd.api.Files`."""
        try:
            with os.scandir(self._folder) as entries:
                return {entry.name: entry.stat().st_size for entry in sorted(entries, key=lambda entry: entry.name)}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise _refused(error) from error

    def write(
        self, name: str, offset: int, piece: Value, done: Callable[[], None], failed: Callable[[Unavailable], None]
    ) -> None:
        """See `peerd.api.Files`."""
        if isinstance(piece, SizedBlob):
            raise Bug("only a simulator keeps padding in files")
        path, view = self._path(name), memoryview(piece).cast("B")
        check_piece(offset, len(view))
        self._work(self._write, (path, offset, view), lambda _: done(), lambda error: failed(_refused(error)))

    def read(
        self, name: str, offset: int, size: int, done: Callable[[Value], None], failed: Callable[[Unavailable], None]
    ) -> None:
        """See `peerd.api.Files`."""
        path = self._path(name)
        check_piece(offset, size)
        self._work(_read, (path, offset, size), done, lambda error: failed(_refused(error)))

    def rename(self, name: str, to: str, done: Callable[[], None], failed: Callable[[Unavailable], None]) -> None:
        """See `peerd.api.Files`. Its bytes are on disk before it has the new name."""
        arguments = (self._path(name), self._path(to))
        self._work(_rename, arguments, lambda _: done(), lambda error: failed(_refused(error)))

    def delete(self, name: str) -> None:
        """See `peerd.api.Files`."""
        self._work(_delete, (self._path(name),), lambda _: None, lambda error: None)

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._folder / name

    def _write(self, path: Path, offset: int, view: memoryview) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists() and len(os.listdir(self._folder)) >= FILES_PER_PLUGIN_MAX:
            raise Unavailable(f"there are {FILES_PER_PLUGIN_MAX} files already")
        disk = os.statvfs(self._folder)
        if disk.f_bavail * disk.f_frsize < self._free_bytes_min + len(view):
            raise Unavailable(f"less than {self._free_bytes_min} bytes of the disk are free")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
        finally:
            os.close(descriptor)


def _read(path: Path, offset: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        piece = os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
    if len(piece) != size:
        raise Unavailable(f"{path.name} has only {len(piece)} of {size} bytes at {offset}")
    return piece


def _rename(path: Path, to: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    path.replace(to)


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)


def _refused(error: Any) -> Unavailable:
    """What the plugin is told. Anything but a refusal of the disk is a mistake of ours."""
    if isinstance(error, Unavailable):
        return error
    if isinstance(error, OSError):
        return Unavailable(f"the disk refuses: {error.strerror}")
    raise Bug(f"a job on a file failed: {error!r}") from error


def check_name(name: str) -> None:
    """Raises `Bug` for what is no name of a file."""
    if LOG_NAME.fullmatch(name) is None:
        raise Bug(f"not a name of a file: {name!r}")


def check_piece(offset: int, size: int) -> None:
    """Raises `Bug` for a piece that is too large, or lies too far behind."""
    if not 0 < size <= FILE_PIECE_BYTES_MAX or not 0 <= offset <= FILE_BYTES_MAX - size:
        raise Bug(f"a piece of {size} bytes at {offset}")
