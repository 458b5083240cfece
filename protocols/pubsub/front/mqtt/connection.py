"""One connection of an MQTT client. Three kinds of tasks share it:

- reading: takes packets, and answers at once what asks nothing of the daemon;
- working: publishes, subscribes and unsubscribes in the order in which the client asked. It holds a bounded number of
  packets, and nothing more is read while it is full, so a client that is too fast is slowed down by TCP;
- one for each subscription: sends what comes. A client that reads slowly stops only these, and the daemon's own policy
  for slow readers decides what happens with its events.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Protocol

from peerd.client import RequestRefused
from peerd.errors import PeerdError, Unavailable
from protocols.pubsub.front.mqtt.packets import (
    PACKET_BYTES_MAX,
    Accepted,
    Acknowledged,
    Aliases,
    ApplicationMessage,
    Connect,
    Disconnect,
    Packet,
    PacketError,
    PacketOutcome,
    PingRequest,
    Reason,
    Released,
    Subscribe,
    Unsubscribe,
    UnsupportedVersion,
    Version,
    Wanted,
)
from protocols.pubsub.front.mqtt.reader import PacketReader
from protocols.pubsub.front.mqtt.ring import RingAccess
from protocols.pubsub.front.mqtt.session import CLIENT_ID_MAX, SUBSCRIPTIONS_MAX, HeldSubscription, Session
from protocols.pubsub.front.mqtt.topics import TopicError
from protocols.pubsub.front.mqtt.version5 import Version5
from protocols.pubsub.messages import HEADERS_BYTES_MAX

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
NAME_PREFIX: Final = "peerd-"
NAME_BYTES: Final = 8
"""Random bytes in the name of a client that has none."""
EXPECTED: Final = (PeerdError, OSError, TimeoutError)
"""What ends a connection and is nobody's bug."""


class Book(Protocol):
    """The sessions of all clients."""

    async def begin(self, connection: Connection, connect: Connect) -> tuple[Session, bool] | None:
        """The session of a client that connects, and whether it was there before; ``None``: there are too many."""

    async def over(self, connection: Connection, will: ApplicationMessage | None, delay_s: int) -> None:
        """A connection has ended, and its session with it if that is not kept. The will is published after a while."""


