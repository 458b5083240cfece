"""Feeds over HTTP with the real server: formats, resume, slow clients, clients that hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from socket import socketpair
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from peerd.daemon.http import streaming
from peerd.daemon.http.caller import queued_in_kernel
from peerd.daemon.http.protocol import SEND_BUFFER_BYTES
from peerd.daemon.http.streaming import Wish
from peerd.lib.feed import TOO_SLOW, Place, Policy, Position
from tests.support.both_loops import both_loops
from tests.support.feeds import Rig, serving, until

BIG = "x" * 20_000


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with serving(tmp_path) as running:
        yield running


def push(rig: Rig, *values: object) -> None:
    for value in values:
        rig.notes.feed.push(value, 1)


async def whole(rig: Rig, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=rig.url) as http:
        return await http.get(path, headers=headers)


def lines(response: httpx.Response) -> list[Any]:
    return [json.loads(line) for line in response.text.splitlines()]


# --- formats --------------------------------------------------------------------------------------------------------


async def test_json_lines(rig: Rig) -> None:
    push(rig, "a", {"b": "ü\n"})
    response = await whole(rig, "/v1/notes?follow=0")
    assert response.headers["content-type"] == "application/x-ndjson"
    assert lines(response) == [
        {"type": "item", "id": "e1-1", "data": "a"},
        {"type": "item", "id": "e1-2", "data": {"b": "ü\n"}},
        {"type": "end", "id": "e1-2", "reason": "caught up", "is_final": True},
    ]


async def test_server_sent_events(rig: Rig) -> None:
    push(rig, "a", "b")
    rig.notes.feed.end("finished", is_final=True)
    response = await whole(rig, "/v1/notes", Accept="text/event-stream")
    assert response.headers["content-type"] == "text/event-stream"
    end = '{"type":"end","id":"e1-2","reason":"finished","is_final":true}'
    events = ["retry: 1000", 'id: e1-1\ndata: "a"', 'id: e1-2\ndata: "b"', f"event: end\nid: e1-2\ndata: {end}"]
    assert response.text == "".join(f"{event}\n\n" for event in events)


async def test_a_browser_that_comes_back_to_a_finished_stream_is_told_to_stay_away(rig: Rig) -> None:
    push(rig, "a")
    rig.notes.feed.end("finished", is_final=True)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "e1-1"}
    assert (await whole(rig, "/v1/notes?after=start", **headers)).status_code == 204


@pytest.mark.parametrize(
    ("path", "headers", "status", "words"),
    [
        ("/v1/notes", {"Accept": "image/png"}, 406, "text/event-stream"),
        ("/v1/notes?after=twelve", {}, 422, "id of an item"),
        ("/v1/notes?after=" + "1" * 500, {}, 422, "at most"),
        ("/v1/notes", {"Last-Event-ID": "e1-one"}, 422, "id of an item"),
    ],
)
async def test_what_cannot_be_asked_is_a_problem(
    rig: Rig, path: str, headers: dict[str, str], status: int, words: str
) -> None:
    response = await whole(rig, path, **headers)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert words in response.json()["detail"]


async def test_resume_and_the_gap_that_it_may_find(rig: Rig) -> None:
    push(rig, *range(1, 103))
    kept = lines(await whole(rig, "/v1/notes?follow=0&after=e1-99"))
    assert [line["data"] for line in kept[:-1]] == [100, 101, 102]
    gap, first, *_ = lines(await whole(rig, "/v1/notes?follow=0&after=e1-1"))
    assert gap == {"type": "gap", "id": "e1-2", "reason": "expired", "first": 2, "last": 2, "count": 1}
    assert first["id"] == "e1-3"
    gap, first, *_ = lines(await whole(rig, "/v1/notes?follow=0&after=e0-50"))
    assert (gap["reason"], gap["count"], first["id"]) == ("restarted", None, "e1-3")


@pytest.mark.parametrize("follow", [True, False])
def test_a_wish_without_a_place_begins_where_the_feed_says(follow: bool) -> None:
    wanted = Wish(None, follow)
    defaults: tuple[Place, ...] = (Position("e1", 3), "start")
    for default in defaults:
        assert wanted.beginning(default) == default
    assert wanted.beginning("now") == ("now" if follow else "start")
    assert Wish("now", follow).beginning("start") == "now"


async def test_the_header_of_a_browser_is_newer_than_its_address(rig: Rig) -> None:
    push(rig, "a", "b")
    found = lines(await whole(rig, "/v1/notes?follow=0&after=start", **{"Last-Event-ID": "e1-1"}))
    assert [line["id"] for line in found if line["type"] == "item"] == ["e1-2"]


# --- life -----------------------------------------------------------------------------------------------------------


async def test_a_silent_stream_says_where_it_is_and_that_it_lives(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "HEARTBEAT_S", 0.01)
    push(rig, "a")
    async with httpx.AsyncClient() as http, http.stream("GET", f"{rig.url}/v1/notes?after=now") as response:
        found = response.aiter_lines()
        for _ in range(3):
            assert json.loads(await anext(found)) == {"type": "heartbeat", "id": "e1-1"}
        push(rig, "b")
        while (line := json.loads(await anext(found)))["type"] == "heartbeat":
            pass
        assert line["id"] == "e1-2"


async def test_heartbeats_of_server_sent_events_are_comments_that_move_the_id(rig: Rig) -> None:
    push(rig, "a")
    headers = {"Accept": "text/event-stream"}
    url = f"{rig.url}/v1/notes?after=now"
    async with httpx.AsyncClient() as http, http.stream("GET", url, headers=headers) as response:
        found = response.aiter_lines()
        assert [await anext(found) for _ in range(5)] == ["retry: 1000", "", ": heartbeat", "id: e1-1", ""]


async def test_who_wants_little_of_a_busy_stream_still_moves_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only items that it does not want are pushed: the heartbeats tell how far it has read all the same."""
    monkeypatch.setattr(streaming, "HEARTBEAT_S", 0.01)
    async with (
        httpx.AsyncClient() as http,
        http.stream("GET", f"{rig.operators_url}/v1/events?kind=wanted") as response,
    ):
        found = response.aiter_lines()
        seen: set[str] = set()
        while len(seen) < 3:
            rig.daemon.events.push({"event": "unwanted"})
            line = json.loads(await anext(found))
            assert line["type"] == "heartbeat"
            seen.add(line["id"])
        rig.daemon.events.push({"event": "wanted"})
        while (line := json.loads(await anext(found)))["type"] == "heartbeat":
            pass
        assert line["data"] == {"event": "wanted"}


