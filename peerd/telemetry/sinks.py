"""The places to which event records can go: rotated files, standard output, a TCP collector, memory, or nowhere.

A record is one flat dictionary as `peerd.telemetry.schema` describes it, and becomes one line of compact JSON. `write`
never blocks: it is one append to a bounded queue that a thread empties. What the queue cannot hold is counted, and the
next line is a ``sink.dropped`` record that says so; it carries the id, clocks and cause of the first record that it
stands for, so ids stay unique. A record that is not JSON (NaN, infinity, a foreign type) is refused and counted too.

`EventFiles` is the synchronous half of `FileSink`: a simulation, which has no loop to protect, writes to it directly.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TextIO

import msgspec
import structlog

from peerd.errors import Bug
from peerd.limits import EVENT_QUEUE_RECORDS_MAX, KIB, MIB
from peerd.telemetry.schema import COMMON_FIELDS, RecordsDropped

PART_SUFFIX: Final = ".part"
FINISHED_SUFFIX: Final = ".ndjson"
ROTATE_BYTES: Final = 64 * MIB
ROTATE_AGE_S: Final = 3600.0
FILES_MAX: Final = 16
BATCH_BYTES_MAX: Final = 64 * KIB
"""How much is encoded and written at once, plus one record: with a failing disk the thread holds this much."""
POLL_S: Final = 0.2
"""A record waits at most this long until the thread writes it; a SIGKILL loses no records older than this."""
RETRY_S: Final = 3.0
CLOSE_TIMEOUT_S: Final = 5.0
REFUSED_KINDS_MAX: Final = 64
CONNECT_TIMEOUT_S: Final = 5.0
BACKOFF_S_MAX: Final = 30.0

_log = structlog.get_logger(__name__)


class EventSink(Protocol):
    """Anything that takes event records. `write` never blocks and never raises for what the medium does."""

    def write(self, record: dict[str, object]) -> None:
        """Take one record; the caller must not change it afterwards."""

    def close(self) -> None:
        """Write what is queued, within a bound, and release everything. Harmless when repeated."""


_PLAIN: Final = frozenset({bool, int, float, str, type(None)})
_NOT_ASCII: Final = b"\x80"
_encode = msgspec.json.Encoder().encode


def encode_record(record: dict[str, object]) -> bytes:
    """One line: compact ASCII JSON and a newline. Raises `Bug` for a record that JSON cannot say (NaN, bytes, ...)."""
    values = record.values()
    numbers = [value for value in values if value.__class__ is float]
    if _PLAIN.issuperset(map(type, values)) and math.isfinite(sum(numbers)):
        try:
            line = _encode(record)
        except (UnicodeEncodeError, OverflowError):  # a file's name need not be text, nor a number have 64 bits
            line = _NOT_ASCII
        if line.isascii():
            return line + b"\n"
    try:  # several times as long: it escapes other letters, and refuses what is not JSON
        return json.dumps(record, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    except (ValueError, TypeError) as error:
        raise Bug(f"event {record.get('event')!r} is not JSON: {error}") from error


class NullSink:
    """A sink that forgets every record."""

    def write(self, record: dict[str, object]) -> None:
        pass

    def close(self) -> None:
        pass


class Medium(Protocol):
    """The thing that a `QueuedSink` writes to. Only the sink's thread calls it."""

    def put(self, lines: list[bytes]) -> None:
        """Write all lines; if it raises `OSError`, none of them was written."""

    def idle(self) -> None:
        """Do what depends on time; called every `POLL_S`."""
        return

    def finish(self) -> None:
        """Finish; no record will follow."""
        return


