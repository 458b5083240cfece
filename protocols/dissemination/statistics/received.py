"""Which of the last items of a stream a node has had, wanted itself, and sent to each child. Pure.

Items are known by their numbers, in compressed bitmaps (CoDD section 3.1.1: "bitmaps ... of the documents that have
passed through"). Numbers are the producer's, so the bitmaps of two nodes can be compared, wherever the nodes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pyroaring import BitMap64

from peerd.ids import NodeId
from protocols.dissemination.names import StreamPosition

COMMON_ITEMS_MIN: Final = 20
"""Two sets are not compared when they have fewer items of the stream in common: chance would decide."""
SHARERS_COUNTED_MAX: Final = 4
"""Children that need an item are counted up to here; where there are more, a part is counted as so small."""
TRIM_SHARE: Final = 8
"""Bitmaps are cut when they are longer than the window by this part of it, so that cutting costs next to nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemSet:
    """Some of a stream's items: complete for those numbered from ``since + 1`` to ``watermark``.

    ``every``: a power of two; only numbers that it divides are told of.
    """

    epoch: int
    since: int
    watermark: int
    items: BitMap64
    every: int = 1

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of any item."""
        return self.watermark <= self.since

    @property
    def span(self) -> int:
        """So many of the stream's items it speaks of."""
        return max(0, self.watermark // self.every - self.since // self.every)

    @property
    def share(self) -> float:
        """The part of the stream's items that are in it."""
        return len(self.items) / self.span if self.span else 0.0

    def minus(self, other: BitMap64) -> ItemSet:
        """Leave some out."""
        return ItemSet(self.epoch, self.since, self.watermark, self.items - other, self.every)

    def within(self, since: int, watermark: int) -> ItemSet:
        """Keep only what was published in a shorter time."""
        since, watermark = max(since, self.since), min(watermark, self.watermark)
        return ItemSet(self.epoch, since, max(since, watermark), between(self.items, since, watermark), self.every)

    def sampled(self, every: int) -> ItemSet:
        """Keep only the numbers that ``every`` divides."""
        if every <= self.every:
            return self
        kept = BitMap64(number for number in self.items if number % every == 0)
        return ItemSet(self.epoch, self.since, self.watermark, kept, every)


def between(items: BitMap64, since: int, watermark: int) -> BitMap64:
    """The numbers from ``since + 1`` to ``watermark``."""
    since = max(0, since)
    if watermark <= since:
        return BitMap64()
    if not items or (items.min() > since and items.max() <= watermark):
        return items.copy()
    span = BitMap64()
    span.add_range(since + 1, watermark + 1)
    span &= items
    return span


def missing_share(wanted: ItemSet, had: ItemSet) -> float | None:
    """How many items of ``wanted`` are not in ``had``, for each item of the stream; ``None``: that cannot be known.

    This is the overhead of adding a node under another (CoDD section 4): ``|docs(n) minus docs(p)|`` over the window
    that both know, divided by its length so that windows of different length can be compared.
    """
    if wanted.epoch != had.epoch:
        return None
    since, watermark = max(wanted.since, had.since), min(wanted.watermark, had.watermark)
    if watermark - since < COMMON_ITEMS_MIN:
        return None
    every = max(wanted.every, had.every)
    one, other = wanted.sampled(every).within(since, watermark), had.sampled(every)
    return one.items.difference_cardinality(other.items) / one.span if one.span else None


@dataclass(slots=True)
class _Sent:
    since: int
    items: BitMap64 = field(default_factory=BitMap64)


class ReceivedItems:
    """The last ``window`` items of one stream, as one node has seen them."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.epoch = 0
        self.since = 0
        """What came up to here is forgotten, or came before this node."""
        self.watermark = 0
        self.had = BitMap64()
        self.own = BitMap64()
        self._sent: dict[NodeId, _Sent] = {}

    def passed(self, position: StreamPosition, is_own: bool, children: Sequence[NodeId]) -> None:
        """An item has come, and has gone on to some children."""
        number = position.sequence
        if position.epoch != self.epoch:
            self._restart(position)
        elif number <= self.since:
            return
        self.had.add(number)
        if is_own:
            self.own.add(number)
        sent = self._sent
        for child in children:
            if child in sent:
                sent[child].items.add(number)
        if number > self.watermark:
            self.watermark = number
            if number - self.since > self.window + self.window // TRIM_SHARE:
                self._trim()

    def _restart(self, position: StreamPosition) -> None:
        """The producer counts from the beginning again, or this is the first item here."""
        self.epoch = position.epoch
        self.since = self.watermark = position.sequence - 1
        self.had.clear()
        self.own.clear()
        for sent in self._sent.values():
            sent.since = self.since
            sent.items.clear()

    def _trim(self) -> None:
        self.since = self.watermark - self.window
        for items in (self.had, self.own, *(sent.items for sent in self._sent.values())):
            items.remove_range(0, self.since + 1)
        for sent in self._sent.values():
            sent.since = max(sent.since, self.since)

    # Children

    def child_came(self, child: NodeId) -> None:
        """Count what is sent to a child from now on."""
        self._sent[child] = _Sent(self.watermark)

    def child_went(self, child: NodeId) -> None:
        """Forget what was sent to a child: it is not needed here any more."""
        self._sent.pop(child, None)

    def child_told(self, child: NodeId, needed: ItemSet) -> bool:
        """A child says what it has needed, also before it came here. Whether that changes what this node knows.

        What comes later than its answer is counted here.
        """
        sent = self._sent.get(child)
        if sent is None or needed.epoch != self.epoch or needed.every != 1:
            return False
        floor = self.watermark - self.window
        told = between(needed.items, floor, min(needed.watermark, self.watermark))
        told |= between(sent.items, needed.watermark, self.watermark)
        is_new = told != sent.items
        sent.since, sent.items = max(needed.since, floor), told
        return is_new

    # What is asked

    def sent_to(self, child: NodeId) -> ItemSet | None:
        """What a child has needed; ``None``: it is no child."""
        sent = self._sent.get(child)
        return None if sent is None else ItemSet(self.epoch, sent.since, self.watermark, sent.items)

    def needed(self, without: NodeId | None = None) -> ItemSet:
        """What this node has needed for itself and its present children, or for those but one."""
        parts = [sent.items for child, sent in self._sent.items() if child != without]
        return ItemSet(self.epoch, self.since, self.watermark, self.own.union(*parts) if parts else self.own.copy())

    def shared_cost(self, items: ItemSet, without: NodeId | None = None) -> float | None:
        """What a child that needs these costs this node as its parent, for each item of the stream; ``None``: unknown.

        Items that this node wants itself cost nothing; others are paid for by all children that need them, in equal
        parts. ``without``: the child itself, where it is one already.
        """
        own = ItemSet(self.epoch, self.since, max(self.watermark, items.watermark), self.own)
        if self.epoch != items.epoch or own.watermark - max(items.since, own.since) < COMMON_ITEMS_MIN:
            return None
        kept = items.within(own.since, own.watermark)
        at_least = [kept.items - self.own, *(BitMap64() for _ in range(SHARERS_COUNTED_MAX))]
        for child, sent in self._sent.items():
            if child != without:
                for count in range(SHARERS_COUNTED_MAX, 0, -1):
                    at_least[count] |= at_least[count - 1] & sent.items
        cost = 0.0
        for others, (these, more) in enumerate(zip(at_least, [*at_least[1:], BitMap64()], strict=True)):
            cost += (len(these) - len(more)) / (others + 1)
        return min(1.0, cost / kept.span) if kept.span else None

    def spurious_share(self, last: int) -> float:
        """The part of what this node had of the last so many items of the stream that it did not want itself."""
        since = max(self.since, self.watermark - last)
        had = self.had.range_cardinality(since + 1, self.watermark + 1)
        own = self.own.range_cardinality(since + 1, self.watermark + 1)
        return 1 - own / had if had else 0.0
