"""A gateway for MQTT on a port of its own, before a daemon that is played, and the client's side of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from ohmqtt import MQTTPacket
from ohmqtt.packet import decode_packet

from peerd.client import RequestRefused
from peerd.errors import Unavailable
from peerd.models.admin import Problem
from protocols.pubsub.front.mqtt.counts import PREFIX, Counts, check
from protocols.pubsub.front.mqtt.gateway import Gateway
from protocols.pubsub.front.mqtt.packets import ApplicationMessage, PacketOutcome
from protocols.pubsub.front.mqtt.ring import RingAccess
from protocols.pubsub.front.mqtt.session import GatewaySettings, HeldSubscription, Session
from protocols.pubsub.front.mqtt.topics import TopicMap, shared

ANY = TopicMap("{topic...}", {"topic": "string"})
WAIT_S = 60.0


class PlayedRing:
    """A daemon that does what a test says."""

    def __init__(self) -> None:
        self.published: list[ApplicationMessage] = []
        self.senders: list[str] = []
        self.fails: Unavailable | None = None
        self.verdict = PacketOutcome()
        self.verdicts: dict[bytes, PacketOutcome | Unavailable] = {}
        """By payload: what becomes of some messages."""
        self.batches: list[int] = []
        self.may_publish = asyncio.Event()
        self.may_publish.set()
        self.counts = Counts()
        self.tokens: list[str] = []
        self.valid: tuple[str, ...] = ()
        self.closed = 0
        self.opened: list[HeldSubscription] = []
        self.ended: list[str] = []
        self._changed = asyncio.Event()
        self.coming: asyncio.Queue[tuple[str, ApplicationMessage]] = asyncio.Queue()

    async def publish(
        self, messages: Sequence[ApplicationMessage], sender: str = ""
    ) -> list[PacketOutcome | Unavailable]:
        """See `RingAccess.publish`."""
        await self.may_publish.wait()
        if self.fails is not None:
            return [self.fails] * len(messages)
        self.batches.append(len(messages))
        self.published += messages
        self.senders += [sender] * len(messages)
        self._changed.set()
        return [self.verdicts.get(message.payload, self.verdict) for message in messages]

    def shown(self, token: str) -> PlayedRing:
        """See `RingAccess.shown`: what is done is noted here."""
        self.tokens.append(token)
        return self

    async def check(self) -> None:
        """See `RingAccess.check`."""
        if self.tokens and self.tokens[-1] not in self.valid:
            raise RequestRefused(Problem(title="Unauthorized", status=401, detail="the token is not known"))

    async def close(self) -> None:
        """See `RingAccess.close`."""
        self.closed += 1

    async def open(self, held: HeldSubscription) -> None:
        """See `RingAccess.open`."""
        if held.topic_filter.startswith(PREFIX):
            check(held.topic_filter)
            return
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
        if held.topic_filter.startswith(PREFIX):
            async for number in self.counts.messages(session, held.topic_filter):
                yield "", number
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
    ring: PlayedRing, state: Path | None = None, clients: int = 5, address: Path | None = None, **settings: Any
) -> AsyncIterator[Callable[[bytes], Any]]:
    """A gateway on a port of its own, or a unix socket; yields a function that connects and sends bytes."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop, callers = asyncio.Event(), list[Caller]()
    made = Gateway(cast(RingAccess, ring), lambda text: None, GatewaySettings(clients, **settings), state)
    async with asyncio.TaskGroup() as group:
        group.create_task(made.serve(address or ("127.0.0.1", 0), stop, ready.set_result))
        where = await ready

        async def call(data: bytes) -> Caller:
            if address is None:
                streams = await asyncio.open_connection("127.0.0.1", int(where.rpartition(":")[2]))
            else:
                streams = await asyncio.open_unix_connection(address)
            caller = Caller(*streams)
            callers.append(caller)
            caller.writer.write(data)
            return caller

        try:
            yield call
        finally:
            for caller in callers:
                caller.writer.close()
            stop.set()
