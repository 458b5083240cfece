"""Groups as arrays are the groups that objects of Python are, on the wire and when they are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from protocols.aggregation import columns
from protocols.aggregation.columns import GroupColumns, read_column, read_keys, write_column, write_keys
from protocols.aggregation.functions import Input
from protocols.aggregation.groups import Grouped, GroupStates, Remainder
from protocols.aggregation.numbers import COUNT_MAX
from protocols.aggregation.partial import ExtractionReport, Partial, merge
from protocols.aggregation.query import Query, parse_query
from protocols.aggregation.registry import function_of
from tests.support.examples import examples

pytest.importorskip("numpy")

ALL = ("count", "sum(x)", "min(x)", "max(x)", "mean(x)", "count, mean(x), max(x)", "count, p99(x)", "variance(x)")
keys = st.text(st.sampled_from("abz\u00e9\U0001f600\0"), max_size=4) | st.text(st.sampled_from("ab"), max_size=20)
numbers = st.one_of(
    st.integers(-3, 300),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
)
rows = st.lists(st.tuples(keys, st.integers(-300, 300) | numbers), max_size=8)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=3) | st.binary(max_size=3)


@pytest.fixture(autouse=True)
def few_groups_are_many(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(columns, "ARRAYS_MIN", 1)
    yield
    columns._numpy.cache_clear()


def without_numpy(call: Callable[[], Any]) -> Any:
    """What comes out where numpy is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_numpy", lambda: None)
        return call()


def own(query: Query, contributor: int, pairs: list[tuple[str, Any]]) -> Partial:
    grouped = query.monoid
    assert isinstance(grouped, Grouped)
    takes = [function_of((call,)).takes for call in query.calls]

    def value(number: Any) -> Any:
        values = [0 if each is Input.NOTHING else number for each in takes]
        return values[0] if len(values) == 1 else values

    lifted = (grouped.lift(key, value(number)) for key, number in pairs)
    report = ExtractionReport(records=len(pairs), records_selected=len(pairs))
    return Partial.of(query, NodeId(contributor), reduce(grouped.merge, lifted, grouped.zero), report)


@settings(max_examples=examples(300))
@given(st.sampled_from(ALL), st.sampled_from((20, 2)), rows, rows, rows)
def test_arrays_are_what_objects_are(text: str, most: int, x: Any, y: Any, z: Any) -> None:
    query = parse_query(f"{text} by k", groups_max=most)

    def merged() -> Partial:
        parts = [own(query, contributor, pairs) for contributor, pairs in ((1, x), (2, y), (3, z))]
        decoded = [Partial.decode(part.encode(), query) for part in parts]
        assert decoded == parts
        whole = reduce(merge, decoded)
        assert Partial.decode(whole.encode(), query) == whole
        return whole

    fast, slow = merged(), without_numpy(merged)
    assert fast == slow
    assert repr(fast.value) == repr(slow.value), "of the same types"
    assert fast.encode() == without_numpy(slow.encode)
    for top in (None, 1, 3):
        answers: list[Any] = [fast.finish(top), slow.finish(top)]
        assert answers[0] == answers[1]
        assert list(answers[0].groups) == list(answers[1].groups), "in the same order"


def test_whole_numbers_and_one_kind_of_floats_are_arrays() -> None:
    def is_array(text: str, *values: object) -> bool:
        query = parse_query(f"{text} by k")
        pairs = [(str(number), value) for number, value in enumerate(values)]
        return Partial.decode(own(query, 1, pairs).encode(), query).value.columns is not None

    assert is_array("count, mean(x), max(x)", 1, 2, 2**40)
    assert is_array("min(x)", 1.5, -2.5) and is_array("min(x)", 1, -2)
    assert not is_array("min(x)", 1.5, 2), "an answer would say 2.0"
    assert not is_array("sum(x)", 1.5) and not is_array("sum(x)", 2**63)
    assert not is_array("variance(x)", 1)


def test_what_no_array_can_hold_is_merged_one_by_one() -> None:
    query = parse_query("sum(x) by k")
    parts = [Partial.decode(own(query, each, [("a", 2**62)]).encode(), query) for each in (1, 2, 3)]
    assert all(part.value.columns is not None for part in parts)
    assert reduce(merge, parts).value.groups == {"a": (3 * 2**62, -1)}


def test_a_total_that_no_array_can_hold() -> None:
    query = parse_query("sum(x) by k")
    value = own(query, 1, [("a", 2**62), ("b", 2**62), ("c", 5)]).value
    assert value.as_columns(query.function).totals(query.function.arrays) == [2**63 + 5, -1]
    counted = parse_query("count by k")
    wide = GroupColumns.of(counted.function.arrays, ["a", "b"], [[COUNT_MAX, 1]])
    assert wide is not None and wide.totals(counted.function.arrays) == [COUNT_MAX + 1]


def test_more_groups_than_the_cap_are_folded() -> None:
    query = parse_query("sum(x) by k", groups_max=2)
    a, b = own(query, 1, [("a", 5), ("b", 1)]), own(query, 2, [("a", 1), ("c", 3)])
    merged = merge(*(Partial.decode(part.encode(), query) for part in (a, b)))
    assert merged.value.columns is not None, "as arrays"
    assert merged == merge(a, b)
    assert (merged.value.groups, merged.value.remainder.groups) == ({"a": (6, -1), "c": (3, -1)}, 1)


def test_folded_counts_that_pass_the_bound() -> None:
    query = parse_query("count by k", groups_max=1)
    value = GroupColumns.of(query.function.arrays, list("abcd"), [[2**62 - 1] * 4])
    assert value is not None and isinstance(query.monoid, Grouped)
    with pytest.raises(ProtocolError, match="passes a bound"):
        query.monoid.fold(GroupStates.of(query.function, value, Remainder(0, 0)))


def test_keys_of_very_different_lengths_stay_texts() -> None:
    query = parse_query("count by k")
    part = own(query, 1, [("a", 0), ("b", 0), ("c", 0), ("d", 0), ("e", 0), ("x" * 200, 0)])
    decoded = Partial.decode(part.encode(), query)
    assert decoded.value.columns is None and decoded == part


@given(st.lists(scalars, max_size=6) | st.lists(numbers, max_size=6) | st.lists(st.just(7), max_size=3))
def test_columns_are_read_as_they_were_written(values: list[Any]) -> None:
    narrow = [value for value in values if type(value) is not int or -(2**63) <= value < 2**64]
    back = read_column(write_column(narrow), len(narrow))
    assert repr(list(back)) == repr(narrow)


@given(st.lists(keys, unique=True))
def test_keys_are_read_as_they_were_written(texts: list[str]) -> None:
    lengths, data = write_keys(sorted(texts))
    assert read_keys(lengths, data, len(texts)) == sorted(texts)


@settings(max_examples=examples(300))
@given(st.sampled_from(ALL), rows, st.data())
def test_changed_bytes_are_judged_alike(text: str, pairs: Any, data: st.DataObject) -> None:
    query = parse_query(f"{text} by k", groups_max=20)
    raw = bytearray(own(query, 1, pairs).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(30, len(raw) - 1))] = data.draw(st.integers(0, 255))

    def verdict() -> Partial | str:
        try:
            return Partial.decode(raw, query)
        except ProtocolError as error:
            return error.reason

    fast, slow = verdict(), without_numpy(verdict)
    assert fast == slow
