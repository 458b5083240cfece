"""The places to which event records can go: files (`peerd.telemetry.event_files`), standard output, a TCP collector, or
nowhere; and the queue between them and the node.

A record is one flat dictionary as `peerd.telemetry.schema` describes it, and becomes one line of compact JSON. `write`
never blocks: it is one append to a bounded queue that a thread empties. What the queue cannot hold is counted, and the
next line is a ``sink.dropped`` record that says so; it carries the id, clocks and cause of the first record that it
stands for, so ids stay unique. A record that is not JSON (NaN, infinity, a foreign type) is refused and counted too.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TextIO

import msgspec
import structlog

from peerd.errors import Bug
from peerd.limits import EVENT_QUEUE_RECORDS_MAX, KIB
from peerd.telemetry.schema import COMMON_FIELDS, RecordsDropped

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


def back_off_s(failures: int) -> float:
    """How long to leave a collector alone that has failed so many times in a row."""
    return min(2.0**failures, BACKOFF_S_MAX)


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
        # While the medium fails the thread has nothing to do: it would wake for each record, and find that out.
        if waiting * 2 >= self._queue_records_max and not self._failures and not self._wake.is_set():
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


class _StreamMedium(Medium):
    """Writes to the descriptor of a stream, which is standard output unless another one is given: the stream's buffer
    would keep what could not be written, and write it again with the next try."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._written = 0
        """Of the batch that could not be written as a whole, and comes again."""

    def put(self, lines: list[bytes]) -> None:
        stream = self._stream if self._stream is not None else sys.stdout
        if stream.closed:
            raise OSError("the stream is closed")
        data = memoryview(b"".join(lines))
        while self._written < len(data):
            self._written += os.write(stream.fileno(), data[self._written :])
        self._written = 0


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
            retry_s=back_off_s,
        )
