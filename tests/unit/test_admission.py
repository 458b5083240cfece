"""The rights of the local operator, of holders of tokens, and of web pages."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import structlog
import websockets
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import ConnectionClosed

from peerd.client import Client
from peerd.client.transport import UnixTransport
from peerd.daemon.http import listener as http_listener
from peerd.daemon.http.caller import Caller, ListenerName, identify, user_name
from peerd.linking.join_limits import REFUSALS_PER_HOST
from tests.support.both_loops import both_loops
from tests.support.http_site import HttpSite, detail, http_site, until

STRANGER = 4711
CHANGES = (
    ("POST", "/v1/drain", {"timeout_s": 0, "stop": True}),
    ("POST", "/v1/denials", {"subject": "0" * 32}),
    ("POST", "/v1/tokens", {"life_s": 60}),
    ("GET", "/v1/tokens", None),
    ("DELETE", "/v1/tokens/00000000", None),
    ("POST", "/v1/ca/rotation", {"overlap_s": 60}),
    ("POST", "/v1/notices", {"notice": ""}),
    ("POST", "/v1/certificate/renewal", None),
    ("POST", "/v1/certificate", {"pem": ""}),
    ("POST", "/v1/access", {"name": "x", "scopes": ["*"], "life_s": 60}),
    ("GET", "/v1/access", None),
    ("DELETE", "/v1/access/x", None),
    ("POST", "/v1/numbers?number=1", None),
    ("DELETE", "/v1/numbers", None),
)


def as_user(monkeypatch: pytest.MonkeyPatch, user_id: int | None) -> None:
    """Whoever connects to a unix socket is this user to the daemon."""

    def told(listener: ListenerName, sock: socket.socket, address: object) -> Caller:
        found = identify(listener, sock, address)
        return found if found.is_tcp else Caller(listener, user_id=user_id, process_id=99)

    monkeypatch.setattr(http_listener, "identify", told)


# Operators


@pytest.mark.parametrize(("method", "path", "body"), CHANGES, ids=[f"{method} {path}" for method, path, _ in CHANGES])
async def test_changes_are_for_the_local_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    as_user(monkeypatch, STRANGER)
    async with http_site(tmp_path) as site:
        over_tcp = await site.http("admin_http").request(method, path, json=body)
        assert over_tcp.status_code == 403 and f"use the unix socket {tmp_path / 'admin.sock'}" in detail(over_tcp)
        answer = await site.http("admin_socket").request(method, path, json=body)
        assert answer.status_code == 403 and f"you are user {STRANGER}" in detail(answer)
        assert site.refused("admin_http", "not_local") == site.refused("admin_socket", "not_operator") == 1
        assert site.daemon.drained_with == [] and site.daemon.stop_reasons == [] and site.plugin.kept == []


async def test_everybody_who_gets_in_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, STRANGER)
    async with http_site(tmp_path) as site:
        for listener in ("admin_socket", "admin_http"):
            client = site.http(listener)
            assert (await client.get("/v1/status")).status_code == 200
            assert (await client.post("/v1/ring/check", json={})).status_code == 200, "a question, though it is a POST"
        assert (await site.http("admin_socket").post("/v1/numbers/sum", json=[1, 2])).json() == 3


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/numbers"), ("POST", "/v1/numbers/sum"), ("GET", "/v1/numbers/stream?follow=0")]
)
async def test_no_route_of_a_protocol_is_served_where_nobody_knows_who_asks(
    tmp_path: Path, method: str, path: str
) -> None:
    async with http_site(tmp_path) as site:
        answer = await site.http("admin_http").request(method, path, json=[1])
        assert answer.status_code == 403 and str(tmp_path / "admin.sock") in detail(answer)
        assert site.refused("admin_http", "not_local") == 1


@pytest.mark.parametrize("user_id", [0, os.geteuid(), 1234])
async def test_operators_may_change_things_and_the_log_says_who(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_id: int
) -> None:
    as_user(monkeypatch, user_id)
    async with http_site(tmp_path, admin__operators=[1234]) as site:
        with structlog.testing.capture_logs() as said:
            answer = await site.http("admin_socket").post("/v1/drain", json={"timeout_s": 0})
        assert answer.status_code == 200 and site.daemon.drained_with == [0]
        [line] = [line for line in said if line["event"] == "admin.call"]
        assert (line["method"], line["path"], line["uid"], line["pid"]) == ("POST", "/v1/drain", user_id, 99)
        assert line["user"] == ("root" if user_id == 0 else user_name(user_id))


def test_a_number_without_a_name_is_no_error() -> None:
    assert (user_name(0), user_name(STRANGER), user_name(None)) == ("root", None, None)


async def test_who_is_not_known_is_no_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, None)
    async with http_site(tmp_path) as site:
        assert (await site.http("admin_socket").post("/v1/numbers?number=1")).status_code == 403


@both_loops
async def test_the_kernel_says_who_connected(tmp_path: Path) -> None:
    code = (
        "import httpx, os, sys\n"
        "with httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1])) as http:\n"
        "    print(http.post('http://localhost/v1/numbers?number=7').status_code, os.getpid())\n"
    )
    async with http_site(tmp_path) as site:
        with structlog.testing.capture_logs() as said:
            command = [sys.executable, "-c", code, site.path("admin_socket")]
            result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    status, process_id = map(int, result.stdout.split())
    [line] = [line for line in said if line["event"] == "admin.call"]
    assert (status, site.plugin.kept) == (200, [7])
    assert (line["uid"], line["pid"]) == (os.geteuid(), process_id)


# Tokens


async def test_over_tcp_a_required_token_is_required(tmp_path: Path) -> None:
    async with http_site(tmp_path, data__tokens="required") as site:
        client = site.http("data_http")
        for path in ("/v1/numbers", "/v1/openapi.json", "/v1/nothing"):
            answer = await client.get(path)
            assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Bearer ")
            assert "peerd access create" in detail(answer)
        assert [(await client.get(path)).status_code for path in ("/livez", "/readyz")] == [200, 200]
        assert (await site.http("data_http", site.token("numbers:read")).get("/v1/numbers")).json() == []
        assert (await site.http("data_socket").get("/v1/numbers")).json() == [], "the socket's mode says who may"


async def test_the_rest_of_an_unwelcome_request_is_never_read(tmp_path: Path) -> None:
    async with http_site(tmp_path, data__tokens="required") as site:
        head = b"POST /v1/numbers/sum HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n"
        reader = await site.connect("data_http", head)
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    ("scopes", "reads", "writes"),
    [
        (["numbers:read"], True, False),
        (["numbers:write"], False, True),
        (["numbers:read", "numbers:write"], True, True),
        (["*"], True, True),
        (["other:read", "other:write"], False, False),
    ],
)
@pytest.mark.parametrize("listener", ["data_http", "data_socket"])
async def test_a_token_opens_what_its_scopes_say(
    tmp_path: Path, scopes: list[str], reads: bool, writes: bool, listener: str
) -> None:
    async with http_site(tmp_path) as site:  # on loopback nobody must show one; whoever does is held to it
        client = site.http(listener, site.token(*scopes))
        asked = [
            (await client.get("/v1/numbers"), reads, "numbers:read"),
            (await client.post("/v1/numbers/sum", json=[1]), reads, "numbers:read"),
            (await client.post("/v1/numbers?number=1"), writes, "numbers:write"),
        ]
        for answer, is_allowed, scope in asked:
            assert answer.status_code == (200 if is_allowed else 403), scope
            if not is_allowed:
                assert f"lacks the scope {scope}" in detail(answer)
                assert f'error="insufficient_scope", scope="{scope}"' in answer.headers["www-authenticate"]


async def test_a_token_ends_with_its_time_and_with_its_revocation(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        client = site.http("data_http", site.token("*", life_s=60))
        assert (await client.get("/v1/numbers")).status_code == 200
        site.daemon.wall_s += 60
        answer = await client.get("/v1/numbers")
        assert answer.status_code == 401 and detail(answer) == "the token program has expired"
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        other = site.http("data_http", site.token("*", name="other"))
        assert (await other.get("/v1/numbers")).status_code == 200
        site.daemon.access.revoke("other")
        assert "was revoked" in detail(await other.get("/v1/numbers"))


@pytest.mark.parametrize(
    "header", ["Basic YTpi", "Bearer", "Bearer peerda1.x.y", f"Bearer peerda1.{'0' * 16}.{'0' * 64}"]
)
async def test_a_wrong_token_opens_nothing_even_where_none_is_needed(tmp_path: Path, header: str) -> None:
    async with http_site(tmp_path) as site:
        for listener in ("data_http", "data_socket"):
            answer = await site.http(listener).get("/v1/numbers", headers={"Authorization": header})
            assert answer.status_code == 401 and "0000" not in detail(answer)
        for listener in ("admin_http", "admin_socket"):  # operators show none, and none is looked at
            assert (await site.http(listener).get("/v1/status", headers={"Authorization": header})).status_code == 200


async def test_an_address_with_many_wrong_tokens_has_to_wait_and_right_ones_pass(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        wrong, right = site.http("data_http", "peerda1.guess"), site.http("data_http", site.token("*"))
        with structlog.testing.capture_logs() as said:
            codes = [(await wrong.get("/v1/numbers")).status_code for _ in range(int(REFUSALS_PER_HOST) + 2)]
        assert codes == [401] * int(REFUSALS_PER_HOST) + [429] * 2
        assert int((await wrong.get("/v1/numbers")).headers["retry-after"]) > 0
        assert (await right.get("/v1/numbers")).status_code == 200, "others may sit behind that address"
        assert (await site.http("data_socket", "peerda1.guess").get("/v1/numbers")).status_code == 401, (
            "not that address"
        )
        assert site.refused("data_http", "token_malformed") == REFUSALS_PER_HOST
        assert site.refused("data_http", "too_many_wrong_tokens") == 3
        assert {line["event"] for line in said} == {"access.refused"} and "guess" not in str(said)


@both_loops
async def test_a_stream_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        client = site.http("data_http", site.token("*"))
        with pytest.raises(httpx.RemoteProtocolError):  # cut off: whoever reads must not take it for a whole answer
            async with client.stream("GET", "/v1/numbers/stream") as answer:
                lines = answer.aiter_lines()
                assert await anext(lines) == "0"
                site.daemon.access.revoke("program")
                await asyncio.wait_for(anext(lines), 30)
        await asyncio.wait_for(site.plugin.ended.wait(), 30)
        assert site.refused("data_http", "token_over") == 1
        await site.running("data_http", 0)


@both_loops
async def test_a_feed_tells_its_reader_that_the_token_was_revoked(tmp_path: Path) -> None:
    """Nothing that was pushed afterwards reaches the reader, who may resume with another token."""
    async with http_site(tmp_path) as site:
        site.plugin.counted.push(7, 1)
        client = site.http("data_http", site.token("*"))
        async with client.stream("GET", "/v1/numbers/counted") as answer:
            lines = answer.aiter_lines()
            item = json.loads(await anext(lines))
            site.daemon.access.revoke("program")
            site.plugin.counted.push(8, 1)
            rest = [json.loads(line) async for line in lines]
        assert item["data"] == 7
        assert rest == [{"type": "end", "id": item["id"], "reason": "access token revoked", "is_final": False}]
        assert site.refused("data_http", "token_over") == 1
        await site.running("data_http", 0)


LIFE_S: Final = 2.0
"""Of a token that ends while it is used: no answer may have to wait for so long to begin."""


def short_token(site: HttpSite, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token that ends `LIFE_S` after its request has begun, however late a busy machine begins it: the clock of
    tokens stands still.
    """
    now = time.time()
    monkeypatch.setattr(site.daemon.access, "_wall_time", lambda: now)
    return site.token("*", life_s=LIFE_S)


