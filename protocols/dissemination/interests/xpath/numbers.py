"""Numbers as libxml2 reads them, bit by bit, so that comparisons come out as they do there. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from math import inf, isfinite, nan
from typing import Final

_NUMBER: Final = re.compile(r"[ \t\r\n]*(-?)(\d*)(?:(\.)(\d*))?(?:[eE]([+-]?)(\d*))?[ \t\r\n]*", re.ASCII)
_FRACTION_DIGITS_MAX: Final = 20
"""Digits of a fraction that libxml2 looks at, after the leading zeros."""
_EXPONENT_MAX: Final = 400
"""Beyond it every result is zero or infinite."""


def number_of(text: str) -> float:
    """What ``number()`` makes of a text; NaN where it is none. Not quite XPath: exponents are taken."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return nan
    sign, whole, point, decimals, exponent_sign, exponent = match.groups()
    if not whole and not decimals:
        return nan
    value = 0.0
    for digit in whole:
        value = value * 10 + int(digit)
    if point and decimals:
        value += _fraction(decimals)
    if sign:
        value = -value
    if exponent:
        value *= _power(-int(exponent[:9]) if exponent_sign == "-" else int(exponent[:9]))
    return value


def _fraction(decimals: str) -> float:
    zeros = len(decimals) - len(decimals.lstrip("0"))
    digits = decimals[: zeros + _FRACTION_DIGITS_MAX]
    fraction = 0.0
    for digit in digits[zeros:]:
        fraction = fraction * 10 + int(digit)
    return fraction / _power(len(digits)) if fraction else 0.0


def _power(exponent: int) -> float:
    if exponent > _EXPONENT_MAX:
        return inf
    return 0.0 if exponent < -_EXPONENT_MAX else _c_power(exponent)


def _c_power(exponent: int) -> float:
    try:
        return 10.0**exponent
    except OverflowError:
        return inf


def number_text(value: float) -> str | None:
    """A text that `number_of` reads as the value; ``None`` where there is none within reach."""
    if not isfinite(value):
        return None
    text = format(Decimal(repr(value)), "f").removesuffix(".0")
    return text if number_of(text) == value else None
