"""Four real daemons: publish on one, receive on another; durable across SIGKILL, groups, explanations, JavaScript."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from peerd.client import Client
from peerd.client.streams import Gap
from peerd.cluster.local import LocalCluster
from peerd.models.admin import API_PREFIX
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.front.routes import SUBSCRIBE
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest, SubscriptionView
from tests.support.daemon_process import clean_environment, restarted
from tests.support.pages import blocks
from tests.support.sockets import next_entry

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "protocols" / "pubsub.md"
NODES = 4
WAIT_S = 60.0
NODE_JS_MIN = 20
STOCKS: dict[str, Any] = {
    "name": "stocks",
    "attributes": [
        {"name": "symbol", "type": "string"},
        {"name": "price", "type": "decimal", "low": "0", "high": "10000"},
        {"name": "volume", "type": "int", "low": 0, "high": 1_000_000_000},
    ],
}


@contextmanager
def daemons(folder: Path) -> Iterator[LocalCluster]:
    with LocalCluster(folder, name="test") as found:
        found.up(NODES, settings=lambda index: {"data": {"http": "127.0.0.1:0"}})
        yield found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Daemons of one test alone, of which it may kill one."""
    with daemons(tmp_path / "cluster") as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Daemons of all tests that kill none: each subscribes anew, and gets what is published from then on."""
    with daemons(tmp_path_factory.mktemp("shared") / "cluster") as found:
        yield found


async def install(client: Client, filter: str, **options: str) -> SubscriptionView:
    """Subscribe; from now on every matching event comes."""
    request = SubscriptionRequest.model_validate({"schema": "stocks", "filter": filter, **options})
    return await client.call(SUBSCRIBE, body=request)


async def take(pubsub: PubSubClient, id: str, count: int) -> list[ReceivedEvent]:
    """The first events of a subscription."""
    found: list[ReceivedEvent] = []
    async with asyncio.timeout(WAIT_S), aclosing(pubsub.read(id, after="start")) as entries:
        async for entry in entries:
            if isinstance(entry, ReceivedEvent):
                found.append(entry)
                if len(found) == count:
                    break
    return found


async def installed_again(pubsub: PubSubClient, name: str) -> None:
    """Wait until the leaves know the subscription again; it stays so."""
    async with asyncio.timeout(WAIT_S):
        while [each.state for each in await pubsub.subscriptions() if each.name == name] != ["replicated"]:
            await asyncio.sleep(0.1)


def node_js() -> str:
    """Return the program that runs JavaScript; skip the test where there is none that is new enough."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the JavaScript example of the page needs it (20 or newer)")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version[1:].split(".")[0]) < NODE_JS_MIN:
        pytest.skip(f"node {version.strip()} is installed: the JavaScript example of the page needs 20 or newer")
    return node


async def test_what_matches_comes_and_an_explanation_says_why_the_rest_does_not(shared: LocalCluster) -> None:
    async with shared.client(0) as here, shared.client(2) as there:
        await PubSubClient(here).declare(STOCKS)
        view = await install(there, "price > 20 AND symbol STARTS WITH 'IB'")
        assert view.state in ("received", "replicated")
        publisher, subscriber = PubSubClient(here), PubSubClient(there)
        prices = ["20.5", "19.5", "30"]
        done = [await publisher.publish("stocks", {"symbol": "IBM", "price": price}) for price in prices]
        assert [each.outcome for each in done] == ["replicated"] * 3
        found = await take(subscriber, view.id, 2)
        assert [(event.event, event.values["price"]) for event in found] == [
            (done[0].event, "20.5"),
            (done[2].event, "30"),
        ]
        where = shared.node(2).id
        assert (await publisher.explain(done[0].event, where))["verdict"] == "arrived"
        missed = await publisher.explain(done[1].event, where)
        assert missed["verdict"] == "did not arrive"
        assert "price > 20: false, price is 19.5" in missed["summary"]


