"""Quantiles, counts of distinct values and listings: their errors, every order of merges, and hostile bytes."""

from __future__ import annotations

import math
import random
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, strategies as st

from peerd.errors import ProtocolError
from protocols.aggregation.figures import Estimate, HistogramFigure, Listing
from protocols.aggregation.functions import Function
from protocols.aggregation.numbers import COUNT_MAX
from protocols.aggregation.registry import function_named
from protocols.aggregation.scalars import packed
from protocols.aggregation.sketches import DISTINCT_ERROR, REGISTERS, RELATIVE_ERROR, bucket_key, estimate_of

numbers = st.integers(-(2**1023), 2**1023) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.lists(st.text(max_size=3), max_size=20)


def of(function: Function[Any], values: list[Any]) -> Any:
    """The state of records, as a node that reads them has it."""
    return function.end(reduce(function.add, values, function.begin()))


@given(numbers)
def test_a_bucket_is_as_narrow_as_it_says(value: int | float) -> None:
    found = estimate_of(bucket_key(value))
    slack = 1e-9 * abs(value)
    assert found.low - slack <= value <= found.high + slack
    assert abs(found.estimate - value) <= (RELATIVE_ERROR + 1e-9) * abs(value)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.sampled_from([0, 0.1, 0.5, 0.99, 1]))
def test_a_quantile_is_that_of_the_sorted_numbers(values: list[float], q: float) -> None:
    function = function_named("quantile", q)
    true = sorted(values)[math.floor(q * (len(values) - 1))]
    found = function.lower(of(function, values))
    assert isinstance(found, Estimate)
    assert abs(found.estimate - true) <= (RELATIVE_ERROR + 1e-9) * abs(true)


@pytest.mark.parametrize("count", [0, 1, 10, 1000, 5000, 20_000, 200_000])
def test_distinct_values_are_counted_within_three_standard_errors(count: int) -> None:
    function = function_named("distinct")
    found = function.lower(
        of(function, [f"{number}@example.org" for number in range(count)] * (2 if count < 5000 else 1))
    )
    assert isinstance(found, Estimate)
    assert abs(found.estimate - count) <= 3 * DISTINCT_ERROR * count
    assert found.low <= found.estimate <= found.high


def test_many_counts_of_distinct_values_are_right_on_the_mean() -> None:
    function, rng = function_named("distinct"), random.Random(1)
    errors = []
    for _ in range(40):
        found: Any = function.lower(of(function, [str(rng.random()) for _ in range(3000)]))
        errors.append(found.estimate / 3000 - 1)
        assert abs(errors[-1]) < 4 * DISTINCT_ERROR
    assert abs(sum(errors) / 40) < DISTINCT_ERROR


@given(texts, texts, texts, st.sampled_from([("distinct",), ("values", 3), ("values",)]))
def test_sets_obey_the_laws(x: list[str], y: list[str], z: list[str], how: tuple[Any, ...]) -> None:
    function = function_named(*how)
    a, b, c = (of(function, part) for part in (x, y, z))
    assert function.merge(a, b) == function.merge(b, a)
    assert function.merge(function.merge(a, b), c) == function.merge(a, function.merge(b, c))
    assert function.merge(function.merge(a, b), c) == of(function, x + y + z)
    assert function.merge(a, function.zero) == a
    assert function.from_columns(function.to_columns(a)) == a


@given(*(st.lists(st.lists(numbers, max_size=3).map(tuple), max_size=3) for _ in "abc"))
def test_vectors_obey_the_laws(x: list[Any], y: list[Any], z: list[Any]) -> None:
    function = function_named("vector")
    a, b, c = (of(function, part) for part in (x, y, z))
    assert function.merge(a, b) == function.merge(b, a)
    assert function.merge(function.merge(a, b), c) == function.merge(a, function.merge(b, c))
    assert function.from_columns(function.to_columns(a)) == a


