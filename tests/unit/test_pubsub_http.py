"""The routes below ``/v1/pubsub``: bodies, CloudEvents, JSON lines, streams, and what refusals look like."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from peerd.client import Client, DaemonBusy, IngestRefused, RequestRefused
from peerd.client.streams import Backoff, Gap
from peerd.daemon.http import paying
from peerd.errors import Unavailable
from peerd.lib.feed import Feed
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.models import Published, ReceivedEvent, SubscriptionView
from protocols.pubsub.names import EventId
from protocols.pubsub.publishing.outcomes import QueueFull
from protocols.pubsub.service import NotDone
from tests.support.fake_daemon import LOCAL_OPERATOR, FakeDaemon
from tests.support.fake_pubsub import DOCUMENT, FakePubSub, published, received

EVENTS = "/v1/pubsub/stocks/events"
LINES = {"Content-Type": "application/x-ndjson"}


@dataclass
class Rig:
    """The service behind the API, and two clients of it."""

    service: FakePubSub
    http: httpx.AsyncClient
    client: Client

    @property
    def pubsub(self) -> PubSubClient:
        """The client's methods."""
        return PubSubClient(self.client)

    def asked(self, name: str) -> list[Any]:
        """The arguments of all calls of a method."""
        return [arguments for called, arguments in self.service.calls if called == name]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    service = FakePubSub()
    daemon = FakeDaemon({"pubsub": service})
    async with daemon.http(caller=LOCAL_OPERATOR, client=None) as http, daemon.client() as client:
        yield Rig(service, http, client)


async def test_a_schema_is_declared_under_the_name_of_the_path(rig: Rig) -> None:
    response = await rig.http.put("/v1/pubsub/schemas/stocks?if_version=0", json={"attributes": []})
    assert response.json() == {"name": "stocks", "version": 1, "is_new": True}
    assert rig.asked("declare") == [({"name": "stocks", "attributes": []}, 0)]
    other = await rig.http.put("/v1/pubsub/schemas/stocks", json={"name": "bonds"})
    assert (other.status_code, other.json()["detail"]) == (
        422,
        "the document's name is 'bonds', and the path's 'stocks'",
    )


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", None])
async def test_a_body_that_is_not_said_to_be_json_is_told_what_to_send(rig: Rig, kind: str | None) -> None:
    """As ``curl -d`` sends it without a header."""
    headers = {} if kind is None else {"Content-Type": kind}
    body = b'{"schema": "stocks", "filter": "TRUE"}'
    response = await rig.http.post("/v1/pubsub/subscriptions", content=body, headers=headers)
    assert response.status_code == 415
    assert response.json()["detail"].startswith("send the body with the header Content-Type: application/json; it came")
    as_list = await rig.http.post("/v1/pubsub/subscriptions", json=[1])
    assert as_list.status_code == 422


async def test_schemas_are_listed_and_looked_up(rig: Rig) -> None:
    assert [each.name for each in await rig.pubsub.schemas()] == ["stocks"]
    assert await rig.pubsub.schema("stocks") == DOCUMENT
    response = await rig.http.get("/v1/pubsub/schemas/nowhere")
    assert (response.status_code, response.json()["detail"]) == (404, "there is no schema nowhere")


@pytest.mark.parametrize("name", ["9lives", "a" * 65, "a%20b"])
async def test_a_name_that_no_schema_can_have_is_refused(rig: Rig, name: str) -> None:
    assert (await rig.http.get(f"/v1/pubsub/schemas/{name}")).status_code == 422


async def test_an_event_is_published_and_its_outcome_told(rig: Rig) -> None:
    response = await rig.http.post(f"{EVENTS}?ack=received", json={"symbol": "IBM", "_payload": "hello"})
    assert response.json() == published(1).model_dump()
    assert rig.asked("publish") == [({"symbol": "IBM", "_payload": "hello"}, "received")]
    assert rig.service.rooms == 1


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{", "the body is not JSON"),
        (b"1", "an event is a JSON object"),
        (b"[1]", "1 event, 1 refused, 0 without a certain outcome: an event is a JSON object"),
        (b"[" * 10_000, "the body is not JSON"),
    ],
)
async def test_what_is_no_event_is_refused(rig: Rig, body: bytes, detail: str) -> None:
    response = await rig.http.post(EVENTS, content=body)
    assert response.status_code == 422 and detail in response.json()["detail"]
    assert rig.asked("publish") == []


