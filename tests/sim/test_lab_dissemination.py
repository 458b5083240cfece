"""The experiments of streams at tiny sizes, the rivals that are computed, and the best trees that are searched for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from peerd.lab.experiment import COST, Point, Row
from peerd.lab.pool import run_point
from peerd.lab.registry import find
from protocols.dissemination.front.lab.codd_experiments import EXPERIMENTS, FIGURES, xml_sets
from protocols.dissemination.front.lab.net import DisseminationNet
from protocols.dissemination.front.lab.rivals import (
    RIVALS,
    StaticTree,
    annealed,
    balanced,
    bits,
    fewest_copies,
    figures,
    grouped,
)
from protocols.dissemination.front.lab.workloads import ClassWorkload, XmlWorkload
from tests.support.dissemination_net import check

TINY = Point("dissemination/default", 30, "constant", duration_s=60.0, lookups=600, settle_s=0.0, seed=2)
OF_RUNS = (
    *("spurious_late", "moves", "moves_per_100", "moves_per_look", "looked_at", "searched", "predicted", "measured"),
    *("correlation", "ratio_late", "improved_late"),
)
"""Columns that only runs have."""


def row_of(**variant: float | str) -> Row:
    return run_point(replace(TINY, variant=variant))


def without_cost(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in COST}


@pytest.fixture(scope="module")
def codd() -> Row:
    return row_of(way="codd")


def test_nothing_is_lost_and_nothing_comes_that_was_not_wanted(codd: Row) -> None:
    assert codd["pairs"] > 1000 and codd["moves"] > 0
    for fault in ("lost", "unwanted", "twice", "unordered", "outside", "gaps"):
        assert codd[fault] == 0, fault


def test_reorganisation_saves_and_the_tree_without_it_never_changes(codd: Row) -> None:
    without = row_of(way="codd-nr")
    assert without["moves"] == 0 == without["lost"]
    assert codd["in_vain"] < without["in_vain"]
    assert codd["spurious_inner"] < 0.9 * without["spurious_inner"]
    assert codd["pairs"] == without["pairs"], "both had the same items to bring to the same members"


def test_messages_take_the_time_that_the_topology_says(codd: Row) -> None:
    """A figure of a run in which nothing takes time is another one: it may not stand for a network."""
    late = run_point(replace(TINY, topology="constant@200ms", variant={"way": "codd"}))
    at_once = run_point(replace(TINY, topology="constant@0s", variant={"way": "codd"}))
    assert late["lost"] == at_once["lost"] == 0
    assert late["spurious"] > at_once["spurious"], "with 100 ms one way the tree follows later"


def test_what_a_move_has_brought_the_node_that_asked(codd: Row) -> None:
    assert codd["ratios"] and sorted(codd["ratios"], reverse=True)[0] == codd["ratios_ranked"][0]
    assert 0 < codd["moves_per_look"] <= 1 and 0 < codd["improved_late"] <= 1
    assert codd["ratio_late"] < 1.2, "at most moves it has not much more in vain afterwards"


def test_the_same_seed_is_the_same_row(codd: Row) -> None:
    assert without_cost(row_of(way="codd")) == without_cost(codd)


def test_rivals_pay_as_they_must(codd: Row) -> None:
    rows = {way: row_of(way=way) for way in RIVALS}
    assert rows["flooding"]["spurious"] == pytest.approx(0.8, abs=0.05), "one item in five is wanted"
    assert rows["mesh"]["copies_per_wanted"] > rows["flooding"]["copies_per_wanted"]
    assert rows["source"]["spurious"] == rows["dita"]["spurious"] == 0
    assert rows["source"]["producer_sends"] > rows["siena"]["producer_sends"] == pytest.approx(1.0, abs=0.05)
    assert codd["in_vain"] < rows["siena"]["in_vain"]
    assert rows["siena"]["spurious_inner"] > codd["spurious_inner"]


def test_no_tree_is_better_than_the_bounds(codd: Row) -> None:
    free, still = row_of(way="bound"), row_of(way="bound-still")
    assert free["spurious"] <= still["spurious"] * 1.05
    assert free["spurious"] < codd["spurious"]


def test_what_is_learned_from_items_is_worse_than_what_is_foreseen_and_better_than_chance() -> None:
    free, learned, random = row_of(way="bound"), row_of(way="learned"), row_of(way="random")
    assert free["in_vain"] < learned["in_vain"] < 0.8 * random["in_vain"]


def test_what_a_tree_costs_is_what_its_nodes_would_get() -> None:
    # 0 - 1 - 2, and 0 - 3: member 1 gets the second item only for member 2
    tree = StaticTree([0, 0, 1, 0])
    wants = bits([frozenset({1, 3}), frozenset({2})], 3)
    assert tree.depths() == [0, 1, 2, 1] and tree.had(wants)[1:] == [0b11, 0b10, 0b01]
    found = figures(tree, wants)
    assert found["spurious"] == pytest.approx(0.5 / 3) and found["spurious_inner"] == 0.5
    assert found["in_vain"] == pytest.approx(1 / 4) and found["producer_sends"] == 1.5


@settings(max_examples=25)
@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 1000))
def test_searched_trees_are_trees_within_the_fan_out_and_never_worse(members: int, fan_out: int, seed: int) -> None:
    rng = Random(seed)
    workload = ClassWorkload(members, rng, classes=5, selectivity=0.4, change_every=0)
    wants = bits([workload.draw() for _ in range(40)], members)
    for start in (grouped(wants, fan_out), StaticTree(balanced(list(range(1, members + 1)), fan_out))):
        best = annealed(wants, fan_out, start, 300, rng)
        assert all(depth > 0 for depth in best.depths()[1:])
        for tree in (start, best):
            assert all(tree.parents[1:].count(node) <= fan_out for node in range(members + 1))
        assert figures(best, wants)["spurious"] <= figures(start, wants)["spurious"] + 1e-9
    fewest = fewest_copies(wants, fan_out, rng, steps=300, tries=2)
    assert all(depth > 0 for depth in fewest.depths()[1:])
    assert all(fewest.parents[1:].count(node) <= fan_out for node in range(members + 1))
    grown = figures(grouped(wants, fan_out), wants)["copies_per_wanted"]
    assert 1 <= figures(fewest, wants)["copies_per_wanted"] <= grown + 1e-9


def test_documents_and_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEERD_DATA", raising=False)
    assert xml_sets() == ("news",)
    workload = XmlWorkload(20, Random(1), 50)
    some = [workload.draw() for _ in range(60)]
    assert 0.05 < sum(map(len, some[:50])) / (50 * 20) < 0.6, "the share of the documents that a member wants"
    assert all(1 <= member <= 20 for wanted in some for member in wanted)
    row = run_point(replace(TINY, lookups=150, variant={"way": "codd", "dtd": "news", "fan_out": 4}))
    assert row["lost"] == row["unwanted"] == row["twice"] == 0 < row["pairs"]


@pytest.mark.parametrize("pace", [1, 5, 10, 20])
def test_items_follow_each_other_as_fast_as_was_asked_for(pace: int) -> None:
    net = DisseminationNet(3, ClassWorkload(3, Random(1)), Random(1), {}, items_a_second=pace, tick_s=0.2)
    for _ in range(20):
        net.publish()
    assert net.now == pytest.approx(20 / pace)


def test_many_different_interests_are_no_limit_in_the_lab() -> None:
    """Members of the abstract data have an interest each: more below one node than a daemon would list."""
    net = DisseminationNet(210, ClassWorkload(210, Random(1)), Random(1), {}, fan_out=300)
    net.nodes[net.peers[0].id].fan_out = 1
    for number in range(1, 211):
        if number % 40 == 0:
            net.tick()  # a node helps a few newcomers a second
        net.join(number)
    for _ in range(20):
        net.publish()
    (head,) = (node for node in net.members() if len(node.path) == 1)
    assert len(head.children()) == 209
    assert head.had == sum(bool(wanted) for wanted in net.published) and len(head.wants) == 210
    check(net, fan_out=300)


def test_experiments_are_found_and_drawn(codd: Row) -> None:
    assert [each.name for each in EXPERIMENTS] == list(FIGURES)
    assert set(FIGURES) <= {each.name for each in find(["dissemination"])}
    for each in EXPERIMENTS:
        found = [{**codd, **variant, "nodes": 30} for variant in each.variants]
        charts = each.charts(found)
        assert charts and not any(chart.is_empty for chart in charts), each.name
        for column in each.columns:
            assert column.cell(found[0]) != "-" or column.key in OF_RUNS, column.key


@given(st.integers(0, 1 << 30), st.integers(1, 3))
@settings(max_examples=20)
def test_a_member_is_in_one_class_to_the_most_there_may_be_and_never_twice_in_one(seed: int, most: int) -> None:
    workload = ClassWorkload(100, Random(seed), classes=10, change_every=5, most_classes=most)
    counts = [sum(member in each for each in workload.classes) for member in range(1, 101)]
    assert set(counts) == set(range(1, most + 1))
    for _ in range(50):
        workload.draw()
    assert all(len(set(each)) == len(each) for each in workload.classes)
    assert {member for each in workload.classes for member in each} == set(range(1, 101)), "a change loses nobody"
