"""`Host.records`: the store bound to the namespace of one plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from peerd.api import LocalRecord, RecordAck, RecordResult, RecordVersion
from peerd.ids import NodeId
from peerd.services.records import messages
from peerd.services.records.owners import SHARED

if TYPE_CHECKING:
    from peerd.services.records.plugin import RecordStore


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
