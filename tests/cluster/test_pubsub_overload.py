"""Three times as many events as a ring takes, for a minute: each has an outcome, each delivery comes or is marked."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from peerd.client import Client, DaemonBusy, IngestRefused
from peerd.client.streams import Dropped, Gap
from peerd.cluster.local import LocalCluster
from peerd.errors import Unavailable
from peerd.models.streams import IngestAnswer
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NODES: Final = 4
READERS: Final = 3
"""Subscriptions at each daemon."""
REQUEST: Final = 300
"""Events of one request."""
MEASURED_S: Final = 10.0
AT_ONCE: Final = 3
"""Requests of each daemon's clients while the rate is measured."""
OVERLOAD_S: Final = float(os.environ.get("PEERD_OVERLOAD_S", "60"))
TIMES: Final = 3.0
IN_FLIGHT_MAX: Final = NODES * 60
"""Requests that are not answered yet. A daemon takes 64 at a time; of more it says at once that it is busy."""
QUIET_S: Final = 20.0
"""Readers have had all when nothing has come for so long."""
PRICES: Final = 1000
SCHEMA: Final[dict[str, Any]] = {
    "name": "load",
    "attributes": [
        {"name": "number", "type": "int", "low": 0, "high": 1_000_000_000},
        {"name": "price", "type": "int", "low": 0, "high": PRICES},
    ],
}


@dataclass
class Reader:
    """What one subscription has got."""

    low: int
    numbers: Counter[int] = field(default_factory=Counter)
    marked: int = 0
    at_s: float = 0.0

    def wants(self, number: int) -> bool:
        """Whether an event is to come."""
        return self.low <= price_of(number) < self.low + PRICES // 4


@dataclass
class Outcomes:
    """What the requests were told."""

    done: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """Named as not published, or not surely: they may be sent again."""
    unnamed: list[int] = field(default_factory=list)
    """Of these nobody has said anything: there must be none."""
    answers: Counter[str] = field(default_factory=Counter)


def price_of(number: int) -> int:
    """Spread over the domain."""
    return number * 7919 % PRICES


def events(first: int, count: int) -> Iterator[dict[str, int]]:
    """So many events."""
    for number in range(first, first + count):
        yield {"number": number, "price": price_of(number)}


async def follow(client: Client, id: str, reader: Reader) -> None:
    """Read a subscription until it is cancelled."""
    async with aclosing(PubSubClient(client).read(id, after="start")) as entries:
        async for entry in entries:
            reader.at_s = time.monotonic()
            if isinstance(entry, ReceivedEvent):
                reader.numbers[entry.values["number"]] += 1
            elif isinstance(entry, (Dropped, Gap)):
                reader.marked += entry.count or 0


@asynccontextmanager
async def readers(cluster: LocalCluster) -> AsyncIterator[list[Reader]]:
    """Subscriptions of every daemon, each for a quarter of the events."""
    found, clients = [], []
    async with asyncio.TaskGroup() as tasks:
        running = []
        for index in range(NODES):
            for place in range(READERS):
                client = await cluster.client(index).__aenter__()
                clients.append(client)
                reader = Reader(low=(index * READERS + place) * 60)
                text = f"price >= {reader.low} AND price < {reader.low + PRICES // 4}"
                request = SubscriptionRequest.model_validate({"schema": "load", "filter": text})
                view = await PubSubClient(client).install(request)
                running.append(tasks.create_task(follow(client, view.id, reader)))
                found.append(reader)
        yield found
        for task in running:
            task.cancel()
    for client in clients:
        await client.__aexit__(None, None, None)


async def send(client: Client, first: int, outcomes: Outcomes) -> None:
    """One request, and what it was told of each of its events."""
    numbers = range(first, first + REQUEST)
    try:
        answer = await PubSubClient(client).publish_many("load", events(first, REQUEST))
    except IngestRefused as refused:
        answer = refused.answer
    except DaemonBusy as busy:  # before anything of it was read
        outcomes.answers[str(busy)] += 1
        outcomes.refused += numbers
        return
    except Unavailable as error:
        outcomes.answers[str(error)] += 1
        outcomes.unnamed += numbers
        return
    note(answer, numbers, outcomes)


