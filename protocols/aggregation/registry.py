"""Every aggregation function by its name, those of other packages included; and several functions as one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import islice, product
from typing import Any, Final

from peerd.entry_points import entries, installed
from protocols.aggregation.calls import Call
from protocols.aggregation.figures import Figures
from protocols.aggregation.functions import (
    Count,
    Deviation,
    Function,
    Input,
    Maximum,
    Mean,
    Minimum,
    Sum,
    Tallying,
    Variance,
    adder,
)
from protocols.aggregation.listings import Bottom, CountsBetween, Top, Values, VectorSum
from protocols.aggregation.numbers import Number
from protocols.aggregation.patterns import QueryError
from protocols.aggregation.sketches import Distinct, Median, Quantile

ENTRY_POINTS: Final = "peerd.aggregation.functions"
"""The entry point group of other packages' functions: the name of each is that of its `Function` subclass."""

_BUILT_IN: Final[dict[str, type[Function[Any]]]] = {
    kind.name: kind
    for kind in (
        *(Count, Sum, Minimum, Maximum, Mean, Variance, Deviation),
        *(Median, Quantile, Distinct, CountsBetween, Top, Bottom, Values, VectorSum),
    )
}
FUNCTIONS: Final = tuple(_BUILT_IN)
"""The names of the functions that every node has, but for the short forms of quantiles, such as ``p99``."""
_PERCENTILE: Final = re.compile(r"p([0-9]{1,2}|999|9999)")
_EXAMPLES: Final[dict[Input, Sequence[Any]]] = {
    Input.NOTHING: (0,),
    Input.NUMBER: (0, 1, 1.0, -3, 2.5, 10**20, -1e300),
    Input.TEXT: ("", "a", "b", "é", "a longer text"),
    Input.VECTOR: ((), (1, 2), (0.5, -1, 10**20)),
}
_LAWFUL_STATES_MAX: Final = 12


