"""Headers of events: what a client may give, and that they arrive as they were given, signed if the schema says so."""

from __future__ import annotations

import re
import typing
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from peerd.wire.codec import encode
from peerd.wire.frames import frame_size
from protocols.pubsub.bodies import event_bytes, event_statement, headers_bytes, id_of
from protocols.pubsub.delivering.messages import HoldEvents
from protocols.pubsub.messages import HEADER_NAME_MAX, HEADERS_BYTES_MAX, HEADERS_MAX, EventBody, EventHeader
from protocols.pubsub.publishing.event import draft_from_json, read_headers
from protocols.pubsub.schema.values import EventError
from protocols.pubsub.subscribing.inlets import shown_event
from tests.support.golden import sample
from tests.support.pubsub_leaf import event
from tests.support.pubsub_schemas import schema


def body(*pairs: tuple[str, str]) -> EventBody:
    return replace(event(1), headers=tuple(EventHeader(*pair) for pair in pairs))


def held(event: EventBody) -> HoldEvents:
    return replace(typing.cast(HoldEvents, sample(HoldEvents)), events=(event,))


@pytest.mark.parametrize(
    ("value", "pairs"),
    [
        ({"trace": "7", "user": "ann"}, [("trace", "7"), ("user", "ann")]),
        ([["a", "1"], ["b", ""], ["a", "2"]], [("a", "1"), ("b", ""), ("a", "2")]),
        ({}, []),
        (None, []),
    ],
)
def test_headers_arrive_as_they_were_given(value: Any, pairs: list[tuple[str, str]]) -> None:
    draft = draft_from_json(schema(), {"price": "1", "_headers": value})
    assert [(header.name, header.value) for header in draft.headers] == pairs
    assert shown_event(id_of(event := body(*pairs)), event, {}, is_replay=False).headers == tuple(pairs)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("x", "an object of texts, or a list of pairs"),
        ({"a": 1}, "an object of texts"),
        ({"": "x"}, "an object of texts"),
        ({"x" * (HEADER_NAME_MAX + 1): ""}, "an object of texts"),
        ([["a"]], "a list of pairs"),
        ([["a", "b", "c"]], "a list of pairs"),
        ({f"n{number}": "" for number in range(HEADERS_MAX + 1)}, "at most 32 headers"),
        ({"a": "x" * HEADERS_BYTES_MAX}, "together at most 4096 bytes"),
        ({"a": "\ud800"}, "valid Unicode"),
    ],
)
def test_wrong_headers_are_refused_in_words(value: Any, what: str) -> None:
    with pytest.raises(EventError, match=re.escape(what)):
        draft_from_json(schema(), {"price": "1", "_headers": value})


@given(st.lists(st.tuples(st.text("aé\U0001f600", min_size=1, max_size=40), st.text("bß€", max_size=90)), max_size=16))
def test_headers_never_take_more_than_is_counted(pairs: list[tuple[str, str]]) -> None:
    headers = read_headers([list(pair) for pair in pairs])
    messages = (held(body()), held(replace(body(), headers=headers)))
    bare, full = (frame_size(encode(message)) for message in messages)
    assert full - bare <= headers_bytes(headers) + 2  # two bytes: the length of a list of more than 15 headers
    assert event_bytes(replace(body(), headers=headers)) - event_bytes(body()) == headers_bytes(headers)


def test_the_publishers_proof_is_also_for_the_headers() -> None:
    statements = {
        event_statement("s", body(*pairs))
        for pairs in ([], [("a", "b")], [("ab", "")], [("a", "b"), ("c", "d")], [("c", "d"), ("a", "b")])
    }
    assert len(statements) == 5
