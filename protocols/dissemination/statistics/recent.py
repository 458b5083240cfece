"""A few of the newest items, kept as they are, so that somebody's interests can be tried on them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pyroaring import BitMap64

from protocols.dissemination.ports import Interest, InterestKind, ParsedItem
from protocols.dissemination.statistics.received import ItemSet

RECENT_ITEMS_MAX: Final = 128
RECENT_BYTES_MAX: Final = 1 << 20
"""Of their payloads."""


class RecentItems:
    """The newest items of one stream at one node."""

    def __init__(self, kind: InterestKind) -> None:
        self._kind = kind
        self._items: deque[ParsedItem] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: ParsedItem) -> None:
        """Remember one more."""
        if self._items and self._items[-1].position.epoch != item.position.epoch:
            self._items.clear()
            self._bytes = 0
        self._items.append(item)
        self._bytes += item.item.size
        while len(self._items) > RECENT_ITEMS_MAX or (self._bytes > RECENT_BYTES_MAX and len(self._items) > 1):
            self._bytes -= self._items.popleft().item.size

    def wanted_by(self, interests: Sequence[Interest]) -> ItemSet | None:
        """Which of them meet one of the interests; ``None``: there are none yet."""
        if not self._items:
            return None
        wanted = self._kind.make_set()
        for interest in interests:
            wanted.add(interest)
        numbers = BitMap64(each.position.sequence for each in self._items if wanted.match(each.content))
        first, last = self._items[0].position, self._items[-1].position
        return ItemSet(first.epoch, first.sequence - 1, last.sequence, numbers)
