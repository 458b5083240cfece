"""Events on disk for one subscriber's node that is away: which there are, of which root, and until when. Pure but for
the log. Each record is an event; one that is not of use any more is out of the index at once, and out of the log with
the first records."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Final

from msgspec import Meta

from peerd.api import Log
from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from peerd.ids import NodeId, id_from_bytes, id_to_bytes
from peerd.lib.group_log import charge_bytes
from peerd.lib.saved import records
from peerd.messages import U64, Struct, decode_struct, encode_struct
from protocols.pubsub.messages import SUBS_MAX, EventBody

READ_RECORDS: Final = 256
"""Records that are read in one go."""
_HEAD: Final = struct.Struct(">16sQQB")
"""The root that was given the event, its number there, until when it is of use, and the length of the schema's name."""


class StoredEvent(Struct):
    """The rest of a record."""

    event: EventBody
    chosen: Annotated[tuple[U64, ...], Meta(max_length=SUBS_MAX)]


class KeptEntry(Frozen):
    """One event in the index. ``at``: its number in this log."""

    at: int
    root: NodeId
    number: int
    until_ms: int
    schema: str
    size: int


def _encode(root: NodeId, number: int, until_ms: int, schema: str, stored: StoredEvent) -> bytes:
    name = schema.encode()
    return _HEAD.pack(id_to_bytes(root), number, until_ms, len(name)) + name + encode_struct(stored)


class KeptLog:
    """The log of one node's events, from the record after ``base`` on."""

    def __init__(self, log: Log, base: int) -> None:
        self._log = log
        self.bytes = 0
        self.entries: dict[int, KeptEntry] = {}
        """By their numbers in this log, in order."""
        self.newest: dict[NodeId, int] = {}
        """By root, the highest number that it has given."""
        self.counts: Counter[NodeId] = Counter()
        self.bytes_of: Counter[NodeId] = Counter()
        """By root, how many events there are, and how many bytes of them."""
        for at, record in records(log, base):
            entry = self._entry(at, record)
            if entry is not None:
                self._enter(entry)

    @property
    def next(self) -> int:
        """The number that the next event gets in this log."""
        return self._log.next

    @property
    def durable(self) -> int:
        """Everything up to here survives a crash."""
        return self._log.durable

    def append(
        self,
        root: NodeId,
        number: int,
        until_ms: int,
        schema: str,
        stored: StoredEvent,
        on_failed: Callable[[KeptEntry], None],
    ) -> KeptEntry:
        """Write an event. Raises `Unavailable` where the log takes none; ``on_failed`` hears when the disk does not."""
        record = _encode(root, number, until_ms, schema, stored)

        def failed(at: int, why: str) -> None:
            if self.remove(at) is not None:
                on_failed(entry)

        at = self._log.append(record, None, failed)
        entry = KeptEntry(at, root, number, until_ms, schema, charge_bytes(record))
        self._enter(entry)
        return entry

    def read(self, after: int, limit: int = READ_RECORDS) -> list[tuple[KeptEntry, StoredEvent]]:
        """Events from the one after this number on, some at a time. What cannot be read any more is taken out."""
        found: list[tuple[KeptEntry, StoredEvent]] = []
        while not found and (some := self._log.read(after, limit)):
            for at, record in some:
                entry = self.entries.get(at)
                stored = None if entry is None else _stored(record)
                if entry is not None and stored is not None:
                    found.append((entry, stored))
                elif entry is not None:
                    self.remove(at)
            after = some[-1][0]
        return found

    def remove(self, at: int) -> KeptEntry | None:
        """An event is not of use any more; returns it if it was."""
        entry = self.entries.pop(at, None)
        if entry is not None:
            self._count(entry, -1)
        return entry

    def _count(self, entry: KeptEntry, sign: int) -> None:
        self.bytes += sign * entry.size
        self.counts[entry.root] += sign
        self.bytes_of[entry.root] += sign * entry.size

    def trim(self) -> None:
        """Take the first records that are not of use any more out of the log: a write, so not after each event."""
        first = next(iter(self.entries), self._log.next)
        if first > self._log.first:
            self._log.truncate(first - 1)

    def _enter(self, entry: KeptEntry) -> None:
        self.entries[entry.at] = entry
        self._count(entry, 1)
        self.newest[entry.root] = max(entry.number, self.newest.get(entry.root, 0))

    @staticmethod
    def _entry(at: int, record: bytes) -> KeptEntry | None:
        try:
            root, number, until_ms, length = _HEAD.unpack_from(record)
            schema = record[_HEAD.size : _HEAD.size + length].decode()
        except (struct.error, UnicodeDecodeError):
            return None
        return KeptEntry(at, id_from_bytes(root), number, until_ms, schema, charge_bytes(record))


def _stored(record: bytes) -> StoredEvent | None:
    length = record[_HEAD.size - 1]
    try:
        return decode_struct(StoredEvent, record[_HEAD.size + length :])
    except ProtocolError:
        return None
