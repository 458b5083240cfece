"""The skyline: rows that no other row beats in everything that is wished for (Borzsonyi and others 2001). Pure.

One row beats another if it is as good in all columns and better in one. Of values only bounds are known, so it may be
that it surely does, or that it perhaps does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.querying.intervals import Certainty

SKYLINE_MAX: Final = 512
"""Rows among which a skyline is looked for: each is compared with each."""
Ends = tuple[tuple[float, ...], tuple[float, ...]]
"""The best and the worst that a row can have in each column; less is better."""


def ends(values: Sequence[object], descending: Sequence[bool]) -> Ends | None:
    """Those of a row; ``None``: it lacks a value, or has a text, and is in no skyline."""
    best, worst = [], []
    for value, most in zip(values, descending, strict=True):
        if not isinstance(value, Interval):
            return None
        best.append(-value.high if most else value.low)
        worst.append(-value.low if most else value.high)
    return tuple(best), tuple(worst)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def in_skyline(rows: Sequence[Ends | None], certain: Sequence[Certainty]) -> list[Certainty]:
    """Whether each row belongs to it, of rows of T+ and T?."""
    some = [(row, certainty) for row, certainty in zip(rows, certain, strict=True) if row is not None]
    found: list[Certainty] = []
    for row, certainty in zip(rows, certain, strict=True):
        if row is None:
            found.append(False)
            continue
        best, worst = row
        others = [each for each in some if each[0] is not row]
        if any(is_sure and _beats(other[1], best) for other, is_sure in others):
            found.append(False)
        elif certainty and not any(_beats(other[0], worst) for other, _ in others):
            found.append(True)
        else:
            found.append(None)
    return found
