"""What a node remembers, on its way to one who has asked for it: looked through a slice at a time. Pure.

What is remembered may be 16 MiB of XML, and has to be parsed again, which takes the better part of a second. Nobody
else is to wait for so long, so who looks through it does so in turns, and keeps here how far it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from peerd.errors import Bug
from peerd.limits import KIB
from protocols.dissemination.interests.errors import ItemError
from protocols.dissemination.interests.guarded import GuardedSet
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.ports import InterestKind, ParsedItem
from protocols.dissemination.tree.matching import ASIDE_BYTES, Offload, look_aside, read_item

SLICE_BYTES: Final = 256 * KIB
"""So much is looked through in one turn: some 10 ms of XML of small items."""


class StreamPast:
    """Items of one stream in order, of which those go out that meet some interests."""

    def __init__(
        self,
        kind: InterestKind,
        offload: Offload,
        items: Iterable[StreamItem],
        wanted: GuardedSet | None,
        when_ready: Callable[[], None],
    ) -> None:
        """``wanted``: ``None`` for everything; then nothing is parsed. ``when_ready``: to be looked at again."""
        self._kind, self._offload, self._wanted, self._when_ready = kind, offload, wanted, when_ready
        self._items = deque(items)
        self._looked_at: ParsedItem | None = None
        """The first of them, if it was looked at aside."""
        self._is_busy = False

    @property
    def is_over(self) -> bool:
        """Whether all was looked through."""
        return not self._items

    @property
    def is_busy(self) -> bool:
        """Whether its first item is being looked at aside."""
        return self._is_busy

    @property
    def why_failed(self) -> str:
        """Why some interest could not be tried, which counts as met from there on; empty while all can be."""
        return "" if self._wanted is None else next(iter(self._wanted.failed.values()), "")

    def add(self, item: StreamItem) -> None:
        """One more at the end."""
        self._items.append(item)

    def cut(self, watermark: StreamPosition) -> None:
        """Leave out what comes after a mark."""
        self._items = deque(item for item in self._items if item.position <= watermark)

    def another(self) -> StreamPast:
        """An empty one, for the same interests."""
        return StreamPast(self._kind, self._offload, (), self._wanted, self._when_ready)

    def look(self, bytes_max: int) -> Iterator[ParsedItem]:
        """What goes out of the next so many bytes (at least of one item), one by one."""
        while self._items and bytes_max > 0 and not self._is_busy:
            item = self._items[0]
            if self._wanted is None:
                parsed: ParsedItem | None = ParsedItem(item, None)
            elif item.size > ASIDE_BYTES:
                if self._looked_at is None:
                    self._look_aside(item, self._wanted)
                    continue
                parsed, self._looked_at = self._looked_at, None
                parsed = parsed if parsed.met else None
            else:
                found = _looked_at(self._kind, self._wanted, item)
                parsed = found if found.met else None
            self._items.popleft()
            bytes_max -= item.size
            if parsed is not None:
                yield parsed

    def _look_aside(self, item: StreamItem, wanted: GuardedSet) -> None:
        self._is_busy = True

        def done(parsed: ParsedItem) -> None:
            self._is_busy = False
            self._looked_at = parsed if self._items and self._items[0] is item else None
            self._when_ready()

        look_aside(self._offload, _looked_at, (self._kind, wanted, item), done, _raise)


def _looked_at(kind: InterestKind, wanted: GuardedSet, item: StreamItem) -> ParsedItem:
    try:
        parsed = read_item(kind, item)
    except ItemError as error:
        if item.batch is not None:  # so its producer has signed what nobody can read
            return ParsedItem(item, None)
        raise Bug(f"the item {item.position} was parsed when it came, and cannot be any more: {error}") from error
    return replace(parsed, met=wanted.match(parsed.content))


def _raise(error: BaseException) -> None:
    raise error
