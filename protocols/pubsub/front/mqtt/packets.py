"""The packets of MQTT 3.1.1, read from bytes and written, with the packet classes of the library amqtt. Pure.

The library's readers are coroutines; on a buffer that holds a whole packet they never wait.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from amqtt.adapters import BufferReader
from amqtt.errors import AMQTTError, CodecError, MQTTError, NoDataError
from amqtt.mqtt import packet_class
from amqtt.mqtt.connack import ConnackPacket
from amqtt.mqtt.packet import (
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBLISH,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    MQTTFixedHeader,
)
from amqtt.mqtt.pingresp import PingRespPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.pubcomp import PubcompPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.pubrec import PubrecPacket
from amqtt.mqtt.suback import SubackPacket
from amqtt.mqtt.unsuback import UnsubackPacket

from peerd.errors import PeerdError
from peerd.limits import KIB

PACKET_BYTES_MAX: Final = 40 * KIB
"""The largest packet that a client may send: the largest payload of an event, its topic, and some room."""
LENGTH_BYTES_MAX: Final = 4
VERSION: Final = 4
"""The protocol level of MQTT 3.1.1; that of MQTT 5 is 5."""
REFUSED: Final = 0x80
"""What SUBACK says of a topic filter that was not taken."""
CODES: Final[dict[str, int]] = {"accepted": 0, "version": 1, "identifier": 2, "unavailable": 3}
"""Return codes of CONNACK (table 3.1)."""
CONNACK_5: Final = b"\x20\x03\x00\x84\x00"
"""The answer in MQTT 5 that this version of the protocol is not supported."""
_FLAGS: Final[dict[int, int]] = {PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}
"""The flags that a packet's first byte must have (table 2.2), where they are not 0. Those of PUBLISH mean something."""
T = TypeVar("T")


class PacketError(PeerdError, ValueError):
    """A client sent what the standard forbids: its connection is closed."""


class UnsupportedVersion(PacketError):
    """CONNECT asks for another version of MQTT; ``answer`` tells the client so."""

    def __init__(self, level: int) -> None:
        super().__init__(f"the client speaks version {level} of the protocol; here is only 4, which is MQTT 3.1.1")
        self.answer = CONNACK_5 if level == 5 else connack("version")


@dataclass(frozen=True, slots=True)
class Message:
    """A message under a topic, as PUBLISH carries it, and the will of a client."""

    topic: str
    payload: bytes
    qos: int = 0
    is_retained: bool = False
    packet_id: int = 0
    is_again: bool = False


