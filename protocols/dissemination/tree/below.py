"""What the edge to the parent tells the rest of a node. Pure."""

from __future__ import annotations

from typing import Protocol

from peerd.messages import PeerRef
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import ParsedItem


class Below(Protocol):
    """What this part tells the rest of the node."""

    def carried(self, item: StreamItem, parsed: ParsedItem | None) -> None:
        """The next item of the stream. ``parsed``: it was parsed and matched before."""

    def remembered(self, item: StreamItem, parsed: ParsedItem | None) -> None:
        """An item of the past, for interests that are about to be complete. ``parsed``: it was parsed before."""

    def went_on(self, peer: PeerRef) -> None:
        """An item was taken in that had held up what this node has sent since."""

    def answered(self) -> None:
        """Some interests are complete, or as complete as they will be."""

    def lost(self, since: StreamPosition, until: StreamPosition) -> None:
        """What came after ``since`` and up to ``until`` is lost, wholly or in part."""

    def fall_back(self, watermark: StreamPosition) -> None:
        """The stream is not as far as this node was told before, but to this mark: it goes on behind that."""
