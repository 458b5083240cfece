"""What a child that takes nothing, and a reader that takes nothing, are told of what they did not get."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from peerd.lib.feed import Feed, FeedDropped, FeedGap, FeedItem, Policy, Position
from protocols.dissemination.interests.classes import ClassesKind
from protocols.dissemination.messages import StreamItem, Widen, Widened
from protocols.dissemination.models import ReceivedItem
from protocols.dissemination.names import START, StreamPosition
from protocols.dissemination.ports import ParsedItem
from protocols.dissemination.subscriptions import MARK_BYTES, StreamSubscription
from protocols.dissemination.tree.downstream import ITEMLESS_MAX
from protocols.dissemination.tree.links import Downlink
from protocols.dissemination.tree.replay import BufferLimits
from protocols.dissemination.tree.seals import Parcel
from protocols.dissemination.tree.subscription import Lost
from tests.support.member_owner import hook
from tests.unit.test_dissemination_tree import STREAM, Net

# A child that asks for the past again and again, and does not take it


def remembering(count: int) -> tuple[Net, Downlink]:
    """A producer that remembers just so many items, and a child that has them all and takes no more for now."""
    net = Net(2, random.Random(0))
    net.subscribe(1, "a")
    net.move(1, 0)
    net.settle(1.0)
    for _ in range(count):
        net.publish("a")
    net.settle(1.0)
    buffer = net.source.state.buffer
    buffer.limits = BufferLimits(1000, buffer.bytes, 1e9)
    hook(net.source.owner, is_slow=lambda peer: True)
    return net, net.source.down.children[net.peers[1].id]


def ask_for_all(net: Net, sub: int) -> None:
    """The child wants something more, and the whole past of it."""
    net.subscribe(1, f"a,c{sub}", START, sub)
    net.run()


def test_what_a_child_is_owed_of_the_past_is_counted_until_it_takes_it() -> None:
    net, child = remembering(20)
    assert child.outbox_bytes == 0
    for sub in (1, 2):
        ask_for_all(net, sub)
        owed = [each for each in child.outbox if isinstance(each, Parcel) and each.watermark is None]
        assert child.outbox_bytes == sub * net.source.state.buffer.bytes
        assert child.outbox_bytes == sum(item.size for each in owed for item in each.items)
    hook(net.source.owner, is_slow=lambda peer: False)
    net.settle(1.0)
    assert child.outbox_bytes == 0 and not child.outbox
    assert [net.delivered(1, sub) for sub in (1, 2)] == [net.expected("a")] * 2


def test_a_child_that_is_owed_more_of_the_past_than_the_node_remembers_has_to_attach_anew() -> None:
    net, child = remembering(20)
    for sub in (1, 2):
        ask_for_all(net, sub)
    assert net.source.down.children[net.peers[1].id] is child, (
        "owed twice what is remembered: the last time was allowed"
    )
    ask_for_all(net, 3)
    assert child.outbox_bytes == 2 * net.source.state.buffer.bytes, "it gets no more"
    assert net.source.down.children == {}
    hook(net.source.owner, is_slow=lambda peer: False)
    net.move(1, 0)
    net.settle()
    assert [net.delivered(1, sub) for sub in range(4)] == [net.expected("a")] * 4, "and has lost nothing by it"


def test_what_waits_beside_the_past_counts_for_nothing() -> None:
    net, child = remembering(20)
    net.subscribe(1, "c", sub=1)
    net.run()
    assert any(isinstance(each, Widened) for each in child.outbox) and child.outbox_bytes == 0


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_child_that_takes_little_and_wants_more_all_the_time_has_no_more_waiting_than_a_slow_one(
    is_wanted: bool,
) -> None:
    """Each `Widen` puts what waits in the queue, which has a limit of its own, into the outbox."""
    net, child = remembering(0)
    limit = 100 * 66
    net.source.state.buffer.limits = BufferLimits(1000, limit, 1e9)
    most = longest = 0
    for number in range(1, 3 * ITEMLESS_MAX):
        wish = Widen(STREAM, ("c",), START, is_new=True, attempt=child.attempt, number=number)
        net.source.received(net.peers[1], wish, net.now)
        net.publish("a" if is_wanted else "b")
        if child.peer.id not in net.source.down.children:
            break
        most, longest = max(most, child.outbox_bytes + child.queue_bytes), max(longest, len(child.outbox))
    assert net.source.down.children == {}
    assert most <= 2 * limit and longest <= ITEMLESS_MAX + 1000


def test_a_child_that_takes_little_has_no_more_waiting_because_its_parent_loses_items_all_the_time() -> None:
    net, child = remembering(0)
    net.source.state.buffer.limits = BufferLimits(1000, 100 * 66, 1e9)
    for _ in range(300):
        net.publish("a")
        now = net.source.state.watermark
        net.source._do(net.source.down.gap(now, StreamPosition(1, now.sequence + 1), net.now))
    assert net.source.down.children == {} and child.outbox_bytes <= 2 * 100 * 66


# What a subscription that has begun loses


@pytest.mark.parametrize("after", [None, START])
def test_what_a_new_stream_loses_before_its_first_item_arrives_is_told(after: StreamPosition | None) -> None:
    """Who waits for a stream from its beginning on misses its first items like any others."""
    net = Net(2, random.Random(0), buffer_items=10)
    net.subscribe(1, "a", after)
    net.move(1, 0)
    net.settle(1.0)
    hook(net.source.owner, is_slow=lambda peer: True)
    net.settle(2.0)  # a heartbeat waits to be sent, and the items behind it
    for _ in range(30):
        net.publish("a")
    hook(net.source.owner, is_slow=lambda peer: False)
    net.settle(1.0)
    client = subscription()
    for each in net.got[net.peers[1].id, 0]:
        client.deliver(each)
    (lost,) = (item for item in taken(client.feed) if item.type == "lost")
    assert (lost.since, client.missed_gaps) == (None, 1), "from the beginning on"
    assert net.delivered(1) == list(range(int(lost.id.partition("-")[2]) + 1, 31)) != []


def test_who_begins_at_the_start_asks_for_what_is_remembered_and_has_lost_nothing() -> None:
    net = Net(2, random.Random(0), buffer_items=10)
    net.subscribe(1, "b")
    net.move(1, 0)
    for _ in range(30):
        net.publish("a")
    net.settle(1.0)
    for sub, after in ((1, START), (2, StreamPosition(1, 5))):
        net.subscribe(1, f"a,c{sub}", after, sub)
        net.settle(1.0)
        assert net.delivered(1, sub) == list(range(21, 31))
    assert not any(isinstance(each, Lost) for each in net.got[net.peers[1].id, 1])
    (lost,) = (each for each in net.got[net.peers[1].id, 2] if isinstance(each, Lost))
    assert (lost.since.sequence, lost.until.sequence) == (5, 20)


# What a reader finds


def subscription(items_max: int = 100, bytes_max: int = 1 << 20) -> StreamSubscription:
    feed: Feed[ReceivedItem] = Feed("boot", items_max=items_max, bytes_max=bytes_max)
    return StreamSubscription(1, "news", "classes", ClassesKind().parse("a"), "", None, feed)


def item(number: int, text: str = "a") -> ParsedItem:
    return ParsedItem(StreamItem.of(7, number, 0, text.encode()), "a")


def taken(feed: Feed[ReceivedItem]) -> list[ReceivedItem]:
    reader, found = feed.reader("start"), []
    while isinstance(entry := reader.take(), FeedItem):
        found.append(entry.value)
    reader.close()
    return found


def test_a_loss_is_a_mark_between_the_items_that_were_not_lost() -> None:
    found = subscription()
    found.deliver(item(1))
    found.deliver(Lost(StreamPosition(7, 1), StreamPosition(7, 4)))
    found.deliver(item(5))
    first, lost, last = taken(found.feed)
    assert (first.id, last.id) == ("7-1", "7-5")
    assert (lost.type, lost.since, lost.id, lost.payload) == ("lost", "7-1", "7-4", None)
    assert (found.received, found.missed_gaps) == (2, 1)


def test_a_reader_that_was_away_for_long_finds_how_many_entries_were_let_go_while_it_was() -> None:
    found = subscription(items_max=3)
    for number in range(1, 9):
        found.deliver(item(number))
    reader = found.feed.reader(Position("boot", 2))
    assert reader.take() == FeedGap(number=5, reason="expired", first=3, last=5, count=3)
    assert [entry.value.id for _ in range(3) if isinstance(entry := reader.take(), FeedItem)] == ["7-6", "7-7", "7-8"]


def test_a_reader_that_is_pushed_out_finds_the_loss_where_it_stands() -> None:
    found = subscription(items_max=3)
    reader = found.feed.reader("now")
    for number in range(1, 6):
        found.deliver(item(number))
    assert reader.take() == FeedDropped(first=1, last=2)
    assert [entry.value.id for _ in range(3) if isinstance(entry := reader.take(), FeedItem)] == ["7-3", "7-4", "7-5"]


@pytest.mark.parametrize("what", [lambda: item(4), lambda: Lost(StreamPosition(7, 3), StreamPosition(7, 9))])
def test_what_comes_while_a_reader_blocks_is_told_as_dropped_to_all(what: Callable[[], ParsedItem | Lost]) -> None:
    """A mark of a loss that finds no room is itself within what is dropped."""
    found = subscription(items_max=3)
    blocking = found.feed.reader("now", policy=Policy.BLOCK)
    for number in range(1, 4):
        found.deliver(item(number))
    found.deliver(what())
    assert len(found.feed) == 3, "the reader that blocks has them still to come"
    for _ in range(3):
        assert isinstance(blocking.take(), FeedItem)
    found.deliver(item(10))
    assert blocking.take() == FeedDropped(first=4, last=4)
    assert isinstance(entry := blocking.take(), FeedItem) and entry.value.id == "7-10"


def test_a_feed_is_bounded_in_bytes_and_marks_count() -> None:
    found = subscription(bytes_max=4 * MARK_BYTES)
    for number in range(1, 20):
        found.deliver(Lost(StreamPosition(7, number), StreamPosition(7, number + 1)))
    assert len(found.feed) == 4 and found.missed_gaps == 19
