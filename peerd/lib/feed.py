"""A feed: numbered items for readers that may be slow, may hang up, and may come back.

A producer pushes; each reader takes at its own pace. The feed holds the newest items within two bounds, so that a
reader that was away goes on where it stopped as long as those items are still held. What a reader misses is never
silent: in their place it finds a mark that says which numbers are gone and why.

The numbers of a feed begin at 1 and have no holes. They mean something only together with the feed's *epoch*, a text
that is never used again: after a restart a reader's old position has another epoch, and is answered with a gap instead
of the wrong items. Everything here is synchronous; who waits for items is told by a callback.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from peerd.errors import Bug, Unavailable
from peerd.frozen import Frozen
from peerd.limits import MIB

ITEMS_MAX: Final = 1000
BYTES_MAX: Final = MIB
READERS_MAX: Final = 32
"""A feed has at most this many readers at a time, unless it is made with another number."""
EPOCH_LENGTH_MAX: Final = 64
POSITION_LENGTH_MAX: Final = EPOCH_LENGTH_MAX + 20
"""The length of a position's text: an epoch, a dash, and the digits of a number."""
TOO_SLOW: Final = "too slow"
"""The reason that a reader with `Policy.DISCONNECT` gets when it is ended."""

_EPOCH: Final = re.compile(rf"[A-Za-z0-9.]{{1,{EPOCH_LENGTH_MAX}}}")
_POSITION: Final = re.compile(rf"({_EPOCH.pattern})-([0-9]{{1,18}})")

T = TypeVar("T")


class Policy(StrEnum):
    """What happens when the feed is full and a reader has not taken the oldest item yet."""

    BLOCK = "block"
    """The producer may not push until the reader has taken the oldest item."""
    DROP_OLDEST = "drop_oldest"
    """The reader loses the oldest item, and finds a `FeedDropped` mark in its place."""
    DISCONNECT = "disconnect"
    """The reader is ended; it may come back and resume."""


