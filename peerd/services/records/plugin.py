"""The record store of one node: ties the parts together; docs/records.md says what it promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, Self, cast

from msgspec.structs import replace

from peerd.api import (
    HistorySize,
    Host,
    LocalRecord,
    Metric,
    NeighbourChange,
    RecordAck,
    RecordResult,
    RecordRole,
    RecordVersion,
    on_timer,
)
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.services.records import messages
from peerd.services.records.config import RecordsConfig
from peerd.services.records.exchange import Responder
from peerd.services.records.messages import RecordRequest
from peerd.services.records.operations import Operations
from peerd.services.records.owners import SHARED, statement, value_digest
from peerd.services.records.ports import RecordsHost
from peerd.services.records.record import Record
from peerd.services.records.replication import Replicator
from peerd.services.records.root import Root
from peerd.services.records.state import RecordState
from peerd.services.records.sync import Synchroniser
from peerd.services.records.table import WRITE_BYTES, WRITES_REMEMBERED_MAX
from peerd.services.service import Service

LAPSE_MIN_S: Final = 0.5
LAPSE_MAX_S: Final = 5.0
"""How long it may take until a lapsed record is dropped and its plugin is told. It is not served meanwhile."""


class RecordStore(Service):
    """Every node has one. Its host is a `peerd.services.records.ports.RecordsHost`."""

    name: ClassVar[str] = "records"
    purpose: ClassVar[str] = "Replicated soft state of plugins."
    messages = messages.RECORD_MESSAGES
    metrics = (
        Metric("peerd_records_held", "gauge", "Records held here, by what this node is for them.", ("role",)),
        Metric("peerd_records_held_bytes", "gauge", "What the records held here are charged."),
        Metric("peerd_records_tombstones", "gauge", "Deleted records that are remembered here."),
        Metric("peerd_records_pending", "gauge", "Operations, and writes on their way to replicas.", ("kind",)),
        Metric("peerd_records_operations_total", "counter", "Ended operations of this node.", ("verb", "outcome")),
        Metric("peerd_records_refusals_total", "counter", "Requests and copies refused here.", ("reason",)),
        Metric("peerd_records_read_repairs_total", "counter", "Reads that found replicas with different versions."),
        Metric("peerd_records_repaired_total", "counter", "Records moved by comparisons.", ("direction",)),
        Metric("peerd_records_silent_neighbours_total", "counter", "Neighbours given up: they answer no comparison."),
        Metric("peerd_records_handed_over_total", "counter", "Records given to their new replica set."),
        Metric("peerd_records_lapsed_total", "counter", "Records that outlived their time."),
    )
    Config = RecordsConfig

    def __init__(self, config: RecordsConfig | None = None) -> None:
        super().__init__(config)
        self._config = config if config is not None else RecordsConfig()
        self._failed: RecordStore | None = None

    def inherit(self, failed: Self) -> None:
        """Go on with its numbers and versions, which must not be used twice; who waits for an outcome gets one."""
        self._failed = failed

    def start(self, host: Host) -> None:
        """Build the parts."""
        super().start(host)
        self._host = cast(RecordsHost, host)
        self.state = state = RecordState(self._host, self._config)
        self.operations = Operations(state)
        self.replicator = Replicator(state)
        self._root = Root(state, self.replicator)
        self._responder = Responder(state)
        self._synchroniser = Synchroniser(state)
        self.add_parts(self.operations, self.replicator, self._responder, self._synchroniser)
        state.view_changed = self._view_changed
        if self._failed is not None:
            self.operations.inherit(self._failed.operations)
            state.table.clock = self._failed.state.table.clock
            self._failed = None
        self._synchroniser.view_changed()  # who is alone hears of no change, and who was restarted has missed some
        interval_s = self._config.sync_interval
        host.set_timer("sync", interval_s * host.rng.random())
        state.changed = self._await_lapse
        self._is_lapse_due = False
        self._was_empty = False

    def _view_changed(self) -> None:
        self.replicator.advance()
        self._synchroniser.view_changed()

    # For the facades

    def operate(
        self,
        verb: int,
        namespace: str,
        key: NodeId,
        value: bytes | None,
        ttl_s: float,
        is_replicated: bool,
        if_version: RecordVersion | None,
        timeout_s: float | None,
        on_result: Callable[[RecordResult], None],
        item: bytes,
        owner: NodeId | None,
    ) -> None:
        """Start an operation of a plugin of this node. Raises `Unavailable` when too many are under way.

        ``owner``: see `peerd.services.records.messages.RecordRequest`.
        """
        config, refusal = self._config, None
        if verb == messages.PUT and not 0 < ttl_s <= config.ttl_max:
            refusal, ttl_s = "ttl", 0.0
        if value is not None and len(value) > config.value_bytes_max:
            refusal, value = "value_bytes", b""
        if len(item) > messages.ITEM_BYTES_MAX:
            refusal, item = "item_bytes", b""
        sequence = self.operations.next_sequence()
        epoch = self._host.boot_epoch
        request = RecordRequest(
            verb, namespace, key, epoch, sequence, 0, value, ttl_s, is_replicated, if_version, item, owner
        )
        if verb != messages.GET and refusal is None:
            request = self._signed(request)
        self.operations.start(request, on_result, timeout_s, refusal)

    def _signed(self, write: RecordRequest) -> RecordRequest:
        life_s = write.ttl_s if write.verb == messages.PUT else self._config.tombstone_ttl_s
        until_s = self._host.wall_time() + life_s
        said = statement(
            write.namespace,
            write.key,
            write.item,
            write.owner or SHARED,
            b"" if write.value is None else value_digest(write.value),
            write.epoch,
            write.sequence,
            write.ttl_s,
            until_s,
        )
        return replace(write, until_s=until_s, proof=self._host.sign(said))

    def local(self, namespace: str, key: NodeId, item: bytes, owner: NodeId | None) -> LocalRecord | None:
        """What this node holds of one record."""
        self.state.refresh()
        record = self.state.current((key, namespace, item), owner)
        return None if record is None or record.value is None else self.state.local(record)

    def items(self, namespace: str, key: NodeId) -> list[LocalRecord]:
        """What this node holds under one key."""
        self.state.refresh()
        self.state.table.lapse(self._host.now())
        found = self.state.table.items(key, namespace)
        return [self.state.local(record) for record in found if record.value is not None]

    def is_settled(self, key: NodeId) -> bool:
        """Whether this node is the root of a key and has caught up. If that is not known yet, plugins are told later.

        The leaf set alone does not say who the root is: a neighbour may vouch for a node that this one cannot reach, or
        one that was given up may be coming back.
        """
        self.state.refresh()
        if not self.state.has_items:
            self._synchroniser.asked_early(self._config.push_retry)
        elif self.state.is_root(key):
            if self._is_certain(key):
                return True
            self._synchroniser.asked_early(self._config.retry_max)
        return False

    def _is_certain(self, key: NodeId) -> bool:
        try:
            return self._host.next_hop(key) is None
        except Unavailable:
            return False

    def held(self, namespace: str) -> list[LocalRecord]:
        """All records of a namespace that this node holds."""
        self.state.refresh()
        self.state.table.lapse(self._host.now())
        return [
            self.state.local(record)
            for record in self.state.table
            if record.namespace == namespace and record.value is not None
        ]

    def plugin_disabled(self, name: str) -> None:
        """Forget the operations of a plugin that is out of service: its callbacks must not be called any more."""
        self.operations.forget(name)

    def drain(self, done: Callable[[], None]) -> None:
        """Hand every record over. Records for which that failed are counted, and told in events."""
        self.hand_over(lambda failed: done())

    def hand_over(self, done: Callable[[int], None]) -> None:
        """Before a graceful leave: see that every record here is held by those who will hold it afterwards.

        ``done`` is called once, with the number of records for which that failed; it may take as long as moving what
        they lack. Call it while the node is still in the ring.
        """
        self._synchroniser.drain(done)

    # Messages

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        """Only requests are routed, to the root of their key."""
        if isinstance(message, RecordRequest) and message.key == key:
            self._root.received(message, source)

    def neighbours_changed(self, change: NeighbourChange) -> None:
        """The leaf set changed."""
        self.state.refresh()

    # Timers

    @on_timer("sync")
    def _sync(self, payload: object) -> None:
        self._host.set_timer("sync", self._config.sync_interval * self._host.rng.uniform(0.8, 1.2))
        self._synchroniser.routine()
        self._measure()

    @on_timer("lapse")
    def _lapse(self, payload: object) -> None:
        now, table = self._host.now(), self.state.table
        lapsed = table.lapse(now)
        if lapsed:
            self._host.count("peerd_records_lapsed_total", lapsed)
        self._is_lapse_due = False
        self._await_lapse()

    def _await_lapse(self) -> None:
        """Look again when the next record may lapse, if there is one."""
        due = self.state.table.next_lapse()
        if due is not None and not self._is_lapse_due:
            self._is_lapse_due = True
            self._host.set_timer("lapse", min(max(due - self._host.now(), LAPSE_MIN_S), LAPSE_MAX_S))

    def _measure(self) -> None:
        table, view = self.state.table, self.state.view
        is_empty = not (len(table) or len(self.operations) or len(self.replicator))
        if is_empty and self._was_empty:
            return
        self._was_empty = is_empty
        strange = () if view.strange_arc is None else table.within(view.strange_arc)
        counts = {RecordRole.ROOT: _values(table.within(view.root_arc)), RecordRole.NONE: _values(strange)}
        counts[RecordRole.REPLICA] = len(table) - table.tombstones - sum(counts.values())
        for role, number in counts.items():
            self._host.gauge("peerd_records_held", number, role=role.value)
        self._host.gauge("peerd_records_held_bytes", table.usage.charged_bytes)
        self._host.gauge("peerd_records_tombstones", table.tombstones)
        self._host.gauge("peerd_records_pending", len(self.operations), kind="operations")
        self._host.gauge("peerd_records_pending", len(self.replicator), kind="writes")

    def histories(self) -> Sequence[HistorySize]:
        count = self.state.table.writes_remembered
        return (HistorySize("writes of records", count, count * WRITE_BYTES, WRITES_REMEMBERED_MAX * WRITE_BYTES),)

    def validate(self) -> None:
        """Assert the invariants of the table."""
        self.state.table.validate()
        self.replicator.validate()


def _values(records: Iterable[Record]) -> int:
    return sum(record.value is not None for record in records)


class BoundRecords:
    """Implements `peerd.api.Records`. ``store`` is asked for anew each time: the store may have been restarted."""

    def __init__(self, store: Callable[[], RecordStore], namespace: str) -> None:
        self._store = store
        self._namespace = namespace

    def put(
        self, key: NodeId, value: bytes, ttl_s: float, on_result: Callable[[RecordResult], None], **how: Any
    ) -> None:
        """See `peerd.api.Records.put`."""
        self._write(messages.PUT, key, value, ttl_s, on_result, **how)

    def get(
        self,
        key: NodeId,
        on_result: Callable[[RecordResult], None],
        *,
        item: bytes = b"",
        owner: NodeId | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """See `peerd.api.Records.get`."""
        how = key, None, 0.0, False, None, timeout_s, on_result, item, owner
        self._store().operate(messages.GET, self._namespace, *how)

    def delete(self, key: NodeId, on_result: Callable[[RecordResult], None], **how: Any) -> None:
        """See `peerd.api.Records.delete`."""
        self._write(messages.DELETE, key, None, 0.0, on_result, **how)

    def _write(
        self,
        operation: int,
        key: NodeId,
        value: bytes | None,
        ttl_s: float,
        on_result: Callable[[RecordResult], None],
        *,
        item: bytes = b"",
        ack: RecordAck = "received",
        if_version: RecordVersion | None = None,
        timeout_s: float | None = None,
        shared: bool = False,
    ) -> None:
        store = self._store()
        owner = SHARED if shared else store.host.id
        how = key, value, ttl_s, ack == "replicated", if_version, timeout_s, on_result, item, owner
        store.operate(operation, self._namespace, *how)

    def local(self, key: NodeId, item: bytes = b"", owner: NodeId | None = None) -> LocalRecord | None:
        """What this node itself holds, without asking anybody."""
        return self._store().local(self._namespace, key, item, owner)

    def items(self, key: NodeId) -> Iterator[LocalRecord]:
        """Everything under one key that this node itself holds, by the names of the items."""
        return iter(self._store().items(self._namespace, key))

    def is_settled(self, key: NodeId) -> bool:
        """Whether this node is the root of the key, and holds all that there is under it."""
        return self._store().is_settled(key)

    def held(self) -> Iterator[LocalRecord]:
        """Every record of the namespace that this node holds, in key order."""
        return iter(self._store().held(self._namespace))
