"""Merging, the contributor rule, the encoding, and hostile bytes."""

from __future__ import annotations

import struct
from functools import reduce
from io import BytesIO
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.ids import NodeId
from protocols.aggregation import groups, partial as module
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.groups import Grouped, GroupStates, Remainder
from protocols.aggregation.numbers import COUNT_MAX, Number
from protocols.aggregation.partial import ExtractionReport, Partial, disjoint, merge
from protocols.aggregation.query import Query, parse_query
from tests.support.aggregation_calls import CALLS, record
from tests.support.examples import examples

numbers = st.integers(-(2**100), 2**100) | st.floats(allow_nan=False, allow_infinity=False).map(
    lambda value: value + 0.0
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
rows = st.lists(st.tuples(keys, numbers), max_size=8)


@st.composite
def queries(draw: st.DrawFn) -> Query:
    texts = draw(st.lists(st.sampled_from(CALLS), min_size=1, max_size=3, unique=True))
    text = ", ".join(texts) + draw(st.sampled_from(["", " by k"]))
    return parse_query(text, groups_max=draw(st.sampled_from([2, 100])))


def own(query: Query, contributor: int, pairs: list[tuple[str, Number]]) -> Partial:
    function: Any = query.function
    records = [(key, record(query, number)) for key, number in pairs]
    value: Any
    if not query.by:
        value = reduce(function.merge, (function.lift(each) for _, each in records), function.zero)
    else:
        grouped: Grouped[Any] = Grouped(function, query.groups_max)
        value = reduce(grouped.merge, (grouped.lift(key, each) for key, each in records), grouped.zero)
    report = ExtractionReport(
        files_read=1, records=len(pairs) + 1, records_selected=len(pairs), notes=(f"{contributor}: binary",)
    )
    return Partial.of(query, NodeId(contributor), value, report)


@given(queries(), st.lists(rows, min_size=1, max_size=4))
def test_merged_partials_round_trip(query: Query, parts: list[Any]) -> None:
    merged = reduce(merge, (own(query, index * 2**120, part) for index, part in enumerate(parts)))
    again = Partial.decode(merged.encode(), query)
    assert again == merged
    assert repr(again.value) == repr(merged.value)
    assert again.finish() == merged.finish()


@given(queries().filter(lambda query: query.groups_max == 100), rows, rows, rows)
def test_merge_is_commutative_and_associative(query: Query, x: Any, y: Any, z: Any) -> None:
    a, b, c = own(query, 3, x), own(query, 1, y), own(query, 2, z)
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, b).contributors == (1, 3)
    assert merge(a, b).report.records == len(x) + len(y) + 2
    assert merge(a, b).shares == ((1, len(y) + 1), (1, len(x) + 1))


def test_a_common_contributor_is_never_merged() -> None:
    query = parse_query("count")
    a, b, c = (own(query, contributor, [("", 1)]) for contributor in (1, 2, 3))
    ab, bc = merge(a, b), merge(b, c)
    assert disjoint(ab, c)
    assert not disjoint(ab, bc)
    with pytest.raises(Bug, match="twice"):
        merge(ab, bc)
    with pytest.raises(Bug, match="different queries"):
        merge(a, own(parse_query("count", files="*.log"), 4, []))
    assert merge(ab, c).finish() == 3
    assert ab.finish() == 2


def test_notes_are_few_short_and_printable() -> None:
    notes = [f"{name}: x\x1b[31m\ud800{'y' * 300}" for name in "zyxwvutsrqponm"]
    kept = module.first_notes(notes)
    assert len(kept) == module.NOTES_MAX
    assert kept[0].startswith("m: x\\x1b[31m\\ud800")
    assert all(note.isprintable() and len(note) <= module.NOTE_CHARACTERS_MAX for note in kept)


def test_groups_answer_largest_first() -> None:
    query = parse_query("count by k")
    answer = own(query, 1, [("a", 0), ("b", 0), ("b", 0)]).finish()
    assert isinstance(answer, GroupedAnswer)
    assert list(answer.groups.items()) == [("b", 2), ("a", 1)]
    assert answer.exact


def stream(*values: object) -> bytes:
    return b"".join(msgpack.packb(value) for value in values)


def counted(
    *value: object,
    contributors: bytes = bytes(16),
    selected: int = 2,
    head: str = "count by k",
    files: bytes = stream(0),
    records: bytes | None = None,
) -> bytes:
    counters = [0, 0, 0, 0, 0, 0, selected, selected, 0, 0]
    read = stream(selected) if records is None else records
    return stream(3, head, contributors, files, read, *counters, 0, *value)


def listed(*values: object) -> bytes:
    """A column, written as scalars."""
    return b"\0" + stream(*values)


