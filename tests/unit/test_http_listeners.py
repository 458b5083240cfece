"""Each listener has a budget of its own, which nothing unfinished holds; the sockets are the configured ones."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
from pathlib import Path

import httpx
import pytest

from peerd.daemon.http import guard as admin_guard, listener as http_listener, protocol as http_protocol
from peerd.daemon.http.gate import DEFAULT_POLICY, Gate
from peerd.daemon.http.protocol import REQUEST_HEAD_BYTES_MAX
from peerd.daemon.tasks import spawn
from peerd.errors import ConfigError
from peerd.identity.authority import ClusterAuthority, create_node_files
from peerd.limits import HTTP_CONNECTIONS_SPARE, HTTP_REQUESTS_MAX
from tests.support.both_loops import both_loops
from tests.support.fake_daemon import FakeDaemon
from tests.support.http_site import UNFINISHED_BODY, UNFINISHED_HEAD, detail, http_site, until
from tests.support.numbers_plugin import LONG_BYTES

EVERYWHERE = ("admin_socket", "admin_http", "data_socket", "data_http")
BUDGET = 4


@both_loops
async def test_unfinished_requests_of_others_keep_no_operator_and_no_probe_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_guard, "BODY_LIMIT_S", 300.0)  # a busy machine may take longer than 15 s to open them all
    async with http_site(tmp_path, data__connections_max=BUDGET) as site:
        for listener, budget in (("data_socket", BUDGET), ("data_http", BUDGET), ("admin_http", HTTP_REQUESTS_MAX)):
            for _ in range(budget):
                await site.connect(listener, UNFINISHED_BODY)
            await site.running(listener, budget)
            for _ in range(HTTP_CONNECTIONS_SPARE + 5):
                await site.connect(listener, UNFINISHED_HEAD)
        operator = site.http("admin_socket")
        assert [(await operator.get(path)).status_code for path in ("/livez", "/readyz", "/metrics")] == [200] * 3
        assert (await operator.get("/v1/status")).status_code == 200
        assert (await operator.post("/v1/numbers?number=1")).status_code == 200, "and may change things"
        for listener in ("data_socket", "data_http", "admin_http"):
            client = site.http(listener)
            assert (await client.get("/readyz")).status_code == 200, "probes are outside the budget"
            answer = await client.get("/v1/numbers")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "requests are under way" in detail(answer)
            assert site.refused(listener, "requests_max") == 1
            assert site.refused(listener, "connections_max") > 0
        assert (await site.http("admin_http").get("/metrics")).status_code == 200
        assert site.refused("admin_socket", "requests_max") == site.refused("admin_socket", "connections_max") == 0


async def test_a_budget_is_free_again_when_its_requests_end(tmp_path: Path) -> None:
    async with http_site(tmp_path, data__connections_max=1) as site:
        client = site.http("data_socket")
        async with client.stream("GET", "/v1/numbers/stream") as answer:
            assert await anext(answer.aiter_lines()) == "0"
            assert (await client.get("/v1/numbers")).status_code == 503
        await asyncio.wait_for(site.plugin.ended.wait(), 30)
        await site.running("data_socket", 0)
        assert (await client.get("/v1/numbers")).status_code == 200


@pytest.mark.parametrize("listener", EVERYWHERE)
async def test_the_newest_of_too_many_idle_connections_is_served(tmp_path: Path, listener: str) -> None:
    async with http_site(tmp_path, data__connections_max=BUDGET) as site:
        budget = BUDGET if listener.startswith("data") else HTTP_REQUESTS_MAX
        idle = [await site.connect(listener) for _ in range(budget + HTTP_CONNECTIONS_SPARE)]
        assert (await site.http(listener).get("/v1/openapi.json")).status_code == 200
        assert await asyncio.wait_for(idle[0].read(), 30) == b"", "the one that waited longest gave way"
        assert site.refused(listener, "connections_max") == 1
        site.server.report()
        assert site.daemon.metrics.gauges[listener] == budget + HTTP_CONNECTIONS_SPARE


@both_loops
async def test_a_request_head_has_a_time_limit_however_it_trickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_LIMIT_S", 0.3)
    async with http_site(tmp_path) as site:
        reader, writer = await asyncio.open_unix_connection(site.path("data_socket"))
        site.stack.callback(writer.close)
        writer.write(UNFINISHED_HEAD)
        trickled, is_over = 0, False
        while not is_over:
            try:
                is_over = await asyncio.wait_for(reader.read(), 0.05) == b""
            except TimeoutError:
                writer.write(b"x")
                trickled += 1
            except ConnectionError:  # the last byte met a connection that was over
                is_over = True
        assert trickled > 0 and site.refused("data_socket", "head_timeout") == 1


async def test_what_follows_an_answer_has_the_limit_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is still coming in when the answer is out: the connection waits, and not for ever."""
    monkeypatch.setattr(http_protocol, "HEAD_LIMIT_S", 0.2)
    async with http_site(tmp_path) as site:
        refused = UNFINISHED_BODY.replace(b"/v1/numbers/sum", b"/v1/nothing")
        reader = await site.connect("admin_socket", refused)
        answer = await asyncio.wait_for(reader.read(), 30)
        assert answer.startswith(b"HTTP/1.1 404")
        assert site.refused("admin_socket", "head_timeout") == 1


