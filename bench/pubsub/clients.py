"""What users of each system have on their side: a subscriber that gets what it wants, and a publisher.

Each system gets the client library that its users take, on one event loop. With peerd the filter is in the
subscription; with a broker every subscriber listens to one topic, decodes what comes and compares it itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Protocol

from bench.pubsub.trades import SCHEMA, Interest, Trade
from peerd.client import Client
from peerd.daemon.tasks import spawn
from peerd.models.admin import API_PREFIX
from protocols.pubsub.front.client import PubSubClient
from protocols.pubsub.models import AckWord, ReceivedEvent, SubscriptionRequest, SubscriptionView

TOPIC: Final = "trades"
SENT: Final = "sent"
"""Member of a trade at brokers that says when it was published, monotonic nanoseconds: the clock of the machine."""
TCP_INFO_FORMAT: Final = "8B24I4Q"
"""The kernel's ``struct tcp_info`` up to and with ``tcpi_bytes_received``, which is the last."""
CONNECT_S: Final = 30.0
KEEP_ALIVE_S: Final = 600

OnTrade = Callable[[int, int], None]
"""Told of a trade that a subscriber wants: the subscriber's number, and when it was published."""
OnReceived = Callable[[], None]


class Subscribers(Protocol):
    """Subscribers of one system in this process."""

    async def join(self, place: str, number: int, interest: Interest) -> None:
        """Add one; from now on it gets all that it wants. ``place``: where its daemon or broker is."""

    def received_bytes(self) -> int:
        """What came to all of them until now, over their connections."""


class Publisher(Protocol):
    """Publishes trades."""

    async def publish(self, place: str, trades: AsyncIterable[Trade], ack: AckWord) -> None:
        """Returns when the system has all of them, as far as it says so. ``ack``: what peerd is to say."""


def tcp_received_bytes() -> int:
    """Bytes that the kernel has received on all TCP connections of this process, without headers. Linux only."""
    return sum(_received(int(link.name)) for link in Path("/proc/self/fd").iterdir() if _is_socket(link))


def _is_socket(link: Path) -> bool:
    try:
        return stat.S_ISSOCK(link.stat().st_mode)
    except FileNotFoundError:  # the descriptor with which the folder is read
        return False


def _received(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        if sock.family != socket.AF_INET:
            return 0
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, struct.calcsize(TCP_INFO_FORMAT))
    return int(struct.unpack(TCP_INFO_FORMAT, info)[-1])


def _encoded(trade: Trade) -> bytes:
    return json.dumps({**trade, SENT: time.monotonic_ns()}, separators=(",", ":")).encode()


class _Comparing:
    """Compares what a broker sends with what one subscriber wants."""

    def __init__(self, number: int, interest: Interest, on_trade: OnTrade, on_received: OnReceived) -> None:
        self._number = number
        self._wants = interest.function()
        self._on_trade = on_trade
        self._on_received = on_received

    def take(self, payload: bytes) -> None:
        trade = json.loads(payload)
        if self._wants(trade):
            self._on_trade(self._number, trade[SENT])
        self._on_received()


# peerd


