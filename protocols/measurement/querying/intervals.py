"""What a condition makes of measurements of which only bounds are known: certainty, else probability. Pure.

A row belongs to T+ if its condition holds when each test asks for every value, to T- if it does not even hold when
each asks for some value, else to T? (section 6.2.1, after Olston). Both are asked of the filter with NOT pushed down
to its tests, where AND and OR are monotone: so both are right whatever the values are. A column that a row does not
have fails both, as in SQL: that is known, and not a matter of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, prod
from typing import Any, Final, TypeAlias, cast

from peerd.lib.filter.evaluate import Accessor, compiled_test, key_tester, matcher
from peerd.lib.filter.meaning import AllOf, AnyOf, Fits, Positive, Test, Within
from peerd.lib.filter.ranges import Cut, between
from peerd.lib.filter.selectivity import Histogram
from peerd.lib.filter.tree import Node
from peerd.lib.filter.values import STRICT, Reader, View
from protocols.measurement.guarantee.interval import Interval

UNKNOWN: Final = Interval(-inf, inf)
"""The bounds of a value that nobody has told."""
DISTINCT: Final = 2**53
"""Different values in an interval about which nothing else is known: no single one has a share."""
Certainty: TypeAlias = bool | None
"""T+, T- or, where it depends on values inside their bounds, ``None``: T?."""


def read_interval(value: object) -> object | None:
    """An interval as the cut before its low end and the cut after its high one."""
    return ((value.low, 0), (value.high, 1)) if isinstance(value, Interval) else None


READER: Final[Reader] = {**STRICT, View.NUMBER: read_interval}


def every(test: Within | Fits) -> Callable[[Any], bool]:
    """Whether all values of an interval pass. They are connected, so they all lie in one part of the set."""
    return _tester(test, lambda low, high, span: low <= span[0] and span[1] <= high)


def some(test: Within | Fits) -> Callable[[Any], bool]:
    """Whether some value of an interval passes."""
    return _tester(test, lambda low, high, span: low < span[1] and span[0] < high)


def _tester(test: Within | Fits, passes: Callable[[Cut, Cut, Any], bool]) -> Callable[[Any], bool]:
    if isinstance(test, Fits) or test.view is not View.NUMBER:
        return key_tester(test)
    parts = [(low or (-inf, -1), high or (inf, 2)) for low, high in test.ranges.intervals()]
    return lambda span: any(passes(low, high, span) for low, high in parts)


def judge(node: Node, accessor: Accessor) -> Callable[[Any], Certainty]:
    """A function that says where a row belongs. Made once, called for every row."""
    is_sure, is_possible = (matcher(node, reader=READER, accessor=accessor, tester=each) for each in (every, some))
    return lambda row: False if not is_possible(row) else True if is_sure(row) else None


def undecided(node: Positive, accessor: Accessor, row: Any) -> Iterator[str]:
    """The columns on which it depends where a row belongs."""
    if isinstance(node, AllOf | AnyOf):
        for part in node.parts:
            yield from undecided(part, accessor, row)
    elif _judged(node, accessor, row) is None:
        yield node.name


def _judged(test: Test, accessor: Accessor, row: Any) -> Certainty:
    passes = (compiled_test(test, READER, accessor, tester=each)(row) for each in (every, some))
    return {(True, True): True, (False, False): False}.get(cast(tuple[bool, bool], tuple(passes)))


# --- confidence -----------------------------------------------------------------------------------------------------


def probability(node: Positive, row: Any, accessor: Accessor, history: Callable[[str], Histogram | None]) -> float:
    """How probable it is that the row fulfils the condition: by ``history``, how a column was spread, else uniformly.

    Measurements are taken as independent.
    """
    if isinstance(node, AllOf):
        return prod(probability(part, row, accessor, history) for part in node.parts)
    if isinstance(node, AnyOf):
        return 1.0 - prod(1.0 - probability(part, row, accessor, history) for part in node.parts)
    certainty, value = _judged(node, accessor, row), accessor(node.name)(row)
    if certainty is not None or not (isinstance(node, Within) and isinstance(value, Interval)):
        return float(certainty or False)
    inside = between(View.NUMBER, (value.low, 0), (value.high, 1))
    uniform = Histogram(View.NUMBER, (value.low, value.high), 1.0, DISTINCT)
    for spread in (history(node.name) or uniform, uniform):
        passing, all_of_them = (
            spread.share(Within(node.name, View.NUMBER, ranges)) for ranges in (inside & node.ranges, inside)
        )
        if all_of_them > 0.0:
            return min(1.0, passing / all_of_them)
    return 0.5