async def test_the_document_tells_of_both_formats_and_of_the_lines(rig: Rig) -> None:
    notes = (await whole(rig, "/v1/openapi.json")).json()["paths"]["/v1/notes"]
    assert list(notes["get"]["responses"]["200"]["content"]) == ["application/x-ndjson", "text/event-stream"]
    assert list(notes["post"]["requestBody"]["content"]) == ["application/x-ndjson"]
    assert {parameter["name"] for parameter in notes["get"]["parameters"]} == {"after", "follow", "last-event-id"}


@pytest.mark.parametrize("first", ["now", "start"])
async def test_hanging_up_frees_the_reader_at_once(rig: Rig, first: str) -> None:
    push(rig, "a")
    async with httpx.AsyncClient() as http, http.stream("GET", f"{rig.url}/v1/notes?after={first}") as response:
        found = response.aiter_lines()
        await anext(found)
        assert rig.notes.feed.readers == 1
    await until(lambda: rig.notes.feed.readers == 0)


async def test_stopping_the_server_lets_streams_end_with_their_reason(rig: Rig) -> None:
    async with httpx.AsyncClient() as http, http.stream("GET", f"{rig.url}/v1/notes") as response:
        found = response.aiter_lines()
        await anext(found)
        rig.notes.feed.end("daemon stopping")
        await asyncio.wait_for(rig.server.stop(), 30)
        end = {"type": "end", "id": "e1-0", "reason": "daemon stopping", "is_final": False}
        assert [json.loads(line) async for line in found] == [end]


async def test_streams_are_bounded(rig: Rig) -> None:
    rig.notes.feed.readers_max = 1
    async with httpx.AsyncClient() as http, http.stream("GET", f"{rig.url}/v1/notes") as response:
        found = response.aiter_lines()
        await anext(found)
        refused = await http.get(f"{rig.url}/v1/notes")
        assert refused.status_code == 503 and "1 readers already" in refused.json()["detail"]


# --- clients that do not read ---------------------------------------------------------------------------------------


