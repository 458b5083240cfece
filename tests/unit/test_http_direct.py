"""A direct route answers its second request as its first one, without FastAPI, and never without its checks."""

from __future__ import annotations

from typing import Annotated

import httpx
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from peerd.daemon.admin.api import admin_app, data_api
from peerd.daemon.admin.plugins import add_router
from peerd.daemon.http.access_book import AccessToken
from peerd.daemon.http.caller import Caller
from peerd.daemon.http.direct import CALLS_MAX, TARGET_LENGTH_MAX, DirectRoutes, direct
from peerd.daemon.http.gate import TOKEN_KEY, Receive, Scope, Send
from tests.support.fake_daemon import LOCAL_OPERATOR, FakeDaemon, called_by
from tests.support.fake_pubsub import FakePubSub

BASE = "http://test"


class Answer(BaseModel):
    topic: str


class Site:
    """An application with one direct route, which counts what its router and its check are asked."""

    def __init__(self) -> None:
        self.routed = self.checked = 0
        self.is_open = True
        self.app = FastAPI()
        router, inner = APIRouter(), self.app.router.middleware_stack

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            self.routed += 1
            await inner(scope, receive, send)

        self.app.router.middleware_stack = counted

        @router.post("/{topic}/notes", response_model=None)
        @direct
        async def add(request: Request, topic: str, times: int = 1) -> Answer | Response:
            """Add a note."""
            if not times:
                return Answer(topic=topic)
            return Response(topic.encode() + b"".join([await request.body()] * times))

        async def check(connection: HTTPConnection) -> None:
            self.checked += 1
            if not self.is_open:
                raise HTTPException(403, f"closed for {connection.scope['route'].path}")

        direct_routes = DirectRoutes(self.app)
        add_router(self.app, "notes", router, Depends(check))
        direct_routes.add(router, (check,))
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=BASE)

    async def post(self, path: str, body: bytes = b"x") -> tuple[int, str]:
        answer = await self.http.post(f"/v1/{path}", content=body)
        return answer.status_code, answer.text


async def test_the_router_finds_a_route_once_and_each_body_is_read() -> None:
    site = Site()
    assert await site.post("a/notes?times=2", b"x") == (200, "axx")
    assert await site.post("a/notes?times=2", b"y") == (200, "ayy")
    assert (site.routed, site.checked) == (1, 2)


async def test_another_query_path_or_method_is_another_request() -> None:
    site = Site()
    told = [await site.post(path) for path in ("a/notes", "a/notes?times=3", "b/notes", "b/notes")]
    assert told == [(200, "ax"), (200, "axxx"), (200, "bx"), (200, "bx")]
    assert (await site.http.get("/v1/a/notes")).status_code == 405
    assert site.routed == 4


async def test_who_is_refused_by_a_check_is_refused_on_the_direct_way_too() -> None:
    site = Site()
    assert (await site.post("a/notes"))[0] == 200
    site.is_open = False
    direct_way = await site.post("a/notes")
    assert direct_way == (403, '{"detail":"closed for /{topic}/notes"}') and site.routed == 1
    assert await site.post("b/notes") == direct_way and site.routed == 2


async def test_a_model_is_answered_as_json_each_time() -> None:
    site = Site()
    answers = [await site.http.post("/v1/a/notes?times=0") for _ in range(2)]
    assert [(each.headers["content-type"], each.json()) for each in answers] == [
        ("application/json", {"topic": "a"})
    ] * 2


async def test_wrong_parameters_are_refused_each_time_in_the_same_words() -> None:
    site = Site()
    first, second = [await site.post("a/notes?times=many") for _ in range(2)]
    assert first == second and first[0] == 422 and "many" in first[1]
    assert site.routed == 2


async def test_so_many_targets_are_remembered_and_no_long_one() -> None:
    site = Site()
    for number in range(CALLS_MAX + 1):
        await site.post(f"t{number}/notes")
    before = site.routed
    assert await site.post("t1/notes") == (200, "t1x") and site.routed == before
    assert await site.post("t0/notes") == (200, "t0x") and site.routed == before + 1
    long = "t" * TARGET_LENGTH_MAX
    assert {(await site.post(f"{long}/notes"))[1] for _ in range(2)} == {f"{long}x"}
    assert site.routed == before + 3


async def test_a_route_that_depends_on_more_is_read_each_time() -> None:
    app, router = FastAPI(), APIRouter()

    @router.post("/{topic}/notes", response_model=None)
    @direct
    async def add(request: Request, topic: str, who: Annotated[str, Header()]) -> Response:
        return Response(who)

    add_router(app, "notes", router)
    DirectRoutes(app).add(router, ())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as http:
        told = [(await http.post("/v1/a/notes", headers={"who": who})).text for who in ("first", "second")]
    assert told == ["first", "second"]


async def test_of_operators_one_being_let_in_lets_nobody_else_in() -> None:
    app = admin_app(FakeDaemon({"pubsub": FakePubSub()}))
    stranger, far = Caller("admin_socket", user_id=65_000), Caller("admin_http", "127.0.0.1:50000")
    for caller, status in ((LOCAL_OPERATOR, 200), (stranger, 403), (far, 403), (LOCAL_OPERATOR, 200)):
        transport = httpx.ASGITransport(called_by(caller, app))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.post("/v1/pubsub/stocks/events", json={"price": 1})).status_code == status


async def test_of_data_clients_each_needs_the_scope_on_its_own_token() -> None:
    app = data_api(FakeDaemon({"pubsub": FakePubSub()}))
    writer, reader = (AccessToken("1", "one", "", (f"pubsub:{word}",), 0.0, 1.0) for word in ("write", "read"))
    for token, status in ((writer, 200), (reader, 403), (writer, 200)):

        async def shown(scope: Scope, receive: Receive, send: Send, token: AccessToken = token) -> None:
            await app({**scope, "state": {TOKEN_KEY: token}}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(shown), base_url=BASE) as http:
            assert (await http.post("/v1/pubsub/stocks/events", json={"price": 1})).status_code == status


def test_the_document_tells_of_a_direct_route_as_of_any_other() -> None:
    told = Site().app.openapi()["paths"]["/v1/{topic}/notes"]["post"]
    assert told["description"] == "Add a note."
    assert [each["name"] for each in told["parameters"]] == ["topic", "times"]
