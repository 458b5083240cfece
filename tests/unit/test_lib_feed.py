"""Feeds: transcripts of what readers see, and a state machine against a model that forgets nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from peerd.errors import Bug, Unavailable
from peerd.lib.feed import (
    TOO_SLOW,
    Entry,
    Feed,
    FeedDropped,
    FeedEnd,
    FeedGap,
    FeedItem,
    FeedLoss,
    Place,
    Policy,
    Position,
    Reader,
)


def filled(count: int, items_max: int = 1000) -> Feed[str]:
    """A feed of items that are named by their numbers."""
    feed: Feed[str] = Feed("e1", items_max=items_max)
    for number in range(1, count + 1):
        feed.push(str(number), 1)
    return feed


def drained(reader: Reader[str]) -> list[Entry[str]]:
    """All that can be taken now."""
    found: list[Entry[str]] = []
    while (entry := reader.take()) is not None:
        found.append(entry)
    return found


def items(first: int, last: int) -> list[FeedItem[str]]:
    return [FeedItem(number, str(number)) for number in range(first, last + 1)]


# --- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        ("now", []),
        ("start", items(4, 6)),
        (Position("e1", 6), []),
        (Position("e1", 4), items(5, 6)),
        (Position("e1", 3), items(4, 6)),
        (Position("e1", 1), [FeedGap(3, "expired", 2, 3, 2), *items(4, 6)]),
        (Position("e1", 0), [FeedGap(3, "expired", 1, 3, 3), *items(4, 6)]),
        (Position("e0", 5), [FeedGap(3, "restarted", None, None, None), *items(4, 6)]),
        (Position("e1", 7), [FeedGap(3, "restarted", None, None, None), *items(4, 6)]),
    ],
)
def test_where_a_reader_begins(place: Place, seen: list[Entry[str]]) -> None:
    reader = filled(6, items_max=3).reader(place)
    assert drained(reader) == seen
    assert reader.position == Position("e1", 6)


def test_a_position_in_front_of_a_gap_is_not_told() -> None:
    feed = filled(6, items_max=3)
    reader = feed.reader(Position("e1", 1))
    assert reader.position is None
    reader.take()
    assert reader.position == Position("e1", 3)


def test_a_feed_that_outlives_its_process_goes_on_counting() -> None:
    feed: Feed[str] = Feed("durable", last=41)
    assert feed.push("x") == 42
    assert drained(feed.reader(Position("durable", 41))) == [FeedItem(42, "x")]


# --- policies -------------------------------------------------------------------------------------------------------


def test_a_slow_reader_loses_the_oldest_and_is_told_once() -> None:
    feed = filled(1, items_max=2)
    reader = feed.reader("start")
    for number in range(2, 8):
        feed.push(str(number), 1)
    assert drained(reader) == [FeedDropped(1, 5), *items(6, 7)]
    assert FeedDropped(1, 5).count == 5


def test_the_bound_in_bytes_lets_go_of_as_many_as_it_needs() -> None:
    feed: Feed[str] = Feed("e1", bytes_max=10)
    for size in (4, 4, 2, 7):
        feed.push("x", size)
    assert (feed.first, feed.last, feed.held_bytes) == (3, 4, 9)


def test_a_reader_that_blocks_holds_the_producer_and_says_when_it_may_go_on() -> None:
    told: list[bool] = []
    feed: Feed[str] = Feed("e1", items_max=2, on_writable=lambda: told.append(feed.may_push()))
    reader = feed.reader(policy=Policy.BLOCK)
    feed.push("a")
    feed.push("b")
    assert not feed.may_push()
    with pytest.raises(Unavailable):
        feed.push("c")
    assert told == []
    assert reader.take() == FeedItem(1, "a") and told == [True]
    feed.push("c")
    assert drained(reader) == [FeedItem(2, "b"), FeedItem(3, "c")] and told == [True]


def test_a_reader_that_blocks_and_leaves_sets_the_producer_free() -> None:
    told: list[str] = []
    feed: Feed[str] = Feed("e1", items_max=1, on_writable=lambda: told.append("writable"))
    reader = feed.reader(policy=Policy.BLOCK)
    feed.push("a")
    assert not feed.may_push()
    reader.close()
    assert told == ["writable"] and feed.push("b") == 2


def test_who_shall_be_disconnected_is_ended_and_may_resume() -> None:
    feed = filled(1, items_max=2)
    woken: list[str] = []
    reader = feed.reader("start", Policy.DISCONNECT, lambda: woken.append("woken"))
    assert reader.take() == FeedItem(1, "1")
    for number in range(2, 5):
        feed.push(str(number), 1)
    assert reader.was_cut and feed.readers == 0 and len(woken) == 3
    assert drained(reader) == [FeedEnd(1, TOO_SLOW, is_final=False)]
    again = feed.reader(Position("e1", 1))
    assert drained(again) == [FeedGap(2, "expired", 2, 2, 1), *items(3, 4)]


def test_the_end_comes_after_what_is_left() -> None:
    feed = filled(2)
    reader, woken = feed.reader("start"), []
    late = feed.reader("now", on_ready=lambda: woken.append("woken"))
    feed.end("plugin restarted")
    feed.end("again")
    assert drained(reader) == [*items(1, 2), FeedEnd(2, "plugin restarted", is_final=False)]
    assert woken == ["woken"] and drained(late) == [FeedEnd(2, "plugin restarted", is_final=False)]
    assert reader.is_over and reader.take() is None and feed.readers == 0
    assert drained(feed.reader(Position("e1", 1))) == [FeedItem(2, "2"), FeedEnd(2, "plugin restarted", is_final=False)]


# --- limits and mistakes --------------------------------------------------------------------------------------------


def test_readers_are_bounded() -> None:
    feed: Feed[str] = Feed("e1", readers_max=2)
    first, _ = feed.reader(), feed.reader()
    with pytest.raises(Unavailable, match="2 readers already"):
        feed.reader()
    first.close()
    feed.reader()


def test_mistakes_of_the_producer_are_bugs() -> None:
    with pytest.raises(Bug):
        Feed("with a space")
    feed: Feed[str] = Feed("e1", bytes_max=10)
    with pytest.raises(Bug):
        feed.push("x", 11)
    feed.end("over")
    with pytest.raises(Bug):
        feed.push("x", 1)


@given(st.from_regex(r"[A-Za-z0-9.]{1,64}", fullmatch=True), st.integers(0, 10**18 - 1))
def test_a_position_survives_its_text(epoch: str, number: int) -> None:
    assert Position.parse(str(Position(epoch, number))) == Position(epoch, number)


@pytest.mark.parametrize(
    "text", ["", "1", "-1", "a-", "a--1", "a-x", "a b-1", f"{'a' * 65}-1", "a-" + "1" * 19, "a-1\n"]
)
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected the id"):
        Position.parse(text)


# --- against a model ------------------------------------------------------------------------------------------------


class Watched:
    """A reader, and what a client of it would know."""

    def __init__(self, reader: Reader[int], accounted: int) -> None:
        self.reader = reader
        self.accounted = accounted
        """Every number up to this one was read, dropped or skipped, and the client knows which."""

    def take(self) -> Entry[int] | None:
        entry = self.reader.take()
        match entry:
            case FeedItem(number=number, value=value):
                assert (number, value) == (self.accounted + 1, number * 10)
                self.accounted = number
            case FeedDropped(first=first, last=last):
                assert self.reader.policy is Policy.DROP_OLDEST, "no other policy loses items of a reader that is here"
                assert first == self.accounted + 1 and last >= first
                self.accounted = last
            case FeedGap(number=number, first=first, last=last, count=count):
                assert first == self.accounted + 1 and last == number and count == number - self.accounted
                self.accounted = number
            case FeedEnd(number=number, reason=reason):
                assert number == self.accounted
                assert (reason == TOO_SLOW) == (self.reader.policy is Policy.DISCONNECT and self.reader.was_cut)
        return entry


class AgainstHistory(RuleBasedStateMachine):
    """The model is the number of all items ever pushed: item n has the value 10 n and the size that was drawn."""

    readers: Bundle[Watched] = Bundle("readers")

    def __init__(self) -> None:
        super().__init__()
        self.told = 0
        self.feed: Feed[int] = Feed("e1", items_max=5, bytes_max=20, readers_max=50, on_writable=self.writable)
        self.sizes: list[int] = []
        self.watched: list[Watched] = []
        self.asked: int | None = None

    def writable(self) -> None:
        assert self.asked is not None, "told without having been refused"
        assert self.feed.may_push(self.asked)
        self.asked = None

    @precondition(lambda self: self.feed.readers < 50)
    @rule(target=readers, policy=st.sampled_from(Policy), from_start=st.booleans())
    def begin(self, policy: Policy, from_start: bool) -> Watched:
        accounted = self.feed.first - 1 if from_start else self.feed.last
        return self.watch(Watched(self.feed.reader("start" if from_start else "now", policy), accounted))

    @rule(target=readers, left=consumes(readers), policy=st.sampled_from(Policy))
    def leave_and_resume(self, left: Watched, policy: Policy) -> Watched:
        left.reader.close()
        self.watched.remove(left)
        return self.watch(Watched(self.feed.reader(Position("e1", left.accounted), policy), left.accounted))

    def watch(self, watched: Watched) -> Watched:
        self.watched.append(watched)
        return watched

    @rule(size=st.integers(0, 20))
    def push(self, size: int) -> None:
        may = self.feed.may_push(size)
        if not may:
            self.asked = size
            assert any(each.reader.policy is Policy.BLOCK and not each.reader.is_over for each in self.watched)
            return
        number = self.feed.push((self.feed.last + 1) * 10, size)
        self.sizes.append(size)
        assert number == len(self.sizes)

    @rule(watched=readers, count=st.integers(1, 8))
    def take(self, watched: Watched, count: int) -> None:
        for _ in range(count):
            watched.take()

    @rule(watched=readers)
    def take_everything(self, watched: Watched) -> None:
        while watched.take() is not None:
            pass
        if not watched.reader.was_cut:
            assert watched.accounted == len(self.sizes)

    @invariant()
    def holds_the_newest_within_both_bounds(self) -> None:
        held = self.sizes[self.feed.first - 1 :]
        assert len(self.feed) == len(held) <= 5 and self.feed.held_bytes == sum(held) <= 20
        if self.feed.first > 1 and not held:
            assert self.feed.last == 0, "the newest item is always held"

    @invariant()
    def nobody_who_blocks_loses_anything(self) -> None:
        for each in self.watched:
            if each.reader.policy is Policy.BLOCK and not each.reader.is_over and each.reader.position is not None:
                assert each.accounted + 1 >= self.feed.first


TestAgainstHistory = AgainstHistory.TestCase


# --- items that are kept elsewhere ----------------------------------------------------------------------------------


class Disk(dict[int, str | FeedLoss]):
    """A store that says when something is read."""

    def __init__(self, items: dict[int, str | FeedLoss]) -> None:
        super().__init__(items)
        self.read: list[int] = []

    def __getitem__(self, number: int) -> str | FeedLoss:
        self.read.append(number)
        return super().__getitem__(number)


def test_a_feed_goes_on_with_the_items_that_its_shelf_holds() -> None:
    disk = Disk({3: "3", 4: "4", 5: "5"})
    feed: Feed[str] = Feed("e1", bytes_max=40, last=5, store=disk, held={3: 10, 4: 10, 5: 10})
    assert (feed.first, feed.last, feed.held_bytes, disk.read) == (3, 5, 30, [])
    reader = feed.reader(Position("e1", 1))
    assert drained(reader) == [FeedGap(2, "expired", 2, 2, 1), *items(3, 5)]
    feed.push("6", 10)
    feed.push("7", 10)
    assert (list(disk), feed.first) == ([4, 5, 6, 7], 4)
    assert drained(reader) == items(6, 7)


def test_what_the_shelf_has_lost_is_marked() -> None:
    feed: Feed[str] = Feed("e1", last=7, store={2: "2", 5: "5", 6: "6"}, held={2: 1, 5: 1, 6: 1})
    assert drained(feed.reader("start")) == [*items(2, 2), FeedDropped(3, 4), *items(5, 6), FeedDropped(7, 7)]
    feed.expire(5)
    assert (feed.first, feed.held_bytes) == (6, 1)


def test_old_items_expire_whoever_has_not_taken_them() -> None:
    writable: list[None] = []
    feed: Feed[str] = Feed("e1", items_max=4, on_writable=lambda: writable.append(None))
    blocking = feed.reader("start", Policy.BLOCK)
    slow = feed.reader("start", Policy.DISCONNECT)
    for number in range(1, 5):
        feed.push(str(number))
    assert not feed.may_push()
    feed.expire(2)
    assert (feed.first, writable) == (3, [None])
    assert drained(blocking) == [FeedDropped(1, 2), *items(3, 4)]
    assert drained(slow) == [FeedEnd(0, TOO_SLOW, is_final=False)]
    feed.expire(9)
    assert (len(feed), feed.first, feed.last) == (0, 5, 4)
    feed.expire(1)
    assert feed.first == 5


def test_what_all_readers_have_had_is_held_until_it_is_forgotten_twice() -> None:
    feed: Feed[str] = Feed("e1")
    for number in range(1, 6):
        feed.push(str(number))
    feed.forget_taken()
    feed.forget_taken()
    assert len(feed) == 5, "nobody has had anything"
    quick, slow = feed.reader("start"), feed.reader("start")
    drained(quick)
    assert slow.take() == FeedItem(1, "1")
    feed.forget_taken()
    assert len(feed) == 5
    drained(slow)
    feed.push("6")
    feed.forget_taken()
    assert (feed.first, feed.dropped) == (2, 0), "the slower one had only had the first"
    feed.forget_taken()
    assert (feed.first, feed.dropped) == (6, 0)
    quick.close()
    assert drained(slow) == items(6, 6)
    slow.close()
    feed.forget_taken()
    feed.forget_taken()
    assert feed.first == 6, "who is away comes back to what was held when he left"
    gap = feed.reader(Position("e1", 2)).take()
    assert isinstance(gap, FeedGap) and (gap.reason, gap.first, gap.last) == ("expired", 3, 5)


def test_a_feed_counts_what_its_slowest_reader_lost() -> None:
    feed: Feed[str] = Feed("e1", items_max=3)
    for number in range(1, 6):
        feed.push(str(number))
    assert feed.dropped == 0  # nobody was there
    quick, slow = feed.reader("start"), feed.reader("start")
    drained(quick)
    for number in range(6, 9):
        feed.push(str(number))
    assert feed.dropped == 3
    slow.close()
    feed.push("9")
    assert feed.dropped == 4
    drained(quick)
    feed.push("10")
    assert feed.dropped == 4


def test_who_is_expected_back_is_told_what_was_let_go_before_it_was_taken() -> None:
    """Kept for a reader who is away, it was let go in silence: `start` began with the oldest that was held."""
    feed: Feed[str] = Feed("e1", items_max=3, taken=0)
    for number in range(1, 6):
        feed.push(str(number))
    reader = feed.reader("start")
    assert drained(reader) == [FeedDropped(1, 2), *items(3, 5)] and feed.dropped == 2
    reader.close()
    for number in range(6, 9):
        feed.push(str(number))
    assert feed.dropped == 2, "what was let go had been taken"
    again = Disk({number: str(number) for number in range(6, 9)})
    feed = Feed("e1", items_max=3, last=8, store=again, held=dict.fromkeys(range(6, 9), 0), taken=feed.taken)
    assert drained(feed.reader("start")) == items(6, 8)
    feed = Feed("e1", items_max=3, last=8, store=again, held=dict.fromkeys(range(6, 9), 0), taken=0)
    feed.reader(Position("e1", 7)).close()  # so it has had these
    feed.push("9")
    assert feed.dropped == 0
    feed.push("10")
    feed.push("11")
    assert feed.dropped == 1 and drained(feed.reader("start")) == [FeedDropped(8, 8), *items(9, 11)]


# --- numbers that are left out --------------------------------------------------------------------------------------


def test_what_was_lost_before_it_came_is_a_mark_and_takes_no_room() -> None:
    feed = filled(2, items_max=3)
    reader = feed.reader("start")
    feed.skip(4_000_000_000)
    feed.push("after", 1)
    last = 4_000_000_003
    assert drained(reader) == [*items(1, 2), FeedDropped(3, last - 1), FeedItem(last, "after")]
    feed.push("more", 1)  # only now there is one item too many
    assert (len(feed), feed.dropped) == (3, 0)
    late = feed.reader("start")
    assert drained(late) == [
        FeedItem(2, "2"),
        FeedDropped(3, last - 1),
        FeedItem(last, "after"),
        FeedItem(last + 1, "more"),
    ]


def test_what_is_lost_at_the_end_is_told_at_once() -> None:
    feed: Feed[str] = Feed("e1")
    woken: list[bool] = []
    reader = feed.reader("start", on_ready=lambda: woken.append(True))
    feed.skip(2)
    assert woken and drained(reader) == [FeedDropped(1, 2)]
    feed.end("finished")
    feed.skip(5)
    assert drained(reader) == [FeedEnd(2, "finished", False)]
    with pytest.raises(Bug):
        feed.skip(-1)