class Connection:
    """``run`` serves it to its end."""

    def __init__(
        self, ring: RingAccess, book: Book, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._ring, self._book = ring, book
        self._reader, self._writer = reader, writer
        self._packets, self._aliases = PacketReader(), Aliases()
        self._work: asyncio.Queue[ApplicationMessage | Subscribe | Unsubscribe | None] = asyncio.Queue(WORK_MAX)
        self._owed: set[int] = set()
        """Numbers of the client's messages that are not acknowledged to the end."""
        self._acknowledged = asyncio.Event()
        self._pumps: dict[HeldSubscription, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self.session = Session("", 0)
        self.ended = asyncio.Event()
        self.why = ""
        """Why the connection was closed, where that is worth telling."""

    @property
    def _version(self) -> Version:
        return self._packets.version

    async def run(self) -> None:
        """Serve the client until it goes, breaks the rules, or the daemon does not answer."""
        will, connect = None, None
        try:
            async with asyncio.timeout(CONNECT_S):
                connect, rest = await self._first()
            if connect is not None and await self._begin(connect):
                will = connect.will
                is_orderly = await self._serve(connect, rest)
                will = None if is_orderly else will
        except (*EXPECTED, ExceptionGroup) as error:
            self._note(error)
        finally:
            self._writer.close()
            await self._book.over(self, will, 0 if connect is None else connect.will_delay_s)
            self.ended.set()
            await self._flush()

    def _note(self, error: Exception) -> None:
        """Remember why the connection ends, and tell the client. Raises what should not happen."""
        if isinstance(error, ExceptionGroup) and (rest := error.split(EXPECTED)[1]) is not None:
            raise rest
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        self.why = str(error) or "it was silent, or took nothing, for too long"
        if isinstance(error, UnsupportedVersion):
            self._writer.write(error.answer)
        elif isinstance(error, PacketError):
            self._writer.write(self._version.disconnect(error.reason, str(error)))
        elif isinstance(error, PeerdError):
            self._writer.write(self._version.disconnect(Reason.ServerBusy, str(error)))

    async def _flush(self) -> None:
        """Let the last bytes go out, but wait for no client that takes nothing."""
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def close(self, reason: Reason) -> None:
        """Cut the client off: another connection has taken its place, or the gateway stops."""
        if not self._writer.transport.get_write_buffer_size():
            self._writer.write(self._version.disconnect(reason))
        self._writer.transport.abort()
        self._reader.feed_eof()

    async def _serve(self, connect: Connect, rest: list[Packet]) -> bool:
        """Whether the client has said that it goes, and wants no will."""
        async with self._group as group:
            for held in list(self.session.held.values()):
                self._pumps[held] = group.create_task(self._resume(held))
            worker = group.create_task(self._do_work())
            goodbye = await self._read(rest, KEEP_ALIVE_FACTOR * connect.keep_alive_s or None)
            await self._work.put(None)
            await worker
            for pump in self._pumps.values():
                pump.cancel()
        return goodbye is not None and not goodbye.with_will

    # CONNECT

    async def _first(self) -> tuple[Connect | None, list[Packet]]:
        """CONNECT and what came with it; ``None`` if the client goes without a word."""
        while data := await self._reader.read(READ_BYTES):
            if found := self._packets.feed(data):
                if not isinstance(found[0], Connect):
                    raise PacketError("the first packet is not CONNECT", Reason.ProtocolError)
                return found[0], found[1:]
        return None, []

    async def _begin(self, connect: Connect) -> bool:
        """Whether the client may stay."""
        name = self._name_of(connect)
        if connect.authentication:
            await self._refuse(Reason.BadAuthenticationMethod, "clients are not asked who they are here")
        elif name is None:
            why = f"its client identifier is missing, or longer than {CLIENT_ID_MAX} characters"
            await self._refuse(Reason.ClientIdentifierNotValid, why)
        elif (begun := await self._book.begin(self, replace(connect, client_id=name))) is None:
            await self._refuse(Reason.QuotaExceeded, "there are too many clients")
        else:
            self.session, is_known = begun
            self.session.restart(connect.receive_max)
            await self._send(self._version.accepted(Accepted(is_known, "" if name == connect.client_id else name)))
            return True
        return False

    def _name_of(self, connect: Connect) -> str | None:
        """The client's name, made here where it has none and its version can be told; ``None``: it cannot be used."""
        if len(connect.client_id) > CLIENT_ID_MAX:
            return None
        if connect.client_id:
            return connect.client_id
        if isinstance(self._version, Version5):
            return f"{NAME_PREFIX}{secrets.token_hex(NAME_BYTES)}"
        return "" if connect.is_clean else None

    async def _refuse(self, reason: Reason, why: str) -> None:
        self.why = why
        await self._send(self._version.refused(reason, why))

    # Reading

    async def _read(self, rest: list[Packet], silence_s: float | None) -> Disconnect | None:
        """Take packets until the client says goodbye, or goes without a word."""
        found = rest
        while True:
            for packet in found:
                if isinstance(packet, Disconnect):
                    self._check_expiry(packet)
                    return packet
                await self._take(packet)
            try:
                async with asyncio.timeout(silence_s):
                    data = await self._reader.read(READ_BYTES)
            except TimeoutError as error:
                raise PacketError("it was silent for too long", Reason.KeepAliveTimeout) from error
            if not data:
                return None
            found = self._packets.feed(data)

    def _check_expiry(self, packet: Disconnect) -> None:
        """DISCONNECT may change how long the session is kept, but not begin to keep one (section 3.14.2.2.2)."""
        if packet.expires_s is None:
            return
        if packet.expires_s and self.session.is_clean:
            raise PacketError("a session that ends with the connection cannot be kept then", Reason.ProtocolError)
        self.session.expires_s = packet.expires_s

    async def _take(self, packet: Packet) -> None:
        match packet:
            case Acknowledged():
                self.session.acknowledged(packet.packet_id)
                self._acknowledged.set()
            case Released():
                is_known = self.session.released(packet.packet_id)
                self._owed.discard(packet.packet_id)
                reason = Reason.Success if is_known else Reason.PacketIdentifierNotFound
                await self._send(self._version.pubcomp(packet.packet_id, reason))
            case PingRequest():
                await self._send(self._version.pingresp())
            case ApplicationMessage():
                await self._work.put(self._counted(replace(packet, topic=self._aliases.topic_of(packet))))
            case Subscribe() | Unsubscribe():
                await self._work.put(packet)
            case _:
                raise PacketError("CONNECT came twice", Reason.ProtocolError)

    def _counted(self, message: ApplicationMessage) -> ApplicationMessage:
        """Count a message that has to be acknowledged. Raises `PacketError` if there are too many."""
        if message.qos:
            self._owed.add(message.packet_id)
        if len(self._owed) > self._version.receive_max:
            why = f"more than {self._version.receive_max} messages are not acknowledged"
            raise PacketError(why, Reason.ReceiveMaximumExceeded)
        return message

    # Working

    async def _do_work(self) -> None:
        while (packet := await self._work.get()) is not None:
            match packet:
                case ApplicationMessage():
                    await self._publish(packet)
                case Subscribe():
                    verdicts = [await self._subscribe(wanted, packet.subscription_id) for wanted in packet.wanted]
                    why = next((verdict.why for verdict in verdicts if verdict.why), "")
                    await self._send(
                        self._version.suback(packet.packet_id, [verdict.reason for verdict in verdicts], why)
                    )
                    self._follow_new()
                case Unsubscribe():
                    reasons = [await self._unsubscribe(topic_filter) for topic_filter in packet.topic_filters]
                    await self._send(self._version.unsuback(packet.packet_id, reasons))

    async def _publish(self, message: ApplicationMessage) -> None:
        sender, number = self.session.sender, message.packet_id
        if message.qos == 0:
            try:
                await self._ring.publish(message, sender)
            except Unavailable as error:  # its sender does not want to know
                self.why = str(error)
        elif message.qos == 1:
            verdict = await self._ring.publish(message, sender)
            self._owed.discard(number)
            await self._send(self._version.puback(number, verdict.reason, verdict.why))
        else:
            verdict = await self._publish_once(message, sender)
            if not verdict.is_good:
                self._owed.discard(number)
            await self._send(self._version.pubrec(number, verdict.reason, verdict.why))

    async def _publish_once(self, message: ApplicationMessage, sender: str) -> PacketOutcome:
        """Publish a message of quality of service 2, unless it was published already."""
        if not self.session.is_new(message.packet_id):
            return PacketOutcome()
        verdict = await self._ring.publish(message, sender)
        if verdict.is_good and not self.session.received(message.packet_id):
            why = "too many messages of quality of service 2 are not released"
            raise PacketError(why, Reason.ReceiveMaximumExceeded)
        return verdict

    async def _subscribe(self, wanted: Wanted, subscription_id: int) -> PacketOutcome:
        """What SUBACK says of one topic filter."""
        topic_filter, granted = wanted.topic_filter, min(wanted.qos, 1)
        good = PacketOutcome(Reason.GrantedQoS1 if granted else Reason.Success)
        if (held := self.session.held.get(topic_filter)) is not None:
            held.qos = granted
            held.choose(wanted, subscription_id)
            return good
        if len(self.session.held) >= SUBSCRIPTIONS_MAX:
            return self._refused(Reason.QuotaExceeded, f"a client has at most {SUBSCRIPTIONS_MAX} subscriptions")
        held = self.session.hold(topic_filter, granted)
        held.choose(wanted, subscription_id)
        try:
            await self._ring.open(held)
        except (TopicError, RequestRefused, Unavailable) as error:
            del self.session.held[topic_filter]
            why = f"the subscription to {topic_filter!r:.80} was refused: {error}"
            return self._refused(_reason_of(error), why)
        return good

    def _refused(self, reason: Reason, why: str) -> PacketOutcome:
        self.why = why
        return PacketOutcome(reason, why)

    def _follow_new(self) -> None:
        for held in self.session.held.values():
            if held not in self._pumps:
                self._pumps[held] = self._group.create_task(self._pump(held))

    async def _unsubscribe(self, topic_filter: str) -> Reason:
        held = self.session.held.pop(topic_filter, None)
        if held is None:
            return Reason.NoSubscriptionExisted
        if (pump := self._pumps.pop(held, None)) is not None:
            pump.cancel()
            with suppress(asyncio.CancelledError):
                await pump
        await self._ring.end(held)
        return Reason.Success

    # Sending

    async def _resume(self, held: HeldSubscription) -> None:
        await self._ring.open(held)
        await self._pump(held)

    async def _pump(self, held: HeldSubscription) -> None:
        async with aclosing(self._ring.messages(self.session, held)) as found:
            async for id, message in found:
                if self._is_too_large(message):
                    held.done(id)
                    continue
                while message.qos and not self.session.has_room:
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
                await self._send(self._version.publish(self.session.sending(held, id, message)))
        raise Unavailable(f"the subscription to {held.topic_filter!r:.80} was ended at the daemon")

    def _is_too_large(self, message: ApplicationMessage) -> bool:
        """Whether the client takes no packet so large: then it counts as delivered (section 3.1.2.11.4)."""
        limit = self._version.packet_max
        if limit > PACKET_BYTES_MAX + HEADERS_BYTES_MAX or len(self._version.publish(message)) <= limit:
            return False
        self.why = f"a message to {message.topic!r:.80} is larger than the {limit} bytes that the client takes"
        return True

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(SEND_S):
            await self._writer.drain()


def _reason_of(error: TopicError | RequestRefused | Unavailable) -> Reason:
    """What MQTT 5 calls the reason for which a subscription was refused."""
    if isinstance(error, TopicError):
        return Reason.TopicFilterInvalid
    is_quota = isinstance(error, RequestRefused) and error.problem.status == HTTPStatus.TOO_MANY_REQUESTS
    return Reason.QuotaExceeded if is_quota else Reason.UnspecifiedError