class Several(Tallying[tuple[Any, ...]]):
    """Several functions of the same records. The first one ranks groups."""

    def __init__(self, names: Sequence[str], functions: Sequence[Function[Any]]) -> None:
        super().__init__()
        self.name = ", ".join(names)
        self._names, self._parts = tuple(names), tuple(functions)
        self._adds = list(map(adder, functions))
        self.columns = sum(part.columns for part in functions)
        self.arrays = tuple(kind for part in functions for kind in part.arrays)
        if not all(part.arrays for part in functions):
            self.arrays = ()
        self.zero = tuple(part.zero for part in functions)

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(part.merge(left, right) for part, left, right in zip(self._parts, a, b, strict=True))

    def lower(self, state: tuple[Any, ...]) -> Figures:  # type: ignore[override]  # the answer of several functions
        lowered = (part.lower(each) for part, each in zip(self._parts, state, strict=True))
        return Figures(dict(zip(self._names, lowered, strict=True)))

    def rank(self, state: tuple[Any, ...]) -> Number:
        return self._parts[0].rank(state[0])

    def to_columns(self, state: tuple[Any, ...]) -> tuple[object, ...]:
        return tuple(value for part, each in zip(self._parts, state, strict=True) for value in part.to_columns(each))

    def from_columns(self, values: Sequence[object]) -> tuple[Any, ...]:
        rest = iter(values)
        return tuple(part.from_columns(list(islice(rest, part.columns))) for part in self._parts)

    def from_scalars(self, values: Sequence[object]) -> tuple[Any, ...]:
        rest = iter(values)
        return tuple(part.from_scalars(list(islice(rest, part.columns))) for part in self._parts)

    def may_hold(self, state: tuple[Any, ...], records: int) -> bool:
        return all(part.may_hold(each, records) for part, each in zip(self._parts, state, strict=True))

    def begin(self) -> list[Any]:
        return [part.begin() for part in self._parts]

    def first(self, value: Sequence[Any]) -> list[Any]:
        return [part.first(each) for part, each in zip(self._parts, value, strict=True)]

    def add(self, tally: list[Any], value: Sequence[Any]) -> list[Any]:
        return [add(each, one) for add, each, one in zip(self._adds, tally, value, strict=True)]

    def end(self, tally: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(part.end(each) for part, each in zip(self._parts, tally, strict=True))

    def from_lists(self, lists: Sequence[Sequence[object]]) -> list[tuple[Any, ...]]:
        rest = iter(lists)
        return list(zip(*(part.from_lists(list(islice(rest, part.columns))) for part in self._parts), strict=True))

    def expanding(self) -> tuple[bool, ...]:
        return tuple(each for part in self._parts for each in part.expanding())

    def has_empty(self, states: Any) -> bool:
        columns = zip(*states, strict=True)
        return any(part.has_empty(column) for part, column in zip(self._parts, columns, strict=False))


def kind_named(name: str) -> type[Function[Any]]:
    """The class of the function with that name. Raises `QueryError` for one that is unknown here."""
    return Quantile if _PERCENTILE.fullmatch(name) else _BUILT_IN.get(name) or _of_others(name)


def takes_field(name: str) -> bool:
    """Whether a function takes a field of each record. Raises `QueryError` for one that is unknown here."""
    return kind_named(name).takes is not Input.NOTHING


def function_named(name: str, *arguments: Number) -> Function[Any]:
    """The function with that name. Raises `QueryError` for one that is unknown here, or other numbers than it takes."""
    percentile, kind = _PERCENTILE.fullmatch(name), kind_named(name)
    try:
        if percentile is None:
            return kind(*arguments)
        if arguments:
            raise ValueError("takes no number behind the field")
        return kind(int(percentile[1]) / 10 ** max(2, len(percentile[1])))
    except ValueError as error:
        raise QueryError(f"{name} {error}") from error


@lru_cache
def function_of(calls: tuple[Call, ...]) -> Function[Any]:
    """The function that a query's calls make together. Raises `QueryError` as `function_named` does."""
    functions = [function_named(call.name, *call.arguments) for call in calls]
    return functions[0] if len(calls) == 1 else Several([str(call) for call in calls], functions)


def function_names() -> tuple[str, ...]:
    """The names of all functions that are installed here."""
    return (*FUNCTIONS, *(name for name in installed(ENTRY_POINTS) if name not in _BUILT_IN))


@cache
def _of_others(name: str) -> type[Function[Any]]:
    found = entries(ENTRY_POINTS, name)
    if not found:
        raise QueryError(f"expected one of {', '.join(function_names())}, or p99 and the like, found {name!r:.60}")
    if len(found) > 1:
        raise QueryError(f"two packages have a function {name}: {', '.join(entry.value for entry in found)}")
    (entry,) = found
    try:
        function = entry.load()()
        if not isinstance(function, Function) or function.name != name:
            raise QueryError(f"{entry.value} is no aggregation function named {name}")
        check_laws(function)
    except QueryError:
        raise
    except Exception as error:  # whatever a package of others does
        raise QueryError(f"the function {name} of {entry.value} cannot be used: {error}") from error
    return type(function)


def check_laws(function: Function[Any]) -> None:
    """Raise `QueryError` unless some states of a function obey the laws that every order of merges rests on."""
    examples = _EXAMPLES[function.takes]
    states = [function.zero, *map(function.lift, examples)]
    states += [function.merge(a, b) for a, b in zip(states, reversed(states), strict=True)]
    states = states[:_LAWFUL_STATES_MAX]
    name, merge = function.name, function.merge
    for a in states:
        if merge(a, function.zero) != a or merge(function.zero, a) != a:
            raise QueryError(f"{name} is no monoid: its zero changes what it is merged with")
        if function.from_columns(function.to_columns(a)) != a or len(function.to_columns(a)) != function.columns:
            raise QueryError(f"{name} does not read the states that it writes")
    for a, b in product(states, repeat=2):
        if merge(a, b) != merge(b, a):
            raise QueryError(f"{name} is not commutative: the order of a merge changes the answer")
    for a, b, c in product(states, repeat=3):
        if merge(merge(a, b), c) != merge(a, merge(b, c)):
            raise QueryError(f"{name} is not associative: the order of merges changes the answer")
    tally = function.begin()
    for example in examples:
        tally = function.add(tally, example)
    if function.end(tally) != function.merge_all([function.lift(example) for example in examples]):
        raise QueryError(f"{name} does not add records up to what it merges their states to")
