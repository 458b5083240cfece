"""The files of a plugin's log: segments of checksummed records, written by a worker thread.

A folder a log, a file a segment, named by the number of its first record: the line ``peerd-log 1``, then entries of
CRC-32 (4 bytes, big endian), length (4), kind (1), number (8), content. Kind 0 is a record; kind 1 is a mark without
content: every record up to its number is gone. A write goes behind the last durable byte, and first cuts off what a
write that failed may have left there. A segment is removed once all of it is gone.
"""

from __future__ import annotations

import os
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from peerd.errors import Unavailable
from peerd.lib.group_log import GroupLog
from peerd.limits import LOG_RECORD_BYTES_MAX, MIB
from peerd.system.durable_files import sync_directory

SEGMENT_BYTES: Final = 4 * MIB
"""A log begins a new file when its last one has more than this."""

_MAGIC: Final = b"peerd-log 1\n"
_HEAD: Final = Struct(">IIBQ")
_CHECKED: Final = Struct(">IBQ")
_NUMBERED: Final = Struct(">BQ")
_RECORD, _MARK = range(2)
NUMBER_BITS: Final = 16
"""Behind damage, records are looked for whose numbers differ from the one that is missing in so many bits."""

Work = Callable[[Callable[..., Any], tuple[Any, ...], Callable[[Any], None], Callable[[BaseException], None]], object]
"""Runs a function off the loop: ``work(function, arguments, done, failed)``, as `peerd.daemon.offload.OffloadPool`."""


@dataclass(slots=True)
class Segment:
    """One file: where its durable records are, from ``first`` on (0: one that is damaged), and how many bytes count."""

    path: Path
    first: int
    size: int = 0
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))

    @property
    def next(self) -> int:
        """The number that follows the segment's last record."""
        return self.first + len(self.offsets)


class FileAppend(NamedTuple):
    """Bytes to append to a file, whose first ``start`` bytes are durable and stay."""

    path: Path
    start: int
    content: bytes


class SegmentContent(NamedTuple):
    """What a segment's file holds, up to the last byte of its last record."""

    offsets: array[int]
    lengths: array[int]
    size: int
    gone: int
    """Everything up to this number has been truncated."""
    damaged: int
    """So many records cannot be read; their offset is 0."""


@dataclass(slots=True)
class LogWrite:
    """The changes to files that one write makes, and the state of the log once it has succeeded."""

    step: FileAppend
    segments: list[Segment]
    unlinked: list[Path]


