"""Connections of MQTT 5 clients to a gateway before a daemon that is played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("ohmqtt", reason="the extra `mqtt` is not installed")

import ohmqtt

from peerd.errors import Unavailable
from protocols.pubsub.front.mqtt.mapping import key_of
from protocols.pubsub.front.mqtt.packets import (
    FOR_EVER_S,
    RECEIVE_MAX,
    ApplicationMessage,
    PacketOutcome,
    Properties,
    Reason,
)
from tests.support.mqtt_gateway import Caller, PlayedRing, gateway


def connect(client_id: str = "me", *, clean: bool = True, **properties: Any) -> bytes:
    said = ohmqtt.MQTTConnectProps(**properties)
    return bytes(ohmqtt.MQTTConnectPacket(client_id, 60, clean_start=clean, properties=said).encode())


def publish(topic: str = "a/b", qos: int = 1, packet_id: int = 9, **properties: Any) -> ohmqtt.MQTTPublishPacket:
    said = ohmqtt.MQTTPublishProps(**properties)
    number = packet_id if qos else 0
    return ohmqtt.MQTTPublishPacket(topic, b"x", qos=ohmqtt.MQTTQoS(qos), packet_id=number, properties=said)


def subscribe(*wanted: tuple[str, int], packet_id: int = 5, number: int = 0) -> ohmqtt.MQTTSubscribePacket:
    said = ohmqtt.MQTTSubscribeProps(SubscriptionIdentifier={number}) if number else ohmqtt.MQTTSubscribeProps()
    return ohmqtt.MQTTSubscribePacket(wanted, packet_id, properties=said)


async def greeted(call: Callable[[bytes], Any], data: bytes, *, is_known: bool = False) -> Caller:
    """A client that has connected."""
    caller: Caller = await call(data)
    answer = await caller.next()
    assert (answer.reason_code, answer.session_present) == (Reason.Success, is_known)
    return caller


async def disconnected(caller: Caller) -> Reason:
    """The reason with which the gateway closes a connection."""
    packet = await caller.next()
    assert isinstance(packet, ohmqtt.MQTTDisconnectPacket)
    return packet.reason_code


async def test_a_message_with_all_properties_comes_and_goes() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect())
        caller.send(
            publish(
                PayloadFormatIndicator=1,
                MessageExpiryInterval=60,
                ContentType="text/plain",
                ResponseTopic="r",
                CorrelationData=b"z",
                UserProperty=[("a", "1"), ("a", "2")],
            )
        )
        assert (await caller.next()).reason_code == Reason.Success
        caller.send(subscribe(("a/#", 2), number=7))
        assert (await caller.next()).reason_codes == [Reason.GrantedQoS1]
        said = Properties(True, 60, "text/plain", "r", b"z", (("a", "1"), ("a", "2")))
        assert ring.published == [ApplicationMessage("a/b", b"x", 1, packet_id=9, properties=said)]
        ring.coming.put_nowait(("1", ApplicationMessage("a/x", b"hi", 1, properties=said, subscription_id=7)))
        found = await caller.next()
        assert (found.topic, found.payload, found.packet_id) == ("a/x", b"hi", 1)
        assert found.properties.UserProperty == [("a", "1"), ("a", "2")]
        assert (found.properties.MessageExpiryInterval, found.properties.ContentType) == (60, "text/plain")
        assert (found.properties.ResponseTopic, found.properties.CorrelationData) == ("r", b"z")
        assert (found.properties.SubscriptionIdentifier, found.properties.PayloadFormatIndicator) == ({7}, 1)


async def test_a_client_without_a_name_gets_one() -> None:
    async with gateway(PlayedRing()) as call:
        caller = await call(connect(""))
        assert (await caller.next()).properties.AssignedClientIdentifier.startswith("peerd-")


async def test_a_refused_message_is_told_so() -> None:
    ring = PlayedRing()
    ring.verdict = PacketOutcome(Reason.PayloadFormatInvalid, "price is no number")
    async with gateway(ring) as call:
        caller = await greeted(call, connect())
        caller.send(publish(qos=1), publish(qos=2))
        for _ in range(2):
            answer = await caller.next()
            assert (answer.reason_code, answer.properties.ReasonString) == (
                Reason.PayloadFormatInvalid,
                "price is no number",
            )
        caller.send(ohmqtt.MQTTPubRelPacket(9))
        assert (await caller.next()).reason_code == Reason.PacketIdentifierNotFound


async def test_quality_of_service_2() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect())
        for _ in range(3 * RECEIVE_MAX):  # each is released before the next, so there is never more than one
            caller.send(publish(qos=2), publish(qos=2))
            assert [type(await caller.next()) for _ in range(2)] == [ohmqtt.MQTTPubRecPacket] * 2
            caller.send(ohmqtt.MQTTPubRelPacket(9))
            assert (await caller.next()).reason_code == Reason.Success
    assert len(ring.published) == 3 * RECEIVE_MAX


async def test_too_many_messages_at_a_time() -> None:
    async with gateway(PlayedRing()) as call:
        caller = await greeted(call, connect())
        caller.send(*(publish(qos=2, packet_id=number) for number in range(1, RECEIVE_MAX + 2)))
        packets = [await caller.next()]
        while not isinstance(packets[-1], ohmqtt.MQTTDisconnectPacket):
            packets.append(await caller.next())
        assert packets[-1].reason_code == Reason.ReceiveMaximumExceeded


async def test_topics_go_by_number() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect())
        caller.send(publish("a/b", 0, TopicAlias=3), publish("", 0, TopicAlias=3), publish("", 1, TopicAlias=3))
        await caller.next()
        assert [message.topic for message in ring.published] == ["a/b"] * 3
        caller.send(publish("", 1, TopicAlias=4))
        assert await disconnected(caller) == Reason.ProtocolError


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x30\x04\0\1\xff\0", Reason.MalformedPacket),
        (b"\x30\xff\xff\xff\x7f", Reason.PacketTooLarge),
        (b"\xf0\0", Reason.ProtocolError),
        (connect(), Reason.ProtocolError),
        (
            ohmqtt.MQTTDisconnectPacket(properties=ohmqtt.MQTTDisconnectProps(SessionExpiryInterval=9)).encode(),
            Reason.ProtocolError,
        ),
    ],
)
async def test_what_is_forbidden_is_named_before_the_connection_ends(data: bytes, reason: Reason) -> None:
    async with gateway(PlayedRing()) as call:
        caller = await greeted(call, connect())
        caller.writer.write(data)
        assert await disconnected(caller) == reason
        await caller.expect_end()


async def test_a_daemon_that_does_not_answer_is_told() -> None:
    ring = PlayedRing()
    ring.fails = Unavailable("the ring is away")
    async with gateway(ring) as call:
        caller = await greeted(call, connect())
        caller.send(publish())
        assert await disconnected(caller) == Reason.ServerBusy


async def test_clients_are_not_asked_who_they_are() -> None:
    async with gateway(PlayedRing()) as call:
        caller = await call(connect(AuthenticationMethod="SCRAM"))
        assert (await caller.next()).reason_code == Reason.BadAuthenticationMethod
        await caller.expect_end()


async def test_wrong_topic_filters_are_told_apart() -> None:
    async with gateway(PlayedRing()) as call:
        caller = await greeted(call, connect())
        caller.send(subscribe(("a#", 1), ("b", 0), ("$share/g", 1)))
        found = await caller.next()
        assert found.reason_codes == [Reason.TopicFilterInvalid, Reason.Success, Reason.TopicFilterInvalid]
        assert "is no topic filter" in found.properties.ReasonString
        caller.send(ohmqtt.MQTTUnsubscribePacket(["b", "c"], 6))
        assert (await caller.next()).reason_codes == [Reason.Success, Reason.NoSubscriptionExisted]


async def test_options_of_subscriptions() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect())
        caller.send(publish(qos=0), subscribe(("a", 0x05), ("b", 0x29)), publish(qos=1))
        assert isinstance(await caller.next(), ohmqtt.MQTTSubAckPacket)
        await caller.next()
        assert ring.senders == ["", key_of("me")]  # it says who it is once it has a subscription that needs it
        assert [(held.no_local, held.as_published, held.wants_retained) for held in ring.opened] == [
            (True, False, True),
            (False, True, False),
        ]


async def test_a_message_that_is_too_large_for_a_client_counts_as_delivered() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect(MaximumPacketSize=60, ReceiveMaximum=1))
        caller.send(subscribe(("a", 1)))
        await caller.next()
        ring.coming.put_nowait(("1", ApplicationMessage("a", b"x" * 60, 1)))
        ring.coming.put_nowait(("2", ApplicationMessage("a", b"y", 1)))
        ring.coming.put_nowait(("3", ApplicationMessage("a", b"z", 1)))
        assert (await caller.next()).payload == b"y"
        caller.send(ohmqtt.MQTTPingReqPacket())
        assert isinstance(await caller.next(), ohmqtt.MQTTPingRespPacket)  # and not z: it takes one at a time
        caller.send(ohmqtt.MQTTPubAckPacket(1))
        assert (await caller.next()).payload == b"z"
        [held] = ring.opened
        assert held.position == "2"


# Sessions


async def test_a_session_is_resumed_until_its_client_ends_it() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect(SessionExpiryInterval=1000))
        caller.send(subscribe(("a", 1)), ohmqtt.MQTTDisconnectPacket())
        await caller.next()
        await caller.expect_end()
        assert ring.ended == []
        caller = await greeted(call, connect(clean=False, SessionExpiryInterval=1000), is_known=True)
        goodbye = ohmqtt.MQTTDisconnectProps(SessionExpiryInterval=0)
        caller.send(ohmqtt.MQTTDisconnectPacket(properties=goodbye))
        await caller.expect_end()
        await greeted(call, connect(clean=False))
        assert ring.ended == ["a"]


async def test_a_session_ends_when_its_time_is_over() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect(SessionExpiryInterval=1))
        caller.send(subscribe(("a", 1)), ohmqtt.MQTTDisconnectPacket())
        await caller.next()
        await caller.expect_end()
        await ring.until(lambda: ring.ended == ["a"])
        await greeted(call, connect(clean=False))


async def test_a_session_of_mqtt_3_goes_on_in_mqtt_5() -> None:
    durable = bytes.fromhex("101000044d5154540400003c000461626364")
    async with gateway(PlayedRing()) as call:
        caller = await call(durable + b"\xe0\0")
        await caller.expect(b"\x20\x02\0\0")
        await caller.expect_end()
        await greeted(call, connect("abcd", clean=False, SessionExpiryInterval=FOR_EVER_S), is_known=True)


async def test_a_second_connection_is_told_to_the_first() -> None:
    async with gateway(PlayedRing()) as call:
        first = await greeted(call, connect())
        await greeted(call, connect())
        assert await disconnected(first) == Reason.SessionTakenOver


# Wills


def connect_with_will(delay_s: int, expires_s: int, *, clean: bool = True) -> bytes:
    packet = ohmqtt.MQTTConnectPacket(
        "me",
        60,
        clean_start=clean,
        will_topic="w",
        will_payload=b"x",
        will_props=ohmqtt.MQTTWillProps(WillDelayInterval=delay_s, ContentType="text/plain"),
        properties=ohmqtt.MQTTConnectProps(SessionExpiryInterval=expires_s),
    )
    return bytes(packet.encode())


GOODBYE = ohmqtt.MQTTDisconnectPacket()
WITH_WILL = ohmqtt.MQTTDisconnectPacket(Reason.DisconnectWithWillMessage)
WILL = ApplicationMessage("w", b"x", properties=Properties(content_type="text/plain"))


@pytest.mark.parametrize(("goodbye", "wills"), [(GOODBYE, 0), (WITH_WILL, 1)])
async def test_a_goodbye_may_ask_for_the_will(goodbye: ohmqtt.MQTTDisconnectPacket, wills: int) -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect_with_will(0, 0))
        caller.send(goodbye)
        await caller.expect_end()
    assert ring.published == [WILL] * wills


@pytest.mark.parametrize(("delay_s", "expires_s"), [(1, 1000), (1000, 1)])
async def test_a_will_waits_for_its_delay_or_the_end_of_the_session(delay_s: int, expires_s: int) -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect_with_will(delay_s, expires_s))
        caller.writer.write_eof()
        await caller.expect_end()
        assert ring.published == []
        await ring.until(lambda: ring.published == [WILL])


@pytest.mark.parametrize(("clean", "wills"), [(False, 0), (True, 1)])
async def test_a_client_that_comes_back_in_time_has_no_will(clean: bool, wills: int) -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect_with_will(1000, 1000))
        caller.writer.write_eof()
        await caller.expect_end()
        await greeted(call, connect(clean=clean, SessionExpiryInterval=1000), is_known=not clean)
        assert ring.published == [WILL] * wills


async def test_wills_that_wait_are_published_when_the_gateway_stops() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await greeted(call, connect_with_will(1000, 1000))
        caller.writer.write_eof()
        await caller.expect_end()
    assert ring.published == [WILL]
