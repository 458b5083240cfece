"""What a node remembers of a stream, so that others can join, move or come back without losing anything. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, cast

from peerd.frozen import Frozen
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import START, StreamPosition

TRIM_AFTER: Final = 1024
"""So many forgotten entries are taken out of the lists at once, so that each costs next to nothing."""


class BufferLimits(Frozen):
    """How much is remembered: the first limit that is reached counts."""

    items: int
    bytes: int
    seconds: float


ENTRY_BYTES: Final = 400
"""What remembering an item takes besides what it counts for, measured."""


class ReplayBuffer:
    """Items of one stream in order, the newest ones, as they came: their bytes.

    They are not kept parsed: that would take some 12 times the memory for XML, and more processor time for each item,
    because what is let go of late is not in the processor's cache any more. Who asks for the past has it parsed again.

    ``floor``: every item that this node has had after it is in here.
    """

    def __init__(self, limits: BufferLimits, floor: StreamPosition = START) -> None:
        self.limits = limits
        self.floor = floor
        self.bytes = 0
        self._positions: list[StreamPosition] = []
        self._items: list[StreamItem] = []
        self._at_s: list[float] = []
        self._added: StreamItem | None = None
        """The item that was added last. What is done with an item when it comes is over when the next one does."""
        self._begin = 0

    def __len__(self) -> int:
        return len(self._items) - self._begin

    @property
    def last(self) -> StreamPosition:
        """The newest item's place, or the floor when there is none."""
        return self._positions[-1] if len(self) else self.floor

    def add(self, item: StreamItem, now: float) -> bool:
        """Remember an item; whether it is new. One that comes late is put in its place."""
        position = item.position
        if position <= self.floor:
            return False
        if position > self.last:
            at = len(self._positions)
        else:
            at = bisect_right(self._positions, position, self._begin)
            if at > self._begin and self._positions[at - 1] == position:
                return False
        if self._added is not None:
            self._added.rest()
        self._added = item
        self._positions.insert(at, position)
        self._items.insert(at, item)
        self._at_s.insert(at, now)
        self.bytes += item.size
        self.trim(now)
        return True

    def after(self, mark: StreamPosition) -> Sequence[StreamItem]:
        """What stands behind a mark now, in order."""
        return self._items[bisect_right(self._positions, mark, self._begin) :]

    def bytes_after(self, mark: StreamPosition) -> int:
        """What stands behind a mark, as if all items had the same size: so it takes no time to ask."""
        behind = len(self._items) - bisect_right(self._positions, mark, self._begin)
        return self.bytes * behind // len(self) if behind else 0

    def trim(self, now: float) -> None:
        """Forget what is above the limits."""
        limits = self.limits
        while len(self) and (
            len(self) > limits.items or self.bytes > limits.bytes or now - self._at_s[self._begin] > limits.seconds
        ):
            self.floor = self._positions[self._begin]
            self._let_go()
        if self._begin >= TRIM_AFTER or self._begin == len(self._items):
            del self._positions[: self._begin], self._items[: self._begin], self._at_s[: self._begin]
            self._begin = 0

    def _let_go(self) -> None:
        """Forget the oldest item. Its place in the lists is left for later, but nothing holds the item any more."""
        self.bytes -= self._items[self._begin].size
        self._items[self._begin] = cast(StreamItem, None)
        self._begin += 1

    def forget(self, watermark: StreamPosition) -> None:
        """Forget everything up to a mark: it is not complete there."""
        while len(self) and self._positions[self._begin] <= watermark:
            self._let_go()
        self.floor = max(self.floor, watermark)

    def clear(self, floor: StreamPosition) -> None:
        """Forget everything, and begin anew at a mark."""
        self._positions, self._items, self._at_s = [], [], []
        self._begin = self.bytes = 0
        self.floor = floor

    def validate(self) -> None:
        """Assert the invariants."""
        kept = self._positions[self._begin :]
        assert kept == sorted(set(kept)), "in order, each once"
        assert not kept or kept[0] > self.floor
        assert self.bytes == sum(item.size for item in self._items[self._begin :])
        assert len(self) <= self.limits.items
