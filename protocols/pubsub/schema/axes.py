"""From values to coordinates: each attribute's domain on one side of the square (Li 2008, section 3.2). Pure.

An `Axis` maps the keys by which filters compare values to whole numbers from 0 up to `SIDE`. It keeps their order,
though it may put neighbours onto the same number, so a range that holds a value always holds its coordinate, too. What
lies outside the domain gets the coordinate of its nearest end: that keeps the order as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Final, TypeAlias

from peerd.frozen import Frozen
from peerd.lib.filter.ranges import Cut
from peerd.lib.filter.values import Key
from protocols.pubsub.tree.cells import SIDE

CODE_BITS: Final = 192
"""How much of a string decides its place: 29 characters of ASCII."""
_FIRST_PLAIN: Final = 0x20
_LAST_PLAIN: Final = 0x7E
_SYMBOLS: Final = _LAST_PLAIN - _FIRST_PLAIN + 3
"""The printable characters of ASCII, one symbol for all before them, and one for all behind them."""
_CHARACTERS: Final = 0x110000
_ARITHMETIC: Final = Context(prec=60)
"""For differences of decimals; its rounding keeps the order."""


class WholeAxis(Frozen):
    """Whole numbers from ``low`` to ``high``: integers, booleans, nanoseconds, addresses."""

    low: int
    high: int

    def coordinate(self, key: Key) -> int:
        """Where a value lies: at least 0, below `SIDE`, and never less than for a smaller value.

        What is no whole number lies where the next smaller one does.
        """
        if key <= self.low:
            return 0
        whole = self.high if key >= self.high else math.floor(key)
        return int((whole - self.low) * SIDE // (self.high - self.low + 1))

    def holds(self, key: Key) -> bool:
        """Whether a value belongs to the domain."""
        return bool(self.low <= key <= self.high)

    def span(self, low: Cut | None, high: Cut | None) -> tuple[int, int]:
        """The coordinates of the ends of a range, so that those of all its values lie between them, or are them.

        An end that does not belong to the range is moved to the next whole number that does.
        """
        first = 0 if low is None else self.coordinate(self._next(low))
        last = self.coordinate(self.high if high is None else self._next(high) - 1)
        return first, max(first, last)

    def value(self, coordinate: int) -> Key:
        """About where the values with a coordinate begin, for people; from `SIDE` on, the end of the domain."""
        return min(self.high, self.low - (-coordinate * (self.high - self.low + 1) // SIDE))

    def _next(self, cut: Cut) -> int:
        """Return the first whole number after a cut, or one that lies outside the domain on the same side."""
        key, after = cut
        # An exact rounding of, say, 1e1000 would take its thousand digits, so what is far outside is not rounded.
        if key < self.low:
            return self.low
        if key > self.high:
            return self.high + 1
        return int(math.floor(key) + 1 if after else math.ceil(key))


@dataclass(frozen=True, slots=True)
class RealAxis:
    """Numbers that lie dense, from ``low`` to ``high``: floats and decimals, compared exactly with one another."""

    low: Decimal
    high: Decimal
    length: float = field(init=False)
    """How far its ends are apart, as a double."""
    _ends: tuple[float, float] | None = field(init=False)
    """The ends as doubles, where they are the same numbers, and what lies between them is measured in doubles."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", float(_ARITHMETIC.subtract(self.high, self.low)))
        ends = float(self.low), float(self.high)
        is_exact = ends[0] == self.low and ends[1] == self.high and math.isfinite(self.length)
        object.__setattr__(self, "_ends", ends if is_exact else None)

    def coordinate(self, key: Key) -> int:
        """See `WholeAxis.coordinate`."""
        low, high = self._ends or (self.low, self.high)
        if key <= low:
            return 0
        if key >= high:
            return SIDE - 1
        # Subtraction, the nearest double, division and product all keep the order, whatever type the key has. Between
        # doubles, subtraction gives the nearest double at once.
        if self._ends is not None and type(key) is float:
            offset = key - self._ends[0]
        else:
            offset = float(_ARITHMETIC.subtract(Decimal(key), self.low))
        return min(SIDE - 1, int(offset / self.length * SIDE))

    def holds(self, key: Key) -> bool:
        """See `WholeAxis.holds`."""
        low, high = self._ends or (self.low, self.high)
        return bool(low <= key <= high)

    def span(self, low: Cut | None, high: Cut | None) -> tuple[int, int]:
        """See `WholeAxis.span`."""
        return _span(self.coordinate, low, high)

    def value(self, coordinate: int) -> Key:
        """See `WholeAxis.value`."""
        share = _ARITHMETIC.divide(Decimal(min(coordinate, SIDE)), Decimal(SIDE))
        return _ARITHMETIC.fma(_ARITHMETIC.subtract(self.high, self.low), share, self.low)


