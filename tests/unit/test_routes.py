"""Tables of routes: what the daemon serves is in one of them and the other way round, and how a path is filled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast
from urllib.parse import unquote

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from peerd.api import Plugin
from peerd.daemon.admin.api import admin_api, data_api
from peerd.daemon.http.routes import serve
from peerd.front import scope_of
from peerd.models.admin import API_PREFIX, Status
from peerd.models.routes import HttpRoute
from peerd.plugins import usable_fronts
from tests.support.fake_daemon import FakeDaemon

Shown = set[tuple[str, str, int, str]]
"""Method, path below ``/v1``, status and scope."""
OWN = "peerd.models.routes"
NAMES = HttpRoute("GET", "/a/{x}/b/{y:path}", Status)


class Idle:
    """Stands for a running plugin that nobody asks."""

    def __getattr__(self, name: str) -> None:
        if name == "router":  # it is no plugin that brings its own routes, as some tests have them
            raise AttributeError(name)


def tables() -> dict[str, list[HttpRoute[Any]]]:
    """The routes of each table, by its module: the daemon's own, and that of each front that is installed."""
    modules = [OWN, *(f"{type(front).__module__}.routes" for front in usable_fronts().values())]
    return {
        module: [each for each in vars(import_module(module)).values() if isinstance(each, HttpRoute)]
        for module in modules
        if find_spec(module) is not None
    }


def listed(routes: Iterable[HttpRoute[Any]]) -> Shown:
    return {
        (each.method, each.path, each.status, each.scope or ("read" if each.method == "GET" else "write"))
        for each in routes
    }


def served(app: FastAPI) -> dict[tuple[str, str], APIRoute]:
    """Everything below ``/v1`` but WebSockets, by method and path."""

    def found(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, APIRoute]]:
        for route in routes:
            if isinstance(route, APIRoute):
                yield prefix + route.path, route
            elif isinstance(inner := getattr(route, "original_router", None), APIRouter):
                yield from found(inner.routes, prefix + cast(Any, route).include_context.prefix)

    return {
        (method, path.removeprefix(API_PREFIX)): route
        for path, route in found(app.routes)
        for method in route.methods or ()
        if path.startswith(API_PREFIX)
    }


def shown(app: FastAPI) -> Shown:
    return {(*key, route.status_code or 200, scope_of(route)) for key, route in served(app).items()}


@pytest.fixture
def daemon() -> FakeDaemon:
    return FakeDaemon({name: cast(Plugin, Idle()) for name in usable_fronts()})


def test_what_is_served_is_in_a_table_and_the_other_way_round(daemon: FakeDaemon) -> None:
    found = tables()
    assert all(found.values()) and len(found) > 1
    protocols = [each for module, routes in found.items() if module != OWN for each in routes]
    assert shown(data_api(daemon)) == listed(protocols)
    assert shown(admin_api(daemon)) == listed([*found[OWN], *protocols])


def test_a_route_answers_with_the_model_that_its_table_says(daemon: FakeDaemon) -> None:
    models: dict[tuple[str, str], list[Any]] = {}
    for each in (each for routes in tables().values() for each in routes):
        models.setdefault((each.method, each.path), []).append(each.answer)
    checked = 0
    for key, route in served(admin_api(daemon)).items():
        if isinstance(route.response_model, type) and route.response_model is not dict:
            assert route.response_model in models[key]
            checked += 1
    assert checked > 40


@pytest.mark.parametrize("name", ["a/b", "ä", "%", "?#", " ", "..", ""])
def test_names_are_quoted(name: str) -> None:
    path = NAMES.at(name, name)
    assert path.isascii() and not set(" ?#") & set(path)
    assert [unquote(part) for part in path.split("/")] == ["", "v1", "a", name, "b", name]
    assert NAMES.at("a/b", "ä%") == "/v1/a/a%2Fb/b/%C3%A4%25"


def test_a_query_has_the_values_that_there_are() -> None:
    assert NAMES.at("x", "y", first=None, size=0, text="a&b ä") == "/v1/a/x/b/y?size=0&text=a%26b+%C3%A4"
    assert NAMES.at("x", "y", first=None) == "/v1/a/x/b/y"


@pytest.mark.parametrize("names", [(), ("a",), ("a", "b", "c")])
def test_too_many_names_or_too_few_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="argument"):
        NAMES.at(*names)


def test_a_scope_and_more_of_the_document_go_together() -> None:
    router = APIRouter()

    @serve(
        router, HttpRoute("POST", "/sum", Status, status=201, scope="read"), {"summary": "Adds."}, response_model=None
    )
    async def total() -> Any: ...

    app = FastAPI()
    app.include_router(router, prefix=API_PREFIX)
    assert shown(app) == {("POST", "/sum", 201, "read")}
    assert app.openapi()["paths"]["/v1/sum"]["post"]["summary"] == "Adds."
