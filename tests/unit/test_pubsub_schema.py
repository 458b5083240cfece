"""Schemas: documents and their errors, versions, events to the wire and back, filters by names and types."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from peerd.errors import ConfigError, ProtocolError
from peerd.lib.filter import FilterError, FilterTooLarge, Node
from peerd.lib.filter.normal import NormalForm, normal_form
from peerd.lib.filter.write import write
from protocols.pubsub.messages import PAYLOAD_BYTES_MAX
from protocols.pubsub.names import EVERY
from protocols.pubsub.publishing.event import EventDraft, draft_from_json
from protocols.pubsub.schema import event_schema as module
from protocols.pubsub.schema.document import ATTRIBUTES_MAX
from protocols.pubsub.schema.event_schema import CUTOFF_MIN, FORMS_KEPT, EventSchema
from protocols.pubsub.schema.values import EventError
from protocols.pubsub.tree.cells import SIDE, Target
from tests.support.pubsub_schemas import DOCUMENT, events, filters, schema, wanted

PRICE = {"name": "price", "type": "decimal", "low": 0, "high": 100}


def attribute(**keys: Any) -> dict[str, Any]:
    return {"name": "s", "attributes": [{"name": "a", **keys}]}


# --- documents ------------------------------------------------------------------------------------------------------


def test_a_schema_is_written_in_toml_and_kept_as_json() -> None:
    text = """
        name = "trades"
        absent = "matches"
        [[attributes]]
        name = "price"
        type = "decimal"
        low = 0.1
        high = 100
        [[attributes]]
        name = "at"
        type = "timestamp"
        low = 2024-01-01T00:00:00Z
        high = "2025-01-01T00:00:00+01:00"
    """
    made = EventSchema.read(tomllib.loads(text))
    assert (made.name, made.version, made.absent_matches, made.is_signed) == ("trades", 1, True, False)
    again = EventSchema.from_json(made.document.to_json())
    assert again.why_not_after(made) == "" == made.why_not_after(again)
    assert again.document.to_json() == made.document.to_json()
    assert made.attributes["price"].axis.holds(Decimal("0.1"))


@pytest.mark.parametrize(
    ("document", "where", "what"),
    [
        ({"attributes": [PRICE]}, "name", "has to be there"),
        ({"name": "a b", "attributes": [PRICE]}, "name", "matches"),
        ({"name": "s", "attributes": []}, "attributes", "at least 1"),
        ({"name": "s", "attributes": [PRICE] * (ATTRIBUTES_MAX + 1)}, "attributes", "at most 63"),
        ({"name": "s", "attributes": [PRICE, PRICE]}, "attributes.price", "two attributes"),
        ({"name": "s", "attributes": [PRICE], "absent": "maybe"}, "absent", "'fails' or 'matches'"),
        ({"name": "s", "attributes": [PRICE], "version": 0}, "version", "at least 1"),
        ({"name": "s", "attributes": [PRICE], "colour": "red"}, "colour", "no such key"),
        ({"name": "s", "attributes": [{"type": "int"}]}, "attributes.number 1.name", "has to be there"),
        (attribute(type="integer"), "attributes.a.type", "expected 'int', 'float', 'decimal'"),
        (attribute(type="int", low=1), "attributes.a.high", "needs it"),
        (attribute(type="int", low=3, high=3), "attributes.a.high", "above low"),
        (attribute(type="int", low=0.5, high=3), "attributes.a.low", "whole number"),
        (attribute(type="int", low=0, high=1 << 64), "attributes.a.high", "64 bits"),
        (attribute(type="float", low=float("nan"), high=1), "attributes.a.low", "finite"),
        (attribute(type="float", low=-1.7e308, high=1.7e308), "attributes.a.high", "too far apart"),
        (attribute(type="decimal", low="1_0", high="20"), "attributes.a.low", "decimal"),
        (attribute(type="timestamp", low="2024-01-01", high="2025-01-01T00:00:00Z"), "attributes.a.low", "time"),
        (attribute(type="bool", low=0), "attributes.a.low", "none"),
        (attribute(type="string", network="10.0.0.0/8"), "attributes.a.network", "for type ip"),
        (attribute(type="string", low="b", high="a"), "attributes.a.high", "before low"),
        (attribute(type="ip", network="10.0.0.0/99"), "attributes.a.network", "10.0.0.0/8"),
        (attribute(type="int", low=0, high=9, default=10), "attributes.a.default", "outside the domain"),
        (attribute(type="bool", default="yes"), "attributes.a.default", "true or false"),
        (attribute(type="string", reversed_of="a"), "attributes.a.reversed_of", "another attribute"),
        (attribute(type="bool", cutoff=0), "attributes.a.cutoff", "more than 0"),
        (attribute(type="int", low=True, high=3), "attributes.a.low", "whole number"),
    ],
)
def test_an_error_in_a_document_names_file_and_key(document: Mapping[str, Any], where: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        EventSchema.read(document, file="trades.toml")
    assert (caught.value.file, caught.value.key) == ("trades.toml", where)
    assert str(caught.value).startswith(f"trades.toml: {where}: ")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 20_000, b'{"name": "s"}', b" " * 30_000])
def test_what_a_stranger_keeps_as_a_schema_is_checked(data: bytes) -> None:
    with pytest.raises(ConfigError):
        EventSchema.from_json(data)


def test_a_later_version_may_only_append() -> None:
    old = schema()
    attributes = DOCUMENT["attributes"]
    more = {"name": "extra", "type": "bool", "default": False}
    assert schema(version=2, attributes=[*attributes, more]).why_not_after(old) == ""
    assert schema(description="other words").why_not_after(old) == ""
    assert "higher version" in schema(attributes=[*attributes, more]).why_not_after(old)
    assert "is known already" in old.why_not_after(schema(version=2))
    assert "attribute 1 was price" in schema(version=2, attributes=[more, *attributes]).why_not_after(old)
    assert "attribute 8 was from" in schema(version=2, attributes=attributes[:-1]).why_not_after(old)
    wider = [{**attributes[0], "high": 200}, *attributes[1:]]
    assert "appended" in schema(version=2, attributes=wider).why_not_after(old)
    assert schema(version=2, absent="matches").why_not_after(old) == "absent was 'fails' in version 1, and stays"
    assert schema(version=2, signed=True).why_not_after(old) == "signed was False in version 1, and stays"


# --- values ---------------------------------------------------------------------------------------------------------


def packed(used: EventSchema, values: dict[Any, Any]) -> bytes:
    """An event's values on the wire."""
    return used.pack(used.read_values(values))


