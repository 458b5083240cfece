"""The records that one node holds: merge, quotas, lapse, digests. Pure state.

A deleted record leaves a tombstone, and so does a record that lapses while an older copy of it may still live
elsewhere: whoever brings that copy later finds a later version here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import chain
from operator import xor
from typing import Final

from peerd.api import RecordVersion
from peerd.errors import Bug
from peerd.ids import NodeId, id_to_bytes
from peerd.services.records.config import TOMBSTONE_MARGIN_S, RecordsConfig
from peerd.services.records.owners import SHARED
from peerd.services.records.record import Record, RecordId, RecordName, merge
from peerd.services.records.view import ITEM_BITS, Arc

NAMESPACES_PER_KEY_MAX: Final = 32
"""How many plugins that this node does not have may have items under one key. Each has its own limits there."""
COUNTER_JUMP_MAX: Final = 1 << 40
"""A version may be this far ahead of every other seen here. More would be an attempt to use the counters up; see
`RecordTable._follow` for what is done about it."""
COUNTER_MAX: Final = 1 << 62
WRITES_REMEMBERED_MAX: Final = 16_384
WRITE_BYTES: Final = 300
"""What remembering one takes, measured."""
HEAP_SLACK: Final = 1024

CHANGED: Final = "changed"
KEPT: Final = "kept"
"""What is held is the same or newer."""
ORIGIN_LIMITS: Final = ("origin_records", "origin_bytes")
"""They stand in the way of one writer only."""
OUT_OF_ROOM: Final = (*ORIGIN_LIMITS, "records", "bytes", "key_items", "key_bytes", "namespaces")
REFUSALS: Final = (*OUT_OF_ROOM, "version", "forged", "not_allowed")

RequestKey = tuple[NodeId, int, int]


@dataclass(slots=True)
class Usage:
    """What is charged, to one origin or in all."""

    records: int = 0
    charged_bytes: int = 0

    def add(self, record: Record, sign: int) -> None:
        """Charge (1) or give back (-1)."""
        self.records += sign
        self.charged_bytes += sign * record.charge_bytes


class RecordTable:
    """The records of one node. ``changed`` is called with the identity of every record that comes, changes or goes.

    ``is_genuine`` says whether the origin of a record has signed it, and ``is_allowed`` whether its plugin lets it be
    written; asked in this order, once for each write that is taken in. Whoever is asked may look into the table.
    ``has_plugin`` says whether this node has the plugin of a namespace.
    """

    def __init__(
        self,
        config: RecordsConfig,
        changed: Callable[[RecordId], None] = lambda identity: None,
        is_genuine: Callable[[Record], bool] = lambda record: True,
        is_allowed: Callable[[Record], bool] = lambda record: True,
        has_plugin: Callable[[str], bool] = lambda namespace: False,
    ) -> None:
        self._config = config
        self._changed = changed
        self._is_genuine = is_genuine
        self._is_allowed = is_allowed
        self._has_plugin = has_plugin
        self._is_unchecked = True
        """Whether something has changed since `validate` found all in order."""
        self._is_asking = False
        """Nothing lapses meanwhile: what `merge` found must still be there when it goes on."""
        self._records: dict[RecordId, Record] = {}
        self._named: dict[RecordName, dict[RecordId, None]] = {}
        """The records of one name, in the order in which this node heard of them first."""
        self._order: list[tuple[int, RecordId]] = []
        """Places and identities of the records, in order."""
        self._sums: list[int] = []
        """The digest of each record, in that order."""
        self._by_key: dict[NodeId, dict[str, Usage]] = {}
        """What each namespace holds under a key."""
        self._lapses: list[tuple[float, RecordId]] = []
        self._origins: dict[NodeId, Usage] = {}
        self._writes: dict[RequestKey, RecordVersion] = {}
        self.usage = Usage()
        self.tombstones = 0
        self.writes = 0
        """How many versions were taken in; as long as it stays, there is nothing new here."""
        self.clock = 0
        """The largest counter of any version seen: the next write's is larger (Lamport 1978)."""

    def __len__(self) -> int:
        return self.usage.records

    def __iter__(self) -> Iterator[Record]:
        """All records, tombstones included, in key order."""
        for _, identity in self._order:
            yield self._records[identity]

    def get(self, identity: RecordId) -> Record | None:
        """What is held, a tombstone perhaps."""
        return self._records.get(identity)

    def named(self, name: RecordName) -> list[Record]:
        """The records of one name, whosever they are, tombstones included: those first that were here first."""
        return [self._records[identity] for identity in self._named.get(name, ())]

    def holds_any(self, arc: Arc) -> bool:
        """Whether there is a record, tombstones included, in a range."""
        first, last = self._bounds(arc)
        return first < last if arc.low_place < arc.high_place else first < len(self._order) or last > 0

    def _bounds(self, arc: Arc) -> tuple[int, int]:
        """Where a range begins and ends in the order; a place without an identity sorts before those with one."""
        return bisect_left(self._order, (arc.low_place,)), bisect_left(self._order, (arc.high_place,))

    def extent(self, arc: Arc) -> tuple[int, int, int]:
        """How many records there are in a range, and the places of the first and the last (-1 without any)."""
        first, last = self._bounds(arc)
        count = last - first if arc.low_place < arc.high_place else len(self._order) - first + last
        if not count:
            return 0, -1, -1
        return count, self._order[first % len(self._order)][0], self._order[last - 1][0]

    def within(self, arc: Arc, limit: int | None = None) -> list[Record]:
        """Records of a range, clockwise from its start, whole places only, until there are ``limit`` or more."""
        found: list[Record] = []
        before = -1
        for place, identity in self._walk(arc):
            if limit is not None and len(found) >= limit and place != before:
                break
            before = place
            found.append(self._records[identity])
        return found

    def newer(self, arc: Arc, theirs: Mapping[RecordId, tuple[int, int, int]]) -> Iterator[Record]:
        """Records of a range, clockwise from its start, that are missing in ``theirs`` or of an older version there.

        They are looked up one by one as they are taken, so whoever needs only the first does no more than that.
        """
        nothing = (-1, -1, -1)
        for _, identity in self._walk(arc):
            record = self._records[identity]
            if record.version.rank > theirs.get(identity, nothing):
                yield record

    def _walk(self, arc: Arc) -> Iterator[tuple[int, RecordId]]:
        first, last = self._bounds(arc)
        if arc.low_place < arc.high_place:
            ranges = [range(first, last)]
        else:
            ranges = [range(first, len(self._order)), range(last)]
        return (self._order[index] for index in chain(*ranges))

    def items(self, key: NodeId, namespace: str) -> list[Record]:
        """The records of one namespace under one key, tombstones included, by the names of the items."""
        arc = Arc.of_places(key << ITEM_BITS, (key + 1) << ITEM_BITS)
        found = (record for record in self.within(arc) if record.namespace == namespace)
        return sorted(found, key=lambda record: (record.item, record.owner))

    # Change

    def next_version(self, epoch: int, writer: NodeId) -> RecordVersion:
        """A version later than every other seen here; never given twice."""
        self.clock += 1
        return RecordVersion(self.clock, epoch, writer)

    def merge(self, record: Record, now: float) -> str:
        """Take a copy in: `CHANGED`, `KEPT`, or which limit refused it (one of `REFUSALS`)."""
        self.lapse(now)
        if record.expires_at <= now:
            return KEPT
        held = self.get(record.identity)
        is_known = held is not None and held.is_same_write(record)
        merged = record if held is None else merge(held, record)
        if held is not None and is_known and held.owner != SHARED:
            merged = held  # it lives as long as was found out at first: nobody else prolongs or shortens it
        is_kept = held is not None and merged == held
        refusal = None if is_kept else self._refusal(held, merged)
        if refusal is not None:
            return self._follow(record) if refusal == "version" else refusal
        is_known = is_known or (is_kept and self._writes.get(record.request.number) == record.version)
        refusal = None if is_known else self.objection(record)
        if refusal is not None:
            return refusal
        if is_kept:
            self._remember(record)
            return KEPT
        if record.owner == SHARED:
            self.clock = max(self.clock, record.version.counter)
        self._remember(record)
        self._replace(held, merged)
        return KEPT if held is not None and (held.version, held.value) == (merged.version, merged.value) else CHANGED

    def _follow(self, record: Record) -> str:
        """Refuse a counter that is too far ahead; for a write that its origin has signed, come one such jump closer.

        Two writes that only the root of a key was given may have led it so far. Its replicas would refuse all that it
        writes from then on, and for good, if they did not follow.
        """
        objection = self.objection(record)
        if objection is None and record.version.counter <= COUNTER_MAX:
            self.clock += COUNTER_JUMP_MAX
        return objection or "version"

    def objection(self, record: Record) -> str | None:
        """What speaks against a write that is new here, whatever room there is."""
        if not (record.is_consistent and self._is_genuine(record)):
            return "forged"
        self._is_asking = True
        try:
            return None if self._is_allowed(record) else "not_allowed"
        finally:
            self._is_asking = False

    def _refusal(self, held: Record | None, record: Record) -> str | None:
        config = self._config
        if record.owner == SHARED and record.version.counter > min(COUNTER_MAX, self.clock + COUNTER_JUMP_MAX):
            return "version"
        namespaces = self._by_key.get(record.key, {})
        is_crowded = record.namespace not in namespaces and len(namespaces) >= NAMESPACES_PER_KEY_MAX
        if is_crowded and not self._has_plugin(record.namespace):
            return "namespaces"
        if held is not None and record.value is None:
            return None  # a deletion never needs more than what it deletes
        more_bytes = record.charge_bytes - (held.charge_bytes if held is not None else 0)
        under_key = namespaces.get(record.namespace, Usage())
        if held is None and under_key.records >= config.key_items_max:
            return "key_items"
        if more_bytes > 0 and under_key.charged_bytes + more_bytes > config.key_bytes_max:
            return "key_bytes"
        if held is None and self.usage.records >= config.records_max:
            return "records"
        if more_bytes > 0 and self.usage.charged_bytes + more_bytes > config.bytes_max:
            return "bytes"
        is_same_origin = held is not None and held.request.origin == record.request.origin
        origin = self._origins.get(record.request.origin, Usage())
        if not is_same_origin:
            more_bytes = record.charge_bytes
            if origin.records >= config.origin_records_max:
                return "origin_records"
        if more_bytes > 0 and origin.charged_bytes + more_bytes > config.origin_bytes_max:
            return "origin_bytes"
        return None

    def _replace(self, held: Record | None, record: Record | None) -> None:
        """The one place where the table changes."""
        self._is_unchecked = True
        if held is not None:
            self._charge(held, -1)
        if record is not None:
            self._put(record, held)
        elif held is not None:
            self._forget(held)
        before = None if held is None else (held.version, held.value)
        after = None if record is None else (record.version, record.value)
        one = record or held
        if one is not None and before != after:
            self._changed(one.identity)

    def _put(self, record: Record, held: Record | None) -> None:
        self._charge(record, 1)
        identity = record.identity
        entry = (identity.place, identity)
        index = bisect_left(self._order, entry)
        if held is None:
            self._order.insert(index, entry)
            self._sums.insert(index, 0)
            self._named.setdefault(identity.name, {})[identity] = None
        self._records[identity] = record
        if held is None or held.version != record.version:
            self.writes += 1
            self._sums[index] = _digest(record)
        heappush(self._lapses, (record.expires_at, identity))
        self._trim_lapses()

    def _forget(self, held: Record) -> None:
        identity = held.identity
        index = bisect_left(self._order, (identity.place, identity))
        del self._records[identity], self._order[index], self._sums[index]
        same_name = self._named[identity.name]
        del same_name[identity]
        if not same_name:
            del self._named[identity.name]
        self._trim_lapses()

    def _charge(self, record: Record, sign: int) -> None:
        usage = self._origins.setdefault(record.request.origin, Usage())
        usage.add(record, sign)
        if not usage.records:
            del self._origins[record.request.origin]
        namespaces = self._by_key.setdefault(record.key, {})
        usage = namespaces.setdefault(record.namespace, Usage())
        usage.add(record, sign)
        if not usage.records:
            del namespaces[record.namespace]
        if not namespaces:
            del self._by_key[record.key]
        self.usage.add(record, sign)
        self.tombstones += sign * (record.value is None)

    def drop(self, identity: RecordId) -> None:
        """Let go of a record that others hold now; harmless when there is none."""
        held = self.get(identity)
        if held is not None:
            self._replace(held, None)

    # Writes that were seen

    def _remember(self, record: Record) -> None:
        key = record.request.number
        self._writes.pop(key, None)
        self._writes[key] = record.version
        if len(self._writes) > WRITES_REMEMBERED_MAX:
            del self._writes[next(iter(self._writes))]

    def version_written(self, origin: NodeId, epoch: int, sequence: int) -> RecordVersion | None:
        """Which version a request made, here or at a root that this copy came from; ``None`` when it is not known."""
        return self._writes.get((origin, epoch, sequence))

    # Lapse

    def _trim_lapses(self) -> None:
        """Entries of records that were put again or dropped stay in the heap for a while, not for ever."""
        if len(self._lapses) > 2 * self.usage.records + HEAP_SLACK:
            self._lapses = [(each.expires_at, each.identity) for each in self]
            heapify(self._lapses)

    def next_lapse(self) -> float | None:
        """No record lapses before this time; ``None`` when none is held."""
        return self._lapses[0][0] if self._lapses else None

    def lapse(self, now: float) -> int:
        """Drop what has outlived its time; returns how many values that were."""
        count = 0
        while not self._is_asking and self._lapses and self._lapses[0][0] <= now:
            held = self.get(heappop(self._lapses)[1])
            if held is None or held.expires_at > now:
                continue  # put again since, or gone
            count += held.value is not None
            self._replace(held, held.lapsed(TOMBSTONE_MARGIN_S))
        return count

    # Comparison

    def digests(self, arc: Arc, parts: int) -> tuple[int, ...]:
        """One number for each part of a range: equal for equal sets of versions (and by chance, once in 2^64)."""
        first, last = self._bounds(arc)
        if arc.low_place < arc.high_place and last - first < parts:
            return self._few_digests(arc, parts, first, last)
        return tuple(reduce(xor, self._sums_within(arc.part(number, parts)), 0) for number in range(parts))

    def _few_digests(self, arc: Arc, parts: int, first: int, last: int) -> tuple[int, ...]:
        """The same where there are fewer records than parts: looks at the records, and at no part."""
        digests, low, width = [0] * parts, arc.low_place, arc.width
        for (place, _), digest in zip(self._order[first:last], self._sums[first:last], strict=True):
            # The last part of those that begin, at ``width * number // parts``, no later than here.
            digests[((place - low + 1) * parts - 1) // width] ^= digest
        return tuple(digests)

    def _sums_within(self, part: Arc) -> list[int]:
        first, last = self._bounds(part)
        is_plain = part.low_place <= part.high_place  # a part of a narrow range may have no width
        return self._sums[first:last] if is_plain else self._sums[first:] + self._sums[:last]

    @property
    def writes_remembered(self) -> int:
        """How many answers are remembered, for requests that come again."""
        return len(self._writes)

    def validate(self) -> None:
        """Assert order, sums and limits. What has not changed since the last time is not looked at again."""
        if len(self._writes) > WRITES_REMEMBERED_MAX or len(self._lapses) > 2 * self.usage.records + HEAP_SLACK:
            raise Bug("a window of the record table is over its limit")
        if self._is_unchecked:
            self._validate_records()
            self._is_unchecked = False

    def _validate_records(self) -> None:
        records = list(self)
        if self._order != sorted((identity.place, identity) for identity in self._records):
            raise Bug("the order of the records is wrong")
        if self._sums != [_digest(record) for record in records]:
            raise Bug("the digests of the records are wrong")
        under_keys = [usage for namespaces in self._by_key.values() for usage in namespaces.values()]
        if sum(usage.records for usage in under_keys) != len(records) or not all(each.records for each in under_keys):
            raise Bug("records and their keys do not add up")
        charged = sum(record.charge_bytes for record in records)
        if (self.usage.records, self.usage.charged_bytes) != (len(records), charged):
            raise Bug(f"records are charged {self.usage}, not {len(records)}, {charged}")
        if sorted(identity for same in self._named.values() for identity in same) != sorted(self._records):
            raise Bug("records and their names do not add up")
        if sum(usage.records for usage in self._origins.values()) != len(records):
            raise Bug("records and their origins do not add up")
        if self.tombstones != sum(record.value is None for record in records):
            raise Bug("tombstones are miscounted")


def _digest(record: Record) -> int:
    version = record.version
    parts = (id_to_bytes(record.key), id_to_bytes(version.writer), version.counter.to_bytes(8, "big"))
    owner = b"" if record.owner == SHARED else id_to_bytes(record.owner)
    body = b"".join((*parts, version.epoch.to_bytes(8, "big"), record.namespace.encode(), b"\0", record.item, owner))
    return int.from_bytes(blake2b(body, digest_size=8).digest(), "big")
