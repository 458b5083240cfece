"""The experiments with measurement queries at tiny sizes: columns follow from what happened in the simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peerd.lab.experiment import COST, Point, Row, Values
from peerd.lab.pool import groups, run_point, run_points
from peerd.lab.registry import find
from protocols.measurement.front.lab import aggregates
from protocols.measurement.front.lab.experiments import EXPERIMENTS, topology
from protocols.measurement.front.lab.optimum import way
from protocols.measurement.front.lab.run import BUCKET_S, FormedRing, Monitoring, WorkloadChoice, parents_of, prepare
from protocols.measurement.front.lab.ways import WAYS, settings_of

SECONDS = 5 * BUCKET_S
TINY = Point(
    "measurement/rivals",
    30,
    "square=euclidean@80ms",
    duration_s=SECONDS,
    lookups=0,
    settle_s=20.0,
    seed=3,
    variant={"way": "naive", "cache": 100, "workload": "1,0,0,1", "n_q": 2, "n_o": 4},
)
MAYBE_EMPTY = ("of_no_cache", "reads_of_no_cache", "worst_bucket")
"""Columns that compare a row with that of another variant."""


def without_cost(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in COST}


@pytest.fixture(scope="module")
def naive() -> Row:
    return run_point(TINY)


@pytest.fixture(scope="module")
def ring() -> FormedRing:
    return prepare(TINY, lambda phase, now: None)


def test_naive_asks_each_owner_each_time(naive: Row) -> None:
    assert naive["failure"] is None
    reads = 2 * 2 * SECONDS / 16
    assert naive["messages"] == reads * 4 * 2, "a question to each of four owners, and its answer"
    assert naive["by_message"] == {"ReadValues": 1.0, "ValuesRead": 1.0}
    assert naive["background_per_s"] == 0.0 and naive["total_per_s"] == naive["foreground_per_s"] == 2.0
    assert sum(naive["foreground_of"]) * BUCKET_S == naive["messages"]


def test_answers_are_whole_and_right(naive: Row) -> None:
    assert naive["early_reads"] + naive["reads"] == 2 * 2 * SECONDS / 16
    assert naive["answered"] == naive["reads"] and naive["values"] == 4 * naive["reads"]
    assert naive["stale"] == naive["missing"] == 0
    assert naive["outside_share"] < 0.1, "only what changes while an answer is under way"
    # a round trip to the farthest of four owners
    assert 40 < naive["latency_p50_ms"] <= naive["latency_p99_ms"] < 400
    assert naive["at_once_share"] == 0.0


def test_the_same_seed_is_the_same_row_and_another_one_is_not(naive: Row) -> None:
    assert without_cost(run_point(TINY)) == without_cost(naive)
    assert run_point(replace(TINY, seed=4))["latency_ms"] != naive["latency_ms"]


def test_points_that_need_the_same_ring_share_it_and_have_the_rows_that_they_have_alone(naive: Row) -> None:
    wilder = replace(TINY, variant={**TINY.variant, "sigma": 20.0})
    elsewhere = replace(TINY, seed=4)
    least = replace(TINY, experiment="measurement/optimum")
    assert groups([TINY, elsewhere, wilder, least]) == [[TINY, wilder], [elsewhere], [least]]
    rows = {result.point.digest: result.row for result in run_points([wilder, TINY])}
    shared, other = rows[TINY.digest], rows[wilder.digest]
    assert shared is not None and without_cost(shared) == without_cost(naive)
    assert other is not None and other["broken_per_s"] > naive["broken_per_s"] > 0


def test_caches_on_the_tree_take_most_reads_off_it() -> None:
    def row(cache: int) -> Row:
        return run_point(
            replace(TINY, duration_s=24 * BUCKET_S, variant={**TINY.variant, "way": "tree", "cache": cache})
        )

    cached, none = row(100), row(0)
    assert none["background_per_s"] == 0.0 and none["foreground_per_s"] > 2.0, "on the tree the way is longer"
    assert cached["warm_foreground_per_s"] < none["warm_foreground_per_s"] / 2
    assert cached["background_per_s"] > 0.0 and {"SpliceIn", "CacheUpdate"} <= cached["by_message"].keys()
    assert cached["tree_per_s"] > 0.0, "apart, and in no total"
    assert cached["missing"] == cached["stale"] == 0
    assert cached["outside_share"] < 0.1


def test_values_that_become_more_volatile_break_more_bounds_in_the_end() -> None:
    row = run_point(replace(TINY, variant={**TINY.variant, "rises": 1, "step_s": 0.5, "sigma": 20.0}))
    assert row["broken_of"][0] < row["broken_of"][-1] / 3


def test_who_scrapes_asks_all_other_nodes(naive: Row) -> None:
    row = run_point(replace(TINY, variant={**TINY.variant, "way": "scrape"}))
    assert row["foreground_per_s"] == naive["foreground_per_s"] * (TINY.nodes - 1) / 4
    assert row["missing"] == 0 and row["values"] == naive["values"], "only what is wanted is judged"


def test_the_optimum_is_no_more_than_what_reads_cost_along_the_tree() -> None:
    row = run_point(replace(TINY, experiment="measurement/optimum", variant={**TINY.variant, "n_o": 1}))
    assert 0 < row["optimum_per_s"] <= row["none_per_s"]
    assert row["over_optimum"] == pytest.approx(row["warm_total_per_s"] / row["optimum_per_s"], rel=0.01)


def test_the_tree_is_that_of_the_overlays_routes(ring: FormedRing) -> None:
    simulation = ring.outcome.simulation
    parents = parents_of(simulation)
    assert len(parents) == TINY.nodes - 1, "all but the root"
    (root,) = set(range(TINY.nodes)) - parents.keys()
    assert all(way(parents, node, root)[-1] == root for node in parents)
    monitoring = Monitoring(simulation, WorkloadChoice.of(TINY.variant), TINY.seed, SECONDS)
    assert {query.querier for query in monitoring.queries()} == {
        n for group in monitoring.groups for n in group.queriers
    }
    assert sum(query.rate for query in monitoring.queries()) == 4 / 16
    assert monitoring.broken().keys() == {owner for group in monitoring.groups for owner in group.owners}


def test_each_way_is_settings_of_the_plugin() -> None:
    for name in WAYS:
        assert settings_of(name)["max_age"] == "10m"


@pytest.mark.parametrize("source", ["network", "cpu", "planetlab"])
def test_wider_bounds_are_broken_less_often(source: str) -> None:
    row = run_point(replace(TINY, experiment="measurement/bounds", variant={"source": source}))
    if row["updates_of"] is None:
        pytest.skip("the folder of real series that PEERD_DATA names is not there")
    assert row["narrowest"] > 2 * row["widest"]
    if source != "network":  # there are many values, and no chance in it
        assert row["updates_of"] == sorted(row["updates_of"], reverse=True)


def test_filters_on_sums_send_less_than_evenly_split_ones_and_than_reading_all_values() -> None:
    def row(way: str, within: float = 0.1, function: str = "SUM", source: str = "walk") -> Row:
        variant: Values = {"source": source, "function": function, "within": within, "way": way}
        return run_point(
            replace(
                TINY, experiment="measurement/aggregates", nodes=16, duration_s=16.0, settle_s=10.0, variant=variant
            )
        )

    rows = {way: row(way) for way in ("tree", "even", "star", "scrape")}
    assert all(each["failure"] is None and each["unknown_share"] == 0 for each in rows.values())
    assert rows["tree"]["total_per_s"] < rows["even"]["total_per_s"] < rows["scrape"]["total_per_s"]
    others = 15
    assert rows["scrape"]["total_per_s"] == 2 * others and rows["scrape"]["asker_per_s"] == others
    assert rows["tree"]["asker_per_s"] < rows["star"]["asker_per_s"] / 2, "one word of the root for all"
    for each in ("tree", "even", "star"):
        assert rows[each]["width_share"] <= 1.0 + 1e-6 and rows[each]["outside_share"] < 0.1
    mean = row("tree", function="MEAN")
    assert mean["width_share"] <= 1.0 + 1e-6 and mean["total_per_s"] < rows["scrape"]["total_per_s"] / 2
    floor = row("tree", aggregates.FLOOR)
    assert floor["total_per_s"] < rows["tree"]["total_per_s"]
    derived = aggregates.beside_others([*rows.values(), {**rows["scrape"], "within": aggregates.FLOOR}, floor])
    assert derived[0]["of_scrape"] == round(rows["tree"]["total_per_s"] / (2 * others), 4)
    assert derived[0]["above_floor_per_s"] == round(rows["tree"]["total_per_s"] - floor["total_per_s"], 3)


def test_even_shares_are_the_same_for_each_filter() -> None:
    assert aggregates.even_half_widths("SUM", 10.0, {"a": 3, "b": 1}) == {"a": 6.0, "b": 2.0}


def test_experiments_are_found_and_drawn(naive: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.name for each in find(["measurement"])] == [each.name for each in EXPERIMENTS]
    updates = {"widths": [1.0, 2.0], "updates_of": [0.5, 0.2], "width_unit": "ms", "update_unit": "a second"}
    least = {"optimum_per_s": 0.5, "none_per_s": 3.0, "over_optimum": 4.0, "caches": 3}
    sums = {"asker_per_s": 1.0, "unknown_share": 0.0, "width_share": 1.0}
    more = {**updates, **least, **sums, "measurements": 3, "narrowest": 0.5, "widest": 0.2}
    for each in EXPERIMENTS:
        found = each.derive([{**naive, **more, **variant} for variant in each.variants])
        charts = each.charts(found)
        assert charts and not any(chart.is_empty for chart in charts), each.name
        for column in each.columns:
            assert column.cell(found[0]) != "-" or column.key in MAYBE_EMPTY, column.key
    monkeypatch.delenv("PEERD_DATA", raising=False)
    assert topology() == "square=euclidean@80ms"
