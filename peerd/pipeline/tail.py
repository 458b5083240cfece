"""Event files that grow: how far each was read, and what is new. Pure, but for reading files.

A file is known by its path without ``.part`` and ``.gz``, since it has several names in its life, and how far it was
read is a number of bytes of its lines before they are compressed. So its lines are read once, whenever its daemon
finishes and compresses it. `WHOLE`: it is finished, and was read to its end.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from io import BufferedIOBase
from typing import Final, NamedTuple

from peerd.errors import Unavailable
from peerd.pipeline.sources import PART_SUFFIX, UNPACKED, FolderHours, has_scheme

PACKED_SUFFIX: Final = ".gz"
WHOLE: Final = -1
TASK_BYTES: Final = 32 * 1024 * 1024
"""One task of Spark reads about so much, of as many files as it takes."""
CHUNK_BYTES: Final = 1024 * 1024
CUT_OFF: Final = "(the compressed data end here, or are damaged)"
"""A line in place of what cannot be unpacked; it is no event, and counted as corrupt."""
_NAME: Final = re.compile(r"(.+\.ndjson)(\.part|\.gz)?")

Positions = dict[str, int]
"""How far each file was read, or `WHOLE`."""


class FileEnd(NamedTuple):
    """How far a file can be read now, or `WHOLE`, and about how many bytes it has then."""

    position: int
    size: int


@dataclass(frozen=True, slots=True)
class FileRange:
    """The lines of one file from ``start`` on to ``end``, in bytes before they are compressed; or to `WHOLE`."""

    file: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EventFileTail:
    """The event files of this machine at these paths: files, folders at any depth, or patterns."""

    paths: Sequence[str]
    has_parts: bool = True
    hours: FolderHours = field(default_factory=FolderHours)

    def ends(self) -> dict[str, FileEnd]:
        """The files that are there now, the earliest hours first, and how far they can be read."""
        found: dict[str, FileEnd] = {}
        for name in self._named():
            path, (file, suffix) = name[0], name.groups()
            if suffix == PART_SUFFIX and file in found:
                continue  # that it is finished says more
            with contextlib.suppress(FileNotFoundError):  # finished meanwhile under another name, or removed
                found[file] = _end(path, suffix)
        return {file: found[file] for file in sorted(found, key=_order)}

    def files(self) -> Iterator[str]:
        """Their paths, under all names that a file has now."""
        return (name[0] for name in self._named())

    def _named(self) -> Iterator[re.Match[str]]:
        for name in map(_NAME.fullmatch, self._all()):
            if name is not None and self.hours.may_have(name[0]) and (self.has_parts or name[2] != PART_SUFFIX):
                yield name

    def _all(self) -> Iterator[str]:
        for path in self.paths:
            for each in (os.path.abspath(path),) if os.path.exists(path) else map(os.path.abspath, glob(path)):
                if not os.path.isdir(each):
                    yield each
                    continue
                for folder, _, names in os.walk(each):
                    yield from (os.path.join(folder, name) for name in names)


def check_of_this_machine(paths: Sequence[str]) -> None:
    """Raise `Unavailable` for paths that are not of this machine, or not there, or would be no pattern here."""
    for path in paths:
        if has_scheme(path):
            raise Unavailable(f"{path}: only files of this machine are read here, by a path without a scheme")
        if not (os.path.exists(path) or has_magic(path)):
            raise Unavailable(f"{path}: there is no such file or folder")


def advance(start: Mapping[str, int], ends: Mapping[str, FileEnd], bytes_max: int | None) -> Positions:
    """How far the next batch reads: about so many bytes beyond ``start``, if there are more. ``None``: all.

    Files that are there no more are forgotten.
    """
    positions: Positions = {}  # in the order of ``ends``: to Spark, another order is another position
    left = float("inf") if bytes_max is None else bytes_max
    for file, end in ends.items():
        before = start.get(file, 0)
        if left > 0 and before != WHOLE and (end.position == WHOLE or end.position > before):
            positions[file] = end.position
            left -= max(1, end.size - before)
        elif file in start:
            positions[file] = before
    return positions


def tasks(start: Mapping[str, int], end: Mapping[str, int]) -> list[list[FileRange]]:
    """What is between two positions, for tasks of about `TASK_BYTES`."""
    found: list[list[FileRange]] = []
    room = 0
    for file in sorted(end, key=_order):
        before, now = start.get(file, 0), end[file]
        if now == before:
            continue
        if room <= 0:
            found.append([])
            room = TASK_BYTES
        found[-1].append(FileRange(file, before, now))
        room -= (now - before) if now != WHOLE else max(1, _size_of(file) - before)
    return found


def chunks(part: FileRange) -> Iterator[list[str]]:
    """The lines of a part of a file, some at a time. None if the file is there no more."""
    left = float("inf") if part.end == WHOLE else part.end - part.start
    tail = b""
    try:
        with _opened(part.file) as file:
            file.seek(part.start)
            while left > 0 and (data := file.read1(int(min(left, CHUNK_BYTES)))):
                left -= len(data)
                *lines, tail = (tail + data).split(b"\n")
                yield [line.decode(errors="replace") for line in lines]
    except FileNotFoundError:
        return
    except (EOFError, zlib.error, gzip.BadGzipFile):
        yield [CUT_OFF]
    if tail:  # torn when its daemon was killed
        yield [tail.decode(errors="replace")]


def _order(file: str) -> tuple[str, str]:
    """Hours one after the other, whatever folders they are in; then by name, with numbers as such."""
    hour = re.search(r"/(dt=[^/]*/hr=[^/]*)/", file)
    return (hour[1] if hour else "", re.sub(r"\d+", lambda number: number[0].zfill(20), file))


def _end(path: str, suffix: str | None) -> FileEnd:
    size = os.stat(path).st_size
    if suffix == PACKED_SUFFIX:
        return FileEnd(WHOLE, size * UNPACKED)
    return FileEnd(WHOLE, size) if suffix is None else FileEnd(_after_last_line(path, size), size)


def _after_last_line(path: str, size: int) -> int:
    """Where the last whole line ends: the rest is still being written."""
    with open(path, "rb") as file:
        for end in range(size, 0, -CHUNK_BYTES):
            begin = max(0, end - CHUNK_BYTES)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
    return 0


def _names(file: str) -> Iterable[str]:
    """In the order in which a file takes them, so that it is found while it gets another."""
    return (f"{file}{PART_SUFFIX}", file, f"{file}{PACKED_SUFFIX}")


def _opened(file: str) -> BufferedIOBase:
    for name in _names(file):
        with contextlib.suppress(FileNotFoundError):
            return gzip.GzipFile(name) if name.endswith(PACKED_SUFFIX) else open(name, "rb")
    raise FileNotFoundError(file)


def _size_of(file: str) -> int:
    for name in _names(file):
        with contextlib.suppress(FileNotFoundError):
            return os.stat(name).st_size * (UNPACKED if name.endswith(PACKED_SUFFIX) else 1)
    return 0
