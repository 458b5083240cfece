"""Makes rows of an answer of what is known, and says what was not met. Pure.

Aggregates are of rows of whose values only bounds are known, as intervals that contain the true aggregate. Rows of T?
may or may not belong, so they widen the interval: ``COUNT(*)`` lies between |T+| and |T+| + |T?|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum, inf
from typing import Final, TypeAlias

from peerd.frozen import Frozen
from protocols.measurement.guarantee.interval import Interval
from protocols.measurement.querying.answer import AnswerRow, BoundedValue, Value
from protocols.measurement.querying.intervals import Certainty
from protocols.measurement.querying.plan import Knowledge, Row, first_half_width
from protocols.measurement.querying.ranking import Place, SortColumn, in_top, ranked
from protocols.measurement.querying.statement import NamedColumn, Selected
from protocols.measurement.readings import Reading

LIKELY: Final = 0.5
"""A row of T? counts in the estimate of an aggregate if it belongs there with this probability at least."""
Intervals: TypeAlias = Sequence[Interval]


class JudgedRow(Frozen):
    """Where a row belongs, with which probability it fulfils the condition, and which places it can have."""

    row: Row
    certainty: Certainty
    confidence: float
    place: Place | None = None


def unmet(known: Knowledge) -> dict[str, str]:
    """Which of WITHIN and STALE are not met, and why."""
    readings = list(known.readings.values())
    asked = [
        first_half_width(known.statement, each.measurement.name, lambda name: inf, known.summed) for each in readings
    ]
    wide = sum(not each.interval.is_within(width) for each, width in zip(readings, asked, strict=True))
    stale = [each.age_s for each in readings if each.is_stale]
    found = {"WITHIN": f"{wide} of {len(readings)} values came with wider bounds"} if wide else {}
    if known.statement.stale_s is not None and stale:
        found["STALE"] = f"{len(stale)} of {len(readings)} values are older, up to {max(stale):.1f} s"
    return found


def plain_rows(known: Knowledge, judged: Sequence[JudgedRow]) -> list[AnswerRow]:
    """The rows one by one."""
    return [
        AnswerRow(
            tuple(_shown_value(known, each.column, row.row) for each in known.shown if each.column is not None),
            "maybe" if row.certainty is None else "yes",
            row.confidence,
            row.place,
        )
        for row in [row for row in judged if row.certainty is not False][: known.statement.limit]
    ]


def group_rows(known: Knowledge, judged: Sequence[JudgedRow]) -> list[AnswerRow]:
    """A row for each group. One of rows of T? only may not exist."""
    statement = known.statement
    groups: dict[tuple[object, ...], list[JudgedRow]] = {} if statement.group_by else {(): []}
    for row in judged:
        groups.setdefault(tuple(known.value(column, row.row) for column in statement.group_by), []).append(row)
    rows = [tuple(_group_value(known, each, members) for each in known.shown) for members in groups.values()]
    certain: list[Certainty] = [
        not name or any(row.certainty for row in members) or None for name, members in groups.items()
    ]
    labels = [each.label for each in known.shown]
    columns = [SortColumn([None] * len(rows), [None] * len(rows), False)]
    for key in statement.sort_by:
        values = [row[labels.index(key.selected.label)] for row in rows]
        bounds, told = ([_ends(value, is_told) for value in values] for is_told in (False, True))
        columns.append(SortColumn(bounds, told, key.descending))
    found = [(rows[at], in_top(certain[at], place, statement.limit), place) for at, place in ranked(columns, certain)]
    return [AnswerRow(row, "yes" if sure else "maybe", places=at) for row, sure, at in found[: statement.limit]]


def _ends(value: Value, is_told: bool) -> object:
    if not isinstance(value, BoundedValue):
        return value
    return Interval(value.value, value.value) if is_told else Interval(value.low, value.high)


def _group_value(known: Knowledge, selected: Selected, members: Sequence[JudgedRow]) -> Value:
    column = selected.column
    if column is not None and not selected.function:
        return _shown_value(known, column, members[0].row)
    if selected.function == "COUNT":
        counted = [each for each in members if column is None or known.value(column, each.row) is not None]
        of, readings = [(each, Interval(1, 1), 1.0) for each in counted], list(known.readings.values())
    else:
        found = [(each, known.reading(column, each.row)) for each in members]
        of = [(each, reading.interval, reading.value) for each, reading in found if reading]
        readings = [reading for _, reading in found if reading]
    sure, maybe = ([interval for each, interval, _ in of if each.certainty is kind] for kind in (True, None))
    result = aggregate(selected.function, sure, maybe, [value for each, _, value in of if each.confidence >= LIKELY])
    return None if result is None else _bounded(*result, readings)


def _bounded(value: float, interval: Interval, readings: Sequence[Reading]) -> BoundedValue:
    age_s, stale = max((each.age_s for each in readings), default=0.0), any(each.is_stale for each in readings)
    return BoundedValue(value, interval.low, interval.high, age_s, stale)


def _shown_value(known: Knowledge, column: NamedColumn, row: Row) -> Value:
    reading = known.reading(column, row)
    if reading is not None:
        return _bounded(reading.value, reading.interval, [reading])
    value = known.value(column, row)
    return None if isinstance(value, Interval) else value


def aggregate(
    function: str, sure: Intervals, maybe: Intervals, likely: Sequence[float]
) -> tuple[float, Interval] | None:
    """An estimate and bounds of COUNT, SUM, MEAN, MIN or MAX; ``None``, as in SQL, if it is of no value at all.

    ``sure`` and ``maybe`` are bounds of rows of T+ and T?; the estimate is of the ``likely`` values. A count is the sum
    of ones.
    """
    if not sure and not maybe:
        return (0, Interval(0, 0)) if function == "COUNT" else None
    bounds = _FUNCTIONS[function](sure, maybe)
    middle = _FUNCTIONS[function]([Interval(value, value) for value in likely], []).low if likely else bounds.low
    return min(max(middle, bounds.low), bounds.high), bounds


def _sum(sure: Intervals, maybe: Intervals) -> Interval:
    low = fsum([*(each.low for each in sure), *(min(0, each.low) for each in maybe)])
    return Interval(low, fsum([*(each.high for each in sure), *(max(0, each.high) for each in maybe)]))


def _negated(intervals: Intervals) -> Intervals:
    return [Interval(-each.high, -each.low) for each in intervals]


def _mean(sure: Intervals, maybe: Intervals) -> Interval:
    return Interval(-_greatest_mean(_negated(sure), _negated(maybe)), _greatest_mean(sure, maybe))


def _greatest_mean(sure: Intervals, maybe: Intervals) -> float:
    """The greatest mean: those that may belong do if they lie above it."""
    taken = [each.high for each in sure]
    for value in sorted((each.high for each in maybe), reverse=True):
        if taken and value <= fsum(taken) / len(taken):
            break
        taken.append(value)
    return fsum(taken) / len(taken)


def _max(sure: Intervals, maybe: Intervals) -> Interval:
    lows = [each.low for each in sure]
    return Interval(max(lows) if lows else min(each.low for each in maybe), max(each.high for each in (*sure, *maybe)))


def _min(sure: Intervals, maybe: Intervals) -> Interval:
    return _negated([_max(_negated(sure), _negated(maybe))])[0]


_FUNCTIONS: Final[dict[str, Callable[[Intervals, Intervals], Interval]]] = {
    "COUNT": _sum,
    "SUM": _sum,
    "MEAN": _mean,
    "MIN": _min,
    "MAX": _max,
}
