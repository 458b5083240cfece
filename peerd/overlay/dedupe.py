"""Which routed messages were seen already: a window over the latest ones. Pure state."""

from __future__ import annotations

from typing import Final

from peerd import limits
from peerd.ids import NodeId

BROADCAST_KEY: Final = -1
"""The key of every broadcast in the window, where a routed message has its own."""

SEEN_BYTES: Final = 230
"""What remembering a message takes, measured."""

MessageIdentity = tuple[NodeId, int, int, int]
"""(source, boot epoch of the source, its sequence number, key)."""


class Window:
    """The latest identities with a number each; the oldest is forgotten when the window is full."""

    __slots__ = ("_seen", "_size")

    def __init__(self, size: int = limits.DEDUPE_WINDOW) -> None:
        self._size = size
        self._seen: dict[MessageIdentity, int] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, identity: MessageIdentity) -> int | None:
        """The number stored with it; ``None`` when it was not seen."""
        return self._seen.get(identity)

    def put(self, identity: MessageIdentity, number: int = 0) -> None:
        """Remember it, or change its number."""
        if identity not in self._seen and len(self._seen) >= self._size:
            del self._seen[next(iter(self._seen))]
        self._seen[identity] = number

    def is_new(self, identity: MessageIdentity) -> bool:
        """Whether it was not seen before. From now on it counts as seen."""
        if identity in self._seen:
            return False
        self.put(identity)
        return True
