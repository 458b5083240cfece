"""Numbers of records, and their exact sums.

A sum is kept as an exact dyadic rational ``mantissa / 2**scale`` and rounded once, when the answer is made, so every
order of merges gives the same bits. Pairs of doubles (compensated summation) were considered: they are smaller by a few
bytes but depend on the order as soon as large terms cancel.

Bounds. Input numbers are finite and below ``2**NUMBER_BITS_MAX``; a sum of fewer than 2**63 of them always fits in
`MANTISSA_BITS_MAX`, and a sum of their squares in twice as much, so nodes that tell the truth never meet the bound. A
merge that does raises `peerd.errors.ProtocolError` with reason ``aggregation_overflow``, and never wraps or loses a
digit.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

from peerd.errors import ProtocolError

Number: TypeAlias = int | float

NUMBER_BITS_MAX: Final = 1024
"""Numbers at or above 2**1024 are refused, whole or not: the range of a double."""
SCALE_MAX: Final = 1074
"""The largest scale of a sum, as the smallest double is 2**-1074."""
COUNT_MAX: Final = 2**63 - 1
MANTISSA_BITS_MAX: Final = NUMBER_BITS_MAX + SCALE_MAX + 63

ExactSum: TypeAlias = tuple[int, int]
"""``(mantissa, scale)``, worth ``mantissa / 2**scale``; scale -1 marks a sum of whole numbers only (worth mantissa).

Canonical: with scale > 0 the mantissa is odd, so equal sums are equal tuples."""
ZERO_SUM: Final[ExactSum] = (0, -1)

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
_NUMBER_CHARACTERS_MAX: Final = 400
_SURELY_SMALL_DIGITS: Final = 300
"""Most numbers are a few digits, which need no pattern; so many of them are always below 2**1024."""


def parse_number(text: str) -> Number | None:
    """The number that ``text`` writes in ASCII decimal, if `check_number` accepts it, else ``None``."""
    if text.isdecimal() and text.isascii() and len(text) <= _SURELY_SMALL_DIGITS:
        return int(text)
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


def square(number: ExactSum) -> ExactSum:
    """Return the exact square of one number, as a sum of squares begins."""
    mantissa, scale = number
    return mantissa * mantissa, scale if scale < 0 else 2 * scale


def add_sums(a: ExactSum, b: ExactSum, powers: int = 1) -> ExactSum:
    """Add two sums exactly, so that the order never matters.

    ``powers``: 2 for sums of squares. Raises `ProtocolError` beyond ``powers`` times `MANTISSA_BITS_MAX`.
    """
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
    if total.bit_length() > powers * MANTISSA_BITS_MAX:
        raise ProtocolError("aggregation_overflow", f"a sum needs more than {powers * MANTISSA_BITS_MAX} bits")
    return total, scale


def round_sum(total: ExactSum, divisor: int = 1) -> Number:
    """``total / divisor`` rounded once. A sum of whole numbers by 1 stays an int, and so does what no double holds."""
    mantissa, scale = total
    if scale < 0 and divisor == 1:
        return mantissa
    return round_ratio(mantissa, divisor << max(scale, 0))


def round_ratio(numerator: int, denominator: int) -> Number:
    """The quotient rounded once; a whole number, rounded down, where no double holds it."""
    try:
        return numerator / denominator
    except OverflowError:
        return numerator // denominator


def is_sum(mantissa: object, scale: object, powers: int = 1) -> bool:
    """Whether two decoded values are a canonical `ExactSum`; of squares with ``powers`` 2."""
    if type(mantissa) is not int or type(scale) is not int or not -1 <= scale <= powers * SCALE_MAX:
        return False
    return mantissa.bit_length() <= powers * MANTISSA_BITS_MAX and (scale <= 0 or mantissa & 1 == 1)


def add_counts(a: int, b: int) -> int:
    """Add two counts. Raises `ProtocolError` beyond `COUNT_MAX`."""
    if a + b > COUNT_MAX:
        raise ProtocolError("aggregation_overflow", f"a count passes {COUNT_MAX}")
    return a + b


def is_count(value: object) -> bool:
    """Whether a decoded value is a count."""
    return type(value) is int and 0 <= value <= COUNT_MAX