async def stuck(rig: Rig) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that asked for the stream, and reads nothing but its beginning."""
    reader, writer = await rig.connect("GET /v1/notes HTTP/1.1")
    await rig.head(reader)
    transport: Any = writer.transport
    transport.pause_reading()
    return reader, writer


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def fill(rig: Rig, megabytes: int) -> int:
    """Push more than all buffers on the way can hold; how many items."""
    count = megabytes * 50
    for _ in range(count):
        push(rig, BIG)
        await asyncio.sleep(0)
    return count


@both_loops
async def test_a_slow_client_costs_a_bounded_buffer_and_is_told_what_it_lost(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        reader, writer = await stuck(rig)
        count = await fill(rig, 20)
        assert rig.notes.feed.readers == 1
        transport: Any = writer.transport
        transport.resume_reading()
        rig.notes.feed.end("over")
        body = b""
        while b'"type":"end"' not in body:
            body += await reader.read(1 << 20)
        found = [json.loads(line) for line in body.split(b"\n") if line.startswith(b"{")]
        dropped = [line["count"] for line in found if line["type"] == "dropped"]
        items = [line["id"] for line in found if line["type"] == "item"]
        assert dropped and sum(dropped) + len(items) == count
        sent_at_first = items.index(f"e1-{int(items[-1][3:]) - 99}")  # the last hundred were in the feed
        assert sent_at_first * len(BIG) < 8 * SEND_BUFFER_BYTES, "what the kernel took is bounded, whatever was pushed"
        await hang_up(writer)


@both_loops
async def test_a_client_that_may_not_lag_is_told_why_it_is_ended_when_it_reads_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        rig.notes.policy = Policy.DISCONNECT
        reader, writer = await stuck(rig)
        await fill(rig, 20)
        await until(lambda: rig.notes.feed.readers == 0)
        transport: Any = writer.transport
        transport.resume_reading()
        body = b""
        while b'"type":"end"' not in body and (chunk := await reader.read(1 << 20)):
            body += chunk
        found = [json.loads(line) for line in body.split(b"\n") if line.startswith(b"{")]
        items = [line["id"] for line in found if line["type"] == "item"]
        end = found[-1]
        assert (end["type"], end["reason"], end["is_final"]) == ("end", TOO_SLOW, False)
        assert items == [f"e1-{number}" for number in range(1, len(items) + 1)] and end["id"] == items[-1]
        await hang_up(writer)


@pytest.mark.parametrize("takes", [0, 1])
async def test_a_client_that_takes_a_little_now_and_then_is_not_cut_off(
    takes: int, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [0]

    def unsent(scope: object) -> int:
        looks[0] += 1
        return (1 << 40) - takes * looks[0]

    monkeypatch.setattr(streaming, "unsent", unsent)
    monkeypatch.setattr(streaming, "STALL_LOOK_S", 0.01)
    monkeypatch.setattr(streaming, "STALL_MAX_S", 0.2)
    _, writer = await stuck(rig)
    await fill(rig, 20)
    if takes:
        seen = looks[0]
        await until(lambda: looks[0] > seen + 60)  # three times as long
        assert rig.notes.feed.readers == 1
    else:
        await until(lambda: rig.notes.feed.readers == 0)
    await hang_up(writer)


async def test_bytes_that_a_client_has_not_taken_are_counted_in_the_kernel_as_well() -> None:
    ours, theirs = socketpair()
    with ours, theirs:
        ours.sendall(b"x" * 1000)
        waiting = queued_in_kernel(ours)
        assert waiting >= 1000  # of a unix socket the kernel counts its own bookkeeping as well
        theirs.recv(1000)
        assert queued_in_kernel(ours) < waiting
    assert queued_in_kernel(ours) == queued_in_kernel(None) == 0


@both_loops
async def test_a_client_that_blocks_holds_the_producer_until_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as rig:
        monkeypatch.setattr(streaming, "STALL_BLOCKING_S", 0.2)
        rig.notes.policy = Policy.BLOCK
        _, writer = await stuck(rig)
        feed = rig.notes.feed
        while feed.may_push(1):
            feed.push(BIG, 1)
            await asyncio.sleep(0)
        assert feed.last > 100 and feed.readers == 1
        await until(lambda: feed.readers == 0)
        assert feed.may_push(1)
        await hang_up(writer)


# --- WebSocket ------------------------------------------------------------------------------------------------------


def websocket(rig: Rig, path: str = "/v1/notes", **options: Any) -> connect:
    return connect(rig.url.replace("http", "ws") + path, proxy=None, **options)


async def received(socket: ClientConnection) -> list[Any]:
    """Everything until it is closed."""
    found: list[Any] = []
    with suppress(ConnectionClosed):
        while True:
            found.append(json.loads(await socket.recv()))
    return found


async def test_the_same_lines_over_websocket(rig: Rig) -> None:
    push(rig, "a", "b")
    async with websocket(rig, "/v1/notes?after=e1-1&follow=0") as socket:
        assert await received(socket) == [
            {"type": "item", "id": "e1-2", "data": "b"},
            {"type": "end", "id": "e1-2", "reason": "caught up", "is_final": True},
        ]
    assert (socket.close_code, socket.close_reason) == (1000, "caught up")


async def test_a_websocket_follows_and_hanging_up_frees_it(rig: Rig) -> None:
    async with websocket(rig) as socket:
        assert json.loads(await socket.recv()) == {"type": "heartbeat", "id": "e1-0"}
        await socket.send("ignored")
        push(rig, "a")
        assert json.loads(await socket.recv())["data"] == "a"
        assert rig.notes.feed.readers == 1
    await until(lambda: rig.notes.feed.readers == 0)


async def test_the_close_code_says_whether_to_come_back(rig: Rig) -> None:
    async with websocket(rig) as socket:
        await socket.recv()
        rig.notes.feed.end("plugin restarted" + "ü" * 100)  # longer than a close frame takes
        (end,) = await received(socket)
    assert end["reason"] == "plugin restarted" + "ü" * 100 and not end["is_final"]
    assert (socket.close_code, socket.close_reason) == (1001, "plugin restarted" + "ü" * 53)


async def test_a_slow_websocket_is_told_to_try_again_later(rig: Rig) -> None:
    rig.notes.policy = Policy.DISCONNECT
    async with websocket(rig) as socket:
        await socket.recv()
        push(rig, *range(200))  # at once: the connection is not stuck, its reader is
        (end,) = await received(socket)
    assert (end["reason"], socket.close_code) == (TOO_SLOW, 1013)


@pytest.mark.parametrize("end", ["cut off", "hangs up"])
async def test_a_stuck_websocket_that_ends_frees_everything_without_noise(
    rig: Rig, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    if end == "cut off":
        rig.notes.policy = Policy.DISCONNECT
    async with websocket(rig) as socket:
        await socket.recv()
        socket.transport.pause_reading()
        await fill(rig, 20)
        assert rig.notes.feed.readers == (0 if end == "cut off" else 1)
        socket.transport.abort()
        await until(lambda: rig.notes.feed.readers == 0)
    await rig.server.stop()
    assert not caplog.records


async def test_a_websocket_that_takes_nothing_is_cut_off(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streaming, "STALL_LOOK_S", 0.01)
    monkeypatch.setattr(streaming, "STALL_MAX_S", 0.1)
    async with websocket(rig) as socket:
        await socket.recv()
        socket.transport.pause_reading()
        await fill(rig, 20)
        await until(lambda: rig.notes.feed.readers == 0)
        socket.transport.abort()
    await rig.server.stop()
    assert not caplog.records


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
        ({"Origin": "null"}, 403),
    ],
)
async def test_web_pages_of_others_may_not_open_one(rig: Rig, headers: dict[str, str], status: int) -> None:
    host = headers.pop("Host", f"127.0.0.1:{rig.server.data_http_port}")
    given = [f"{name}: {value}" for name, value in headers.items()]
    key = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.server.data_http_port)
    head = ["GET /v1/notes HTTP/1.1", f"Host: {host}", *key, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *given]
    writer.write("\r\n".join([*head, "", ""]).encode())
    assert f" {status} " in (await rig.head(reader)).splitlines()[0]
    assert rig.notes.feed.readers == 0
    await hang_up(writer)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v1/notes", 503, "0 readers already"),
        ("/v1/notes?after=wrong", 422, "id of an item"),
    ],
)
async def test_what_cannot_be_opened_is_a_problem_and_no_noise(
    rig: Rig, path: str, status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.notes.feed.readers_max = 0
    with pytest.raises(InvalidStatus) as refused:
        await websocket(rig, path).__aenter__()
    told = json.loads(refused.value.response.body)
    assert (told["status"], refused.value.response.status_code) == (status, status) and words in told["detail"]
    assert not caplog.records


async def test_a_plugin_that_is_off_is_a_problem(rig: Rig) -> None:
    rig.daemon.disabled_plugins = {"notes": "it failed"}
    with pytest.raises(InvalidStatus) as refused:
        await websocket(rig).__aenter__()
    assert refused.value.response.status_code == 503
    assert (await whole(rig, "/v1/notes")).status_code == 503


async def test_a_long_message_from_a_client_costs_it_the_connection(rig: Rig) -> None:
    async with websocket(rig) as socket:
        await socket.recv()
        with pytest.raises(ConnectionClosedError, match="1009"):
            await socket.send("x" * 100_000)
            await socket.recv()
