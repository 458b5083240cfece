"""Packets of MQTT 3.1.1 and 5: what clients send is read or refused, and they can read what the gateway writes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("ohmqtt", reason="the extra `mqtt` is not installed")

import ohmqtt
import ohmqtt.packet

from protocols.pubsub.front.mqtt.packets import (
    ALIASES_MAX,
    FOR_EVER_S,
    PACKET_BYTES_MAX,
    RECEIVE_MAX,
    Accepted,
    Acknowledged,
    Aliases,
    ApplicationMessage,
    Connect,
    Disconnect,
    PacketError,
    PingRequest,
    Properties,
    Reason,
    Released,
    Subscribe,
    Unsubscribe,
    UnsupportedVersion,
    Wanted,
)
from protocols.pubsub.front.mqtt.reader import PacketReader, Version
from protocols.pubsub.front.mqtt.version4 import Version4
from protocols.pubsub.front.mqtt.version5 import Version5

V4, V5 = Version4(), Version5()
SPOKEN = "MQTT 3.1.1 and MQTT 5 are spoken here"

CONNECT = bytes.fromhex("101000044d5154540402003c000461626364")
SUBSCRIBE = bytes.fromhex("820800050003612f2301")


def test_packets_are_read_in_whatever_pieces_they_come() -> None:
    reader = PacketReader()
    bytes_ = (
        CONNECT + SUBSCRIBE + V4.publish(ApplicationMessage("a", b"hi", 1, packet_id=9)) + b"\xc0\x00\x40\x02\x00\x07"
    )
    found = [packet for byte in bytes_ for packet in reader.feed(bytes([byte]))]
    assert found == [
        Connect("abcd", True, 60),
        Subscribe(5, (Wanted("a/#", 1),)),
        ApplicationMessage("a", b"hi", 1, packet_id=9),
        PingRequest(),
        Acknowledged(7),
    ]
    assert PacketReader().feed(bytes.fromhex("a2070006 0003 612f23")) == [Unsubscribe(6, ("a/#",))]


def test_connect_with_a_will() -> None:
    body = b"\x00\x04MQTT\x04\xee\x00\x0a" + b"\x00\x01c\x00\x01w\x00\x02\xff\x00\x00\x01u\x00\x01p"
    found = PacketReader().feed(bytes([0x10, len(body)]) + body)
    assert found == [
        Connect("c", True, 10, ApplicationMessage("w", b"\xff\x00", 1, True), user_name="u", password=b"p")
    ]


@pytest.mark.parametrize(
    "hexadecimal",
    [
        "c100",  # a ping with flags
        "2002 0000",  # what only servers send
        "8008 0005 0003 612f23 01",  # SUBSCRIBE without its flags
        "8208 0000 0003 612f23 01",  # with the identifier 0
        "8208 0005 0003 612f23 03",  # quality of service 3
        "8202 0005",  # no topic filter
        "8209 0005 0003 612f23 01 00",  # and a byte more
        "8207 0005 0001 ff 01 00",  # text that is not UTF-8
        "3004 0002 61ff",
        "3001 00",
        "3604 0001 61 00",
        "4001 00",
        "10ffffffffff01",
        "30ffffff7f",  # a packet of 256 MiB
        "1004 0004 4d51",
    ],
)
def test_packets_that_the_standard_forbids_are_errors(hexadecimal: str) -> None:
    with pytest.raises(PacketError):
        PacketReader().feed(bytes.fromhex(hexadecimal))


@pytest.mark.parametrize(
    ("level", "answer"), [(3, b"\x20\x02\x00\x01"), (6, V5.refused(Reason.UnsupportedProtocolVersion, SPOKEN))]
)
def test_other_versions_are_told_so(level: int, answer: bytes) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        PacketReader().feed(CONNECT[:8] + bytes([level]) + CONNECT[9:])
    assert caught.value.answer == answer


@given(st.binary(max_size=60))
def test_any_bytes_are_packets_or_an_error(data: bytes) -> None:
    versions: tuple[Version, ...] = (V4, V5)
    for start, version in itertools.product((b"", b"\x10", b"\x30", b"\x32", b"\x82", b"\xe0"), versions):
        try:
            PacketReader(version).feed(start + data)
        except PacketError as error:
            assert str(error)


# MQTT 5

CONNECT_5 = ohmqtt.MQTTConnectPacket(
    "me",
    60,
    will_topic="w",
    will_payload=b"x",
    will_qos=1,
    will_props=ohmqtt.MQTTWillProps(WillDelayInterval=5, UserProperty=[("a", "b")]),
    properties=ohmqtt.MQTTConnectProps(
        SessionExpiryInterval=7, ReceiveMaximum=3, MaximumPacketSize=100, RequestProblemInformation=False
    ),
    username="u",
    password=b"p",
).encode()


def test_connect_of_mqtt_5() -> None:
    reader = PacketReader()
    [found] = reader.feed(CONNECT_5)
    will = ApplicationMessage("w", b"x", 1, properties=Properties(user=(("a", "b"),)))
    assert found == Connect("me", False, 60, will, 7, 5, 3, 100, False, user_name="u", password=b"p")
    assert reader.version == Version5(100, False)


def test_connect_of_mqtt_3_keeps_a_session_for_ever_or_not_at_all() -> None:
    assert PacketReader().feed(CONNECT)[0] == Connect("abcd", True, 60, expires_s=0)
    kept = CONNECT[:9] + b"\x00" + CONNECT[10:]
    assert PacketReader().feed(kept)[0] == Connect("abcd", False, 60, expires_s=FOR_EVER_S)


texts = st.text(max_size=8).map(lambda text: text.replace("\0", ""))
properties = st.builds(
    Properties,
    st.booleans(),
    st.none() | st.integers(0, 0xFFFF_FFFF),
    texts,
    texts.map(lambda text: text.replace("+", "").replace("#", "")),
    st.none() | st.binary(max_size=9),
    st.lists(st.tuples(texts, texts), max_size=4).map(tuple),
)
topics = st.text("ab/$é", min_size=1, max_size=300)


@given(
    topics,
    st.binary(max_size=300),
    st.integers(0, 2),
    st.booleans(),
    st.integers(1, 65_535),
    st.booleans(),
    properties,
)
def test_a_message_is_read_as_it_was_written(
    topic: str, payload: bytes, qos: int, is_retained: bool, number: int, is_again: bool, said: Properties
) -> None:
    number = number if qos else 0
    message = ApplicationMessage(topic, payload, qos, is_retained, number, is_again and bool(qos), said)
    assert PacketReader(V5).feed(V5.publish(message)) == [message]
    assert PacketReader(V4).feed(V4.publish(message)) == [
        ApplicationMessage(topic, payload, qos, is_retained, number, is_again and bool(qos))
    ]


def test_packets_of_mqtt_5() -> None:
    subscribe = ohmqtt.MQTTSubscribePacket(
        [("a/#", 0b10_1101), ("b", 0)], 5, properties=ohmqtt.MQTTSubscribeProps(SubscriptionIdentifier={9})
    )
    data = (
        subscribe.encode()
        + ohmqtt.MQTTUnsubscribePacket(["a/#"], 6).encode()
        + ohmqtt.MQTTPubAckPacket(7).encode()
        + ohmqtt.MQTTPubRelPacket(8).encode()
        + ohmqtt.MQTTPingReqPacket().encode()
        + ohmqtt.MQTTDisconnectPacket(
            Reason.DisconnectWithWillMessage, properties=ohmqtt.MQTTDisconnectProps(SessionExpiryInterval=0)
        ).encode()
        + ohmqtt.MQTTDisconnectPacket().encode()
    )
    assert PacketReader(V5).feed(data) == [
        Subscribe(5, (Wanted("a/#", 1, True, True, 2), Wanted("b", 0)), 9),
        Unsubscribe(6, ("a/#",)),
        Acknowledged(7),
        Released(8),
        PingRequest(),
        Disconnect(True, 0),
        Disconnect(),
    ]


def connect_with_flags(flags: int) -> bytes:
    body = b"\0\4MQTT\5" + bytes([flags]) + b"\0\0" + b"\0" + b"\0\0"
    return bytes([0x10, len(body)]) + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (connect_with_flags(0x01), Reason.MalformedPacket),
        (connect_with_flags(0x08), Reason.MalformedPacket),  # a quality of service for no will
        (connect_with_flags(0x20), Reason.MalformedPacket),  # no will, but a retained one
        (connect_with_flags(0x04), Reason.MalformedPacket),  # a will that is not there
        (b"\x82\x09\0\5\0\0\3a/#\x30", Reason.ProtocolError),  # retain handling 3
        (b"\x82\x09\0\5\0\0\3a/#\xc0", Reason.MalformedPacket),  # reserved bits
        (b"\x82\x09\0\5\0\0\3a/#\x03", Reason.ProtocolError),
        (b"\x82\x0f\0\5\0\0\x09$share/g/\x04", Reason.ProtocolError),  # a shared one without local messages
        (b"\x82\x0d\0\5\4\x0b\1\x0b\2\0\3a/#\0", Reason.ProtocolError),  # two identifiers
        (b"\x30\x06\0\0\3\x23\0\0", Reason.TopicAliasInvalid),
        (b"\x30\x06\0\1a\2\x0b\1", Reason.ProtocolError),  # a subscription identifier from a client
        (b"\x30\x04\0\1\xff\0", Reason.MalformedPacket),
        (b"\x30\x04\0\1\0\0", Reason.MalformedPacket),
        (b"\x30\x08\0\1a\4\1\0\1\0", Reason.ProtocolError),  # a property twice
        (b"\x30\x05\0\1a\x7f\0", Reason.MalformedPacket),
        (b"\x32\x06\0\1a\0\0\0", Reason.ProtocolError),  # the identifier 0
        (b"\x40\x03\0\1\x77", Reason.MalformedPacket),  # no reason of PUBACK
        (b"\xf0\x02\x18\0", Reason.ProtocolError),  # AUTH
        (b"\x20\x03\0\0\0", Reason.ProtocolError),  # what only servers send
        (b"\x50\x02\0\1", Reason.ProtocolError),  # PUBREC: nothing is sent with quality of service 2
        (b"\x00\x00", Reason.MalformedPacket),
        (b"\x30\xff\xff\xff\x7f", Reason.PacketTooLarge),
    ],
)
def test_what_mqtt_5_forbids_is_named(data: bytes, reason: Reason) -> None:
    with pytest.raises(PacketError) as caught:
        PacketReader(V5).feed(data)
    assert caught.value.reason == reason


def test_damaged_packets_are_packets_or_an_error() -> None:
    source = random.Random(1)
    full = ApplicationMessage("a", b"x", 1, packet_id=3, properties=Properties(True, 4, "x", "r", b"z", (("a", "b"),)))
    samples = [CONNECT, CONNECT_5, SUBSCRIBE, V4.publish(full), V5.publish(full), b"\xe0\x07\x04\x05\x11\0\0\0\3"]
    outcomes = {True: 0, False: 0}
    for _ in range(20_000):
        data = bytearray(source.choice(samples))
        for _ in range(source.randint(1, 3)):
            data[source.randrange(len(data))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
        del data[source.randrange(len(data) // 2, len(data) + 1) :]
        try:
            PacketReader(source.choice((V4, V5))).feed(bytes(data))
            outcomes[True] += 1
        except PacketError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 1000


def read(data: bytes) -> Any:
    return ohmqtt.packet.decode_packet(data)


def test_connack_says_what_there_is() -> None:
    found = read(V5.accepted(Accepted(True, "peerd-1")))
    said = found.properties
    assert (found.reason_code, found.session_present) == (Reason.Success, True)
    assert (said.ReceiveMaximum, said.MaximumPacketSize, said.TopicAliasMaximum) == (
        RECEIVE_MAX,
        PACKET_BYTES_MAX,
        ALIASES_MAX,
    )
    assert said.MaximumQoS is None  # which means 2
    assert said.WildcardSubscriptionAvailable and said.SharedSubscriptionAvailable
    assert said.SubscriptionIdentifierAvailable and said.RetainAvailable
    assert said.AssignedClientIdentifier == "peerd-1"
    assert V4.accepted(Accepted(True, "peerd-1")) == b"\x20\x02\x01\x00"


@pytest.mark.parametrize("reason", [Reason.QuotaExceeded, Reason.TopicNameInvalid])
def test_answers_name_reasons_in_mqtt_5_only(reason: Reason) -> None:
    for data in (V5.puback(3, reason, "why"), V5.pubrec(3, reason, "why")):
        assert (read(data).reason_code, read(data).properties.ReasonString) == (reason, "why")
    assert (V4.puback(3, reason, "why"), V4.pubrec(3, reason, "why")) == (b"\x40\2\0\3", b"\x50\2\0\3")
    assert read(V5.disconnect(reason, "why")).properties.ReasonString == "why"
    assert V4.disconnect(reason, "why") == b""


def test_a_list_of_reasons() -> None:
    reasons = [Reason.GrantedQoS1, Reason.Success, Reason.TopicFilterInvalid]
    assert read(V5.suback(3, reasons)).reason_codes == reasons
    assert V4.suback(3, reasons) == b"\x90\5\0\3\1\0\x80"
    gone = [Reason.Success, Reason.NoSubscriptionExisted]
    assert read(V5.unsuback(3, gone)).reason_codes == gone
    assert V4.unsuback(3, gone) == b"\xb0\2\0\3"


@pytest.mark.parametrize("version", [Version5(30), Version5(wants_reasons=False)])
def test_texts_that_the_client_does_not_want_are_left_out(version: Version5) -> None:
    assert read(version.disconnect(Reason.ServerBusy, "a long reason for this" * 2)).properties.ReasonString is None


def test_texts_are_short_and_printable() -> None:
    text = read(V5.refused(Reason.ServerBusy, "a\n\0\ud800" + "x" * 70_000)).properties.ReasonString
    assert text.startswith("a   x")
    assert len(text) <= 200


def test_a_topic_gets_a_number_and_is_named_by_it() -> None:
    aliases = Aliases()
    assert aliases.topic_of(ApplicationMessage("a/b", b"", alias=ALIASES_MAX)) == "a/b"
    assert aliases.topic_of(ApplicationMessage("", b"", alias=ALIASES_MAX)) == "a/b"
    assert aliases.topic_of(ApplicationMessage("c", b"", alias=ALIASES_MAX)) == "c"
    assert aliases.topic_of(ApplicationMessage("", b"", alias=ALIASES_MAX)) == "c"
    for wrong, reason in ((0, Reason.ProtocolError), (1, Reason.ProtocolError), (65, Reason.TopicAliasInvalid)):
        with pytest.raises(PacketError) as caught:
            aliases.topic_of(ApplicationMessage("", b"", alias=wrong))
        assert caught.value.reason == reason