class QueuedSink:
    """Bounded queue and the thread that empties it into a medium.

    ``retry_s`` tells how long to leave a failing medium alone, given the number of failures in a row. Meanwhile the
    queue fills, then records are dropped and counted in `dropped_total`.
    """

    def __init__(
        self,
        medium: Medium,
        *,
        queue_records_max: int = EVENT_QUEUE_RECORDS_MAX,
        retry_s: Callable[[int], float] = lambda failures: RETRY_S,
    ) -> None:
        self.dropped_total = 0
        self._medium = medium
        self._queue: deque[dict[str, object]] = deque()
        self._queue_records_max = queue_records_max
        self._retry_s = retry_s
        self._dropped: dict[object, tuple[dict[str, object], int]] = {}
        self._dropped_lock = threading.Lock()
        self._batch: list[bytes] = []
        self._batch_records = 0
        self._refused_kinds: set[str] = set()
        self._failures = 0
        self._retry_at = 0.0
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="peerd-sink", daemon=True)
        self._thread.start()

    def write(self, record: dict[str, object]) -> None:
        """Append a record to the queue; past half of the queue the thread is woken early."""
        # No lock: only the event loop appends and only the thread takes, and a deque's ends are safe for that.
        waiting = len(self._queue)
        if waiting >= self._queue_records_max or self._closing:
            self._drop(record)
            return
        self._queue.append(record)
        if waiting * 2 >= self._queue_records_max and not self._wake.is_set():
            self._wake.set()

    def limit(self, queue_records_max: int) -> None:
        """Another length of the queue from now on; what waits beyond a shorter one is still written."""
        self._queue_records_max = queue_records_max

    def close(self) -> None:
        """Flush and finish within `CLOSE_TIMEOUT_S`; what is left then is lost, counted and logged."""
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning("sink.close_timed_out", records=len(self._queue) + self._batch_records)

    def _drop(self, record: dict[str, object]) -> None:
        with self._dropped_lock:
            node = (record.get("node"), record.get("boot"))
            first, count = self._dropped.get(node, (record, 0))
            self._dropped[node] = (first, count + 1)
            self.dropped_total += 1

    # The thread

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(POLL_S)
            self._wake.clear()
            if time.monotonic() >= self._retry_at:
                self._drain()
        self._drain()
        lost = len(self._queue) + self._batch_records
        self.dropped_total += lost
        if lost:
            _log.warning("sink.records_lost", records=lost)
        try:
            self._medium.finish()
        except OSError as error:
            _log.warning("sink.finish_failed", error=str(error))

    def _drain(self) -> None:
        try:
            while self._batch or self._queue or self._dropped:
                # A batch that failed is still here: it is tried again as it is, before anything newer.
                if not self._batch:
                    self._fill_batch()
                if self._batch:
                    self._medium.put(self._batch)
                self._batch = []
                self._batch_records = 0
            self._medium.idle()
        except OSError as error:
            self._retry_at = time.monotonic() + self._retry_s(self._failures)
            # Only the first failure in a row is logged: a full disk may last for days.
            if self._failures == 0:
                _log.warning("sink.failed", error=str(error))
            self._failures += 1
        else:
            if self._failures:
                _log.info("sink.recovered", failures=self._failures)
            self._failures = 0

    def _fill_batch(self) -> None:
        """Fill the batch: first a record about what was dropped since the last line, then the next records."""
        with self._dropped_lock:
            dropped, self._dropped = self._dropped, {}
        self._batch = [encode_record(dropped_record(first, count)) for first, count in dropped.values()]
        batch_bytes = 0
        while self._queue and batch_bytes < BATCH_BYTES_MAX:
            record = self._queue.popleft()
            try:
                line = encode_record(record)
            except Bug as error:
                self._refuse(record, error)
                continue
            self._batch.append(line)
            self._batch_records += 1
            batch_bytes += len(line)

    def _refuse(self, record: dict[str, object], error: Bug) -> None:
        """Count a refused record. Only the first of each kind is logged, because there will be many."""
        self._drop(record)
        kind = str(record.get("event"))
        if kind not in self._refused_kinds and len(self._refused_kinds) < REFUSED_KINDS_MAX:
            self._refused_kinds.add(kind)
            _log.error("sink.record_refused", error=str(error))


def dropped_record(first: dict[str, object], count: int) -> dict[str, object]:
    """Return the line that stands for ``count`` records that cannot be written; ``first`` is one of them."""
    stamps = {name: _sayable(first.get(name)) for name in COMMON_FIELDS}
    event = RecordsDropped(records=count)
    return {**stamps, "event": event.KIND, **event.columns()}


