"""The gateway for MQTT: topics and filters, packets, sessions, and one connection against a daemon that is played."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("amqtt", reason="the extra `mqtt` is not installed")

from peerd.errors import ConfigError, Unavailable
from peerd.lib.filter import matcher, parse
from protocols.pubsub.front.mqtt import packets
from protocols.pubsub.front.mqtt.gateway import Gateway, Notices
from protocols.pubsub.front.mqtt.mapping import EventMap
from protocols.pubsub.front.mqtt.packets import (
    Acknowledged,
    Connect,
    Message,
    PacketError,
    PacketReader,
    Ping,
    Subscribe,
    Unsubscribe,
    UnsupportedVersion,
)
from protocols.pubsub.front.mqtt.ring import Ring
from protocols.pubsub.front.mqtt.session import IN_FLIGHT_MAX, SUBSCRIPTIONS_MAX, Held, Session, load, save
from protocols.pubsub.front.mqtt.topics import TopicError, TopicMap
from protocols.pubsub.models import ReceivedEvent

TYPES = {"topic": "string", "symbol": "string", "line": "int", "price": "decimal"}
ANY = TopicMap("{topic...}", TYPES)
STOCKS = TopicMap("stocks/{symbol}/{line}", TYPES)

# Topics


def test_a_topic_gives_attributes_and_they_give_it_back() -> None:
    values = STOCKS.values_of("stocks/IBM/-7")
    assert values == {"symbol": "IBM", "line": -7}
    assert STOCKS.topic_of({**values, "price": 3}) == "stocks/IBM/-7"
    assert ANY.values_of("/a//b") == {"topic": "/a//b"}
    assert TopicMap("x/{symbol}/{topic...}", TYPES).values_of("x/a/b/c") == {"symbol": "a", "topic": "b/c"}


@pytest.mark.parametrize("topic", ["stocks/IBM", "stocks/IBM/7/8", "shares/IBM/7", "stocks/IBM/07", "stocks/IBM/x"])
def test_topics_that_the_pattern_does_not_have_are_refused(topic: str) -> None:
    with pytest.raises(TopicError):
        STOCKS.values_of(topic)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "$SYS/x", "a\0b", "x" * 2000, "/" * 100])
def test_what_is_no_topic_is_refused(topic: str) -> None:
    with pytest.raises(TopicError):
        ANY.values_of(topic)


@pytest.mark.parametrize("values", [{}, {"symbol": "a/b", "line": 1}, {"symbol": "+", "line": 1}, {"symbol": "a"}])
def test_events_without_a_topic_have_none(values: dict[str, Any]) -> None:
    assert STOCKS.topic_of(values) is None


@pytest.mark.parametrize(
    "pattern",
    ["", "stocks", "{no}", "{price}", "{line...}", "{symbol}/{symbol}", "{topic...}/a", "a+"],
)
def test_patterns_that_cannot_be_used_are_refused(pattern: str) -> None:
    with pytest.raises(TopicError):
        TopicMap(pattern, TYPES)


@pytest.mark.parametrize(
    ("topic_filter", "text"),
    [
        ("#", "TRUE"),
        ("stocks/IBM/7", "symbol = 'IBM' AND line = 7"),
        ("stocks/+/7", "line = 7"),
        ("+/O'Neil/#", "symbol = 'O''Neil'"),
        ("stocks/IBM/7/#", "symbol = 'IBM' AND line = 7"),
        ("$filter/price%20%3E%2020/stocks/IBM/#", "symbol = 'IBM' AND (price > 20)"),
        ("$filter/a=1%20or%20b=2", "(a = 1 OR b = 2)"),
    ],
)
def test_a_topic_filter_becomes_a_filter_on_attributes(topic_filter: str, text: str) -> None:
    assert STOCKS.filter_of(topic_filter) == text


@pytest.mark.parametrize(
    "topic_filter",
    [
        "",
        "a#",
        "#/a",
        "stocks/I+/7",
        "stocks",
        "shares/#",
        "stocks/+/x",
        "stocks/a/1/b",
        "$filter/price%20%3E/#",
        "$filter/%FF/#",
    ],
)
def test_topic_filters_that_are_none_or_never_match_are_refused(topic_filter: str) -> None:
    with pytest.raises(TopicError):
        STOCKS.filter_of(topic_filter)


levels = st.sampled_from(["", "a", "b", "a.b", "o'c", "%"])


@given(st.lists(levels, min_size=1, max_size=4), st.lists(levels | st.just("+"), max_size=4), st.booleans())
def test_a_filter_of_the_whole_topic_matches_as_the_standard_says(
    topic: list[str], wanted: list[str], is_open: bool
) -> None:
    """Section 4.7.1 as a few lines of Python, against the text in peerd's language."""
    topic_filter = "/".join([*wanted, *["#"][: is_open or not wanted]])
    name = "/".join(topic)
    if not name or not topic_filter:
        return
    has_hash = topic_filter.endswith("#")
    is_long_enough = len(topic) >= len(wanted) if has_hash else len(topic) == len(wanted)
    expected = is_long_enough and all(want in ("+", got) for want, got in zip(wanted, topic, strict=False))
    assert matcher(parse(ANY.filter_of(topic_filter)))({"topic": name}) == expected