@given(events)
def test_values_survive_the_wire(values: dict[str, Any]) -> None:
    used = schema()
    sent = used.read_values(values)
    data = packed(used, values)
    assert used.decode_values(data) == sent
    assert used.pack(sent) == data, "what was read can be encoded again"
    assert used.visible(sent).keys() == values.keys()
    if "sym" in values:
        assert sent["mys"] == values["sym"][::-1]


def test_values_are_made_what_filters_read() -> None:
    used = schema()
    at = datetime(2024, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1)))
    given = {"price": 0.1, "load": 1, "at": at, "from": ipaddress.IPv4Address("10.0.0.1"), "count": None}
    read = used.decode_values(packed(used, given))
    assert read == {"price": Decimal("0.1"), "load": 1.0, "at": "2024-01-01T00:00:01Z", "from": "10.0.0.1"}
    assert type(read["load"]) is float
    assert used.read_values({"at": "2024-01-01 02:00:01.50+02:00"}) == {"at": "2024-01-01T00:00:01.5Z"}
    assert used.read_values({"price": "12.50"})["price"] == Decimal("12.50")


@pytest.mark.parametrize(
    ("values", "attribute", "what"),
    [
        ({"prize": 1}, "prize", "did you mean price?"),
        ({"xyzzy": 1}, "xyzzy", "it has price, count"),
        ({"price": True}, "price", "a decimal"),
        ({"price": "cheap"}, "price", "not 'cheap'"),
        ({"price": "1" * 65}, "price", "at most 64 characters"),
        ({"price": "1E+999"}, "price", "a decimal"),
        ({"count": 1.0}, "count", "a whole number"),
        ({"count": 1 << 64}, "count", "64 bits"),
        ({"load": float("nan")}, "load", "finite"),
        ({"load": 10**400}, "load", "finite"),
        ({"sym": 5}, "sym", "a string"),
        ({"sym": "\ud800"}, "sym", "a string"),
        ({"sym": "x" * 5000}, "sym", "at most 4096"),
        ({"mys": "MBI"}, "mys", "filled in by the node, from sym"),
        ({"open": "yes"}, "open", "true or false"),
        ({"at": "2024-01-01T00:00:00"}, "at", "a time"),
        ({"at": "9999-01-01T00:00:00Z"}, "at", "from 1678 to 2262"),
        ({"from": "10.0.0"}, "from", "an IP address"),
        ({"sym": ["IBM"]}, "sym", "not a list"),
        ({"sym": {"is": "IBM"}}, "sym", "not an object"),
        ({"a": {"b": 1}}, "a.b", "no attribute"),
        ({1: 2}, "", "is a string"),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": {"j": 1}}}}}}}}}}, "a.b.c.d.e.f.g.h.i", "nested"),
    ],
)
def test_an_error_in_an_event_names_the_attribute(values: dict[Any, Any], attribute: str, what: str) -> None:
    with pytest.raises(EventError) as caught:
        packed(schema(), values)
    assert what in str(caught.value)
    assert caught.value.attribute == attribute


