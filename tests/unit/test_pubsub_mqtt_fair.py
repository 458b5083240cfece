"""The gateway among clients that take too much, and messages that are published together or refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ohmqtt", reason="the extra `mqtt` is not installed")

import ohmqtt

from peerd.errors import Unavailable
from protocols.pubsub.front.mqtt import gateway as gateways
from protocols.pubsub.front.mqtt.packets import FOR_EVER_S, ApplicationMessage, Connect, PacketOutcome, Reason
from protocols.pubsub.front.mqtt.session import SESSIONS_PER_USER_MAX, Session, load, save
from protocols.pubsub.front.mqtt.users import NOBODY, User, greediest, user_of
from protocols.pubsub.front.mqtt.version4 import Version4
from tests.support.mqtt_gateway import PlayedRing, gateway

V4 = Version4()
CONNECT = bytes.fromhex("101000044d5154540402003c000461626364")
ACCEPTED = b"\x20\x02\x00\x00"
REFUSED = PacketOutcome(Reason.PayloadFormatInvalid, "no such attribute")


def publish(payload: str, packet_id: int, qos: int = 1) -> bytes:
    return V4.publish(ApplicationMessage("a/b", payload.encode(), qos, packet_id=packet_id if qos else 0))


def subscribe(topic_filter: str, qos: int = 0) -> bytes:
    body = b"\x00\x07" + len(topic_filter).to_bytes(2, "big") + topic_filter.encode() + bytes([qos])
    return bytes([0x82, len(body)]) + body


def connect(client_id: str, expires_s: int = 0, *, is_clean: bool = True, password: str = "", user: str = "u") -> Any:
    said = ohmqtt.MQTTConnectProps(SessionExpiryInterval=expires_s)
    secret: dict[str, Any] = {"username": user, "password": password.encode()} if password else {}
    return ohmqtt.MQTTConnectPacket(client_id, clean_start=is_clean, properties=said, **secret)


# --- publishing -----------------------------------------------------------------------------------------------------


async def test_messages_that_wait_together_are_published_in_one_request_and_acknowledged_in_order() -> None:
    ring = PlayedRing()
    ring.may_publish.clear()
    async with gateway(ring) as call:
        caller = await call(CONNECT + publish("0", 1))
        await caller.expect(ACCEPTED)
        await asyncio.sleep(0)
        caller.writer.write(b"".join(publish(str(number), number + 1) for number in range(1, 40)) + b"\xc0\x00")
        await caller.expect(b"\xd0\x00")  # all of it was read
        ring.may_publish.set()
        await caller.expect(b"".join(V4.puback(number) for number in range(1, 41)))
    assert [int(message.payload) for message in ring.published] == list(range(40))
    assert len(ring.batches) == 2 and sum(ring.batches) == 40


async def test_behind_a_message_of_which_nothing_is_known_none_is_acknowledged() -> None:
    ring = PlayedRing()
    ring.verdicts = {b"2": Unavailable("gone")}
    async with gateway(ring) as call:
        caller = await call(CONNECT + b"".join(publish(str(number), number) for number in (1, 2, 3)))
        await caller.expect(ACCEPTED + V4.puback(1))
        await caller.expect_end()


async def test_a_message_of_quality_of_service_2_is_published_once_though_its_answer_was_lost() -> None:
    ring = PlayedRing()
    ring.verdicts = {b"1": Unavailable("gone")}
    kept = CONNECT[:9] + b"\x00" + CONNECT[10:]
    async with gateway(ring) as call:
        caller = await call(kept + publish("1", 1, 2) + publish("2", 2, 2) + publish("2", 2, 2))
        await caller.expect(ACCEPTED)
        await caller.expect_end()
        ring.verdicts = {}
        caller = await call(kept + publish("1", 1, 2) + publish("2", 2, 2))
        await caller.expect(b"\x20\x02\x01\x00" + V4.pubrec(1) + V4.pubrec(2))
    assert [message.payload for message in ring.published].count(b"2") == 1


async def test_a_refusal_that_the_version_has_no_word_for_ends_the_connection() -> None:
    ring = PlayedRing()
    ring.verdicts = {b"bad": REFUSED}
    async with gateway(ring) as call:
        caller = await call(CONNECT + publish("good", 1) + publish("bad", 2))
        await caller.expect(ACCEPTED + V4.puback(1))
        await caller.expect_end()


async def test_or_it_is_acknowledged_and_its_client_finds_it_below_sys() -> None:
    ring = PlayedRing()
    ring.verdicts = {b"bad": REFUSED}
    async with gateway(ring, closes_on_refusal=False) as call:
        caller = await call(CONNECT + publish("bad", 2) + subscribe("$SYS/peerd/client/#", 1))
        await caller.expect(ACCEPTED + V4.puback(2) + b"\x90\x03\x00\x07\x00")
        told = [("refused", "1"), ("refused/last", "a/b: no such attribute")]
        for name, value in told:
            message = ApplicationMessage(f"$SYS/peerd/client/{name}", value.encode(), 0, is_retained=True)
            await caller.expect(V4.publish(message))
    assert ring.counts.unanswered == 1


async def test_a_topic_below_sys_that_there_is_not_is_refused() -> None:
    async with gateway(PlayedRing()) as call:
        caller = await call(CONNECT + subscribe("$SYS/no/+"))
        await caller.expect(ACCEPTED + b"\x90\x03\x00\x07\x80")


# --- users ----------------------------------------------------------------------------------------------------------


def test_who_pays_and_whose_sessions_there_are() -> None:
    plain, secret = Connect("c", True, 1), Connect("c", True, 1, user_name="u", password=b"p")
    assert user_of(7, secret, True) == User("user 7", "user 7")
    assert user_of(None, plain, False) == NOBODY
    known, other = user_of(None, secret, False), user_of(None, Connect("c", True, 1, password=b"q"), False)
    assert known is not None and other is not None
    assert known.pays == other.pays == NOBODY.pays and len({known.owner, other.owner, ""}) == 3
    assert user_of(None, plain, True) is None is user_of(None, Connect("c", True, 1, password=b"\xff\n"), True)
    shown = user_of(None, secret, True)
    assert shown is not None and (shown.token, shown.pays.startswith("token ")) == ("p", True)
    assert greediest(["a", "a", "a", "b"], "b") == "a" and greediest(["a", "a", "b"], "b") == "b"
    assert greediest([], "a") == "a"


async def test_a_stranger_with_a_known_client_id_does_not_get_its_queue() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        owner = await call(connect("audit", 100, password="mine").encode())
        await owner.next()
        owner.send(ohmqtt.MQTTSubscribePacket([("a/#", 1)], 5))
        await owner.next()
        name = ring.opened[-1].name
        owner.send(ohmqtt.MQTTDisconnectPacket())
        await owner.expect_end()
        for password in ("", "guessed"):
            stranger = await call(connect("audit", 100, is_clean=False, password=password).encode())
            assert not (await stranger.next()).session_present
            stranger.send(ohmqtt.MQTTSubscribePacket([("a/#", 1)], 5))
            await stranger.next()
            assert ring.opened[-1].name != name
        back = await call(connect("audit", 100, is_clean=False, password="mine").encode())
        assert (await back.next()).session_present


async def test_over_tcp_a_token_may_be_wanted() -> None:
    ring = PlayedRing()
    ring.valid = ("good",)
    async with gateway(ring, wants_tokens=True) as call:
        for password, reason in (("", Reason.BadUserNameOrPassword), ("bad", Reason.NotAuthorized)):
            caller = await call(connect("a", password=password).encode())
            assert (await caller.next()).reason_code == reason
            await caller.expect_end()
        caller = await call(connect("a", password="good").encode())
        assert (await caller.next()).reason_code == Reason.Success
        caller.send(ohmqtt.MQTTDisconnectPacket())
        await caller.expect_end()
        await ring.until(lambda: ring.closed == len(ring.tokens))


async def test_on_a_unix_socket_the_kernel_says_who_it_is(tmp_path: Path) -> None:
    path, state = tmp_path / "mqtt.sock", tmp_path / "state.json"
    async with gateway(PlayedRing(), state, address=path, wants_tokens=True) as call:
        caller = await call(connect("a", 100).encode())
        assert (await caller.next()).reason_code == Reason.Success
    saved = load(state.read_text(), "file", 0.0)
    assert list(saved) == [(f"user {os.geteuid()}", "a")]


# --- quotas ---------------------------------------------------------------------------------------------------------


async def test_no_session_is_kept_for_longer_than_the_gateway_says() -> None:
    async with gateway(PlayedRing(), expires_max_s=50) as call:
        caller = await call(connect("a", FOR_EVER_S).encode())
        assert (await caller.next()).properties.SessionExpiryInterval == 50
        caller = await call(connect("b", 20).encode())
        assert (await caller.next()).properties.SessionExpiryInterval is None
    kept = Session("c", FOR_EVER_S)
    assert load(save({kept.key: kept}), "file", 0.0, 50)["", "c"].expires_s == 50


async def test_the_connection_that_is_silent_for_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "SILENT_S", 0.0)
    async with gateway(PlayedRing(), clients=3) as call:
        callers = [await call(CONNECT.replace(b"abcd", b"abc%d" % number)) for number in range(2)]
        for caller in callers:
            await caller.expect(ACCEPTED)
        silent = await call(b"")
        callers[0].writer.write(b"\xc0\x00")
        await callers[0].expect(b"\xd0\x00")
        await silent.writer.drain()
        newcomer = await call(CONNECT)
        await newcomer.expect(ACCEPTED)
        await silent.expect_end()  # it has not even said CONNECT
        second = await call(CONNECT.replace(b"abcd", b"efgh"))
        await second.expect(ACCEPTED)
        await callers[1].expect_end()
        callers[0].writer.write(b"\xc0\x00")
        await callers[0].expect(b"\xd0\x00")


async def test_a_user_has_a_quota_of_sessions_and_whoever_has_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "SESSIONS_MAX", 4)
    monkeypatch.setattr(gateways, "SESSIONS_PER_USER_MAX", 3)
    ring = PlayedRing()
    ring.valid = ("one", "two")
    assert SESSIONS_PER_USER_MAX < 256
    async with gateway(ring, wants_tokens=True) as call:

        async def keep(client_id: str, token: str) -> Any:
            caller = await call(connect(client_id, 100, password=token).encode())
            answer = await caller.next()
            if answer.reason_code == Reason.Success:
                caller.send(ohmqtt.MQTTDisconnectPacket())
            await caller.expect_end()
            return answer.reason_code

        assert [await keep(f"a{number}", "one") for number in range(4)] == [0, 0, 0, Reason.QuotaExceeded]
        assert [await keep(f"b{number}", "two") for number in range(2)] == [0, 0], "one of the other user gave way"
        assert await keep("a2", "one") == 0, "which is still known"
