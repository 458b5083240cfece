"""A plugin's large files on a simulated disk: pieces by place, which take some time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peerd.api import Value, value_size_bytes
from peerd.errors import Bug, Unavailable
from peerd.lib.group_log import LOG_NAME
from peerd.limits import FILE_PIECE_BYTES_MAX

PIECE_S: Final = 0.001
"""How long a piece takes: a disk that writes 1 GB/s needs this for 1 MiB."""

Later = Callable[[float, Callable[[], None]], None]
"""Calls back after so many virtual seconds, unless the node has died by then."""
FileDisk = dict[str, dict[int, Value]]
"""The pieces of each file by where they begin; it outlives the incarnations of its node."""


class SimFiles:
    """Implements `peerd.api.Files` for one incarnation. ``room_bytes``: a test makes the disk full with it."""

    def __init__(self, disk: FileDisk, later: Later) -> None:
        self._disk, self._later = disk, later
        self.room_bytes: int | None = None

    def sizes(self) -> dict[str, int]:
        """See `peerd.api.Files`."""
        return {
            name: max(offset + value_size_bytes(piece) for offset, piece in pieces.items())
            for name, pieces in sorted(self._disk.items())
        }

    def write(
        self, name: str, offset: int, piece: Value, done: Callable[[], None], failed: Callable[[Unavailable], None]
    ) -> None:
        """See `peerd.api.Files`."""
        _check(name)
        if not 0 < value_size_bytes(piece) <= FILE_PIECE_BYTES_MAX:
            raise Bug(f"a piece of {value_size_bytes(piece)} bytes")

        def written() -> None:
            used = sum(value_size_bytes(each) for pieces in self._disk.values() for each in pieces.values())
            if self.room_bytes is not None and used + value_size_bytes(piece) > self.room_bytes:
                failed(Unavailable("the disk is full"))
                return
            kept = bytes(piece) if isinstance(piece, bytearray | memoryview) else piece
            self._disk.setdefault(name, {})[offset] = kept
            done()

        self._later(PIECE_S, written)

    def read(
        self, name: str, offset: int, size: int, done: Callable[[Value], None], failed: Callable[[Unavailable], None]
    ) -> None:
        """See `peerd.api.Files`."""
        _check(name)

        def read() -> None:
            piece = self._disk.get(name, {}).get(offset)
            if piece is None or value_size_bytes(piece) != size:
                failed(Unavailable(f"{name} has no {size} bytes at {offset}"))
            else:
                done(piece)

        self._later(PIECE_S, read)

    def rename(self, name: str, to: str, done: Callable[[], None], failed: Callable[[Unavailable], None]) -> None:
        """See `peerd.api.Files`."""
        _check(name)
        _check(to)

        def renamed() -> None:
            if name not in self._disk:
                failed(Unavailable(f"there is no file {name}"))
            else:
                self._disk[to] = self._disk.pop(name)
                done()

        self._later(PIECE_S, renamed)

    def delete(self, name: str) -> None:
        """See `peerd.api.Files`."""
        _check(name)

        def deleted() -> None:
            self._disk.pop(name, None)

        self._later(PIECE_S, deleted)


def _check(name: str) -> None:
    if LOG_NAME.fullmatch(name) is None:
        raise Bug(f"not a name of a file: {name!r}")
