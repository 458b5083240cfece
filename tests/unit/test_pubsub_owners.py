"""Whose a subscription is: another token or user of the machine neither sees nor reads, changes or ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from peerd.daemon.http.asker import ASKER_KEY, Asker
from peerd.daemon.http.guard import add_problem_handlers
from protocols.pubsub.front import PubSubFront
from protocols.pubsub.models import SubscriptionView
from tests.support.fake_pubsub import FakePubSub

OPERATOR = Asker("user 0", is_operator=True, may_write=True)
ANNA, BERT = Asker("token anna", may_write=True), Asker("user 1001", may_write=True)
READER, NOBODY = Asker("token reader"), Asker()
AUDIT: dict[str, Any] = {"schema": "stocks", "filter": "price > 20", "name": "audit"}


class Owned(FakePubSub):
    """Has one subscription, of whom the test says."""

    def __init__(self, owner: str, name: str) -> None:
        super().__init__()
        self.view = self.view.model_copy(update={"owner": owner, "name": name})
        self.made: list[tuple[str, bool]] = []

    def subscribe(self, request: Any, on_done: Any, owner: str = "", *, is_bounded: bool = False) -> SubscriptionView:
        self.made.append((owner, is_bounded))
        return super().subscribe(request, on_done, owner, is_bounded=is_bounded)

    def views(self) -> list[SubscriptionView]:
        return [self.view]


@dataclass
class Site:
    service: Owned
    app: FastAPI

    @asynccontextmanager
    async def seen_by(self, asker: Asker) -> AsyncIterator[httpx.AsyncClient]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("state", {})[ASKER_KEY] = asker
            await self.app(scope, receive, send)

        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/pubsub") as http:
            yield http


def site(owner: str = "token anna", name: str = "audit") -> Site:
    service, app = Owned(owner, name), FastAPI()
    add_problem_handlers(app)
    app.include_router(PubSubFront().router(service))
    return Site(service, app)


async def statuses(http: httpx.AsyncClient) -> list[int]:
    """What reading, changing and ending it answers."""
    return [
        (await http.get("/subscriptions/0a/events?follow=0")).status_code,
        (await http.patch("/subscriptions/0a", json={"filter": "TRUE"})).status_code,
        (await http.delete("/subscriptions/0a")).status_code,
    ]


@pytest.mark.parametrize("asker", [ANNA, OPERATOR], ids=["owner", "operator"])
async def test_the_owner_and_operators_read_change_and_end_it(asker: Asker) -> None:
    async with site().seen_by(asker) as http:
        assert len((await http.get("/subscriptions")).json()["subscriptions"]) == 1
        assert await statuses(http) == [200, 200, 200]


@pytest.mark.parametrize("asker", [BERT, READER, NOBODY], ids=["another user", "another token", "no token"])
@pytest.mark.parametrize("name", ["audit", ""])
async def test_nobody_else_does(asker: Asker, name: str) -> None:
    here = site(name=name)
    async with here.seen_by(asker) as http:
        assert (await http.get("/subscriptions")).json()["subscriptions"] == []
        assert await statuses(http) == [403, 403, 403]
    assert [called for called, _ in here.service.calls if called in ("change", "end")] == []


async def test_what_has_no_owner_and_stays_is_for_operators() -> None:
    """The gateway's, say, and what was kept by a daemon that did not know whose it was."""
    async with site(owner="").seen_by(NOBODY) as http:
        assert await statuses(http) == [403, 403, 403]
    async with site(owner="").seen_by(OPERATOR) as http:
        assert await statuses(http) == [200, 200, 200]


async def test_without_a_token_one_reads_and_ends_what_one_has_made_and_sees_no_list() -> None:
    """Its random id is all that there is to know it by."""
    async with site(owner="", name="").seen_by(NOBODY) as http:
        assert (await http.get("/subscriptions")).json()["subscriptions"] == []
        assert await statuses(http) == [200, 403, 200]


@pytest.mark.parametrize("asker", [READER, NOBODY], ids=["read scope", "no token"])
async def test_what_stays_needs_the_scope_to_write(asker: Asker) -> None:
    here = site(owner=asker.owner)
    async with here.seen_by(asker) as http:
        answer = await http.post("/subscriptions", json=AUDIT)
        assert answer.status_code == 403 and "pubsub:write" in answer.json()["detail"]
        assert (await http.delete("/subscriptions/0a")).status_code == 403
        assert (await http.post("/subscriptions", json=AUDIT | {"name": ""})).status_code == 201
    assert here.service.made == [(asker.owner, True)]


async def test_operators_are_bounded_by_the_whole_only_and_may_resume_anybodys() -> None:
    here = site()
    async with here.seen_by(OPERATOR) as http:
        await http.post("/subscriptions", json=AUDIT)
        await http.post("/subscriptions", json=AUDIT | {"name": "mine"})
    assert here.service.made == [("token anna", False), ("user 0", False)]


@pytest.mark.parametrize(("asker", "shows"), [(OPERATOR, True), (ANNA, False), (NOBODY, False)])
async def test_filters_and_values_are_explained_to_operators(asker: Asker, shows: bool) -> None:
    here, asked = site(), []

    def explain(event: str, subscriber: str, on_done: Any, *, shows_filters: bool = True) -> None:
        asked.append(shows_filters)
        on_done({"verdict": "unknown"})

    here.service.explain = explain  # type: ignore[method-assign]  # a test's own
    async with here.seen_by(asker) as http:
        assert (await http.get("/explain/e")).status_code == 200
    assert asked == [shows]