class LogFiles:
    """Implements `peerd.lib.group_log.LogMedium`. Everything but `perform` runs on the loop."""

    def __init__(self, folder: Path, work: Work, segments: list[Segment]) -> None:
        self._folder = folder
        self._work = work
        self._segments = segments
        self._lock = threading.Lock()
        """Held while files are written: the end of the process waits for a write under way."""
        self._is_closed = False

    def write(
        self,
        records: list[tuple[int, bytes]],
        first: int,
        done: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Write records, and forget those before ``first``, in a worker thread."""
        plan = self._plan(records, first)

        def written(result: object) -> None:
            self._segments = plan.segments
            done()

        self._work(self._perform, (plan, False), written, failed)

    def write_now(self, records: list[tuple[int, bytes]], first: int) -> None:
        """Write in this thread. What a write under way has written is written again, to the same places."""
        plan = self._plan(records, first)
        try:
            self._perform(plan, True)
        except OSError as error:
            raise Unavailable(f"cannot write {self._folder}: {error.strerror}") from error
        self._segments = plan.segments

    def records(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Read records from the files, of which one is open at a time."""
        for segment in self._segments:
            numbers = range(max(first, segment.first), min(last + 1, segment.next))
            if not numbers:
                continue
            try:
                with segment.path.open("rb") as file:
                    for number in numbers:
                        index = number - segment.first
                        if not segment.offsets[index]:
                            continue
                        file.seek(segment.offsets[index])
                        yield number, file.read(segment.lengths[index])
            except OSError as error:
                raise Unavailable(f"cannot read {segment.path}: {error.strerror}") from error

    def _plan(self, records: list[tuple[int, bytes]], first: int) -> LogWrite:
        """Append to the last segment, or to a new one when that is full; drop those that are gone as a whole."""
        segments = list(self._segments)
        last = segments[-1] if segments else None
        start = records[0][0] if records else max(first, last.next if last is not None else first)
        content = bytearray()
        if last is None or last.size > SEGMENT_BYTES or last.next != start:
            last = Segment(self._folder / f"{start:020}.seg", start)
        else:
            segments.pop()
            last = Segment(last.path, last.first, last.size, last.offsets[:], last.lengths[:])
        if not last.size:
            content += _MAGIC
        content += _encode(_MARK, first - 1, b"")
        for number, record in records:
            last.offsets.append(last.size + len(content) + _HEAD.size)
            last.lengths.append(len(record))
            content += _encode(_RECORD, number, record)
        step = FileAppend(last.path, last.size, bytes(content))
        last.size += len(content)
        kept = [segment for segment in segments if segment.next > first]
        unlinked = [segment.path for segment in segments if segment.next <= first]
        return LogWrite(step, [*kept, last], unlinked)

    def _perform(self, plan: LogWrite, is_last: bool) -> None:
        """Do the write. Raises ``OSError``. Does nothing in a worker if `write_now` has done everything already."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = is_last
            _write_step(plan.step)
            for path in plan.unlinked:
                path.unlink(missing_ok=True)


def _write_step(step: FileAppend) -> None:
    descriptor = os.open(step.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size < step.start:
            raise OSError(None, f"the file has {size} bytes, and had {step.start}")
        if size > step.start:
            os.ftruncate(descriptor, step.start)
        written = 0
        while written < len(step.content):
            written += os.pwrite(descriptor, step.content[written:], step.start + written)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    if not step.start:
        sync_directory(step.path.parent)


def _encode(kind: int, number: int, content: bytes) -> bytes:
    checked = _CHECKED.pack(len(content), kind, number) + content
    return zlib.crc32(checked).to_bytes(4, "big") + checked


class _Found(NamedTuple):
    """A whole entry of a segment. ``end``: the position behind it."""

    kind: int
    number: int
    start: int
    end: int


def _entry_at(content: bytes, position: int) -> _Found | None:
    """The entry that begins here, if its checksum is right."""
    if len(content) - position < _HEAD.size:
        return None
    checksum, length, kind, number = _HEAD.unpack_from(content, position)
    start = position + _HEAD.size
    if length > LOG_RECORD_BYTES_MAX or len(content) - start < length:
        return None
    if zlib.crc32(memoryview(content)[position + 4 : start + length]) != checksum:
        return None
    return _Found(kind, number, start, start + length)


def _next_whole(content: bytes, position: int, expected: int) -> tuple[int, _Found] | None:
    """The first record behind damage, and where it begins: found by its kind and number, believed for its checksum."""
    before = _HEAD.size - _NUMBERED.size
    for high in (expected >> NUMBER_BITS, (expected >> NUMBER_BITS) + 1):
        pattern = _NUMBERED.pack(_RECORD, high << NUMBER_BITS)[: -NUMBER_BITS // 8]
        at = content.find(pattern, position + before)
        while at >= 0:
            found = _entry_at(content, at - before)
            if found is not None and found.kind == _RECORD and found.number >= expected:
                return at - before, found
            at = content.find(pattern, at + 1)
    return None


def _end_of_damaged(content: bytes, position: int, expected: int) -> int:
    """Where the record ends that is expected here, if it is as long as it says: so no crash has cut it. Else 0."""
    if len(content) - position < _HEAD.size:
        return 0
    _, length, kind, number = _HEAD.unpack_from(content, position)
    end = position + _HEAD.size + length
    is_it = kind == _RECORD and number == expected and length <= LOG_RECORD_BYTES_MAX
    return end if is_it and end <= len(content) else 0


def parse_segment(content: bytes, first: int) -> SegmentContent:
    """The records of a segment in order. What is damaged is left out, with its number, so that readers find a mark in
    its place. What is behind the last one is nothing: a crash may have cut a write there that nobody was told of."""
    offsets, lengths, gone, damaged = array("Q"), array("I"), 0, 0
    position = len(_MAGIC) if content.startswith(_MAGIC) else 0
    while position < len(content):
        expected = first + len(offsets)
        found = _entry_at(content, position)
        if found is None or found.kind > _MARK or (found.kind == _RECORD and found.number != expected):
            whole = _next_whole(content, position, expected)
            if whole is None:
                if end := _end_of_damaged(content, position, expected):
                    offsets.append(0)
                    lengths.append(0)
                    position, damaged = end, damaged + 1
                break
            position, found = whole
            missing = found.number - expected
            offsets.extend([0] * missing)
            lengths.extend([0] * missing)
            damaged += missing
        if found.kind == _MARK:
            gone = max(gone, found.number)
        else:
            offsets.append(found.start)
            lengths.append(found.end - found.start)
        position = found.end
    return SegmentContent(offsets, lengths, position, gone, damaged)


def open_log(folder: Path, work: Work) -> tuple[GroupLog, list[str]]:
    """The log in a folder, made if need be, and what was wrong with it, a line each. Raises `Unavailable`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        contents = [(path, path.read_bytes()) for path in sorted(folder.glob("*.seg")) if path.stem.isdecimal()]
        for parent in list(folder.parents)[:3]:  # up to the state directory: each may be new
            sync_directory(parent)
    except OSError as error:
        raise Unavailable(f"cannot open the log {folder}: {error.strerror}") from error
    segments: list[Segment] = []
    warnings: list[str] = []
    gone = 0
    for path, content in contents:
        number = int(path.stem)
        found = parse_segment(content, number)
        gone = max(gone, found.gone)
        segments.append(Segment(path, number, found.size, found.offsets, found.lengths))
        if found.damaged:
            warnings.append(f"{path}: {found.damaged} records are damaged, and left out")
        if found.size < len(content):
            rest = len(content) - found.size
            warnings.append(f"{path}: no whole record after {found.size} bytes; the {rest} bytes behind are left out")
    next_number = max([gone + 1, *(segment.next for segment in segments)])
    sizes = {
        number: segment.lengths[number - segment.first]
        for segment in segments
        for number in range(max(segment.first, gone + 1), segment.next)
        if segment.offsets[number - segment.first]
    }
    first = min([next_number, *sizes])
    return GroupLog(LogFiles(folder, work, segments), first, next_number, sizes), warnings
