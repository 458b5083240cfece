"""The overlay's experiments at tiny sizes: rows follow from what happened in the simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peerd.lab.experiment import COST, Point, Row, Values
from peerd.lab.overlay import churn, clogs, failure
from peerd.lab.overlay.hops import expected_hops
from peerd.lab.overlay.rows import percentile
from peerd.lab.pool import run_point
from peerd.lab.registry import CORE
from peerd.overlay.routing import Decision, Step, next_step as honest
from peerd.sim.runner import run_scenario
from peerd.sim.scenario import parse_scenario

TINY = Point("overlay/hops", 16, "euclidean", duration_s=20.0, lookups=100, settle_s=20.0, seed=3)


def without_cost(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in COST}


@pytest.fixture(scope="module")
def calm() -> Row:
    return run_point(TINY)


def test_a_calm_ring_delivers_everything(calm: Row) -> None:
    assert (calm["nodes"], calm["topology"], calm["seed"]) == (16, "euclidean", 3)
    assert calm["failure"] is None
    assert calm["lookups"] == calm["correct"] > 60
    assert calm["wrong"] == calm["lost"] == calm["orphaned"] == calm["wrong_per_mille"] == 0
    assert calm["full_tables_share"] == calm["cells_share"] == 1.0
    assert 0 < calm["maintenance_per_s"] < calm["control_per_s"]
    assert sum(calm["sent_per_s"].values()) > calm["control_per_s"]
    assert 1 < calm["links"] < 16 and calm["stretch"] >= 1.0


def test_hops_are_those_of_their_distribution(calm: Row) -> None:
    shares = calm["hops_shares"]
    assert sum(shares) == pytest.approx(1.0, abs=1e-4)
    assert calm["mean_hops"] == pytest.approx(sum(hops * share for hops, share in enumerate(shares)), abs=1e-3)
    # everybody is in everybody's leaf set: 1 hop, but for lookups whose source is the root
    assert calm["hops_p50"] == calm["hops_p95"] == 1 == len(shares) - 1
    assert calm["expected_hops"] == round(expected_hops(16) + 0.1, 4) == 1.1


def test_the_same_seed_is_the_same_row_and_another_one_is_not(calm: Row) -> None:
    assert without_cost(run_point(TINY)) == without_cost(calm)
    other = run_point(replace(TINY, seed=4))
    assert (other["lookups"], other["mean_hops"]) != (calm["lookups"], calm["mean_hops"])


def test_stretch_is_looked_at_while_tables_improve() -> None:
    row = run_point(Point("overlay/stretch", 40, "euclidean", duration_s=70.0, lookups=400, settle_s=0.0, seed=3))
    assert row["failure"] is None and row["astray"] == row["wrong"] == row["lost"] == 0
    assert 1.0 <= row["perfect"] < row["random"]
    for name in ("minute", "end"):
        assert row[f"{name}_ratio"] == pytest.approx(row[f"{name}_stretch"] / row["perfect"], abs=1e-3)
    assert row["ten_stretch"] is None and row["ten_ratio"] is None
    assert row["end_ratio"] < 1.2 and 0 < row["calm_per_s"] < 5.0
    # by the clock lookups take the ways that were computed, and the network's jitter comes on top
    assert row["end_stretch"] < row["stretch"] + 0.1 and row["stretch"] < 1.15 * row["end_stretch"]


def test_a_root_that_is_none_counts_as_wrong(calm: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    is_lying = [False]

    def next_step(key: Any, *arguments: Any) -> Decision:
        return Decision(Step.DELIVER) if is_lying[0] and key < 1 << 126 else honest(key, *arguments)

    def notify(phase: str, now_s: float) -> None:
        is_lying[0] = phase == "lookups"

    monkeypatch.setattr("peerd.overlay.routing.next_step", next_step)
    row = run_point(TINY, notify)
    assert row["lookups"] == calm["lookups"] and row["lost"] == 0
    assert row["wrong"] > 0.1 * row["lookups"]
    assert row["correct"] == row["lookups"] - row["wrong"]
    assert row["wrong_per_mille"] == pytest.approx(1000 * row["wrong"] / row["lookups"], abs=0.001)


def test_a_message_that_nobody_passes_on_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    is_on = [False]

    def next_step(key: Any, *arguments: Any) -> Decision:
        return Decision(Step.WAIT) if is_on[0] and key < 1 << 126 else honest(key, *arguments)

    def notify(phase: str, now_s: float) -> None:
        is_on[0] = phase in ("lookups", "drain")

    monkeypatch.setattr("peerd.overlay.routing.next_step", next_step)
    row = run_point(TINY, notify)
    assert row["lost"] > 0.1 * row["lookups"] and row["wrong"] == 0
    assert row["correct"] + row["lost"] == row["lookups"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([], (0, 0, 0)), ([0, 4], (1, 1, 1)), ([50, 45, 4, 1], (0, 1, 2)), ([49, 46, 4, 1], (1, 1, 2)), ([1], (0, 0, 0))],
)
def test_percentiles_of_a_histogram(counts: list[int], expected: tuple[int, int, int]) -> None:
    assert tuple(percentile(counts, percent) for percent in (50, 95, 99)) == expected


def test_churn_takes_and_adds_nodes() -> None:
    point = replace(TINY, experiment="overlay/churn", variant={"session_min": 1.4, "loss": 0.05})
    row = run_point(point)
    assert row["session_min"] == 1.4 and row["loss"] == 0.05
    assert row["departures"] > 0 and row["mean_nodes"] != 16.0
    assert row["correct"] + row["wrong"] + row["lost"] == row["lookups"] > 0
    calm = run_point(replace(point, experiment="overlay/traffic", variant={"session_min": churn.CALM}))
    assert calm["departures"] == calm["arrivals"] == calm["false_evictions"] == 0 and calm["mean_nodes"] == 16.0
    assert calm["control_per_s"] < row["control_per_s"]


def test_the_time_until_the_ring_is_whole_again() -> None:
    variant: Values = {"fault": failure.VANISH, "share": 0.25}
    point = replace(TINY, experiment="overlay/failure", duration_s=60.0, variant=variant)
    row = run_point(point)
    assert row["failure"] is None
    assert 5.0 < row["repaired_s"] < 60.0  # not at once: the dead have to be missed first
    assert row["repair_lookups"] > 0 and row["after_lookups"] == row["after_correct"] > 0
    too_short = run_point(replace(point, duration_s=2.0, lookups=5))
    assert too_short["repaired_s"] is None and "not whole after 2 s" in too_short["failure"]


def test_a_partition_heals() -> None:
    variant: Values = {"fault": failure.PARTITION, "share": 0.5}
    row = run_point(replace(TINY, experiment="overlay/failure", duration_s=60.0, lookups=60, variant=variant))
    assert row["failure"] is None and row["repaired_s"] < 60.0
    assert row["false_evictions"] >= 8 * 8, "the sides have not forgotten each other: nothing had to heal"


def test_clogs_are_compared_with_the_ring_without() -> None:
    point = replace(TINY, experiment="overlay/clogs")
    found = [run_point(replace(point, variant={"clog": clog})) for clog in (0.0, 0.2)]
    calm, clogged = clogs.derive(found)
    assert calm["traffic_ratio"] == 1.0 and calm["reroutes"] == 0
    assert clogged["traffic_ratio"] == pytest.approx(clogged["bytes_per_s"] / calm["bytes_per_s"], abs=1e-3)
    assert clogged["reroutes"] > 0 and clogged["delay_p95_s"] > calm["delay_p95_s"]
    assert clogs.derive(found[1:])[0]["traffic_ratio"] is None


def test_every_experiment_has_points_of_its_own() -> None:
    for experiment in CORE.values():
        for settings in (experiment.full, experiment.quick):
            points = experiment.points(settings)
            assert points and len({point.digest for point in points}) == len(points)
            assert {point.experiment for point in points} == {experiment.name}
        assert len({column.key for column in experiment.columns}) == len(experiment.columns)


def test_wait_whole_waits_for_what_it_was_asked_for() -> None:
    actions = [{"do": "silence", "count": 2}, {"do": "wait_whole", "limit_s": 60}]
    phases: list[Row] = [
        {"name": "join", "actions": [{"do": "wait_ready", "at_s": 1}, {"do": "wait_whole", "at_s": 20}]},
        {"name": "strike", "duration_s": 5, "actions": actions},
    ]
    report = run_scenario(parse_scenario({"nodes": 8, "phases": phases}))
    calm, struck = report.repairs
    assert (calm.phase, calm.took_s, calm.begun_s) == ("join", 0.0, 20.0)
    assert struck.phase == "strike" and struck.took_s is not None and 5.0 < struck.took_s < 60.0
    assert report.passed and report.to_json()["repairs"][1]["took_s"] == struck.took_s
    phases[1]["actions"] = [actions[0], {"do": "wait_whole", "limit_s": 1, "checkers": ["dead_members"]}]
    report = run_scenario(parse_scenario({"nodes": 8, "phases": phases}))
    assert not report.passed and "still has the dead" in (report.failure or "")
