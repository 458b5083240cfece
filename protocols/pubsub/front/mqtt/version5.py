"""Packets of MQTT 5, read from bytes and written, with the packet classes of the library ohmqtt. Pure.

The library checks what the standard asks of each field alone: lengths, UTF-8, ranges, reason codes, which properties a
packet may have and how often. What concerns several fields is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import ohmqtt
from ohmqtt import MQTTError, MQTTPacket
from ohmqtt.packet import decode_packet_from_parts

from protocols.pubsub.front.mqtt.packets import (
    ALIASES_MAX,
    IN_FLIGHT_DEFAULT,
    NO_LIMIT,
    PACKET_BYTES_MAX,
    REASON_TEXT_MAX,
    RECEIVE_MAX,
    Accepted,
    Acknowledged,
    ApplicationMessage,
    Connect,
    Disconnect,
    Packet,
    PacketError,
    PingRequest,
    Properties,
    Reason,
    Released,
    Subscribe,
    Unsubscribe,
    Wanted,
)
from protocols.pubsub.front.mqtt.topics import SHARED

LEVEL: Final = 5
_WILL_FLAG, _WILL_BITS = 0x04, 0x38
_FLAGS_AT: Final = 7
"""Where the flags of CONNECT are, behind the protocol's name and level."""


@dataclass(frozen=True, slots=True)
class Version5:
    """How MQTT 5 reads and writes packets."""

    receive_max: ClassVar[int] = RECEIVE_MAX
    """How many messages of quality of service 1 and 2 a client may have under way to the gateway."""
    packet_max: int = NO_LIMIT
    """The largest packet that the client takes."""
    wants_reasons: bool = True

    def read(self, first: int, body: bytes) -> Packet:
        """A packet of a client: its first byte, and what follows its length. Raises `PacketError`."""
        try:
            packet = decode_packet_from_parts(first, memoryview(body))
        except MQTTError as error:
            reason = Reason(error.reason_code)
            raise PacketError(
                f"a packet of type {first >> 4} is not as MQTT 5 has it: {reason.name}", reason
            ) from error
        except (ValueError, IndexError) as error:
            raise PacketError(f"a packet of type {first >> 4} cannot be read") from error
        read = _READERS.get(type(packet))
        if read is None:
            raise PacketError(f"no client sends a packet of type {first >> 4} here", Reason.ProtocolError)
        found = read(packet)
        if isinstance(found, Connect):
            _check_will(body[_FLAGS_AT])
        return found

    def accepted(self, answer: Accepted) -> bytes:
        """CONNACK for a client that may stay."""
        properties: dict[str, Any] = {
            "ReceiveMaximum": RECEIVE_MAX,
            "MaximumPacketSize": PACKET_BYTES_MAX,
            "TopicAliasMaximum": ALIASES_MAX,
            "RetainAvailable": True,
            "WildcardSubscriptionAvailable": True,
            "SubscriptionIdentifierAvailable": True,
            "SharedSubscriptionAvailable": True,
        }
        if answer.expires_s is not None:
            properties["SessionExpiryInterval"] = answer.expires_s
        if answer.client_id:
            properties["AssignedClientIdentifier"] = answer.client_id
        made = ohmqtt.MQTTConnAckProps(**properties)
        return _bytes(ohmqtt.MQTTConnAckPacket(Reason.Success, answer.is_known, properties=made))

    def refused(self, reason: Reason, why: str) -> bytes:
        """CONNACK for one that may not."""
        return self._with_text(ohmqtt.MQTTConnAckPacket(reason), why)

    def publish(self, message: ApplicationMessage) -> bytes:
        """PUBLISH."""
        return _bytes(
            ohmqtt.MQTTPublishPacket(
                message.topic,
                message.payload,
                qos=ohmqtt.MQTTQoS(message.qos),
                retain=message.is_retained,
                packet_id=message.packet_id,
                properties=_published(message),
                dup=message.is_again,
            )
        )

    def puback(self, packet_id: int, reason: Reason = Reason.Success, why: str = "") -> bytes:
        """PUBACK."""
        return self._with_text(ohmqtt.MQTTPubAckPacket(packet_id, reason), why)

    def pubrec(self, packet_id: int, reason: Reason = Reason.Success, why: str = "") -> bytes:
        """PUBREC."""
        return self._with_text(ohmqtt.MQTTPubRecPacket(packet_id, reason), why)

    def pubcomp(self, packet_id: int, reason: Reason = Reason.Success) -> bytes:
        """PUBCOMP."""
        return _bytes(ohmqtt.MQTTPubCompPacket(packet_id, reason))

    def suback(self, packet_id: int, reasons: Sequence[Reason], why: str = "") -> bytes:
        """SUBACK."""
        return self._with_text(ohmqtt.MQTTSubAckPacket(packet_id, reasons), why)

    def unsuback(self, packet_id: int, reasons: Sequence[Reason]) -> bytes:
        """UNSUBACK."""
        return _bytes(ohmqtt.MQTTUnsubAckPacket(packet_id, reasons))

    def pingresp(self) -> bytes:
        """PINGRESP."""
        return _bytes(ohmqtt.MQTTPingRespPacket())

    def disconnect(self, reason: Reason, why: str = "") -> bytes:
        """DISCONNECT by the gateway."""
        return self._with_text(ohmqtt.MQTTDisconnectPacket(reason), why)

    def _with_text(self, packet: Any, why: str) -> bytes:
        """Write a packet, with a text that says why if the client wants it and there is room for it."""
        bare = _bytes(packet)
        if not (why and self.wants_reasons):
            return bare
        text = "".join(character if character.isprintable() else " " for character in why[:REASON_TEXT_MAX])
        packet.properties = packet.props_type(ReasonString=text.encode(errors="replace").decode())
        full = _bytes(packet)
        return full if len(full) <= self.packet_max else bare