def note(answer: IngestAnswer, numbers: range, outcomes: Outcomes) -> None:
    outcomes.answers["complete" if answer.is_complete and not answer.errors else answer.detail[:100]] += 1
    named: set[int] = set()
    for error in answer.errors:
        last = len(numbers) if error.is_rest else error.last or error.line
        named.update(range(error.line - 1, last))
    outcomes.refused += [numbers[index] for index in sorted(named)]
    done = [number for index, number in enumerate(numbers) if index not in named]
    if len(done) == answer.accepted:
        outcomes.done += done
    else:
        outcomes.unnamed += done


async def measured_rate(cluster: LocalCluster) -> tuple[float, int]:
    """Events a second that the ring takes from clients of all daemons; and how many were sent."""
    sent = 0
    outcomes = Outcomes()

    async def client_of(index: int, until_s: float) -> None:
        nonlocal sent
        async with cluster.client(index) as client:
            while True:
                first, sent = sent, sent + REQUEST
                await send(client, first, outcomes)
                if time.monotonic() >= until_s:
                    return

    await asyncio.gather(*(client_of(index, 0.0) for index in range(NODES)))  # links and maps are made
    warm, begun = sent, time.monotonic()
    clients = [index for index in range(NODES) for _ in range(AT_ONCE)]
    await asyncio.gather(*(client_of(index, begun + MEASURED_S) for index in clients))
    assert not outcomes.unnamed and not outcomes.refused, outcomes.answers
    return (sent - warm) / (time.monotonic() - begun), sent


async def overload(cluster: LocalCluster, rate: float, first: int) -> Outcomes:
    """Begin so many requests a second, whether those before have been answered or not, as far as daemons take them."""
    outcomes, begun, count, running = Outcomes(), time.monotonic(), 0, set[asyncio.Task[None]]()
    clients = [await cluster.client(index).__aenter__() for index in range(NODES)]
    async with asyncio.TaskGroup() as tasks:
        while (passed := time.monotonic() - begun) < OVERLOAD_S:
            while count * REQUEST < rate * passed and len(running) < IN_FLIGHT_MAX:
                task = tasks.create_task(send(clients[count % NODES], first + count * REQUEST, outcomes))
                running.add(task)
                task.add_done_callback(running.discard)
                count += 1
            await asyncio.sleep(0.02)
    print(f"answered {time.monotonic() - begun - OVERLOAD_S:.1f} s after the last request had begun")
    for client in clients:
        await client.__aexit__(None, None, None)
    return outcomes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Daemons of this test alone."""
    with LocalCluster(tmp_path / "cluster", name="overload") as found:
        found.up(NODES)
        yield found


async def test_three_times_the_rate_is_held_back_and_nothing_is_unknown(cluster: LocalCluster) -> None:
    async with cluster.client(0) as client:
        await PubSubClient(client).declare(SCHEMA)
    async with readers(cluster) as found:
        rate, sent = await measured_rate(cluster)
        print(f"the ring takes {rate:,.0f} events a second")
        outcomes = await overload(cluster, TIMES * rate, sent)
        outcomes.done += range(sent)
        while time.monotonic() - max(reader.at_s for reader in found) < QUIET_S:
            await asyncio.sleep(0.5)
        missing = marked = doubled = wanted = 0
        unmarked = []
        for reader in found:
            lost = [number for number in outcomes.done if reader.wants(number) and number not in reader.numbers]
            wanted += sum(map(reader.wants, outcomes.done))
            missing, marked = missing + len(lost), marked + reader.marked
            doubled += sum(count - 1 for count in reader.numbers.values())
            unmarked.append(max(0, len(lost) - reader.marked))
        told = {
            "published": len(outcomes.done),
            "may be sent again": len(outcomes.refused),
            "without an outcome": len(outcomes.unnamed),
            "deliveries": wanted,
            "missing": missing,
            "marked": marked,
            "missing without a mark": sum(unmarked),
            "twice": doubled,
            "answers": dict(outcomes.answers),
        }
        print(json.dumps(told, indent=2))
        assert not outcomes.unnamed
        assert not sum(unmarked)
        assert not doubled