# Messages and events


def test_a_json_payload_gives_attributes_and_stays_what_it_is() -> None:
    events = EventMap(STOCKS, TYPES)
    payload = b'{"price": 20.5, "symbol": "no", "other": 1, "topic": null}'
    event = events.event_of(Message("stocks/IBM/7", payload, is_retained=True))
    assert base64.b64decode(event.pop("_payload_base64")) == payload
    assert event == {
        "symbol": "IBM",
        "line": 7,
        "price": 20.5,
        "_content_type": "application/json",
        "_retain": "stocks/IBM/7",
    }


def test_other_payloads_are_opaque() -> None:
    events = EventMap(ANY, TYPES)
    assert events.event_of(Message("a", b"\xff{")) == {"topic": "a", "_payload_base64": "/3s=", "_content_type": ""}
    assert events.event_of(Message("a", b"")) == {"topic": "a"}
    with pytest.raises(TopicError):
        events.event_of(Message("a", b"x" * 40_000))


@pytest.mark.parametrize("value", [r'"\ud800"', "1e999", "NaN", "null", "[1]", "{}"])
def test_members_that_are_no_values_of_attributes_stay_in_the_payload_only(value: str) -> None:
    event = EventMap(ANY, TYPES).event_of(Message("a", f'{{"price": {value}, "line": 1}}'.encode()))
    assert {name for name in event if not name.startswith("_")} == {"topic", "line"}


def received(values: dict[str, Any], **more: Any) -> ReceivedEvent:
    return ReceivedEvent(event="e", publisher="p", published_at=0.0, values=values, **more)


def test_events_become_messages() -> None:
    events = EventMap(ANY, TYPES)
    assert events.message_of(received({"topic": "a"}, payload="x"), 1) == Message("a", b"x", 1)
    assert events.message_of(received({"topic": "a"}, payload="/w==", is_base64=True), 0) == Message("a", b"\xff")
    assert events.message_of(received({"topic": "a", "line": 3}), 0) == Message("a", b'{"line": 3}')
    assert events.message_of(received({"topic": "a"}, payload="x", is_replay=True), 0) == Message("a", b"x", 0, True)
    assert events.message_of(received({"line": 3}), 0) is None


def test_the_empty_message_takes_a_retained_one_away() -> None:
    events = EventMap(ANY, TYPES)
    assert events.message_of(received({"topic": "a"}, is_replay=True), 0) is None
    assert events.message_of(received({"topic": "a"}), 0) == Message("a", b"")


# Packets

CONNECT = bytes.fromhex("101000044d5154540402003c000461626364")
SUBSCRIBE = bytes.fromhex("820800050003612f2301")


def test_packets_are_read_in_whatever_pieces_they_come() -> None:
    reader = PacketReader()
    bytes_ = CONNECT + SUBSCRIBE + packets.publish(Message("a", b"hi", 1, packet_id=9)) + b"\xc0\x00\x40\x02\x00\x07"
    found = [packet for byte in bytes_ for packet in reader.feed(bytes([byte]))]
    assert found == [
        Connect("abcd", True, 60),
        Subscribe(5, (("a/#", 1),)),
        Message("a", b"hi", 1, packet_id=9),
        Ping(),
        Acknowledged(7),
    ]
    assert PacketReader().feed(bytes.fromhex("a2070006 0003 612f23")) == [Unsubscribe(6, ("a/#",))]


def test_connect_with_a_will() -> None:
    body = b"\x00\x04MQTT\x04\xee\x00\x0a" + b"\x00\x01c\x00\x01w\x00\x02\xff\x00\x00\x01u\x00\x01p"
    found = PacketReader().feed(bytes([0x10, len(body)]) + body)
    assert found == [Connect("c", True, 10, Message("w", b"\xff\x00", 1, True))]


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


