"""What functions, operators and aggregations do with numbers, exactly as in Prometheus. Nothing here raises."""

from __future__ import annotations

import math
import operator as op
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from peerd.frozen import Frozen
from protocols.measurement.promql.tree import ValueKind

# Operators


def divide(left: float, right: float) -> float:
    """IEEE 754: by zero, an infinity or NaN."""
    if right:
        return left / right
    return math.nan if not left or left != left else math.copysign(math.inf, left) * math.copysign(1.0, right)


def modulo(left: float, right: float) -> float:
    """The remainder with the sign of the left side."""
    return math.nan if math.isinf(left) or not right else math.fmod(left, right)


def power(left: float, right: float) -> float:
    """IEEE 754, with infinities instead of errors."""
    try:
        return math.pow(left, right)
    except (OverflowError, ValueError):
        if left < 0 and right != math.floor(right):
            return math.nan  # a root of a negative number
        return math.copysign(math.inf, left) if math.fmod(right, 2.0) else math.inf


COMPARISONS: Final = {"==": op.eq, "!=": op.ne, "<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge}
_ARITHMETIC: Final = {"+": op.add, "-": op.sub, "*": op.mul, "/": divide, "%": modulo, "^": power}
OPERATORS: Final[Mapping[str, Callable[[float, float], float]]] = {**_ARITHMETIC, **COMPARISONS}
SET_OPERATORS: Final = ("and", "or", "unless")

# Aggregations


def add_up(values: Sequence[float]) -> tuple[float, float]:
    """The sum and what rounding took from it (Neumaier): so 1e100 and -1e100 do not swallow what is between them."""
    total = lost = 0.0
    for value in values:
        before, total = total, total + value
        if math.isinf(total):
            lost = 0.0
        else:
            large, small = (before, value) if abs(before) >= abs(value) else (value, before)
            lost += (large - total) + small
    return total, lost


def mean(values: Sequence[float]) -> float:
    """Sum by count; of values whose sum overflows the sum of their shares, which does not."""
    (total, lost), count = add_up(values), len(values)
    if math.isinf(total) and all(map(math.isfinite, values)):
        return sum(add_up([value / count for value in values]))
    return total / count + lost / count


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of the whole population (Welford)."""
    middle = squares = 0.0
    for count, value in enumerate(values, 1):
        delta = value - middle
        middle += delta / count
        squares += delta * (value - middle)
    return math.sqrt(squares / len(values)) if squares >= 0 else math.nan


def quantile(share: float, values: Sequence[float]) -> float:
    """Interpolated between the two nearest. NaN counts as the least."""
    if not 0 <= share <= 1:
        return share * math.inf
    ordered = sorted(values, key=lambda value: -math.inf if value != value else value)
    rank = share * (len(ordered) - 1)
    below = math.floor(rank)
    weight, above = rank - below, min(len(ordered) - 1, below + 1)
    return ordered[below] * (1 - weight) + ordered[above] * weight


AGGREGATES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "sum": lambda values: sum(add_up(values)),
    "avg": mean,
    "min": lambda values: min((value for value in values if value == value), default=math.nan),
    "max": lambda values: max((value for value in values if value == value), default=math.nan),
    "count": lambda values: float(len(values)),
    "stddev": deviation,
}
WITH_PARAMETER: Final = ("topk", "bottomk", "quantile")

# Functions


def _whole(round_to: Callable[[float], int]) -> Callable[[float, float], float]:
    """The sign is kept, so that the ceiling of -0.5 is -0, as IEEE 754 has it."""
    return lambda value, _: math.copysign(round_to(value), value) if math.isfinite(value) else value


def nearest(value: float, unit: float) -> float:
    """Rounded to a multiple, halves upwards."""
    by_unit = divide(1.0, unit)
    return divide(_whole(math.floor)(value * by_unit + 0.5, unit), by_unit)


OF_SAMPLE: Final[Mapping[str, Callable[[float, float], float]]] = {
    "abs": lambda value, _: abs(value),
    "ceil": _whole(math.ceil),
    "floor": _whole(math.floor),
    "round": nearest,
}
"""The second argument is round's unit, 1 unless it is given."""


class RangeWindow(Frozen):
    """The samples of one series in a range, which excludes its first moment. Milliseconds; there is a sample."""

    start: int
    end: int
    times: Sequence[int]
    values: Sequence[float]


EXTRAPOLATION: Final = 1.1
"""A range's end that is farther from the nearest sample than so many mean distances is taken for the series' end."""


def increase(window: RangeWindow, *, is_counter: bool, per_s: float = 1.0) -> float | None:
    """What the series grew by in the range, of which its samples cover a part, divided by ``per_s``.

    It is extended to the ends of the range where these are near, else by half the mean distance of samples, and with a
    counter not to before it was zero. A counter that falls has begun again from zero.
    """
    times, values = window.times, window.values
    if len(times) < 2:
        return None
    grown = values[-1] - values[0]
    if is_counter:
        for before, value in pairwise(values):
            grown += before if value < before else 0.0
    covered = (times[-1] - times[0]) / 1000
    distance = covered / (len(times) - 1)
    to_start, to_end = (
        gap if gap < distance * EXTRAPOLATION else distance / 2
        for gap in ((times[0] - window.start) / 1000, (window.end - times[-1]) / 1000)
    )
    if is_counter and grown > 0 and values[0] >= 0:
        to_start = min(to_start, covered * divide(values[0], grown))
    return grown * (divide(covered + to_start + to_end, covered) / per_s)


def _over_time(of: Callable[[Sequence[float]], float]) -> Callable[[RangeWindow], float]:
    return lambda window: of(window.values)


OF_RANGE: Final[Mapping[str, Callable[[RangeWindow], float | None]]] = {
    "rate": lambda window: increase(window, is_counter=True, per_s=(window.end - window.start) / 1000),
    "increase": lambda window: increase(window, is_counter=True),
    "delta": lambda window: increase(window, is_counter=False),
    "last_over_time": lambda window: window.values[-1],
    **{f"{name}_over_time": _over_time(AGGREGATES[name]) for name in ("avg", "min", "max", "sum", "count")},
}
KEEPS_NAME: Final = "last_over_time"
"""The one function whose result is a value of the metric, so that it keeps the name."""

SIGNATURES: Final[Mapping[str, tuple[ValueKind, tuple[ValueKind, ...], int]]] = {
    **dict.fromkeys(OF_RANGE, (ValueKind.VECTOR, (ValueKind.MATRIX,), 1)),
    **dict.fromkeys(OF_SAMPLE, (ValueKind.VECTOR, (ValueKind.VECTOR,), 1)),
    "round": (ValueKind.VECTOR, (ValueKind.VECTOR, ValueKind.SCALAR), 1),
    "scalar": (ValueKind.SCALAR, (ValueKind.VECTOR,), 1),
    "vector": (ValueKind.VECTOR, (ValueKind.SCALAR,), 1),
    "time": (ValueKind.SCALAR, (), 0),
    **dict.fromkeys(AGGREGATES, (ValueKind.VECTOR, (ValueKind.VECTOR,), 1)),
    **dict.fromkeys(WITH_PARAMETER, (ValueKind.VECTOR, (ValueKind.SCALAR, ValueKind.VECTOR), 2)),
}
"""For each function and aggregation what it gives, what it takes, and how many of these at least."""