async def test_an_event_of_a_schema_that_there_is_not_is_refused(rig: Rig) -> None:
    response = await rig.http.post("/v1/pubsub/bonds/events", json={"a": 1})
    assert (response.status_code, response.json()["detail"]) == (404, "there is no schema bonds")


@pytest.mark.parametrize(("kind", "status"), [("unknown", 404), ("conflict", 409), ("invalid", 422), ("quota", 429)])
async def test_a_refusal_has_the_status_of_its_kind(rig: Rig, kind: str, status: int) -> None:
    rig.service.refusal = NotDone(kind, "because")
    for response in (
        await rig.http.post(EVENTS, json={}),
        await rig.http.post("/v1/pubsub/subscriptions", json={"schema": "stocks"}),
        await rig.http.patch("/v1/pubsub/subscriptions/0a", json={"filter": "TRUE"}),
        await rig.http.delete("/v1/pubsub/subscriptions/0a"),
        await rig.http.get("/v1/pubsub/subscriptions/0a/events"),
        await rig.http.get(f"{EVENTS}?filter=TRUE"),
        await rig.http.get("/v1/pubsub/explain/e"),
        await rig.http.get("/v1/pubsub/stocks/tree"),
    ):
        assert (response.status_code, response.json()["detail"]) == (status, "because")


async def test_what_cannot_be_done_now_says_so(rig: Rig) -> None:
    rig.service.refusal = Unavailable("too many")
    with pytest.raises(DaemonBusy, match="too many"):
        await rig.pubsub.publish("stocks", {})


# --- CloudEvents ----------------------------------------------------------------------------------------------------

CONTEXT = {"specversion": "1.0", "id": "1", "source": "/exchange", "type": "trade"}
OTHERS = [["ce-specversion", "1.0"], ["ce-id", "1"], ["ce-source", "/exchange"]]
"""The context that is not in the schema."""


