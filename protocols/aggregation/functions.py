"""Aggregation functions as commutative monoids: ``zero``, ``lift``, ``merge``, ``lower``.

The paper asks of an aggregation function that it be commutative and associative; it may be sensitive to
duplication (Cappos and Hartman 2008, section 2). Here both hold *exactly*, floats and sketches included, so every
order of merges gives the same answer. `protocols.aggregation.registry` has them all, and those of others.
"""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

from protocols.aggregation.columns import ArrayKind
from protocols.aggregation.numbers import (
    ZERO_SUM,
    ExactSum,
    Number,
    add_counts,
    add_sums,
    check_number,
    is_count,
    is_sum,
    lift_number,
    round_ratio,
    round_sum,
    square,
)
from protocols.aggregation.scalars import widen, widen_all

if TYPE_CHECKING:
    from protocols.aggregation.figures import Figure

S = TypeVar("S")

_MANTISSA: Final = operator.itemgetter(0)
_SCALE: Final = operator.itemgetter(1)


class Input(StrEnum):
    """What a function takes of each record."""

    NOTHING = "nothing"
    """The record alone; `Function.lift` gets 0."""
    NUMBER = "number"
    TEXT = "text"
    """The text of any scalar, as for a group's key."""
    VECTOR = "vector"
    """A JSON array of numbers, as a tuple."""


class Function(ABC, Generic[S]):
    """One aggregation function; ``S`` is its mergeable state. ``zero`` is neutral for ``merge``.

    States are never changed once made. They are plain ints, floats, texts, bytes and tuples of them. On the wire a
    state is ``columns`` scalars: numbers of any size, texts or ``None``; byte strings with ``is_packed``.
    A subclass of your own is found by the entry point group ``peerd.aggregation.functions``, under its name.
    """

    name: str
    takes: Input = Input.NUMBER
    columns: int = 1
    is_packed: bool = False
    expands: bool = False
    """Whether a state takes many times the memory of its bytes on the wire: then a value may have only so many."""
    arrays: tuple[ArrayKind, ...] = ()
    """What each column may be as an array, where many groups are merged and ranked; none where they cannot."""
    zero: S

    def __init__(self, *arguments: Number) -> None:
        """``arguments``: the numbers behind the field, as in ``quantile(x, 0.9)``. Raises ``ValueError``."""
        if arguments:
            raise ValueError("takes no number behind the field")

    @abstractmethod
    def lift(self, value: Any) -> S:
        """The state of one record: a number, a text or a tuple of numbers, as `takes` says."""

    @abstractmethod
    def merge(self, a: S, b: S) -> S:
        """The state of both. Commutative and associative, exactly. Raises `ProtocolError` beyond a bound."""

    @abstractmethod
    def lower(self, state: S) -> Figure:
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
        """Inverse of `to_columns`. Raises ``ValueError`` for what is no state: the bytes may be hostile."""

    def may_hold(self, state: S, records: int) -> bool:
        """Whether the state of so many records can be like this; nothing that a true node sends fails here."""
        return records > 0 or state == self.zero

    def accepts(self, text: str) -> bool:
        """Whether a record with this text can be taken; another one is rejected and counted. For `Input.TEXT` only."""
        return True

    # While a node reads its records: a tally may be what `merge` and `rank` take in place of a state.

    def begin(self) -> Any:
        """Return a tally without records."""
        return self.zero

    def first(self, value: Any) -> Any:
        """Return the tally of one record."""
        return self.lift(value)

    def add(self, tally: Any, value: Any) -> Any:
        """Return the tally with one more record: the same one, changed, or another."""
        return self.merge(tally, self.lift(value))

    def end(self, tally: Any) -> S:
        """Return the state of what was added."""
        return cast(S, tally)

    # Many at once: what a megabyte of counters goes through. Overridden where whole lists can be handled in C.

    def merge_all(self, states: Collection[S]) -> S:
        """Merge all states; without any, return `zero`."""
        return reduce(self.merge, states, self.zero)

    def to_lists(self, states: Collection[S]) -> list[Sequence[object]]:
        """`to_columns` of each state, as one list a column."""
        rows = list(map(self.to_columns, states))
        return [[row[index] for row in rows] for index in range(self.columns)]

    def from_lists(self, lists: Sequence[Sequence[object]]) -> list[S]:
        """Inverse of `to_lists`. Raises ``ValueError`` for what is no state."""
        if not self.is_packed:
            lists = list(map(widen_all, lists))
        return list(map(self.from_columns, zip(*lists, strict=True)))

    def from_scalars(self, values: Sequence[object]) -> S:
        """`from_columns` of values as they are on the wire. Raises ``ValueError`` for what is no state."""
        return self.from_columns(values if self.is_packed else list(map(widen, values)))

    def expanding(self) -> tuple[bool, ...]:
        """Return for each column whether its states expand (`expands`)."""
        return (self.expands,) * self.columns

    def has_empty(self, states: Collection[S]) -> bool:
        """Whether any state stands for no record, as far as it knows: no group is like that."""
        return any(self.may_hold(state, 0) for state in states)


