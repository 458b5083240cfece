"""Charts as data: what experiments make, and `peerd.lab.drawing` draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One series of points (x, y, lowest, highest); over several seeds, y is the mean."""

    label: str
    points: tuple[tuple[float, float, float, float], ...]
    is_reference: bool = False
    """Whether the line is computed and not measured. Such a line is drawn in grey, without marks."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One part of every bar of a bar chart."""

    label: str
    heights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A bar from ``begin`` to ``end`` in the row ``row``; those with one ``label`` have one colour."""

    row: str
    begin: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over numbers, stacked bars over ``categories``, or spans in rows. ``name`` is the name of its file."""

    name: str
    title: str
    x: str
    y: str
    lines: tuple[Line, ...] = ()
    categories: tuple[str, ...] = ()
    stacks: tuple[Stack, ...] = ()
    x_is_log: bool = False
    y_is_log: bool = False
    x_ticks: tuple[float, ...] = field(default=())
    """The marks of the axis; when empty, the drawing program chooses them."""
    spans: tuple[Span, ...] = ()
    """The rows are from the top down, in the order in which they are first named."""
    lies_down: bool = False
    """Bars lie, the first on top: there is more room for the names of ``categories``, whose axis is ``y`` then."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (any(line.points for line in self.lines) or self.stacks or self.spans)


def lines(rows: Iterable[dict[str, Any]], x: str, y: str, *by: str, name: str = "") -> tuple[Line, ...]:
    """A line for each combination of the columns ``by``: ``y`` over ``x``, with the range over seeds.

    Columns that are the same in all rows are not named. Rows without a value are left out.
    """
    rows = list(rows)
    naming = [column for column in by if len({row[column] for row in rows}) > 1]
    found: dict[tuple[Any, ...], dict[float, list[float]]] = {}
    for row in rows:
        group = found.setdefault(tuple(row[column] for column in by), {})
        if row.get(x) is not None and row.get(y) is not None:
            group.setdefault(row[x], []).append(row[y])
    made = []
    for values, group in found.items():
        words = [_name(column, value) for column, value in zip(by, values, strict=True) if column in naming]
        label = ", ".join(([name] if name else []) + words) or y
        points = tuple((at, fmean(several), min(several), max(several)) for at, several in sorted(group.items()))
        made.append(Line(label, points))
    return tuple(made)


def reference(label: str, points: Sequence[tuple[float, float]]) -> Line:
    """Return the line that theory predicts."""
    return Line(label, tuple((x, y, y, y) for x, y in points), is_reference=True)


def values(rows: Iterable[dict[str, Any]], column: str) -> tuple[Any, ...]:
    """Return the different values of a column, in ascending order."""
    return tuple(sorted({row[column] for row in rows if row.get(column) is not None}))


def _name(column: str, value: object) -> str:
    match column, value:
        case "nodes", int():
            return f"{value:,} nodes"
        case "loss", float() | int():
            return f"{value:.0%} loss"
    return str(value)
