"""What the record store needs from the node around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from peerd.api import Host, RecordResult, RecordRole
from peerd.ids import NodeId
from peerd.messages import PeerRef


class RecordsHost(Host, Protocol):
    """A plugin's host, plus what only the record store may do. A namespace is the name of a plugin."""

    @property
    def is_ready(self) -> bool:
        """Whether this node is in the ring and may answer as a root."""

    def charge(self, peer: PeerRef, messages: int) -> None:
        """What is being handled counts for so many messages more. Raises `ProtocolError` above the peer's limit."""

    def record_changed_upcall(self, namespace: str, key: NodeId, role: RecordRole, item: bytes) -> None:
        """Tell the plugin, if this node has it, after the current handler (`peerd.api.Plugin.record_changed`)."""

    def record_allowed_upcall(
        self, namespace: str, key: NodeId, item: bytes, value: bytes | None, writer: NodeId
    ) -> bool:
        """Ask the plugin, if this node has it, at once (`peerd.api.Plugin.record_allowed`)."""

    def has_plugin(self, namespace: str) -> bool:
        """Whether this node has the plugin that a namespace is named after."""

    def takes_owned_records(self, namespace: str) -> bool:
        """Whether the plugin, if this node has it, lets nodes keep records of their own."""

    def records_settled_upcall(self) -> None:
        """Tell every plugin, after the current handler, that this node has caught up."""

    def record_result_upcall(
        self, namespace: str, on_result: Callable[[RecordResult], None], result: RecordResult
    ) -> None:
        """Call back into the plugin that asked."""