@dataclass(frozen=True, slots=True)
class TextAxis:
    """Strings from ``low`` up to those that begin with ``high`` (empty: to the last of all).

    What all strings of the domain begin with is left away. The rest is read as an arithmetic code does: each character
    chooses a part of what is left of the interval, so strings keep their order, and the domain fills the whole side.
    """

    low: str
    high: str
    _prefix: str = field(init=False)
    _start: int = field(init=False)
    _length: int = field(init=False)

    def __post_init__(self) -> None:
        prefix = _common_prefix(self.low, self.high)
        start, _ = _interval(self.low[len(prefix) :])
        end, width = _interval(self.high[len(prefix) :])
        object.__setattr__(self, "_prefix", prefix)
        object.__setattr__(self, "_start", start)
        object.__setattr__(self, "_length", max(1, end + width - start))

    def coordinate(self, key: Key) -> int:
        """See `WholeAxis.coordinate`."""
        if key <= self.low:
            return 0
        if not self.holds(key):
            return SIDE - 1
        place, _ = _interval(key[len(self._prefix) :])
        return min(SIDE - 1, (place - self._start) * SIDE // self._length)

    def holds(self, key: Key) -> bool:
        """See `WholeAxis.holds`."""
        return bool(self.low <= key and (key <= self.high or key.startswith(self.high)))

    def span(self, low: Cut | None, high: Cut | None) -> tuple[int, int]:
        """See `WholeAxis.span`."""
        return _span(self.coordinate, low, high)

    def value(self, coordinate: int) -> Key:
        """See `WholeAxis.value`; a text is as short as its coordinate is round."""
        if coordinate <= 0:
            return self.low
        if coordinate >= SIDE:
            return self.high
        place = self._start - (-coordinate * self._length // SIDE)
        roundness = coordinate & -coordinate
        return self._prefix + _text_at(place, self._length * roundness // (4 * SIDE))


Axis: TypeAlias = WholeAxis | RealAxis | TextAxis
"""One attribute's side of the square."""


def _span(coordinate: Callable[[Key], int], low: Cut | None, high: Cut | None) -> tuple[int, int]:
    return 0 if low is None else coordinate(low[0]), SIDE - 1 if high is None else coordinate(high[0])


def _common_prefix(one: str, other: str) -> str:
    length = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        length += 1
    return one[:length]


def _interval(text: str) -> tuple[int, int]:
    """Return where the strings that begin with a text lie, as start and width of a part of 0 up to 2^`CODE_BITS`."""
    start, width = 0, 1 << CODE_BITS
    for character in text:
        code = ord(character)
        steps: tuple[tuple[int, int], ...]
        if code < _FIRST_PLAIN:
            steps = ((0, _SYMBOLS), (code, _FIRST_PLAIN))
        elif code <= _LAST_PLAIN:
            steps = ((code - _FIRST_PLAIN + 1, _SYMBOLS),)
        else:
            steps = ((_SYMBOLS - 1, _SYMBOLS), (code - _LAST_PLAIN - 1, _CHARACTERS - _LAST_PLAIN - 1))
        for digit, radix in steps:
            if width < radix:
                return start, width
            start += width * digit // radix
            width //= radix
    return start, width


def _text_at(place: int, grain: int) -> str:
    """Return the first characters of the strings at a place, as many as tell it from what is ``grain`` further."""
    text, start, width = "", 0, 1 << CODE_BITS
    while width > max(grain, _SYMBOLS * _CHARACTERS):
        digit, step = _digit(place - start, width, _SYMBOLS)
        start, width = start + width * digit // _SYMBOLS, step
        if 0 < digit < _SYMBOLS - 1:
            text += chr(_FIRST_PLAIN + digit - 1)
            continue
        first, radix = (0, _FIRST_PLAIN) if digit == 0 else (_LAST_PLAIN + 1, _CHARACTERS - _LAST_PLAIN - 1)
        rest, step = _digit(place - start, width, radix)
        start, width = start + width * rest // radix, step
        text += chr(first + rest)
    return text


def _digit(offset: int, width: int, radix: int) -> tuple[int, int]:
    """Return which of the parts of an interval an offset lies in, and how wide the parts are."""
    digit = min(radix - 1, max(0, (offset + 1) * radix - 1) // width)
    return digit, width // radix
