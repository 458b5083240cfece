"""The points of a sweep."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from peerd.cli.options import seed_range
from peerd.errors import ConfigError
from peerd.lab.experiment import Point
from peerd.lab.grid import POINTS_MAX, command_of, parse_grid, sweep_points
from peerd.lab.registry import CORE, experiments
from peerd.lab.store import as_parquet

CHURN = CORE["overlay/churn"]


def test_there_is_a_point_for_each_combination_and_seed() -> None:
    grid = parse_grid(["nodes=10,20", "loss=0,0.5", "duration=1m,90s", "topology=flat=constant@0s"], CHURN)
    assert grid == {
        "nodes": (10, 20),
        "loss": (0, 0.5),
        "duration": (60.0, 90.0),
        "topology": ("flat=constant@0s",),
    }
    points = sweep_points(CHURN, CHURN.quick, grid, range(3, 5))
    sessions = {variant["session_min"] for variant in CHURN.variants}
    assert len(points) == len(set(map(str, points))) * 2 == 2 * 2 * 2 * len(sessions) * 2
    assert {(point.nodes, point.variant["loss"], point.duration_s, point.seed) for point in points} == {
        (nodes, loss, duration, seed)
        for nodes in (10, 20)
        for loss in (0, 0.5)
        for duration in (60, 90)
        for seed in (3, 4)
    }
    assert {point.settle_s for point in points} == {CHURN.quick.settle_s}
    assert sweep_points(CHURN, CHURN.quick, {}, range(1, 2)) == CHURN.points(CHURN.quick)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("los=0.5", r'has no \'los\', did you mean "loss"'),
        ("loss", "expected KEY=VALUE"),
        ("loss=", "expected KEY=VALUE"),
        ("loss=much", "expected something like 0"),
        ('loss={"a":1}', "expected a number or a word"),
        ("loss=[0.5", "no list of JSON"),
        ("nodes=0", "expected a whole number from 1 on"),
        ("nodes=1.5", "expected a whole number from 1 on"),
        ("duration=soon", "duration: "),
    ],
)
def test_a_wrong_grid_is_refused_in_words(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_grid([text], CHURN)


def test_what_is_too_much_or_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        parse_grid(["loss=0", "loss=1"], CHURN)
    with pytest.raises(ConfigError, match=f"more than {POINTS_MAX:,} simulations"):
        sweep_points(CHURN, CHURN.quick, {}, range(POINTS_MAX))
    with pytest.raises(ConfigError, match="at most 5 seeds"):
        seed_range("0:6", 5)
    with pytest.raises(ConfigError, match="A < B"):
        seed_range("6:6", 5)


@given(name=st.sampled_from(sorted(experiments())), seed=st.integers(0, 1 << 40), number=st.integers(0, 1 << 20))
def test_the_command_that_repeats_a_point_means_that_point(name: str, seed: int, number: int) -> None:
    experiment = experiments()[name]
    points = experiment.points(replace(experiment.quick, seed=seed, seeds=1))
    point = points[number % len(points)]
    words = shlex.split(command_of(point))
    assert words[:4] == ["peerd", "lab", "sweep", name]
    options = list(zip(words[4::2], words[5::2], strict=True))
    grid = parse_grid([value for option, value in options if option == "--grid"], experiment)
    [seeds] = [value for option, value in options if option == "--seeds"]
    assert sweep_points(experiment, experiment.full, grid, seed_range(seeds, 1)) == [point]


def test_rows_in_parquet_have_the_same_types_whatever_was_measured() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    point = Point("overlay/hops", 5, "constant", duration_s=5.0, lookups=10, settle_s=1.0, seed=1)
    row = {**point.parameters, "lost": 0, "p50_s": 0.5, "shares": [0.25, 0.75], "sent": {"Ping": 1}, "failure": None}
    table = parquet.read_table(io.BytesIO(as_parquet(point, row)))
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "nodes": "int64",
        "topology": "string",
        "seed": "int64",
        "lost": "double",
        "p50_s": "double",
        "shares": "string",
        "sent": "string",
        "digest": "string",
    }
    [told] = table.to_pylist()
    assert told["shares"] == "[0.25, 0.75]" and told["digest"] == point.digest
