"""The points of a sweep: an experiment over a grid of values, each with many seeds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

from peerd.errors import ConfigError, nearest
from peerd.lab.experiment import Experiment, Point, Settings, Values
from peerd.quantities import parse_duration

Value = float | str | None
Grid = Mapping[str, tuple[Any, ...]]

TIMES: Final = {"duration": "duration_s", "settle": "settle_s"}
"""Keys whose values are times such as "10m", and what they are called in `Settings`."""
SETTINGS: Final = ("nodes", "topology", "lookups", *TIMES)
"""Keys that every experiment has; the others are of its variants."""
POINTS_MAX: Final = 1_000_000


def parse_grid(texts: Sequence[str], experiment: Experiment) -> Grid:
    """Read ``KEY=VALUE,VALUE``, each for one key. Raises `ConfigError` for a key or a value that there cannot be."""
    known = [*SETTINGS, *dict.fromkeys(key for variant in experiment.variants for key in variant)]
    grid: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise ConfigError(f"{text!r}: expected KEY=VALUE, several values with commas between them", key="--grid")
        if key not in known:
            raise ConfigError(f"{experiment.name} has no {key!r}{nearest(key, known)}", key="--grid")
        if key in grid:
            raise ConfigError(f"{key!r} is given twice", key="--grid")
        grid[key] = tuple(dict.fromkeys(_value(key, word, experiment) for word in _words(values)))
    return grid


def _words(text: str) -> list[str]:
    """The values between commas; what has a comma itself is given as JSON, ``["a, b", "c"]``."""
    if text.startswith("["):
        try:
            return [each if isinstance(each, str) else json.dumps(each) for each in json.loads(text)]
        except ValueError as error:
            raise ConfigError(f"{text}: no list of JSON", key="--grid") from error
    return [word.strip() for word in text.split(",")]


def _value(key: str, word: str, experiment: Experiment) -> Value:
    if key == "topology":
        return word
    if key in TIMES:
        try:
            return parse_duration(word)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}", key="--grid") from error
    try:
        value = json.loads(word)
    except ValueError:
        value = word
    if key in ("nodes", "lookups"):
        least = int(key == "nodes")  # without lookups there is still an experiment
        if type(value) is not int or value < least:
            raise ConfigError(f"{key}={word}: expected a whole number from {least} on", key="--grid")
        return value
    there = [variant[key] for variant in experiment.variants if variant.get(key) is not None]
    if value is not None and there and isinstance(value, str) != isinstance(there[0], str):
        raise ConfigError(f"{key}={word}: expected something like {there[0]!r}", key="--grid")
    if not isinstance(value, float | int | str | None):
        raise ConfigError(f"{key}={word}: expected a number or a word", key="--grid")
    return value


def sweep_points(experiment: Experiment, base: Settings, grid: Grid, seeds: range) -> list[Point]:
    """All points: for each combination of the grid's values, and of what it does not name as in ``base``, each seed.

    Raises `ConfigError` for more than `POINTS_MAX`.
    """
    varied = replace(experiment, variants=_variants(experiment.variants, grid))
    points: list[Point] = []
    for lookups, duration_s, settle_s in product(
        grid.get("lookups", (base.lookups,)),
        grid.get("duration", (base.duration_s,)),
        grid.get("settle", (base.settle_s,)),
    ):
        settings = replace(
            base,
            nodes=grid.get("nodes", base.nodes),
            topologies=grid.get("topology", base.topologies),
            lookups=lookups,
            duration_s=duration_s,
            settle_s=settle_s,
            seed=seeds.start,
            seeds=len(seeds),
        )
        each = len(settings.nodes) * len(settings.topologies) * len(varied.variants) * settings.seeds
        if len(points) + each > POINTS_MAX:
            raise ConfigError(f"more than {POINTS_MAX:,} simulations; take fewer values or seeds", key="--grid")
        points += varied.points(settings)
    return points


def _variants(variants: Sequence[Values], grid: Grid) -> tuple[Values, ...]:
    """The variants with each combination of the grid's values in place of their own, each once."""
    found: dict[str, Values] = {}
    for variant in variants:
        keys = [key for key in variant if key in grid]
        for values in product(*(grid[key] for key in keys)):
            made = {**variant, **dict(zip(keys, values, strict=True))}
            found[json.dumps(made, sort_keys=True)] = made
    return tuple(found.values())


def command_of(point: Point) -> str:
    """The command that repeats a point."""
    values: dict[str, Value] = {"nodes": point.nodes, "topology": point.topology, "lookups": point.lookups}
    values |= {"duration": point.duration_s, "settle": point.settle_s, **point.variant}
    grid = {key: [value] for key, value in values.items()}
    return _command(point.experiment, grid, f"{point.seed}:{point.seed + 1}")


def sweep_command(experiment: Experiment, settings: Mapping[str, Any]) -> str:
    """The command that repeats all of what ``results.json`` has, by the ``settings`` in it."""
    if "grid" in settings:
        command = _command(experiment.name, settings["grid"], str(settings.get("seeds", "")))
        return f"{command} --quick" if settings.get("quick") else command
    names = {"nodes": "nodes", "topology": "topologies", "lookups": "lookups", **TIMES}
    found = {key: settings[name] for key, name in names.items() if name in settings}
    grid = {key: value if isinstance(value, list | tuple) else [value] for key, value in found.items()}
    first = settings.get("seed", 1)
    return _command(experiment.name, grid, f"{first}:{first + settings.get('seeds', 1)}")


def _command(experiment: str, grid: Mapping[str, Sequence[Value]], seeds: str) -> str:
    words = ["peerd", "lab", "sweep", experiment]
    for key, values in grid.items():
        shown = [f"{value}s" if key in TIMES else value for value in values]
        plain = [value if isinstance(value, str) else json.dumps(value) for value in shown]
        words += ["--grid", f"{key}={json.dumps(shown) if any(',' in each for each in plain) else ','.join(plain)}"]
    return shlex.join([*words, "--seeds", seeds])
