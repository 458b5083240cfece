"""Aggregation functions as commutative monoids: zero, lift, combine, finish; plain and grouped.

The paper asks of an aggregation function that it be commutative and associative; it may be sensitive to
duplication (Cappos and Hartman 2008, section 2). Here both hold *exactly*, floats included: a sum is kept as an
exact dyadic rational ``mantissa / 2**scale`` and rounded once, when the answer is made, so every order of merges
gives the same bits. Pairs of doubles (compensated summation) were considered: they are smaller by a few bytes but
depend on the order as soon as large terms cancel.

Bounds. Input numbers are finite and below ``2**NUMBER_BITS_MAX``; a sum of fewer than 2**63 of them always fits in
`MANTISSA_BITS_MAX`, so nodes that tell the truth never meet the bound. A merge that does raises
`peerd.errors.ProtocolError` with reason ``aggregation_overflow`` and never wraps or loses a digit.

Groups are capped. When there are more than ``groups_max`` the smallest (see `Function.rank`) are folded into a
`Remainder`: their combined state, and an upper bound on how many distinct groups were folded. What stays exact
under every order of merges: the combination of all groups with the remainder. What then depends on the order:
which groups near the cap are listed, and how much of a listed group was folded before (its value may lack what
the remainder holds). An empty remainder means that every group is exact.
"""

from __future__ import annotations

import heapq
import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, cast, get_args

from pydantic import computed_field

from peerd.errors import ProtocolError

Number: TypeAlias = int | float
FunctionName: TypeAlias = Literal["count", "sum", "min", "max", "mean"]
S = TypeVar("S")

FUNCTIONS: Final[tuple[str, ...]] = get_args(FunctionName)
NUMBER_BITS_MAX: Final = 1024
"""Numbers at or above 2**1024 are refused, whole or not: the range of a double."""
SCALE_MAX: Final = 1074
"""The largest scale of a sum, as the smallest double is 2**-1074."""
COUNT_MAX: Final = 2**63 - 1
MANTISSA_BITS_MAX: Final = NUMBER_BITS_MAX + SCALE_MAX + 63
GROUPS_MAX_DEFAULT: Final = 100_000
GROUPS_HARD_MAX: Final = 200_000
"""Most groups that one value may hold, whatever the query asks for."""
KEY_BYTES_MAX: Final = 256
"""Longest key of a group, in UTF-8. A record with a longer one is rejected, never shortened into another group."""

ExactSum: TypeAlias = tuple[int, int]
"""``(mantissa, scale)``, worth ``mantissa / 2**scale``; scale -1 marks a sum of whole numbers only (worth mantissa).

Canonical: with scale > 0 the mantissa is odd, so equal sums are equal tuples."""
ZERO_SUM: Final[ExactSum] = (0, -1)
_MANTISSA: Final = operator.itemgetter(0)
_SCALE: Final = operator.itemgetter(1)

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
_NUMBER_CHARACTERS_MAX: Final = 400


def parse_number(text: str) -> Number | None:
    """The number that ``text`` writes in ASCII decimal, if `check_number` accepts it, else ``None``."""
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > _NUMBER_CHARACTERS_MAX:
        return None
    return check_number(int(text) if match.lastindex is None else float(text))


def check_number(value: object) -> Number | None:
    """``value`` if it is an int (not a bool) or a float, finite and below 2**1024; else ``None``. -0.0 becomes 0.0."""
    if type(value) is int:
        return value if value.bit_length() <= NUMBER_BITS_MAX else None
    if type(value) is float:
        return value + 0.0 if math.isfinite(value) else None
    return None


def lift_number(value: Number) -> ExactSum:
    """Return the exact sum that consists of one number."""
    if isinstance(value, int):
        return value, -1
    mantissa, denominator = value.as_integer_ratio()
    return mantissa, denominator.bit_length() - 1


def add_sums(a: ExactSum, b: ExactSum) -> ExactSum:
    """Add two sums exactly, so that the order never matters. Raises `ProtocolError` beyond `MANTISSA_BITS_MAX`."""
    (left, left_scale), (right, right_scale) = a, b
    if left_scale == right_scale:
        total, scale = left + right, left_scale
    elif left_scale > right_scale:
        total, scale = left + (right << (left_scale - max(right_scale, 0))), left_scale
    else:
        total, scale = (left << (right_scale - max(left_scale, 0))) + right, right_scale
    if scale > 0 and not total & 1:
        zeros = min(scale, (total & -total).bit_length() - 1) if total else scale
        total, scale = total >> zeros, scale - zeros
    if total.bit_length() > MANTISSA_BITS_MAX:
        raise ProtocolError("aggregation_overflow", f"a sum needs more than {MANTISSA_BITS_MAX} bits")
    return total, scale


