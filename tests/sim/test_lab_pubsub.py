"""The experiments of publish/subscribe at tiny sizes: columns follow from what happened in the simulation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, strategies as st

from peerd.lab.experiment import COST, Point, Row
from peerd.lab.pool import groups, run_point, run_points
from peerd.lab.registry import find
from peerd.lib.filter import matcher, parse
from protocols.pubsub.front.lab.experiments import EXPERIMENTS, topology
from protocols.pubsub.front.lab.figures import STEPS, bytes_row, difference, distribution, latency_row
from protocols.pubsub.front.lab.run import MatchFinder, matches
from protocols.pubsub.front.workload import ThesisWorkload, filter_of

OF_SOME = (
    "leaf_cache_max",
    "burst",
    "cutoff",
    "multicast",
    "tree_maps",
    "balancing",
    "cut",
    "cut_published",
    "cut_acknowledged",
    "whole_s",
)
"""Columns that not every run has."""
TINY = Point("pubsub/delivery", 12, "square=euclidean@180ms", duration_s=20.0, lookups=60, settle_s=20.0, seed=3)


def without_cost(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in COST}


@pytest.fixture(scope="module")
def plain() -> Row:
    return run_point(TINY)


def test_everything_is_installed_and_arrives(plain: Row) -> None:
    assert plain["failure"] is None
    assert plain["installed"] == plain["subscriptions"] == 5 * TINY.nodes
    assert plain["acknowledged"] == plain["published"] == TINY.lookups
    assert plain["pairs"] == plain["published"] * plain["subscriptions"]
    assert plain["pairs_due"] >= plain["deliveries"] > 0
    assert plain["pairs_missing"] == plain["wrong"] == plain["doubled"] == plain["refused"] == 0


def test_figures_are_of_the_run(plain: Row) -> None:
    assert 0 < plain["install_p50_s"] <= plain["install_p99_s"] <= plain["install_max_s"] < 10
    # a leaf is in between on most ways: no less than the direct latency, and little more than that and one hop
    assert plain["direct_mean_s"] < plain["delivery_mean_s"] < 4 * (plain["direct_mean_s"] + plain["one_hop_s"])
    assert plain["one_hop_s"] == pytest.approx(0.09, rel=0.5)
    assert len(plain["delivery_s"]) == STEPS + 1
    # replicas and deliveries are part of what is sent
    assert 0 < plain["install_tree_bytes_mean"] < plain["install_bytes_mean"]
    assert 0 < plain["probe_bytes_mean"] < plain["event_bytes_mean"] < plain["event_bytes_max"]
    for prefix, mean in (("install", "install_bytes_mean"), ("event", "event_bytes_mean")):
        assert sum(plain[f"{prefix}_by_message"].values()) == pytest.approx(plain[mean], abs=0.05)


def test_as_many_nodes_publish_as_publish_so_often_in_the_thesis_or_few_in_a_burst(plain: Row) -> None:
    burst = run_point(replace(TINY, experiment="pubsub/scale", variant={"burst": True}))
    assert plain["publishers"] == 1, "each of the thesis's nodes publishes 10,000 / 12 events"
    assert burst["publishers"] == TINY.nodes, "there are not twenty"
    assert burst["acknowledged"] == burst["published"] == TINY.lookups
    assert plain["simulated_s"] - burst["simulated_s"] > TINY.duration_s / 2


def test_the_same_seed_is_the_same_row_and_another_one_is_not(plain: Row) -> None:
    assert without_cost(run_point(TINY)) == without_cost(plain)
    other = run_point(replace(TINY, seed=4))
    assert (other["delivery_mean_s"], other["pairs_due"]) != (plain["delivery_mean_s"], plain["pairs_due"])


def test_points_that_need_the_same_ring_share_it_and_have_the_rows_that_they_have_alone(plain: Row) -> None:
    apart = replace(TINY, experiment="pubsub/multicast", variant={"multicast": False})
    broken = replace(TINY, variant={"focus": "nowhere"})
    usual, without = replace(TINY, variant={"cutoff": 0.25}), replace(TINY, variant={"cutoff": 1.0})
    assert groups([TINY, without, apart, usual]) == [[TINY, apart, usual], [without]]
    results = {result.point.digest: result for result in run_points([broken, apart, TINY])}
    shared, other = results[TINY.digest].row, results[apart.digest].row
    assert shared is not None and other is not None
    assert without_cost(shared) == without_cost(plain)
    assert without_cost(other) == without_cost(run_point(apart))
    assert results[broken.digest].row is None and "nowhere" in results[broken.digest].error


def test_probes_sent_together_cost_less(plain: Row) -> None:
    alone = run_point(replace(TINY, experiment="pubsub/multicast", variant={"multicast": False}))
    assert alone["multicast"] is False and alone["pairs_missing"] == 0
    assert plain["probe_bytes_mean"] < alone["probe_bytes_mean"]


def test_remembered_leaves_shorten_the_way() -> None:
    def row(cached: int) -> Row:
        return run_point(replace(TINY, nodes=30, variant={"publishers": 2, "warm": True, "leaf_cache_max": cached}))

    cold, warm = row(0), row(4096)
    assert cold["published"] == warm["published"] == TINY.lookups
    assert warm["pairs_missing"] == 0
    assert warm["over_direct"] < cold["over_direct"]


def test_nodes_come_and_go() -> None:
    row = run_point(replace(TINY, experiment="pubsub/churn", variant={"session_min": 1.4, "ack": "replicated"}))
    assert row["departures"] > 0 and row["pairs"] > 0 and row["wrong"] == row["doubled"] == 0


def test_roots_that_die_with_a_replica_take_no_subscription_along() -> None:
    point = replace(TINY, experiment="pubsub/crashes", nodes=20)
    row = run_point(replace(point, variant={"strikes": 2, "ack": "replicated"}))
    assert row["departures"] == 4 and row["pieces_lost"] == 0
    assert row["pairs_due"] > row["pairs_missing"] == row["wrong"] == row["doubled"] == 0


def test_two_sides_become_one_ring_again() -> None:
    row = run_point(replace(TINY, experiment="pubsub/partition", variant={"cut": 0.5, "ack": "replicated"}))
    assert row["cut_published"] == TINY.lookups and row["whole_s"] is not None
    assert row["acknowledged"] == row["published"] > 0
    assert row["pairs_due"] > row["pairs_missing"] == row["wrong"] == row["doubled"] == 0


def test_events_lie_where_they_are_told_to() -> None:
    row = run_point(replace(TINY, experiment="pubsub/skew", variant={"focus": 0.01, "cutoff": 0.25}))
    assert row["focus"] == 0.01 and row["pairs_missing"] == 0 and row["event_bytes_peak"] > 1


def test_a_crowd_subscribes_to_the_same_and_gets_its_share_of_the_events() -> None:
    row = run_point(replace(TINY, experiment="pubsub/crowd", variant={"crowd": 0.5}))
    assert row["crowd"] == 0.5 and row["pairs_missing"] == row["wrong"] == row["doubled"] == 0
    crowd_alone = 0.5 * TINY.lookups * 0.5 * TINY.nodes
    assert row["deliveries"] > 0.5 * crowd_alone


def test_experiments_are_found_and_drawn(plain: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.name for each in find(["pubsub"])] == [each.name for each in EXPERIMENTS]
    for each in EXPERIMENTS:
        found = [{**plain, **variant} for variant in each.variants]
        charts = each.charts(found)
        assert charts and not any(chart.is_empty for chart in charts), each.name
        for column in each.columns:
            assert column.cell(found[0]) != "-" or column.key in OF_SOME, column.key
    monkeypatch.delenv("PEERD_DATA", raising=False)
    assert topology() == "square=euclidean@180ms"


def test_what_comes_to_a_subscription_of_the_publishers_own_node_counts() -> None:
    """In a small ring that node is often the leaf's root, too: then the event comes while it is being published."""
    row = run_point(replace(TINY, nodes=3))
    assert row["pairs_due"] > 0 and row["pairs_missing"] == row["wrong"] == row["doubled"] == 0


