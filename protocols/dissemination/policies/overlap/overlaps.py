"""Who wants the same as whom, as far as one node can tell: from what went by, else from the texts. Pure.

The paper's order: statistics of the items that have passed (extensional), and while these are young, a structural match
of the interests (section 3.1.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from peerd.ids import NodeId
from peerd.lib.apart import compared
from protocols.dissemination.interests.guarded import GuardedSet
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.policies.overlap.messages import WINDOW_MAX
from protocols.dissemination.ports import ChildInfo, Interest, InterestKind, ParsedItem
from protocols.dissemination.statistics.received import ItemSet, ReceivedItems, missing_share
from protocols.dissemination.tree.allowance import BYTES_A_LOOK, TRIED_COST

if TYPE_CHECKING:
    from protocols.dissemination.statistics.summary_tree import SummaryTree

STRUCTURAL_WANTS_MAX: Final = 16
"""Interests of a newcomer that are compared with a child's by their texts."""
STRUCTURAL_CHILD_MAX: Final = 64
"""Interests of a child that are compared with."""
SETTLED_S: Final = 1.0
"""What is newer may still be on its way to other nodes, so it is not compared with what they have had."""
TICKS_KEPT: Final = 16
RECALLED_S: Final = 5.0
"""Beside the window, what came in so many seconds is remembered: an item waits to be settled, then for the batch at the
producer and for the search, and must still be known where the search comes by."""
RECENT_ITEMS_MAX: Final = 128
RECENT_BYTES_MAX: Final = 1 << 20
"""Of their payloads."""
TRIED_MAX: Final = 16
"""Interests of somebody that are tried on them: one may take 0.1 ms for each item."""


class Overlaps:
    """One node's statistics of one stream. At the producer newcomers begin from the first item on: see `greet`."""

    def __init__(self, kind: InterestKind, window: int, compared: int, young: int, *, is_producer: bool) -> None:
        self.received = ReceivedItems(window)
        self._window = window
        self._kind = kind
        self._compared = compared
        self._young = young
        self._recent: RecentItems | None = None
        self._summary: SummaryTree | None = None
        if is_producer:
            self.greet()
        self._ticks: deque[tuple[float, int, int]] = deque(maxlen=TICKS_KEPT)
        """When, and how far the stream had come: epoch and number."""

    def greet(self) -> None:
        """Newcomers begin here, as at every seed: from now on items are remembered, to try their interests on."""
        if self._recent is None:
            self._recent, self._summary = RecentItems(self._kind), _summary_of(self._kind, self._window)

    def passed(self, item: ParsedItem, is_own: bool, children: Sequence[NodeId]) -> None:
        """An item has come, and has gone on."""
        self.received.passed(item.position, is_own, children)
        if self._recent is not None:
            self._recent.add(item.item)
        if self._summary is not None:
            self._summary.note(item.item)

    def tick(self, now: float) -> None:
        """Time passes."""
        received = self.received
        self._ticks.append((now, received.epoch, received.watermark))
        at, epoch, number = self._ticks[0]
        if epoch == received.epoch and now > at:
            recalled = round((received.watermark - number) / (now - at) * RECALLED_S)
            received.window = min(WINDOW_MAX, self._window + recalled)

    def settled(self, items: ItemSet, now: float) -> ItemSet:
        """The newest items that decide about a move, without those that may still be on their way to others."""
        watermark = items.since
        for at, epoch, number in self._ticks:
            if epoch == items.epoch and now - at >= SETTLED_S:
                watermark = max(watermark, number)
        return items.within(watermark - self._compared, watermark)

    # What somebody would cost

    def wanted_by(self, interests: Sequence[Interest]) -> ItemSet | None:
        """Which items a newcomer would have wanted; ``None``: the statistics are too young, or kept elsewhere."""
        for source in (self._summary, self._recent):
            found = None if source is None else source.wanted_by(interests)
            if found is not None and len(found.items) >= self._young:
                return found
        return None

    def looks(self, interests: int) -> int:
        """What it counts for to try so many interests on what is remembered: see `tree/allowance.py`."""
        recent, summary = self._recent, self._summary
        if recent is None:
            return 0
        size = recent.bytes + (0 if summary is None else summary.noted_bytes)
        return TRIED_COST * len(recent) * min(interests, TRIED_MAX) + size // BYTES_A_LOOK

    def missing(self, items: ItemSet, without: NodeId | None = None) -> float:
        """What a node that needs these would cost this node, for each item of the stream.

        ``without``: leave out what only this child needs. Where nothing can be compared, every item is counted.
        """
        return _missing(items, self.received.needed(without))

    def shared(self, items: ItemSet, without: NodeId | None = None) -> float:
        """What a child that needs these costs this node as its parent: see `ReceivedItems.shared_cost`."""
        cost = self.received.shared_cost(items, without)
        return items.share if cost is None else cost

    def missing_at(self, child: NodeId, items: ItemSet) -> float:
        """The same for a child of this node, told from what it is sent."""
        sent = self.received.sent_to(child)
        return items.share if sent is None else _missing(items, sent)

    def structural(self, wants: Sequence[Interest], child: ChildInfo) -> float:
        """How much of what a newcomer wants a child wants too, guessed from the texts: 0 to 1."""
        some, others = wants[:STRUCTURAL_WANTS_MAX], child.interests[:STRUCTURAL_CHILD_MAX]
        if not some or not others:
            return 0.0
        ask = self._kind.overlap
        return sum(max(compared(ask, want, other, 0.0) for other in others) for want in some) / len(some)


def _summary_of(kind: InterestKind, window: int) -> SummaryTree | None:
    """For streams of XML; other kinds are tried on a few recent items."""
    if kind.name != "xpath":
        return None
    from protocols.dissemination.statistics.summary_tree import SummaryTree

    return SummaryTree(window)


def _missing(items: ItemSet, had: ItemSet) -> float:
    if had.epoch == items.epoch and had.watermark < items.watermark:
        # A node that wants little hears of little: it has had everything that it wants, up to now.
        had = ItemSet(had.epoch, had.since, items.watermark, had.items, had.every)
    missing = missing_share(items, had)
    return items.share if missing is None else missing


class RecentItems:
    """A few of the newest items of one stream at one node, kept as they came, so that interests can be tried on them.

    They are parsed again for that: it is seldom, and parsed items are large (some 12 times for XML).
    """

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
