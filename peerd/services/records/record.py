"""One record, and what two copies of it merge to. Pure.

`merge` is associative, commutative and idempotent, so copies may meet in any order, any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

from msgspec import structs

from peerd.api import RecordVersion
from peerd.ids import NodeId, id_to_bytes
from peerd.services.records.config import RECORD_OVERHEAD_BYTES
from peerd.services.records.messages import UNSIGNED, RecordCopy, RecordSummary, RequestId, SignedWrite
from peerd.services.records.owners import SHARED, statement, value_digest
from peerd.services.records.view import ITEM_BITS

RecordName = tuple[NodeId, str, bytes]
"""Key, namespace and item."""


class RecordId(NamedTuple):
    """Names a record: what all its copies have in common. Sorted, the records are in key order."""

    key: NodeId
    namespace: str
    item: bytes = b""
    owner: NodeId = SHARED

    @property
    def name(self) -> RecordName:
        """What it shares with the records of other owners."""
        return self.key, self.namespace, self.item

    @property
    def place(self) -> int:
        """Where it is among all records of the ring, see `peerd.services.records.view.Arc`."""
        text = b"%b\0%b" % (self.namespace.encode(), self.item)
        if self.owner != SHARED:
            text += id_to_bytes(self.owner)
        name = blake2b(text, digest_size=ITEM_BITS // 8)
        return self.key << ITEM_BITS | int.from_bytes(name.digest(), "big")


@dataclass(frozen=True, slots=True)
class Record:
    """A record as one node holds it; times are of this node's monotonic clock, seconds.

    ``value`` is ``None`` for a tombstone. Copies of older versions may live elsewhere until ``covered_until``: a record
    that lapses before becomes a tombstone.
    """

    namespace: str
    key: NodeId
    version: RecordVersion
    value: bytes | None
    expires_at: float
    covered_until: float
    request: RequestId
    item: bytes = b""
    owner: NodeId = SHARED
    write: SignedWrite = UNSIGNED

    @property
    def identity(self) -> RecordId:
        """What the copies of one record have in common."""
        return RecordId(self.key, self.namespace, self.item, self.owner)

    @property
    def charge_bytes(self) -> int:
        """What it counts for in a quota, and nearly all that it occupies in a message.

        With the longest names it takes a few bytes more there; a batch leaves enough room for that.
        """
        return len(self.value or b"") + len(self.item) + len(self.write.proof) + RECORD_OVERHEAD_BYTES

    @property
    def is_lapsed(self) -> bool:
        """Whether it stands for a value that has outlived its time; nobody has deleted it."""
        return self.value is None and bool(self.write.value_digest)

    @property
    def is_consistent(self) -> bool:
        """Whether version and owner are such as follow from the request."""
        if self.value is not None and self.write.value_digest:
            return False
        return self.owner == SHARED or (
            self.owner == self.request.origin and self.version == owned_version(self.request)
        )

    @property
    def statement(self) -> bytes:
        """What the origin of the request has signed."""
        write, request = self.write, self.request
        digest = write.value_digest if self.value is None else value_digest(self.value)
        return statement(
            self.namespace,
            self.key,
            self.item,
            self.owner,
            digest,
            request.epoch,
            request.sequence,
            write.ttl_s,
            write.until_s,
        )

    def is_same_write(self, other: Record) -> bool:
        """Whether both are copies of one write, alike but for their lifetimes."""
        return (self.version, self.request, self.value, self.write, self.identity) == (
            other.version,
            other.request,
            other.value,
            other.write,
            other.identity,
        )

    def lapsed(self, margin_s: float) -> Record | None:
        """What is left at ``expires_at``: a tombstone while an older copy may live (and ``margin_s``), or nothing."""
        if self.value is None or self.covered_until <= self.expires_at:
            return None
        write = structs.replace(self.write, value_digest=value_digest(self.value))
        return replace(self, value=None, expires_at=self.covered_until + margin_s, write=write)


def owned_version(request: RequestId) -> RecordVersion:
    """The version of a write to an owned record: its number, which the owner alone gives and has signed."""
    return RecordVersion(request.epoch, request.sequence, request.origin)


def merge(ours: Record, theirs: Record) -> Record:
    """The copy that both holders end up with: the later version; of one version of a shared record, the tombstone.

    Copies of one version differ only in what the network added to their lifetimes: a value takes the shorter one, a
    tombstone the longer. An owned record is nobody else's to end: there a value beats the tombstone of its own lapse,
    and takes the longer lifetime, within what its owner has signed.
    """
    if _order(ours) != _order(theirs):
        return max(ours, theirs, key=_order)
    covered_until = max(ours.covered_until, theirs.covered_until)
    limit = min if ours.value is not None and ours.owner == SHARED else max
    return replace(ours, expires_at=limit(ours.expires_at, theirs.expires_at), covered_until=covered_until)


def _order(record: Record) -> tuple[object, ...]:
    """Versions are unique; what comes after them makes the order total whatever a peer sends."""
    write = record.write
    return (
        *record.version.rank,
        (record.value is None) == (record.owner == SHARED),
        record.value or b"",
        record.request.number,
        (write.ttl_s, write.until_s, write.value_digest, write.proof),
    )


def to_copy(record: Record, now: float) -> RecordCopy:
    """The record as it is sent to others."""
    return RecordCopy(
        record.namespace,
        record.key,
        record.version,
        record.value,
        max(0.0, record.expires_at - now),
        max(0.0, record.covered_until - now),
        record.request,
        record.item,
        record.owner,
        record.write,
    )


def from_copy(copy: RecordCopy, now: float, ttl_max_s: float, tombstone_ttl_s: float) -> Record:
    """A record that another node sent; it lives no longer than this node's own limits allow."""
    limit_s = tombstone_ttl_s if copy.value is None else ttl_max_s
    return Record(
        copy.namespace,
        copy.key,
        copy.version,
        copy.value,
        now + min(copy.remaining_s, limit_s),
        now + min(copy.covered_s, tombstone_ttl_s),
        copy.request,
        copy.item,
        copy.owner,
        copy.write,
    )


def summary(record: Record) -> RecordSummary:
    """What is sent of the record when two nodes compare versions."""
    return RecordSummary(record.namespace, record.key, record.version, record.item, record.owner)
