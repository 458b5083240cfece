"""Functions that answer with several values: counts between edges, extremes, sets with a cap, sums of vectors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias, cast

from protocols.aggregation.figures import HistogramFigure, Listing
from protocols.aggregation.functions import Function, Input, Tallying
from protocols.aggregation.numbers import (
    ExactSum,
    Number,
    add_counts,
    add_sums,
    check_number,
    is_count,
    is_sum,
    lift_number,
    round_sum,
)
from protocols.aggregation.scalars import TEXT_BYTES_MAX, packed, unpacked_all, widen_all

EDGES_MAX: Final = 256
LISTED_DEFAULT: Final = 10
LISTED_MAX: Final = 1000
"""Most numbers in a ``top`` or ``bottom``."""
VALUES_DEFAULT: Final = 100
VALUES_MAX: Final = 10_000
"""Most texts in a set of ``values``."""
VECTOR_MAX: Final = 65_536
"""Most numbers in a vector."""


class CountsBetween(Tallying[tuple[int, ...]]):
    """How many numbers lie below, between and from edges on: ``histogram(x, 10, 100)`` has three counts."""

    name, is_packed, expands = "histogram", True, True

    def __init__(self, *arguments: Number) -> None:
        if not 0 < len(arguments) <= EDGES_MAX or any(a >= b for a, b in pairwise(arguments)):
            raise ValueError(f"takes 1 to {EDGES_MAX} ascending edges behind the field, as in histogram(x, 10, 100)")
        self.edges = arguments
        self.zero = (0,) * (len(arguments) + 1)

    def merge(self, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(add_counts, a, b))

    def lower(self, state: tuple[int, ...]) -> HistogramFigure:
        return HistogramFigure(self.edges, state)

    def rank(self, state: Sequence[int]) -> Number:
        return sum(state)

    def to_columns(self, state: tuple[int, ...]) -> tuple[object, ...]:
        return (packed(state),)

    def from_columns(self, values: Sequence[object]) -> tuple[int, ...]:
        counts = unpacked_all(values[0], len(self.zero))
        if len(counts) != len(self.zero) or not all(map(is_count, counts)):
            raise ValueError("not the counts of a histogram")
        return cast(tuple[int, ...], tuple(counts))

    def may_hold(self, state: tuple[int, ...], records: int) -> bool:
        return sum(state) == records

    def begin(self) -> list[int]:
        return list(self.zero)

    def add(self, tally: list[int], value: Number) -> list[int]:
        tally[bisect_right(self.edges, value)] += 1
        return tally

    def end(self, tally: list[int]) -> tuple[int, ...]:
        return tuple(tally)


class Extremes(Function[tuple[Number, ...]]):
    """Base of the functions that list the numbers which come first, 10 of them if not said otherwise."""

    is_packed, expands, zero = True, True, ()
    sign: int

    def __init__(self, *arguments: Number) -> None:
        self.most = _cap(arguments, LISTED_DEFAULT, LISTED_MAX)

    def lift(self, value: Number) -> tuple[Number, ...]:
        return (value,)

    def merge(self, a: tuple[Number, ...], b: tuple[Number, ...]) -> tuple[Number, ...]:
        return tuple(sorted(a + b, key=self._order)[: self.most])

    def _order(self, value: Number) -> tuple[Number, bool]:
        return self.sign * value, isinstance(value, float)  # 1 before 1.0, so that the order of merges cannot show

    def lower(self, state: tuple[Number, ...]) -> Listing:
        return Listing(state)

    def rank(self, state: tuple[Number, ...]) -> Number:
        return -self.sign * state[0] if state else float("-inf")

    def to_columns(self, state: tuple[Number, ...]) -> tuple[object, ...]:
        return (packed(state),)

    def from_columns(self, values: Sequence[object]) -> tuple[Number, ...]:
        numbers = list(map(check_number, widen_all(unpacked_all(values[0], self.most))))
        if None in numbers:
            raise ValueError("not finite numbers")
        state = cast(tuple[Number, ...], tuple(numbers))
        if any(self._order(a) > self._order(b) for a, b in pairwise(state)):
            raise ValueError("numbers that are not in order")
        return state

    def may_hold(self, state: tuple[Number, ...], records: int) -> bool:
        return len(state) == min(records, self.most)

    def add(self, tally: tuple[Number, ...], value: Number) -> tuple[Number, ...]:
        if len(tally) == self.most and self._order(value) >= self._order(tally[-1]):
            return tally
        return self.merge(tally, (value,))


class Top(Extremes):
    """The largest numbers, the largest first."""

    name, sign = "top", -1


class Bottom(Extremes):
    """The smallest numbers, the smallest first."""

    name, sign = "bottom", 1


Texts: TypeAlias = tuple[bool, tuple[str, ...]]
"""Whether there are more texts than the cap, and those that come first in the order of text."""


class Values(Tallying[Texts]):
    """The set of different texts, 100 of them if not said otherwise: those that come first in the order of text."""

    name, takes, is_packed, expands, zero = "values", Input.TEXT, True, True, (False, ())

    def __init__(self, *arguments: Number) -> None:
        self.most = _cap(arguments, VALUES_DEFAULT, VALUES_MAX)

    def accepts(self, text: str) -> bool:
        return is_short(text)

    def merge(self, a: Any, b: Any) -> Texts:
        left, right = self.end(a), self.end(b)
        texts = sorted({*left[1], *right[1]})
        return left[0] or right[0] or len(texts) > self.most, tuple(texts[: self.most])

    def lower(self, state: Texts) -> Listing:
        return Listing(state[1], state[0])

    def rank(self, state: Any) -> Number:
        return len(self.end(state)[1])

    def to_columns(self, state: Texts) -> tuple[object, ...]:
        return (packed([state[0], *state[1]]),)

    def from_columns(self, values: Sequence[object]) -> Texts:
        more, *texts = unpacked_all(values[0], self.most + 1)
        if type(more) is not bool or set(map(type, texts)) - {str}:
            raise ValueError("not a set of texts")
        known = cast(list[str], texts)
        if any(a >= b for a, b in pairwise(known)) or not all(map(is_short, known)) or more > (len(known) == self.most):
            raise ValueError("texts that are too long, not in order, or fewer than the cap")
        return more, tuple(known)

    def may_hold(self, state: Texts, records: int) -> bool:
        return min(records, 1) <= len(state[1]) + state[0] <= records

    def begin(self) -> list[Any]:
        return [False, set()]

    def add(self, tally: list[Any], value: str) -> list[Any]:
        more, texts = tally
        texts.add(value)
        if len(texts) > 2 * self.most:
            more, kept = self.end(tally)
            return [more, set(kept)]
        return [more, texts]

    def end(self, tally: Any) -> Texts:
        more, texts = tally
        if isinstance(texts, tuple):
            return more, texts
        return more or len(texts) > self.most, tuple(sorted(texts)[: self.most])


def is_short(text: str) -> bool:
    """Whether a text can be a group, be counted or listed: at most `TEXT_BYTES_MAX` bytes of valid Unicode."""
    if len(text) > TEXT_BYTES_MAX:
        return False
    try:
        return text.isascii() or len(text.encode()) <= TEXT_BYTES_MAX
    except UnicodeEncodeError:
        return False


class VectorSum(Function[tuple[ExactSum, ...]]):
    """The exact sum of vectors, number by number; a shorter vector counts as one with zeros behind it."""

    name, takes, is_packed, expands, zero = "vector", Input.VECTOR, True, True, ()

    def lift(self, value: tuple[Number, ...]) -> tuple[ExactSum, ...]:
        return tuple(map(lift_number, value))

    def merge(self, a: tuple[ExactSum, ...], b: tuple[ExactSum, ...]) -> tuple[ExactSum, ...]:
        long, short = (a, b) if len(a) >= len(b) else (b, a)
        return (*map(add_sums, long, short), *long[len(short) :])

    def lower(self, state: tuple[ExactSum, ...]) -> Listing:
        return Listing(tuple(map(round_sum, state)))

    def rank(self, state: tuple[ExactSum, ...]) -> Number:
        return abs(round_sum(state[0])) if state else 0

    def to_columns(self, state: tuple[ExactSum, ...]) -> tuple[object, ...]:
        mantissas, scales = zip(*state, strict=True) if state else ((), ())
        return (packed([*mantissas, *scales]),)

    def from_columns(self, values: Sequence[object]) -> tuple[ExactSum, ...]:
        numbers = widen_all(unpacked_all(values[0], 2 * VECTOR_MAX))
        length = len(numbers) // 2
        state = tuple(zip(numbers[:length], numbers[length:], strict=True))
        if not all(is_sum(*pair) for pair in state):
            raise ValueError("not canonical sums")
        return cast(tuple[ExactSum, ...], state)

    def has_empty(self, states: object) -> bool:
        return False  # a vector may be empty


def _cap(arguments: tuple[Number, ...], default: int, most: int) -> int:
    if not arguments:
        return default
    if len(arguments) > 1 or type(arguments[0]) is not int or not 1 <= arguments[0] <= most:
        raise ValueError(f"takes one whole number from 1 to {most} behind the field: how many are listed")
    return arguments[0]
