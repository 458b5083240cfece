"""Event files of one node: a folder an hour, files that appear when they are whole, compressed, within a budget.

``dt=2026-11-27/hr=13/events-<node8>-<boot>-<n>.ndjson.gz``: the hour (UTC) is that in which the file was begun, so that
a reader who wants some hours need not open the others. Spark and others know such folders as columns of a table.

Gzip, since every reader of JSON lines takes it; Spark reads zstd only where Hadoop's native library is installed.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from peerd.frozen import Frozen
from peerd.limits import EVENT_QUEUE_RECORDS_MAX, MIB
from peerd.telemetry.sinks import QueuedSink, encode_record

PART: Final = ".part"
"""The end of the name of a file that is being written."""
PACKED: Final = ".gz"
BEGUN: Final = ".tmp"
"""The end of the name of a compressed file that is being made."""
GZIP_LEVEL: Final = 1
"""Level 6 takes three times as long for a quarter less (the events of docs/scenarios/churn.toml: 7.7 and 10.2 times
smaller)."""
_NAME: Final = re.compile(r"events-[0-9a-f]{8}-(\d+)-(\d+)\.ndjson(\.gz)?")

_log = structlog.get_logger(__name__)


class FileLimits(Frozen):
    """When a file is finished, how many bytes of finished files one node keeps, and whether they are compressed."""

    rotate_bytes: int = 64 * MIB
    rotate_age_s: float = 3600.0
    budget_bytes: int = 1024 * MIB
    compresses: bool = True


class EventFiles:
    """The files of one node; synchronous, for one thread. A medium of `QueuedSink`.

    The current file ends in ``.part``. When it is finished (by size, age, a new hour or `close`) an atomic rename gives
    it its name, so a reader that looks at ``*.ndjson`` and ``*.ndjson.gz`` only sees whole files. ``.part`` files that
    a crash left are finished at start-up, a torn last line included: the reader counts it as corrupt.
    """

    def __init__(
        self,
        directory: Path,
        node_id: str,
        *,
        boot: int,
        limits: FileLimits | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._prefix = f"events-{node_id[:8]}-"
        self._boot, self._wall_clock = boot, wall_clock
        self._limits = limits or FileLimits()
        self._descriptor: int | None = None
        self._path = directory
        self._written_bytes = 0
        self._opened_at = 0.0
        directory.mkdir(parents=True, exist_ok=True)
        self._finish_what_was_left()
        finished = sorted(self._finished())
        self._number = max((number for boot_, number, _ in finished if boot_ == boot), default=0)
        self._kept = deque((path, path.stat().st_size) for _, _, path in finished)
        """Finished files and their bytes, the oldest first."""
        self._kept_bytes = sum(size for _, size in self._kept)

    @property
    def current(self) -> tuple[int, int]:
        """Boot and number of the file that is being written, or was the last."""
        return self._boot, self._number

    def sync(self) -> None:
        """Wait until what was written is on the disk. Raises ``OSError``."""
        if self._descriptor is not None:
            os.fdatasync(self._descriptor)

    def limit(self, limits: FileLimits) -> None:
        """Other limits from the next write on."""
        self._limits = limits

    def write(self, record: dict[str, object]) -> None:
        """Append one record. Raises `Bug` when it is not JSON, `OSError` when the disk refuses."""
        self.put([encode_record(record)])

    def close(self) -> None:
        """Finish the current file."""
        self.finish()

    def put(self, lines: list[bytes]) -> None:
        """Append lines; a failed write is taken back, so that a retry leaves neither gap nor torn line."""
        data = b"".join(lines)
        self.idle()
        # An empty file takes any batch, also one that is larger than a file should be.
        if self._written_bytes and self._written_bytes + len(data) > self._limits.rotate_bytes:
            self.finish()
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            # If this fails too, the error of the write is still the one to report; readers count the torn line.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._written_bytes)
            raise
        self._written_bytes += len(data)

    def idle(self) -> None:
        """Finish a file that is old enough, or of an earlier hour."""
        if self._descriptor is None:
            return
        is_old = time.monotonic() - self._opened_at >= self._limits.rotate_age_s
        if is_old or self._folder() != self._path.parent:
            self.finish()

    def finish(self) -> None:
        """Give the current file, if any, its final name, and remove the oldest ones."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        self._written_bytes = 0
        # Synced before the rename: a file with its final name must be whole even after a power loss.
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            path = _packed(self._path) if self._limits.compresses else None
            path = self._path.rename(self._path.with_suffix("")) if path is None else path
            self._keep(path)

    def _keep(self, path: Path) -> None:
        size = path.stat().st_size
        self._kept.append((path, size))
        self._kept_bytes += size
        while self._kept_bytes > self._limits.budget_bytes and len(self._kept) > 1:
            oldest, size = self._kept.popleft()
            self._kept_bytes -= size
            oldest.unlink(missing_ok=True)
            for folder in oldest.parents[:2]:  # of the hour, of the day: they stay where there is anything else
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _folder(self) -> Path:
        return self._directory / datetime.fromtimestamp(self._wall_clock(), UTC).strftime("dt=%Y-%m-%d/hr=%H")

    def _open(self) -> None:
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        self._number += 1
        self._path = folder / f"{self._prefix}{self._boot}-{self._number}.ndjson{PART}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o640)
        self._written_bytes = 0
        self._opened_at = time.monotonic()

    def _finish_what_was_left(self) -> None:
        """Files that an earlier process left open get their final names; they are not compressed, which takes time."""
        for begun in self._directory.glob(f"dt=*/hr=*/{self._prefix}*{BEGUN}"):
            begun.unlink()
        for left in self._directory.glob(f"dt=*/hr=*/{self._prefix}*{PART}"):
            whole = left.with_suffix("")
            if whole.with_name(whole.name + PACKED).exists():
                left.unlink()  # it ended between the two
            else:
                left.rename(whole)

    def _finished(self) -> list[tuple[int, int, Path]]:
        """The finished files of this node as (boot, number, path)."""
        found = self._directory.glob(f"dt=*/hr=*/{self._prefix}*")
        named = ((_NAME.fullmatch(path.name), path) for path in found)
        return [(int(name[1]), int(name[2]), path) for name, path in named if name is not None]


def _packed(path: Path) -> Path | None:
    """Compress a file that ends in `PART`; ``None``: the disk refuses, and the file stays as it is."""
    whole = path.with_suffix("")
    packed = whole.with_name(whole.name + PACKED)
    begun = packed.with_name(packed.name + BEGUN)
    try:
        with path.open("rb") as source, begun.open("xb") as target:
            os.fchmod(target.fileno(), 0o640)
            # No name and no time of the file: the same events are the same bytes.
            with gzip.GzipFile("", "wb", GZIP_LEVEL, target, mtime=0) as packing:
                shutil.copyfileobj(source, packing, MIB)
            target.flush()
            os.fsync(target.fileno())
        begun.rename(packed)
    except OSError as error:
        _log.warning("sink.not_compressed", file=str(path), error=str(error))
        with contextlib.suppress(OSError):
            begun.unlink(missing_ok=True)
        return None
    path.unlink()
    return packed


class FileSink(QueuedSink):
    """`EventFiles` behind a queue: what a daemon uses. Survives a full disk by counting and retrying."""

    def __init__(
        self,
        directory: Path,
        node_id: str,
        *,
        boot: int,
        limits: FileLimits | None = None,
        queue_records_max: int = EVENT_QUEUE_RECORDS_MAX,
    ) -> None:
        self.files = EventFiles(directory, node_id, boot=boot, limits=limits)
        super().__init__(self.files, queue_records_max=queue_records_max)
