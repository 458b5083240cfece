"""A subscription of this node, and what it is given. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from peerd.frozen import Frozen
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.ports import Interest, LastSent, ParsedItem
from protocols.dissemination.tree.past import SLICE_BYTES, StreamPast


class Lost(Frozen):
    """What a subscription did not get, wholly or in part: what came after ``since``, up to ``until``."""

    since: StreamPosition
    until: StreamPosition


class StaleFrom(Frozen):
    """Nobody vouches for what a subscription was given, until items come again. ``at``: how far the stream was then."""

    at: StreamPosition


class FreshAgain(Frozen):
    """Somebody vouches again for what a subscription is given from here on. ``at``: how far the stream is."""

    at: StreamPosition


class Unmatchable(Frozen):
    """What a subscription wants cannot be matched: it ends. ``at``: how far it had come; ``None``: it had not begun."""

    at: StreamPosition | None
    why: str


Delivered = ParsedItem | Lost | StaleFrom | FreshAgain | Unmatchable


@dataclass(eq=False, slots=True)
class OwnSubscription:
    """A subscription of this node. ``deliver`` is called in order, each item once."""

    number: int
    interest: Interest
    deliver: Callable[[Delivered], None]
    after: StreamPosition | None
    on_live: Callable[[], None]
    watermark: StreamPosition | None = None
    """It has been given everything up to here; ``None``: it has not begun."""
    last_sent: LastSent | None = None
    """What it was last given of each object, where the kind of interests goes by that."""
    is_stale: bool = False
    """It was told that nobody vouches for that."""

    has_failed: bool = False
    """It is given nothing any more, and is to be ended."""

    waiting: deque[StreamPast | Lost] = field(default_factory=deque)
    """What it is to be given still: the past, and what has come while that was looked through."""
    waiting_bytes: int = 0
    """Of items that have come meanwhile."""
    waiting_max: int = 0

    @property
    def may_look_on(self) -> bool:
        """Whether there is something that it is to be given still, and that is not being looked at aside."""
        first = self.waiting[0] if self.waiting else None
        return first is not None and not (isinstance(first, StreamPast) and first.is_busy)

    def begin_with(self, past: StreamPast, waiting_max: int) -> None:
        """Give it the past first, by `look_on`. ``waiting_max``: so many bytes of items may wait meanwhile."""
        self.waiting.append(past)
        self.waiting_max = waiting_max

    def look_on(self, bytes_max: int) -> None:
        """Give it what is found in so many bytes of the past."""
        while self.waiting:
            first = self.waiting[0]
            if isinstance(first, Lost):
                self.waiting.popleft()
                self._lose(first.since, first.until)
                continue
            for parsed in first.look(bytes_max):
                if first.why_failed:
                    self.fail(first.why_failed)
                    return
                self._give(parsed)
            if not first.is_over or not self.waiting or self.waiting[0] is not first:
                return
            self.waiting.popleft()
        self.waiting_bytes = 0

    def fail(self, why: str) -> None:
        """What it wants cannot be matched: it is told so, once, and given nothing any more."""
        if not self.has_failed:
            self.has_failed = True
            self.waiting.clear()
            self.deliver(Unmatchable(self.watermark, why))

    def finish(self, watermark: StreamPosition) -> None:
        """The stream ends at a mark: what cannot be given any more is lost."""
        while self.may_look_on:
            self.look_on(SLICE_BYTES)
        if self.waiting:
            self.waiting.clear()
            self._lose(self.watermark or START, watermark)

    def give(self, parsed: ParsedItem) -> None:
        """Give it an item, unless it has got that already, in its turn.

        What has to wait is parsed again then, because parsed it is large.
        """
        if self.has_failed:
            return
        if not self.waiting:
            self._give(parsed)
            return
        self.waiting_bytes += parsed.item.size
        last = self.waiting[-1]
        if self.waiting_bytes > self.waiting_max:
            self.waiting_bytes = 0
            self.waiting.clear()
            self._lose(self.watermark or START, parsed.position)
        elif isinstance(last, StreamPast):
            last.add(parsed.item)

    def _give(self, parsed: ParsedItem) -> None:
        if self.watermark is not None and parsed.position > self.watermark:
            self.watermark = parsed.position
            self.deliver(parsed)

    def fall_back(self, watermark: StreamPosition) -> None:
        """The stream is only so far. What this was given, or told to be lost, after that was not of it."""
        if self.watermark is not None:
            self.watermark = min(self.watermark, watermark)
            self.waiting = deque(
                each for each in self.waiting if isinstance(each, StreamPast) or each.until <= watermark
            )
            for each in self.waiting:
                if isinstance(each, StreamPast):
                    each.cut(watermark)

    def lose(self, since: StreamPosition, until: StreamPosition) -> None:
        """Tell it of a loss, as far as that is one for it."""
        if self.has_failed:
            return
        if self.waiting:
            past = next(each for each in self.waiting if isinstance(each, StreamPast))
            self.waiting += [Lost(since, until), past.another()]
        else:
            self._lose(since, until)

    def _lose(self, since: StreamPosition, until: StreamPosition) -> None:
        if self.watermark is not None and until > self.watermark:
            lost = Lost(max(since, self.watermark), until)
            self.watermark = until
            self.deliver(lost)
