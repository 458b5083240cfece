"""Packets of MQTT 3.1.1, whose protocol level is 4: those of MQTT 5 without properties and reason codes. Pure.

So a packet of a client is read as one of MQTT 5 whose properties are empty. What is written is short enough to be
written here. Section numbers are those of the MQTT 3.1.1 standard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from protocols.pubsub.front.mqtt.packets import (
    FOR_EVER_S,
    NO_LIMIT,
    Accepted,
    ApplicationMessage,
    Connect,
    Packet,
    PacketError,
    Reason,
    Subscribe,
    Wanted,
)
from protocols.pubsub.front.mqtt.version5 import Version5

LEVEL: Final = 4
REFUSED: Final = 0x80
"""What SUBACK says of a topic filter that was not taken."""
CODES: Final[Mapping[Reason, int]] = {
    Reason.UnsupportedProtocolVersion: 1,
    Reason.ClientIdentifierNotValid: 2,
    Reason.BadAuthenticationMethod: 5,
}
"""Return codes of CONNACK (table 3.1)."""
UNAVAILABLE: Final = 3
CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = 1, *range(3, 12)
PINGREQ, PINGRESP, DISCONNECT = 12, 13, 14
NO_PROPERTIES: Final = b"\0"
_NUMBER_BYTES: Final = 2
_LEVEL_AT, _FLAGS_AT, _CLIENT_ID_AT = 6, 7, 10
"""Where CONNECT has the protocol's level, its flags, and the client's identifier."""
_WILL_FLAG, _PASSWORD_FLAG, _USER_NAME_FLAG = 0x04, 0x40, 0x80
_LENGTHS: Final = {PUBACK: 2, PUBREL: 2, PINGREQ: 0, DISCONNECT: 0}
"""How long packets are that have always the same length."""


class Version4:
    """How MQTT 3.1.1 reads and writes packets. Those that this version does not have are no bytes at all."""

    receive_max: ClassVar[int] = 65_535
    packet_max: int = NO_LIMIT

    def read(self, first: int, body: bytes) -> Packet:
        """See `Version5.read`."""
        packet = Version5().read(first, _with_properties(first, body))
        if isinstance(packet, Connect):
            return replace(packet, expires_s=0 if packet.is_clean else FOR_EVER_S)
        if isinstance(packet, Subscribe) and any(wanted != Wanted(*_plain(wanted)) for wanted in packet.wanted):
            raise PacketError("SUBSCRIBE has options that MQTT 3.1.1 does not have")
        return packet

    def accepted(self, answer: Accepted) -> bytes:
        """See `Version5.accepted`."""
        return _packet(CONNECT + 1, bytes((answer.is_known, 0)))

    def refused(self, reason: Reason, why: str) -> bytes:
        """See `Version5.refused`."""
        return _packet(CONNECT + 1, bytes((0, CODES.get(reason, UNAVAILABLE))))

    def publish(self, message: ApplicationMessage) -> bytes:
        """See `Version5.publish`."""
        topic = message.topic.encode()
        number = _number(message.packet_id) if message.qos else b""
        flags = message.is_again << 3 | message.qos << 1 | message.is_retained
        return _packet(PUBLISH, _number(len(topic)) + topic + number + message.payload, flags)

    def puback(self, packet_id: int, reason: Reason = Reason.Success, why: str = "") -> bytes:
        """See `Version5.puback`: a message that was refused is acknowledged, because there is no way to refuse it."""
        return _packet(PUBACK, _number(packet_id))

    def pubrec(self, packet_id: int, reason: Reason = Reason.Success, why: str = "") -> bytes:
        """See `Version5.pubrec`, and `puback`."""
        return _packet(PUBREC, _number(packet_id))

    def pubcomp(self, packet_id: int, reason: Reason = Reason.Success) -> bytes:
        """See `Version5.pubcomp`."""
        return _packet(PUBCOMP, _number(packet_id))

    def suback(self, packet_id: int, reasons: Sequence[Reason], why: str = "") -> bytes:
        """See `Version5.suback`."""
        return _packet(SUBACK, _number(packet_id) + bytes(min(reason, REFUSED) for reason in reasons))

    def unsuback(self, packet_id: int, reasons: Sequence[Reason]) -> bytes:
        """See `Version5.unsuback`."""
        return _packet(UNSUBACK, _number(packet_id))

    def pingresp(self) -> bytes:
        """See `Version5.pingresp`."""
        return _packet(PINGRESP)

    def disconnect(self, reason: Reason, why: str = "") -> bytes:
        """See `Version5.disconnect`: the connection is closed without a word."""
        return b""


def _with_properties(first: int, body: bytes) -> bytes:
    """The body of a packet with empty properties where MQTT 5 has them. Raises `PacketError`."""
    kind = first >> 4
    if kind in _LENGTHS and len(body) != _LENGTHS[kind]:
        raise PacketError(f"a packet of type {kind} has {_LENGTHS[kind]} bytes, not {len(body)}")
    if kind == CONNECT:
        return _connect_with_properties(body)
    if kind == PUBLISH:
        return _insert(body, _behind_text(body, 0) + (_NUMBER_BYTES if first & 0x06 else 0))
    if kind in (SUBSCRIBE, UNSUBSCRIBE):
        return _insert(body, _NUMBER_BYTES)
    return body


def _connect_with_properties(body: bytes) -> bytes:
    if len(body) < _CLIENT_ID_AT:
        raise PacketError("CONNECT ends too soon")
    flags = body[_FLAGS_AT]
    if flags & _PASSWORD_FLAG and not flags & _USER_NAME_FLAG:
        raise PacketError("CONNECT has a password without a user name")
    if flags & _WILL_FLAG:
        body = _insert(body, _behind_text(body, _CLIENT_ID_AT))
    return body[:_LEVEL_AT] + b"\5" + _insert(body, _CLIENT_ID_AT)[_FLAGS_AT:]


def _insert(body: bytes, at: int) -> bytes:
    """Insert empty properties. Where the body is too short for that, the packet is malformed in MQTT 5 as well."""
    return body[:at] + NO_PROPERTIES + body[at:] if at <= len(body) else body


def _behind_text(body: bytes, at: int) -> int:
    return at + _NUMBER_BYTES + int.from_bytes(body[at : at + _NUMBER_BYTES], "big")


def _plain(wanted: Wanted) -> tuple[str, int]:
    return wanted.topic_filter, wanted.qos


def _number(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")


def _packet(kind: int, body: bytes = b"", flags: int = 0) -> bytes:
    """A packet with its fixed header (section 2.2)."""
    length, rest = bytearray(), len(body)
    while True:
        rest, digit = rest >> 7, rest & 0x7F
        length.append(digit | (0x80 if rest else 0))
        if not rest:
            return bytes((kind << 4 | flags, *length)) + body