GOOD = (2, b"\1\1", b"ab", b"\1\1", 0, 0)
BOTH = (b"\1\1", b"ab")


def test_the_hand_made_encoding_is_the_encoding() -> None:
    query = parse_query("count by k")
    expected = Partial.of(
        query,
        NodeId(0),
        GroupStates({"a": 1, "b": 1}, Remainder(0, 0)),
        ExtractionReport(records=2, records_selected=2),
    )
    assert Partial.decode(counted(*GOOD), query) == expected
    assert expected.encode() == counted(*GOOD)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "too early"),
        (counted(*GOOD)[:-1], "too early"),
        (counted(*GOOD, 0), "follows the end"),
        (stream(1, "count by k"), "version"),
        (counted(*GOOD, records=stream(1)), "do not add up"),
        (counted(*GOOD, files=stream(1)), "do not add up"),
        (counted(*GOOD, files=b""), "too early"),
        (counted(*GOOD, files=stream(0, 0)), "follows the end"),
        (counted(*GOOD, files=stream(False)), "not a whole number"),
        (counted(*GOOD, files=stream(-1)), "not from 0"),
        (counted(2, head="count"), "not a value of the query"),
        (counted(*GOOD, contributors=b""), "contributors"),
        (counted(*GOOD, contributors=bytes(17)), "contributors"),
        (counted(*GOOD, contributors=bytes(32)), "ascending"),
        (counted(*GOOD, contributors=bytes([1] * 16 + [0] * 16)), "ascending"),
        (counted(*GOOD, selected=3), "3 records cannot have"),
        (counted(2, b"\1\1", b"aa", b"\1\1", 0, 0), "not ascending"),
        (counted(2, b"\1\1", b"ba", b"\1\1", 0, 0), "not ascending"),
        (counted(2, b"\1\1", b"abc", b"\1\1", 0, 0), "not those of the keys"),
        (counted(2, b"\1\xff", b"ab", b"\1\1", 0, 0), "more than 256 bytes"),
        (counted(2, b"\2\1", b"ab", b"\1\1", 0, 0), "a column of 1 bytes, expected 2"),
        (counted(2, b"\7\1", b"ab", b"\1\1", 0, 0), "unknown way"),
        (counted(2, b"", b"ab", b"\1\1", 0, 0), "unknown way"),
        (counted(2, listed("a", 1), b"ab", b"\1\1", 0, 0), "no whole number"),
        (counted(2, b"\1\xc0", b"ab", b"\1\1", 0, 0), "repeats what is no whole number"),
        (counted(2, *BOTH, b"\2\2\0", 0, 0), "without records"),
        (counted(2, *BOTH, b"\2\3\xff", 0, 0), "not a count"),
        (counted(2, *BOTH, listed(1, True), 0, 0), "not a count"),
        (counted(2, *BOTH, b"\6" + struct.pack("<dd", 1, 1), 0, 0), "not a count"),
        (counted(2, *BOTH, listed(1.0, 1), 0, 0), "not a count"),
        (counted(2, *BOTH, listed(1, bytes(4)), 0, 0), "shortest form"),
        (counted(2, *BOTH, listed(1), 0, 0), "too early"),
        (counted(1, b"\1\1", b"a", b"\1\1", 0, 1), "remainder of no groups"),
        (counted(1, b"\1\xcd\1\x2c", b"x" * 300, b"\1\2", 0, 0), "more than 256 bytes"),
        (counted(10**6, b"", b"", b"", 0, 0), "whole number"),
        (counted(2, *BOTH, listed({}, {}), 0, 0), "where a scalar belongs"),
        (counted(2, *BOTH, listed(1, []), 0, 0), "where a scalar belongs"),
        (counted(2, *BOTH, b"\0\xc7\x00\x05\x01", 0, 0), "where a scalar belongs"),
        (counted(2, listed(["a"], 1), b"ab", b"\1\1", 0, 0), "exceeds max_array_len"),
        (counted(*GOOD, files=stream({})), "where a scalar belongs"),
        (counted(2, b"\1\1", b"a\xff", b"\1\1", 0, 0), "no UTF-8"),
        (counted(2, *BOTH, b"\0\xc1", 0, 0), "not msgpack"),
        (b"\x91" * 100_000, "exceeds max_array_len"),
        (b"\xc1", "not msgpack"),
        (b"\xdd\xff\xff\xff\xff", "exceeds max_array_len"),
    ],
)
def test_hostile_partials(data: bytes, expected: str) -> None:
    with pytest.raises(ProtocolError, match=expected) as caught:
        Partial.decode(data, parse_query("count by k"))
    assert caught.value.reason == "aggregation_partial"