def _sayable(value: object) -> object:
    """Return the value if JSON can express it: the record may have been refused because of this very value."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (int, str)) else None


class EventFiles:
    """Rotating NDJSON files of one node; synchronous, for one thread.

    The current file is ``events-<node8>-<boot>-<n>.ndjson.part``; when it is finished (by size, age or `close`) an
    atomic rename takes ``.part`` away, so a reader that looks at ``*.ndjson`` only sees whole files. At most
    ``files_max`` finished files of the node are kept, the oldest go first. ``.part`` files that a crash left are
    finished at start-up, a torn last line included: the reader counts it as corrupt.
    """

    def __init__(
        self,
        directory: Path,
        node_id: str,
        *,
        boot: int,
        rotate_bytes: int = ROTATE_BYTES,
        rotate_age_s: float = ROTATE_AGE_S,
        files_max: int = FILES_MAX,
    ) -> None:
        self._directory = directory
        self._prefix = f"events-{node_id[:8]}-"
        self._boot = boot
        self._rotate_bytes = rotate_bytes
        self._rotate_age_s = rotate_age_s
        self._files_max = files_max
        self._descriptor: int | None = None
        self._path = directory
        self._written_bytes = 0
        self._opened_at = 0.0
        directory.mkdir(parents=True, exist_ok=True)
        # Files that an earlier process left open get their final names now.
        for leftover in sorted(directory.glob(f"{self._prefix}*{FINISHED_SUFFIX}{PART_SUFFIX}")):
            leftover.rename(leftover.with_suffix(""))
        self._number = max((number for boot_, number, _ in self._finished() if boot_ == boot), default=0)

    def limit(self, rotate_bytes: int, rotate_age_s: float, files_max: int) -> None:
        """Other limits from the next write on."""
        self._rotate_bytes, self._rotate_age_s, self._files_max = rotate_bytes, rotate_age_s, files_max

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
        if self._written_bytes and self._written_bytes + len(data) > self._rotate_bytes:
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
        """Finish a file that is old enough."""
        if self._descriptor is not None and time.monotonic() - self._opened_at >= self._rotate_age_s:
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
            self._path.rename(self._path.with_suffix(""))
        finished = sorted(self._finished())
        for _, _, path in finished[: max(0, len(finished) - self._files_max)]:
            path.unlink(missing_ok=True)

    def _open(self) -> None:
        self._number += 1
        name = f"{self._prefix}{self._boot}-{self._number}{FINISHED_SUFFIX}{PART_SUFFIX}"
        self._path = self._directory / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o640)
        self._written_bytes = 0
        self._opened_at = time.monotonic()

    def _finished(self) -> list[tuple[int, int, Path]]:
        """List the finished files of this node as (boot, number, path)."""
        found = []
        for path in self._directory.glob(f"{self._prefix}*{FINISHED_SUFFIX}"):
            boot, _, number = path.stem.removeprefix(self._prefix).partition("-")
            if boot.isdecimal() and number.isdecimal():
                found.append((int(boot), int(number), path))
        return found


class FileSink(QueuedSink):
    """`EventFiles` behind a queue: what a daemon uses. Survives a full disk by counting and retrying."""

    def __init__(
        self,
        directory: Path,
        node_id: str,
        *,
        boot: int,
        rotate_bytes: int = ROTATE_BYTES,
        rotate_age_s: float = ROTATE_AGE_S,
        files_max: int = FILES_MAX,
        queue_records_max: int = EVENT_QUEUE_RECORDS_MAX,
    ) -> None:
        self.files = EventFiles(
            directory, node_id, boot=boot, rotate_bytes=rotate_bytes, rotate_age_s=rotate_age_s, files_max=files_max
        )
        super().__init__(self.files, queue_records_max=queue_records_max)


class _StreamMedium(Medium):
    """Writes to a text stream, which is standard output unless another one is given."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def put(self, lines: list[bytes]) -> None:
        stream = self._stream if self._stream is not None else sys.stdout
        if stream.closed:
            raise OSError("the stream is closed")
        stream.write(b"".join(lines).decode("ascii"))
        stream.flush()


class StdoutSink(QueuedSink):
    """Lines on standard output. If the reader is slow, records are dropped, and the node does not wait."""

    def __init__(self, stream: TextIO | None = None, *, queue_records_max: int = EVENT_QUEUE_RECORDS_MAX) -> None:
        super().__init__(_StreamMedium(stream), queue_records_max=queue_records_max)


class _TcpMedium(Medium):
    """One connection to a collector, dialled when there is something to send."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None

    def put(self, lines: list[bytes]) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, CONNECT_TIMEOUT_S)
        try:
            self._socket.sendall(b"".join(lines))
        except OSError:
            self.finish()
            raise

    def finish(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class TcpSink(QueuedSink):
    """Newline-delimited JSON to ``host:port`` (Vector, Logstash, ...), reconnecting with back-off to `BACKOFF_S_MAX`.

    At least once: a batch that was cut in the middle is sent again on the next connection, so the collector may see
    the beginning of it twice, and one torn line.
    """

    def __init__(self, host: str, port: int, *, queue_records_max: int = EVENT_QUEUE_RECORDS_MAX) -> None:
        super().__init__(
            _TcpMedium(host, port),
            queue_records_max=queue_records_max,
            retry_s=lambda failures: float(min(2**failures, BACKOFF_S_MAX)),
        )
