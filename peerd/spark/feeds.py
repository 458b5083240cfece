"""A piece of a feed, from one position to another: what a micro-batch of Spark reads, again if it must."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from peerd.client import Client
from peerd.client.streams import Backoff, Dropped, End, Gap, Item
from peerd.front import RingFeed
from peerd.lib.feed import Position

GIVE_UP_S: Final = 30.0
"""A daemon that is not there for so long fails the task, which Spark tries again."""


@dataclass(frozen=True, slots=True)
class LostRows:
    """Items that are not there any more. ``count``: how many; ``None`` where nobody knows."""

    count: int | None
    why: str

    def __str__(self) -> str:
        return f"{'nobody knows how many' if self.count is None else self.count} rows are lost ({self.why})"


async def newest_position(client: Client, feed: Awaitable[RingFeed]) -> str:
    """The position of a reader that has read everything."""
    found = await feed
    parameters = {**found.parameters, "follow": 0}
    async with aclosing(client.follow(found.path, parameters, after="now", backoff=_patience())) as entries:
        async for entry in entries:
            if isinstance(entry, End):
                return entry.id
    return ""


async def items_between(client: Client, feed: RingFeed, start: str, end: str | None) -> AsyncGenerator[Any, None]:
    """The data of the items after ``start`` (or from "start" on) up to and including ``end``, without it of those that
    are held now, and `LostRows` where some are missing.

    A feed that began anew since ``end`` was its newest item has none of them.
    """
    last = None if end is None else Position.parse(end)
    parameters = {**feed.parameters, "follow": 0}
    async with aclosing(client.follow(feed.path, parameters, after=start, backoff=_patience())) as entries:
        async for entry in entries:
            here = Position.parse(entry.id)
            if last is not None and here.epoch != last.epoch:
                yield LostRows(None, "the daemon was restarted meanwhile")
                return
            is_later = last is not None and here.number > last.number
            if isinstance(entry, End):
                return
            if isinstance(entry, Item):
                if is_later:
                    return
                yield entry.data
            elif (lost := _lost(entry, last)) is not None:
                yield lost
            if is_later or (last is not None and here.number == last.number):
                return


def _lost(mark: Gap | Dropped, last: Position | None) -> LostRows | None:
    """What of the missing items is up to ``last``; the next batch finds the rest of them."""
    if last is None or mark.count is None or mark.first is None or mark.last is None or mark.last <= last.number:
        return LostRows(mark.count, mark.reason)
    count = min(mark.count, last.number - mark.first + 1)
    return LostRows(count, mark.reason) if count > 0 else None


def _patience() -> Backoff:
    return Backoff(give_up_s=GIVE_UP_S)
