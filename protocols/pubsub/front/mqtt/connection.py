"""One connection of an MQTT client. Three kinds of tasks share it:

- reading: takes packets, and answers at once what asks nothing of the daemon;
- working: publishes, subscribes and unsubscribes in the order in which the client asked. It holds a bounded number of
  packets, and nothing more is read while it is full, so a client that is too fast is slowed down by TCP;
- one for each subscription: sends what comes. A client that reads slowly stops only these, and the daemon's own policy
  for slow readers decides what happens with its events.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Final, Protocol

from peerd.client import RequestRefused
from peerd.errors import PeerdError, Unavailable
from protocols.pubsub.front.mqtt import packets
from protocols.pubsub.front.mqtt.packets import (
    Acknowledged,
    Connect,
    Disconnect,
    Message,
    Packet,
    PacketError,
    PacketReader,
    Ping,
    Released,
    Subscribe,
    Unsubscribe,
    UnsupportedVersion,
)
from protocols.pubsub.front.mqtt.ring import Ring
from protocols.pubsub.front.mqtt.session import CLIENT_ID_MAX, SUBSCRIPTIONS_MAX, Held, Session
from protocols.pubsub.front.mqtt.topics import TopicError

CONNECT_S: Final = 10.0
"""A client that has connected sends CONNECT within this."""
SEND_S: Final = 60.0
"""A client that takes nothing of what is sent to it for so long is cut off."""
FLUSH_S: Final = 5.0
"""How long the last bytes to a client that is cut off may take."""
KEEP_ALIVE_FACTOR: Final = 1.5
"""A client that is silent for so many times its keep alive is gone (section 3.1.2.10)."""
WORK_MAX: Final = 32
"""Packets of one client that wait for the daemon."""
READ_BYTES: Final = 16 * 1024
EXPECTED: Final = (PeerdError, OSError, TimeoutError)
"""What ends a connection and is nobody's bug."""


class Book(Protocol):
    """The sessions of all clients."""

    async def begin(self, connection: Connection, connect: Connect) -> tuple[Session, bool] | None:
        """The session of a client that connects, and whether it was there before; ``None``: there are too many."""

    async def over(self, connection: Connection) -> None:
        """A connection has ended."""


