"""Clients' subscriptions: whose they are, how many there may be, and which of them nobody reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from peerd.errors import ClientRefusal
from peerd.lib.feed import Feed
from peerd.lib.subscriptions import ClientSubscriptions


@dataclass(eq=False)
class Watch:
    id: str
    name: str = ""
    owner: str = ""
    is_begun: bool = True
    unread_since: float | None = None
    feed: Feed[str] = field(init=False)

    def __post_init__(self) -> None:
        self.feed = Feed(f"e.{self.id}")


def made(*watches: Watch) -> ClientSubscriptions[Watch]:
    found: ClientSubscriptions[Watch] = ClientSubscriptions(ClientRefusal)
    for each in watches:
        found.add(each)
    return found


def test_a_name_leads_to_the_newest_and_belongs_to_its_owner() -> None:
    old, new, other = Watch("1", "n", "a"), Watch("2", "n", "a"), Watch("3")
    all_ = made(old, new, other)
    assert [all_.get(id) for id in ("1", "2", "3", "n")] == [old, new, other, new]
    assert all_.known("n", "a") is new and all_.known("m", "a") is all_.known("", "a") is None
    with pytest.raises(ClientRefusal) as refused:
        all_.known("n", "b")
    assert refused.value.kind == "conflict"
    all_.remove(old)
    assert all_.named("n") is new
    all_.remove(new)
    for id in ("n", "2", ""):
        with pytest.raises(ClientRefusal) as refused:
            all_.get(id)
        assert refused.value.kind == "unknown"
    assert all_.of_feed("e.3") is other and all_.of_feed("e.2") is None


def test_an_ended_one_that_nobody_reads_makes_room_and_has_no_share() -> None:
    ended, lasting = Watch("1", owner="a"), Watch("2", owner="a")
    all_ = made(ended, lasting)
    with pytest.raises(ClientRefusal, match="2 subscriptions"):
        all_.check_room(2)
    with pytest.raises(ClientRefusal, match=r"a has 2 subscriptions.*\(a_setting\)"):
        all_.check_share("a", 8, setting=" (a_setting)")
    reader = ended.feed.reader("start")
    ended.feed.end("over", is_final=True)
    all_.check_share("a", 8)
    with pytest.raises(ClientRefusal) as refused:
        all_.check_room(2)
    assert refused.value.kind == "quota"
    reader.close()
    all_.check_room(2)
    assert list(all_) == [lasting]


def test_one_without_a_name_that_nobody_reads_is_found_when_its_time_is_over() -> None:
    named, read, unread, coming = Watch("1", "n"), Watch("2"), Watch("3"), Watch("4", is_begun=False)
    all_, reader = made(named, read, unread, coming), read.feed.reader("start")
    assert [all_.unread(now, 60.0) for now in (0.0, 59.0)] == [[], []]
    assert all_.unread(60.0, 60.0) == [unread]
    reader.close()
    coming.is_begun = True
    assert all_.unread(61.0, 60.0) == [unread]
    assert all_.unread(121.0, 60.0) == [read, unread, coming]


def test_when_the_plugin_ends_readers_may_come_back() -> None:
    all_ = made(Watch("1"))
    all_.let_go("restarted")
    [each] = all_
    assert each.feed.ended is not None and not each.feed.ended.is_final