class Position(Frozen):
    """How far a reader has come: up to and including ``number``. Clients keep its text, and send it back to resume."""

    epoch: str
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read a position from its text. Raises ``ValueError``."""
        found = _POSITION.fullmatch(text)
        if found is None:
            raise ValueError("expected the id of an item of this stream, such as 5f3a-12")
        return cls(found[1], int(found[2]))


Place = Position | Literal["start", "now"]
"""Where a reader begins: after a position, with the oldest item that is held, or with the next one that is pushed."""


@dataclass(frozen=True, slots=True)
class FeedItem(Generic[T]):
    """One item of the feed, with its number."""

    number: int
    value: T


class FeedGap(Frozen):
    """A mark: the place where the reader wanted to resume is not held any more, and it goes on behind the gap.

    ``reason`` is ``expired`` (the numbers ``first`` to ``last`` were let go) or ``restarted`` (the position belongs to
    an earlier epoch; how many items are lost is unknown, so the three numbers are ``None``).
    """

    number: int
    """The number to resume from after this mark."""
    reason: Literal["expired", "restarted"]
    first: int | None
    last: int | None
    count: int | None


class FeedLoss(Frozen):
    """What stands in a feed in the place of items that were lost before they came to it; see `Feed.push`.

    ``by``: who says so, empty for the producer itself.
    """

    count: int
    reason: str
    by: str = ""


class FeedDropped(Frozen):
    """A mark: items are missing here. Without ``loss`` the reader was too slow, and ``first`` to ``last`` were let go
    before it took them, or their store has lost them; with it they were lost before they had numbers."""

    first: int
    last: int
    loss: FeedLoss | None = None

    @property
    def number(self) -> int:
        """The number to resume from after this mark."""
        return self.last

    @property
    def count(self) -> int:
        """How many items are missing."""
        return self.last - self.first + 1 if self.loss is None else self.loss.count


class FeedEnd(Frozen):
    """A mark: nothing follows for this reader. ``is_final``: coming back is of no use either."""

    number: int
    reason: str
    is_final: bool


Entry = FeedItem[T] | FeedGap | FeedDropped | FeedEnd


class ItemStore(Protocol[T]):
    """Where the items of a feed are, by number; a ``dict`` is one. Others may keep them on disk."""

    def __getitem__(self, number: int, /) -> T | FeedLoss: ...
    def __setitem__(self, number: int, value: T | FeedLoss, /) -> None: ...
    def __delitem__(self, number: int, /) -> None: ...


class Feed(Generic[T]):
    """The producer's side of a feed. It holds at most ``items_max`` items and ``bytes_max`` bytes, whoever reads.

    ``epoch``: letters, digits and dots, never used before for another feed that the same clients may read; a plugin
    gets one from ``host.new_epoch()``. ``last``: the number before the first item that will be pushed; only a producer
    that keeps its items (and its epoch) across restarts gives it. Such a producer also gives the ``store`` that they
    are on, and the sizes of those that are ``held`` there, whose numbers end with ``last``; where a number is missing
    among them, readers find a `FeedDropped` mark. ``taken``: the items are kept for a reader who may be away, and has
    had those up to this number; what is let go before it was taken is dropped then, whoever reads, and who begins at
    the start finds a `FeedDropped` in its place. ``on_writable`` is called when `may_push` has said no and would now
    say yes to the same question; the callback itself may push.
    """

    def __init__(
        self,
        epoch: str,
        *,
        items_max: int = ITEMS_MAX,
        bytes_max: int = BYTES_MAX,
        readers_max: int = READERS_MAX,
        last: int = 0,
        store: ItemStore[T] | None = None,
        held: Mapping[int, int] | None = None,
        taken: int | None = None,
        on_writable: Callable[[], None] | None = None,
    ) -> None:
        if _EPOCH.fullmatch(epoch) is None or items_max < 1 or last < 0:
            raise Bug(f"no feed can be made of epoch {epoch!r}, items_max {items_max}, last {last}")
        self.epoch = epoch
        self.items_max, self.bytes_max, self.readers_max = items_max, bytes_max, readers_max
        self.last = last
        """The newest number given so far."""
        self._held: OrderedDict[int, int] = OrderedDict(held or {})
        """The sizes of the items that are held, by number. The first of a plain dictionary would lie behind the places
        of all that were let go."""
        self._store: ItemStore[T] = {} if store is None else store
        self.first = min(self._held, default=last + 1)
        """The oldest number that is held; ``last + 1`` when nothing is."""
        self.held_bytes = sum(self._held.values())
        self.dropped = 0
        """How many items were let go before a reader, who was there at the time or is expected, had taken them."""
        self.taken = min(taken or 0, last)
        """The largest number of an item that a reader has taken."""
        self.ended: FeedEnd | None = None
        self._is_for_absent = taken is not None
        self._readers: dict[Reader[T], None] = {}
        self._on_writable = on_writable
        self._refused_bytes: int | None = None
        self._had = self.first
        """All readers that there were when `forget_taken` was called last had taken what is older."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def position(self) -> Position:
        """Return the position of a reader that has read everything."""
        return Position(self.epoch, self.last)

    def held(self, number: int) -> T | None:
        """Return an item that is held still."""
        value = self._store[number] if number in self._held else None
        return None if isinstance(value, FeedLoss) else value

    @property
    def readers(self) -> int:
        """Return how many readers there are now."""
        return len(self._readers)

    def may_push(self, size_bytes: int = 0) -> bool:
        """Whether an item of this size may be pushed now. If a blocking reader forbids it, ``on_writable`` follows."""
        if self._may_let_go(self._first_kept(size_bytes)):
            return True
        self._refused_bytes = size_bytes
        return False

    def push(self, value: T | FeedLoss, size_bytes: int = 0) -> int:
        """Add an item, let go of the oldest ones as the bounds demand, wake the readers; returns its number.

        In the place of a `FeedLoss`, which is for items that were lost before they came here, readers find a
        `FeedDropped`. Raises `Unavailable` when a reader blocks (ask `may_push` first). Raises `Bug` for an item larger
        than the whole feed, and after `end`.
        """
        if self.ended is not None or not 0 <= size_bytes <= self.bytes_max:
            raise Bug(f"an item of {size_bytes} bytes for a feed that is over or holds {self.bytes_max} bytes at most")
        first_kept = self._first_kept(size_bytes)
        if not self._may_let_go(first_kept):
            raise Unavailable("the feed is full, and one of its readers has to take an item first")
        self._let_go(first_kept)
        self.last += 1
        self._store[self.last] = value
        self._held[self.last] = size_bytes
        self.held_bytes += size_bytes
        self._wake_readers()
        return self.last

    def skip(self, count: int) -> None:
        """Leave out the next numbers: so many items were lost before they came here. Readers find a `FeedDropped`."""
        if count < 0:
            raise Bug(f"{count} items cannot be left out")
        if count and self.ended is None:
            self.last += count
            self._wake_readers()

    def expire(self, watermark: int) -> None:
        """Let go of the items up to this number, because they are too old, whoever has not taken them yet."""
        self._let_go(min(watermark, self.last) + 1)
        self._reader_moved()

    def forget_taken(self) -> None:
        """Let go of what all readers that there are had taken when this was called last.

        Called now and then it bounds the memory of readers that keep up: what they had is held for those that come back
        soon, between one and two times as long as passes between two calls.
        """
        had, self._had = self._had, min((each._wanted for each in self._readers), default=self.first)
        self._let_go(min(had, self._had))

    def end(self, reason: str, *, is_final: bool = False) -> None:
        """End the feed: each reader takes what is left, and then a `FeedEnd`. Repeating it is harmless.

        ``is_final`` says that coming back is of no use: the work is finished. Otherwise (the plugin was restarted, the
        node drains) another feed may follow under the same name.
        """
        if self.ended is None:
            self.ended = FeedEnd(self.last, reason, is_final)
            self._wake_readers()

    def reader(
        self, place: Place = "now", policy: Policy = Policy.DROP_OLDEST, on_ready: Callable[[], None] | None = None
    ) -> Reader[T]:
        """Begin to read. ``on_ready`` is called, from `push` and `end`, when there may be something to take.

        Raises `Unavailable` when there are ``readers_max`` already.
        """
        if len(self._readers) >= self.readers_max:
            raise Unavailable(f"this stream has {self.readers_max} readers already; try again when one has left")
        wanted, gap = self._begin(place)
        reader = Reader(self, wanted, gap, policy, on_ready)
        self._readers[reader] = None
        return reader

    # Inside

    def _begin(self, place: Place) -> tuple[int, FeedGap | None]:
        """Return the first number to read, and the mark that has to come before it."""
        if place == "now":
            return self.last + 1, None
        if place == "start":
            return min(self.first, self.taken + 1) if self._is_for_absent else self.first, None
        # The epoch is right, but the number was never given: the client has mixed positions up.
        if place.epoch != self.epoch or place.number > self.last:
            return self.first, FeedGap(self.first - 1, "restarted", None, None, None)
        self.taken = max(self.taken, place.number)  # who asks for what is behind it has had it
        lost = self.first - 1 - place.number
        if lost > 0:
            return self.first, FeedGap(self.first - 1, "expired", place.number + 1, self.first - 1, lost)
        return place.number + 1, None

    def _first_kept(self, size_bytes: int) -> int:
        """Return the oldest number that may stay when an item of this size comes."""
        first, count, held_bytes = self.first, len(self._held), self.held_bytes
        if count < self.items_max and held_bytes + size_bytes <= self.bytes_max:
            return first
        for number, held_size in self._held.items():  # oldest first; numbers may be missing
            if count < self.items_max and held_bytes + size_bytes <= self.bytes_max:
                break
            first, count, held_bytes = number + 1, count - 1, held_bytes - held_size
        return first

    def _may_let_go(self, first_kept: int) -> bool:
        """Whether every blocking reader has taken all that is older than ``first_kept``."""
        if first_kept <= self.first:
            return True
        for reader in self._readers:
            # What has expired was let go whoever wanted it, and is not waited for any more.
            if reader.policy is Policy.BLOCK and max(reader._wanted, self.first) < first_kept:
                return False
        return True

    def _let_go(self, first_kept: int) -> None:
        if first_kept <= self.first:
            return
        held, taken = self._held, self.taken + 1 if self._is_for_absent else first_kept
        if self._readers:
            taken = min(each._wanted for each in self._readers)
        while held and (number := next(iter(held))) < first_kept:
            self.dropped += number >= taken
            self.held_bytes -= held.pop(number)
            del self._store[number]
        self.first = first_kept
        if taken < first_kept:
            for reader in list(self._readers):
                if reader.policy is Policy.DISCONNECT and reader._wanted < first_kept:
                    reader._cut()

    def _wake_readers(self) -> None:
        for reader in list(self._readers):
            reader._wake()

    def _reader_moved(self) -> None:
        if self._refused_bytes is None or self._on_writable is None:
            return
        if not self._may_let_go(self._first_kept(self._refused_bytes)):
            return
        # The refused size is cleared before the callback, which may ask `may_push` again and be refused again.
        self._refused_bytes = None
        self._on_writable()

    def _forget(self, reader: Reader[Any]) -> None:
        self._readers.pop(reader, None)


