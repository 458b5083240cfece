"""What the client says when things go wrong: sentences that name the place and the remedy."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from peerd.client import (
    Client,
    DaemonBusy,
    DaemonUnreachable,
    RequestRefused,
    default_socket,
    run_sync,
)
from peerd.errors import Unavailable
from peerd.models.admin import PROBLEM_TYPE, Status
from peerd.models.routes import HttpRoute
from peerd.places import SOCKET_VARIABLE
from protocols.aggregation.answer import Answer
from protocols.aggregation.front.client import AggregationClient
from tests.support.fake_daemon import FakeDaemon


def client_of(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("/nowhere", transport=httpx.MockTransport(answer))


async def test_a_dead_socket_says_that_nobody_listens(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    async with Client(path) as client:
        with pytest.raises(DaemonUnreachable, match=r"nobody listens on that socket.*peerd run") as caught:
            await client.status()
    assert str(path) in str(caught.value)


async def test_a_daemon_that_refuses_a_large_body_by_its_head_is_heard(tmp_path: Path) -> None:
    """It closes the connection then. Sent at once the body broke the pipe, and no daemon was there, the client said."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 8\r\n\r\ntoo much")
        writer.close()

    path, anything = tmp_path / "admin.sock", HttpRoute("POST", "/anything", Status)
    async with await asyncio.start_unix_server(refuse, path), Client(path) as client:
        for size in (10, 64 * 1024, 64 * 1024 + 1, 9_000_000):
            with pytest.raises(RequestRefused, match="too much"):
                await client.call(anything, body=bytes(size), kind="text/plain")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "the connection was closed before the answer was complete"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "the connection was closed before"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "what answers there does not speak HTTP"),
    ],
)
async def test_an_answer_that_breaks_off_is_told_in_our_words(tmp_path: Path, answer: bytes, why: str) -> None:
    """As when a daemon dies while it is read from: the error was that of a library, and spoke of chunks."""

    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    path = tmp_path / "admin.sock"
    async with await asyncio.start_unix_server(give, path), Client(path) as client:
        with pytest.raises(DaemonUnreachable, match=why):
            await client.status()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
