"""What users of each system have on their side: a subscriber that gets what it wants, and a publisher.

Each system gets the client library that its users take, on one event loop. With peerd the filter is in the
subscription; with a broker every subscriber listens to one topic, decodes what comes and compares it itself.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from bench.rivals.work import OnFound, OnReceived, Work
from peerd.client import Client

TOPIC: Final = "messages"
TCP_INFO_FORMAT: Final = "8B24I4Q"
"""The kernel's ``struct tcp_info`` up to and with ``tcpi_bytes_received``, which is the last."""
CONNECT_S: Final = 30.0
KEEP_ALIVE_S: Final = 600

W = TypeVar("W", bound=Work)


class Subscribers(Protocol):
    """Subscribers of one system in this process."""

    async def join(self, place: str, number: int) -> None:
        """Add one; from now on it gets all that it wants. ``place``: where its daemon or broker is."""

    def received_bytes(self) -> int:
        """What came to all of them until now, over their connections."""


class Publisher(Protocol):
    """Publishes messages."""

    async def publish(self, place: str, numbers: AsyncIterable[int], **options: str) -> None:
        """Returns when the system has all of them, as far as it says so. ``options``: for this system only."""


MakeSubscribers = Callable[[W, OnFound, OnReceived], Subscribers]
MakePublisher = Callable[[W], Publisher]


class Clients(Generic[W]):
    """The clients of all systems for one kind of work; those of brokers are the same for every kind."""

    def __init__(self, subscribers: MakeSubscribers[W], publisher: MakePublisher[W]) -> None:
        self.of: Mapping[str, tuple[MakeSubscribers[W], MakePublisher[W]]] = {
            "peerd": (subscribers, publisher),
            "NATS": (NatsSubscribers, NatsPublisher),
            "Mosquitto": (MqttSubscribers, MqttPublisher),
        }


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


class CountingClient(Client):
    """A client of a daemon that counts the bytes of the lines of streams."""

    received = 0

    async def stream(
        self, path: str, body: Mapping[str, Any] | None, method: str = "POST", silence_s: float = 60.0
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(super().stream(path, body, method, silence_s)) as lines:
            async for line in lines:
                self.received += len(line) + 1
                yield line


class Comparing:
    """Compares what a broker sends with what one subscriber wants."""

    def __init__(self, work: Work, number: int, on_found: OnFound, on_received: OnReceived) -> None:
        self._number = number
        self._wants = work.wants(number)
        self._on_found = on_found
        self._on_received = on_received

    def take(self, payload: bytes) -> None:
        """A message that has come."""
        sent_ns = self._wants(payload)
        if sent_ns is not None:
            self._on_found(self._number, sent_ns)
        self._on_received()


class _BrokerSubscribers:
    """Clients of a broker that get everything, and compare it themselves."""

    def __init__(self, work: Work, on_found: OnFound, on_received: OnReceived) -> None:
        self._work = work
        self._on_found = on_found
        self._on_received = on_received
        self._clients: list[Any] = []

    def _comparing(self, number: int) -> Comparing:
        return Comparing(self._work, number, self._on_found, self._on_received)

    def received_bytes(self) -> int:
        """See `Subscribers.received_bytes`."""
        return tcp_received_bytes()


# NATS


class NatsSubscribers(_BrokerSubscribers):
    """Each has a connection of its own."""

    async def join(self, place: str, number: int) -> None:
        """See `Subscribers.join`."""
        client = await _nats(place)
        comparing = self._comparing(number)

        async def on_message(message: Any) -> None:
            comparing.take(message.data)

        await client.subscribe(TOPIC, cb=on_message)
        await client.flush()
        self._clients.append(client)


class NatsPublisher:
    """One connection."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def publish(self, place: str, numbers: AsyncIterable[int], **options: str) -> None:
        """See `Publisher.publish`."""
        client = await _nats(place)
        async for number in numbers:
            await client.publish(TOPIC, self._work.payload(number))
        await client.flush()
        await client.close()


async def _nats(place: str) -> Any:
    import nats

    return await nats.connect(f"nats://{place}", connect_timeout=CONNECT_S, allow_reconnect=False)


# Mosquitto


class MqttSubscribers(_BrokerSubscribers):
    """Each has a connection of its own; the library's calls are made by this process's event loop, not by threads."""

    async def join(self, place: str, number: int) -> None:
        """See `Subscribers.join`."""
        comparing = self._comparing(number)
        subscribed = asyncio.get_running_loop().create_future()
        client = await _mqtt(place)
        client.on_message = lambda client, userdata, message: comparing.take(message.payload)
        client.on_subscribe = lambda *told: subscribed.set_result(None)
        client.subscribe(TOPIC, qos=0)
        await asyncio.wait_for(subscribed, CONNECT_S)
        self._clients.append(client)


class MqttPublisher:
    """One connection, quality of service 0."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def publish(self, place: str, numbers: AsyncIterable[int], **options: str) -> None:
        """See `Publisher.publish`."""
        client = await _mqtt(place)
        async for number in numbers:
            client.publish(TOPIC, self._work.payload(number), qos=0)
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
