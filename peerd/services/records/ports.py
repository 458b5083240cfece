"""What the record store needs from the node around it."""

from __future__ import annotations

from typing import Protocol

from peerd.api import Host
from peerd.messages import PeerRef
from peerd.services.records.upcalls import RecordUpcalls


class RecordsHost(Host, Protocol):
    """A plugin's host, plus what only the record store may do. A namespace is the name of a plugin."""

    @property
    def is_ready(self) -> bool:
        """Whether this node is in the ring and may answer as a root."""

    def charge(self, peer: PeerRef, messages: int) -> None:
        """What is being handled counts for so many messages more. Raises `ProtocolError` above the peer's limit."""

    @property
    def record_upcalls(self) -> RecordUpcalls:
        """The plugins of the node, as the record store calls them."""
