"""Cuts the bytes of a client's connection into packets, and finds out which version of MQTT it speaks. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from protocols.pubsub.front.mqtt import version4, version5
from protocols.pubsub.front.mqtt.packets import (
    PACKET_BYTES_MAX,
    Connect,
    Packet,
    PacketError,
    Reason,
    UnsupportedVersion,
)
from protocols.pubsub.front.mqtt.version4 import Version4
from protocols.pubsub.front.mqtt.version5 import Version5

Version: TypeAlias = Version4 | Version5
LENGTH_BYTES_MAX: Final = 4
_CONNECT: Final = 1


@dataclass(slots=True)
class PacketReader:
    """Makes packets of the bytes of a connection. ``version``: that of its first packet, CONNECT."""

    version: Version = field(default_factory=Version4)
    _bytes: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> list[Packet]:
        """Take bytes; return the packets that are whole now. Raises `PacketError`."""
        self._bytes += data
        packets = []
        while (frame := self._take()) is not None:
            packets.append(self._read(*frame))
        return packets

    def _read(self, first: int, body: bytes) -> Packet:
        if first >> 4 == _CONNECT:
            self.version = _version_of(body)
        packet = self.version.read(first, body)
        if isinstance(packet, Connect) and isinstance(self.version, Version5):
            self.version = Version5(packet.packet_max, packet.wants_reasons)
        return packet

    def _take(self) -> tuple[int, bytes] | None:
        """The first byte and the body of the next packet, if it is here as a whole (section 2.1)."""
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
            raise PacketError(f"a packet has {length} bytes, limit {PACKET_BYTES_MAX}", Reason.PacketTooLarge)
        if len(self._bytes) < used + length:
            return None
        first, body = self._bytes[0], bytes(self._bytes[used : used + length])
        del self._bytes[: used + length]
        return first, body


def _version_of(body: bytes) -> Version:
    """The version that CONNECT asks for (section 3.1.2.2). Raises `PacketError`."""
    size = int.from_bytes(body[:2], "big")
    name, level = body[2 : 2 + size], body[2 + size : 3 + size]
    if name not in (b"MQTT", b"MQIsdp") or not level:
        raise PacketError("this is not MQTT", Reason.UnsupportedProtocolVersion)
    if level[0] == version5.LEVEL and name == b"MQTT":
        return Version5()
    if level[0] == version4.LEVEL and name == b"MQTT":
        return Version4()
    known: Version = Version4() if level[0] < version4.LEVEL else Version5()
    why = "MQTT 3.1.1 and MQTT 5 are spoken here"
    raise UnsupportedVersion(level[0], known.refused(Reason.UnsupportedProtocolVersion, why))
