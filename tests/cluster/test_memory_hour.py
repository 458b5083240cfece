"""Six real daemons for an hour under mixed load: they end with the memory that their second half began with.

tests/sim/test_memory.py looks into every container of simulated nodes, and runs three virtual hours. Here is what only
a process has: its allocator, sockets, TLS, HTTP and event logs.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from peerd.client import Client
from peerd.cluster.local import LocalCluster
from peerd.cluster.processes import resident_bytes
from peerd.errors import PeerdError
from protocols.aggregation.front.client import AggregationClient
from protocols.dissemination.front.client import DisseminationClient
from protocols.pubsub.front.client import PubSubClient

SOAK_S: Final = float(os.environ.get("PEERD_SOAK_S", "3600"))
pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(SOAK_S + 1800)]

NODES: Final = 6
SHARE: Final = 1.10
EVENTS_HZ: Final = 10.0
ITEMS_HZ: Final = 6.0
AGGREGATE_S: Final = 15.0
PASSING_S: Final = 30.0
"""Every so often one more reader comes, and stays for as long."""
LOOKS: Final = 5
LOOK_S: Final = 4.0
"""So many looks at the processes, so long apart; their median counts."""
SCHEMA: Final[dict[str, Any]] = {
    "name": "readings",
    "attributes": [
        {"name": "level", "type": "int", "low": 0, "high": 100},
        {"name": "site", "type": "string"},
    ],
}


class Day:
    """The load of an ordinary day, and what has come of it."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        """Until it is cancelled."""
        await PubSubClient(self.clients[0]).declare(SCHEMA)
        await DisseminationClient(self.clients[0]).create("log")
        async with asyncio.TaskGroup() as group:
            for node in range(NODES):
                group.create_task(self._read(node))
            group.create_task(self._every(1 / EVENTS_HZ, self._publish))
            group.create_task(self._every(1 / ITEMS_HZ, self._publish_item))
            group.create_task(self._every(AGGREGATE_S, self._aggregate))
            group.create_task(self._every(PASSING_S, self._pass_by))

    async def _every(self, pause_s: float, act: Callable[[int], Awaitable[object]]) -> None:
        for number in count():
            try:
                await act(number)
            except PeerdError as error:  # on a busy machine one or the other may not be done in time
                self.counts[type(error).__name__] += 1
            await asyncio.sleep(pause_s)

    async def _publish(self, number: int) -> None:
        client = PubSubClient(self.clients[number % NODES])
        await client.publish("readings", {"level": number % 100, "site": f"site {number % 7}"})
        self.counts["events"] += 1

    async def _publish_item(self, number: int) -> None:
        await DisseminationClient(self.clients[0]).publish("log", {"number": number, "note": "x" * 50})
        self.counts["items"] += 1

    async def _aggregate(self, number: int) -> None:
        client = AggregationClient(self.clients[number % NODES])
        async with aclosing(client.aggregate("count by word", pattern=r"(?P<word>\w+)")) as told:
            async for _ in told:
                pass
        self.counts["aggregates"] += 1

    async def _read(self, node: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_events(node, f"level > {10 * node}"))
            group.create_task(self._read_items(node))

    async def _read_events(self, node: int, filter: str) -> None:
        async with aclosing(PubSubClient(self.clients[node]).subscribe("readings", filter)) as entries:
            async for _ in entries:
                self.counts["received"] += 1

    async def _read_items(self, node: int) -> None:
        async with aclosing(DisseminationClient(self.clients[node]).subscribe("log", "number > 0")) as entries:
            async for _ in entries:
                self.counts["received items"] += 1

    async def _pass_by(self, number: int) -> None:
        try:
            async with asyncio.timeout(PASSING_S):
                await self._read_events(number % NODES, f"level > {number % 90} AND site = 'site {number % 7}'")
        except TimeoutError:
            return


async def memory_of(cluster: LocalCluster) -> list[float]:
    """What each daemon takes, in MiB: the median of some looks."""
    looks: list[list[int]] = []
    for _ in range(LOOKS):
        looks.append([resident_bytes(node.process) or 0 for node in cluster.record().nodes])
        await asyncio.sleep(LOOK_S)
    return [median(each) / (1 << 20) for each in zip(*looks, strict=True)]


def test_an_hour_ends_with_the_memory_that_its_second_half_began_with(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(12):
        (files / f"{number}.log").write_text("one two three\n" * 50)
    aggregation = {"data_root": str(files)}
    with LocalCluster(tmp_path / "cluster", name="hour") as cluster:
        cluster.up(NODES, settings=lambda index: {"protocols": {"aggregation": aggregation | {"share": share(index)}}})
        half, end, day = asyncio.run(_soak(cluster))
    print(f"MiB after {SOAK_S / 2:g} s: {half}; after {SOAK_S:g} s: {end}; {dict(day.counts)}")
    assert sum(end) < SHARE * sum(half), f"{half} MiB after half of the time, {end} at its end; {day.counts}"
    assert min(day.counts[each] for each in ("events", "items", "aggregates", "received", "received items")) > 0


def share(index: int) -> str:
    """The part of the files that a daemon reads."""
    return f"{index}/{NODES}"


async def _soak(cluster: LocalCluster) -> tuple[list[float], list[float], Day]:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cluster.client(node)) for node in range(NODES)]
        day = Day(clients)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(day.run())
            await asyncio.sleep(SOAK_S / 2)
            half = await memory_of(cluster)
            await asyncio.sleep(SOAK_S / 2)
            end = await memory_of(cluster)
            running.cancel()
    return half, end, day