class Connection:
    """``run`` serves it to its end."""

    def __init__(self, ring: Ring, book: Book, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ring, self._book = ring, book
        self._reader, self._writer = reader, writer
        self._packets = PacketReader()
        self._work: asyncio.Queue[Message | Subscribe | Unsubscribe | None] = asyncio.Queue(WORK_MAX)
        self._acknowledged = asyncio.Event()
        self._pumps: dict[Held, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self.session = Session("", is_clean=True)
        self.ended = asyncio.Event()
        self.why = ""
        """Why the connection was closed, where that is worth telling."""

    async def run(self) -> None:
        """Serve the client until it goes, breaks the rules, or the daemon does not answer."""
        is_orderly, connect = False, None
        try:
            async with asyncio.timeout(CONNECT_S):
                connect, rest = await self._first()
            is_orderly = connect is None or await self._serve(connect, rest)
        except (*EXPECTED, ExceptionGroup) as error:
            self._note(error)
        finally:
            self._writer.close()
            if connect is not None and connect.will is not None and not is_orderly:
                await self._publish_will(connect.will)
            await self._book.over(self)
            self.ended.set()
            await self._flush()

    def _note(self, error: Exception) -> None:
        """Remember why the connection ends. Raises what should not happen."""
        if isinstance(error, ExceptionGroup) and (rest := error.split(EXPECTED)[1]) is not None:
            raise rest
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        self.why = str(error) or "it was silent, or took nothing, for too long"
        if isinstance(error, UnsupportedVersion):
            self._writer.write(error.answer)

    async def _flush(self) -> None:
        """Let the last bytes go out, but wait for no client that takes nothing."""
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def close(self) -> None:
        """Cut the client off: another connection has taken its place, or the gateway stops."""
        self._writer.transport.abort()
        self._reader.feed_eof()

    async def _serve(self, connect: Connect, rest: list[Packet]) -> bool:
        """Whether the client has said that it goes."""
        found = await self._begin(connect)
        if found is None:
            return True
        async with self._group as group:
            for held in list(self.session.held.values()):
                self._pumps[held] = group.create_task(self._resume(held))
            worker = group.create_task(self._do_work())
            is_orderly = await self._read(rest, KEEP_ALIVE_FACTOR * connect.keep_alive_s or None)
            await self._work.put(None)
            await worker
            for pump in self._pumps.values():
                pump.cancel()
        return is_orderly

    async def _publish_will(self, will: Message) -> None:
        try:
            await self._ring.publish(will)
        except PeerdError as error:
            self.why = f"its will could not be published: {error}"

    # CONNECT

    async def _first(self) -> tuple[Connect | None, list[Packet]]:
        """CONNECT and what came with it; ``None`` if the client goes without a word."""
        while data := await self._reader.read(READ_BYTES):
            if found := self._packets.feed(data):
                if not isinstance(found[0], Connect):
                    raise PacketError("the first packet is not CONNECT")
                return found[0], found[1:]
        return None, []

    async def _begin(self, connect: Connect) -> Session | None:
        is_nameless = not connect.client_id
        if len(connect.client_id) > CLIENT_ID_MAX or (is_nameless and not connect.is_clean):
            self.why = f"its client identifier is missing, or longer than {CLIENT_ID_MAX} characters"
            await self._send(packets.connack("identifier"))
            return None
        begun = await self._book.begin(self, connect)
        if begun is None:
            self.why = "there are too many clients"
            await self._send(packets.connack("unavailable"))
            return None
        self.session, is_known = begun
        self.session.restart()
        await self._send(packets.connack("accepted", is_known))
        return self.session

    # Reading

    async def _read(self, rest: list[Packet], silence_s: float | None) -> bool:
        found = rest
        while True:
            for packet in found:
                if isinstance(packet, Disconnect):
                    return True
                await self._take(packet)
            async with asyncio.timeout(silence_s):
                data = await self._reader.read(READ_BYTES)
            if not data:
                return False
            found = self._packets.feed(data)

    async def _take(self, packet: Packet) -> None:
        match packet:
            case Acknowledged():
                self.session.acknowledged(packet.packet_id)
                self._acknowledged.set()
            case Released():
                self.session.released(packet.packet_id)
                await self._send(packets.pubcomp(packet.packet_id))
            case Ping():
                await self._send(packets.pingresp())
            case Message() | Subscribe() | Unsubscribe():
                await self._work.put(packet)
            case _:
                raise PacketError("CONNECT came twice")

    # Working

    async def _do_work(self) -> None:
        while (packet := await self._work.get()) is not None:
            match packet:
                case Message():
                    await self._publish(packet)
                case Subscribe():
                    granted = [await self._subscribe(*wanted) for wanted in packet.wanted]
                    await self._send(packets.suback(packet.packet_id, granted))
                    self._follow_new()
                case Unsubscribe():
                    for topic_filter in packet.topic_filters:
                        await self._unsubscribe(topic_filter)
                    await self._send(packets.unsuback(packet.packet_id))

    async def _publish(self, message: Message) -> None:
        if message.qos == 0:
            try:
                await self._ring.publish(message)
            except Unavailable as error:  # its sender does not want to know
                self.why = str(error)
        elif message.qos == 1:
            await self._ring.publish(message)
            await self._send(packets.puback(message.packet_id))
        else:
            if self.session.is_new(message.packet_id):
                await self._ring.publish(message)
                if not self.session.received(message.packet_id):
                    raise PacketError("too many messages of quality of service 2 are not released")
            await self._send(packets.pubrec(message.packet_id))

    async def _subscribe(self, topic_filter: str, qos: int) -> int:
        """What SUBACK says of one topic filter."""
        granted = min(qos, 1)
        if topic_filter in self.session.held:
            self.session.held[topic_filter].qos = granted
            return granted
        if len(self.session.held) >= SUBSCRIPTIONS_MAX:
            self.why = f"a client has at most {SUBSCRIPTIONS_MAX} subscriptions"
            return packets.REFUSED
        held = self.session.hold(topic_filter, granted)
        try:
            await self._ring.open(held)
        except (TopicError, RequestRefused, Unavailable) as error:
            self.why = f"the subscription to {topic_filter!r:.80} was refused: {error}"
            del self.session.held[topic_filter]
            return packets.REFUSED
        return granted

    def _follow_new(self) -> None:
        for held in self.session.held.values():
            if held not in self._pumps:
                self._pumps[held] = self._group.create_task(self._pump(held))

    async def _unsubscribe(self, topic_filter: str) -> None:
        held = self.session.held.pop(topic_filter, None)
        if held is None:
            return
        if (pump := self._pumps.pop(held, None)) is not None:
            pump.cancel()
            with suppress(asyncio.CancelledError):
                await pump
        await self._ring.end(held)

    # Sending

    async def _resume(self, held: Held) -> None:
        await self._ring.open(held)
        await self._pump(held)

    async def _pump(self, held: Held) -> None:
        async with aclosing(self._ring.messages(held)) as found:
            async for id, message in found:
                while message.qos and not self.session.has_room:
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
                await self._send(packets.publish(self.session.sending(held, id, message)))
        raise Unavailable(f"the subscription to {held.topic_filter!r:.80} was ended at the daemon")

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(SEND_S):
            await self._writer.drain()
