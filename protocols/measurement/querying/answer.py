"""The answer to a statement: rows with bounds, and how certain and how complete they are. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from peerd.frozen import Frozen
from protocols.measurement.readings import NoReading


class BoundedValue(Frozen):
    """A measured value or an aggregate: between ``low`` and ``high``. ``age_s``: of the oldest value in it."""

    value: float
    low: float
    high: float
    age_s: float
    stale: bool = False


Value: TypeAlias = BoundedValue | str | None


class AnswerRow(Frozen):
    """One row. ``certainty``: whether it belongs to the answer; ``confidence``: how probably it fulfils the condition.

    ``places``: the first and the last place that it can have, if the answer is sorted.
    """

    values: tuple[Value, ...]
    certainty: Literal["yes", "maybe"]
    confidence: float = 1.0
    places: tuple[int, int] | None = None


class QueryAnswer(Frozen):
    """What is known now. ``sure``, ``maybe``, ``ruled_out``: the sizes of T+, T? and T-, in nodes or pairs of nodes.

    ``goodness``: the share of T+ in T+ and T?. ``unmet``: which of WITHIN, STALE, REQUIRE and BUDGET were not met, and
    why. ``messages``: what the answer cost. ``rounds``: how often was asked.
    """

    columns: tuple[str, ...]
    rows: tuple[AnswerRow, ...]
    sure: int
    maybe: int
    ruled_out: int
    goodness: float
    missing: tuple[NoReading, ...]
    messages: int
    rounds: int
    unmet: Mapping[str, str]
    numeric: tuple[str, ...] = ()
    """Which columns have numbers, also where no row says so."""