def test_installing_alone_needs_no_events() -> None:
    row = run_point(replace(TINY, experiment="pubsub/installation", lookups=0))
    assert row["published"] == row["pairs"] == 0 and row["installed"] == row["subscriptions"]


@given(st.integers(0, 10_000), st.integers(0, 40))
def test_the_judge_finds_what_the_filter_language_finds(seed: int, count: int) -> None:
    workload = ThesisWorkload(Random(seed))
    events = [workload.event() for _ in range(count)]
    index = MatchFinder(events)
    for ranges in (workload.ranges() for _ in range(5)):
        is_match = matcher(parse(filter_of(ranges)))
        assert index.of(ranges) == [number for number, values in enumerate(events) if is_match(values)]
        edge = {name: low for name, (low, _) in ranges.items()}
        assert matches(ranges, edge) and is_match(edge)


def test_rows_of_nothing_have_no_mean() -> None:
    assert latency_row("x", [], [1.0])["x_mean_s"] is None
    assert bytes_row("x", [], 0)["x_bytes_peak"] is None
    assert distribution([], 2) == []


def test_distributions_and_differences() -> None:
    row = latency_row("x", [0.1, 0.5, 0.9, 2.0], [0.5, 1.0])
    assert (row["x_mean_s"], row["x_within_500ms"], row["x_within_1000ms"]) == (0.875, 0.5, 0.75)
    assert row["x_s"][0] == 0.1 and row["x_s"][-1] == 2.0
    assert difference({0: 10}, {0: 15, 1: 7}) == [5, 7]
    assert bytes_row("x", [10, 30], 10)["x_bytes_ranked"] == [3.0, 1.0]
    assert bytes_row("x", [10, 30], 10)["x_bytes_peak"] == 1.5
