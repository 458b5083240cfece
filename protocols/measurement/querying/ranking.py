"""Ordering rows of whose values only bounds are known (section 6.2.2): which places each can have. Pure.

Row A surely comes before row B if the greatest key that A can have is less than B's least one: that is the partial
order of figure 6.1. Keys end with the number of the row, so that equal values have an order, too.

The skyline has the rows that no other row beats in everything that is wished for (Borzsonyi and others 2001). One row
beats another if it is as good in all columns and better in one: it surely does, or it perhaps does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import gt
from typing import Any, Final, TypeAlias

from peerd.frozen import Frozen
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.querying.intervals import Certainty

SKYLINE_MAX: Final = 512
"""Rows among which a skyline is looked for: each is compared with each."""
Place: TypeAlias = tuple[int, int]
"""The first and the last place, from 1, that a row can have."""
Key: TypeAlias = tuple[int, float]
"""What a value is sorted by: numbers come before texts, and what is missing comes last."""
NUMBER, TEXT, MISSING = range(3)


class SortColumn(Frozen):
    """One column of all rows to sort by: what is known of each value, and what is taken to be the value."""

    values: Sequence[object]
    estimates: Sequence[object]
    descending: bool


def _ends(values: Sequence[object], descending: bool) -> list[tuple[Key, Key]]:
    """The least and the greatest key of each."""
    texts = sorted({value for value in values if isinstance(value, str)}, reverse=descending)
    ranks = {text: float(rank) for rank, text in enumerate(texts)}
    found = []
    for value in values:
        if isinstance(value, Interval):
            low, high = (-value.high, -value.low) if descending else (value.low, value.high)
            found.append(((NUMBER, low), (NUMBER, high)))
        else:
            part = (TEXT, ranks[value]) if isinstance(value, str) else (MISSING, 0.0)
            found.append((part, part))
    return found


def _keys(columns: Sequence[list[tuple[Any, Any]]], end: int) -> list[tuple[Any, ...]]:
    return [(*(each[end] for each in row), number) for number, row in enumerate(zip(*columns, strict=True))]


def ranked(columns: Sequence[SortColumn], certain: Sequence[Certainty]) -> list[tuple[int, Place]]:
    """The numbers of rows of T+ and T? in an order that the bounds allow, each with the places it can have."""
    bounds = [_ends(column.values, column.descending) for column in columns]
    least, greatest = _keys(bounds, 0), _keys(bounds, 1)
    guesses = _keys([_ends(column.estimates, column.descending) for column in columns], 0)
    # Rows of T? may be absent, so they push no other row back for sure.
    lows, highs = sorted(least), sorted(key for key, is_sure in zip(greatest, certain, strict=True) if is_sure)
    return [
        (guess[-1], (1 + bisect_left(highs, least[guess[-1]]), bisect_right(lows, greatest[guess[-1]])))
        for guess in sorted(guesses)
    ]


def in_top(certainty: Certainty, place: Place, limit: int | None) -> Certainty:
    """Whether a row of T+ or T? is among the first ``limit``."""
    if limit is None:
        return certainty
    return False if place[0] > limit else True if certainty and place[1] <= limit else None


def in_skyline(
    columns: Sequence[Sequence[object]], descending: Sequence[bool], certain: Sequence[Certainty]
) -> list[Certainty]:
    """Whether each row of T+ or T? belongs to the skyline; one that lacks a value, or has a text, does not."""
    bounds = [_ends(values, most) for values, most in zip(columns, descending, strict=True)]
    best, worst = ([key[:-1] for key in _keys(bounds, end)] for end in (0, 1))
    numbers = [at for at, row in enumerate(best) if all(kind == NUMBER for kind, _ in row)]
    found: list[Certainty] = [False] * len(best)
    for at in numbers:
        others = [each for each in numbers if each != at]
        if not any(certain[each] and _beats(worst[each], best[at]) for each in others):
            is_safe = certain[at] and not any(_beats(best[each], worst[at]) for each in others)
            found[at] = True if is_safe else None
    return found


def _beats(one: Sequence[Key], other: Sequence[Key]) -> bool:
    return one != other and not any(map(gt, one, other))  # each of 512 rows is compared with each
