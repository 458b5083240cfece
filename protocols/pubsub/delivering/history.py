"""Events that leaves of this node have seen lately, for `explain` and SINCE; and the last value of each key. Pure.

It is memory only: a leaf that moves to another node starts with what that node has seen. Bounded by bytes and age.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from peerd.api import HistorySize
from peerd.frozen import Frozen
from peerd.ids import NodeId
from protocols.pubsub.messages import EventBody
from protocols.pubsub.names import EventId

ENTRY_BYTES: Final = 900
"""What remembering one event takes besides its own bytes, measured."""
AHEAD_MAX_S: Final = 60.0
"""Clocks of nodes may differ so much. A retained value whose publisher gives a later time counts as from then: else it
could never be replaced."""

SCHEMAS_MAX: Final = 256
"""Schemas of which it is known how far back their events are remembered; of the others it is the same for all."""

_Rank: TypeAlias = tuple[float, int, int, int]
_Key: TypeAlias = tuple[str, bytes]


class Past(Frozen):
    """An event that was seen."""

    schema: str
    id: EventId
    event: EventBody
    seen_at: float
    size: int
    wall_s: float
    """What time it was then."""

    @property
    def rank(self) -> _Rank:
        """Which of two values of a key is the later one: the same on all nodes, but for times that cannot be."""
        event = self.event
        published_ms = min(event.published_ms, 1000 * (self.wall_s + AHEAD_MAX_S))
        return published_ms, event.epoch, event.sequence, event.publisher.id


class _Publishers:
    """Whose the retained values are: those of whoever has most go first, so that a flood pushes out its own only."""

    def __init__(self) -> None:
        self._sizes: dict[NodeId, dict[_Key, int]] = {}
        """Of each one's values, oldest first."""
        self._bytes: dict[NodeId, int] = {}
        self._classes: dict[int, dict[NodeId, None]] = {}
        """Publishers by the binary logarithm of their bytes: to find one of those who have most takes no search."""

    def put(self, publisher: NodeId, key: _Key, size: int) -> None:
        """It has this value, too; ``size`` 0: not any more."""
        values = self._sizes.setdefault(publisher, {})
        before = self._bytes.get(publisher, 0)
        after = before - values.pop(key, 0) + size
        if size:
            values[key] = size
        if before.bit_length() != after.bit_length():
            self._leave(publisher, before)
            self._classes.setdefault(after.bit_length(), {})[publisher] = None
        self._bytes[publisher] = after
        if not values:
            self._leave(publisher, after)
            del self._sizes[publisher], self._bytes[publisher]

    def _leave(self, publisher: NodeId, size: int) -> None:
        some = self._classes.get(size.bit_length(), {})
        some.pop(publisher, None)
        if not some:
            self._classes.pop(size.bit_length(), None)

    def next_to_go(self) -> _Key:
        """The oldest value of a publisher that has more than half as much as any other."""
        return next(iter(self._sizes[next(iter(self._classes[max(self._classes)]))]))


class EventHistory:
    """Recent events in the order in which they came, and retained ones by key.

    Half of the bytes is for each of the two: values that change often must not push out those that never do. Where
    there are too many values, the oldest one goes of a publisher that has most.
    """

    def __init__(self, bytes_max: int, age_s: float) -> None:
        self._bytes_max = bytes_max // 2
        self._age_s = age_s
        self.size = 0
        self.retained_size = 0
        self._by_number: dict[int, Past] = {}
        self._numbers: dict[EventId, int] = {}
        self._retained: dict[_Key, Past] = {}
        self._publishers = _Publishers()
        self._first = self._next = 0
        """The number of the oldest event, and the next one's."""
        self._forgotten_ms: dict[str, int] = {}
        """By schema, when the newest event that is forgotten was published."""
        self._rest_ms = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, schema: str, event_id: EventId, event: EventBody, size: int, now: float, wall_s: float) -> None:
        """Remember an event of this size that this node has not seen before. ``wall_s``: what time it is."""
        if event_id in self._numbers:
            return
        past = Past(schema, event_id, event, now, size + ENTRY_BYTES, wall_s)
        self._numbers[event_id] = self._next
        self._by_number[self._next] = past
        self._next += 1
        self.size += past.size
        self.forget_old(now)
        if event.retain:
            self._retain(past)

    def _retain(self, past: Past) -> None:
        key = past.schema, past.event.retain
        before = self._retained.get(key)
        if before is not None and before.rank > past.rank:
            return
        if before is not None:
            self._let_go(key)  # so that the newest are last
        self._retained[key] = past
        self._publishers.put(past.event.publisher.id, key, past.size)
        self.retained_size += past.size
        while self.retained_size > self._bytes_max:
            self._let_go(self._publishers.next_to_go())

    def _let_go(self, key: _Key) -> None:
        past = self._retained.pop(key)
        self._publishers.put(past.event.publisher.id, key, 0)
        self.retained_size -= past.size

    def history(self) -> HistorySize:
        """What is remembered of them."""
        entries, size = len(self._by_number) + len(self._retained), self.size + self.retained_size
        return HistorySize("events of the past", entries, size, 2 * self._bytes_max)

    def forget_old(self, now: float) -> None:
        """Forget what is too old or too much."""
        while self._first < self._next:  # by number: the first key of a dictionary lies behind all deleted ones
            past = self._by_number[self._first]
            if self.size <= self._bytes_max and now - past.seen_at <= self._age_s:
                return
            del self._by_number[self._first], self._numbers[past.id]
            self._first += 1
            self.size -= past.size
            if len(self._forgotten_ms) >= SCHEMAS_MAX and past.schema not in self._forgotten_ms:
                self._rest_ms = max(self._rest_ms, self._forgotten_ms.pop(next(iter(self._forgotten_ms))))
            self._forgotten_ms[past.schema] = max(self.forgotten_ms(past.schema), round(past.rank[0]))

    def forgotten_ms(self, schema: str) -> int:
        """When the newest of a schema's events was published that were remembered and are not any more."""
        return self._forgotten_ms.get(schema, self._rest_ms)

    def find(self, event_id: EventId) -> Past | None:
        """An event by its name, while it is remembered."""
        return self._by_number.get(self._numbers.get(event_id, -1))

    def retained(self, schema: str) -> Iterator[Past]:
        """The last value of each key, longest unchanged first."""
        return (past for (name, _), past in self._retained.items() if name == schema)

    # Reading on, in steps

    @property
    def bounds(self) -> tuple[int, int]:
        """The number of the oldest event that is remembered, and the one that the next event will get."""
        return self._first, self._next

    def get(self, number: int) -> Past | None:
        """An event by its number, while it is remembered."""
        return self._by_number.get(number)
