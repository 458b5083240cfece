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
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, Protocol, TypeAlias

from peerd.client import RequestRefused
from peerd.errors import PeerdError, Unavailable
from peerd.limits import KIB
from protocols.pubsub.front.mqtt.counts import PREFIX
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
    Wanted,
)
from protocols.pubsub.front.mqtt.reader import PacketReader, Version
from protocols.pubsub.front.mqtt.ring import RingAccess
from protocols.pubsub.front.mqtt.session import (
    CLIENT_ID_MAX,
    SUBSCRIPTIONS_MAX,
    GatewaySettings,
    HeldSubscription,
    Session,
)
from protocols.pubsub.front.mqtt.topics import TopicError
from protocols.pubsub.front.mqtt.users import NOBODY, User
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
WORK_MAX: Final = 64
"""Packets of one client that wait for the daemon."""
BATCH_BYTES_MAX: Final = 600 * KIB
"""Payloads of messages that are published in one request, which the daemon takes up to 1 MiB, in base64."""
READ_BYTES: Final = 16 * 1024
NAME_PREFIX: Final = "peerd-"
NAME_BYTES: Final = 8
"""Random bytes in the name of a client that has none."""
EXACTLY_ONCE: Final = 2
"""The highest quality of service."""
EXPECTED: Final = (PeerdError, OSError, TimeoutError)
"""What ends a connection and is nobody's bug."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A client may stay. ``is_known``: its session was there before. ``ring``: what the daemon does for it."""

    session: Session
    is_known: bool
    ring: RingAccess


Work: TypeAlias = ApplicationMessage | Subscribe | Unsubscribe


class Book(Protocol):
    """The sessions of all clients."""

    @property
    def settings(self) -> GatewaySettings: ...

    async def begin(self, connection: Connection, connect: Connect) -> Begun | PacketOutcome:
        """The session of a client that connects; or why it may not."""

    async def over(self, connection: Connection, will: ApplicationMessage | None, delay_s: int) -> None:
        """A connection has ended, and its session with it if that is not kept. The will is published after a while."""


