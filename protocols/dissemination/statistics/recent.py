"""A few of the newest items, kept as they came, so that somebody's interests can be tried on them. Pure.

They are parsed again for that: it is seldom, and parsed items are large (some 12 times for XML).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pyroaring import BitMap64

from protocols.dissemination.interests.guarded import GuardedSet
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.ports import Interest, InterestKind
from protocols.dissemination.statistics.received import ItemSet

RECENT_ITEMS_MAX: Final = 128
RECENT_BYTES_MAX: Final = 1 << 20
"""Of their payloads."""
TRIED_MAX: Final = 16
"""Interests of somebody that are tried on them: one may take 0.1 ms for each item."""


class RecentItems:
    """The newest items of one stream at one node."""

    def __init__(self, kind: InterestKind) -> None:
        self._kind = kind
        self._items: deque[StreamItem] = deque()
        self.bytes = 0
        """Of all of them."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: StreamItem) -> None:
        """Remember one more."""
        if self._items and self._items[-1].position.epoch != item.position.epoch:
            self._items.clear()
            self.bytes = 0
        self._items.append(item)
        self.bytes += item.size
        while len(self._items) > RECENT_ITEMS_MAX or (self.bytes > RECENT_BYTES_MAX and len(self._items) > 1):
            self.bytes -= self._items.popleft().size

    def wanted_by(self, interests: Sequence[Interest]) -> ItemSet | None:
        """Which of them meet one of the first interests; ``None``: there are none yet."""
        if not self._items:
            return None
        wanted = GuardedSet(self._kind)
        for interest in interests[:TRIED_MAX]:
            wanted.add(interest)
        content = self._kind.content
        numbers = BitMap64(each.position.sequence for each in self._items if wanted.match(content(each)))
        first, last = self._items[0].position, self._items[-1].position
        return ItemSet(first.epoch, first.sequence - 1, last.sequence, numbers)
