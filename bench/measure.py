"""What a section gets and reports: its scale, rows with samples and aims, and what it left out and why."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeVar

from peerd.errors import Unavailable

T = TypeVar("T")


class BenchFailure(Exception):
    """A measurement that could not be made, or whose result was wrong: worse than a missed aim."""


class Scale(StrEnum):
    """How much work the sections do."""

    FULL = "full"
    QUICK = "quick"
    TINY = "tiny"
    """For tests of the benchmark itself: its numbers mean nothing."""

    def of(self, full: T, quick: T, tiny: T) -> T:
        """Return the one of the three values that this scale has."""
        return {Scale.FULL: full, Scale.QUICK: quick, Scale.TINY: tiny}[self]


@dataclass(frozen=True, slots=True)
class Aim:
    """The bound that a row's median should keep."""

    bound: Literal["at least", "at most"]
    value: float

    def is_met(self, value: float) -> bool:
        """Whether ``value`` keeps the bound."""
        return value >= self.value if self.bound == "at least" else value <= self.value


def at_least(value: float) -> Aim:
    """An aim for which more is better."""
    return Aim("at least", value)


def at_most(value: float) -> Aim:
    """An aim for which less is better."""
    return Aim("at most", value)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the same thing measured several times."""

    section: str
    name: str
    unit: str
    samples: tuple[float, ...]
    aim: Aim | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median; 0 when the median is 0."""
        return (max(self.samples) - min(self.samples)) / self.median if self.median else 0.0

    @property
    def is_met(self) -> bool | None:
        """Whether the median keeps the aim; ``None`` without one."""
        return None if self.aim is None else self.aim.is_met(self.median)

    def to_json(self) -> dict[str, Any]:
        """Everything, samples included."""
        return {
            "section": self.section,
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "samples": list(self.samples),
            "aim": None if self.aim is None else {"bound": self.aim.bound, "value": self.aim.value},
            "is_met": self.is_met,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Skip:
    """Something that was not measured, and why."""

    section: str
    what: str
    why: str


class Reporter(Protocol):
    """Gets results and progress as they come."""

    def row(self, row: Row) -> None: ...
    def skip(self, skip: Skip) -> None: ...
    def progress(self, section: str, text: str) -> None: ...


@dataclass
class Bench:
    """What one section runs with."""

    section: str
    scale: Scale
    runs: int
    reporter: Reporter

    def row(self, name: str, unit: str, samples: Iterable[float], aim: Aim | None = None, note: str = "") -> None:
        """Report one row. Raises `BenchFailure` without samples."""
        values = tuple(samples)
        if not values:
            raise BenchFailure(f"{self.section}: no sample of {name!r}")
        self.reporter.row(Row(self.section, name, unit, values, aim, note))

    def has(self, check: Callable[[], object]) -> bool:
        """Whether there is what the section needs. ``check`` raises `Unavailable` where not: then all is left out."""
        try:
            check()
        except Unavailable as error:
            self.skip("the whole section", str(error))
            return False
        return True

    def skip(self, what: str, why: str) -> None:
        """Say what is left out and why."""
        self.reporter.skip(Skip(self.section, what, why))

    def progress(self, text: str) -> None:
        """Say what is going on."""
        self.reporter.progress(self.section, text)


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the benchmark that runs by itself."""

    name: str
    title: str
    run: Callable[[Bench], None]


@dataclass
class Recorder:
    """A reporter that remembers; ``say`` prints progress."""

    say: Callable[[str], None] = lambda text: None
    rows: list[Row] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)

    def row(self, row: Row) -> None:
        """Keep it."""
        self.rows.append(row)

    def skip(self, skip: Skip) -> None:
        """Keep what was skipped, and print it."""
        self.skips.append(skip)
        self.say(f"{skip.section}: left out: {skip.what} ({skip.why})")

    def progress(self, section: str, text: str) -> None:
        """Print the progress."""
        self.say(f"{section}: {text}")


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return the ratio for each run, as the two were measured one after the other in each."""
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


def load_average() -> float:
    """Processes that wanted a core over the last minute; above the number of cores the numbers are suspect."""
    return os.getloadavg()[0]
