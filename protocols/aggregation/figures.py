"""What functions answer: numbers, and what says more than one number can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pydantic import computed_field

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


@dataclass(frozen=True, slots=True)
class GroupedAnswer:
    """For people: groups in order of rank, and what is not listed because of the cap.

    A group of several keys is named by a JSON array of them.
    """

    groups: Mapping[str, Figure | Figures]
    groups_total: int
    """How many groups the value lists (``groups`` may show only the first of them)."""
    remainder_groups_max: int
    """At most this many different groups were folded away."""
    remainder: Figure | Figures
    """What the function gives for all that was folded away; ``None`` when nothing was."""

    @computed_field  # type: ignore[prop-decorator]  # what pydantic asks for, and mypy does not know
    @property
    def exact(self) -> bool:
        """Whether every group is listed with its exact value."""
        return self.remainder_groups_max == 0
