"""Comparisons of texts with many constants at once. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import or_
from typing import Final

from protocols.dissemination.interests.xpath.numbers import number_of
from protocols.dissemination.interests.xpath.pattern import Value

TEXTS_MAX: Final = 1024
"""Texts of which it is remembered what they meet."""
TEXT_KEPT_MAX: Final = 64
"""Longer texts are not remembered."""


class ValueTests:
    """Comparisons of one thing with constants: which of them a text meets, as bits."""

    def __init__(self) -> None:
        self._equal: dict[str | float, int] = {}
        self._unequal: dict[str | float, int] = {}
        self._unequal_texts = self._unequal_numbers = 0
        self._limits: dict[str, dict[float, int]] = {}
        self._sorted: list[tuple[str, list[float], list[int]]] | None = None
        """For each operator its constants in order, and the bits of what a number meets that comes after so many."""
        self._has_numbers = False
        self._known: dict[str, int] = {}

    def add(self, value: Value, bit: int) -> None:
        """One more."""
        self._known.clear()
        self._sorted = None
        constant = value.constant
        is_number = isinstance(constant, float)
        self._has_numbers |= is_number
        if value.op == "=":
            self._equal[constant] = self._equal.get(constant, 0) | bit
        elif value.op == "!=":
            self._unequal[constant] = self._unequal.get(constant, 0) | bit
            if is_number:
                self._unequal_numbers |= bit
            else:
                self._unequal_texts |= bit
        elif isinstance(constant, float):
            limits = self._limits.setdefault(value.op, {})
            limits[constant] = limits.get(constant, 0) | bit

    def met_by(self, text: str) -> int:
        """The bits of those that a text meets."""
        known = self._known.get(text)
        if known is None:
            known = self._equal.get(text, 0) | self._unequal_texts & ~self._unequal.get(text, 0)
            if self._has_numbers:
                known |= self._numbers(number_of(text))
            if len(text) <= TEXT_KEPT_MAX:
                if len(self._known) >= TEXTS_MAX:
                    self._known.clear()
                self._known[text] = known
        return known

    def _numbers(self, number: float) -> int:
        if number != number:  # not a number: it differs from every number, and is in no order
            return self._unequal_numbers
        met = self._equal.get(number, 0) | self._unequal_numbers & ~self._unequal.get(number, 0)
        for op, constants, bits in self._sorted or self._sort():
            met |= bits[(bisect_left if op in (">", "<=") else bisect_right)(constants, number)]
        return met

    def _sort(self) -> list[tuple[str, list[float], list[int]]]:
        self._sorted = []
        for op, limits in self._limits.items():
            constants = sorted(limits)
            bits = [limits[constant] for constant in constants]
            if op in (">", ">="):  # a number is above the constants before it, and below those after it
                met = list(accumulate(bits, or_, initial=0))
            else:
                met = list(accumulate(reversed(bits), or_, initial=0))[::-1]
            self._sorted.append((op, constants, met))
        return self._sorted
