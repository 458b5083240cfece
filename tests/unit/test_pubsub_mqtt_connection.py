"""Connections of MQTT clients to a gateway before a daemon that is played: MQTT 3.1.1, and what both versions share."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("ohmqtt", reason="the extra `mqtt` is not installed")

from peerd.errors import Unavailable
from protocols.pubsub.front.mqtt.connection import Connection
from protocols.pubsub.front.mqtt.gateway import Gateway, Notices
from protocols.pubsub.front.mqtt.packets import ApplicationMessage, Connect, PacketOutcome, Reason
from protocols.pubsub.front.mqtt.ring import RingAccess
from protocols.pubsub.front.mqtt.session import IN_FLIGHT_MAX, SUBSCRIPTIONS_MAX, GatewaySettings, Session
from protocols.pubsub.front.mqtt.users import NOBODY
from protocols.pubsub.front.mqtt.version4 import Version4
from tests.support.mqtt_gateway import PlayedRing, gateway

V4 = Version4()
GRANTED = Reason.GrantedQoS1
CONNECT = bytes.fromhex("101000044d5154540402003c000461626364")
SUBSCRIBE = bytes.fromhex("820800050003612f2301")
DURABLE = CONNECT[:9] + b"\x00" + CONNECT[10:]
DISCONNECT = b"\xe0\x00"
ACCEPTED = b"\x20\x02\x00\x00"


def qos(level: int, packet_id: int = 9, payload: bytes = b"x") -> bytes:
    return V4.publish(ApplicationMessage("a/b", payload, level, packet_id=packet_id if level else 0))


async def test_publishing_is_acknowledged_by_its_quality_of_service() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await call(CONNECT + qos(0) + qos(1) + b"\xc0\x00")
        await caller.expect(ACCEPTED)
        answers = await caller.reader.readexactly(6)  # in any order: reading and working are two tasks
        assert answers in (b"\xd0\x00\x40\x02\x00\x09", b"\x40\x02\x00\x09\xd0\x00")
        caller.writer.write(qos(2, 4) + qos(2, 4))
        await caller.expect(V4.pubrec(4) * 2)
        caller.writer.write(b"\x62\x02\x00\x04")
        await caller.expect(V4.pubcomp(4))
        caller.writer.write(DISCONNECT)
        await caller.expect_end()
    assert [message.qos for message in ring.published] == [0, 1, 2]


async def test_what_was_sent_before_disconnect_is_published() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await call(CONNECT + qos(0) * 100 + DISCONNECT)
        await caller.expect(ACCEPTED)
        await caller.expect_end()
    assert len(ring.published) == 100


async def test_a_message_whose_outcome_is_unknown_is_not_acknowledged() -> None:
    ring = PlayedRing()
    ring.fails = Unavailable("the ring is away")
    async with gateway(ring) as call:
        caller = await call(CONNECT + qos(1))
        await caller.expect(ACCEPTED)
        await caller.expect_end()


async def test_subscribing_receiving_and_ending() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await call(CONNECT + SUBSCRIBE)
        await caller.expect(ACCEPTED + V4.suback(5, [GRANTED]))
        ring.coming.put_nowait(("1", ApplicationMessage("a/x", b"hi", 1)))
        await caller.expect(V4.publish(ApplicationMessage("a/x", b"hi", 1, packet_id=1)))
        caller.writer.write(b"\xa2\x07\x00\x06\x00\x03a/#")
        await caller.expect(V4.unsuback(6, []))
        assert ring.ended == ["a/#"]


async def test_a_client_that_acknowledges_nothing_is_sent_no_more_than_the_window() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await call(CONNECT + SUBSCRIBE)
        await caller.expect(ACCEPTED + V4.suback(5, [GRANTED]))
        for count in range(IN_FLIGHT_MAX + 1):
            ring.coming.put_nowait((str(count), ApplicationMessage("a/x", b"", 1)))
        for number in range(1, IN_FLIGHT_MAX + 1):
            await caller.expect(V4.publish(ApplicationMessage("a/x", b"", 1, packet_id=number)))
        caller.writer.write(b"\xc0\x00")
        await caller.expect(V4.pingresp())  # and not the message that waits
        caller.writer.write(b"\x40\x02\x00\x01")
        await caller.expect(V4.publish(ApplicationMessage("a/x", b"", 1, packet_id=IN_FLIGHT_MAX + 1)))


async def test_wrong_and_too_many_topic_filters_are_refused() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        body = b"\x00\x05" + b"\x00\x02a#\x00" + b"".join(b"\x00\x02" + b"%02d" % n + b"\x02" for n in range(33))
        caller = await call(CONNECT + bytes([0x82, 0x80 | len(body) % 128, len(body) // 128]) + body)
        await caller.expect(
            ACCEPTED + V4.suback(5, [Reason.TopicFilterInvalid, *[GRANTED] * SUBSCRIPTIONS_MAX, Reason.QuotaExceeded])
        )


async def test_a_session_is_kept_and_resumed_and_forgotten(tmp_path: Path) -> None:
    state = tmp_path / "sessions.json"
    ring = PlayedRing()
    async with gateway(ring, state) as call:
        caller = await call(DURABLE + SUBSCRIBE)
        await caller.expect(ACCEPTED + V4.suback(5, [GRANTED]))
        ring.coming.put_nowait(("7", ApplicationMessage("a/x", b"", 1)))
        await caller.expect(V4.publish(ApplicationMessage("a/x", b"", 1, packet_id=1)))
        caller.writer.write(b"\x40\x02\x00\x01" + DISCONNECT)
        await caller.expect_end()
    assert ring.ended == []
    assert json.loads(state.read_text())["sessions"][0]["subscriptions"][0]["position"] == "7"
    async with gateway(ring, state) as call:
        caller = await call(DURABLE + DISCONNECT)
        await caller.expect(b"\x20\x02\x01\x00")
        await caller.expect_end()
        caller = await call(CONNECT + DISCONNECT)
        await caller.expect(ACCEPTED)
        await caller.expect_end()
    assert ring.ended == ["a/#"]
    assert json.loads(state.read_text())["sessions"] == []


async def test_a_second_connection_of_a_client_takes_the_place_of_the_first() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        first = await call(CONNECT)
        await first.expect(ACCEPTED)
        second = await call(CONNECT)
        await second.expect(ACCEPTED)
        with suppress(ConnectionError):
            await first.expect_end()


WILL = bytes.fromhex("1015 00044d515454 0406 003c 0003 6c7774 0001 77 0001 78".replace(" ", ""))


@pytest.mark.parametrize(("goodbye", "wills"), [(DISCONNECT, 0), (b"", 1), (b"\xf0\x00", 1)])
async def test_the_will_is_published_unless_the_client_says_goodbye(goodbye: bytes, wills: int) -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await call(WILL)
        await caller.expect(ACCEPTED)
        caller.writer.write(goodbye)
        caller.writer.write_eof()
        await caller.expect_end()
    assert ring.published == [ApplicationMessage("w", b"x")] * wills


async def test_a_durable_session_needs_a_name() -> None:
    async with gateway(PlayedRing()) as call:
        caller = await call(b"\x10\x0c" + DURABLE[2:12] + b"\x00\x00")
        await caller.expect(b"\x20\x02\x00\x02")
        await caller.expect_end()


async def test_clients_that_are_too_many_are_cut_off() -> None:
    async with gateway(PlayedRing(), clients=1) as call:
        first = await call(CONNECT)
        await first.expect(ACCEPTED)
        second = await call(b"")
        await second.expect_end()


async def test_other_versions_are_answered_and_closed() -> None:
    async with gateway(PlayedRing()) as call:
        caller = await call(CONNECT[:8] + b"\x03" + CONNECT[9:])
        await caller.expect(b"\x20\x02\x00\x01")
        await caller.expect_end()


class RefusedConnection:
    """A connection whose client was refused. To close it again would be the first turn of a loop without an end."""

    def __init__(self) -> None:
        self.session, self.uid, self.user = Session("", 0), None, NOBODY

    def close(self, reason: Reason) -> None:
        """Fails: it is over."""
        raise AssertionError("the connection is over")


async def test_a_client_that_was_refused_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocols.pubsub.front.mqtt.gateway.SESSIONS_MAX", 0)
    made = Gateway(cast(RingAccess, PlayedRing()), lambda text: None, GatewaySettings())
    for _ in range(2):
        connection = cast(Connection, RefusedConnection())
        answer = await made.begin(connection, Connect("abcd", False, 60, None, expires_s=60))
        assert isinstance(answer, PacketOutcome) and answer.reason == Reason.QuotaExceeded
        await made.over(connection, None, 0)


def test_notices_are_few() -> None:
    said: list[str] = []
    notices = Notices(said.append, every_s=1e9)
    for _ in range(5):
        notices("x")
    assert said == ["x"]
