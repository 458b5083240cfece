"""A direct route answers its second request as its first one, without FastAPI, and never without its checks."""

from __future__ import annotations

from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from peerd.daemon.admin.plugins import add_router
from peerd.daemon.http.direct import CALLS_MAX, TARGET_LENGTH_MAX, DirectRoutes, direct
from peerd.daemon.http.gate import Receive, Scope, Send
from peerd.errors import Bug

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


def test_a_direct_route_may_depend_on_nothing_else() -> None:
    router = APIRouter()

    @router.post("/{topic}/notes", response_model=None)
    @direct
    async def add(request: Request, topic: str, who: Annotated[str, Header()]) -> Response:
        return Response()

    with pytest.raises(Bug, match="depends on more"):
        DirectRoutes(FastAPI()).add(router, ())


def test_the_document_tells_of_a_direct_route_as_of_any_other() -> None:
    told = Site().app.openapi()["paths"]["/v1/{topic}/notes"]["post"]
    assert told["description"] == "Add a note."
    assert [each["name"] for each in told["parameters"]] == ["topic", "times"]
