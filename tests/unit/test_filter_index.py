"""The matching index equals the naive evaluator, whatever was added and removed before."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from peerd.lib.filter import column, index as index_module
from peerd.lib.filter.errors import FilterTooLarge
from peerd.lib.filter.evaluate import matcher
from peerd.lib.filter.index import FilterIndex
from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Constant, Node
from tests.support.examples import examples
from tests.support.filters import events, naive, naive_where_absent_matches, nodes


def expected(filters: dict[int, Node], event: dict[str, Any]) -> list[int]:
    return sorted(key for key, node in filters.items() if naive(node, event) is True)


def index_of(filters: dict[int, Node]) -> FilterIndex[int]:
    try:
        return FilterIndex(filters.items())
    except FilterTooLarge:
        assume(False)
        raise


@settings(max_examples=examples(200))
@given(st.lists(nodes(leaves=5), max_size=12), st.lists(events, min_size=1, max_size=5))
def test_the_index_finds_what_the_naive_evaluator_finds(made: list[Node], tried: list[dict[str, Any]]) -> None:
    filters = dict(enumerate(made))
    index = index_of(filters)
    for event in tried:
        assert sorted(index.match(event)) == expected(filters, event)


@given(st.data())
def test_it_stays_exact_under_changes(data: st.DataObject) -> None:
    filters: dict[int, Node] = {}
    index: FilterIndex[int] = FilterIndex()
    for step in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["add", "add", "add", "remove", "settle"]))
        if action == "add":
            node = data.draw(nodes(leaves=4))
            try:
                index.add(step, node)
            except FilterTooLarge:
                continue
            filters[step] = node
        elif action == "settle":
            index.settle()
        elif filters:
            key = data.draw(st.sampled_from(sorted(filters)))
            index.remove(key)
            del filters[key]
        assert len(index) == len(filters)
        event = data.draw(events)
        assert sorted(index.match(event)) == expected(filters, event)


def grid(count: int) -> dict[int, Node]:
    """Filters whose ends fall together, and many of them, so that buckets are cut in every way."""
    kinds = [
        "a >= {0} AND a < {1} AND b BETWEEN {2} AND {1}",
        "a = {0} OR b = {1}",
        "a <> {0} AND b > {2}.5",
        "a IN ({0}, {1}, {2}) AND s STARTS WITH 'k{2}'",
        "NOT a BETWEEN {0} AND {1} AND s ENDS WITH '{2}'",
        "s LIKE 'k%{2}' AND a > {0}",
        "s MATCHES 'k[{2}-9].*' AND b IS NULL",
        "EXISTS b AND a <= {1}",
    ]
    return {
        number: parse(kinds[number % len(kinds)].format(number % 13, number % 29 + 2, number % 5))
        for number in range(count)
    }


EVENTS = [
    {"a": a, "b": b, "s": s} if b is not None else {"a": a, "s": s}
    for a in (-1, 0, 3, 3.5, 12, 30, "x")
    for b in (None, 0, 2.5, 4, 31)
    for s in ("k1", "k23", "z4", 7)
]


def test_many_filters_with_common_ends() -> None:
    filters = grid(1500)
    index = FilterIndex(filters.items())
    for event in EVENTS:
        assert sorted(index.match(event)) == expected(filters, event)


def test_every_end_decides_by_itself_in_buckets_that_hold_many() -> None:
    shapes = ("a > {0}", "a >= {0}", "a < {0}", "a BETWEEN {0} AND {1}", "a IN ({0}, {1})", "NOT a BETWEEN {0} AND {1}")
    few = [shapes[number % 6].format(number / 8, number / 8 + number % 7) for number in range(900)]
    many = [f"a > {level} AND b = {number}" for level in (3, 50, 70) for number in range(40)]
    filters = {key: parse(text) for key, text in enumerate(few + many)}
    index = FilterIndex(filters.items())
    for eighth in (*range(0, 900, 41), 24, 25, 400, 401, 560, 561):
        for value in (eighth / 8, eighth / 8 - 0.01, Decimal(eighth) / 8 + Decimal("1e-30"), eighth // 8):
            event = {"a": value, "b": 7}
            assert sorted(index.match(event)) == expected(filters, event)


def test_new_filters_are_built_in_and_removed_ones_forgotten() -> None:
    filters, index = grid(1000), FilterIndex[int]()
    for key, node in filters.items():
        index.add(key, node)
    for key in range(0, 1000, 3):
        index.remove(key)
        del filters[key]
    assert len(index) == len(filters) and 1 in index and 0 not in index
    for event in EVENTS[::7]:
        assert sorted(index.match(event)) == expected(filters, event)
    for key in list(filters):
        index.remove(key)
    assert len(index) == 0 and index.match({"a": 1}) == []
    with pytest.raises(KeyError):
        index.remove(1)


def test_a_key_is_used_once() -> None:
    index = FilterIndex([("one", parse("a = 1"))])
    with pytest.raises(KeyError, match="there is a filter"):
        index.add("one", parse("a = 2"))
    index.add("all", Constant(True))
    index.add("none", Constant(False))
    index.settle()
    assert index.match({}) == ["all"]
    index.remove("none")


def test_a_filter_beyond_the_caps_is_refused_and_changes_nothing() -> None:
    index = FilterIndex([("one", parse("a = 1"))])
    with pytest.raises(FilterTooLarge, match="CONJUNCTS_MAX"):
        index.add("big", parse(" AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(20))))
    assert "big" not in index and index.match({"a": 1}) == ["one"]


def test_many_regular_expressions_are_tried_together() -> None:
    filters = {n: parse(f"s {'NOT ' if n % 2 else ''}MATCHES '(x|y)*{n}[a-c]?'") for n in range(300)}
    index = FilterIndex(filters.items())
    for text in ("x7", "xy123b", "", "299a", "no"):
        assert sorted(index.match({"s": text})) == expected(filters, {"s": text})


def test_a_set_of_expressions_that_runs_out_of_memory_is_replaced_by_the_single_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filters = {n: parse(f"s MATCHES '.*a.{{{n}}}'") for n in range(40)}
    monkeypatch.setattr(index_module, "REGEX_SET_BYTES_MAX", 48 * 1024)
    index = FilterIndex(filters.items())
    for text in ("a" * 30 + "b" * 9, "ab" * 400, "b"):
        assert sorted(index.match({"s": text})) == expected(filters, {"s": text})


@given(st.sets(st.integers(0, 3000)))
def test_slots_of_a_set(slots: set[int]) -> None:
    bits = column.bits_of(slots)
    assert column.positions(bits) == sorted(slots)
    assert column._positions_in_python(bits) == sorted(slots)
    assert column._choose_positions()(bits) == sorted(slots)


@settings(max_examples=examples(200))
@given(st.lists(nodes(leaves=5), max_size=12), st.lists(events, min_size=1, max_size=5))
def test_where_absent_attributes_match_the_index_and_the_matcher_find_what_the_naive_evaluator_finds(
    made: list[Node], tried: list[dict[str, Any]]
) -> None:
    filters: dict[int, Node] = {}
    index: FilterIndex[int] = FilterIndex(absent_matches=True)
    for key, node in enumerate(made):
        try:
            index.add(key, node)
        except FilterTooLarge:
            continue
        filters[key] = node
    for is_settled in (False, True):
        if is_settled:
            index.settle()
        for event in tried:
            wanted = sorted(key for key, node in filters.items() if naive_where_absent_matches(node, event))
            assert sorted(index.match(event)) == wanted
            assert wanted == [key for key, node in filters.items() if matcher(node, absent_matches=True)(event)]


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("a > 5", True),
        ("NOT a > 5", True),
        ("a = 1 AND a = 2", True),
        ("a > 5 AND a IS NOT NULL", False),
        ("a > 5 AND a IS NULL", True),
        ("a LIKE 'x%y' AND b = 1", True),
        ("a > 5 AND b = 2", False),
    ],
)
def test_a_condition_on_an_absent_attribute_can_count_as_true(text: str, matches: bool) -> None:
    index = FilterIndex([("it", parse(text))], absent_matches=True)
    assert index.match({"b": 1}) == (["it"] if matches else [])
