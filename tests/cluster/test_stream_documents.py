"""Real daemons: a file of 20 MiB that belongs to an item, and a node that is killed while it passes the file on."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from random import Random

import pytest

from peerd.client import RequestRefused
from peerd.cluster.local import LocalCluster
from peerd.limits import MIB
from protocols.dissemination.front.client import DisseminationClient
from protocols.dissemination.front.document_files import safe_name
from protocols.dissemination.front.routes import ATTACH
from protocols.dissemination.models import ReceivedItem
from tests.cluster.stream_trees import whole_tree

pytestmark = pytest.mark.cluster

NODES = 5
WAIT_S = 90.0
SIZE = 20 * MIB


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", name="test") as found:
        found.up(1)
        yield found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"protocols": {"dissemination": {"fan_out": 2}}}  # five nodes make a tree of two levels
    with LocalCluster(tmp_path / "cluster", name="test") as found:
        found.up(NODES, settings=lambda index: settings)
        yield found


class FileReader:
    """A subscription of which the first file is written."""

    def __init__(self, streams: DisseminationClient, path: Path) -> None:
        self._streams, self.path = streams, path
        self.is_live = asyncio.Event()
        self.digest = ""

    async def run(self) -> None:
        """Subscribe, and write the file."""
        entries = self._streams.subscribe("files", on_subscribed=lambda view: self.is_live.set())
        async with aclosing(entries):
            async for entry in entries:
                if isinstance(entry, ReceivedItem) and entry.document is not None:
                    self.digest = await self._streams.save_document("files", entry.document, self.path)
                    return


async def test_a_file_reaches_everybody_although_a_node_in_the_middle_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    content = Random(5).randbytes(SIZE)
    source = tmp_path / "large.bin"
    source.write_bytes(content)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cluster.client(index)) for index in range(NODES)]
        producer, *others = [DisseminationClient(client) for client in clients]
        await producer.create("files", "attributes", "first_fit")
        readers = {index: FileReader(each, tmp_path / f"{index}.bin") for index, each in enumerate(others, 1)}
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            tasks = {index: group.create_task(reader.run()) for index, reader in readers.items()}
            for reader in readers.values():
                await reader.is_live.wait()
            indices = {cluster.node(index).id: index for index in range(NODES)}
            tree = await whole_tree(producer, "files", NODES)
            inner = indices[next(node.node for node in tree.nodes if node.parent is not None and node.children)]
            published = await producer.attach("files", source, {"arch": "arm64"})
            cluster.kill(inner)
            tasks.pop(inner).cancel()
        assert published.stream == "files"
        for index in tasks:
            assert readers[index].digest == hashlib.sha256(content).hexdigest()
            assert readers[index].path.read_bytes() == content
        [view] = await others[next(iter(tasks)) - 1].documents("files")
        assert view.state == "complete" and view.name == "large.bin" and view.size == SIZE


async def test_a_part_of_a_file_is_read_by_its_range_and_a_wrong_upload_leaves_nothing(
    alone: LocalCluster, tmp_path: Path
) -> None:
    source = tmp_path / "small.txt"
    source.write_bytes(b"0123456789")
    async with alone.client(0) as client:
        streams = DisseminationClient(client)
        await streams.create("files", "attributes", "first_fit")
        await streams.attach("files", source)
        [view] = await streams.documents("files")
        assert b"".join([piece async for piece in streams.read_document("files", view.id, 7)]) == b"789"
        assert [piece async for piece in streams.read_document("files", view.id, 10)] == []
        for size, status in ((5, 413), (20, 400)):
            with pytest.raises(RequestRefused, match="than was announced") as refused:
                await client.call(ATTACH, "files", "x", body=b"0123456789", kind="text/plain", size=size)
            assert refused.value.problem.status == status
        assert len(await streams.documents("files")) == 1


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("disk.img", "disk.img"),
        ("../../etc/passwd", "passwd"),
        ("..", "document"),
        (".bashrc", "bashrc"),
        ("a\\b\\c.exe", "c.exe"),
        ("-rf", "rf"),
        ("a\x00b\x1b[2J\n.txt", "a_b_2J_.txt"),
        ("", "document"),
        ("é" * 255 + ".txt", "é" * 58 + ".txt"),
    ],
)
def test_a_name_from_elsewhere_never_leads_elsewhere(name: str, safe: str) -> None:
    assert safe_name(name) == safe
