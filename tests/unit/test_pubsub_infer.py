"""Schemas proposed from samples: the types, domains with room, and what a person is told."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from protocols.pubsub.schema.document import ATTRIBUTES_MAX
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.schema.infer import propose


def proposed(*values: Any) -> dict[str, Any]:
    """What is proposed for one attribute with these values."""
    [attribute] = propose("s", [{"a": value} for value in values]).document.attributes
    return attribute.model_dump(exclude_defaults=True, mode="json", exclude={"name"})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, False], {"type": "bool"}),
        ([3, 17], {"type": "int", "low": 0, "high": 40}),
        ([-3, 5], {"type": "int", "low": -11, "high": 13}),
        ([0], {"type": "int", "low": 0, "high": 1}),
        ([2**63 - 1], {"type": "int", "low": 0, "high": 2**63 - 1}),
        ([1, 2.25], {"type": "decimal", "low": "0", "high": "5"}),
        ([Decimal("0.0001"), 0.0009], {"type": "decimal", "low": "0", "high": "0.0018"}),
        ([0.1234567890123, 4], {"type": "float", "low": 0.0, "high": 8.0}),
        ([1e300, 1], {"type": "float", "low": 0.0, "high": 3e300}),
        ([1.7e308, -1.7e308, 0.5], {"type": "float", "low": -8e307, "high": 8e307}),
        (["10.1.2.3", "10.1.2.77"], {"type": "ip", "network": "10.1.0.0/16"}),
        (["10.1.2.3", "192.168.0.1"], {"type": "ip", "network": "0.0.0.0/0"}),
        (["2001:db8::1", "2001:db8::2"], {"type": "ip", "network": "2001:db8::/112"}),
        (["10.0.0.1", "::1"], {"type": "ip"}),
        (["IBM", "MSFT"], {"type": "string"}),
        (["", "x"], {"type": "string"}),
        ([f"urn:x:{number}" for number in range(20)], {"type": "string", "low": "urn:x:", "high": "urn:x:"}),
        (["2024-05-01T00:00:00Z"], {"type": "timestamp"}),
    ],
)
def test_types_and_domains(values: list[Any], expected: dict[str, Any]) -> None:
    found = proposed(*values)
    assert {key: found.get(key) for key in expected} == expected


def test_times_have_years_before_and_after() -> None:
    found = proposed("2024-05-01T00:00:00Z", "2025-05-01T00:00:00+02:00")
    assert (found["low"], found["high"]) == ("2023-01-01T00:00:00Z", "2035-01-01T00:00:00Z")
    found = proposed("1678-05-01T00:00:00Z", "2261-05-01T00:00:00Z")
    assert (found["low"], found["high"]) == ("1678-01-01T00:00:00Z", "2262-01-01T00:00:00Z")


def test_what_is_doubtful_is_told() -> None:
    events = [
        {
            "n": 1,
            "mixed": 1,
            "seen": {"at": "2024-05-01T00:00:00Z"},
            "when": "soon",
            "tags": [1],
            "a b": 1,
            "gone": None,
        },
        {"n": 2, "mixed": "x", "seen": {"at": "2024-05-02T00:00:00Z"}, "when": "2024-05-01T00:00:00Z"},
        {"n": 3, "seen": {}, "when": "later", "tags": []},
    ]
    made = propose("logs", events)
    assert [(each.name, each.type.value) for each in made.document.attributes] == [
        ("n", "int"),
        ("seen.at", "timestamp"),
        ("when", "string"),
    ]
    assert made.notes == (
        "mixed is left out: no type has all of its values (int, str)",
        "seen.at is in 2 of 3 events: see `absent`, or give it a default",
        "when is a string, though some of its values look like a time or an address",
        "tags is left out: no type has all of its values (list)",
        "'a b' is left out: a name has letters, digits, _ . and - only, at most 64",
    )


def test_of_too_many_attributes_the_most_frequent_are_kept() -> None:
    wide = {f"a{number}": number for number in range(ATTRIBUTES_MAX + 2)}
    made = propose("s", [wide, {name: 1 for name in wide if name not in ("a0", "a5")}])
    assert len(made.document.attributes) == ATTRIBUTES_MAX
    assert {"a0", "a5"} & {each.name for each in made.document.attributes} == set()
    assert "a5 is left out: a schema has at most 63 attributes" in made.notes


@pytest.mark.parametrize("events", [[], [{}], [{"a": [1]}]])
def test_without_anything_to_declare_there_is_no_proposal(events: list[Any]) -> None:
    with pytest.raises(ValueError, match="no attribute can be declared"):
        propose("s", events)


scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(-1000, 1000, allow_nan=False, places=2),
    st.text(max_size=8),
    st.sampled_from(["2024-05-01T00:00:00Z", "10.0.0.1", "::1", "1678-01-01T00:00:00Z"]),
)


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), scalars, min_size=1), min_size=1, max_size=12))
def test_the_proposed_schema_takes_its_samples(events: list[dict[str, Any]]) -> None:
    try:
        made = propose("s", events)
    except ValueError:
        return
    schema = EventSchema(made.document)
    for event in events:
        values = {name: value for name, value in event.items() if name in schema.attributes}
        read = schema.read_values(values)
        assert read.keys() == values.keys()
        assert schema.decode_values(schema.pack(read)) == read
