"""One record, and what two copies of it merge to. Pure.

`merge` is associative, commutative and idempotent, so copies may meet in any order, any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

from peerd.api import RecordVersion
from peerd.ids import NodeId
from peerd.services.records.config import RECORD_OVERHEAD_BYTES
from peerd.services.records.messages import RecordCopy, RecordSummary, RequestId
from peerd.services.records.view import ITEM_BITS


class RecordId(NamedTuple):
    """Names a record: what all its copies have in common. Sorted, the records are in key order."""

    key: NodeId
    namespace: str
    item: bytes = b""

    @property
    def place(self) -> int:
        """Where it is among all records of the ring, see `peerd.services.records.view.Arc`."""
        name = blake2b(b"%b\0%b" % (self.namespace.encode(), self.item), digest_size=ITEM_BITS // 8)
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

    @property
    def identity(self) -> RecordId:
        """What the copies of one record have in common."""
        return RecordId(self.key, self.namespace, self.item)

    @property
    def charge_bytes(self) -> int:
        """What it counts for in a quota."""
        return len(self.value or b"") + len(self.item) + RECORD_OVERHEAD_BYTES

    def lapsed(self, margin_s: float) -> Record | None:
        """What is left at ``expires_at``: a tombstone while an older copy may live (and ``margin_s``), or nothing."""
        if self.value is None or self.covered_until <= self.expires_at:
            return None
        return replace(self, value=None, expires_at=self.covered_until + margin_s)


def merge(ours: Record, theirs: Record) -> Record:
    """The copy that both holders end up with: the later version; of one version, the tombstone.

    Copies of one version differ only in what the network added to their lifetimes: a value takes the shorter one, a
    tombstone the longer.
    """
    if _order(ours) != _order(theirs):
        return max(ours, theirs, key=_order)
    covered_until = max(ours.covered_until, theirs.covered_until)
    limit = min if ours.value is not None else max
    return replace(ours, expires_at=limit(ours.expires_at, theirs.expires_at), covered_until=covered_until)


def _order(record: Record) -> tuple[object, ...]:
    """Versions are unique; what comes after them makes the order total whatever a peer sends."""
    request = record.request
    return (
        *record.version.rank,
        record.value is None,
        record.value or b"",
        (request.origin, request.epoch, request.sequence),
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
    )


def summary(record: Record) -> RecordSummary:
    """What is sent of the record when two nodes compare versions."""
    return RecordSummary(record.namespace, record.key, record.version, record.item)
