"""The routes below ``/v1/streams``: bodies, JSON lines, following and resuming, and what refusals look like."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest

from peerd.client import Client, DaemonBusy, RequestRefused
from peerd.client.batches import REQUEST_LINES_MAX
from peerd.client.streams import Backoff, Gap
from peerd.daemon.http.guard import ROUTE_BODY_BYTES_MAX
from peerd.errors import Unavailable
from peerd.front import scope_of
from peerd.lib.feed import Feed
from peerd.models.streams import IngestAnswer
from protocols.dissemination.front.client import DisseminationClient, _behind, _is_known, wrapped
from protocols.dissemination.front.http import router
from protocols.dissemination.interests.everything import EverythingKind
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.models import (
    CREATED_ANEW,
    ReceivedItem,
    StreamSubscriptionRequest,
    StreamSubscriptionView,
    StreamWish,
    WrappedItem,
    item_order,
)
from protocols.dissemination.names import StreamPosition
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.subscriptions import StreamSubscription
from tests.support.fake_daemon import LOCAL_OPERATOR, FakeDaemon
from tests.support.fake_streams import PRODUCER, TREE, FakeStreams, item

ITEMS = "/v1/streams/news/items"
LINES = {"Content-Type": "application/x-ndjson"}


@dataclass
class Rig:
    """The service behind the API, and two clients of it."""

    service: FakeStreams
    http: httpx.AsyncClient
    client: Client

    @property
    def streams(self) -> DisseminationClient:
        """The client's methods."""
        return DisseminationClient(self.client)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    service = FakeStreams()
    daemon = FakeDaemon({"dissemination": service})
    async with daemon.http(caller=LOCAL_OPERATOR, client=None) as http, daemon.client() as client:
        yield Rig(service, http, client)


# --- streams --------------------------------------------------------------------------------------------------------


async def test_a_stream_is_created_found_listed_and_removed(rig: Rig) -> None:
    view = await rig.streams.create("news", "xpath", "cost", {"period_s": 5}, producer_gone="end")
    assert (view.name, view.kind, view.policy, view.settings) == ("news", "xpath", "cost", {"period_s": 5})
    [spec] = rig.service.asked("create")
    assert spec.producer_gone == "end"
    assert (await rig.streams.stream("news")).producer == PRODUCER
    assert [each.name for each in await rig.streams.streams()] == ["news"]
    assert (await rig.streams.remove("news")).name == "news"
    assert (await rig.http.post("/v1/streams", json={"name": "news"})).status_code == 201


async def test_a_stream_is_handed_over_by_address_or_id(rig: Rig) -> None:
    assert (await rig.streams.hand_over("news", "abc")).producer == "abc"
    assert rig.service.asked("hand_over") == [("news", "abc")]
    with pytest.raises(RequestRefused, match="there is no stream other"):
        await rig.streams.hand_over("other", "abc")
    rig.service.refusal = Unavailable("it is being handed over")
    with pytest.raises(DaemonBusy, match="it is being handed over"):
        await rig.streams.hand_over("news", "abc")
    for body in ({}, {"to": ""}, {"to": "x", "now": True}):
        assert (await rig.http.post("/v1/streams/news/hand-over", json=body)).status_code == 422


@pytest.mark.parametrize("body", [{}, {"name": "9lives"}, {"name": "a b"}, {"name": "a", "fan_out": 3}, [1]])
async def test_a_stream_that_cannot_be_is_refused(rig: Rig, body: Any) -> None:
    assert (await rig.http.post("/v1/streams", json=body)).status_code == 422
    assert rig.service.calls == []


