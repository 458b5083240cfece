"""Real daemons: XML documents of 300 KiB and 1 MiB are filtered at each node, and who comes late gets them, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from lxml import etree

from peerd.client import Client, RequestRefused
from peerd.cluster.local import LocalCluster
from peerd.limits import KIB
from protocols.dissemination.front.client import DisseminationClient, wrapped
from protocols.dissemination.messages import ITEM_BYTES_MAX
from protocols.dissemination.models import ReceivedItem
from tests.cluster.stream_trees import whole_tree

pytestmark = pytest.mark.cluster

NODES = 4
WAIT_S = 60.0
QUERIES = {1: "//title[. = 't3']", 2: "//note[contains(., 'urgent')] | /paper[@lang = 'fr']", 3: "//figure"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Daemons in a chain, for all tests here."""
    settings = {"protocols": {"dissemination": {"fan_out": 1}}}
    with LocalCluster(tmp_path_factory.mktemp("large") / "cluster", name="test") as found:
        found.up(NODES, settings=lambda index: settings)
        yield found


def document(number: int, size: int) -> bytes:
    """A paper with as much text as it takes."""
    parts = [f'<paper lang="{["de", "en", "fr"][number % 3]}">']
    sections = [
        f"<section><title>t{number % 5}</title><text>{'x' * 900}</text>{'<figure/>' if number % 2 else ''}</section>"
        for _ in range((size - 200) // 1000)
    ]
    parts += [*sections, "<note>urgent</note>" if number % 4 == 1 else "<note/>", "</paper>"]
    left = size - sum(map(len, parts)) - len("<!---->")
    return "".join([*parts, "<!--", "x" * left, "-->"]).encode()


DOCUMENTS = [document(number, size) for number, size in enumerate([300, 300 * KIB, 39_000, ITEM_BYTES_MAX, 70_000] * 2)]


class Reader:
    """A subscription: live when it is, and what has come."""

    def __init__(self, client: Client, query: str, after: str | None = None) -> None:
        self.streams, self.query, self.after = DisseminationClient(client), query, after
        self.wanted = [data.decode() for data in DOCUMENTS if etree.fromstring(data).xpath(query)]
        self.is_live = asyncio.Event()

    async def read(self) -> None:
        """All that is wanted comes, and nothing else."""
        found: list[str | None] = []
        entries = self.streams.subscribe(
            "papers", self.query, after=self.after, on_subscribed=lambda view: self.is_live.set()
        )
        async with asyncio.timeout(WAIT_S), aclosing(entries):
            async for entry in entries:
                assert isinstance(entry, ReceivedItem) and entry.type == "item", entry
                found.append(entry.payload)
                if len(found) == len(self.wanted):
                    break
        assert found == self.wanted


async def test_large_documents_get_to_whom_they_concern(cluster: LocalCluster) -> None:
    assert [len(data) for data in DOCUMENTS[:5]] == [300, 300 * KIB, 39_000, ITEM_BYTES_MAX, 70_000]
    clients = [cluster.client(index) for index in range(NODES)]
    try:
        producer = DisseminationClient(clients[0])
        await producer.create("papers", "xpath", "first_fit", durable=True)
        readers = [Reader(clients[index], query) for index, query in QUERIES.items()]
        assert all(reader.wanted for reader in readers)
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.read())
            for reader in readers:
                await reader.is_live.wait()
            await whole_tree(producer, "papers", NODES)
            for data in DOCUMENTS[:5]:
                await producer.publish("papers", data, "application/xml")
            answer = await producer.publish_many("papers", [wrapped(data, "application/xml") for data in DOCUMENTS[5:]])
            assert (answer.accepted, answer.refused) == (5, 0)
        late = Reader(clients[3], "//title", after="start")
        await late.read()
        with pytest.raises(RequestRefused, match=str(ITEM_BYTES_MAX)):
            await producer.publish("papers", b"<a>" + b"x" * ITEM_BYTES_MAX + b"</a>", "application/xml")
    finally:
        for client in clients:
            await client.close()


async def test_attached_xml_is_refused_before_it_is_sent(cluster: LocalCluster, tmp_path: Path) -> None:
    large = tmp_path / "large.xml"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    sent = 0

    def progress(done: int, size: int) -> None:
        nonlocal sent
        sent = done

    async with cluster.client(0) as client:
        streams = DisseminationClient(client)
        await streams.create("images", "xpath", "first_fit")
        with pytest.raises(RequestRefused, match="XPath queries look at an item"):
            await streams.attach("images", large, progress=progress)
        with pytest.raises(RequestRefused, match="no well-formed XML"):
            await streams.attach("images", large, "<paper", progress=progress)
    assert sent < large.stat().st_size // 4, "the daemon has read most of the file before it refused it"