@both_loops
async def test_a_long_answer_has_the_time_that_its_reader_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_LIMIT_S", 0.05)
    async with http_site(tmp_path, data__connections_max=BUDGET) as site:
        with socket.socket(socket.AF_UNIX) as slow:
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, site.path("data_socket"))
            await loop.sock_sendall(slow, b"GET /v1/numbers/long HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await site.running("data_socket", 1)
            await site.running("data_socket", 0)
            silent = [await site.connect("data_socket") for _ in range(BUDGET + HTTP_CONNECTIONS_SPARE)]
            for reader in silent:  # they have come later, and end sooner
                assert await asyncio.wait_for(reader.read(), 30) == b""
            received = 0
            while received < LONG_BYTES:
                part = await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 30)
                assert part, f"cut off after {received} bytes"
                received += len(part)


@both_loops
async def test_a_body_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_guard, "BODY_LIMIT_S", 0.1)
    async with http_site(tmp_path) as site:
        reader = await site.connect("data_http", UNFINISHED_BODY)
        answer = await asyncio.wait_for(reader.read(), 30)
        assert answer.startswith(b"HTTP/1.1 408") and b"did not arrive within" in answer
        await site.running("data_http", 0)


async def test_a_long_answer_to_a_short_request_has_no_body_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_guard, "BODY_LIMIT_S", 0.05)
    async with http_site(tmp_path) as site, site.http("data_socket").stream("GET", "/v1/numbers/stream") as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == "0"
        await asyncio.wait({spawn(site.plugin.ended.wait(), name="ended")}, timeout=0.2)
        assert not site.plugin.ended.is_set()


@both_loops
async def test_garbage_is_counted_and_answered(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        reader = await site.connect("data_http", b"\x16\x03\x01 hello?\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 400")
        assert site.refused("data_http", "malformed") == 1


_GET = b"GET /v1/numbers/%s HTTP/1.1\r\nhost: localhost\r\n"
_MUCH = b"x" * REQUEST_HEAD_BYTES_MAX


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(_GET % _MUCH + b"\r\n", id="path"),
        pytest.param(_GET % b"long" + b"a: " + _MUCH + b"\r\n\r\n", id="one header"),
        pytest.param(_GET % b"long" + b"a: b\r\n" * REQUEST_HEAD_BYTES_MAX + b"\r\n", id="headers"),
        pytest.param(_GET % _MUCH[:-1], id="unfinished path"),
        pytest.param(_GET % b"long" + b"a: " + _MUCH, id="unfinished header"),
        pytest.param(
            _GET % b"long" + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * REQUEST_HEAD_BYTES_MAX,
            id="headers behind a body",
        ),
    ],
)
async def test_a_head_has_a_limit_wherever_it_is_long(tmp_path: Path, sent: bytes) -> None:
    """The parser would keep all of it."""
    async with http_site(tmp_path) as site:
        reader = await site.connect("data_socket", sent)
        await asyncio.wait_for(reader.read(), 30)
        assert site.refused("data_socket", "malformed") == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: elsewhere\r\n\r\n",
        b"GET /livez HTTP/2.0\r\nhost: localhost\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET http://localhost HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\na : b\r\n\r\n",
        b"GET /livez HTTP/1.1\nhost: localhost\n\n",
    ],
)
async def test_what_is_not_quite_http_is_refused(tmp_path: Path, sent: bytes) -> None:
    """Two programs that read it in different ways could be played off against each other."""
    async with http_site(tmp_path) as site:
        reader = await site.connect("data_http", sent)
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 400")
        assert site.refused("data_http", "malformed") == 1