class Tallying(Function[S]):
    """Base of functions whose states are costly to merge for each record: they are added to something that changes."""

    @abstractmethod
    def begin(self) -> Any: ...

    @abstractmethod
    def add(self, tally: Any, value: Any) -> Any: ...

    @abstractmethod
    def end(self, tally: Any) -> S: ...

    def first(self, value: Any) -> Any:
        """Return the tally of one record."""
        return self.add(self.begin(), value)

    def lift(self, value: Any) -> S:
        """Return the state of one record."""
        return self.end(self.first(value))


class Count(Function[int]):
    """The function that counts records."""

    name, takes, zero = "count", Input.NOTHING, 0
    arrays = (ArrayKind.COUNT,)

    def lift(self, value: object) -> int:
        return 1

    def merge(self, a: int, b: int) -> int:
        return add_counts(a, b)

    def lower(self, state: int) -> Number:
        return state

    def rank(self, state: int) -> Number:
        return state

    def to_columns(self, state: int) -> tuple[object, ...]:
        return (state,)

    def from_columns(self, values: Sequence[object]) -> int:
        (count,) = values
        if type(count) is not int or not is_count(count):
            raise ValueError("not a count")
        return count

    def may_hold(self, state: int, records: int) -> bool:
        return state == records

    def merge_all(self, states: Collection[int]) -> int:
        return add_counts(sum(states), 0)

    def to_lists(self, states: Collection[int]) -> list[Sequence[object]]:
        return [list(states)]

    def from_lists(self, lists: Sequence[Sequence[object]]) -> list[int]:
        (counts,) = map(widen_all, lists)
        if set(map(type, counts)) - {int}:
            raise ValueError("not a count")
        known = cast(Sequence[int], counts)
        if known and not (is_count(min(known)) and is_count(max(known))):
            raise ValueError("not a count")
        return list(known)

    def has_empty(self, states: Collection[int]) -> bool:
        return 0 in states


class Sum(Function[ExactSum]):
    """The exact sum; an int as long as every number was one."""

    name, columns, zero = "sum", 2, ZERO_SUM
    arrays = (ArrayKind.WHOLE, ArrayKind.SCALE)

    def lift(self, value: Number) -> ExactSum:
        return lift_number(value)

    def merge(self, a: ExactSum, b: ExactSum) -> ExactSum:
        return add_sums(a, b)

    def lower(self, state: ExactSum) -> Number:
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

    def merge_all(self, states: Collection[ExactSum]) -> ExactSum:
        whole = _whole(states)
        if whole is None:
            return super().merge_all(states)
        return add_sums((sum(whole), -1), ZERO_SUM)

    def to_lists(self, states: Collection[ExactSum]) -> list[Sequence[object]]:
        return [list(map(_MANTISSA, states)), list(map(_SCALE, states))]

    def from_lists(self, lists: Sequence[Sequence[object]]) -> list[ExactSum]:
        mantissas, scales = map(widen_all, lists)
        if set(scales) != {-1} or set(map(type, mantissas)) | set(map(type, scales)) != {int}:
            return super().from_lists([mantissas, scales])
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
    """Base of minimum and maximum. Of an int and an equal float the int is kept, so that order cannot show."""

    zero = None
    name: Literal["min", "max"]

    def lift(self, value: Number) -> Number:
        return value

    def merge(self, a: Number | None, b: Number | None) -> Number | None:
        if a is None or b is None:
            return b if a is None else a
        if a == b:
            return a if isinstance(a, int) else b
        return a if (a < b) == (self.name == "min") else b

    def lower(self, state: Number | None) -> Number | None:
        return state

    def rank(self, state: Number | None) -> Number:
        if state is None:
            return -math.inf
        return -state if self.name == "min" else state

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

    def may_hold(self, state: Number | None, records: int) -> bool:
        return (state is None) == (records == 0)


class Minimum(Extreme):
    """The smallest number."""

    name, arrays = "min", (ArrayKind.LEAST,)


