"""Real daemons: a stream with filters, a node killed in the middle, named subscriptions, a producer that comes back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from peerd.client import Client, DaemonBusy, RequestRefused
from peerd.client.streams import StreamEntry
from peerd.cluster.local import LocalCluster
from peerd.errors import Unavailable
from peerd.models.admin import API_PREFIX
from protocols.dissemination.front.client import DisseminationClient
from protocols.dissemination.models import ReceivedItem, item_order
from protocols.dissemination.stream import TAKE_OVER_TERMS
from tests.cluster.stream_trees import whole_tree
from tests.support.daemon_process import clean_environment
from tests.support.sockets import next_entry

pytestmark = pytest.mark.cluster

NODES = 5
WAIT_S = 60.0
FAN_OUT = 2
"""So low that five nodes make a tree of two levels."""
KIND, POLICY = "classes", "first_fit"
STANDBY_LEASE_S = 10.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"data": {"http": "127.0.0.1:0"}, "protocols": {"dissemination": {"fan_out": FAN_OUT}}}
    with LocalCluster(tmp_path / "cluster", name="test") as found:
        found.up(NODES, settings=lambda index: settings)
        yield found


@contextmanager
def restarted(folder: Path) -> Iterator[None]:
    """A node that was killed runs again, with its configuration and state."""
    command = [sys.executable, "-m", "peerd", "run", "--config", str(folder / "peerd.toml")]
    process = subprocess.Popen(command, cwd=folder, env=clean_environment(), stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)


class Reading:
    """What a subscription has got: items, and marks of what it has not."""

    def __init__(self, client: Client, interest: str) -> None:
        self.streams = DisseminationClient(client)
        self.interest = interest
        self.entries: list[ReceivedItem | StreamEntry] = []
        self.is_live = asyncio.Event()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Subscribe, and read for ever."""
        entries = self.streams.subscribe("news", self.interest, on_subscribed=lambda view: self.is_live.set())
        async with aclosing(entries):
            async for entry in entries:
                self.entries.append(entry)
                self._changed.set()

    @property
    def items(self) -> list[ReceivedItem]:
        """The items."""
        return [entry for entry in self.entries if isinstance(entry, ReceivedItem) and entry.type == "item"]

    async def reaches(self, id: str) -> None:
        """Wait until it has come so far."""
        async with asyncio.timeout(WAIT_S):
            while not self.items or item_order(self.items[-1].id) < item_order(id):
                self._changed.clear()
                await self._changed.wait()

    def wants(self, text: str) -> bool:
        """Whether it is to get an item."""
        return not self.interest or text_class(text) == self.interest

    def check(self, published: Sequence[tuple[str, str]]) -> None:
        """All that it wanted came once and in order, or it was told that it is lost."""
        places = [item_order(item.id) for item in self.items]
        assert places == sorted(set(places)), "an item came twice, or before its time"
        texts = dict(published)
        assert [item.payload for item in self.items] == [texts[item.id] for item in self.items]
        assert all(not self.interest or text_class(item.payload or "") == self.interest for item in self.items)
        missing = {item_order(id) for id, text in published if not self.interest or text_class(text) == self.interest}
        missing -= set(places)
        for entry in self.entries:
            if isinstance(entry, ReceivedItem) and entry.type == "lost":
                since, until = item_order(entry.since or "0-0"), item_order(entry.id)
                missing = {place for place in missing if not since < place <= until}
        assert not missing, f"{len(missing)} items are missing and nobody said so"


def text_class(text: str) -> str:
    """The class of an item, which is its first word."""
    return text.partition(" ")[0]


@asynccontextmanager
async def readings(cluster: LocalCluster, wanted: dict[int, str]) -> AsyncIterator[dict[int, Reading]]:
    """Subscriptions on some of the nodes, live."""
    async with asyncio.TaskGroup() as group:
        clients = {index: cluster.client(index) for index in wanted}
        found = {index: Reading(clients[index], interest) for index, interest in wanted.items()}
        tasks = [group.create_task(reading.run()) for reading in found.values()]
        try:
            async with asyncio.timeout(WAIT_S):
                for reading in found.values():
                    await reading.is_live.wait()
            yield found
        finally:
            for task in tasks:
                task.cancel()
    for client in clients.values():
        await client.close()


async def publish(streams: DisseminationClient, numbers: range) -> list[tuple[str, str]]:
    """Publish items of two classes; returns ids and texts."""
    texts = [f"{number % 2} item {number}" for number in numbers]
    return [((await streams.publish("news", text)).id, text) for text in texts]