@pytest.mark.parametrize(
    ("values", "domain"),
    [
        ({"price": 101}, "0 to 100"),
        ({"count": -51}, "-50 to 50"),
        ({"load": 1.5}, "0 to 1"),
        ({"sym": "a"}, "'A' to 'Z'"),
        ({"at": "2023-01-01T00:00:00Z"}, "2024-01-01T00:00:00.5Z to 2024-01-01T00:00:02Z"),
        ({"from": "11.0.0.1"}, "10.0.0.0 to 10.255.255.255"),
        ({"from": "::1"}, "10.0.0.0 to 10.255.255.255"),
    ],
)
def test_a_value_outside_its_domain_is_refused_or_routed_as_the_nearest(values: dict[str, Any], domain: str) -> None:
    with pytest.raises(EventError, match=f"lies outside the domain, {domain}"):
        packed(schema(outside="refuse"), values)
    lenient = schema()
    data = packed(lenient, values)
    assert lenient.visible(lenient.decode_values(data)).keys() == values.keys()
    with pytest.raises(ProtocolError, match="outside the domain"):
        schema(outside="refuse").decode_values(data)


def test_objects_in_an_event_are_names_with_dots() -> None:
    used = EventSchema.read(attribute(type="int", low=0, high=9) | {"attributes": [{"name": "a.b", "type": "bool"}]})
    assert used.read_values({"a": {"b": True}}) == {"a.b": True} == used.read_values({"a.b": True})


def test_defaults_are_filled_in_by_who_publishes_and_by_who_reads() -> None:
    old = schema()
    more = {"name": "venue", "type": "string", "default": "N"}
    new = schema(version=2, attributes=[*DOCUMENT["attributes"], more])
    assert new.decode_values(packed(old, {"count": 1})) == {"count": 1, "venue": "N"}
    assert old.decode_values(packed(new, {"count": 1, "venue": "Q"})) == {"count": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({1: 1}),
        msgpack.packb({"01": 1}),
        msgpack.packb({"x": 1}),
        msgpack.packb({"2": "1"}),
        msgpack.packb({"2": True}),
        msgpack.packb({"3": 1}),
        msgpack.packb({"3": float("inf")}),
        msgpack.packb({"1": "NaN"}),
        msgpack.packb({"1": "1E+9999"}),
        msgpack.packb({"1": 5}),
        msgpack.packb({"5": "MBI"}),
        msgpack.packb({"7": 1 << 63}),
        msgpack.packb({"8": b"abc"}),
        msgpack.packb({"4": [1]}),
        msgpack.packb({"4": "x" * 17_000}),
    ],
)
def test_values_from_strangers_are_checked(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="event_values"):
        schema().decode_values(data)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_values_or_a_protocol_error(data: bytes) -> None:
    try:
        found = schema().decode_values(data)
    except ProtocolError:
        return
    assert found.keys() <= schema().attributes.keys()


# --- targets --------------------------------------------------------------------------------------------------------


def test_an_event_visits_the_trees_of_its_attributes_and_the_tree_of_the_rest() -> None:
    used = schema()
    targets = used.targets(used.read_values({"price": 50, "sym": "IBM"}))
    assert list(targets) == [EVERY, 1, 4, 5]
    assert targets[EVERY] == Target(None, SIDE)
    assert targets[1] == Target(SIDE // 2, SIDE // 4)
    everywhere = schema(absent="matches")
    targets = everywhere.targets(everywhere.read_values({"price": 50}))
    assert list(targets) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert targets[2] == Target(None, SIDE // 4)


def test_attributes_may_be_left_out_of_routing_and_have_cut_offs_of_their_own() -> None:
    keys = [
        {**PRICE, "cutoff": 0.5},
        {**PRICE, "name": "size", "routed": False},
        {**PRICE, "name": "x", "cutoff": 1e-9},
    ]
    used = EventSchema.read({"name": "s", "attributes": keys}, cutoff=0.25)
    targets = used.targets(used.read_values({"price": 1, "size": 2, "x": 3}))
    assert {number: target.length_max for number, target in targets.items()} == {
        0: SIDE,
        1: SIDE // 2,
        3: int(SIDE * CUTOFF_MIN),
    }


# --- filters --------------------------------------------------------------------------------------------------------


def test_filters_are_typed_by_the_schema() -> None:
    used = schema()
    node = used.parse_filter("price = 0.1 AND at > '2024-01-01T00:00:00Z'")
    assert write(node) == "price = DECIMAL '0.1' AND at > TIMESTAMP '2024-01-01T00:00:00Z'"
    assert write(used.parse_filter({"price": [{"numeric": [">", 5]}]})) == "price > 5"
    assert write(used.parse_filter([{"prefix": {"sym": "IB"}}])) == "sym STARTS WITH 'IB'"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("prize > 5", "did you mean price"),
        ("price > 'cheap'", "price is decimal"),
        ("count LIKE 'x%'", "count is int"),
        ("price >", "expected"),
        ("from IN CIDR 'x'", "network"),
    ],
)
def test_a_filter_that_does_not_fit_the_schema_is_refused(text: str, what: str) -> None:
    with pytest.raises(FilterError, match=what):
        schema().parse_filter(text)