@both_loops
async def test_a_feed_tells_its_reader_that_the_token_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_site(tmp_path) as site:
        client = site.http("data_http", short_token(site, monkeypatch))
        answer = await asyncio.wait_for(client.get("/v1/numbers/counted"), 30)
        end = json.loads(answer.text.splitlines()[-1])
        assert (end["type"], end["reason"]) == ("end", "access token expired")


@both_loops
async def test_a_websocket_is_closed_with_the_reason_when_its_token_is_revoked(tmp_path: Path) -> None:
    async with http_site(tmp_path, data__tokens="required") as site:
        shown = {"Authorization": f"Bearer {site.token('*')}"}
        url = f"ws://127.0.0.1:{site.server.data_http_port}/v1/numbers/counted"
        async with connect(url, additional_headers=shown) as websocket:
            assert json.loads(await websocket.recv())["type"] == "heartbeat"
            site.daemon.access.revoke("program")
            assert json.loads(await asyncio.wait_for(websocket.recv(), 30))["reason"] == "access token revoked"
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(websocket.recv(), 30)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "access token revoked")


@both_loops
async def test_a_stream_ends_with_the_time_of_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_site(tmp_path) as site:
        client = site.http("data_http", short_token(site, monkeypatch))
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("GET", "/v1/numbers/stream") as answer:
                await asyncio.wait_for(answer.aread(), 30)
        # The connection ends first; the loop closes the generator in a turn of its own.
        await asyncio.wait_for(site.plugin.ended.wait(), 30)


