"""The past of durable streams on the producer's disk, so that it survives a restart.

An item of such a stream is written to a log first, and goes to the children once it is on disk: so nobody ever has an
item that a restarted producer does not know, and the numbers go on without a gap. Items that come while the disk works
are written together, which is what the log does by itself (`peerd.api.Log`).

Under the key ``past.NAME`` stands which log is used and which of its records count. Where a write failed the key is
deleted: then items have gone out that are not in the log, and a past with holes is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from struct import Struct, error as StructError
from typing import Final

from peerd.api import Host, Log
from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from peerd.lib.group_log import charge_bytes
from peerd.lib.saved import LoggedRow, LoggedRows
from peerd.limits import KIB, LOG_BYTES_MAX, MIB
from peerd.messages import decode_struct, encode_struct
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.service import StreamRefused

DURABLE_MAX: Final = 128
"""Durable streams that one node produces; each has a log, of which a plugin may have `limits.LOGS_PER_PLUGIN_MAX`."""
WAITING_BYTES_MAX: Final = 4 * MIB
"""Publishers wait while this much is on its way to the disk."""
READ_RECORDS: Final = 256
"""Records that are read in one go after a restart, before other work gets its turn."""
TRIM_MIN: Final = 64
"""So many records that are not needed any more are removed together: removing costs a write."""
LOG_ROOM_BYTES: Final = LOG_BYTES_MAX - 8 * MIB
"""A stream's log takes no more, whatever `replay_bytes` says; the rest is for what is not removed yet."""
_HEAD: Final = Struct(">BQ")
_MARK, _ITEM = 3, 4


class KeptItem(Frozen):
    """A record: an item, or (``item`` is ``None``) the place where the stream stood when the log was begun."""

    at: StreamPosition
    kept_ms: int
    """When it was written, in milliseconds since 1970."""
    item: StreamItem | None


def encode_kept(kept: KeptItem) -> bytes:
    """As bytes."""
    if kept.item is None:
        return _HEAD.pack(_MARK, kept.kept_ms) + encode_struct(kept.at)
    return _HEAD.pack(_ITEM, kept.kept_ms) + kept.item.packed


def decode_kept(record: bytes) -> KeptItem:
    """From bytes. Raises ``ValueError`` for what this never wrote."""
    try:
        what, kept_ms = _HEAD.unpack_from(record)
        if what == _MARK:
            return KeptItem(decode_struct(StreamPosition, record[_HEAD.size :]), kept_ms, None)
        if what != _ITEM:
            raise ValueError("the record is no item")
        item = StreamItem.unpack(record[_HEAD.size :])
    except (StructError, ProtocolError) as error:
        raise ValueError(f"the record is no item: {error}") from error
    return KeptItem(item.position, kept_ms, item)


class ProducerLog:
    """The log of one stream. When the disk refuses, ``on_failed`` is told once, and this object is over."""

    def __init__(self, log: Log, base: int, bytes_max: int, wall_time: Callable[[], float]) -> None:
        self._log = log
        self._wall_time = wall_time
        self._bytes_max = min(bytes_max, LOG_ROOM_BYTES)
        self._kept: deque[StreamPosition] = deque()
        """Where the records stand in the stream, oldest first."""
        self._first = max(log.first, base + 1)
        """The number of the oldest of them."""
        self._is_failed = False
        self.waiting_bytes = 0
        """What is on its way to the disk."""

    @property
    def is_busy(self) -> bool:
        """Whether publishers should wait for the disk."""
        return self.waiting_bytes > WAITING_BYTES_MAX

    def append(
        self,
        at: StreamPosition,
        item: StreamItem | None,
        on_durable: Callable[[], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Write an item, or a mark. Raises `Unavailable` where the log takes none."""
        record = encode_kept(KeptItem(at, round(self._wall_time() * 1000), item))
        size = charge_bytes(record)
        while len(self._kept) > 1 and self._log.bytes_used + size > self._bytes_max:
            self._remove(max(1, len(self._kept) // 8))

        def durable(number: int) -> None:
            self.waiting_bytes -= size
            on_durable()

        def failed(number: int, why: str) -> None:
            self.waiting_bytes -= size
            if not self._is_failed:
                self._is_failed = True
                on_failed(why)

        number = self._log.append(record, durable, failed)
        if not self._kept:
            self._first = number
        self._kept.append(at)
        self.waiting_bytes += size

    def read(self) -> Iterator[list[KeptItem]]:
        """What was kept before a restart, some at a time, in order. Raises `Unavailable` as the disk.

        It ends early, with an empty list, where a record is missing or cannot be read: nothing after that counts.
        """
        after = self._first - 1
        while after + 1 < self._log.next:
            found = self._log.read(after, READ_RECORDS)
            some = []
            for number, record in found:
                try:
                    kept = decode_kept(record)
                except (ValueError, UnicodeDecodeError):
                    kept = None
                is_next = kept is not None and (not self._kept or kept.at > self._kept[-1])
                if number != after + 1 or kept is None or not is_next:
                    yield []
                    return
                after = number
                self._kept.append(kept.at)
                some.append(kept)
            yield some

    @property
    def durable_through(self) -> StreamPosition:
        """Everything up to here is on disk."""
        return self._kept[max(0, min(len(self._kept) - 1, self._log.durable - self._first))]

    @property
    def is_settled(self) -> bool:
        """Whether all records are on disk: a plugin that was replaced may have left some on their way."""
        return self._log.durable >= self._log.next - 1

    def trim(self, floor: StreamPosition) -> None:
        """Remove what the stream does not remember any more.

        The record at the floor stays: it says that what comes next follows it without a gap.
        """
        kept = self._kept
        if len(kept) <= TRIM_MIN or kept[len(kept) // 4] >= floor:
            return
        gone = 0
        while gone + 1 < len(kept) and kept[gone] < floor:
            gone += 1
        self._remove(gone)

    def _remove(self, count: int) -> None:
        for _ in range(count):
            self._kept.popleft()
        self._first += count
        self._log.truncate(self._first - 1)


class ProducerLogs(LoggedRows[LoggedRow]):
    """The logs of this node's durable streams, by the streams' names. Those that a restart may read have a row."""

    def __init__(self, host: Host, bytes_max: Callable[[], int]) -> None:
        super().__init__(host.store, "past.", LoggedRow, "stream-{:03}", DURABLE_MAX)
        self._host, self._bytes_max = host, bytes_max
        self.load()

    def begin(self, name: str) -> ProducerLog:
        """An empty log; call `counts` once its first record is on disk. Raises `Unavailable`, `StreamRefused`."""
        self.remove(name)
        if (free := self.free()) is None:
            raise StreamRefused("quota", f"this node has {DURABLE_MAX} durable streams, which is the limit")
        slot, log = free
        row = self[name] = LoggedRow(slot=slot, base=log.next - 1)
        return self._opened(log, row.base)

    def counts(self, name: str) -> None:
        """From now on a restart reads this log. Raises `Unavailable`."""
        self.save(name, self[name])

    def open(self, name: str) -> ProducerLog | None:
        """The past of a stream, to be read; ``None``: there is none. Raises `Unavailable`."""
        row = self.get(name)
        return None if row is None else self._opened(*self.log_of(row))

    def _opened(self, log: Log, base: int) -> ProducerLog:
        return ProducerLog(log, base, self._bytes_max() + 64 * KIB, self._host.wall_time)