class Maximum(Extreme):
    """The largest number."""

    name, arrays = "max", (ArrayKind.MOST,)


Average: TypeAlias = tuple[int, int, int]
"""The state of a mean: ``(count, mantissa, scale)``."""


class Mean(Function[Average]):
    """The mean: an exact sum and a count, divided and rounded once at the end."""

    name, columns, zero = "mean", 3, (0, *ZERO_SUM)
    arrays = (ArrayKind.COUNT, ArrayKind.WHOLE, ArrayKind.SCALE)

    def lift(self, value: Number) -> Average:
        return (1, *lift_number(value))

    def merge(self, a: Average, b: Average) -> Average:
        return (add_counts(a[0], b[0]), *add_sums((a[1], a[2]), (b[1], b[2])))

    def lower(self, state: Average) -> Number | None:
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
        if not is_count(count) or not is_sum(mantissa, scale) or (count == 0 and (mantissa, scale) != ZERO_SUM):
            raise ValueError("not a canonical mean")
        return count, mantissa, scale

    def may_hold(self, state: Average, records: int) -> bool:
        return state[0] == records


Moments: TypeAlias = tuple[int, int, int, int, int]
"""The state of a variance: ``(count, mantissa, scale, mantissa of the squares, scale of the squares)``."""


class Variance(Function[Moments]):
    """The variance of a sample (divided by n - 1): exact sums of numbers and squares, rounded once at the end."""

    name, columns, zero = "variance", 5, (0, *ZERO_SUM, *ZERO_SUM)

    def lift(self, value: Number) -> Moments:
        number = lift_number(value)
        return (1, *number, *square(number))

    def merge(self, a: Moments, b: Moments) -> Moments:
        total, squares = add_sums((a[1], a[2]), (b[1], b[2])), add_sums((a[3], a[4]), (b[3], b[4]), powers=2)
        return (add_counts(a[0], b[0]), *total, *squares)

    def lower(self, state: Moments) -> Number | None:
        count, total, scale, squares, squares_scale = state
        if count < 2:
            return None
        # (n * sum of squares - square of the sum) / (n * (n - 1)), all of it over 2 ** shift
        shift = max(2 * max(scale, 0), squares_scale, 0)
        squared = (total * total) << (shift - 2 * max(scale, 0))
        spread = count * (squares << (shift - max(squares_scale, 0))) - squared
        return round_ratio(spread, (count * (count - 1)) << shift)

    def rank(self, state: Moments) -> Number:
        return state[0]

    def to_columns(self, state: Moments) -> tuple[object, ...]:
        return state

    def from_columns(self, values: Sequence[object]) -> Moments:
        if set(map(type, values)) != {int}:
            raise ValueError("not a variance")
        count, total, scale, squares, squares_scale = cast(Moments, tuple(values))
        if not is_count(count) or not is_sum(total, scale) or not is_sum(squares, squares_scale, powers=2):
            raise ValueError("not a canonical variance")
        state = count, total, scale, squares, squares_scale
        if (count == 0 and state != self.zero) or squares < 0 or (self.lower(state) or 0) < 0:
            raise ValueError("sums of squares that no numbers have")
        return state

    def may_hold(self, state: Moments, records: int) -> bool:
        return state[0] == records


class Deviation(Variance):
    """The standard deviation of a sample: the root of its variance."""

    name = "stddev"

    def lower(self, state: Moments) -> Number | None:
        variance = super().lower(state)
        if variance is None:
            return None
        return math.sqrt(variance) if isinstance(variance, float) else math.isqrt(variance)


# What is paid for each record. No node reads so many that a count or a sum passes its bound: see `numbers`.


def _add_to_count(tally: int, value: object) -> int:
    return tally + 1


def _add_to_sum(tally: ExactSum, value: Number) -> ExactSum:
    if type(value) is int and tally[1] < 0:  # most numbers are whole
        return tally[0] + value, -1
    return add_sums(tally, lift_number(value))


def _add_to_mean(tally: Average, value: Number) -> Average:
    count, mantissa, scale = tally
    return (count + 1, *_add_to_sum((mantissa, scale), value))


_ADDERS: Final[dict[type[Function[Any]], Callable[[Any, Any], Any]]] = {
    Count: _add_to_count,
    Sum: _add_to_sum,
    Mean: _add_to_mean,
}


def adder(function: Function[Any]) -> Callable[[Any, Any], Any]:
    """Its `Function.add`, or what does the same in less time; not for classes that are derived from such a one."""
    return _ADDERS.get(type(function), function.add)