def round_sum(total: ExactSum, divisor: int = 1) -> Number:
    """``total / divisor`` rounded once. A sum of whole numbers by 1 stays an int, and so does what no double holds."""
    mantissa, scale = total
    if scale < 0 and divisor == 1:
        return mantissa
    denominator = divisor << max(scale, 0)
    try:
        return mantissa / denominator
    except OverflowError:
        return mantissa // denominator


def is_sum(mantissa: object, scale: object) -> bool:
    """Whether two decoded values are a canonical `ExactSum`."""
    if type(mantissa) is not int or type(scale) is not int or not -1 <= scale <= SCALE_MAX:
        return False
    return mantissa.bit_length() <= MANTISSA_BITS_MAX and (scale <= 0 or mantissa & 1 == 1)


def _add_counts(a: int, b: int) -> int:
    if a + b > COUNT_MAX:
        raise ProtocolError("aggregation_overflow", f"a count passes {COUNT_MAX}")
    return a + b


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= COUNT_MAX


class Function(ABC, Generic[S]):
    """One aggregation function; ``S`` is its mergeable state. ``zero`` is neutral for ``combine``.

    States are plain ints, floats and tuples. ``columns`` flat values make up a state on the wire.
    """

    name: FunctionName
    columns: int
    zero: S

    @abstractmethod
    def lift(self, value: Number) -> S:
        """The state of one record (``count`` ignores the number)."""

    @abstractmethod
    def combine(self, a: S, b: S) -> S:
        """The state of both. Commutative and associative, exactly. Raises `ProtocolError` beyond a bound."""

    @abstractmethod
    def finish(self, state: S) -> Number | None:
        """The answer; ``None`` where no record gives one (min, max, mean)."""

    @abstractmethod
    def rank(self, state: S) -> Number:
        """Groups with the smallest rank are folded first: counts and absolute sums that are small, minima that
        are large, maxima that are small, means of few records."""

    @abstractmethod
    def to_columns(self, state: S) -> tuple[object, ...]:
        """Return the state as `columns` values for the wire."""

    @abstractmethod
    def from_columns(self, values: Sequence[object]) -> S:
        """Inverse of `to_columns`. Raises ``ValueError`` for what is no state."""

    @abstractmethod
    def records(self, state: S) -> int | None:
        """Return how many records the state stands for, if the state knows it."""

    # Many at once: what a megabyte of counters goes through. Overridden where whole lists can be handled in C.

    def combine_all(self, states: Collection[S]) -> S:
        """Combine all states; without any, return `zero`."""
        return reduce(self.combine, states, self.zero)

    def to_lists(self, states: Collection[S]) -> list[Sequence[object]]:
        """`to_columns` of each state, as one list a column."""
        rows = list(map(self.to_columns, states))
        return [[row[index] for row in rows] for index in range(self.columns)]

    def from_lists(self, lists: Sequence[Sequence[object]]) -> list[S]:
        """Inverse of `to_lists`. Raises ``ValueError`` for what is no state."""
        return list(map(self.from_columns, zip(*lists, strict=True)))

    def has_empty(self, states: Collection[S]) -> bool:
        """Whether any state stands for no record, as far as it knows: no group is like that."""
        return any(state is None or self.records(state) == 0 for state in states)


class Count(Function[int]):
    """The function that counts records."""

    name, columns, zero = "count", 1, 0

    def lift(self, value: Number) -> int:
        return 1

    def combine(self, a: int, b: int) -> int:
        return _add_counts(a, b)

    def finish(self, state: int) -> Number:
        return state

    def rank(self, state: int) -> Number:
        return state

    def to_columns(self, state: int) -> tuple[object, ...]:
        return (state,)

    def from_columns(self, values: Sequence[object]) -> int:
        (count,) = values
        if type(count) is not int or not _is_count(count):
            raise ValueError("not a count")
        return count

    def records(self, state: int) -> int:
        return state

    def combine_all(self, states: Collection[int]) -> int:
        return _add_counts(sum(states), 0)

    def to_lists(self, states: Collection[int]) -> list[Sequence[object]]:
        return [list(states)]

    def from_lists(self, lists: Sequence[Sequence[object]]) -> list[int]:
        (counts,) = lists
        if set(map(type, counts)) - {int}:
            raise ValueError("not a count")
        known = cast(Sequence[int], counts)
        if known and not (_is_count(min(known)) and _is_count(max(known))):
            raise ValueError("not a count")
        return list(known)

    def has_empty(self, states: Collection[int]) -> bool:
        return 0 in states