async def test_everything_arrives_or_is_told_as_lost_when_an_inner_node_is_killed(cluster: LocalCluster) -> None:
    async with cluster.client(0) as here:
        producer = DisseminationClient(here)
        await producer.create("news", KIND, POLICY)
        async with readings(cluster, {1: "1", 2: "", 3: "0", 4: ""}) as found:
            view = await whole_tree(producer, "news", NODES)
            indices = {cluster.node(index).id: index for index in range(NODES)}
            inner = next(node.node for node in view.nodes if node.parent is not None and node.children)
            published = await publish(producer, range(100))
            cluster.kill(indices[inner])
            published += await publish(producer, range(100, 200))
            survivors = [reading for index, reading in found.items() if index != indices[inner]]
            for reading in survivors:
                wanted = [id for id, text in published if not reading.interest or text_class(text) == reading.interest]
                await reading.reaches(wanted[-1])
                reading.check(published)


async def take(streams: DisseminationClient, count: int, after: str | None) -> list[ReceivedItem]:
    """The next items of the subscription ``audit``."""
    found: list[ReceivedItem] = []
    async with (
        asyncio.timeout(WAIT_S),
        aclosing(streams.subscribe("news", "1", name="audit", after=after)) as entries,
    ):
        async for entry in entries:
            assert isinstance(entry, ReceivedItem) and entry.type == "item", f"nothing is to be lost: {entry}"
            found.append(entry)
            if len(found) == count:
                break
    return found


async def test_a_named_subscription_goes_on_where_it_was_also_after_its_daemon_was_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    async with cluster.client(0) as here:
        producer = DisseminationClient(here)
        await producer.create("news", KIND, POLICY)
        async with cluster.client(3) as there:
            subscriber = DisseminationClient(there)
            published = await publish(producer, range(20))
            first = await take(subscriber, 5, "start")
            published += await publish(producer, range(20, 40))  # while nobody reads
            second = await take(subscriber, 5, first[-1].id)
        cluster.kill(3)
        published += await publish(producer, range(40, 60))
        with restarted(tmp_path / "cluster" / "nodes" / "3"):
            async with cluster.client(3) as there:
                await there.wait_ready(WAIT_S)
                third = await take(DisseminationClient(there), 20, second[-1].id)
        wanted = [(id, text) for id, text in published if text_class(text) == "1"]
        assert [(item.id, item.payload) for item in [*first, *second, *third]] == wanted


async def test_a_producer_that_comes_back_goes_on_with_its_stream(cluster: LocalCluster, tmp_path: Path) -> None:
    async with cluster.client(0) as here:
        producer = DisseminationClient(here)
        await producer.create("news", KIND, POLICY)
        async with readings(cluster, {1: "", 2: "1"}) as found:
            before = await publish(producer, range(10))
            for reading in found.values():
                await reading.reaches(before[-1][0])
            cluster.kill(0)
            with restarted(tmp_path / "cluster" / "nodes" / "0"):
                await here.wait_ready(WAIT_S)
                after = await publish(producer, range(10, 20))
                for reading in found.values():
                    await reading.reaches(after[-1][0])
                    reading.check([*before, *after])


async def test_a_durable_producer_that_is_killed_loses_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    async with cluster.client(0) as here:
        producer = DisseminationClient(here)
        await producer.create("news", KIND, POLICY, durable=True)
        async with readings(cluster, {1: "", 2: "1"}) as found:
            before = await publish(producer, range(20))
            cluster.kill(0)
            with restarted(tmp_path / "cluster" / "nodes" / "0"):
                await here.wait_ready(WAIT_S)
                after = await publish(producer, range(20, 30))
                for reading in found.values():
                    wanted = [id for id, text in after if not reading.interest or text_class(text) == reading.interest]
                    await reading.reaches(wanted[-1])
                    reading.check([*before, *after])
                    assert all(getattr(entry, "type", "") != "lost" for entry in reading.entries)


@pytest.fixture
def short_leases(tmp_path: Path) -> Iterator[LocalCluster]:
    protocols = {"dissemination": {"fan_out": FAN_OUT, "standby_lease": f"{STANDBY_LEASE_S:.0f}s"}}
    settings = {"data": {"http": "127.0.0.1:0"}, "protocols": protocols}
    with LocalCluster(tmp_path / "cluster", name="test") as found:
        found.up(NODES, settings=lambda index: settings)
        yield found