async def test_a_header_behind_a_body_has_the_limit_too(tmp_path: Path) -> None:
    """Also while it is not whole."""
    async with http_site(tmp_path) as site:
        reader, writer = await asyncio.open_unix_connection(site.path("data_socket"))
        site.stack.callback(writer.close)
        writer.write(_GET % b"none" + b"transfer-encoding: chunked\r\n\r\n0\r\n")
        await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 404"), 30)
        writer.write(b"a: " + _MUCH)
        await asyncio.wait_for(reader.read(), 30)
        assert site.refused("data_socket", "malformed") == 1


@both_loops
async def test_requests_may_be_sent_ahead_up_to_a_limit(tmp_path: Path) -> None:
    """Each is answered in its turn; more than are kept at once are refused."""
    ahead = http_protocol.PIPELINED_MAX
    async with http_site(tmp_path) as site:
        reader = await site.connect("data_socket", (_GET % b"none" + b"\r\n") * ahead)
        for _ in range(ahead):
            await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 404"), 30)
        assert site.refused("data_socket", "malformed") == 0
        reader = await site.connect("data_socket", (_GET % b"none" + b"\r\n") * (2 * ahead))
        await asyncio.wait_for(reader.read(), 30)
        assert site.refused("data_socket", "malformed") == 1


