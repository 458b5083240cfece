"""Chunks that others have asked for, and whose turn it is. Pure.

Neighbours take turns, so that one that asks for much, or takes it slowly, does not keep the others waiting.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import NodeId
from peerd.limits import MIB
from peerd.messages import PeerRef

UPLOADS_MAX: Final = 8
"""Chunks that this node sends at once. Each needs a slot of the swap layer and a chunk's size of memory.

Fewer leave the link idle: a connection takes several round trips to begin, and some neighbours are slow to take.
"""
UPLOADS_LARGE_MAX: Final = 4
UPLOADS_BYTES_MAX: Final = 16 * MIB
"""Above the first number, only as long as all chunks that are being sent have at most so many bytes together."""
UPLOADS_PEER_MAX: Final = 2
"""Of those, to one neighbour; a second one only as long as nobody else waits."""
WAITING_PEER_MAX: Final = 16
"""Chunks that one neighbour may wait for. A correct one waits for two of each of a few documents."""
WAITING_MAX: Final = 1024


class Upload(Frozen):
    """A chunk for somebody."""

    peer: PeerRef
    document: bytes
    chunk: int
    size: int


class UploadQueue:
    """Who waits for what."""

    def __init__(self) -> None:
        self._waiting: dict[NodeId, deque[Upload]] = {}
        """Who is served next comes first."""
        self._active: dict[NodeId, list[Upload]] = {}

    @property
    def active(self) -> int:
        """How many chunks are being sent."""
        return sum(map(len, self._active.values()))

    def add(self, upload: Upload) -> bool:
        """Take an order; ``False``: there are too many. One that waits already, or is under way, is taken as it is."""
        own = self._waiting.get(upload.peer.id, ())
        if upload in own or upload in self._active.get(upload.peer.id, ()):
            return True
        if len(own) >= WAITING_PEER_MAX or sum(map(len, self._waiting.values())) >= WAITING_MAX:
            return False
        self._waiting.setdefault(upload.peer.id, deque()).append(upload)
        return True

    def next(self) -> Upload | None:
        """What to send now, if anything. Call `ended` when it is sent, or cannot be."""
        if self.active >= UPLOADS_MAX:
            return None
        for busy in range(UPLOADS_PEER_MAX):
            for id, orders in self._waiting.items():
                if len(self._active.get(id, ())) == busy:
                    return self._begin(orders[0]) if self._has_room(orders[0]) else None
        return None

    def _has_room(self, upload: Upload) -> bool:
        under_way = [each.size for own in self._active.values() for each in own]
        return len(under_way) < UPLOADS_LARGE_MAX or sum(under_way) + upload.size <= UPLOADS_BYTES_MAX

    def _begin(self, upload: Upload) -> Upload:
        id = upload.peer.id
        orders = self._waiting.pop(id)
        orders.popleft()
        if orders:
            self._waiting[id] = orders  # at the end of the line
        self._active.setdefault(id, []).append(upload)
        return upload

    def ended(self, upload: Upload) -> None:
        """It is sent, or was given up."""
        own = self._active[upload.peer.id]
        own.remove(upload)
        if not own:
            del self._active[upload.peer.id]

    def gone(self, id: NodeId) -> None:
        """Nobody waits there any more."""
        self._waiting.pop(id, None)

    def uses(self, document: bytes) -> bool:
        """Whether somebody waits for this document."""
        everything = [*self._waiting.values(), *self._active.values()]
        return any(upload.document == document for orders in everything for upload in orders)