def test_states_that_are_not_canonical() -> None:
    head = (bytes(16), stream(0), stream(1), 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0)
    assert Partial.decode(stream(3, "sum(x)", *head, 1, 0), parse_query("sum(x)")).shares == ((0, 1),)
    for function, columns in (("sum", (2, 1)), ("sum", (1, 2000)), ("sum", (1, -2)), ("min", (float("nan"),))):
        with pytest.raises(ProtocolError):
            Partial.decode(stream(3, f"{function}(x)", *head, *columns), parse_query(f"{function}(x)"))
    for mean in ((0, 1, -1), (1, 1.5, 0), (2, 1, 0)):
        with pytest.raises(ProtocolError):
            Partial.decode(stream(3, "mean(x)", *head, *mean), parse_query("mean(x)"))


@given(st.binary(max_size=300), queries())
def test_random_bytes_are_a_protocol_error(data: bytes, query: Query) -> None:
    with pytest.raises(ProtocolError):
        Partial.decode(data, query)


@settings(max_examples=examples(200))
@given(queries(), rows, st.data())
def test_changed_bytes_decode_to_something_valid_or_a_protocol_error(
    query: Query, part: Any, data: st.DataObject
) -> None:
    raw = bytearray(own(query, 2**127, part).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = Partial.decode(raw, query)
    except ProtocolError:
        return
    assert Partial.decode(decoded.encode(), query) == decoded
    decoded.finish()


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-1, 3),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=20),
    st.sampled_from([{}, [], msgpack.ExtType(5, b"")]),
)
"""What a place of an encoded partial may be replaced by: also what is no scalar and yet within limits of 0."""


@st.composite
def forged_partials(draw: st.DrawFn) -> tuple[bytes, Query]:
    """A true encoding with some of its values replaced, in columns, too."""
    query = draw(queries())
    values = list(msgpack.Unpacker(BytesIO(own(query, 2**127, draw(rows)).encode())))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(values) - 1))
        columns = st.lists(scalars, max_size=4).map(lambda column: stream(*column))
        values[place] = draw(scalars | columns)
    return stream(*values), query


@settings(max_examples=examples(500))
@given(forged_partials())
def test_forged_values_decode_to_something_valid_or_a_protocol_error(forged: tuple[bytes, Query]) -> None:
    data, query = forged
    try:
        decoded = Partial.decode(data, query)
    except ProtocolError:
        return
    assert Partial.decode(decoded.encode(), query) == decoded
    decoded.finish()


@settings(max_examples=examples(300))
@given(
    st.sampled_from(CALLS),
    st.lists(st.lists(scalars, min_size=2, max_size=2), min_size=5, max_size=5),
    st.lists(scalars, min_size=5, max_size=5),
    st.integers(0, 2),
)
def test_forged_columns_of_every_function(call: str, columns: Any, remainder: Any, folded: int) -> None:
    query = parse_query(f"{call} by k")
    function = query.function
    counters = (0, 0, 0, 0, 0, 0, 2, 2, 0, 0)
    head = (3, query.head, bytes(16), stream(0), stream(2), *counters, 0, 2, *BOTH)
    packed = (listed(*column) for column in columns[: function.columns])
    try:
        decoded = Partial.decode(stream(*head, *packed, folded, *remainder[: function.columns]), query)
    except ProtocolError:
        return
    assert Partial.decode(decoded.encode(), query) == decoded


def test_states_that_expand_in_memory_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    query = parse_query("count, values(t), distinct(t) by k")
    value = own(query, 1, [("a", 1), ("b", 2), ("c", 3)])
    data = value.encode()
    monkeypatch.setattr(groups, "EXPANDING_BYTES_MAX", 8)
    with pytest.raises(Unavailable, match="groups_max"):
        value.encode()
    with pytest.raises(ProtocolError, match="more than 8 bytes"):
        Partial.decode(data, query)
    exact = own(parse_query("count, distinct(t) by k"), 1, [("a", 1), ("b", 2), ("c", 3)])
    assert Partial.decode(exact.encode(), exact.query) == exact


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    query = parse_query("count")
    half = ExtractionReport(bytes_read=COUNT_MAX, records=1, records_selected=1)
    a, b = (Partial.of(query, NodeId(contributor), 1, half) for contributor in (1, 2))
    with pytest.raises(ProtocolError, match="aggregation_overflow"):
        merge(a, b)
    small = own(query, 3, [])
    monkeypatch.setattr(module, "CONTRIBUTORS_MAX", 1)
    with pytest.raises(ProtocolError, match="contributors"):
        merge(a, small)
    data = small.encode()
    monkeypatch.setattr(module, "PARTIAL_BYTES_MAX", len(data) - 1)
    with pytest.raises(Unavailable, match="groups_max"):
        small.encode()
    with pytest.raises(ProtocolError, match="more than"):
        Partial.decode(data, query)
