"""Pieces of a feed as Spark reads them: nothing twice, and all that is missing is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from peerd.client.streams import Dropped, End, Gap, Item, StreamEntry
from peerd.errors import ConfigError
from peerd.front import RingFeed
from peerd.lib.feed import Feed, FeedDropped, FeedGap, FeedItem, FeedLoss, Place, Position
from peerd.spark.asking import question_of
from peerd.spark.feeds import LostRows, items_between, newest_position

FEED = RingFeed("/v1/some")
HELD = 4


class FeedClient:
    """A client whose daemon has one feed, of which it sends what is held."""

    def __init__(self, feed: Feed[int]) -> None:
        self.feed = feed

    async def follow(
        self, path: str, parameters: Mapping[str, Any], *, after: str, backoff: object
    ) -> AsyncGenerator[StreamEntry, None]:
        """As `peerd.client.Client.follow`."""
        assert path == FEED.path and parameters["follow"] == 0
        place: Place = "start" if after == "start" else "now" if after == "now" else Position.parse(after)
        reader = self.feed.reader(place)
        try:
            while (entry := reader.take()) is not None:
                at = str(Position(self.feed.epoch, entry.number))
                if isinstance(entry, FeedItem):
                    yield Item(id=at, data=entry.value)
                elif isinstance(entry, FeedGap):
                    yield Gap(id=at, reason=entry.reason, first=entry.first, last=entry.last, count=entry.count)
                elif isinstance(entry, FeedDropped):
                    yield Dropped(id=at, first=entry.first, last=entry.last, count=entry.count)
            yield End(id=str(reader.position or self.feed.position), reason="caught up", is_final=True)
        finally:
            reader.close()

    def newest(self) -> str:
        """See `newest_position`."""

        async def feed() -> RingFeed:
            return FEED

        return asyncio.run(newest_position(self, feed()))  # type: ignore[arg-type]  # all that it needs of a client

    def between(self, start: str, end: str | None) -> list[Any]:
        """See `items_between`."""

        async def all_of() -> list[Any]:
            return [item async for item in items_between(self, FEED, start, end)]  # type: ignore[arg-type]  # as above

        return asyncio.run(all_of())


def feed_of(count: int, epoch: str = "e") -> Feed[int]:
    """A feed with the items 1, 2, ..., of which it holds the last `HELD`."""
    feed: Feed[int] = Feed(epoch, items_max=HELD)
    for number in range(1, count + 1):
        feed.push(number)
    return feed


STEP = st.sampled_from(["push", "loss", "plan", "read"])


@given(st.lists(STEP, max_size=60))
def test_batches_have_each_item_once_or_tell_that_it_is_lost(steps: list[str]) -> None:
    feed = feed_of(0)
    client, pushed, read, lost = FeedClient(feed), 0, list[int](), 0
    start, end = client.newest(), client.newest()
    for step in [*steps, "read", "plan", "read"]:
        if step == "push":
            feed.push(pushed := pushed + 1)
        elif step == "loss":  # three items that never came here stand in one place
            feed.push(FeedLoss(3, "spilled"))
            pushed += 3
        elif step == "plan" and start == end:
            end = client.newest()
        elif step == "read" and start != end:
            for item in client.between(start, end):
                if isinstance(item, LostRows):
                    assert item.count is not None
                    lost += item.count
                else:
                    read.append(item)
            start = end
    assert read == sorted(set(read))
    # A mark of several lost items that is lost itself counts as one of them.
    assert len(read) + lost <= pushed
    if "loss" not in steps:
        assert len(read) + lost == pushed


def test_a_batch_ends_where_it_was_planned_to() -> None:
    feed = feed_of(2)
    client = FeedClient(feed)
    end = client.newest()
    feed.push(3)
    assert client.between("start", end) == [1, 2] == client.between("start", end)
    assert client.between(end, client.newest()) == [3]
    assert client.between("start", None) == [1, 2, 3]


def test_what_was_let_go_before_it_was_read_is_told_in_the_batch_that_it_is_of() -> None:
    feed = feed_of(2)
    client = FeedClient(feed)
    first, second = "e-0", client.newest()
    for number in range(3, 9):
        feed.push(number)
    assert client.between(first, second) == [LostRows(2, "expired")]
    assert client.between(second, client.newest()) == [LostRows(2, "expired"), 5, 6, 7, 8]


def test_a_daemon_that_was_restarted_has_lost_nobody_knows_how_many() -> None:
    planned = FeedClient(feed_of(3)).newest()
    client = FeedClient(feed_of(2, "later"))
    [lost] = client.between("e-1", planned)
    assert lost.count is None
    gap, *items = client.between("e-1", client.newest())
    assert gap == LostRows(None, "restarted") and items == [1, 2]
    assert "nobody knows how many rows" in str(gap)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "no table ''.*aggregation, events, measurement, pubsub"),
        ({"path": "event"}, "no table 'event' for load\\(\\), did you mean \"events\""),
        ({"path": "events", "kind": "x"}, "events has no option 'kind', did you mean \"kinds\""),
        ({"path": "events", "startingoffsets": "first"}, "startingOffsets=first: expected one of latest, earliest"),
        ({"path": "pubsub", "failOnDataLoss": "no"}, "failOnDataLoss=no: expected one of true, false"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        question_of(options)


def test_options_are_known_in_any_case() -> None:
    given = {"path": "pubsub", "CLUSTER": "/a.sock, http://host:1", "startingoffsets": "Earliest", "Subscription": "s"}
    question = question_of(given)
    assert question.addresses == ("/a.sock", "http://host:1") and question.starts == "start"
    assert question.options == {"subscription": "s"} and question.fails_on_loss
    assert not question_of({"path": "events", "cluster": "/a.sock"}).fails_on_loss  # events have numbers of their own