@dataclass(frozen=True, slots=True)
class Connect:
    """CONNECT. An empty ``client_id``: the client has none."""

    client_id: str
    is_clean: bool
    keep_alive_s: int
    will: Message | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE: topic filters, each with the quality of service that is wanted."""

    packet_id: int
    wanted: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """UNSUBSCRIBE."""

    packet_id: int
    topic_filters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """PUBACK."""

    packet_id: int


@dataclass(frozen=True, slots=True)
class Released:
    """PUBREL: the client will not send this message again."""

    packet_id: int


@dataclass(frozen=True, slots=True)
class Ping:
    """PINGREQ."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """DISCONNECT."""


Packet = Connect | Message | Subscribe | Unsubscribe | Acknowledged | Released | Ping | Disconnect


@dataclass(slots=True)
class PacketReader:
    """Makes packets of the bytes of a connection."""

    _bytes: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[Packet]:
        """Take bytes; return the packets that are whole now. Raises `PacketError`."""
        self._bytes += data
        packets = []
        while (frame := self._take()) is not None:
            packets.append(_packet(*frame))
        return packets

    def _take(self) -> tuple[int, int, bytes] | None:
        """The type, flags and body of the next packet, if it is here as a whole (section 2.2)."""
        length, used = 0, 1
        while True:
            if used >= len(self._bytes):
                return None
            byte = self._bytes[used]
            length |= (byte & 0x7F) << 7 * (used - 1)
            used += 1
            if byte < 0x80:
                break
            if used > LENGTH_BYTES_MAX:
                raise PacketError("a packet's length has more than four bytes")
        if length > PACKET_BYTES_MAX:
            raise PacketError(f"a packet has {length} bytes, limit {PACKET_BYTES_MAX}")
        if len(self._bytes) < used + length:
            return None
        first, body = self._bytes[0], bytes(self._bytes[used : used + length])
        del self._bytes[: used + length]
        return first >> 4, first & 0x0F, body


def _packet(kind: int, flags: int, body: bytes) -> Packet:
    read = _READERS.get(kind)
    if read is None or (kind != PUBLISH and flags != _FLAGS.get(kind, 0)):
        raise PacketError(f"no client sends a packet of type {kind} with flags {flags}")
    if kind == CONNECT:
        _check_version(body)
    header = MQTTFixedHeader(kind, flags, len(body))
    try:
        packet = _at_once(packet_class(header).from_stream(BufferReader(body), fixed_header=header))
        is_exact = kind == CONNECT or packet.to_bytes()[-len(body) :] == body or not body
    except (AMQTTError, MQTTError, CodecError, NoDataError, ValueError, IndexError) as error:
        raise PacketError(f"a packet of type {kind} cannot be read: {error}") from error
    if not is_exact:  # the library reads text that is not UTF-8 as something else, and passes over what is too much
        raise PacketError(f"a packet of type {kind} is malformed")
    result: Packet = read(packet)
    return result


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise PacketError("a packet ends too soon")


def _check_version(body: bytes) -> None:
    size = int.from_bytes(body[:2], "big")
    name, level = body[2 : 2 + size], body[2 + size : 3 + size]
    if name not in (b"MQTT", b"MQIsdp") or not level:
        raise PacketError("this is not MQTT")
    if level[0] != VERSION:
        raise UnsupportedVersion(level[0])


def _connect(packet: Any) -> Connect:
    if packet.reserved_flag or packet.will_qos > 2 or (packet.password_flag and not packet.username_flag):
        raise PacketError("CONNECT has flags that are not allowed")
    will = None
    if packet.will_flag:
        if packet.will_topic is None or packet.will_message is None:
            raise PacketError("CONNECT ends too soon")
        will = Message(packet.will_topic, bytes(packet.will_message), packet.will_qos, packet.will_retain_flag)
    client_id = "" if packet.client_id_is_random else packet.client_id
    return Connect(client_id, packet.clean_session_flag, packet.keep_alive, will)


def _message(packet: Any) -> Message:
    if packet.qos > 2:
        raise PacketError("there is no quality of service 3")
    number = _number(packet.packet_id) if packet.qos else 0
    return Message(packet.topic_name, packet.data, packet.qos, packet.retain_flag, number, packet.dup_flag)


def _subscribe(packet: Any) -> Subscribe:
    wanted = tuple(packet.payload.topics)
    if not wanted or any(qos > 2 for _, qos in wanted):
        raise PacketError("SUBSCRIBE names topic filters, each with a quality of service of 0 to 2")
    return Subscribe(_number(packet.variable_header.packet_id), wanted)


def _unsubscribe(packet: Any) -> Unsubscribe:
    if not packet.payload.topics:
        raise PacketError("UNSUBSCRIBE names topic filters")
    return Unsubscribe(_number(packet.variable_header.packet_id), tuple(packet.payload.topics))


def _number(packet_id: int) -> int:
    if not packet_id:
        raise PacketError("a packet's identifier is not 0")
    return packet_id


_READERS: Final[dict[int, Any]] = {
    CONNECT: _connect,
    PUBLISH: _message,
    SUBSCRIBE: _subscribe,
    UNSUBSCRIBE: _unsubscribe,
    PUBACK: lambda packet: Acknowledged(_number(packet.variable_header.packet_id)),
    PUBREL: lambda packet: Released(_number(packet.variable_header.packet_id)),
    PINGREQ: lambda packet: Ping(),
    DISCONNECT: lambda packet: Disconnect(),
}


# What the gateway sends


def connack(code: str, is_known: bool = False) -> bytes:
    """CONNACK; ``is_known``: the session of an earlier connection goes on."""
    return bytes(ConnackPacket.build(int(is_known), CODES[code]).to_bytes())


def publish(message: Message) -> bytes:
    """PUBLISH."""
    number = message.packet_id or None
    what = message.topic, message.payload, number, message.is_again, message.qos, message.is_retained
    return bytes(PublishPacket.build(*what).to_bytes())


def puback(packet_id: int) -> bytes:
    """PUBACK."""
    return bytes(PubackPacket.build(packet_id).to_bytes())


def pubrec(packet_id: int) -> bytes:
    """PUBREC."""
    return bytes(PubrecPacket.build(packet_id).to_bytes())


def pubcomp(packet_id: int) -> bytes:
    """PUBCOMP."""
    return bytes(PubcompPacket.build(packet_id).to_bytes())


def suback(packet_id: int, granted: list[int]) -> bytes:
    """SUBACK."""
    return bytes(SubackPacket.build(packet_id, granted).to_bytes())


def unsuback(packet_id: int) -> bytes:
    """UNSUBACK."""
    return bytes(UnsubackPacket.build(packet_id).to_bytes())


def pingresp() -> bytes:
    """PINGRESP."""
    return bytes(PingRespPacket.build().to_bytes())