def _bytes(packet: MQTTPacket) -> bytes:
    return bytes(packet.encode())


def _published(message: ApplicationMessage) -> ohmqtt.MQTTPublishProps:
    said = message.properties
    found: dict[str, Any] = {
        "PayloadFormatIndicator": 1 if said.is_text else None,
        "MessageExpiryInterval": said.expiry_s,
        "ContentType": said.content_type or None,
        "ResponseTopic": said.response_topic or None,
        "CorrelationData": said.correlation,
        "SubscriptionIdentifier": {message.subscription_id} if message.subscription_id else None,
        "UserProperty": said.user or None,
    }
    return ohmqtt.MQTTPublishProps(**{name: value for name, value in found.items() if value is not None})


# What clients send


def _check_will(flags: int) -> None:
    """The flags of CONNECT about a will (section 3.1.2.5 and the next two)."""
    if (not flags & _WILL_FLAG and flags & _WILL_BITS) or (flags >> 3) & 3 == 3:
        raise PacketError("CONNECT has flags that are not allowed")


def _connect(packet: ohmqtt.MQTTConnectPacket) -> Connect:
    said, will = packet.properties, None
    if packet.will_topic:
        about = _properties(packet.will_props)
        will = ApplicationMessage(
            packet.will_topic, packet.will_payload, packet.will_qos, packet.will_retain, properties=about
        )
    return Connect(
        packet.client_id,
        packet.clean_start,
        packet.keep_alive,
        will,
        expires_s=said.SessionExpiryInterval or 0,
        will_delay_s=packet.will_props.WillDelayInterval or 0,
        receive_max=said.ReceiveMaximum or IN_FLIGHT_DEFAULT,
        packet_max=said.MaximumPacketSize or NO_LIMIT,
        wants_reasons=said.RequestProblemInformation is not False,
        authentication=said.AuthenticationMethod or "",
        user_name=packet.username or "",
        password=packet.password or b"",
    )


def _properties(said: Any) -> Properties:
    return Properties(
        is_text=bool(said.PayloadFormatIndicator),
        expiry_s=said.MessageExpiryInterval,
        content_type=said.ContentType or "",
        response_topic=said.ResponseTopic or "",
        correlation=said.CorrelationData,
        user=tuple(said.UserProperty or ()),
    )


def _message(packet: ohmqtt.MQTTPublishPacket) -> ApplicationMessage:
    said = packet.properties
    if said.SubscriptionIdentifier:
        raise PacketError("only servers send subscription identifiers with a message", Reason.ProtocolError)
    if said.TopicAlias == 0:
        raise PacketError("a topic alias is not 0", Reason.TopicAliasInvalid)
    return ApplicationMessage(
        packet.topic,
        packet.payload,
        int(packet.qos),
        packet.retain,
        packet.packet_id,
        packet.dup,
        _properties(said),
        alias=said.TopicAlias or 0,
    )


def _subscribe(packet: ohmqtt.MQTTSubscribePacket) -> Subscribe:
    numbers = packet.properties.SubscriptionIdentifier or ()
    if len(numbers) > 1:
        raise PacketError("SUBSCRIBE has more than one subscription identifier", Reason.ProtocolError)
    return Subscribe(packet.packet_id, tuple(_wanted(*topic) for topic in packet.topics), max(numbers, default=0))


def _wanted(topic_filter: str, options: int) -> Wanted:
    wanted = Wanted(topic_filter, options & 3, bool(options & 4), bool(options & 8), options >> 4)
    if wanted.qos > 2 or wanted.retain_handling > 2:
        raise PacketError("SUBSCRIBE has options that are not allowed", Reason.ProtocolError)
    if wanted.no_local and topic_filter.startswith(SHARED):
        raise PacketError("a shared subscription cannot be without local messages", Reason.ProtocolError)
    return wanted


def _disconnect(packet: ohmqtt.MQTTDisconnectPacket) -> Disconnect:
    return Disconnect(packet.reason_code != Reason.Success, packet.properties.SessionExpiryInterval)


_READERS: Final[dict[type[MQTTPacket], Callable[[Any], Packet]]] = {
    ohmqtt.MQTTConnectPacket: _connect,
    ohmqtt.MQTTPublishPacket: _message,
    ohmqtt.MQTTSubscribePacket: _subscribe,
    ohmqtt.MQTTUnsubscribePacket: lambda packet: Unsubscribe(packet.packet_id, tuple(packet.topics)),
    ohmqtt.MQTTPubAckPacket: lambda packet: Acknowledged(packet.packet_id),
    ohmqtt.MQTTPubRelPacket: lambda packet: Released(packet.packet_id),
    ohmqtt.MQTTPingReqPacket: lambda packet: PingRequest(),
    ohmqtt.MQTTDisconnectPacket: _disconnect,
}
