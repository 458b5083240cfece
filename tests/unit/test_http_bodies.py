"""A request body is worth one error a list: pydantic would tell one of every item, which took 150 ms for 64 KiB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, FailFast, TypeAdapter, ValidationError

from peerd.daemon.admin.api import admin_api
from peerd.daemon.http.guard import REQUEST_BODY_BYTES_MAX
from protocols.aggregation.front.http import AggregateBody
from tests.support.fake_aggregation import FakeAggregation
from tests.support.fake_daemon import FakeDaemon

COLLECTIONS = ("list", "tuple", "set", "frozenset", "dict")
ITEMS = ("items_schema", "values_schema")


def tells_every_error(schema: Any) -> Iterator[str]:
    """The collections of a core schema of which each item can have an error of its own."""
    if isinstance(schema, list | tuple):
        for each in schema:
            yield from tells_every_error(each)
    if not isinstance(schema, dict):
        return
    kind, items = schema.get("type"), [schema[name] for name in ITEMS if name in schema]
    if kind in COLLECTIONS and not schema.get("fail_fast") and any(item != {"type": "any"} for item in items):
        yield str(kind)
    for name, each in schema.items():
        if name not in ("metadata", "serialization"):
            yield from tells_every_error(each)


def routes_of(router: Any) -> Iterator[APIRoute]:
    """All of an application's; newer versions of FastAPI keep those of an included router there."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from routes_of(route.original_router)


def bodies(app: FastAPI) -> dict[str, Any]:
    """What each route reads from its body, by path."""
    fields = ((route.path, field) for route in routes_of(app) for field in route.dependant.body_params)
    return {f"{path} {field.name}": field.field_info.annotation for path, field in fields}


def test_no_body_of_a_route_gets_an_error_for_every_item() -> None:
    found = bodies(admin_api(FakeDaemon({"aggregation": FakeAggregation()})))
    assert len(found) >= 10 and AggregateBody in found.values()
    told = {path: list(tells_every_error(TypeAdapter(body).core_schema)) for path, body in found.items()}
    assert {path: kinds for path, kinds in told.items() if kinds} == {}


def test_lists_of_which_every_item_can_be_wrong_are_found() -> None:
    class Item(BaseModel):
        number: int

    class Body(BaseModel):
        first: list[Item]
        second: dict[str, int] | None = None
        bounded: Annotated[tuple[int, ...], FailFast()] = ()
        anything: list[Any] = []

    assert list(tells_every_error(TypeAdapter(Body).core_schema)) == ["list", "dict"]


@pytest.mark.parametrize("item", ["{}", "1", '{"field":1,"operator":2,"value":null}'])
def test_a_body_of_nothing_but_wrong_conditions_has_few_errors(item: str) -> None:
    count = REQUEST_BODY_BYTES_MAX // (len(item) + 1) - 20
    body = '{"query":{"function":"sum","where":[' + ",".join([item] * count) + "]}}"
    assert len(body) <= REQUEST_BODY_BYTES_MAX
    with pytest.raises(ValidationError) as caught:
        AggregateBody.model_validate_json(body)
    assert caught.value.error_count() <= 8