async def status_of_numbers(client: Client) -> int:
    async with client._transport.exchange("GET", "/v1/numbers", None, {}, 5.0) as exchange:
        return exchange.status


async def test_the_client_shows_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_site(tmp_path, data__tokens="required") as site:
        url, token = f"http://127.0.0.1:{site.server.data_http_port}", site.token("*")
        async with Client(url, token=token) as client:
            assert await status_of_numbers(client) == 200
        monkeypatch.setenv("PEERD_ACCESS_TOKEN", token)
        async with Client(url) as client:
            assert await status_of_numbers(client) == 200
        async with Client(site.path("data_socket")) as client:
            assert isinstance(client._transport, UnixTransport)
            assert "Authorization" not in client._transport._headers, "a socket asks for none"


async def test_operators_make_list_and_revoke_tokens(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site, Client(site.path("admin_socket")) as operator:
        made = await operator.create_access("dashboard", ["numbers:read"], 60)
        assert (made.token.name, made.token.scopes, made.token.is_expired) == ("dashboard", ["numbers:read"], False)
        assert [token.name for token in await operator.access_tokens()] == ["dashboard"]
        client = site.http("data_http", made.text)
        assert (await client.get("/v1/numbers")).status_code == 200
        assert (await operator.revoke_access("dashboard")).id == made.token.id
        assert (await client.get("/v1/numbers")).status_code == 401
        http = site.http("admin_socket")
        unknown = await http.post("/v1/access", json={"name": "x", "scopes": ["nmbrs:read"], "life_s": 60})
        assert unknown.status_code == 422 and "those that have: numbers" in detail(unknown)
        wrong = await http.post("/v1/access", json={"name": "x", "scopes": [], "life_s": 60})
        assert wrong.status_code == 422 and "1 to 64 scopes" in detail(wrong)
        assert (await http.delete("/v1/access/nobody")).status_code == 404


async def test_a_full_disk_makes_no_token(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        site.daemon.storage.is_full = True
        answer = await site.http("admin_socket").post("/v1/access", json={"name": "x", "scopes": ["*"], "life_s": 60})
        assert answer.status_code == 503 and site.daemon.access.tokens() == []


# Web pages

PAGE = "https://example.org"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.mark.parametrize("listener", ["data_http", "admin_http"])
async def test_web_pages_are_not_answered(tmp_path: Path, listener: str) -> None:
    async with http_site(tmp_path) as site:
        client = site.http(listener)
        for answer in (
            await client.get("/v1/numbers", headers={"Origin": PAGE}),
            await client.post("/v1/numbers?number=1", headers={"Origin": PAGE}),
            await client.options("/v1/numbers", headers=PREFLIGHT),
            await client.get("/v1/numbers", headers={"Origin": "null"}),
        ):
            assert answer.status_code == 403 and "data.cors_origins" in detail(answer)
            assert "access-control-allow-origin" not in answer.headers
        assert site.plugin.kept == [] and site.refused(listener, "origin") == 4


async def test_configured_pages_may_ask_after_the_browsers_own_question(tmp_path: Path) -> None:
    settings = {"data__cors_origins": [PAGE], "data__tokens": "required"}
    async with http_site(tmp_path, **settings) as site:
        client = site.http("data_http")
        asked = await client.options("/v1/numbers", headers=PREFLIGHT)  # a browser shows no token here
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "authorization" in asked.headers["access-control-allow-headers"].lower()
        headers = {"Origin": PAGE}
        refused = await client.get("/v1/numbers", headers=headers)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE), "and it sees why"
        answer = await site.http("data_http", site.token("*")).get("/v1/numbers", headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert (await client.get("/livez", headers={"Origin": "https://evil.example"})).status_code == 403


@pytest.mark.parametrize(("tokens", "status"), [("auto", 421), ("required", 401)])
async def test_on_loopback_without_tokens_the_host_name_must_be_this_machines(
    tmp_path: Path, tokens: str, status: int
) -> None:
    async with http_site(tmp_path, data__tokens=tokens) as site:
        answer = await site.http("data_http").get("/v1/numbers", headers={"Host": "evil.example"})
        assert answer.status_code == status


# WebSockets

UNIX_LISTENERS: Final = ("data_socket", "admin_socket")


def live(site: HttpSite, **options: Any) -> Any:
    """Open a WebSocket to the stream of numbers."""
    return connect(f"ws://127.0.0.1:{site.server.data_http_port}/v1/numbers/live", proxy=None, **options)


@both_loops
async def test_websockets_work_on_every_listener(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        sockets = [unix_connect(site.path(name), "ws://localhost/v1/numbers/live") for name in UNIX_LISTENERS]
        for opened in (live(site), *sockets):
            async with opened as websocket:
                await websocket.send("41")
                assert await websocket.recv() == "42"


@both_loops
async def test_websockets_need_what_others_need(tmp_path: Path) -> None:
    async with http_site(tmp_path, data__tokens="required", data__connections_max=1) as site:

        async def refused_with(**options: Any) -> int:
            with pytest.raises(websockets.InvalidStatus) as caught:
                async with live(site, **options):
                    pass
            return caught.value.response.status_code

        def shown(token: str) -> dict[str, dict[str, str]]:
            return {"additional_headers": {"Authorization": f"Bearer {token}"}}

        assert await refused_with() == 401
        assert await refused_with(**shown(site.token("numbers:write", name="writer"))) == 403
        reader = shown(site.token("numbers:read"))
        assert await refused_with(**reader, origin="https://evil.example") == 403
        async with live(site, **reader) as websocket:
            assert await refused_with(**reader) == 503, "it holds the budget"
            site.daemon.access.revoke("program")
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(websocket.recv(), 30)
        await site.running("data_http", 0)


@both_loops
async def test_stopping_ends_websockets(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site, live(site) as websocket:
        await websocket.send("1")
        assert await websocket.recv() == "2"
        await asyncio.wait_for(site.server.stop(), 30)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(websocket.recv(), 30)
        await until(site.plugin.ended.is_set)