@pytest.mark.parametrize(("kind", "status"), [("unknown", 404), ("conflict", 409), ("invalid", 422), ("quota", 429)])
async def test_a_refusal_has_the_status_of_its_kind(rig: Rig, kind: str, status: int) -> None:
    rig.service.refusal = StreamRefused(kind, "because")
    for response in (
        await rig.http.post("/v1/streams", json={"name": "news"}),
        await rig.http.get("/v1/streams/news"),
        await rig.http.delete("/v1/streams/news"),
        await rig.http.post(ITEMS, content=b"x"),
        await rig.http.post(ITEMS, content=b'{"a": 1}\n', headers=LINES),
        await rig.http.post("/v1/streams/news/subscriptions", json={}),
        await rig.http.get(ITEMS),
        await rig.http.get("/v1/streams/news/tree"),
        await rig.http.get("/v1/streams/news/plan"),
        await rig.http.get("/v1/streams/news/history"),
    ):
        assert (response.status_code, response.json()["detail"]) == (status, "because")


async def test_what_cannot_be_done_now_says_so(rig: Rig) -> None:
    rig.service.refusal = Unavailable("too many")
    with pytest.raises(DaemonBusy, match="too many"):
        await rig.streams.publish("news", "text")


async def test_the_tree_the_plan_and_the_history(rig: Rig) -> None:
    assert await rig.streams.tree("news") == TREE
    assert [each.gain for each in (await rig.streams.plan("news")).moves] == [0.125]
    assert [each.measured for each in (await rig.streams.history("news")).moves] == [None]


def test_reading_needs_less_than_publishing() -> None:
    routes: list[Any] = list(router(cast(Dissemination, FakeStreams())).routes)
    needed = {(method, route.path): scope_of(route) for route in routes for method in methods(route)}
    writing = {
        *(("POST", "/streams"), ("DELETE", "/streams/{stream}"), ("POST", "/streams/{stream}/items")),
        *(("PUT", "/streams/{stream}/documents/{name}"), ("POST", "/streams/{stream}/hand-over")),
    }
    assert {what for what, scope in needed.items() if scope == "write" and what[0] != "WEBSOCKET"} == writing
    assert needed["POST", "/streams/{stream}/subscriptions"] == needed["GET", "/streams/{stream}/items"] == "read"


def methods(route: Any) -> set[str]:
    return getattr(route, "methods", None) or {"WEBSOCKET"}


# --- publishing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "taken"),
    [
        (b"\x00\xff", "", (b"\x00\xff", "application/octet-stream")),
        (b"<a/>", "application/xml", (b"<a/>", "application/xml")),
        ("text", "", (b"text", "text/plain")),
        ({"price": 20.5, "ü": 1}, "", ('{"price":20.5,"ü":1}'.encode(), "application/json")),
    ],
)
async def test_one_item_is_the_body_as_it_is(rig: Rig, given: Any, kind: str, taken: tuple[bytes, str]) -> None:
    done = await rig.streams.publish("news", given, kind)
    assert (done.id, done.bytes) == ("7-1", len(taken[0]))
    assert rig.service.items == [taken]


@pytest.mark.parametrize("is_kept", [True, False])
async def test_publishing_in_a_durable_stream_is_answered_once_the_disk_has_it(rig: Rig, is_kept: bool) -> None:
    rig.service.is_kept = is_kept
    assert (await rig.streams.publish("news", "text")).is_kept is is_kept
    answer = await rig.streams.publish_many("news", [wrapped(b"a"), wrapped(b"b")])
    assert (answer.accepted, len(rig.service.asked("when_kept"))) == (2, 2)


async def test_what_was_taken_of_a_stream_that_is_over_is_answered(rig: Rig) -> None:
    rig.service.is_kept = Unavailable("the stream is over")
    assert (await rig.streams.publish_many("news", [wrapped(b"a")])).accepted == 1


async def test_one_item_is_not_published_as_many(rig: Rig) -> None:
    for kind in ("application/x-ndjson", "Application/X-NDJSON; charset=utf-8"):
        with pytest.raises(RequestRefused, match="publish_many"):
            await rig.streams.publish("news", {"a": 1}, kind)
    assert rig.service.items == []
    assert (await rig.streams.publish_many("news", [wrapped(b"{}", "application/x-ndjson")])).accepted == 1