@pytest.mark.parametrize(
    ("data", "event"),
    [
        ({"data": {"symbol": "IBM"}}, {"symbol": "IBM"}),
        ({"data": {"type": "own"}}, {"type": "own"}),
        ({"data": "text", "datacontenttype": "text/plain"}, {"_payload": "text", "_content_type": "text/plain"}),
        ({"data": [1, 2]}, {"_payload": "[1, 2]", "_content_type": ""}),
        ({"data_base64": "AA=="}, {"_payload_base64": "AA==", "_content_type": ""}),
        ({}, {}),
    ],
)
async def test_a_cloud_event_in_structured_mode(rig: Rig, data: dict[str, Any], event: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
    response = await rig.http.post(EVENTS, content=json.dumps(CONTEXT | data), headers=headers)
    assert response.status_code == 200
    assert rig.asked("publish") == [({"type": "trade", "_headers": OTHERS} | event, None)]


async def test_extensions_of_a_cloud_event_are_headers_as_text(rig: Rig) -> None:
    headers = {"Content-Type": "application/cloudevents+json"}
    cloud: dict[str, Any] = CONTEXT | {"retries": 3, "sampled": True, "subject": None, "data": {}}
    assert (await rig.http.post(EVENTS, content=json.dumps(cloud), headers=headers)).status_code == 200
    [(event, _)] = rig.asked("publish")
    assert event["_headers"] == [*OTHERS, ["ce-retries", "3"], ["ce-sampled", "true"]]


@pytest.mark.parametrize(
    ("kind", "body", "event"),
    [
        ("application/json", b' {"symbol": "IBM"}', {"symbol": "IBM"}),
        ("text/plain", b"{", {"_payload_base64": base64.b64encode(b"{").decode(), "_content_type": "text/plain"}),
        ("application/json", b"", {}),
    ],
)
async def test_a_cloud_event_in_binary_mode(rig: Rig, kind: str, body: bytes, event: dict[str, Any]) -> None:
    headers = {f"ce-{name}": value for name, value in CONTEXT.items()} | {"Content-Type": kind}
    assert (await rig.http.post(EVENTS, content=body, headers=headers)).status_code == 200
    assert rig.asked("publish") == [({"type": "trade", "_headers": OTHERS} | event, None)]


async def test_a_cloud_event_that_comes_again_keeps_its_name(rig: Rig) -> None:
    headers = {"Content-Type": "application/cloudevents+json"}
    for id in ("1", "1", "2"):
        assert (await rig.http.post(EVENTS, json=CONTEXT | {"id": id}, headers=headers)).status_code == 200
    await rig.http.post(EVENTS, json={"symbol": "A"})
    assert rig.service.names == ["/exchange\x001", "/exchange\x001", "/exchange\x002", ""]


async def test_a_batch_of_cloud_events_has_an_outcome_for_each(rig: Rig) -> None:
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    batch = [CONTEXT | {"data": {"symbol": "A"}}, {"id": "2"}, CONTEXT | {"id": "3", "data": {"symbol": "B"}}, 7]
    response = await rig.http.post(EVENTS, json=batch, headers=headers)
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    told = response.json()
    assert [each["outcome"] for each in told["outcomes"]] == ["replicated", "refused", "replicated", "refused"]
    assert "there is no specversion" in told["outcomes"][1]["detail"] and "4 events, 2 refused" in told["detail"]
    assert [event["symbol"] for event, _ in rig.asked("publish")] == ["A", "B"]
    assert rig.service.names == ["/exchange\x001", "/exchange\x003"]
    response = await rig.http.post(EVENTS, json=[batch[0]] * 2, headers=headers)
    assert response.status_code == 200 and len(response.json()["outcomes"]) == 2


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (json.dumps({"id": "1"}), 422, "a batch is an array"),
        ("[" + ",".join(["{}"] * 1001) + "]", 422, "at most 1000 events"),
        ('[{"a": "' + "x" * 1_200_000 + '"}]', 413, "at most"),
    ],
)
async def test_what_is_no_batch_is_refused(rig: Rig, body: str, status: int, words: str) -> None:
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    response = await rig.http.post(EVENTS, content=body, headers=headers)
    assert response.status_code == status and words in response.json()["detail"]


async def test_the_client_is_told_the_outcome_of_each_event_of_a_batch(rig: Rig) -> None:
    answers: list[Published | Exception] = [published(1), Unavailable("gone"), published(3, "unknown")]
    rig.service.outcome = lambda number: answers[number - 1]
    outcomes = await rig.pubsub.publish_batch("stocks", [{"n": number} for number in range(3)], ack="received")
    assert [each.outcome for each in outcomes] == ["replicated", "unknown", "unknown"]
    assert outcomes[1].detail == "gone" and rig.asked("publish")[0] == ({"n": 0}, "received")
    rig.service.refusal = NotDone("invalid", "no number")
    assert [each.outcome for each in await rig.pubsub.publish_batch("stocks", [{"n": 1}])] == ["refused"]


# --- many -----------------------------------------------------------------------------------------------------------


async def test_many_events_are_published_line_by_line(rig: Rig) -> None:
    answer = await rig.pubsub.publish_many("stocks", ({"n": number} for number in range(5)), ack="received")
    assert (answer.accepted, answer.refused, answer.is_complete) == (5, 0, True)
    assert rig.asked("publish") == [({"n": number}, "received") for number in range(5)]


async def test_lines_that_came_together_are_published_in_one_turn_of_the_event_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, turns, seen = asyncio.get_running_loop(), 0, []
    publish = rig.service.publish

    def turn() -> None:
        nonlocal turns
        turns += 1
        ticking.append(loop.call_soon(turn))

    def noting(*arguments: Any) -> EventId:
        seen.append(turns)
        return publish(*arguments)

    ticking = [loop.call_soon(turn)]
    monkeypatch.setattr(rig.service, "publish", noting)
    monkeypatch.setattr(paying, "TURN_S", 60.0)  # a machine that stands still meanwhile takes none of theirs
    response = await rig.http.post(EVENTS, content=b'{"a": 1}\n' * 100, headers=LINES)
    ticking[-1].cancel()
    assert response.json()["accepted"] == 100
    assert len(set(seen)) == 1, "they can go as one batch; a turn for each would make a message of each"


