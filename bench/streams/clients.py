"""Subscribers and publisher of a stream, as users of peerd have them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Final

from bench.rivals.clients import CONNECT_S, Clients, CountingClient
from bench.rivals.work import OnFound, OnReceived
from bench.streams.documents import STREAM, DocumentWork, sent_ns
from peerd.client import Client
from peerd.daemon.tasks import spawn
from protocols.dissemination.front.client import DisseminationClient, wrapped
from protocols.dissemination.models import ReceivedItem, StreamSubscriptionView, WrappedItem

XML: Final = "application/xml"


class PeerdSubscribers:
    """Clients of daemons; each subscription has a connection to its daemon."""

    def __init__(self, work: DocumentWork, on_found: OnFound, on_received: OnReceived) -> None:
        self._work = work
        self._on_found = on_found
        self._on_received = on_received
        self._clients: list[CountingClient] = []

    async def join(self, place: str, number: int) -> None:
        """See `bench.rivals.clients.Subscribers.join`."""
        client = CountingClient(place)
        self._clients.append(client)
        subscribed = asyncio.get_running_loop().create_future()
        spawn(self._read(client, number, subscribed), name=f"subscriber {number}")
        await asyncio.wait_for(subscribed, CONNECT_S)

    async def _read(
        self, client: CountingClient, number: int, subscribed: asyncio.Future[StreamSubscriptionView]
    ) -> None:
        interest = self._work.query(number)
        entries = DisseminationClient(client).subscribe(STREAM, interest, on_subscribed=subscribed.set_result)
        async with aclosing(entries):
            async for entry in entries:
                if not isinstance(entry, ReceivedItem) or entry.type != "item":
                    raise RuntimeError(f"items are missing, or the stream has ended: {entry}")
                self._on_found(number, sent_ns((entry.payload or "").encode()))
                self._on_received()

    def received_bytes(self) -> int:
        """See `bench.rivals.clients.Subscribers.received_bytes`."""
        return sum(client.received for client in self._clients)


class PeerdPublisher:
    """One request that carries all items, as `peerd stream publish` sends them."""

    def __init__(self, work: DocumentWork) -> None:
        self._work = work

    async def publish(self, place: str, numbers: AsyncIterable[int], **options: str) -> None:
        """See `bench.rivals.clients.Publisher.publish`."""

        async def items() -> AsyncGenerator[WrappedItem, None]:
            async for number in numbers:
                yield wrapped(self._work.payload(number), XML)

        async with Client(place) as client:
            await DisseminationClient(client).publish_many(STREAM, items())


CLIENTS: Final = Clients(PeerdSubscribers, PeerdPublisher)
