"""An experiment: its parameters, one simulation for each point, the columns of its table, and its charts.

A point is everything that a simulation depends on, so its row is a pure function of it, but for the columns that say
what the simulation cost. Rows are plain JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import product
from typing import Any, Final

from peerd.lab.charts import Chart
from peerd.lab.topologies import label_of

Row = dict[str, Any]
Values = Mapping[str, float | str | None]
Notify = Callable[[str, float], None]
"""Called with the name of each phase of a simulation as it begins, and the virtual time in seconds."""

Draw = Callable[[Sequence[Row]], list[Chart]]
"""Makes the charts of an experiment from its rows."""

VERSION: Final = version("peerd")
COST: Final = frozenset({"processor_s", "node_kib"})
"""The columns whose values differ from run to run."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of a user. An experiment has one point for each combination of size, topology, seed and variant."""

    nodes: tuple[int, ...]
    duration_s: float
    """How long the measurement lasts, in virtual seconds."""
    lookups: int
    """About how many lookups are made meanwhile (a Poisson process)."""
    settle_s: float = 600.0
    """Virtual seconds from the last join to the measurement, in which routing tables fill."""
    topologies: tuple[str, ...] = ("euclidean",)
    seed: int = 1
    seeds: int = 1


@dataclass(frozen=True, slots=True)
class Point:
    """The parameters of one simulation."""

    experiment: str
    nodes: int
    topology: str
    """The topology in the form that `peerd.lab.topologies.table_of` takes."""
    duration_s: float
    lookups: int
    settle_s: float
    seed: int
    variant: Values = field(default_factory=dict)

    def to_json(self) -> Row:
        """Return the point as plain data; `of_json` reads it back."""
        return asdict(self)

    @classmethod
    def of_json(cls, data: Row) -> Point:
        """Read what `to_json` returned. Raises ``TypeError`` for anything else."""
        return cls(**data)

    @property
    def digest(self) -> str:
        """Return a digest that is the same for the same point of the same version."""
        text = json.dumps([VERSION, self.to_json()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def parameters(self) -> Row:
        """Return the columns that tell one row from another."""
        return {"nodes": self.nodes, "topology": label_of(self.topology), "seed": self.seed, **self.variant}

    def __str__(self) -> str:
        return f"{self.experiment} " + " ".join(f"{name}={value}" for name, value in self.parameters.items())


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table, and what it means."""

    key: str
    heading: str
    meaning: str
    digits: int = 2
    """How many digits are shown after the decimal point."""

    def cell(self, row: Row) -> float | int | str:
        """Return the value as people read it."""
        value = row.get(self.key)
        if value is None:
            return "-"
        if isinstance(value, float):
            return round(value, self.digits) if self.digits else round(value)
        return value if isinstance(value, int | str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What several points have in common: a simulation is run up to there once, and each point goes on from a copy."""

    key: Callable[[Point], str]
    """Points with the same key, of whatever experiment, begin alike."""
    prepare: Callable[[Point, Notify], Any]
    """Runs what is common. What it returns is only handed on."""
    measure: Callable[[Any, Point, Notify], Row]
    """Goes on from what was prepared, and may change it; returns the point's row."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment. ``measure`` runs a point's simulation; it must be importable, as it runs in another process."""

    name: str
    title: str
    reproduces: str
    """The paper and the figure that the experiment reproduces."""
    takes: str
    """Roughly the processor time that it took where it was measured."""
    full: Settings
    quick: Settings
    columns: tuple[Column, ...]
    measure: Callable[[Point, Notify], Row]
    charts: Draw
    variants: tuple[Values, ...] = field(default=({},))
    derive: Callable[[Sequence[Row]], list[Row]] = list
    """A function that adds columns which compare rows with each other."""
    beginning: Beginning | None = None
    """Given where points begin alike; ``measure`` returns the same row, but for what it cost."""
    paper: str = ""
    """What the paper says of it, with its numbers; nothing where it says nothing."""

    def points(self, settings: Settings) -> list[Point]:
        """Return all points in the order of the table."""
        seeds = range(settings.seed, settings.seed + settings.seeds)
        return [
            Point(self.name, nodes, topology, settings.duration_s, settings.lookups, settings.settle_s, seed, variant)
            for nodes, topology, variant, seed in product(settings.nodes, settings.topologies, self.variants, seeds)
        ]


def chosen(base: Settings, **choices: Any) -> Settings:
    """Return the settings with every given value that is not ``None`` in place of the old one."""
    return replace(base, **{name: value for name, value in choices.items() if value is not None})