def test_registers_are_written_the_shorter_way() -> None:
    function = function_named("distinct")
    few, many = of(function, ["a"]), of(function, [str(number) for number in range(10_000)])
    assert (len(few), len(many)) == (3, REGISTERS)
    middle = [of(function, [str(number) for number in range(start, start + 700)]) for start in range(0, 2800, 700)]
    merged = reduce(function.merge, middle)
    assert max(map(len, middle)) < REGISTERS == len(merged)
    assert merged == of(function, [str(number) for number in range(2800)])
    assert function.merge(merged, few) == function.merge(few, merged)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("distinct", b"\x00"),
        ("distinct", b"\x10\x00\x01"),
        ("distinct", b"\x00\x01\x00"),
        ("distinct", b"\x00\x01\x36"),
        ("distinct", b"\x00\x02\x01\x00\x01\x01"),
        ("distinct", b"\x00\x01\x01\x00\x01\x01"),
        ("distinct", bytes(REGISTERS)),
        ("distinct", b"\x36" * REGISTERS),
        ("distinct", bytes(3 * REGISTERS)),
        ("distinct", "text"),
        ("p99", packed([1])),
        ("p99", packed([40_000, 1, 39_999, 1])),
        ("p99", packed([40_000, 0])),
        ("p99", packed([40_000, COUNT_MAX, 40_001, 1])),
        ("p99", packed([5, 1])),
        ("p99", packed([2**70, 1])),
        ("p99", packed([40_000, True])),
        ("p99", b"\x91"),
        ("values", b""),
        ("values", packed([0])),
        ("values", packed([True])),
        ("values", packed([False, "b", "a"])),
        ("values", packed([False, "a", "a"])),
        ("values", packed([False, "x" * 300])),
        ("values", packed([False, 7])),
        ("top", packed([1, 2])),
        ("top", packed([math.nan])),
        ("top", packed([1] * 11)),
        ("top", packed(["1"])),
        ("vector", packed([1])),
        ("vector", packed([1, 5000])),
        ("vector", packed([2, 1])),
    ],
)
def test_hostile_states(name: str, state: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        function_named(name).from_columns([state])


def test_a_variance_that_no_numbers_have_is_refused() -> None:
    for state in ((2, 4, -1, 1, -1), (0, 1, -1, 1, -1), (1, 0, -1, -1, -1), (2, 0, -1, True, -1)):
        for name in ("variance", "stddev"):
            with pytest.raises(ValueError, match=r".+"):
                function_named(name).from_columns(state)


def test_answers() -> None:
    def answer(name: str, *arguments: int, values: list[Any]) -> object:
        function = function_named(name, *arguments)
        return function.lower(of(function, values))

    assert answer("variance", values=[1, 2, 3, 4]) == 5 / 3
    assert answer("stddev", values=[1e200, 3e200]) == pytest.approx(1.4142135623730951e200)
    assert answer("variance", values=[0.1] * 7) == 0.0
    assert answer("variance", values=[5]) is None
    assert answer("histogram", 0, 10, values=[-1, 0, 9.5, 10, 11]) == HistogramFigure((0, 10), (1, 2, 2))
    assert answer("top", 2, values=[1, 3, 2, 3]) == Listing((3, 3))
    assert answer("bottom", values=[2, 1.5]) == Listing((1.5, 2))
    assert answer("values", 2, values=["c", "a", "b", "a"]) == Listing(("a", "b"), more=True)
    assert answer("vector", values=[(1, 2), (0.5,), ()]) == Listing((1.5, 2))
    assert answer("median", values=[]) is None


def test_counts_that_pass_their_bound_are_refused() -> None:
    quantile, histogram = function_named("median"), function_named("histogram", 1)
    for function, state in ((quantile, (40_000, COUNT_MAX)), (histogram, (COUNT_MAX, 0))):
        with pytest.raises(ProtocolError, match="aggregation_overflow"):
            function.merge(state, state)