@pytest.mark.parametrize("body", [b'{"a": 1}\n{"a": 2}\n', None])
async def test_who_finds_the_room_taken_by_others_waits_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, body: bytes | None
) -> None:
    publish, refusals = rig.service.publish, [QueueFull("full"), QueueFull("full")]

    def contended(*arguments: Any) -> EventId:
        if refusals:
            raise refusals.pop()
        return publish(*arguments)

    monkeypatch.setattr(rig.service, "publish", contended)
    if body is None:
        response = await rig.http.post(EVENTS, json={"a": 1})
    else:
        response = await rig.http.post(EVENTS, content=body, headers=LINES)
    assert response.status_code == 200
    assert [event for event, _ in rig.asked("publish")] == [{"a": 1}, {"a": 2}][: 1 if body is None else 2]
    assert rig.service.rooms == (3 if body is None else 2)


async def test_wrong_lines_are_named_and_the_others_published(rig: Rig) -> None:
    body = b'{"a": 1}\nrubbish\n\n[]\n{"a": 2}\n'
    response = await rig.http.post(EVENTS, content=body, headers=LINES)
    told = response.json()
    assert (response.status_code, told["accepted"], told["refused"]) == (422, 2, 2)
    assert [error["line"] for error in told["errors"]] == [2, 4]
    assert [event for event, _ in rig.asked("publish")] == [{"a": 1}, {"a": 2}]


async def test_events_that_are_refused_are_named(rig: Rig) -> None:
    rig.service.refusal = NotDone("invalid", "price: no")
    with pytest.raises(IngestRefused) as refused:
        await rig.pubsub.publish_many("stocks", [{}, {}])
    assert [(error.line, error.detail) for error in refused.value.answer.errors] == [(1, "price: no"), (2, "price: no")]


async def test_an_uncertain_outcome_of_one_makes_the_answer_uncertain(rig: Rig) -> None:
    rig.service.outcome = lambda number: published(
        number, "unknown" if number % 3 == 2 else "replicated", "a leaf is silent"
    )
    response = await rig.http.post(EVENTS, content=b"{}\n{}\n{}\n", headers=LINES)
    told = response.json()
    assert (response.status_code, told["accepted"], told["failed"], told["is_complete"]) == (503, 2, 1, True)
    assert told["detail"] == "1 of 3 lines have no certain outcome, or have failed: a leaf is silent"
    [named] = told["errors"]
    assert named.pop("line") in (1, 2, 3)
    assert named == {"outcome": "unknown", "detail": "a leaf is silent"}
    with pytest.raises(IngestRefused, match="a leaf is silent") as refused:
        await rig.pubsub.publish_many("stocks", [{}, {}, {}])
    assert (refused.value.answer.accepted, refused.value.answer.failed) == (2, 1)


# --- subscriptions --------------------------------------------------------------------------------------------------


async def test_a_subscription_is_made_changed_and_ended(rig: Rig) -> None:
    asked = {"schema": "stocks", "filter": {"price": [1]}, "name": "audit", "policy": "block", "since_s": 60}
    response = await rig.http.post("/v1/pubsub/subscriptions", json=asked)
    assert (response.status_code, response.json()["schema"], response.json()["id"]) == (201, "stocks", "0a")
    [request] = rig.asked("subscribe")
    assert (request.schema_name, request.filter, request.since_s) == ("stocks", {"price": [1]}, 60.0)
    assert (await rig.pubsub.change("0a", "price > 1")).filter == "price > 1"
    assert (await rig.pubsub.end("0a")).state == "ending"
    assert [view.covered_by for view in await rig.pubsub.subscriptions()] == [None, "0a"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"policy": "hope"}, "policy"),
        ({"fliter": "x"}, "fliter"),
        ({"name": "a b"}, "name"),
        ({"since_s": -1}, "since_s"),
        ({"filter": "x" * 10_000}, "a filter has at most 8192 characters"),
    ],
)
async def test_what_is_no_subscription_is_refused(rig: Rig, wrong: dict[str, Any], words: str) -> None:
    response = await rig.http.post("/v1/pubsub/subscriptions", json={"schema": "stocks", **wrong})
    assert response.status_code == 422 and words in response.json()["detail"]
    assert rig.asked("subscribe") == []


