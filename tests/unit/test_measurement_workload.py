"""Workloads, values and counts of the lab's experiments with measurement queries."""

from __future__ import annotations

from collections.abc import Sequence
from math import dist
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from peerd.errors import ConfigError
from protocols.measurement.front.lab.counting import NAMES, difference, kinds, rates_row
from protocols.measurement.front.lab.experiments import beside_no_cache
from protocols.measurement.front.lab.series import HeldBounds, RandomWalk, broken_share
from protocols.measurement.front.lab.workload import FAR, FAR_SIBLINGS, KINDS, draw_groups

NODES = range(120)
PLACES = {node: (Random(f"{node} x").random(), Random(f"{node} y").random()) for node in NODES}


def distance(one: int, other: int) -> float:
    return dist(PLACES[one], PLACES[other])


def width(nodes: Sequence[int]) -> float:
    """The mean distance from the first one."""
    return fmean(distance(nodes[0], node) for node in nodes[1:])


@given(st.integers(0, 10_000), st.tuples(*[st.integers(0, 2)] * 4), st.integers(1, 4), st.integers(1, 6))
def test_groups_are_as_the_workload_says(seed: int, counts: tuple[int, ...], queriers: int, owners: int) -> None:
    groups = draw_groups(",".join(map(str, counts)), queriers, owners, NODES, distance, Random(seed))
    assert [group.kind for group in groups] == [
        kind for kind, count in zip(KINDS, counts, strict=True) for _ in range(count)
    ]
    for group in groups:
        assert len(set(group.queriers)) == queriers and len(set(group.owners)) == owners
        assert not set(group.queriers) & set(group.owners), "nobody asks itself"
    for several in ([group.queriers for group in groups], [group.owners for group in groups]):
        assert len({node for some in several for node in some}) == sum(map(len, several)), "no node is in two groups"


def test_near_nodes_are_near_and_the_others_scattered() -> None:
    def widths(kind: str) -> tuple[float, float]:
        workload = ",".join("1" if each == kind else "0" for each in KINDS)
        drawn = [draw_groups(workload, 5, 8, NODES, distance, Random(seed))[0] for seed in range(30)]
        return fmean(width(group.queriers) for group in drawn), fmean(width(group.owners) for group in drawn)

    for kind in KINDS:
        querying, owning = widths(kind)
        assert (querying < 0.2) == kind.startswith("NQ") and (owning < 0.2) == kind.endswith("NO"), kind
        assert querying < 0.2 or querying > 0.4, kind


def test_owners_far_away_are_near_each_other() -> None:
    for seed in range(10):
        (group,) = draw_groups(FAR, 4, 6, NODES, distance, Random(seed))
        assert width(group.queriers) < 0.2 and width(group.owners) < 0.3
        apart = fmean(distance(querier, owner) for querier in group.queriers for owner in group.owners)
        mean = fmean(distance(group.queriers[0], node) for node in NODES)
        assert apart > 1.3 * mean


def test_queriers_may_have_one_parent_in_the_tree_which_is_not_its_root() -> None:
    parents = dict.fromkeys(NODES[1:60], 0) | dict.fromkeys(NODES[60:66], 5) | dict.fromkeys(NODES[66:69], 7)

    def queriers(parents: dict[int, int], seed: int) -> set[int]:
        return set(draw_groups(FAR_SIBLINGS, 4, 1, NODES, distance, Random(seed), parents)[0].queriers)

    for seed in range(5):
        nearest = sorted(NODES[60:66], key=lambda node: distance(5, node))[:4]
        assert queriers(parents, seed) == set(nearest), "only one node but the root has four children"
    assert len(queriers(dict.fromkeys(NODES[1:], 0), 1)) == 4, "else they are near"


def test_the_same_seed_draws_the_same_and_too_few_nodes_are_refused() -> None:
    one, same = (draw_groups("1,1,1,1", 4, 10, NODES, distance, Random(7)) for _ in range(2))
    assert one == same != draw_groups("1,1,1,1", 4, 10, NODES, distance, Random(8))
    with pytest.raises(ConfigError, match="more than 30 nodes"):
        draw_groups("1,1,1,1", 4, 10, NODES[:30], distance, Random(7))


def test_bounds_that_are_held_are_broken_when_values_leave_them() -> None:
    bounds = HeldBounds(0.0, 10.0)
    for value in (5.0, -9.0, 10.0):
        bounds.add(value)
    assert bounds.broken == 0
    bounds.add(10.5)
    assert bounds.broken == 1
    assert broken_share([0.0, 100.0, 0.0, 100.0], 1.0) == 1.0
    assert broken_share([3.0], 1.0) == 0.0


def test_walks_break_bounds_more_often_the_longer_their_steps() -> None:
    def share(sigma: float) -> float:
        walk = RandomWalk(Random(3), half_width=10.0)
        for _ in range(2000):
            walk.step(sigma)
        return walk.bounds.broken / 2000

    shares = [share(sigma) for sigma in (0.0, 2.0, 7.0, 36.0)]
    assert shares[0] == 0.0 and shares == sorted(shares)
    assert shares[2] == pytest.approx(0.25, abs=0.03), "W1: an update for four steps"
    assert shares[3] == pytest.approx(0.75, abs=0.03), "of four steps a second, three break them"


def test_messages_are_counted_as_in_the_paper() -> None:
    assert {"ReadValues", "ValuesRead", "CacheAsk", "CacheUpdate", "NodesQuestion"} <= set(NAMES.values())
    counts = difference({"ReadValues": 5}, {"ReadValues": 25, "ValuesRead": 20, "CacheUpdate": 8, "NodesAnswer": 4})
    assert counts == {"ReadValues": 20, "ValuesRead": 20, "CacheUpdate": 8, "NodesAnswer": 4}
    assert kinds(counts) == {"foreground": 40, "background": 8, "tree": 0, "directory": 4}
    row = rates_row(counts, 4.0, "warm_")
    assert row["warm_total_per_s"] == 12.0 and row["warm_directory_per_s"] == 1.0
    assert difference(counts, counts) == {}


def test_rows_are_compared_with_the_same_without_caches() -> None:
    alike = {"nodes": 250, "seed": 1, "way": "tree"}
    traffic = {"background_of": [0.0, 4.0], "foreground_of": [8.0, 2.0]}
    cached = {**alike, "cache": 100, "warm_total_per_s": 6.0, "warm_foreground_per_s": 2.0, **traffic}
    none = {**alike, "cache": 0, "warm_total_per_s": 10.0, "warm_foreground_per_s": 10.0}
    none |= {"foreground_of": [10.0, 10.0], "background_of": [0.0, 0.0]}
    first, second, other = beside_no_cache([cached, none, {**cached, "seed": 2}])
    assert (first["of_no_cache"], first["reads_of_no_cache"], first["worst_bucket"]) == (0.6, 0.2, 0.8)
    assert second["of_no_cache"] == 1.0
    assert other["of_no_cache"] is None, "there is no run of this seed without caches"