async def test_a_standby_goes_on_when_the_producer_is_killed(short_leases: LocalCluster, tmp_path: Path) -> None:
    cluster = short_leases
    async with cluster.client(0) as here:
        producer = DisseminationClient(here)
        await producer.create("news", KIND, POLICY, producer_gone="hand-over")
        async with readings(cluster, {1: "1", 2: "", 3: "0", 4: ""}) as found:
            await whole_tree(producer, "news", NODES)
            async with asyncio.timeout(WAIT_S):
                while len(standbys := (await producer.stream("news")).standbys) < FAN_OUT:
                    await asyncio.sleep(0.2)
            published = await publish(producer, range(50))
            indices = {cluster.node(index).id: index for index in range(NODES)}
            cluster.kill(0)
            async with cluster.client(indices[standbys[0]]) as there:
                published += await publish_when_possible(DisseminationClient(there), range(50, 100))
                view = await DisseminationClient(there).stream("news")
                assert (view.role, view.term) == ("producer", TAKE_OVER_TERMS)
                for reading in found.values():
                    await reading.reaches([id for id, text in published if reading.wants(text)][-1])
                    reading.check(published)
                with restarted(tmp_path / "cluster" / "nodes" / "0"):
                    await here.wait_ready(WAIT_S)
                    await refuses_to_publish(producer)
                    more = await publish(DisseminationClient(there), range(100, 120))
                for reading in found.values():
                    await reading.reaches([id for id, text in more if reading.wants(text)][-1])
                    reading.check([*published, *more])


async def publish_when_possible(streams: DisseminationClient, numbers: range) -> list[tuple[str, str]]:
    """Publish as a client does it that asks again until the node is the producer, and is sure of it."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await publish(streams, numbers)
            except (RequestRefused, Unavailable):
                await asyncio.sleep(0.2)


async def refuses_to_publish(streams: DisseminationClient) -> None:
    """A node that was the producer says that it is not any more; until it knows, it takes nothing."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await streams.publish("news", "0 not any more")
            except DaemonBusy:
                await asyncio.sleep(0.2)
            except RequestRefused as error:
                assert "publish there" in str(error) or "produces no stream" in str(error)
                return
            else:
                raise AssertionError("it has published without the ring's consent")


async def test_a_websocket_of_a_data_client_goes_on_where_its_connection_was_lost(cluster: LocalCluster) -> None:
    async with cluster.client(0) as here, cluster.client(2) as there:
        producer = DisseminationClient(here)
        await producer.create("news", KIND, POLICY)
        [address] = (await there.status()).data_addresses
        url, last, found = f"ws://{address}{API_PREFIX}/streams/news/items?interest=1", "", list[str]()
        for round in range(3):
            if last:
                await publish(producer, range(10 * round, 10 * round + 2))  # while nobody reads
            async with asyncio.timeout(WAIT_S), connect(url + last) as socket:
                if not last:
                    assert json.loads(await socket.recv())["type"] == "heartbeat"  # it is subscribed
                    await publish(producer, range(2))
                entry = await next_entry(socket)
                assert entry["type"] == "item"
                found.append(entry["data"]["payload"])
                last = f"&after={entry['id']}"
        assert found == ["1 item 1", "1 item 11", "1 item 21"]


async def test_a_stream_is_handed_over_under_load_and_its_old_machine_may_go(cluster: LocalCluster) -> None:
    """The publisher goes on where the refusal sends it. Nobody loses an item, gets one twice or in another order."""
    async with cluster.client(0) as here, cluster.client(3) as there:
        old, new = DisseminationClient(here), DisseminationClient(there)
        await old.create("news", KIND, POLICY)
        async with readings(cluster, {1: "1", 2: "", 3: "0", 4: ""}) as found:
            await whole_tree(old, "news", NODES)
            published = await publish(old, range(50))
            refused = ""
            async with asyncio.TaskGroup() as group:
                handing = group.create_task(old.hand_over("news", cluster.node(3).id[:12]))
                while not refused:
                    try:
                        published += await publish(old, range(len(published), len(published) + 1))
                    except RequestRefused as error:
                        refused = str(error)
            view = handing.result()
            assert view.producer == cluster.node(3).id and view.role == "subscriber"
            assert "publish there" in refused and cluster.node(3).id[:8] in refused
            published += await publish(new, range(len(published), len(published) + 50))
            cluster.kill(0)
            published += await publish(new, range(len(published), len(published) + 50))
            for reading in found.values():
                wanted = [id for id, text in published if not reading.interest or text_class(text) == reading.interest]
                await reading.reaches(wanted[-1])
                reading.check(published)
                assert len(reading.entries) == len(reading.items) == len(wanted), "nothing is lost"
