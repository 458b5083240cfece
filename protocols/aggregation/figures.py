"""What functions answer: numbers, and what says more than one number can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from protocols.aggregation.numbers import Number


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number that is not exact. The true one lies from ``low`` to ``high``; how surely, the function says."""

    estimate: Number
    low: Number
    high: Number


@dataclass(frozen=True, slots=True)
class HistogramFigure:
    """How many numbers there are below the first edge, from each edge up to the next, and from the last edge on."""

    edges: tuple[Number, ...]
    counts: tuple[int, ...]
    """One more than ``edges``."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Several values, in the function's order."""

    values: tuple[int | float | str, ...]
    more: bool = False
    """Whether there are others that the cap has left out."""


Figure: TypeAlias = int | float | Estimate | HistogramFigure | Listing | None
"""The answer of one function; ``None`` where there is none, as the mean of nothing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The answers of the several functions of one query, by their texts, in the query's order."""

    figures: Mapping[str, Figure]