@pytest.mark.parametrize(("level", "answer"), [(5, packets.CONNACK_5), (3, b"\x20\x02\x00\x01")])
def test_other_versions_are_told_so(level: int, answer: bytes) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        PacketReader().feed(CONNECT[:8] + bytes([level]) + CONNECT[9:])
    assert caught.value.answer == answer


@given(st.binary(max_size=60))
def test_any_bytes_are_packets_or_an_error(data: bytes) -> None:
    for start in (b"", b"\x10", b"\x30", b"\x32", b"\x82"):
        try:
            PacketReader().feed(start + data)
        except PacketError as error:
            assert str(error)


# Sessions


def test_the_position_follows_what_is_acknowledged_without_a_hole() -> None:
    session = Session("c", is_clean=False)
    held = session.hold("a/#", 1)
    numbers = [session.sending(held, id, Message("a", b"", 1)).packet_id for id in ("1", "2", "3")]
    assert numbers == [1, 2, 3]
    session.acknowledged(2)
    session.acknowledged(99)
    assert held.position is None
    session.acknowledged(1)
    assert held.position == "2"
    session.restart()
    assert session.sending(held, "3", Message("a", b"", 1)).is_again
    assert not session.sending(held, "4", Message("a", b"", 1)).is_again


def test_the_window_is_bounded_and_numbers_are_not_used_twice() -> None:
    session = Session("c", is_clean=True)
    held = session.hold("a", 1)
    for count in range(70_000):
        assert session.has_room
        number = session.sending(held, str(count), Message("a", b"", 1)).packet_id
        assert 1 <= number <= 65_535
        session.acknowledged(number)
    for count in range(IN_FLIGHT_MAX):
        session.sending(held, f"x{count}", Message("a", b"", 1))
    assert not session.has_room
    session.sending(held, "quality 0", Message("a", b""))
    assert held.position == "69999"


def test_only_acknowledged_messages_of_kept_sessions_are_durable() -> None:
    assert Session("c", is_clean=False).hold("a", 1).name.startswith("mqtt-")
    assert Session("c", is_clean=False).hold("a", 0).name == ""
    assert Session("c", is_clean=True).hold("a", 1).name == ""
    assert Session("c", is_clean=False).hold("a", 1).name != Session("d", is_clean=False).hold("a", 1).name


def test_sessions_are_kept_in_a_file() -> None:
    session = Session("c", is_clean=False)
    session.hold("a/#", 1).position = "x-7"
    again = load(save({"c": session}), "file")["c"].held["a/#"]
    assert (again.position, again.qos, again.name) == ("x-7", 1, session.held["a/#"].name)
    with pytest.raises(ConfigError):
        load("{}", "file")


# Connections


class PlayedRing:
    """A daemon that does what a test says."""

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.fails: Exception | None = None
        self.opened: list[str] = []
        self.ended: list[str] = []
        self.coming: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()

    async def publish(self, message: Message) -> None:
        if self.fails is not None:
            raise self.fails
        self.published.append(message)

    async def open(self, held: Held) -> None:
        ANY.filter_of(held.topic_filter)
        held.id = f"id of {held.topic_filter}"
        self.opened.append(held.topic_filter)

    async def end(self, held: Held) -> None:
        self.ended.append(held.topic_filter)

    async def messages(self, held: Held) -> AsyncGenerator[tuple[str, Message], None]:
        while True:
            yield await self.coming.get()


class Caller:
    """The client's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def expect(self, answer: bytes) -> None:
        async with asyncio.timeout(60):
            assert await self.reader.readexactly(len(answer)) == answer

    async def expect_end(self) -> None:
        async with asyncio.timeout(60):
            assert await self.reader.read() == b""


@asynccontextmanager
async def gateway(
    ring: PlayedRing, state: Path | None = None, clients: int = 5
) -> AsyncIterator[Callable[[bytes], Any]]:
    """A gateway on a port of its own; yields a function that connects and sends bytes."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop, callers = asyncio.Event(), list[Caller]()
    made = Gateway(cast(Ring, ring), lambda text: None, clients, state)
    async with asyncio.TaskGroup() as group:
        group.create_task(made.serve("127.0.0.1", 0, stop, ready.set_result))
        port = await ready

        async def call(data: bytes) -> Caller:
            caller = Caller(*await asyncio.open_connection("127.0.0.1", port))
            callers.append(caller)
            caller.writer.write(data)
            return caller

        try:
            yield call
        finally:
            for caller in callers:
                caller.writer.close()
            stop.set()


