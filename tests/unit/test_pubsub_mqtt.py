"""The gateway for MQTT: topics and filters, messages as events, and sessions."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("ohmqtt", reason="the extra `mqtt` is not installed")

from peerd.errors import ConfigError
from peerd.lib.filter import matcher, parse
from protocols.pubsub.front.mqtt.mapping import EventMap, PayloadError, SubscriptionOptions, key_of
from protocols.pubsub.front.mqtt.packets import FOR_EVER_S, ApplicationMessage, Properties, Wanted
from protocols.pubsub.front.mqtt.session import IN_FLIGHT_MAX, Session, load, save
from protocols.pubsub.front.mqtt.topics import TopicError, TopicMap, shared
from protocols.pubsub.models import ReceivedEvent

TYPES = {"topic": "string", "symbol": "string", "line": "int", "price": "decimal"}
ANY = TopicMap("{topic...}", TYPES)
NOW = 1_700_000_000.0
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
    events = EventMap(STOCKS, TYPES, is_strict=False)
    payload = b'{"price": 20.5, "symbol": "no", "other": 1, "topic": null}'
    event = events.event_of(ApplicationMessage("stocks/IBM/7", payload, is_retained=True))
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
    assert events.event_of(ApplicationMessage("a", b"\xff{")) == {
        "topic": "a",
        "_payload_base64": "/3s=",
        "_content_type": "",
    }
    assert events.event_of(ApplicationMessage("a", b"")) == {"topic": "a"}
    with pytest.raises(TopicError):
        events.event_of(ApplicationMessage("a", b"x" * 40_000))


@pytest.mark.parametrize("value", [r'"\ud800"', "1e999", "NaN", "null", "[1]", "{}"])
def test_members_that_are_no_values_of_attributes_stay_in_the_payload_only(value: str) -> None:
    events = EventMap(ANY, TYPES, is_strict=False)
    event = events.event_of(ApplicationMessage("a", f'{{"price": {value}, "line": 1}}'.encode()))
    assert {name for name in event if not name.startswith("_")} == {"topic", "line"}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ('{"prcie": 20}', "'prcie' is no attribute of the schema, which has"),
        ('{"_retain": "x"}', "'_retain' is no attribute"),
        ('{"price": 1e999}', "not finite"),
    ],
)
def test_a_mistyped_attribute_is_refused_by_default(payload: str, words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        EventMap(ANY, TYPES).event_of(ApplicationMessage("a", payload.encode()))


def test_the_daemon_is_shown_values_of_a_wrong_type_and_refuses_them() -> None:
    event = EventMap(ANY, TYPES).event_of(ApplicationMessage("a", b'{"price": [1], "line": null, "symbol": "\\ud800"}'))
    assert (event["price"], event["line"], event["symbol"]) == ([1], None, "\ud800")


def received(values: dict[str, Any], **more: Any) -> ReceivedEvent:
    return ReceivedEvent(event="e", publisher="p", published_at=NOW, values=values, **more)


def test_events_become_messages() -> None:
    events = EventMap(ANY, TYPES)
    assert events.message_of(received({"topic": "a"}, payload="x"), SubscriptionOptions(1), NOW) == ApplicationMessage(
        "a", b"x", 1
    )
    binary = received({"topic": "a"}, payload="/w==", is_base64=True)
    assert events.message_of(binary, SubscriptionOptions(), NOW) == ApplicationMessage("a", b"\xff")
    values = ApplicationMessage("a", b'{"line": 3}', properties=Properties(content_type="application/json"))
    assert events.message_of(received({"topic": "a", "line": 3}), SubscriptionOptions(), NOW) == values
    replayed = received({"topic": "a"}, payload="x", is_replay=True)
    assert events.message_of(replayed, SubscriptionOptions(), NOW) == ApplicationMessage("a", b"x", 0, True)
    assert events.message_of(received({"line": 3}), SubscriptionOptions(), NOW) is None


def test_the_empty_message_takes_a_retained_one_away() -> None:
    events = EventMap(ANY, TYPES)
    assert events.message_of(received({"topic": "a"}, is_replay=True), SubscriptionOptions(), NOW) is None
    assert events.message_of(received({"topic": "a"}), SubscriptionOptions(), NOW) == ApplicationMessage("a", b"")


FULL = Properties(True, 60, "text/plain", "answers/here", b"\0\xff", (("a", "1"), ("b", ""), ("a", "2")))


def sent(properties: Properties, **more: Any) -> ReceivedEvent:
    """What a subscriber gets of a message with these properties."""
    event = EventMap(ANY, TYPES).event_of(ApplicationMessage("a", b"x", properties=properties))
    headers = tuple(tuple(pair) for pair in event.get("_headers", ()))
    return received({"topic": "a"}, payload="x", content_type=event["_content_type"], headers=headers, **more)


@given(
    st.builds(
        Properties,
        st.booleans(),
        st.none() | st.integers(1, 0xFFFF_FFFF),
        st.text("ab/", max_size=9),
        st.text("ab/", max_size=9),
        st.none() | st.binary(max_size=9),
        st.lists(st.tuples(st.text("abc", min_size=1, max_size=4), st.text(max_size=4)), max_size=5).map(
            lambda pairs: tuple((name, value.replace("\0", "")) for name, value in pairs)
        ),
    )
)
def test_properties_travel_with_the_event(properties: Properties) -> None:
    message = EventMap(ANY, TYPES).message_of(sent(properties), SubscriptionOptions(), NOW)
    assert message is not None and message.properties == properties


def test_a_message_that_has_expired_does_not_come() -> None:
    events, event = EventMap(ANY, TYPES), sent(FULL)
    later = events.message_of(event, SubscriptionOptions(), NOW + 59.5)
    assert later is not None and later.properties.expiry_s == 1
    assert events.message_of(event, SubscriptionOptions(), NOW + 60) is None
    earlier = events.message_of(event, SubscriptionOptions(), NOW - 1000)  # the publisher's clock is ahead
    assert earlier is not None and earlier.properties.expiry_s == 60


def test_a_client_that_wants_no_own_messages_gets_none() -> None:
    events = EventMap(ANY, TYPES)
    headers = tuple(events.event_of(ApplicationMessage("a", b"x"), key_of("me"))["_headers"])
    event = received({"topic": "a"}, payload="x", headers=headers)
    assert events.message_of(event, SubscriptionOptions(not_from=key_of("me")), NOW) is None
    assert events.message_of(event, SubscriptionOptions(not_from=key_of("you")), NOW) == ApplicationMessage(
        "a", b"x", properties=Properties()
    )
    assert "me" not in str(headers)


def test_the_retain_flag_is_kept_where_the_subscription_wants_that() -> None:
    events, event = EventMap(ANY, TYPES), received({"topic": "a"}, payload="x", retain="a")
    assert events.message_of(event, SubscriptionOptions(), NOW) == ApplicationMessage("a", b"x")
    assert events.message_of(event, SubscriptionOptions(1, True, 7), NOW) == ApplicationMessage(
        "a", b"x", 1, True, subscription_id=7
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mqtt-expiry", "x"),
        ("mqtt-expiry", "٣"),
        ("mqtt-expiry", "9" * 4000),
        ("mqtt-correlation", "?"),
        ("mqtt-response-topic", "a/#"),
        ("mqtt-response-topic", "a\0"),
        ("mqtt-other", ""),
        ("a", "\0"),
    ],
)
def test_headers_that_anybody_made_up_break_no_packet(name: str, value: str) -> None:
    """The publisher may be anybody, with any header."""
    event = received({"topic": "a"}, payload="x", content_type="a\0", headers=((name, value),))
    message = EventMap(ANY, TYPES).message_of(event, SubscriptionOptions(), NOW)
    assert message is not None and message.properties == Properties()


@pytest.mark.parametrize(
    ("topic_filter", "group", "rest"),
    [("$share/g/a/#", "g", "a/#"), ("$share/g/$filter/x/#", "g", "$filter/x/#"), ("a/$share/g", "", "a/$share/g")],
)
def test_shared_subscriptions_name_a_group(topic_filter: str, group: str, rest: str) -> None:
    assert shared(topic_filter) == (group, rest)


@pytest.mark.parametrize(
    "topic_filter",
    ["$share/", "$share//a", "$share/g", "$share/g/", "$share/+/a", f"$share/{'g' * 65}/a", f"$share/{'ж' * 33}/a"],
)
def test_wrong_groups_are_refused(topic_filter: str) -> None:
    with pytest.raises(TopicError):
        shared(topic_filter)


# Sessions


def test_the_position_follows_what_is_acknowledged_without_a_hole() -> None:
    session = Session("c")
    held = session.hold("a/#", 1)
    numbers = [session.sending(held, id, ApplicationMessage("a", b"", 1)).packet_id for id in ("1", "2", "3")]
    assert numbers == [1, 2, 3]
    session.acknowledged(2)
    session.acknowledged(99)
    assert held.position is None
    session.acknowledged(1)
    assert held.position == "2"
    session.restart()
    assert session.sending(held, "3", ApplicationMessage("a", b"", 1)).is_again
    assert not session.sending(held, "4", ApplicationMessage("a", b"", 1)).is_again


def test_the_window_is_bounded_and_numbers_are_not_used_twice() -> None:
    session = Session("c", 0)
    held = session.hold("a", 1)
    for count in range(70_000):
        assert session.has_room
        number = session.sending(held, str(count), ApplicationMessage("a", b"", 1)).packet_id
        assert 1 <= number <= 65_535
        session.acknowledged(number)
    for count in range(IN_FLIGHT_MAX):
        session.sending(held, f"x{count}", ApplicationMessage("a", b"", 1))
    assert not session.has_room
    session.sending(held, "quality 0", ApplicationMessage("a", b""))
    assert held.position == "69999"


def test_only_acknowledged_messages_of_kept_sessions_are_durable() -> None:
    assert Session("c").hold("a", 1).name.startswith("mqtt-")
    assert Session("c").hold("a", 0).name == ""
    assert Session("c", 0).hold("a", 1).name == ""
    assert Session("c").hold("a", 1).name != Session("d").hold("a", 1).name


def test_sessions_are_kept_in_a_file() -> None:
    session = Session("c", 60)
    held = session.hold("a/#", 1)
    held.position = "x-7"
    held.choose(Wanted("a/#", 1, no_local=True, as_published=True), 9)
    kept = load(save({session.key: session}), "file", NOW)["", "c"]
    again = kept.held["a/#"]
    assert (again.position, again.qos, again.name) == ("x-7", 1, held.name)
    assert kept.wish(again) == session.wish(held) == SubscriptionOptions(1, True, 9, key_of("c"))
    assert (kept.expires_s, kept.left_at) == (60, NOW)
    assert load(save({kept.key: kept}), "file", NOW + 5)["", "c"].left_at == NOW
    with pytest.raises(ConfigError):
        load("{}", "file", NOW)


def test_a_session_is_kept_as_long_as_its_client_wanted() -> None:
    session = Session("c", 60)
    assert not session.is_over(NOW)
    session.left_at = NOW
    assert (session.is_over(NOW + 59.9), session.is_over(NOW + 60)) == (False, True)
    session.expires_s = FOR_EVER_S
    assert not session.is_over(NOW + 1e12)


def test_a_client_that_takes_few_messages_at_a_time_gets_no_more() -> None:
    session = Session("c", 0)
    session.restart(receive_max=2)
    held = session.hold("a", 1)
    session.sending(held, "1", ApplicationMessage("a", b"", 1))
    assert session.has_room
    session.sending(held, "2", ApplicationMessage("a", b"", 1))
    assert not session.has_room