async def test_a_socket_of_others_says_so(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        path.chmod(0)
        async with Client(path) as client:
            with pytest.raises(DaemonUnreachable, match="you may not open that socket"):
                await client.status()


@pytest.mark.parametrize(("status", "detail"), [(404, "Not Found"), (405, "Method Not Allowed")])
async def test_what_an_older_daemon_does_not_have_is_named(status: int, detail: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        told = {"title": detail, "status": status, "detail": detail}
        return httpx.Response(status, json=told, headers={"content-type": PROBLEM_TYPE})

    async with client_of(answer) as client:
        with pytest.raises(RequestRefused, match=r"daemon at /nowhere has no GET /v1/peers/.*: it is older") as caught:
            await client.history("ab" * 16, around=True)
    assert caught.value.problem.status == status


async def test_what_a_daemon_does_not_find_is_told_in_its_words() -> None:
    async with client_of(lambda _: httpx.Response(404, text="no such peer")) as client:
        with pytest.raises(RequestRefused, match="no such peer"):
            await client.history("ab" * 16)


async def test_nobody_on_a_port(unused_tcp_port: int) -> None:
    async with Client(f"http://127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(DaemonUnreachable, match=r"no daemon answers at http://127\.0\.0\.1:.*start one"):
            await client.ring()


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    async with Client(f"http://127.0.0.1:{unused_tcp_port}") as client:
        with pytest.raises(DaemonUnreachable, match=r"127\.0\.0\.1"):
            await client.status()


@pytest.mark.parametrize("content", [b"<html>", b"{}", b'{"id": 5}'])
async def test_something_else_on_the_socket_is_no_daemon(content: bytes) -> None:
    async with client_of(lambda request: httpx.Response(200, content=content)) as client:
        with pytest.raises(RequestRefused, match="no peerd of a version"):
            await client.status()


async def test_an_error_that_is_no_problem_document(tmp_path: Path) -> None:
    async with client_of(lambda request: httpx.Response(502, text="bad gateway")) as client:
        with pytest.raises(RequestRefused, match="bad gateway") as caught:
            await client.peers()
    assert caught.value.problem.status == 502


async def test_503_may_be_tried_again() -> None:
    async with client_of(lambda request: httpx.Response(503, text="Service Unavailable")) as client:
        with pytest.raises(DaemonBusy):
            await client.peers()
    assert issubclass(DaemonBusy, Unavailable) and issubclass(DaemonUnreachable, Unavailable)


async def test_fields_that_this_version_does_not_know_are_ignored() -> None:
    content = b'{"status": "ok", "checks": [{"name": "x", "ok": true, "detail": "", "since": 5}], "novelty": [1]}'
    async with client_of(lambda request: httpx.Response(200, content=content)) as client:
        assert (await client.ready()).checks[0].name == "x"


async def test_not_ready_is_an_answer() -> None:
    daemon = FakeDaemon()
    daemon.set_ready(False)
    async with daemon.client() as client:
        health = await client.ready()
        assert health.status == "failing"
        with pytest.raises(Unavailable, match=r"up but not ready after 0 s \(ring: leaf set of 3"):
            await client.wait_ready(0.0)
        daemon.set_ready(True)
        assert (await client.wait_ready(0.0)).is_ready


async def test_wait_ready_says_when_nobody_is_there(tmp_path: Path) -> None:
    async with Client(tmp_path / "admin.sock") as client:
        with pytest.raises(DaemonUnreachable):
            await client.wait_ready(0.0)


@pytest.mark.parametrize("content", [b"", b'{"type": "progress", "round_id": "aa", "stage": "s", "enrolled": 1,'])
async def test_a_stream_that_breaks_off_is_no_answer(content: bytes) -> None:
    async with client_of(lambda request: httpx.Response(200, content=content)) as client:
        with pytest.raises(DaemonUnreachable, match="before it could answer"):
            assert [line async for line in AggregationClient(client).aggregate("count")] == []


async def test_lines_are_put_together_however_they_are_cut() -> None:
    progress = b'{"type":"progress","round_id":"aa","stage":"s","enrolled":1,"expected":1,"contributors":0,'
    progress += b'"level":null,"elapsed_s":0.1}\n'
    answer = b'{"type":"answer","round":"aa","query":"count","outcome":"complete","value":7,"contributors":1,'
    answer += b'"contributor_ids":[],"expected":1,"expected_basis":"census","completeness":1.0,"missing":[],'
    answer += b'"missing_count":0,"report":{},"duration_s":0.1,"value_bytes":1,"moved_bytes":1,"computed_by":null}\n'
    stream = progress + progress + answer
    for cut in (1, 7, len(progress), len(progress) + 1, len(stream)):
        response = httpx.Response(200, content=pieces_of(stream, cut))
        async with client_of(partial(give, response)) as client:
            lines = [line async for line in AggregationClient(client).aggregate("count")]
        assert [line.type for line in lines] == ["progress", "progress", "answer"]
        assert isinstance(lines[-1], Answer) and lines[-1].value == 7


async def pieces_of(stream: bytes, cut: int) -> AsyncIterator[bytes]:
    for start in range(0, len(stream), cut):
        yield stream[start : start + cut]


def give(response: httpx.Response, request: httpx.Request) -> httpx.Response:
    return response


def test_the_socket_is_found_in_the_environment_first() -> None:
    assert default_socket({SOCKET_VARIABLE: "/tmp/x.sock"}) == "/tmp/x.sock"
    assert default_socket({}) == "/run/peerd/admin.sock"


def test_run_sync(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="no such socket"):
        run_sync(lambda client: client.status(), tmp_path / "admin.sock")