class Connection:
    """``run`` serves it to its end."""

    def __init__(
        self,
        ring: RingAccess,
        book: Book,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        uid: int | None = None,
    ) -> None:
        self._ring, self._book = ring, book
        self.uid = uid
        """The user at the other end, if the kernel tells."""
        self.user = NOBODY if uid is None else User(f"user {uid}", f"user {uid}")
        self.heard_at = asyncio.get_running_loop().time()
        """When the last bytes came, in the time of the event loop."""
        self.is_begun = False
        self._reader, self._writer = reader, writer
        self._packets, self._aliases = PacketReader(), Aliases()
        self._work: asyncio.Queue[Work | None] = asyncio.Queue(WORK_MAX)
        self._put_back: deque[Work | None] = deque()
        """What was taken from there, and did not fit to what came before."""
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
            self.heard_at = asyncio.get_running_loop().time()
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
        elif isinstance(begun := await self._book.begin(self, replace(connect, client_id=name)), PacketOutcome):
            await self._refuse(begun.reason, begun.why)
        else:
            self.session, self._ring, self.is_begun = begun.session, begun.ring, True
            self.session.restart(connect.receive_max)
            expires_s = None if self.session.expires_s == connect.expires_s else self.session.expires_s
            answer = Accepted(begun.is_known, "" if name == connect.client_id else name, expires_s)
            await self._send(self._version.accepted(answer))
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
            self.heard_at = asyncio.get_running_loop().time()
            found = self._packets.feed(data)

    def _check_expiry(self, packet: Disconnect) -> None:
        """DISCONNECT may change how long the session is kept, but not begin to keep one (section 3.14.2.2.2)."""
        if packet.expires_s is None:
            return
        if packet.expires_s and self.session.is_clean:
            raise PacketError("a session that ends with the connection cannot be kept then", Reason.ProtocolError)
        self.session.expires_s = min(packet.expires_s, self._book.settings.expires_max_s)

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
        while (packet := await self._next_work()) is not None:
            match packet:
                case ApplicationMessage():
                    await self._publish(self._together(packet))
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

    async def _next_work(self) -> Work | None:
        return self._put_back.popleft() if self._put_back else await self._work.get()

    def _together(self, first: ApplicationMessage) -> list[ApplicationMessage]:
        """A message, and those behind it that wait by now and can be published in one request with it.

        So batches form by themselves, of what has come while an earlier one was published.
        """
        found, size = [first], len(first.payload)
        while not self._work.empty():
            packet = self._work.get_nowait()
            is_alike = isinstance(packet, ApplicationMessage) and bool(packet.qos) == bool(first.qos)
            size += len(packet.payload) if isinstance(packet, ApplicationMessage) else 0
            if not is_alike or size > BATCH_BYTES_MAX:
                self._put_back.append(packet)
                break
            assert isinstance(packet, ApplicationMessage)
            found.append(packet)
        return found

    async def _publish(self, messages: list[ApplicationMessage]) -> None:
        """Publish messages, and acknowledge them in their order; behind one whose outcome is not known, none."""
        seen = set[int]()
        new = [each for each in messages if each.qos < EXACTLY_ONCE or self._is_first(each.packet_id, seen)]
        verdicts = await self._ring.publish(new, self.session.sender) if new else []
        by_message = dict(zip(map(id, new), verdicts, strict=True))
        self._note_received(new, verdicts)
        for message in messages:
            verdict = by_message.get(id(message), PacketOutcome())
            if isinstance(verdict, Unavailable):
                if message.qos:
                    raise verdict
                self.why = str(verdict)  # its sender does not want to know
            else:
                await self._answer(message, verdict)

    def _is_first(self, packet_id: int, seen: set[int]) -> bool:
        is_first = packet_id not in seen and self.session.is_new(packet_id)
        seen.add(packet_id)
        return is_first

    def _note_received(
        self, messages: list[ApplicationMessage], verdicts: Sequence[PacketOutcome | Unavailable]
    ) -> None:
        """Those of quality of service 2 that were published are not published again, also if no answer reaches them."""
        for message, verdict in zip(messages, verdicts, strict=True):
            is_done = isinstance(verdict, PacketOutcome) and verdict.is_good
            if is_done and message.qos == EXACTLY_ONCE and not self.session.received(message.packet_id):
                why = "too many messages of quality of service 2 are not released"
                raise PacketError(why, Reason.ReceiveMaximumExceeded)

    async def _answer(self, message: ApplicationMessage, verdict: PacketOutcome) -> None:
        """Acknowledge a message. A refusal that the client's version has no word for may end the connection."""
        if not verdict.is_good:
            self.session.refused += 1
            self.session.last_refusal = f"{message.topic:.80}: {verdict.why}"
            if not message.qos or not isinstance(self._version, Version5):
                self._ring.counts.unanswered += 1
                if message.qos and self._book.settings.closes_on_refusal:
                    why = f"a message was refused, which its version of MQTT cannot be told: {verdict.why}"
                    raise PacketError(why, verdict.reason)
        if message.qos == 1 or not verdict.is_good:
            self._owed.discard(message.packet_id)
        if message.qos == 1:
            await self._send(self._version.puback(message.packet_id, verdict.reason, verdict.why))
        elif message.qos:
            await self._send(self._version.pubrec(message.packet_id, verdict.reason, verdict.why))

    async def _subscribe(self, wanted: Wanted, subscription_id: int) -> PacketOutcome:
        """What SUBACK says of one topic filter."""
        topic_filter, granted = wanted.topic_filter, min(wanted.qos, 1)
        granted = 0 if topic_filter.startswith(PREFIX) else granted
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
        self._ring.counts.too_large += 1
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