DURABLE = CONNECT[:9] + b"\x00" + CONNECT[10:]
DISCONNECT = b"\xe0\x00"
ACCEPTED = b"\x20\x02\x00\x00"


def qos(level: int, packet_id: int = 9, payload: bytes = b"x") -> bytes:
    return packets.publish(Message("a/b", payload, level, packet_id=packet_id if level else 0))


async def test_publishing_is_acknowledged_by_its_quality_of_service() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await call(CONNECT + qos(0) + qos(1) + b"\xc0\x00")
        await caller.expect(ACCEPTED)
        answers = await caller.reader.readexactly(6)  # in any order: reading and working are two tasks
        assert answers in (b"\xd0\x00\x40\x02\x00\x09", b"\x40\x02\x00\x09\xd0\x00")
        caller.writer.write(qos(2, 4) + qos(2, 4))
        await caller.expect(packets.pubrec(4) * 2)
        caller.writer.write(b"\x62\x02\x00\x04")
        await caller.expect(packets.pubcomp(4))
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
        await caller.expect(ACCEPTED + packets.suback(5, [1]))
        ring.coming.put_nowait(("1", Message("a/x", b"hi", 1)))
        await caller.expect(packets.publish(Message("a/x", b"hi", 1, packet_id=1)))
        caller.writer.write(b"\xa2\x07\x00\x06\x00\x03a/#")
        await caller.expect(packets.unsuback(6))
        assert ring.ended == ["a/#"]


async def test_a_client_that_acknowledges_nothing_is_sent_no_more_than_the_window() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        caller = await call(CONNECT + SUBSCRIBE)
        await caller.expect(ACCEPTED + packets.suback(5, [1]))
        for count in range(IN_FLIGHT_MAX + 1):
            ring.coming.put_nowait((str(count), Message("a/x", b"", 1)))
        for number in range(1, IN_FLIGHT_MAX + 1):
            await caller.expect(packets.publish(Message("a/x", b"", 1, packet_id=number)))
        caller.writer.write(b"\xc0\x00")
        await caller.expect(packets.pingresp())  # and not the message that waits
        caller.writer.write(b"\x40\x02\x00\x01")
        await caller.expect(packets.publish(Message("a/x", b"", 1, packet_id=IN_FLIGHT_MAX + 1)))


async def test_wrong_and_too_many_topic_filters_are_refused() -> None:
    ring = PlayedRing()
    async with gateway(ring) as call:
        body = b"\x00\x05" + b"\x00\x02a#\x00" + b"".join(b"\x00\x02" + b"%02d" % n + b"\x02" for n in range(33))
        caller = await call(CONNECT + bytes([0x82, 0x80 | len(body) % 128, len(body) // 128]) + body)
        await caller.expect(ACCEPTED + packets.suback(5, [0x80, *[1] * SUBSCRIPTIONS_MAX, 0x80]))


async def test_a_session_is_kept_and_resumed_and_forgotten(tmp_path: Path) -> None:
    state = tmp_path / "sessions.json"
    ring = PlayedRing()
    async with gateway(ring, state) as call:
        caller = await call(DURABLE + SUBSCRIBE)
        await caller.expect(ACCEPTED + packets.suback(5, [1]))
        ring.coming.put_nowait(("7", Message("a/x", b"", 1)))
        await caller.expect(packets.publish(Message("a/x", b"", 1, packet_id=1)))
        caller.writer.write(b"\x40\x02\x00\x01" + DISCONNECT)
        await caller.expect_end()
    assert ring.ended == []
    assert json.loads(state.read_text())["sessions"]["abcd"][0]["position"] == "7"
    async with gateway(ring, state) as call:
        caller = await call(DURABLE + DISCONNECT)
        await caller.expect(b"\x20\x02\x01\x00")
        await caller.expect_end()
        caller = await call(CONNECT + DISCONNECT)
        await caller.expect(ACCEPTED)
        await caller.expect_end()
    assert ring.ended == ["a/#"]
    assert json.loads(state.read_text())["sessions"] == {}


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
    assert ring.published == [Message("w", b"x")] * wills


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
        caller = await call(CONNECT[:8] + b"\x05" + CONNECT[9:])
        await caller.expect(packets.CONNACK_5)
        await caller.expect_end()


def test_notices_are_few() -> None:
    said: list[str] = []
    notices = Notices(said.append, every_s=1e9)
    for _ in range(5):
        notices("x")
    assert said == ["x"]
