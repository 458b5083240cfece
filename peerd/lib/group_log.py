"""The append log that a plugin sees, without the medium that keeps it: numbers, limits and group commit. Pure code.

One write of the medium is under way at a time and takes along everything that was appended since the one before, so the
cost of making bytes durable is shared by all who append at the time. Daemon and simulator differ in the medium only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from peerd import limits
from peerd.errors import Unavailable

LOG_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class LogMedium(Protocol):
    """The place where records are kept. It knows only what is durable."""

    def write(
        self,
        records: list[tuple[int, bytes]],
        first: int,
        done: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Make records durable, and also the fact that those before ``first`` are gone; call back later, once.

        After ``failed`` nothing has changed. Called only when the last one has ended.
        """

    def write_now(self, records: list[tuple[int, bytes]], first: int) -> None:
        """Do the same at once, at the end of the process; a write under way may be done again. Raises `Unavailable`."""

    def records(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield the durable records by number, in order, without those lost to damage. Raises `Unavailable`."""


@dataclass(slots=True)
class Append:
    """A record that is not durable yet, with the function to call when it is."""

    number: int
    record: bytes
    on_durable: Callable[[int], None] | None
    on_failed: Callable[[int, str], None] | None


def charge_bytes(record: bytes) -> int:
    """Return how much a record counts for in the limits."""
    return len(record) + limits.LOG_RECORD_OVERHEAD_BYTES


class GroupLog:
    """Implements `peerd.api.Log`, except that callbacks run where the medium calls back.

    ``sizes``: the lengths of the durable records by number, all of which are from ``first`` to before ``next_number``;
    one that is missing was lost to damage.
    """

    def __init__(self, medium: LogMedium, first: int, next_number: int, sizes: Mapping[int, int]) -> None:
        self._medium = medium
        self._sizes = {number: sizes[number] + limits.LOG_RECORD_OVERHEAD_BYTES for number in sorted(sizes)}
        """How much each record that is kept counts for."""
        self._bytes = sum(self._sizes.values())
        self._first = first
        self._next = next_number
        self._durable = self._next - 1
        self._durable_first = first
        self._waiting: dict[int, Append] = {}
        """The records that are appended and not durable yet, in order; those that are being written come first."""
        self._is_writing = False
        self._waiting_bytes = 0

    @property
    def first(self) -> int:
        """Return the number of the oldest record that is kept; `next` when there is none."""
        return self._first

    @property
    def next(self) -> int:
        """Return the number that the next record will get."""
        return self._next

    @property
    def durable(self) -> int:
        """Return the number up to which records survive a crash."""
        return self._durable

    @property
    def bytes_used(self) -> int:
        """Return how much the records that are kept count for."""
        return self._bytes

    def append(
        self,
        record: bytes,
        on_durable: Callable[[int], None] | None = None,
        on_failed: Callable[[int, str], None] | None = None,
    ) -> int:
        """See `peerd.api.Log.append`."""
        size = charge_bytes(record)
        if len(record) > limits.LOG_RECORD_BYTES_MAX:
            raise Unavailable(f"a record of {len(record)} bytes, limit {limits.LOG_RECORD_BYTES_MAX}")
        if self._bytes + size > limits.LOG_BYTES_MAX:
            raise Unavailable(f"the log holds {self._bytes} bytes, limit {limits.LOG_BYTES_MAX}")
        if self._waiting_bytes + size > limits.LOG_WAITING_BYTES_MAX:
            raise Unavailable(f"{self._waiting_bytes} bytes wait for the disk")
        # Counted now and not when it is durable: what waits takes memory as well.
        number = self._next
        self._next += 1
        self._sizes[number] = size
        self._bytes += size
        self._waiting_bytes += size
        self._waiting[number] = Append(number, bytes(record), on_durable, on_failed)
        self._commit()
        return number

    def read(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        """See `peerd.api.Log.read`."""
        found: list[tuple[int, bytes]] = []
        size = 0
        for number, record in self._from(max(after + 1, self._first)):
            size += len(record)
            if len(found) >= limit or (found and size > limits.LOG_READ_BYTES_MAX):
                break
            found.append((number, record))
        return found

    def _from(self, first: int) -> Iterator[tuple[int, bytes]]:
        if first <= self._durable:
            yield from self._medium.records(first, self._durable)
        for each in self._waiting.values():
            if each.number >= first:
                yield each.number, each.record

    def truncate(self, watermark: int) -> None:
        """See `peerd.api.Log.truncate`."""
        for number in range(self._first, min(watermark, self._next - 1) + 1):
            self._bytes -= self._sizes.pop(number, 0)
            self._first = number + 1
        self._commit()

    def close(self) -> None:
        """Write what still waits, as the process ends. Raises `Unavailable`."""
        if self._waiting or self._durable_first != self._first:
            records = [(each.number, each.record) for each in self._waiting.values()]
            self._waiting.clear()
            self._medium.write_now(records, self._first)

    # Inside

    def _commit(self) -> None:
        if self._is_writing or not (self._waiting or self._durable_first != self._first):
            return
        self._is_writing = True
        batch = [(each.number, each.record) for each in self._waiting.values()]
        first = self._first
        self._medium.write(batch, first, lambda: self._written(len(batch), first), self._failed)

    def _written(self, count: int, first: int) -> None:
        appends = list(islice(self._waiting.values(), count))
        for each in appends:
            del self._waiting[each.number]
            self._waiting_bytes -= charge_bytes(each.record)
            self._durable = each.number
        self._durable_first = first
        self._is_writing = False
        # The next write begins before the callbacks run, so that the disk does not wait for them.
        self._commit()
        for each in appends:
            if each.on_durable is not None:
                each.on_durable(each.number)

    def _failed(self, error: BaseException) -> None:
        """Give up everything that waits, so that the log has no gap: nobody was told that a later record is durable."""
        appends = list(self._waiting.values())
        self._waiting.clear()
        self._waiting_bytes = 0
        self._next = self._durable + 1
        for each in appends:
            self._bytes -= self._sizes.pop(each.number, 0)
        self._first = min(self._first, self._next)
        self._is_writing = False
        for each in appends:
            if each.on_failed is not None:
                each.on_failed(each.number, str(error))
