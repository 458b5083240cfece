"""Subscribers and publisher of publish/subscribe, as users of peerd have them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any, Final, cast

from bench.pubsub.trades import SCHEMA, TradeWork
from bench.rivals.clients import Clients, CountingClient
from bench.rivals.work import OnFound, OnReceived
from peerd.client import Client
from peerd.daemon.tasks import spawn
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.front.routes import SUBSCRIBE
from protocols.pubsub.models import AckWord, ReceivedEvent, SubscriptionRequest


class PeerdSubscribers:
    """Clients of daemons; each subscription has a connection to its daemon."""

    def __init__(self, work: TradeWork, on_found: OnFound, on_received: OnReceived) -> None:
        self._work = work
        self._on_found = on_found
        self._on_received = on_received
        self._clients: dict[str, CountingClient] = {}

    async def join(self, place: str, number: int) -> None:
        """See `bench.rivals.clients.Subscribers.join`."""
        if place not in self._clients:
            self._clients[place] = CountingClient(place)
        client = self._clients[place]
        interest = self._work.interests[number]
        asked = SubscriptionRequest.model_validate({"schema": SCHEMA, "filter": interest.text()})
        view = await client.call(SUBSCRIBE, body=asked)
        spawn(self._read(PubSubClient(client), view.id, number), name=f"subscriber {number}")

    async def _read(self, client: PubSubClient, id: str, number: int) -> None:
        async with aclosing(client.read(id)) as entries:
            async for entry in entries:
                if not isinstance(entry, ReceivedEvent):
                    raise RuntimeError(f"events are missing, or the stream has ended: {entry}")
                self._on_found(number, int(entry.payload))
                self._on_received()

    def received_bytes(self) -> int:
        """See `bench.rivals.clients.Subscribers.received_bytes`."""
        return sum(client.received for client in self._clients.values())


class PeerdPublisher:
    """One request that carries all events, as `peerd publish --file` sends it. ``options``: ``ack``, what it says."""

    def __init__(self, work: TradeWork) -> None:
        self._work = work

    async def publish(self, place: str, numbers: AsyncIterable[int], **options: str) -> None:
        """See `bench.rivals.clients.Publisher.publish`."""

        async def events() -> AsyncGenerator[dict[str, Any], None]:
            async for number in numbers:
                yield {**self._work.trade(number), "_payload": str(time.monotonic_ns())}

        async with Client(place) as client:
            ack = cast(AckWord, options.get("ack", "received"))
            await PubSubClient(client).publish_many(SCHEMA, events(), ack=ack)


CLIENTS: Final = Clients(PeerdSubscribers, PeerdPublisher)