class Sum(Function[ExactSum]):
    """The exact sum; an int as long as every number was one."""

    name, columns, zero = "sum", 2, ZERO_SUM

    def lift(self, value: Number) -> ExactSum:
        return lift_number(value)

    def combine(self, a: ExactSum, b: ExactSum) -> ExactSum:
        return add_sums(a, b)

    def finish(self, state: ExactSum) -> Number:
        return round_sum(state)

    def rank(self, state: ExactSum) -> Number:
        return abs(round_sum(state))

    def to_columns(self, state: ExactSum) -> tuple[object, ...]:
        return state

    def from_columns(self, values: Sequence[object]) -> ExactSum:
        mantissa, scale = values
        if type(mantissa) is not int or type(scale) is not int or not is_sum(mantissa, scale):
            raise ValueError("not a canonical sum")
        return mantissa, scale

    def records(self, state: ExactSum) -> None:
        return None

    def combine_all(self, states: Collection[ExactSum]) -> ExactSum:
        whole = _whole(states)
        if whole is None:
            return super().combine_all(states)
        return add_sums((sum(whole), -1), ZERO_SUM)

    def to_lists(self, states: Collection[ExactSum]) -> list[Sequence[object]]:
        return [list(map(_MANTISSA, states)), list(map(_SCALE, states))]

    def from_lists(self, lists: Sequence[Sequence[object]]) -> list[ExactSum]:
        mantissas, scales = lists
        if set(scales) != {-1} or set(map(type, mantissas)) | set(map(type, scales)) != {int}:
            return super().from_lists(lists)
        whole = cast(Sequence[int], mantissas)
        if not (is_sum(min(whole), -1) and is_sum(max(whole), -1)):
            raise ValueError("not a canonical sum")
        return list(zip(whole, cast(Sequence[int], scales), strict=True))

    def has_empty(self, states: Collection[ExactSum]) -> bool:
        return False  # a sum does not know


def _whole(states: Collection[ExactSum]) -> Sequence[int] | None:
    """The mantissas, if all states are sums of whole numbers; ``None`` when one is not, or there are none."""
    if not states:
        return None
    return list(map(_MANTISSA, states)) if set(map(_SCALE, states)) == {-1} else None


class Extreme(Function[Number | None]):
    """Minimum or maximum. Of an int and an equal float the int is kept, so that order cannot show."""

    columns, zero = 1, None

    def __init__(self, name: Literal["min", "max"]) -> None:
        self.name = name
        self._sign = 1 if name == "min" else -1

    def lift(self, value: Number) -> Number:
        return value

    def combine(self, a: Number | None, b: Number | None) -> Number | None:
        if a is None or b is None:
            return b if a is None else a
        if a == b:
            return a if isinstance(a, int) else b
        return a if (a < b) == (self._sign > 0) else b

    def finish(self, state: Number | None) -> Number | None:
        return state

    def rank(self, state: Number | None) -> Number:
        return -math.inf if state is None else -self._sign * state

    def to_columns(self, state: Number | None) -> tuple[object, ...]:
        return (state,)

    def from_columns(self, values: Sequence[object]) -> Number | None:
        (value,) = values
        if value is None:
            return None
        number = check_number(value)
        if number is None:
            raise ValueError("not a finite number")
        return number

    def records(self, state: Number | None) -> None:
        return None


Average: TypeAlias = tuple[int, int, int]
"""The state of a mean: ``(count, mantissa, scale)``."""


class Mean(Function[Average]):
    """The mean: an exact sum and a count, divided and rounded once at the end."""

    name, columns, zero = "mean", 3, (0, *ZERO_SUM)

    def lift(self, value: Number) -> Average:
        return (1, *lift_number(value))

    def combine(self, a: Average, b: Average) -> Average:
        return (_add_counts(a[0], b[0]), *add_sums((a[1], a[2]), (b[1], b[2])))

    def finish(self, state: Average) -> Number | None:
        count, mantissa, scale = state
        return round_sum((mantissa, max(scale, 0)), count) if count else None

    def rank(self, state: Average) -> Number:
        return state[0]

    def to_columns(self, state: Average) -> tuple[object, ...]:
        return state

    def from_columns(self, values: Sequence[object]) -> Average:
        count, mantissa, scale = values
        if type(count) is not int or type(mantissa) is not int or type(scale) is not int:
            raise ValueError("not a mean")
        if not _is_count(count) or not is_sum(mantissa, scale) or (count == 0 and (mantissa, scale) != ZERO_SUM):
            raise ValueError("not a canonical mean")
        return count, mantissa, scale

    def records(self, state: Average) -> int:
        return state[0]