async def test_what_curl_says_of_a_body_by_itself_is_passed_over(rig: Rig) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await rig.http.post(ITEMS, content=b"a=1", headers=headers)).status_code == 200
    assert rig.service.items == [(b"a=1", "")]


async def test_items_that_are_empty_or_too_large_are_refused(rig: Rig) -> None:
    assert (await rig.http.post(ITEMS, content=b"")).json()["detail"].startswith("the body is empty")
    large = await rig.http.post(ITEMS, content=b"x" * (ITEM_BYTES_MAX + 1))
    assert large.status_code == 422 and str(ITEM_BYTES_MAX) in large.json()["detail"]
    assert (await rig.http.post("/v1/streams/nowhere/items", content=b"x")).status_code == 404
    assert rig.service.items == []


async def test_an_item_may_have_a_megabyte_alone_and_in_a_line(rig: Rig) -> None:
    text = '<a b="' + "x" * (ITEM_BYTES_MAX - 10) + '"/>'
    assert len(text) == ITEM_BYTES_MAX - 1
    assert (await rig.http.post(ITEMS, content=text.encode())).status_code == 200
    line = json.dumps({"payload": text, "content_type": "application/xml"}).encode()
    assert (await rig.http.post(f"{ITEMS}?wrapped=1", content=line, headers=LINES)).status_code == 200
    quotes = json.dumps({"payload": '"' * ITEM_BYTES_MAX}).encode()
    assert (await rig.http.post(f"{ITEMS}?wrapped=1", content=quotes, headers=LINES)).status_code == 200
    assert [len(payload) for payload, _ in rig.service.items] == [len(text), len(text), ITEM_BYTES_MAX]
    too_large = await rig.http.post(ITEMS, content=bytes(ROUTE_BODY_BYTES_MAX + 1))
    assert too_large.status_code == 413 and str(ROUTE_BODY_BYTES_MAX) in too_large.json()["detail"]
    other = await rig.http.post("/v1/streams", json={"name": "x" * 70_000})
    assert other.status_code == 413, "only the route of items takes so much"


