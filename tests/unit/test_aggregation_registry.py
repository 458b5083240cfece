"""Functions of other packages are found by their entry points, and must obey the laws; several functions are one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import given, strategies as st

from protocols.aggregation import registry
from protocols.aggregation.figures import Figures
from protocols.aggregation.functions import Count, Function, Mean, Sum, adder
from protocols.aggregation.numbers import Number
from protocols.aggregation.patterns import QueryError
from protocols.aggregation.query import parse_query
from protocols.aggregation.registry import FUNCTIONS, check_laws, function_named


class Parity(Function[int]):
    """How many numbers are odd, modulo 2."""

    name, zero = "parity", 0

    def lift(self, value: Number) -> int:
        return int(value) & 1

    def merge(self, a: int, b: int) -> int:
        return a ^ b

    def lower(self, state: int) -> int:
        return state

    def rank(self, state: int) -> int:
        return state

    def to_columns(self, state: int) -> tuple[object, ...]:
        return (state,)

    def from_columns(self, values: Sequence[object]) -> int:
        if values[0] not in (0, 1):
            raise ValueError("not a parity")
        return int(values[0] == 1)


class Last(Parity):
    """What came last: the order of merges shows."""

    name = "last"

    def merge(self, a: int, b: int) -> int:
        return b or a

    def lift(self, value: Number) -> int:
        return int(value) & 3

    def from_columns(self, values: Sequence[object]) -> int:
        return int(str(values[0]))


class Difference(Parity):
    """Not associative."""

    name = "difference"

    def merge(self, a: int, b: int) -> int:
        return abs(a - b)

    def lift(self, value: Number) -> int:
        return int(value) & 7

    def from_columns(self, values: Sequence[object]) -> int:
        return int(str(values[0]))


class Shifted(Parity):
    """Its zero is not neutral."""

    name, zero = "shifted", 1


class Forgetful(Parity):
    """Does not read what it writes."""

    name = "forgetful"

    def from_columns(self, values: Sequence[object]) -> int:
        return 0


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with good and bad functions is installed."""
    kinds = {"parity": "Parity", "last": "Last", "wrong": "Parity", "gone": "Gone", "noclass": "FUNCTIONS"}
    found = {
        name: [EntryPoint(name, f"tests.unit.test_aggregation_registry:{value}", registry.ENTRY_POINTS)]
        for name, value in kinds.items()
    }
    found["twice"] = found["parity"] * 2
    monkeypatch.setattr(registry, "installed", lambda group: sorted(found))
    monkeypatch.setattr(registry, "entries", lambda group, name: found.get(name, []))
    registry._of_others.cache_clear()
    registry.function_of.cache_clear()
    yield
    registry._of_others.cache_clear()
    registry.function_of.cache_clear()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_obeys_the_laws(name: str) -> None:
    arguments = {"quantile": (0.5,), "histogram": (0, 1)}
    check_laws(function_named(name, *arguments.get(name, ())))


def test_a_function_of_another_package_is_used_like_any(installed: None) -> None:
    query = parse_query("parity(x), sum(x)")
    state = query.function.end(query.function.add(query.function.begin(), [3, 3]))
    answer: object = query.function.lower(state)
    assert answer == Figures({"parity(x)": 1, "sum(x)": 3})
    with pytest.raises(QueryError, match="takes no number"):
        parse_query("parity(x, 2)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("last(x)", "not commutative"),
        ("wrong(x)", "no aggregation function named wrong"),
        ("gone(x)", "cannot be used"),
        ("noclass(x)", "cannot be used"),
        ("twice(x)", "two packages have a function twice"),
        ("unknown(x)", r"expected one of count, .*last, noclass, parity, twice, wrong, or p99"),
    ],
)
def test_a_bad_one_is_refused_with_the_reason(installed: None, text: str, expected: str) -> None:
    with pytest.raises(QueryError, match=expected):
        parse_query(text)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Difference(), "not associative"),
        (Shifted(), "no monoid"),
        (Forgetful(), "does not read"),
    ],
)
def test_laws_that_are_broken(function: Function[int], expected: str) -> None:
    with pytest.raises(QueryError, match=expected):
        check_laws(function)


def test_what_adds_up_otherwise_than_it_merges_is_refused() -> None:
    class Doubling(Sum):
        """Counts each record twice while it reads."""

        def add(self, tally: object, value: Number) -> object:
            return super().add(super().add(tally, value), value)

    with pytest.raises(QueryError, match="add records up"):
        check_laws(Doubling())


@pytest.mark.parametrize("function", [Count(), Sum(), Mean()])
@given(values=st.lists(st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)))
def test_what_is_added_quickly_is_what_states_are_merged_to(function: Function[Any], values: list[Number]) -> None:
    tally = reduce(adder(function), values, function.begin())
    assert tally == function.merge_all(list(map(function.lift, values)))


def test_a_function_that_is_derived_from_another_one_adds_in_its_own_way() -> None:
    class Sizes(Sum):
        def lift(self, value: Number) -> tuple[int, int]:
            return super().lift(abs(value))

    check_laws(Sizes())
    assert reduce(adder(Sizes()), [1, -2, 3], Sizes().begin()) == (6, -1)


def test_percentiles_are_quantiles() -> None:
    for name, q in (("p5", 0.05), ("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("p9999", 0.9999)):
        found = function_named(name)
        assert getattr(found, "q", None) == q
    for name in ("p", "p100", "p123", "pp99"):
        with pytest.raises(QueryError):
            function_named(name)
