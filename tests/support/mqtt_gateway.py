"""A gateway for MQTT on a port of its own, before a daemon that is played, and the client's side of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from ohmqtt import MQTTPacket
from ohmqtt.packet import decode_packet

from protocols.pubsub.front.mqtt.gateway import Gateway
from protocols.pubsub.front.mqtt.packets import ApplicationMessage, PacketOutcome
from protocols.pubsub.front.mqtt.ring import RingAccess
from protocols.pubsub.front.mqtt.session import HeldSubscription, Session
from protocols.pubsub.front.mqtt.topics import TopicMap, shared

ANY = TopicMap("{topic...}", {"topic": "string"})
WAIT_S = 60.0


class PlayedRing:
    """A daemon that does what a test says."""

    def __init__(self) -> None:
        self.published: list[ApplicationMessage] = []
        self.senders: list[str] = []
        self.fails: Exception | None = None
        self.verdict = PacketOutcome()
        self.opened: list[HeldSubscription] = []
        self.ended: list[str] = []
        self._changed = asyncio.Event()
        self.coming: asyncio.Queue[tuple[str, ApplicationMessage]] = asyncio.Queue()

    async def publish(self, message: ApplicationMessage, sender: str = "") -> PacketOutcome:
        """See `RingAccess.publish`."""
        if self.fails is not None:
            raise self.fails
        self.published.append(message)
        self.senders.append(sender)
        self._changed.set()
        return self.verdict

    async def open(self, held: HeldSubscription) -> None:
        """See `RingAccess.open`."""
        ANY.filter_of(shared(held.topic_filter)[1])
        held.id = f"id of {held.topic_filter}"
        self.opened.append(held)

    async def end(self, held: HeldSubscription) -> None:
        """See `RingAccess.end`."""
        self.ended.append(held.topic_filter)
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until what was published and ended is as wanted."""
        async with asyncio.timeout(WAIT_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def messages(
        self, session: Session, held: HeldSubscription
    ) -> AsyncGenerator[tuple[str, ApplicationMessage], None]:
        """See `RingAccess.messages`: what the test puts into ``coming``, for whoever takes it first."""
        while True:
            yield await self.coming.get()


class Caller:
    """The client's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def expect(self, answer: bytes) -> None:
        """The next bytes are these."""
        async with asyncio.timeout(WAIT_S):
            assert await self.reader.readexactly(len(answer)) == answer

    async def next(self) -> Any:
        """The next packet, which is one of MQTT 5."""
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readexactly(2)
            while head[-1] & 0x80:
                head += await self.reader.readexactly(1)
            length = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(head[1:]))
            return decode_packet(head + await self.reader.readexactly(length))

    def send(self, *sent: MQTTPacket) -> None:
        """Send packets of MQTT 5."""
        self.writer.write(b"".join(packet.encode() for packet in sent))

    async def expect_end(self) -> None:
        """Nothing more comes."""
        async with asyncio.timeout(WAIT_S):
            assert await self.reader.read() == b""


@asynccontextmanager
async def gateway(
    ring: PlayedRing, state: Path | None = None, clients: int = 5
) -> AsyncIterator[Callable[[bytes], Any]]:
    """A gateway on a port of its own; yields a function that connects and sends bytes."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop, callers = asyncio.Event(), list[Caller]()
    made = Gateway(cast(RingAccess, ring), lambda text: None, clients, state)
    async with asyncio.TaskGroup() as group:
        group.create_task(made.serve("127.0.0.1", 0, stop, ready.set_result))
        port = await ready

        async def call(data: bytes) -> Caller:
            caller = Caller(*await asyncio.open_connection("127.0.0.1", port))
            callers.append(caller)
            caller.writer.write(data)
            return caller

        try:
            yield call
        finally:
            for caller in callers:
                caller.writer.close()
            stop.set()
