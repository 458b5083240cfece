"""A stream belongs to who has created it: nobody else but an operator ends it, or hands it over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from peerd.daemon.admin.api import data_api
from peerd.daemon.http.caller import Caller
from peerd.lib.admission import OWNER_SHARE, over_share
from peerd.testing.host import FakeHost
from protocols.dissemination.loading import load_kind
from protocols.dissemination.models import StreamSpec, StreamSubscriptionRequest
from protocols.dissemination.plugin import Dissemination
from protocols.dissemination.service import StreamRefused
from protocols.dissemination.stream import StreamRecord
from tests.support.fake_daemon import LOCAL_OPERATOR, FakeDaemon, called_by
from tests.support.fake_streams import FakeStreams

OWNER, OTHER = Caller("data_socket", user_id=1001), Caller("data_socket", user_id=1002)
STRANGER = Caller("data_http", "127.0.0.1:50000")
Of = Callable[[Caller], httpx.AsyncClient]


@pytest.fixture
def service() -> FakeStreams:
    return FakeStreams()


@pytest.fixture
async def of(service: FakeStreams) -> AsyncIterator[Of]:
    """A client of the data listeners for each caller."""
    app = data_api(FakeDaemon({"dissemination": service}))
    async with AsyncExitStack() as stack:
        clients: dict[Caller, httpx.AsyncClient] = {}
        for caller in (OWNER, OTHER, STRANGER, LOCAL_OPERATOR):
            transport = httpx.ASGITransport(called_by(caller, app))
            client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
            clients[caller] = await stack.enter_async_context(client)
        yield clients.__getitem__


async def test_only_who_has_created_a_stream_ends_it_or_hands_it_over(service: FakeStreams, of: Of) -> None:
    assert (await of(OWNER).post("/v1/streams", json={"name": "news"})).status_code == 201
    for caller in (OTHER, STRANGER):
        assert (await of(caller).delete("/v1/streams/news")).status_code == 403
        assert (await of(caller).post("/v1/streams/news/hand-over", json={"to": "x"})).status_code == 403
    assert not service.asked("remove") and not service.asked("hand_over")
    assert (await of(OWNER).post("/v1/streams/news/hand-over", json={"to": "x"})).status_code == 200
    assert (await of(OWNER).delete("/v1/streams/news")).status_code == 200


async def test_operators_end_the_streams_of_others_and_of_nobody(service: FakeStreams, of: Of) -> None:
    service.owners = {"other": "user 1001"}
    assert (await of(OWNER).delete("/v1/streams/news")).status_code == 403, "it was created elsewhere, or by a stranger"
    assert (await of(LOCAL_OPERATOR).delete("/v1/streams/news")).status_code == 200


async def test_who_has_its_share_of_subscriptions_gets_no_more(service: FakeStreams, of: Of) -> None:
    service.full = {"user 1002", ""}
    for caller, status in ((OTHER, 429), (STRANGER, 429), (OWNER, 201), (LOCAL_OPERATOR, 201)):
        assert (await of(caller).post("/v1/streams/news/subscriptions", json={})).status_code == status


def start(host: FakeHost) -> Dissemination:
    plugin = Dissemination()
    host.plugin = plugin
    host.timers.clear()
    plugin.start(host)
    host.run_later()
    return plugin


def test_whose_a_stream_is_survives_a_restart_and_ends_with_it() -> None:
    host = FakeHost(1)
    plugin = start(host)
    plugin.produced.give_to("news", "user 1001")
    assert plugin.produced.owner_of("news") == "user 1001"
    plugin = start(host)
    assert plugin.produced.owner_of("news") == "user 1001" and plugin.produced.owner_of("other") == ""
    made = plugin.produced
    record = made.make(StreamRecord.of(StreamSpec(name="news"), host.peer)).record
    made.remember(record)
    made.forget(record)
    assert plugin.produced.owner_of("news") == "" and host.store.keys() == []


@pytest.mark.parametrize(("room", "share", "most"), [(20, 0.25, 5), (3, 0.25, 1), (1, 0.25, 1), (20, 1.0, 20)])
def test_a_share_is_rounded_down_and_one_at_least(room: int, share: float, most: int) -> None:
    owners = ["token a"] * most + [""] * (most - 1)
    assert over_share("token a", owners, room, share) == f"token a has {most}"
    assert over_share("token a", owners[1:], room, share) == over_share("", owners, room, share) == ""
    assert over_share("", [*owners, ""], room, share) == f"who shows no token has {most}"


def test_one_owner_has_its_share_of_all_subscriptions() -> None:
    plugin = start(FakeHost(1))
    share = int(OWNER_SHARE * plugin.config.subscriptions_max)
    everything = load_kind("attributes").parse("")
    for _ in range(share):
        plugin.clients.make("news", everything, "attributes", "", None).owner = "user 1001"
    asked, of_other = (StreamSubscriptionRequest(stream="news", owner=f"user {user}") for user in (1001, 1002))
    plugin.clients.check(of_other, is_bounded=True)
    plugin.clients.check(asked, is_bounded=False)
    with pytest.raises(StreamRefused, match=f"user 1001 has {share} subscriptions"):
        plugin.clients.check(asked, is_bounded=True)