_REGISTRY: Final[dict[str, Function[Any]]] = {
    "count": Count(),
    "sum": Sum(),
    "min": Extreme("min"),
    "max": Extreme("max"),
    "mean": Mean(),
}


def function_named(name: FunctionName) -> Function[Any]:
    """Return the one instance of a function."""
    return _REGISTRY[name]


@dataclass(frozen=True, slots=True)
class Remainder(Generic[S]):
    """The groups that were folded away: at most ``groups`` different ones, whose states together are ``state``."""

    groups: int
    """Upper bound: a group that is folded twice, here and on another node, counts twice."""
    state: S


@dataclass(frozen=True, slots=True)
class GroupStates(Generic[S]):
    """GROUP BY state: never changed once made, though ``groups`` is a plain dict for speed."""

    groups: dict[str, S]
    remainder: Remainder[S]


class Grouped(Generic[S]):
    """A function for each value of a field, at most ``groups_max`` of them; itself a (capped) monoid."""

    def __init__(self, function: Function[S], groups_max: int) -> None:
        self.function = function
        self.groups_max = groups_max

    @property
    def zero(self) -> GroupStates[S]:
        """Return the state without groups, with nothing folded away."""
        return GroupStates({}, Remainder(0, self.function.zero))

    def lift(self, key: str, value: Number) -> GroupStates[S]:
        """Return the state of one record."""
        return GroupStates({key: self.function.lift(value)}, Remainder(0, self.function.zero))

    def combine(self, a: GroupStates[S], b: GroupStates[S]) -> GroupStates[S]:
        """Both, folded down to the cap. Exact, commutative and associative as long as nothing is folded."""
        large, small = (a, b) if len(a.groups) >= len(b.groups) else (b, a)
        merged = large.groups.copy()
        combine, get = self.function.combine, merged.get
        for key, state in small.groups.items():
            present = get(key)
            merged[key] = state if present is None else combine(present, state)
        remainder = Remainder(
            _add_counts(a.remainder.groups, b.remainder.groups), combine(a.remainder.state, b.remainder.state)
        )
        return self.fold(GroupStates(merged, remainder))

    def fold(self, value: GroupStates[S]) -> GroupStates[S]:
        """At most ``groups_max`` groups: those of the smallest rank go, of equal ones the last in key order."""
        excess = len(value.groups) - self.groups_max
        if excess <= 0:
            return value
        rank, state = self.function.rank, value.remainder.state
        ranked = sorted(value.groups)
        ranked.sort(key=lambda key: rank(value.groups[key]), reverse=True)
        for key in ranked[self.groups_max :]:
            state = self.function.combine(state, value.groups[key])
        kept = {key: value.groups[key] for key in ranked[: self.groups_max]}
        return GroupStates(kept, Remainder(_add_counts(value.remainder.groups, excess), state))

    def total(self, value: GroupStates[S]) -> S:
        """All groups and the remainder combined: what the function without groups would give."""
        return self.function.combine(value.remainder.state, self.function.combine_all(value.groups.values()))

    def finish(self, value: GroupStates[S], top: int | None = None) -> GroupedAnswer:
        """The ``top`` (default all) groups, largest `Function.rank` first, then by key."""
        rank, groups = self.function.rank, value.groups
        ordered = heapq.nsmallest(
            len(groups) if top is None else top, groups, key=lambda key: (-rank(groups[key]), key)
        )
        answers: dict[str, Number] = {}
        for key in ordered:
            answer = self.function.finish(groups[key])
            if answer is not None:
                answers[key] = answer
        folded = value.remainder.groups
        return GroupedAnswer(
            groups=answers,
            groups_total=len(groups),
            remainder_groups_max=folded,
            remainder=self.function.finish(value.remainder.state) if folded else None,
        )


@dataclass(frozen=True, slots=True)
class GroupedAnswer:
    """For people: groups in order of rank, and what is not listed because of the cap."""

    groups: Mapping[str, Number]
    groups_total: int
    """How many groups the value lists (``groups`` may show only the first of them)."""
    remainder_groups_max: int
    """At most this many different groups were folded away."""
    remainder: Number | None
    """What the function gives for all that was folded away; ``None`` when nothing was."""

    @computed_field  # type: ignore[prop-decorator]  # what pydantic asks for, and mypy does not know
    @property
    def exact(self) -> bool:
        """Whether every group is listed with its exact value."""
        return self.remainder_groups_max == 0