async def test_a_durable_subscription_is_there_after_sigkill(cluster: LocalCluster, tmp_path: Path) -> None:
    async with cluster.client(0) as here:
        await PubSubClient(here).declare(STOCKS)
        async with cluster.client(3) as there:
            await install(there, "price > 20", name="audit")
            first = await PubSubClient(here).publish("stocks", {"symbol": "A", "price": 21})
            await take(PubSubClient(there), "audit", 1)
        cluster.kill(3)
        with restarted(tmp_path / "cluster" / "nodes" / "3"):
            async with cluster.client(3) as there:
                await there.wait_ready(WAIT_S)
                await installed_again(PubSubClient(there), "audit")
                second = await PubSubClient(here).publish("stocks", {"symbol": "A", "price": 22})
                found = await take(PubSubClient(there), "audit", 2)
                assert [event.event for event in found] == [first.event, second.event]


async def test_a_websocket_goes_on_where_its_connection_was_lost(shared: LocalCluster) -> None:
    async with shared.client(0) as here, shared.client(2) as there:
        publisher = PubSubClient(here)
        await publisher.declare(STOCKS)
        [address] = (await there.status()).data_addresses
        url, last, found = f"ws://{address}{API_PREFIX}/pubsub/stocks/events?filter=price%20%3E%2020", "", list[str]()
        for prices in (["21"], ["22", "23"], ["24"]):  # the second ones are published while nobody reads
            if last:
                await publisher.publish("stocks", {"symbol": "A", "price": prices[0]})
            async with asyncio.timeout(WAIT_S), connect(url + last) as socket:
                if not last:
                    assert json.loads(await socket.recv())["type"] == "heartbeat"  # it is subscribed
                for price in prices if not last else prices[1:]:
                    await publisher.publish("stocks", {"symbol": "A", "price": price})
                for _ in prices:
                    entry = await next_entry(socket)
                    found.append(entry["data"]["values"]["price"])
                    last = f"&after={entry['id']}"
        assert found == ["21", "22", "23", "24"]


async def test_the_iterator_outlives_a_daemon_that_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    async with cluster.client(0) as here, cluster.client(3) as there:
        publisher = PubSubClient(here)
        await publisher.declare(STOCKS)
        await publisher.publish("stocks", {"symbol": "A", "price": 21})
        entries = PubSubClient(there).subscribe("stocks", "price > 20", since_s=60)
        async with asyncio.timeout(2 * WAIT_S), aclosing(entries):
            assert isinstance(await anext(entries), ReceivedEvent)
            cluster.kill(3)
            with restarted(tmp_path / "cluster" / "nodes" / "3"):
                assert isinstance(await anext(entries), Gap)
                later = await publisher.publish("stocks", {"symbol": "A", "price": 22})
                second = await anext(entries)
                assert isinstance(second, ReceivedEvent) and second.event == later.event


async def test_each_event_goes_to_one_of_a_group(shared: LocalCluster) -> None:
    async with shared.client(0) as here, shared.client(1) as one, shared.client(2) as other:
        await PubSubClient(here).declare(STOCKS)
        members = [(PubSubClient(one), await install(one, "price > 20", group="g"))]
        members += [(PubSubClient(other), await install(other, "price > 20", group="g"))]
        wanted = {
            (await PubSubClient(here).publish("stocks", {"symbol": "A", "price": price})).event
            for price in range(21, 41)
        }
        taken: list[str] = []
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as readers:

            async def read(pubsub: PubSubClient, id: str) -> None:
                async with aclosing(pubsub.read(id, after="start")) as entries:
                    async for entry in entries:
                        if isinstance(entry, ReceivedEvent):
                            taken.append(entry.event)
                        if len(taken) >= len(wanted):
                            for task in tasks:
                                task.cancel()

            tasks = [readers.create_task(read(pubsub, view.id)) for pubsub, view in members]
        assert sorted(taken) == sorted(wanted)


async def test_the_example_in_javascript(shared: LocalCluster, tmp_path: Path) -> None:
    node = node_js()
    [text] = [block.text for block in blocks(PAGE) if block.language == "javascript"]
    async with shared.client(1) as client:
        await PubSubClient(client).declare(STOCKS)
        [address] = (await client.status()).data_addresses
    file = tmp_path / "example.mjs"
    file.write_text(text.replace("127.0.0.1:7422", address))
    process = await asyncio.create_subprocess_exec(
        node, str(file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=clean_environment()
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), WAIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert output.decode().split()[1:] == ["IBM", "26.5"], errors.decode()
