"""The admin API's routes, on a daemon that the test controls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
from fastapi import APIRouter

from peerd.api import LookupResult, MissingMember, Plugin
from peerd.client import DaemonBusy
from peerd.config import load_config
from peerd.daemon.http.gate import is_local_host
from peerd.daemon.http.guard import REQUEST_BODY_BYTES_MAX
from peerd.errors import Unavailable
from peerd.ids import format_id, key_of
from tests.support.fake_daemon import LOCAL_OPERATOR, OWN, FakeDaemon, peer


class Echo(Plugin):
    """A plugin with routes of its own."""

    name = "echo"

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    @staticmethod
    def router(service: Echo) -> APIRouter:
        """Return two good routes, and one with a bug."""
        routes = APIRouter()

        @routes.get("/echo/word")
        async def word() -> dict[str, str]:
            return {"word": service.word}

        @routes.post("/echo/length", openapi_extra={"x-peerd-scope": "read"})
        async def length(body: dict[str, str]) -> int:
            return len(body["text"])

        @routes.get("/echo/busy")
        async def busy() -> None:
            raise Unavailable("ask again later")

        @routes.get("/echo/bug")
        async def bug() -> None:
            raise RuntimeError("a secret in a message")

        return routes


@dataclass
class Rig:
    """A daemon and a raw HTTP client of it."""

    daemon: FakeDaemon
    http: httpx.AsyncClient


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    daemon = FakeDaemon({"echo": Echo("hello")})
    async with daemon.http(raise_app_exceptions=False) as http:
        yield Rig(daemon, http)


def check_problem(response: httpx.Response, status: int, words: str) -> None:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status and body["title"] and body["type"] == "about:blank"
    assert words in body["detail"], body["detail"]


async def test_status(rig: Rig) -> None:
    async with rig.daemon.client() as client:
        status = await client.status()
    assert (status.id, status.address, status.cluster) == (format_id(OWN.id), "127.0.0.1:7064", "blue")
    assert status.is_ready and not status.is_ring_size_exact and status.ring_size == pytest.approx(17.4)
    assert (status.leaf_set_members, status.links, status.boot_epoch) == (3, 1, 77)
    assert [plugin.name for plugin in status.plugins] == ["echo", "overlay"]


async def test_peers_are_in_id_order_and_each_once(rig: Rig) -> None:
    async with rig.daemon.client() as client:
        peers = await client.peers()
    assert [(entry.id[:2], entry.place) for entry in peers] == [
        ("30", "smaller"),
        ("50", "both"),
        ("60", "larger"),
        ("f0", "known"),
    ]
    assert [entry.rtt_s for entry in peers] == [0.001, None, None, None]
    assert [entry.is_linked for entry in peers] == [True, False, False, False]


async def test_ring_keeps_the_order_of_the_sides(rig: Rig) -> None:
    async with rig.daemon.client() as client:
        ring = await client.ring()
    assert [entry.id[:2] for entry in ring.smaller] == ["30", "50"]
    assert [entry.id[:2] for entry in ring.larger] == ["50", "60"]
    assert [entry.id[:2] for entry in ring.known] == ["f0"]
    assert ring.is_complete and not ring.covers_ring


@pytest.mark.parametrize(
    ("text", "key", "is_hashed"),
    [("5" * 32, "5" * 32, False), ("a/b c?d#e%", format_id(key_of("a/b c?d#e%")), True)],
    ids=["id", "text"],
)
async def test_route_takes_ids_and_text(rig: Rig, text: str, key: str, is_hashed: bool) -> None:
    async with rig.daemon.client() as client:
        route = await client.route(text)
    assert (route.key, route.is_hashed) == (key, is_hashed)
    assert route.root is not None and route.root.id == format_id(peer(0x50).id)
    assert [(hop.id[:2], hop.rtt_s) for hop in route.hops] == [("30", 0.002), ("50", None)]


async def test_route_without_an_answer_has_no_root(rig: Rig) -> None:
    rig.daemon.host.result = lambda key: LookupResult(key, None, (), 10.0)
    async with rig.daemon.client() as client:
        assert (await client.route("x")).root is None


async def test_route_before_the_join_is_unavailable(rig: Rig) -> None:
    rig.daemon.set_ready(False)
    response = await rig.http.get("/v1/route/x")
    check_problem(response, 503, "not joined")
    assert response.headers["retry-after"] == "1"
    async with rig.daemon.client() as client:
        with pytest.raises(DaemonBusy, match="not joined"):
            await client.route("x")


async def test_config_has_values_with_origins(rig: Rig) -> None:
    async with rig.daemon.client() as client:
        settings = {setting.key: setting for setting in await client.settings()}
    assert (settings["node.cluster"].value, settings["node.cluster"].origin) == ("blue", "flag --set")
    assert (settings["swap.chunk_bytes"].value, settings["swap.chunk_bytes"].origin) == ("256KiB", "default")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/healthz?verbose"])
async def test_a_healthy_daemon_says_so(rig: Rig, path: str) -> None:
    response = await rig.http.get(path)
    assert response.status_code == 200 and response.json()["status"] == "ok"
    assert response.headers["cache-control"] == "no-store"


def spoil_lag(daemon: FakeDaemon) -> None:
    daemon.loop_lag_s = 60.0


def spoil_ring(daemon: FakeDaemon) -> None:
    daemon.set_ready(False)


def spoil_membership(daemon: FakeDaemon) -> None:
    daemon.overlay.outside = "this node is on the deny list of its cluster"


def spoil_plugin(daemon: FakeDaemon) -> None:
    daemon.disabled_plugins = {"echo": "ValueError()"}


def spoil_life(daemon: FakeDaemon) -> None:
    daemon.fake_node.is_stopped = True


@pytest.mark.parametrize(
    ("spoil", "failing", "check"),
    [
        (spoil_lag, {"/livez", "/readyz", "/healthz"}, "event_loop"),
        (spoil_ring, {"/readyz", "/healthz"}, "ring"),
        (spoil_membership, {"/readyz", "/healthz"}, "ring"),
        (spoil_life, {"/readyz", "/healthz"}, "running"),
        (spoil_plugin, {"/healthz"}, "plugins"),
    ],
)
async def test_each_probe_fails_for_its_own_reasons(rig: Rig, spoil: object, failing: set[str], check: str) -> None:
    assert callable(spoil)
    spoil(rig.daemon)
    for path in ("/livez", "/readyz", "/healthz"):
        response = await rig.http.get(path)
        assert response.status_code == (503 if path in failing else 200), path
    verbose = (await rig.http.get("/healthz?verbose=1")).json()
    assert [entry["name"] for entry in verbose["checks"] if not entry["ok"]] == [check]


async def test_metrics_are_the_registrys(rig: Rig) -> None:
    response = await rig.http.get("/metrics")
    assert response.text == "peerd_links 1.0\n"
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_openapi_is_published_and_has_the_plugins_routes(rig: Rig) -> None:
    document = (await rig.http.get("/v1/openapi.json")).json()
    assert {"/v1/status", "/v1/ring", "/v1/route/{key}", "/readyz", "/v1/echo/word"} <= set(document["paths"])
    assert "Status" in document["components"]["schemas"]
    for path in ("/docs", "/redoc"):
        assert (await rig.http.get(path)).status_code == 404


async def test_openapi_says_how_errors_look(rig: Rig) -> None:
    document = (await rig.http.get("/v1/openapi.json")).json()
    assert set(document["components"]["schemas"]["Problem"]["required"]) == {"title", "status"}
    assert "HTTPValidationError" not in str(document)
    for operations in document["paths"].values():
        for operation in operations.values():
            assert list(operation["responses"]["default"]["content"]) == ["application/problem+json"]
    route = document["paths"]["/v1/route/{key}"]["get"]
    assert set(route["responses"]) == {"200", "default"}


async def test_routes_follow_a_restarted_plugin(rig: Rig) -> None:
    assert (await rig.http.get("/v1/echo/word")).json() == {"word": "hello"}
    rig.daemon.fake_node.plugins["echo"] = Echo("again")
    assert (await rig.http.get("/v1/echo/word")).json() == {"word": "again"}
    rig.daemon.disabled_plugins = {"echo": "ValueError()"}
    check_problem(await rig.http.get("/v1/echo/word"), 503, "echo is off")


async def test_errors_are_problems(rig: Rig) -> None:
    check_problem(await rig.http.get("/v1/nothing"), 404, "Not Found")
    check_problem(await rig.http.post("/v1/status"), 405, "Method Not Allowed")
    check_problem(await rig.http.get("/v1/echo/busy"), 503, "ask again later")
    check_problem(await rig.http.get(f"/v1/route/{'k' * 1025}"), 422, "at most 1024")
    check_problem(await rig.http.post("/v1/echo/length", json=[1]), 422, "expected an object")


async def test_links_are_cut_on_loopback_only(rig: Rig) -> None:
    wanted = {"nodes": [f"{peer(0x30).id:032x}"]}
    assert (await rig.http.put("/v1/links/cut", json=wanted)).status_code == 403, "it is for the local operator"
    async with rig.daemon.http(caller=LOCAL_OPERATOR) as local:
        check_problem(await local.put("/v1/links/cut", json=wanted), 409, "a daemon that listens on loopback")
        rig.daemon.loaded = load_config(environment={}, sets=["node.listen=127.0.0.1:7420"])
        answer = await local.put("/v1/links/cut", json=wanted)
        assert (answer.status_code, answer.json()) == (200, wanted)
        assert rig.daemon.links.cut_from == {peer(0x30).id}
        wrong = await local.put("/v1/links/cut", json={"nodes": ["x"]})
        check_problem(wrong, 422, "nodes.0: expected text that matches")


async def test_a_bug_is_a_500_that_tells_nothing(rig: Rig) -> None:
    response = await rig.http.get("/v1/echo/bug")
    check_problem(response, 500, "a bug in the daemon")
    assert "secret" not in response.text


async def test_a_large_body_is_refused_by_its_announced_length(rig: Rig) -> None:
    body = b'{"text": "' + b"x" * REQUEST_BODY_BYTES_MAX + b'"}'
    check_problem(await rig.http.post("/v1/echo/length", content=body), 413, "at most 65536 bytes")


async def test_a_large_body_is_refused_while_it_arrives(rig: Rig) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"text": "'
        while True:
            yield b"x" * 4096

    headers = {"Content-Type": "application/json"}
    response = await rig.http.post("/v1/echo/length", content=endless(), headers=headers)
    check_problem(response, 413, "at most 65536 bytes")


async def test_a_body_within_the_cap_passes(rig: Rig) -> None:
    text = "x" * (REQUEST_BODY_BYTES_MAX - 100)
    assert (await rig.http.post("/v1/echo/length", json={"text": text})).json() == len(text)


@pytest.mark.parametrize("length", ["-1", "1e3", "99999999999999999999"])
async def test_a_senseless_length_is_refused(rig: Rig, length: str) -> None:
    response = await rig.http.post("/v1/echo/length", content=b"{}", headers={"Content-Length": length})
    check_problem(response, 413, "at most")


OURS = ("localhost", "localhost:7421", "127.0.0.1:7421", "[::1]:7421", "127.9.9.9")
FOREIGN = ("evil.example", "evil.example:7421", "10.0.0.1", "", "localhost.evil.example")


@pytest.mark.parametrize(("host", "status"), [*((name, 200) for name in OURS), *((name, 421) for name in FOREIGN)])
async def test_over_tcp_only_this_machines_names_are_served(rig: Rig, host: str, status: int) -> None:
    assert (await rig.http.get("/v1/status", headers={"Host": host})).status_code == status
    assert is_local_host(host) == (status == 200)


async def test_over_a_unix_socket_any_name_is_served() -> None:
    async with FakeDaemon().http(client=None) as http:
        assert (await http.get("/v1/status", headers={"Host": "whatever"})).status_code == 200


async def test_readiness_says_who_is_missing_and_stays_ready(rig: Rig) -> None:
    def text(response: httpx.Response) -> str:
        assert response.status_code == 200
        [detail] = [entry["detail"] for entry in response.json()["checks"] if entry["name"] == "ring"]
        return str(detail)

    assert text(await rig.http.get("/readyz")) == "leaf set of 3 complete; no member is missing"
    rig.daemon.overlay.missing = (MissingMember(peer(0x70), 3.0),)
    assert text(await rig.http.get("/readyz")).endswith("; 4 of 5 expected members round this node, 1 missing")
    rig.daemon.overlay.missing = tuple(MissingMember(peer(number), 3.0) for number in range(0x70, 0x75))
    assert "5 missing: this side is the smaller part of a partition" in text(await rig.http.get("/readyz"))
    status = (await rig.http.get("/v1/status")).json()
    assert (status["missing"], status["is_minority"], status["expected"]) == (5, True, 22.4)
    assert status["missing_members"][0] == {"id": f"{peer(0x70).id:032x}", "address": "127.0.0.1:7112", "lost_s": 3.0}


async def test_forgetting_is_for_the_local_operator(rig: Rig) -> None:
    rig.daemon.overlay.missing = (MissingMember(peer(0x70), 3.0),)
    path, body = "/v1/members/forgotten", {"all_missing": True}
    assert (await rig.http.post(path, json=body)).status_code == 403
    async with rig.daemon.http(caller=LOCAL_OPERATOR) as local:
        for wrong in ({}, {"node": "ab" * 16, "all_missing": True}, {"node": ""}):
            assert (await local.post(path, json=wrong)).status_code == 422
        assert rig.daemon.overlay.forgotten == []
        answer = (await local.post(path, json=body)).json()
        rig.daemon.overlay.outside = "this node has left the ring"
        assert (await local.post(path, json=body)).status_code == 503
    assert answer["nodes"] == [{"id": f"{peer(0x70).id:032x}", "address": "127.0.0.1:7112", "lost_s": 3.0}]
    assert rig.daemon.overlay.forgotten == [peer(0x70).id]