class Reader(Generic[T]):
    """One reader's side of a feed, made by `Feed.reader`. Call `close` to stop reading: a reader can block pushes."""

    def __init__(
        self, feed: Feed[T], wanted: int, gap: FeedGap | None, policy: Policy, on_ready: Callable[[], None] | None
    ) -> None:
        self.feed = feed
        self.policy = policy
        self.is_over = False
        """Whether a `FeedEnd` was taken, or the reader was closed."""
        self._wanted = wanted
        self._gap = gap
        self._on_ready = on_ready
        self._end: FeedEnd | None = None

    @property
    def position(self) -> Position | None:
        """Return where to resume after what was taken so far; ``None`` while a `FeedGap` waits to be taken."""
        return None if self._gap is not None else Position(self.feed.epoch, self._wanted - 1)

    @property
    def was_cut(self) -> bool:
        """Whether the reader was ended because it was too slow under `Policy.DISCONNECT`."""
        return self._end is not None

    def take(self) -> Entry[T] | None:
        """Take the next item or mark; ``None`` when there is nothing yet, and for ever after a `FeedEnd`."""
        if self.is_over:
            return None
        entry = self._next()
        if isinstance(entry, FeedEnd):
            self.close()
        elif isinstance(entry, FeedItem) or (isinstance(entry, FeedDropped) and entry.loss is not None):
            self.feed.taken = max(self.feed.taken, entry.number)
            self.feed._reader_moved()  # a producer may have waited for this item to be taken
        return entry

    def close(self) -> None:
        """Stop reading. Repeating it is harmless."""
        self.is_over = True
        self.feed._forget(self)
        self.feed._reader_moved()

    def _next(self) -> Entry[T] | None:
        if self._gap is not None:
            gap, self._gap = self._gap, None
            return gap
        if self._end is not None:
            return self._end
        feed = self.feed
        if self._wanted < feed.first:
            dropped = FeedDropped(self._wanted, feed.first - 1)
            self._wanted = feed.first
            return dropped
        if self._wanted <= feed.last:
            if self._wanted not in feed._held:
                return self._skipped()
            number, value = self._wanted, feed._store[self._wanted]
            self._wanted += 1
            return FeedDropped(number, number, value) if isinstance(value, FeedLoss) else FeedItem(number, value)
        return feed.ended

    def _skipped(self) -> FeedDropped:
        """Return the mark in the place of items that the store has lost."""
        first = self._wanted
        self._wanted = next((number for number in self.feed._held if number > first), self.feed.last + 1)
        return FeedDropped(first, self._wanted - 1)

    def _cut(self) -> None:
        """End the reader where it is. When the client comes back, a `FeedGap` tells it what it has missed."""
        self._end = FeedEnd(self._wanted - 1, TOO_SLOW, is_final=False)
        self.feed._forget(self)
        self._wake()

    def _wake(self) -> None:
        if self._on_ready is not None:
            self._on_ready()