class _CountingClient(Client):
    """Counts the bytes of the lines of streams."""

    received = 0

    async def stream(
        self, path: str, body: Mapping[str, Any] | None, method: str = "POST", silence_s: float = 60.0
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(super().stream(path, body, method, silence_s)) as lines:
            async for line in lines:
                self.received += len(line) + 1
                yield line


class PeerdSubscribers:
    """Clients of daemons; each subscription has a connection to its daemon."""

    def __init__(self, on_trade: OnTrade, on_received: OnReceived) -> None:
        self._on_trade = on_trade
        self._on_received = on_received
        self._clients: dict[str, _CountingClient] = {}

    async def join(self, place: str, number: int, interest: Interest) -> None:
        if place not in self._clients:
            self._clients[place] = _CountingClient(place)
        client = self._clients[place]
        asked = SubscriptionRequest.model_validate({"schema": SCHEMA, "filter": interest.text()})
        view = await client.call("POST", f"{API_PREFIX}/pubsub/subscriptions", SubscriptionView, asked)
        spawn(self._read(PubSubClient(client), view.id, number), name=f"subscriber {number}")

    async def _read(self, client: PubSubClient, id: str, number: int) -> None:
        async with aclosing(client.read(id)) as entries:
            async for entry in entries:
                if not isinstance(entry, ReceivedEvent):
                    raise RuntimeError(f"events are missing, or the stream has ended: {entry}")
                self._on_trade(number, int(entry.payload))
                self._on_received()

    def received_bytes(self) -> int:
        return sum(client.received for client in self._clients.values())


class PeerdPublisher:
    """One request that carries all events, as `peerd publish --file` sends it."""

    async def publish(self, place: str, trades: AsyncIterable[Trade], ack: AckWord) -> None:
        async def events() -> AsyncGenerator[dict[str, Any], None]:
            async for trade in trades:
                yield {**trade, "_payload": str(time.monotonic_ns())}

        async with Client(place) as client:
            await PubSubClient(client).publish_many(SCHEMA, events(), ack=ack)


# NATS


class NatsSubscribers:
    """Each has a connection of its own."""

    def __init__(self, on_trade: OnTrade, on_received: OnReceived) -> None:
        self._on_trade = on_trade
        self._on_received = on_received
        self._clients: list[Any] = []

    async def join(self, place: str, number: int, interest: Interest) -> None:
        client = await _nats(place)
        comparing = _Comparing(number, interest, self._on_trade, self._on_received)

        async def on_message(message: Any) -> None:
            comparing.take(message.data)

        await client.subscribe(TOPIC, cb=on_message)
        await client.flush()
        self._clients.append(client)

    def received_bytes(self) -> int:
        return tcp_received_bytes()


class NatsPublisher:
    """One connection."""

    async def publish(self, place: str, trades: AsyncIterable[Trade], ack: AckWord) -> None:
        client = await _nats(place)
        async for trade in trades:
            await client.publish(TOPIC, _encoded(trade))
        await client.flush()
        await client.close()


async def _nats(place: str) -> Any:
    import nats

    return await nats.connect(f"nats://{place}", connect_timeout=CONNECT_S, allow_reconnect=False)


# Mosquitto


class MqttSubscribers:
    """Each has a connection of its own; the library's calls are made by this process's event loop, not by threads."""

    def __init__(self, on_trade: OnTrade, on_received: OnReceived) -> None:
        self._on_trade = on_trade
        self._on_received = on_received
        self._clients: list[Any] = []

    async def join(self, place: str, number: int, interest: Interest) -> None:
        comparing = _Comparing(number, interest, self._on_trade, self._on_received)
        subscribed = asyncio.get_running_loop().create_future()
        client = await _mqtt(place)
        client.on_message = lambda client, userdata, message: comparing.take(message.payload)
        client.on_subscribe = lambda *told: subscribed.set_result(None)
        client.subscribe(TOPIC, qos=0)
        await asyncio.wait_for(subscribed, CONNECT_S)
        self._clients.append(client)

    def received_bytes(self) -> int:
        return tcp_received_bytes()


class MqttPublisher:
    """One connection, quality of service 0."""

    async def publish(self, place: str, trades: AsyncIterable[Trade], ack: AckWord) -> None:
        client = await _mqtt(place)
        async for trade in trades:
            client.publish(TOPIC, _encoded(trade), qos=0)
            await asyncio.sleep(0)  # the event loop writes it
        while client.want_write():  # noqa: ASYNC110  # the library has no event for it
            await asyncio.sleep(0)
        client.disconnect()


async def _mqtt(place: str) -> Any:
    """A connection; its reading and writing is done by the event loop."""
    from paho.mqtt.client import Client as MqttClient
    from paho.mqtt.enums import CallbackAPIVersion

    loop = asyncio.get_running_loop()
    connected = loop.create_future()
    client: Any = MqttClient(CallbackAPIVersion.VERSION2)
    client.on_socket_open = lambda client, userdata, sock: loop.add_reader(sock, client.loop_read)
    client.on_socket_close = lambda client, userdata, sock: loop.remove_reader(sock)
    client.on_socket_register_write = lambda client, userdata, sock: loop.add_writer(sock, client.loop_write)
    client.on_socket_unregister_write = lambda client, userdata, sock: loop.remove_writer(sock)
    client.on_connect = lambda *told: connected.set_result(None)
    host, _, port = place.rpartition(":")
    client.connect(host, int(port), keepalive=KEEP_ALIVE_S)
    await asyncio.wait_for(connected, CONNECT_S)
    return client


SYSTEMS: Final[Mapping[str, tuple[Callable[[OnTrade, OnReceived], Subscribers], Callable[[], Publisher]]]] = {
    "peerd": (PeerdSubscribers, PeerdPublisher),
    "NATS": (NatsSubscribers, NatsPublisher),
    "Mosquitto": (MqttSubscribers, MqttPublisher),
}
