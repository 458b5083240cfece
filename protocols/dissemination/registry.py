"""Streams' records in the ring: this node's own are written and kept alive, others' are looked up.

A record is owned by its producer, so nobody else can change it while it lives; who makes a stream of the same name
hears of a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from peerd.api import Host, Part, RecordOutcome, RecordResult, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId, format_id, short_id
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.names import stream_key
from protocols.dissemination.producer.fencing import stops_at
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord, decode_record

RECORD_ITEM: Final = b"stream"
RENEWALS_PER_LEASE: Final = 3
AGAIN_S: Final = 5.0
"""A renewal that nobody answered is tried again after this."""
_RENEWAL: Final = "stream_renewal"

Found = Callable[[StreamRecord | Exception], None]


class EndedEarly(StreamRefused):
    """A record was removed before the ring had confirmed it."""


@dataclass(slots=True)
class _Own:
    record: StreamRecord
    is_lost: bool = False
    """Another node has the name now."""
    held_until: float = 0.0
    """Where a standby waits for the record to lapse: this node may publish until then."""


class RecordsOwner(Protocol):
    """Whose records these are."""

    def with_seeds(self, record: StreamRecord) -> StreamRecord:
        """The record with the seeds of this moment."""

    def name_lost(self, record: StreamRecord) -> None:
        """This record was taken over by another producer, while this node was away."""


class StreamRegistry(Part):
    def __init__(self, host: Host, config: Callable[[], DisseminationConfig], owner: RecordsOwner) -> None:
        self._host, self._config, self._owner = host, config, owner
        self._own: dict[NodeId, _Own] = {}
        self._creating: dict[NodeId, StreamRecord] = {}
        """What the ring has not confirmed yet, and nobody has removed meanwhile."""

    # This node's own

    def create(self, record: StreamRecord, on_done: Callable[[Exception | None], None]) -> None:
        """Write a new record. ``on_done`` gets `EndedEarly`, or what the ring says, perhaps at once."""
        self._creating[record.key] = record
        try:
            self._put(record, partial(self._created, record, on_done, self._host.now()))
        except Unavailable as error:
            del self._creating[record.key]
            on_done(error)

    def _created(
        self, record: StreamRecord, on_done: Callable[[Exception | None], None], sent_at: float, result: RecordResult
    ) -> None:
        why = self._why_not(record, result)
        if self._creating.get(record.key) is not record:
            if not isinstance(why, StreamRefused):
                self._clear_away(record)
            on_done(EndedEarly("conflict", f"the stream {record.name} was ended before the ring had confirmed it"))
            return
        del self._creating[record.key]
        if why is None:
            self.keep(record, self._pause_s(record))
            self._holds(self._own[record.key], sent_at)
        if isinstance(why, StreamRefused) and why.kind == "conflict":
            self._tell_whose(record, why, on_done)
        else:
            on_done(why)

    def _tell_whose(
        self, record: StreamRecord, why: StreamRefused, on_done: Callable[[Exception | None], None]
    ) -> None:
        """Say where the stream is that has the name, and what it is."""

        def found(answer: StreamRecord | Exception) -> None:
            if not isinstance(answer, StreamRecord):
                on_done(why)
                return
            place = f"node {answer.producer.id:.8} at {answer.producer.peer.address}"
            other = answer.differences(record) or "the same as this one would be: subscribe to it, or publish there"
            on_done(StreamRefused("conflict", f"{place} has a stream of the name {record.name} already: {other}"))

        self.find(record.name, found)

    def _clear_away(self, record: StreamRecord) -> None:
        """A record that was removed before the ring had answered may have been written after that all the same."""
        if record.key not in self._own and record.key not in self._creating:  # else the next record is in its place
            self.withdraw(record)

    def is_held(self, record: StreamRecord) -> bool:
        """Whether this node may publish. Where a standby waits for the record to lapse, the ring has to have confirmed
        it lately: see `protocols.dissemination.producer.fencing`."""
        if not record.has_standbys:
            return True
        own = self._own.get(record.key)
        return own is not None and self._host.now() < own.held_until

    def _holds(self, own: _Own, sent_at: float) -> None:
        own.held_until = max(own.held_until, stops_at(sent_at, self.lease_s(own.record)))

    def keep(self, record: StreamRecord, in_s: float) -> None:
        """Renew a record from now on, first after so long."""
        self._host.cancel_timer(_RENEWAL, record.key)
        before = self._own.get(record.key)
        is_same = before is not None and before.record.term == record.term
        self._own[record.key] = _Own(record, held_until=before.held_until if before is not None and is_same else 0.0)
        self._host.set_timer(_RENEWAL, in_s, record.key)

    def change(self, record: StreamRecord) -> None:
        """One of this node's records says something else now: the ring is told at once."""
        if record.key in self._own:
            self.keep(record, 0.0)

    def remove(self, record: StreamRecord, on_done: Callable[[Exception | None], None]) -> None:
        """Delete a record. Raises `Unavailable`."""

        def done(result: RecordResult) -> None:
            is_gone = result.outcome in (RecordOutcome.STORED, RecordOutcome.ABSENT)
            on_done(None if is_gone else self._why_not(record, result))

        self._host.records.delete(record.key, done, item=RECORD_ITEM)
        self.forget(record)

    def withdraw(self, record: StreamRecord) -> None:
        """Delete a record that is not to be there any more; where that cannot be done now, it lapses."""
        with suppress(Unavailable):
            self.remove(record, lambda why: None)

    def forget(self, record: StreamRecord) -> None:
        """Renew it no more: it lapses."""
        self._creating.pop(record.key, None)
        if self._own.pop(record.key, None) is not None:
            self._host.cancel_timer(_RENEWAL, record.key)

    def lease_s(self, record: StreamRecord) -> float:
        """How long a record lives that is not renewed."""
        return self._config().standby_lease if record.has_standbys else self._config().lease

    def _pause_s(self, record: StreamRecord) -> float:
        return self.lease_s(record) / RENEWALS_PER_LEASE * self._host.rng.uniform(0.8, 1.2)

    @on_timer(_RENEWAL)
    def renew(self, key: NodeId) -> None:
        """Write one of this node's records again, with the seeds of this moment."""
        own = self._own.get(key)
        if own is None:
            return
        self._host.set_timer(_RENEWAL, self._pause_s(own.record), key)
        own.record = self._owner.with_seeds(own.record)
        try:
            self._put(own.record, partial(self._renewed, key, self._host.now()))
        except Unavailable:
            self._soon(key)

    def _renewed(self, key: NodeId, sent_at: float, result: RecordResult) -> None:
        own = self._own.get(key)
        if own is None:
            return
        if result.outcome is RecordOutcome.STORED:
            self._holds(own, sent_at)
            self._look_for_rival(own)
            return
        if result.outcome in (RecordOutcome.OWNED, RecordOutcome.CONFLICT) and result.owner != self._host.id:
            if result.owner is not None:
                self._lost(own)
            return
        self._soon(key)

    def _look_for_rival(self, own: _Own) -> None:
        """Two parts of a divided ring each let a node create the name, and then renew both records: the ring never says
        so by itself. Of the two producers the one whose record others are not given has to end its stream."""

        def found(answer: StreamRecord | Exception) -> None:
            if isinstance(answer, StreamRecord) and answer.producer.id != format_id(self._host.id):
                self._lost(own)

        self.find(own.record.name, found)

    def _lost(self, own: _Own) -> None:
        if self._own.get(own.record.key) is own and not own.is_lost:
            own.is_lost = True
            self._owner.name_lost(own.record)

    def _soon(self, key: NodeId) -> None:
        self._host.cancel_timer(_RENEWAL, key)
        self._host.set_timer(_RENEWAL, AGAIN_S * self._host.rng.uniform(0.8, 1.2), key)

    def _put(self, record: StreamRecord, on_result: Callable[[RecordResult], None]) -> None:
        """Where a standby waits for the record to lapse, every replica has to have it, so that it does not lapse early;
        and an attempt that nobody answers is given up soon enough for others within the lease."""
        lease_s, records = self.lease_s(record), self._host.records
        if record.has_standbys:
            limit_s = lease_s / (2 * RENEWALS_PER_LEASE)
            records.put(
                record.key, record.encode(), lease_s, on_result, item=RECORD_ITEM, ack="replicated", timeout_s=limit_s
            )
        else:
            records.put(record.key, record.encode(), lease_s, on_result, item=RECORD_ITEM)

    @staticmethod
    def _why_not(record: StreamRecord, result: RecordResult) -> Exception | None:
        if result.outcome is RecordOutcome.STORED:
            return None
        if result.outcome in (RecordOutcome.OWNED, RecordOutcome.CONFLICT):
            owner = "another node" if result.owner is None else f"node {short_id(result.owner)}"
            return StreamRefused("conflict", f"{owner} has a stream of the name {record.name} already")
        if result.outcome is RecordOutcome.QUOTA:
            return StreamRefused("quota", f"the ring does not take the record of {record.name}: {result.detail}")
        return Unavailable(
            f"the record of {record.name} cannot be written now: {result.detail or result.outcome.value}"
        )

    # Anybody's

    def find(self, name: str, on_found: Found, owner: NodeId | None = None) -> None:
        """Look a stream up. ``on_found`` gets its record, `Unavailable` (perhaps at once), or `StreamRefused`.

        ``owner``: whose record it is to be, where two nodes have written one in two parts of a divided ring.
        """

        def done(result: RecordResult) -> None:
            on_found(self._read(name, result))

        try:
            self._host.records.get(stream_key(name), done, item=RECORD_ITEM, owner=owner)
        except Unavailable as error:
            on_found(error)

    @staticmethod
    def _read(name: str, result: RecordResult) -> StreamRecord | Exception:
        if result.outcome is RecordOutcome.FOUND and result.value is not None:
            try:
                return decode_record(result.value, stream_key(name), result.owner)
            except ProtocolError as error:
                return StreamRefused("invalid", f"what the ring keeps as the stream {name} is not valid: {error}")
        if result.outcome is RecordOutcome.ABSENT:
            return StreamRefused("unknown", f"there is no stream {name}: create it first (peerd stream create {name})")
        return Unavailable(f"the stream {name} cannot be looked up now: {result.detail or result.outcome.value}")