@pytest.mark.parametrize(
    "payload",
    [
        "<a>" + "ж" * 480_000 + "</a>",
        "\U0001f333" * (ITEM_BYTES_MAX // 4),
        "\0" * ITEM_BYTES_MAX,
        '\0"' * (ITEM_BYTES_MAX // 2),
        '"\\\n\r' * (ITEM_BYTES_MAX // 4),
    ],
    ids=["cyrillic", "trees", "zeros", "zeros and quotes", "quotes"],
)
async def test_no_text_that_is_an_item_is_too_long_as_a_line(rig: Rig, payload: str) -> None:
    items = [wrapped(b"before"), wrapped(payload.encode(), "text/plain"), wrapped(b"after")]
    answer = await rig.streams.publish_many("news", items)
    assert (answer.accepted, answer.refused, answer.is_complete) == (3, 0, True)
    assert rig.service.items[1:] == [(payload.encode(), "text/plain"), (b"after", "")]


async def test_half_a_character_costs_its_own_line_only(rig: Rig) -> None:
    items = [WrappedItem(payload="a\ud800"), WrappedItem(payload="\ud800" * 200_000), wrapped("ж".encode())]
    answer = await rig.streams.publish_many("news", items)
    assert (answer.accepted, answer.refused, answer.is_complete) == (1, 2, True)
    assert rig.service.items == [("ж".encode(), "")]


async def test_many_items_are_lines_which_are_passed_on_as_they_were_written(rig: Rig) -> None:
    response = await rig.http.post(ITEMS, content=b'{"price": 20.50}\n\n [1,  2] \nNaN\n{"a":\n', headers=LINES)
    assert response.status_code == 422
    told = response.json()
    assert (told["accepted"], told["refused"], [error["line"] for error in told["errors"]]) == (2, 2, [4, 5])
    assert rig.service.items == [(b'{"price": 20.50}', "application/json"), (b"[1,  2]", "application/json")]


async def test_wrapped_items_may_be_of_any_kind(rig: Rig) -> None:
    lines = [
        {"payload": "text", "content_type": "text/plain"},
        {"payload_base64": base64.b64encode(b"\xff").decode()},
        {"payload": "a", "payload_base64": "YQ=="},
        {"content_type": "text/plain"},
        {"payload_base64": "no!"},
        {"payload": "a", "colour": "red"},
    ]
    content = "\n".join(map(json.dumps, lines))
    response = await rig.http.post(f"{ITEMS}?wrapped=1", content=content, headers=LINES)
    assert (response.json()["accepted"], response.json()["refused"]) == (2, 4)
    assert rig.service.items == [(b"text", "text/plain"), (b"\xff", "")]


async def test_the_client_sends_many_and_numbers_refusals_over_all_requests(rig: Rig) -> None:
    rig.service.refused_item = lambda payload: StreamRefused("invalid", "no spam") if payload == b"spam" else None
    told: list[int] = []
    answered = asyncio.Event()

    def tell(total: IngestAnswer) -> None:
        told.append(total.accepted)
        answered.set()

    async def slowly() -> AsyncIterator[Any]:
        for payload in (b"a", b"spam", b"\xff"):
            yield wrapped(payload, "text/plain")
        await answered.wait()  # so that the fourth comes in another request
        yield wrapped(b"spam")

    answer = await rig.streams.publish_many("news", slowly(), tell)
    assert (answer.accepted, answer.refused, [error.line for error in answer.errors]) == (2, 2, [2, 4])
    assert answer.errors[0].detail == "no spam" and told == [2, 2]
    assert rig.service.items == [(b"a", "text/plain"), (b"\xff", "text/plain")]


async def test_a_source_that_fails_has_published_what_came_before(rig: Rig) -> None:
    def broken() -> Any:
        yield wrapped(b"a")
        raise ValueError("line 2")

    with pytest.raises(ValueError, match="line 2"):
        await rig.streams.publish_many("news", broken())
    assert rig.service.items == [(b"a", "")]


async def test_items_wait_while_a_daemon_that_was_there_is_away(rig: Rig) -> None:
    def away(payload: bytes) -> Exception | None:
        if payload == b"second" and not tried:
            tried.append(payload)
            return Unavailable("it is stopping")
        return None

    tried: list[bytes] = []
    rig.service.refused_item = away
    items = [wrapped(each) for each in (b"first", b"second", b"third")]
    first_one = await rig.streams.publish_many("news", items[:1])
    assert first_one.accepted == 1

    answered = asyncio.Event()

    async def slowly() -> AsyncIterator[Any]:
        yield items[0]
        await answered.wait()
        for each in items[1:]:
            yield each

    answer = await rig.streams.publish_many("news", slowly(), lambda total: answered.set(), Backoff(0.0, 0.0))
    assert (answer.accepted, answer.refused, answer.is_complete) == (3, 0, True)
    assert [payload for payload, _ in rig.service.items] == [b"first", b"first", b"second", b"third"]


async def test_a_source_that_never_pauses_is_told_what_was_refused_all_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peerd.client.batches.REQUEST_S_MAX", 0.0)
    monkeypatch.setattr("peerd.client.batches.AHEAD_MAX", 1)
    answered = asyncio.Event()

    async def endless() -> AsyncIterator[Any]:
        while not answered.is_set():
            yield wrapped(b"one")

    answer = await rig.streams.publish_many("news", endless(), lambda total: answered.set())
    assert 1 <= answer.accepted == len(rig.service.items) < REQUEST_LINES_MAX


# --- subscriptions --------------------------------------------------------------------------------------------------


OPERATOR = f"user {LOCAL_OPERATOR.user_id}"


async def test_subscriptions_are_made_listed_and_ended_by_id_or_name(rig: Rig) -> None:
    asked = StreamWish(interest="price > 20", name="audit", after="7-3")
    view = await rig.streams.install("news", asked)
    assert view.id == "s1"
    assert rig.service.asked("subscribe") == [
        StreamSubscriptionRequest(stream="news", interest="price > 20", name="audit", after="7-3", owner=OPERATOR)
    ]
    assert [each.id for each in await rig.streams.subscriptions("news")] == ["s1"]
    assert await rig.streams.subscriptions("other") == []
    with pytest.raises(RequestRefused, match="has no subscription") as refused:
        await rig.streams.unsubscribe("other", "audit")
    assert refused.value.problem.status == 404
    assert (await rig.streams.unsubscribe("news", "audit")).state == "ended"
    assert await rig.streams.subscriptions("news") == []


@pytest.mark.parametrize("name", ["", "a/b", "9lives", "a\udcff", ".."])
async def test_what_is_no_name_of_a_stream_is_told_and_not_asked(rig: Rig, name: str) -> None:
    for asking in (rig.streams.stream(name), rig.streams.remove(name), rig.streams.subscriptions(name)):
        with pytest.raises(RequestRefused, match="is no name of a stream: expected a letter") as refused:
            await asking
        assert refused.value.problem.status == 422
    assert rig.service.calls == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\udcff"])
async def test_what_is_no_name_of_a_subscription_is_told_and_not_asked(rig: Rig, name: str) -> None:
    with pytest.raises(RequestRefused, match="is no name"):
        await rig.streams.unsubscribe("news", name)
    with pytest.raises(RequestRefused, match="is no name"):
        await take(rig.streams.read("news", name), 1)
    assert rig.service.calls == [], "least of all is the stream ended"


async def test_a_name_of_dots_and_more_is_one(rig: Rig) -> None:
    await rig.streams.install("news", StreamWish(name="..a"))
    assert (await rig.streams.unsubscribe("news", "..a")).name == "..a"


@pytest.mark.parametrize(
    "wish", [{"name": "a b"}, {"name": ".."}, {"interest": "x" * 9000}, {"stream": "news"}, {"policy": "block"}]
)
async def test_a_wish_that_cannot_be_is_refused(rig: Rig, wish: dict[str, Any]) -> None:
    assert (await rig.http.post("/v1/streams/news/subscriptions", json=wish)).status_code == 422
    assert rig.service.calls == []


async def take(entries: Any, count: int) -> list[Any]:
    """The first entries of a stream."""
    found: list[Any] = []
    async with asyncio.timeout(10.0), aclosing(entries):
        async for entry in entries:
            found.append(entry)
            if len(found) == count:
                break
    return found


def fill(feed: Feed[ReceivedItem], items: Iterable[ReceivedItem], is_final: bool = True) -> None:
    """What the feed holds; it ends then, because the client of these tests gets no answer before its end."""
    for each in items:
        feed.push(each)
    feed.end("finished", is_final=is_final)


async def test_a_reader_gets_what_is_held_and_then_what_comes(rig: Rig) -> None:
    told: list[StreamSubscriptionView] = []
    pushed = [item(1), item(2, type="lost", since="7-1", reason="buffer"), item(3)]
    fill(rig.service.feed, pushed)
    entries = rig.streams.subscribe("news", "price > 20", after="start", on_subscribed=told.append)
    assert await take(entries, 3) == pushed
    assert rig.service.asked("subscribe")[0].after == "start" and [view.id for view in told] == ["s1"]
    assert rig.service.asked("unsubscribe") == ["s1"], "without a name it ends with its reader"


async def test_a_named_subscription_stays_and_is_resumed_after_an_item(rig: Rig) -> None:
    fill(rig.service.feed, map(item, (1, 2, 4)))
    found = await take(rig.streams.subscribe("news", name="audit"), 3)
    assert [each.id for each in found] == ["7-1", "7-2", "7-4"]
    assert rig.service.held
    assert await take(rig.streams.subscribe("news", name="audit", after="7-2"), 1) == [item(4)]
    assert await take(rig.streams.subscribe("news", name="audit", after="7-3"), 1) == [item(4)]


async def test_a_value_that_comes_last_counts_although_its_id_is_smaller(rig: Rig) -> None:
    rig.service.view = rig.service.view.model_copy(update={"kind": "coherency"})
    pushed = [*map(item, (8, 9, 11, 10)), item(11, type="stale"), item(11, type="fresh"), *map(item, (10, 11))]
    fill(rig.service.feed, pushed)
    assert await take(rig.streams.subscribe("news", "A WITHIN 1, B", after="start"), 8) == pushed


async def test_a_named_subscription_to_values_is_resumed_behind_the_value_that_was_seen_last(rig: Rig) -> None:
    rig.service.view = rig.service.view.model_copy(update={"kind": "coherency"})
    assert not (await rig.streams.install("news", StreamWish(name="keep"))).is_ordered
    assert [each.is_ordered for each in await rig.streams.subscriptions("news")] == [False]
    pushed = [*map(item, (8, 9, 11, 10)), item(10, type="stale"), item(10, type="fresh"), *map(item, (12, 10))]
    fill(rig.service.feed, pushed)
    for after, begin in (("7-11", 3), ("7-10", 4), ("7-12", 7), ("7-7", 0), ("start", 0)):
        found = await take(rig.streams.subscribe("news", name="keep", after=after), len(pushed) - begin)
        assert found == pushed[begin:]


async def test_values_whose_place_was_let_go_come_from_the_start_behind_a_gap(rig: Rig) -> None:
    rig.service.view = rig.service.view.model_copy(update={"kind": "coherency"})
    rig.service.feed = Feed("fake.1", items_max=2)
    fill(rig.service.feed, map(item, (8, 9, 11, 10)))
    gap, *found = await take(rig.streams.subscribe("news", name="keep", after="7-9"), 3)
    assert isinstance(gap, Gap) and found == [item(11), item(10)]


async def test_a_reader_that_comes_too_late_is_told_of_the_gap(rig: Rig) -> None:
    rig.service.feed = Feed("fake.1", items_max=2)
    fill(rig.service.feed, map(item, range(1, 6)))
    gap, entry = await take(rig.streams.subscribe("news", name="audit", after="7-2"), 2)
    assert isinstance(gap, Gap) and gap.reason == "expired" and entry == item(4)
    [first] = await take(rig.streams.subscribe("news", name="audit", after="7-4"), 1)
    assert first == item(5), "it has had everything that was let go"


async def test_a_reader_of_a_stream_that_was_created_anew_gets_all_of_it_once(rig: Rig) -> None:
    """Its ids are lower than those of the stream before, of which the reader has its last id."""
    interest = EverythingKind().parse("")
    subscription = StreamSubscription(1, "news", "everything", interest, "audit", None, rig.service.feed)
    subscription.begin_anew(StreamPosition(5, 2))
    mark = ReceivedItem(type="lost", stream="news", id="5-2", reason=CREATED_ANEW)
    new = [item(number).model_copy(update={"id": f"5-{number}"}) for number in (3, 4, 5)]
    fill(rig.service.feed, new)
    for after, given in (("7-9", [mark, *new]), ("5-2", new), ("5-4", new[2:])):
        assert await take(rig.streams.subscribe("news", name="audit", after=after), len(given)) == given
    had: StreamPosition | None = item_order("7-9")
    dropped = []
    for entry in (mark, *new):
        dropped.append(_is_known(entry, had))
        _, had = _behind(entry, "7-9", had)
    assert not any(dropped), "nor does a client drop them that has read the stream before"


async def test_the_item_to_begin_after_counts_also_for_who_does_not_stay(rig: Rig) -> None:
    await rig.streams.install("news", StreamWish(name="audit"))
    for number in (1, 2, 3):
        rig.service.feed.push(item(number))
    path = "/v1/streams/news/subscriptions/audit/items?follow=0"
    for asked, begin in (("", 0), ("&after_item=start", 0), ("&after_item=7-2", 2), ("&after_item=7-3", 3)):
        *found, end = map(json.loads, (await rig.http.get(path + asked)).text.splitlines())
        assert [line["data"]["id"] for line in found] == ["7-1", "7-2", "7-3"][begin:]
        assert end["reason"] == "caught up"
    [first, *_] = (await rig.http.get(f"{path}&after_item=7-2&after=fake.1-1")).text.splitlines()
    assert json.loads(first)["data"]["id"] == "7-2", "the place in the feed is more exact"


async def test_an_id_that_is_none_is_refused(rig: Rig) -> None:
    await rig.streams.install("news", StreamWish())
    for path in (f"{ITEMS}?after=yesterday", "/v1/streams/news/subscriptions/s1/items?after_item=yesterday"):
        assert (await rig.http.get(path)).status_code == 422


async def test_a_browser_that_comes_back_goes_on_with_its_subscription(rig: Rig) -> None:
    rig.service.feed.push(item(1))
    rig.service.feed.push(item(2))
    headers = {"Accept": "text/event-stream"}
    first = await rig.http.get(f"{ITEMS}?interest=price>20&follow=0", headers=headers)
    assert first.headers["content-type"].startswith("text/event-stream")
    assert (
        'id: fake.1-1\ndata: {"stream":"news","id":"7-1","content_type":"text/plain","payload":"item 1"}' in first.text
    )
    again = await rig.http.get(f"{ITEMS}?interest=price>20&follow=0", headers={**headers, "Last-Event-ID": "fake.1-1"})
    assert "7-1" not in again.text and "7-2" in again.text
    assert len(rig.service.asked("subscribe")) == 1
    foreign = await rig.http.get(f"{ITEMS}?follow=0&after=older.1-1")
    assert '"reason":"restarted"' in foreign.text and len(rig.service.asked("subscribe")) == 2


async def test_after_a_restart_the_subscription_is_made_anew_behind_the_last_item(rig: Rig) -> None:
    fill(rig.service.feed, [item(1), item(2)], is_final=False)
    entries = rig.streams.subscribe("news", "price > 20", backoff=Backoff(0.0, 0.0))
    assert [(await anext(entries)).id for _ in range(2)] == ["7-1", "7-2"]
    rig.service.held.clear()
    rig.service.feed = Feed("fake.2")
    fill(rig.service.feed, [item(2), item(3)])  # one more than was asked for
    found = await take(entries, 2)
    assert [each.type for each in found] == ["end", "item"] and found[1] == item(3)
    assert [each.after for each in rig.service.asked("subscribe")] == [None, "7-2"]


async def test_after_a_restart_all_values_are_taken_anew_in_their_new_order(rig: Rig) -> None:
    rig.service.view = rig.service.view.model_copy(update={"kind": "coherency"})
    fill(rig.service.feed, [item(2)], is_final=False)
    entries = rig.streams.subscribe("news", "A, B", backoff=Backoff(0.0, 0.0))
    assert await anext(entries) == item(2)
    rig.service.held.clear()
    rig.service.feed = Feed("fake.2")
    fill(rig.service.feed, [item(1), item(2), item(3)])  # the first was not there before
    assert (await take(entries, 4))[1:] == [item(1), item(2), item(3)]


async def test_a_refused_interest_is_an_error_at_once(rig: Rig) -> None:
    rig.service.refusal = StreamRefused("invalid", "no valid XPath")
    with pytest.raises(RequestRefused, match="no valid XPath"):
        await take(rig.streams.subscribe("news", "//["), 1)
    assert not any(isinstance(each, ReceivedItem) for each in rig.service.held)