BOMB = " AND ".join(f"(price > {number} OR sym CONTAINS 'x{number}')" for number in range(7))


@pytest.mark.parametrize("absent", ["fails", "matches"])
def test_filter_bombs_are_refused_by_the_limits_of_the_language(absent: str) -> None:
    with pytest.raises(FilterTooLarge) as caught:
        schema(absent=absent).parse_filter(BOMB)
    assert caught.value.limit in ("CONJUNCTS_MAX", "NORMAL_STEPS_MAX")


@given(filters, filters, events, st.sampled_from(["fails", "matches"]))
def test_what_is_covered_never_matches_alone(wide: Any, narrow: Any, values: dict[str, Any], absent: str) -> None:
    used = schema(absent=absent)
    try:
        is_covered = used.covers(wide, narrow)
    except FilterTooLarge:
        return
    read = used.read_values(values)
    assert used.matcher(wide)(read) is wanted(used, wide, read)
    if is_covered and wanted(used, narrow, read):
        assert wanted(used, wide, read)


def test_a_range_covers_a_narrower_one_in_both_meanings() -> None:
    for absent in ("fails", "matches"):
        used = schema(absent=absent)
        wide, narrow = used.parse_filter("price > 5"), used.parse_filter("price > 7 AND sym = 'IBM'")
        assert used.covers(wide, narrow)
        assert not used.covers(narrow, wide)
    there = "price IS NOT NULL"
    assert schema().covers(schema().parse_filter(there), schema().parse_filter("price > 5"))
    used = schema(absent="matches")
    assert not used.covers(used.parse_filter(there), used.parse_filter("price > 5"))


# --- events ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "payload"),
    [({"_payload": "päyload"}, "päyload".encode()), ({"_payload_base64": "/wA="}, b"\xff\0"), ({}, b"")],
)
def test_members_that_begin_with_a_line_are_no_attributes(rest: dict[str, str], payload: bytes) -> None:
    used = schema()
    draft = draft_from_json(
        used, {"price": "1.50", "sym": "IBM", "_content_type": "text/plain", "_retain": "IBM", **rest}
    )
    assert draft == EventDraft(used.read_values({"price": "1.50", "sym": "IBM"}), payload, "text/plain", b"IBM")


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"_payloud": ""}, "'_payloud' is not known"),
        ({"_payload": 5}, "_payload is text, not 5"),
        ({"_payload": "a", "_payload_base64": "YQ=="}, "not both"),
        ({"_payload_base64": "??"}, "base64"),
        ({"_payload": "\ud800"}, "Unicode"),
        ({"_payload": "x" * (PAYLOAD_BYTES_MAX + 1)}, "at most 32768 bytes"),
        ({"_content_type": "x" * 65}, "at most 64 bytes, not 65"),
        ({"_content_type": "ж" * 33}, "at most 64 bytes, not 66"),
        ({"_retain": "x" * 257}, "at most 256 bytes"),
    ],
)
def test_a_wrong_event_is_refused_in_words(document: dict[str, Any], what: str) -> None:
    with pytest.raises(EventError, match=what):
        draft_from_json(schema(), document)


def test_too_many_bytes_of_values_are_refused() -> None:
    many = [{"name": f"a{number}", "type": "string"} for number in range(6)]
    used = EventSchema.read({"name": "s", "attributes": many})
    with pytest.raises(EventError, match="at most 16384 bytes"):
        packed(used, {f"a{number}": "x" * 4000 for number in range(6)})


def test_a_new_filter_is_compared_with_old_ones_without_reading_these_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(node: Node, *, absent_matches: bool = False) -> NormalForm:
        made.append(node)
        return normal_form(node, absent_matches=absent_matches)

    monkeypatch.setattr(module, "normal_form", counted)
    trades = schema()
    old = [trades.parse_filter(f"price > {number} AND count = {number}") for number in range(40)]
    for number in range(5):
        new = trades.parse_filter(f"price > 50 AND count = {number}")
        assert [trades.covers(each, new) for each in old].index(True) == number
    assert len(made) == 45
    for number in range(2 * FORMS_KEPT):
        trades.form(trades.parse_filter(f"count = {number} OR load = {number}"))
    assert len(trades._forms) == FORMS_KEPT