async def test_events_are_read_as_lines_and_resumed(rig: Rig) -> None:
    for number in range(3):
        rig.service.feed.push(received(number), 100)
    path = "/v1/pubsub/subscriptions/0a/events?follow=0"
    lines = [json.loads(line) for line in (await rig.http.get(path)).text.splitlines()]
    items = [line for line in lines if line["type"] == "item"]
    assert [item["data"]["event"] for item in items] == ["e0", "e1", "e2"]
    assert "payload" not in items[0]["data"], "what is empty is left out"
    rest = await rig.http.get(f"{path}&after={items[1]['id']}")
    assert [json.loads(line)["data"]["event"] for line in rest.text.splitlines() if '"item"' in line] == ["e2"]


async def test_events_are_read_as_server_sent_events_and_resumed_by_the_header(rig: Rig) -> None:
    for number in range(3):
        rig.service.feed.push(received(number), 100)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "fake.1-2"}
    response = await rig.http.get("/v1/pubsub/subscriptions/0a/events?follow=0", headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line for line in response.text.splitlines() if line.startswith("data: ") and '"event"' in line]
    assert [json.loads(line[6:])["event"] for line in data] == ["e2"]


async def test_subscribe_and_follow_in_one_request(rig: Rig) -> None:
    rig.service.feed.push(received(1), 100)
    response = await rig.http.get(f"{EVENTS}?filter=price%20%3E%2020&group=g&since_s=5&follow=0")
    assert '"e1"' in response.text
    [request] = rig.asked("subscribe")
    assert (request.filter, request.group, request.since_s, request.name) == ("price > 20", "g", 5.0, "")


async def test_whoever_comes_back_to_a_one_request_subscription_goes_on(rig: Rig) -> None:
    for number in (1, 2):
        rig.service.feed.push(received(number), 100)
    place = {"Last-Event-ID": "fake.1-1", "Accept": "text/event-stream"}
    response = await rig.http.get(f"{EVENTS}?filter=TRUE&follow=0", headers=place)
    assert '"e2"' in response.text and '"e1"' not in response.text
    assert (rig.asked("continued"), rig.asked("subscribe")) == (["fake.1"], [])
    response = await rig.http.get(f"{EVENTS}?filter=TRUE&follow=0&after=other.1-1")
    assert '"gap"' in response.text and len(rig.asked("subscribe")) == 1


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("application/json", '{"symbol": "A", "price": NaN}', "NaN is no number in JSON"),
        ("application/cloudevents-batch+json", "{}", "a batch is an array"),
        ("application/cloudevents+json", '{"symbol": "A"}', "there is no specversion, id, source, type"),
        ("application/cloudevents+json", json.dumps(CONTEXT | {"id": 1}), "there is no id"),
        ("application/cloudevents+json", json.dumps(CONTEXT | {"specversion": "0.3"}), "not '0.3'"),
    ],
)
async def test_what_is_no_event_is_refused_with_what_to_do(rig: Rig, kind: str, body: str, words: str) -> None:
    response = await rig.http.post(EVENTS, content=body, headers={"Content-Type": kind})
    assert response.status_code == 422
    assert words in response.json()["detail"]
    assert rig.asked("publish") == []


async def test_a_cloud_event_in_binary_mode_without_its_context_is_refused(rig: Rig) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "Content-Type": "application/json"}
    response = await rig.http.post(EVENTS, content='{"symbol": "A"}', headers=headers)
    assert response.status_code == 422 and "there is no source, type" in response.json()["detail"]


