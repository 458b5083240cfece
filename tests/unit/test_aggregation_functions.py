"""The monoid laws, exactness, and what stays true of capped groups."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import reduce
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from peerd.errors import ProtocolError
from protocols.aggregation.functions import Function
from protocols.aggregation.groups import Grouped, GroupStates, Remainder
from protocols.aggregation.numbers import (
    COUNT_MAX,
    MANTISSA_BITS_MAX,
    Number,
    check_number,
    lift_number,
    parse_number,
    round_sum,
)
from protocols.aggregation.registry import function_named

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)
NUMERIC = ("count", "sum", "min", "max", "mean", "variance", "stddev", "median", "p99", "top", "bottom")
functions = st.sampled_from([function_named(name) for name in NUMERIC] + [function_named("histogram", 0, 1.5)])
rows = st.lists(st.tuples(st.sampled_from("abcdefgh"), numbers), max_size=12)


def whole(function: Function[Any], values: list[Number]) -> Any:
    return reduce(function.merge, map(function.lift, values), function.zero)


def identical(a: Any, b: Any) -> bool:
    """Equal, and of the same types: 1 is not 1.0 here."""
    return repr(a) == repr(b)


@given(functions, st.lists(numbers), st.lists(numbers), st.lists(numbers))
def test_laws(function: Function[Any], x: list[Number], y: list[Number], z: list[Number]) -> None:
    a, b, c = whole(function, x), whole(function, y), whole(function, z)
    assert identical(function.merge(a, b), function.merge(b, a))
    assert identical(function.merge(function.merge(a, b), c), function.merge(a, function.merge(b, c)))
    assert identical(function.merge(a, function.zero), a)
    assert identical(function.merge(function.merge(a, b), c), whole(function, x + y + z))
    assert identical(function.from_columns(function.to_columns(a)), a)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_float_sums_are_rounded_once(values: list[float]) -> None:
    total = sum(map(Fraction, values), Fraction(0))
    assume(abs(total) < 2**1023)
    assert function_named("sum").lower(whole(function_named("sum"), list(values))) == float(total)
    assert function_named("mean").lower(whole(function_named("mean"), list(values))) == float(total / len(values))


def test_cancellation_and_types() -> None:
    total = function_named("sum")
    assert whole(total, [1e300, 1, -1e300, 2**60]) == (1 + 2**60, 0)
    assert identical(total.lower(whole(total, [1e300, 1, -1e300])), 1.0)
    assert total.lower(whole(total, [2**60, 1])) == 2**60 + 1
    assert identical(total.lower(whole(total, [1, 2])), 3)
    assert identical(total.lower(whole(total, [1.5, 1.5])), 3.0)
    assert total.lower(whole(total, [1.7e308, 1.7e308])) == 2 * int(1.7e308)
    assert identical(total.lower(whole(total, [])), 0)
    assert [function_named(name).lower(function_named(name).zero) for name in ("min", "max", "mean")] == [None] * 3
    assert identical(whole(function_named("min"), [1.0, 1, 1.0]), 1)


def test_numbers_that_are_refused() -> None:
    for value in (math.nan, math.inf, -math.inf, 2**1024, True, "1", None):
        assert check_number(value) is None
    assert repr(check_number(-0.0)) == "0.0"
    for text in ("nan", "inf", "1_000", "0x10", "", " 1", "\u0661", "1e999", "9" * 401, "2024-01-01", "-"):
        assert parse_number(text) is None
    assert [parse_number(text) for text in ("+7", "-.5", "1e3", "12.")] == [7, -0.5, 1000.0, 12.0]


def test_overflow_is_refused_not_wrapped() -> None:
    count = function_named("count")
    with pytest.raises(ProtocolError, match="aggregation_overflow"):
        count.merge(COUNT_MAX, 1)
    largest = (1 << MANTISSA_BITS_MAX) - 1
    with pytest.raises(ProtocolError, match="aggregation_overflow"):
        function_named("sum").merge((largest, -1), (1, -1))


def test_no_true_sum_meets_the_bound() -> None:
    tiny, huge = lift_number(5e-324), lift_number(1.7e308)
    assert (huge[0] << tiny[1]).bit_length() + 63 <= MANTISSA_BITS_MAX
    assert round_sum(tiny) == 5e-324


def grouped(function: Function[Any], pairs: list[tuple[str, Number]], cap: int) -> GroupStates[Any]:
    monoid = Grouped(function, cap)
    return reduce(monoid.merge, (monoid.lift(key, value) for key, value in pairs), monoid.zero)


@given(functions, rows, rows, rows)
def test_groups_below_the_cap_obey_the_laws(function: Function[Any], x: Any, y: Any, z: Any) -> None:
    monoid = Grouped(function, 8)
    a, b, c = (grouped(function, part, 8) for part in (x, y, z))
    assert monoid.merge(a, b) == monoid.merge(b, a)
    assert monoid.merge(monoid.merge(a, b), c) == monoid.merge(a, monoid.merge(b, c))
    assert monoid.merge(a, monoid.zero) == a
    assert monoid.lower(a).exact


@given(functions, rows, st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_capped_merge_stays_honest(function: Function[Any], pairs: Any, cap: int, rng: random.Random) -> None:
    exact = grouped(function, pairs, 8)
    parts = [Grouped(function, cap).lift(key, value) for key, value in pairs]
    while len(parts) > 1:
        rng.shuffle(parts)
        parts.append(Grouped(function, cap).merge(parts.pop(), parts.pop()))
    value = parts[0] if parts else Grouped(function, cap).zero
    assert len(value.groups) <= cap
    assert identical(Grouped(function, cap).total(value), Grouped(function, 8).total(exact))
    missing = set(exact.groups) - set(value.groups)
    assert value.remainder.groups >= len(missing)
    if value.remainder.groups == 0:
        assert value == exact
    if function.name == "count":
        for key, count in value.groups.items():
            assert count <= exact.groups[key] <= count + value.remainder.state


def test_the_smallest_are_folded_and_ties_go_by_key() -> None:
    monoid: Grouped[Any] = Grouped(function_named("count"), 2)
    many: GroupStates[Any] = GroupStates({"d": 1, "a": 5, "b": 1, "c": 3, "e": 3}, Remainder(0, 0))
    value = monoid.fold(many)
    assert (value.groups, value.remainder) == ({"a": 5, "c": 3}, Remainder(3, 5))
    answer = monoid.lower(value, top=1)
    assert (dict(answer.groups), answer.groups_total) == ({"a": 5}, 2)
    assert (answer.remainder_groups_max, answer.remainder, answer.exact) == (3, 5, False)
    two: GroupStates[Any] = GroupStates({"a": 4, "b": 2.5}, Remainder(0, None))
    lows = Grouped(function_named("min"), 1).fold(two)
    assert (lows.groups, lows.remainder) == ({"b": 2.5}, Remainder(1, 4))
