"""The part of ``peerd demo`` about publish/subscribe: prices and metrics are replayed while a daemon is killed.

What each subscription should get is decided by plain Python, which does not know peerd's filter language.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from peerd.cluster.demo import DemoComparison, DemoPart, DemoStage
from peerd.cluster.layout import Tables
from peerd.errors import Unavailable
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.front.demo.data import Events, load
from protocols.pubsub.front.demo.wishes import DemoWish, schemas_for, wishes_for
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest

DATA_VARIABLE: Final = "PEERD_DATA"
"""A folder with ``stocks/*.csv[.xz]`` and ``timeseries/*.tar.xz``, which are then replayed instead of the sample."""
PRICES: Final = 750
METRICS: Final = 250
RATE: Final = 120.0
"""Events a second of each of the two."""
LEAF_CAPACITY: Final = 12
"""Small, so that the few subscriptions of the demo make a tree with more than one leaf."""
ARRIVE_S: Final = 60.0
"""What has not arrived so long after the last publish counts as missing."""
SURPLUS_S: Final = 1.0
"""After everything has arrived, events that should not come have so long to come."""
NUMBER: Final = "number"
"""The header that says which line of the replay an event was."""


@dataclass(slots=True)
class DemoReader:
    """A subscription of the demo, and what came."""

    wish: DemoWish
    expected: frozenset[int]
    events: list[ReceivedEvent] = field(default_factory=list)

    def numbers(self) -> Counter[int]:
        """How often each line of the replay came."""
        return Counter(int(dict(event.headers)[NUMBER]) for event in self.events)

    @property
    def missing(self) -> int:
        """Events that should have come, and did not."""
        return len(self.expected - self.numbers().keys())

    @property
    def wrong(self) -> int:
        """Events that came and should not have, or came more than once."""
        found = self.numbers()
        return sum(count for number, count in found.items() if number not in self.expected) + sum(
            count - 1 for number, count in found.items() if number in self.expected
        )


class PubSubDemo(DemoPart):
    """Subscribers at the daemons that stay; both replays are published at others of them."""

    title: ClassVar[str] = f"publish/subscribe: a replay of {PRICES:,} stock prices and {METRICS:,} server metrics"
    next_steps: ClassVar[tuple[tuple[str, str], ...]] = (
        ("peerd schema --help; peerd subscribe --help", "events by content; docs/protocols/pubsub.md"),
    )

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._readers: list[DemoReader] = []

    def settings(self, work: Path, index: int, count: int) -> Tables:
        """See `DemoPart.settings`."""
        return {"pubsub": {"leaf_capacity": LEAF_CAPACITY}}

    async def run(self, stage: DemoStage) -> list[DemoComparison]:
        """See `DemoPart.run`."""
        folder = os.environ.get(DATA_VARIABLE)
        replay = load(Path(folder) if folder else None, PRICES, METRICS)
        by_schema = {"stocks": replay.trades, "servers": replay.metrics}
        clients = [PubSubClient(stage.clients[index]) for index in stage.survivors]
        for document in schemas_for(replay.trades):
            await clients[0].declare(document)
        async with asyncio.TaskGroup() as group:
            wishes = wishes_for(replay.trades, replay.metrics, len(clients))
            tasks = await asyncio.gather(
                *(self._subscribe(clients[wish.node], group, wish, by_schema[wish.schema]) for wish in wishes)
            )
            stage.say(f"publish/subscribe: {len(tasks)} subscriptions; replay of {replay.source}")
            await asyncio.gather(
                self._publish(stage, clients[0], "stocks", replay.trades, is_first=True),
                self._publish(stage, clients[-1], "servers", replay.metrics, is_first=False),
            )
            await self._wait_for_all()
            for task in tasks:
                task.cancel()
        return _verdicts(self._readers, stage.survivors)

    async def _subscribe(
        self, client: PubSubClient, group: asyncio.TaskGroup, wish: DemoWish, events: Events
    ) -> asyncio.Task[None]:
        """Subscribe, and read from then on."""
        reader = DemoReader(wish, frozenset(number for number, event in enumerate(events) if wish.wanted(event)))
        self._readers.append(reader)
        view = await client.install(SubscriptionRequest.model_validate({"schema": wish.schema, "filter": wish.filter}))

        async def read() -> None:
            async with aclosing(client.read(view.id)) as entries:
                async for entry in entries:
                    if isinstance(entry, ReceivedEvent):
                        reader.events.append(entry)
                        self._changed.set()

        return group.create_task(read())

    async def _publish(
        self, stage: DemoStage, client: PubSubClient, schema: str, events: Events, *, is_first: bool
    ) -> None:
        """Publish one of the replays; the last quarter of the events waits for the kill."""

        async def paced() -> AsyncGenerator[dict[str, Any], None]:
            for number, event in enumerate(events):
                if is_first and number == len(events) // 4:
                    stage.is_under_way()
                if number == len(events) * 3 // 4:
                    await stage.killed.wait()
                await asyncio.sleep(1 / RATE)
                yield {**event, "_headers": {NUMBER: str(number)}}

        answer = await client.publish_many(schema, paced())
        if not answer.is_complete:
            raise Unavailable(f"the outcome of some events is not known: {answer.detail}")

    async def _wait_for_all(self) -> None:
        """Until everything has arrived, or nothing more will; and a moment longer, for what should not arrive."""
        try:
            async with asyncio.timeout(ARRIVE_S):
                while any(reader.missing for reader in self._readers):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SURPLUS_S)


def _verdicts(readers: Sequence[DemoReader], nodes: Sequence[int]) -> list[DemoComparison]:
    """One row for each subscription, or for all that have one label."""
    shown: dict[str, list[DemoReader]] = {}
    for reader in readers:
        shown.setdefault(reader.wish.label or reader.wish.filter, []).append(reader)
    found = []
    for label, ours in shown.items():
        came, expected = sum(len(each.events) for each in ours), sum(len(each.expected) for each in ours)
        is_equal = not any(each.missing or each.wrong for each in ours)
        what = f"daemon {nodes[ours[0].wish.node]}: {label.format(len(ours))}"
        found.append(DemoComparison(what, f"{came} of {expected} events", is_equal))
    return found