async def test_the_client_yields_events_and_ends_its_subscription(rig: Rig) -> None:
    rig.service.feed.push(received(1), 100)
    rig.service.feed.end("finished", is_final=True)  # the transport of the test gives an answer as a whole
    async with aclosing(rig.pubsub.subscribe("stocks", "price > 20")) as entries:
        assert await anext(entries) == received(1)
        assert rig.asked("end") == []
    assert rig.asked("end") == ["0a"]


async def test_the_client_subscribes_again_where_a_restarted_daemon_knows_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = rig.service.feed, Feed[ReceivedEvent]("fake.2")
    before.push(received(1), 100)
    before.end("daemon stopping")
    after.push(received(2), 100)
    after.end("finished", is_final=True)
    unknown = NotDone("unknown", "there is no subscription '0a' on this node")
    turns: list[Feed[ReceivedEvent] | NotDone] = [before, unknown, after]

    def reading(id: str) -> tuple[SubscriptionView, Feed[ReceivedEvent]]:
        turn = turns.pop(0)
        if isinstance(turn, NotDone):
            raise turn
        return rig.service.view, turn

    monkeypatch.setattr(rig.service, "reading", reading)
    at_once = Backoff(first_s=0.0, most_s=0.0)
    async with aclosing(rig.pubsub.subscribe("stocks", "price > 20", since_s=60, backoff=at_once)) as entries:
        found = [entry async for entry in entries]
    assert found[0] == received(1) and received(2) in found
    assert isinstance(found[2], Gap) and found[2].reason == "restarted"
    assert [asked.since_s for asked in rig.asked("subscribe")] == [60.0, 0.0]
    assert rig.asked("end") == ["0a"]


async def test_the_client_does_not_repeat_what_is_refused(rig: Rig) -> None:
    rig.service.refusal = NotDone("invalid", "price is decimal")
    with pytest.raises(RequestRefused, match="price is decimal"):
        await anext(rig.pubsub.subscribe("stocks", "price > 'x'"))
    assert len(rig.asked("subscribe")) == 1


async def test_what_a_client_asks_wrongly_is_refused_by_the_daemon_in_words(rig: Rig) -> None:
    with pytest.raises(RequestRefused, match="name"):
        await anext(rig.pubsub.subscribe("stocks", name="no name"))
    with pytest.raises(RequestRefused, match="since_s"):
        await anext(rig.pubsub.subscribe("stocks", since_s=1e9))
    with pytest.raises(RequestRefused, match="filter"):
        await rig.pubsub.change("0a", "x" * 9000)
    assert rig.service.calls == []


async def test_a_durable_subscription_outlives_its_reader(rig: Rig) -> None:
    rig.service.feed.push(received(1), 100)
    rig.service.feed.end("finished", is_final=True)  # the transport of the test gives an answer as a whole
    async with aclosing(rig.pubsub.subscribe("stocks", name="audit")) as entries:
        assert isinstance(await anext(entries), ReceivedEvent)
    assert rig.asked("end") == []


# --- questions ------------------------------------------------------------------------------------------------------


async def test_an_explanation(rig: Rig) -> None:
    assert await rig.pubsub.explain("e-1-2", "ab") == rig.service.verdict
    assert rig.asked("explain") == [("e-1-2", "ab")]


async def test_a_tree(rig: Rig) -> None:
    view = await rig.pubsub.tree("stocks", "price")
    assert (view.schema_name, [cell.bits for cell in view.cells]) == ("stocks", ["", "0", "1"])
    with pytest.raises(RequestRefused):
        await rig.pubsub.tree("9lives")


async def test_a_body_that_breaks_off_logs_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    transport: Any = rig.http._transport
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": EVENTS,
        "raw_path": EVENTS.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"9")],
        "client": None,
        "server": None,
        "http_version": "1.1",
        "scheme": "http",
        "state": {},
    }
    scope["state"] = {"peerd_caller": LOCAL_OPERATOR}
    await transport.app(scope, receive, send)
    assert [each.get("status") for each in sent] == [400, None] and not caplog.records
    assert not rig.asked("publish")