async def test_what_is_served_where(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        for listener in EVERYWHERE:
            client, is_admin = site.http(listener), listener.startswith("admin")
            served = [
                (await client.get(path)).status_code == 200
                for path in (
                    "/livez",
                    "/readyz",
                    "/v1/numbers",
                    "/v1/openapi.json",
                    "/v1/status",
                    "/metrics",
                    "/healthz",
                )
            ]
            assert served == [True, True, listener != "admin_http", True] + [is_admin] * 3, listener
            assert bool((await client.get("/livez")).json()["checks"]) == is_admin, "details are for operators"
        site.plugin.kept.append(1)
        assert (await site.http("data_socket").delete("/v1/numbers")).status_code == 405
        assert (await site.http("admin_socket").delete("/v1/numbers")).status_code == 200
        assert site.plugin.kept == []


async def test_the_documents_say_what_each_route_needs(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        data = (await site.http("data_http").get("/v1/openapi.json")).json()["paths"]
        admin = (await site.http("admin_http").get("/v1/openapi.json")).json()["paths"]
    assert set(data) == {
        "/livez",
        "/readyz",
        "/v1/numbers",
        "/v1/numbers/sum",
        "/v1/numbers/stream",
    }
    needs = {
        (path, method): route["x-peerd-scope"] for path, routes in admin.items() for method, route in routes.items()
    }
    assert needs["/v1/numbers", "get"] == needs["/v1/numbers/sum", "post"] == needs["/v1/ring/check", "post"] == "read"
    assert needs["/v1/numbers", "post"] == needs["/v1/drain", "post"] == needs["/v1/access", "get"] == "write"


async def test_the_data_socket_is_beside_the_admin_socket_and_leaves_with_it(tmp_path: Path) -> None:
    async with http_site(tmp_path / "run", data__http="") as site:
        path = tmp_path / "run" / "data.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert site.server.data_addresses == [str(path)] and site.server.data_http_port is None
    assert os.listdir(tmp_path / "run") == []


async def test_a_folder_gives_its_group_to_the_data_socket(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to a group that it is not in")
    folder = tmp_path / "shared"
    folder.mkdir()
    os.chown(folder, -1, 4242)
    folder.chmod(0o2750)
    async with http_site(tmp_path, data__socket=str(folder / "data.sock")):
        found = (folder / "data.sock").stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (4242, 0o660)


async def test_no_data_listener_where_none_is_wanted(tmp_path: Path) -> None:
    async with http_site(tmp_path, data__socket="", data__http="") as site:
        assert site.server.data_addresses == [] and os.listdir(tmp_path) == ["admin.sock"]


async def test_a_data_socket_in_use_is_a_configuration_error_and_the_others_go(tmp_path: Path) -> None:
    async with http_site(tmp_path):
        with pytest.raises(ConfigError, match=r"data\.socket: another daemon answers there"):
            async with http_site(tmp_path, admin__socket=str(tmp_path / "other.sock")):
                pass
        assert sorted(os.listdir(tmp_path)) == ["admin.sock", "data.sock"]


async def test_a_port_in_use_is_a_configuration_error(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        address = f"127.0.0.1:{site.server.data_http_port}"
        with pytest.raises(ConfigError, match=rf"data\.http: cannot listen on {address}"):
            async with http_site(tmp_path / "other", data__http=address):
                pass


# HTTPS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Chain and key; the names in it are not those of a web server, which the tests do not check."""
    create_node_files(ClusterAuthority.create("web"), tmp_path / "tls")
    return tmp_path / "tls" / "node.crt", tmp_path / "tls" / "node.key"


@both_loops
async def test_with_a_certificate_it_is_https_and_only_that(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    async with http_site(tmp_path, data__tls_certificate=str(chain), data__tls_key=str(key)) as site:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        url = f"https://127.0.0.1:{site.server.data_http_port}"
        async with httpx.AsyncClient(base_url=url, verify=context, trust_env=False) as http:
            assert (await http.get("/v1/numbers")).json() == []
        reader = await site.connect("data_http", b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert not (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP")
        await until(lambda: site.refused("data_http", "tls") == 1)


@both_loops
async def test_unfinished_handshakes_give_way(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    tls = {"data__tls_certificate": str(chain), "data__tls_key": str(key)}
    async with http_site(tmp_path, data__connections_max=BUDGET, **tls) as site:
        stuck = [await site.connect("data_http") for _ in range(BUDGET + HTTP_CONNECTIONS_SPARE)]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        url = f"https://127.0.0.1:{site.server.data_http_port}"
        async with httpx.AsyncClient(base_url=url, verify=context, trust_env=False) as http:
            assert (await http.get("/livez")).status_code == 200
        assert await asyncio.wait_for(stuck[0].read(), 30) == b""
        assert site.refused("data_http", "connections_max") == 1


@both_loops
async def test_handshakes_have_a_rate(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_listener, "TLS_HANDSHAKES_PER_SECOND", 1e-9)
    monkeypatch.setattr(http_listener, "TLS_HANDSHAKES_BURST", 2)
    chain, key = certificate
    async with http_site(tmp_path, data__tls_certificate=str(chain), data__tls_key=str(key)) as site:
        readers = [await site.connect("data_http") for _ in range(3)]
        assert await asyncio.wait_for(readers[2].read(), 30) == b""
        assert site.refused("data_http", "accept_rate") == 1
        for _ in range(3):
            assert (await site.http("admin_http").get("/livez")).status_code == 200, "plain HTTP costs little"


async def test_a_certificate_that_cannot_be_used_is_a_configuration_error(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    chain, key = certificate
    key.write_text("no key")
    with pytest.raises(ConfigError, match=r"node\.crt: data\.tls_certificate: cannot be used with data\.tls_key"):
        async with http_site(tmp_path, data__tls_certificate=str(chain), data__tls_key=str(key)):
            pass
    assert sorted(os.listdir(tmp_path)) == ["tls"]


async def test_a_lifespan_is_not_a_request() -> None:
    seen: list[str] = []

    async def app(scope: object, receive: object, send: object) -> None:
        seen.append("lifespan")

    async def never() -> dict[str, object]:
        raise AssertionError

    async def nothing(event: object) -> None:
        raise AssertionError

    await Gate(app, FakeDaemon(), DEFAULT_POLICY)({"type": "lifespan"}, never, nothing)
    assert seen == ["lifespan"]


@both_loops
async def test_an_answer_that_is_cut_by_the_stop_is_no_error_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_listener, "STOP_GRACE_S", 0.05)
    async with http_site(tmp_path) as site:
        reader = await site.connect("data_socket", b"GET /v1/numbers/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await asyncio.wait_for(reader.readline(), 30) == b"HTTP/1.1 200 OK\r\n"
        await site.running("data_socket", 1)
        await site.server.stop()
    assert not [record for record in caplog.records if record.name == "uvicorn.error"]
