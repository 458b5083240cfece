"""A durable subscriber's daemon is killed again and again under load: each acknowledged event comes, or is told of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from peerd.client import Client
from peerd.client.streams import Dropped, Gap
from peerd.cluster.local import LocalCluster
from peerd.errors import PeerdError
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest
from tests.support.daemon_process import restarted

pytestmark = pytest.mark.cluster

NODES = 4
VICTIM = NODES - 1
WAIT_S = 120.0
RESTART_S = 75.0
"""What a kill and a restart take at most, on the whole, on a machine that does much else."""
BETWEEN_S = 1.0
"""From one kill to the next, once the daemon says that it is ready: some of what it was sent is under way then."""
SCHEMA: dict[str, Any] = {
    "name": "readings",
    "attributes": [{"name": "level", "type": "int", "low": 0, "high": 10_000}, {"name": "site", "type": "string"}],
}


@dataclass
class Load:
    """What was published and acknowledged, and what the subscriber has been given."""

    acknowledged: list[str] = field(default_factory=list)
    got: set[str] = field(default_factory=set)
    marked: int = 0

    def missing(self) -> list[str]:
        return [event for event in self.acknowledged if event not in self.got]


@asynccontextmanager
async def publishing(cluster: LocalCluster, load: Load, *nodes: int) -> AsyncIterator[None]:
    """Have these nodes publish, one event after the other, until the block ends."""

    async def publish(node: int) -> None:
        async with cluster.client(node) as client:
            for number in range(1_000_000):
                if is_over.is_set():
                    return
                try:
                    done = await PubSubClient(client).publish("readings", {"level": 21 + number % 50, "site": "north"})
                except PeerdError:  # an event that was not acknowledged may be missing
                    continue
                if done.outcome in ("received", "replicated"):
                    load.acknowledged.append(done.event)

    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(publish(node))
        yield
        is_over.set()


async def read_all(client: Client, load: Load) -> None:
    """Read what the subscription has, until nothing is missing that no mark stands for."""
    async with asyncio.timeout(WAIT_S), aclosing(PubSubClient(client).read("audit", after="start")) as entries:
        async for entry in entries:
            assert not isinstance(entry, Gap)
            if isinstance(entry, ReceivedEvent):
                load.got.add(entry.event)
            elif isinstance(entry, Dropped):
                load.marked += entry.count
            if len(load.missing()) <= load.marked:
                return


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_nothing_acknowledged_is_lost_without_a_mark(tmp_path: Path, kills: int) -> None:
    with LocalCluster(tmp_path / "cluster", name="kills") as cluster:
        cluster.up(NODES)
        asyncio.run(
            asyncio.wait_for(
                _storm(cluster, tmp_path / "cluster" / "nodes" / str(VICTIM), kills), 2 * WAIT_S + RESTART_S * kills
            )
        )


async def _storm(cluster: LocalCluster, folder: Path, kills: int) -> None:
    load = Load()
    async with cluster.client(0) as client:
        await PubSubClient(client).declare(SCHEMA)
    async with cluster.client(VICTIM) as client:
        wanted = {"schema": "readings", "filter": "level > 20", "name": "audit"}
        await PubSubClient(client).install(SubscriptionRequest.model_validate(wanted))
    async with publishing(cluster, load, 0, 1):
        await asyncio.sleep(BETWEEN_S)
        cluster.kill(VICTIM)
        for _ in range(kills - 1):
            with restarted(folder) as process:
                async with cluster.client(VICTIM) as client:
                    await client.wait_ready(WAIT_S)
                await asyncio.sleep(BETWEEN_S)
                process.kill()
    with restarted(folder):
        async with cluster.client(VICTIM) as client:
            await client.wait_ready(WAIT_S)
            await read_all(client, load)
            tree = await PubSubClient(client).tree("readings", "level")
            [view] = await PubSubClient(client).subscriptions()
            # Each start takes the old pieces' places: they do not pile up in the leaf.
            assert sum(cell.subs for cell in tree.cells) == view.pieces
    assert len(load.acknowledged) > 20 * kills
    assert load.marked == view.missed
