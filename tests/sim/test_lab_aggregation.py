"""Aggregation over large values in the lab, at tiny sizes: San Fermín and its rivals on the same ring."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from peerd.lab.experiment import COST, Point, Row
from peerd.lab.pool import run_point
from peerd.limits import MIB
from peerd.messages import PeerRef
from protocols.aggregation.front.lab import large
from protocols.aggregation.front.lab.hosts import DEPARTMENT_MBITS, LINKS, MBIT_BYTES, WIDE_MBITS
from protocols.aggregation.front.lab.large_experiments import LARGE, SYSTEMS
from protocols.aggregation.front.lab.levels import levels_of
from protocols.aggregation.front.lab.rivals import balanced, children_of, routed
from protocols.aggregation.front.lab.supernodes import REPLICAS, replicas_of
from tests.support.long_cases import cases
from tests.support.trivial_world import trivial_world

NODES = 16
TINY = Point("aggregation/systems", NODES, "uniform=constant@2ms", duration_s=0.0, lookups=1, settle_s=10.0, seed=2)
TRANSFER_S = MIB / (100 * MBIT_BYTES)
"""How long a value is on a link of 100 Mbit/s."""


def run(system: str, **variant: float | str) -> Row:
    row = run_point(replace(TINY, variant={"system": system, "value_kib": 1024, **variant}))
    assert row["failure"] is None and row["wrong"] == 0
    return row


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_the_data_of_all_and_none_is_faster_than_its_links(system: str) -> None:
    row = run(system)
    assert row["of_all"] == 1.0 and row["dead"] == 0
    received = max(1, round(row["most_mib"]))
    assert row["answer_s"] > TRANSFER_S
    if system in ("central", "tree-16", "supernodes-16"):  # that has no inner node but the root
        assert received == NODES - 1 and row["answer_s"] > (NODES - 1) * TRANSFER_S
    if system == "tree-2":  # three levels below the root, whose nodes have two children each
        assert received == 2 and 6 * TRANSFER_S < row["answer_s"] < 9 * TRANSFER_S
    if system == large.SAN_FERMIN:  # a swap is both ways at once
        assert 4 * TRANSFER_S < row["answer_s"] < 12 * TRANSFER_S and received <= 6


def test_pieces_take_two_transfers_where_whole_values_take_one_a_level() -> None:
    whole, pieces = run(large.SAN_FERMIN), run(large.PIECES)
    assert whole["answer_s"] > 4 * TRANSFER_S and whole["bulk_mib"] > 3.9
    assert 2 * (1 - 1 / NODES) * TRANSFER_S < pieces["answer_s"] < 3 * TRANSFER_S
    assert pieces["bulk_mib"] < 1.1 and pieces["most_mib"] < 2.0


@pytest.mark.parametrize("name", ["aggregation/latency", "aggregation/failures"])
def test_rounds_over_small_values_are_measured(name: str) -> None:
    """Once a function and a local variable had one name, so that each simulation failed and no test ran one."""
    failing: dict[str, float | str] = {"failing": 0.1, "how": "killed", "span_s": 0.1}
    variant = failing if name == "aggregation/failures" else {}
    point = Point(name, NODES, "constant", duration_s=0.0, lookups=2, settle_s=10.0, seed=1, variant=variant)
    row = run_point(point)
    assert row["failure"] is None and row["doubled"] == row["wrong"] == 0
    assert row["of_survivors"] == 1.0 and row["messages"] > 1 and row["kib_max"] >= row["kib"] > 0
    assert row["dead"] == (2 if variant else 0)


def test_the_same_point_is_the_same_row() -> None:
    rows = [run(large.SAN_FERMIN) for _ in range(2)]
    first, second = ({name: value for name, value in row.items() if name not in COST} for row in rows)
    assert first == second


def test_who_has_pruned_and_who_is_at_work_is_told_with_the_rates_of_their_links() -> None:
    row = run_point(
        replace(TINY, topology="department=constant@2ms", variant={"system": "san-fermin", "value_kib": 64})
    )
    assert row["complete"] >= 1 and row["complete"] + row["working"] + row["pruned"] <= NODES
    assert min(DEPARTMENT_MBITS) <= row["complete_mbit"] <= max(DEPARTMENT_MBITS)


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_failures_lose_little_of_san_fermin_and_its_answer_does_not_wait_for_patience(how: str) -> None:
    row = run(large.SAN_FERMIN, failing=0.2, how=how)
    assert row["dead"] == round(0.2 * NODES)
    assert row["of_survivors"] == 1.0
    assert row["answer_s"] < large.PATIENCE_S


def test_a_tree_goes_on_without_those_that_it_has_lost_patience_with() -> None:
    row = run("tree-2", failing=0.2, how="silent")
    assert row["dead"] == round(0.2 * NODES)
    assert 0.5 <= row["of_all"] < 1.0
    assert row["answer_s"] >= large.PATIENCE_S


def test_supernodes_send_a_copy_to_each_replica_and_take_longer_for_it() -> None:
    copied, alone = run("supernodes-4"), run("tree-4")
    inner = sum(1 for number in range(1, NODES) if 4 * number + 1 < NODES)
    assert copied["bulk_mib"] * NODES >= NODES - 1 + inner * REPLICAS
    assert alone["bulk_mib"] * NODES == pytest.approx(NODES - 1, rel=0.01)
    assert copied["answer_s"] > alone["answer_s"]


@pytest.mark.parametrize("how", ["killed", "silent"])
@pytest.mark.parametrize("seed", cases([0], [1]))
def test_replicas_stand_in_for_supernodes(how: str, seed: int) -> None:
    variant: dict[str, float | str] = {"system": "supernodes-4", "value_kib": 1024, "failing": 0.2, "how": how}
    row = run_point(replace(TINY, seed=seed, variant=variant))
    assert row["failure"] is None and row["dead"] == round(0.2 * NODES)
    assert row["of_survivors"] == 1.0


@pytest.mark.parametrize("how", cases(["silent"], ["killed"]))
def test_levels_have_all_that_survivors_have_to_give(how: str) -> None:
    row = run("levels", failing=0.2, how=how)
    assert row["of_survivors"] == 1.0 and row["bulk_mib"] > run("tree-2")["bulk_mib"]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13])
def test_any_two_nodes_are_peers_at_one_level(count: int) -> None:
    order = [place.peer for place in trivial_world(count).nodes]
    levels = [levels_of(place, order) for place in range(count)]
    for place, peer in enumerate(order):
        assert sorted(each.id for level in levels[place] for each in level.peers) == sorted(
            each.id for each in order if each != peer
        )
        for level in levels[place]:
            for other in level.peers:
                [same] = [each for each in levels[order.index(other)] if each.number == level.number]
                assert peer in same.peers


def test_replicas_are_leaves_of_other_parents_and_each_of_one_supernode() -> None:
    members = [place.peer for place in trivial_world(40).nodes]
    ways = balanced(members, 4)
    holders = replicas_of(ways, members, Random(1))
    inner = {parent for parent in children_of(ways) if parent != members[0].id}
    assert {node for node, those in holders.items() if len(those) > 1} == inner
    replicas = [(node, peer) for node, those in holders.items() for peer in those[1:]]
    assert len({peer for _, peer in replicas}) == len(replicas) == REPLICAS * len(inner)
    for node, replica in replicas:
        assert replica.id not in children_of(ways) and ways[replica.id][0].id != node
    assert all(those[0].id == node for node, those in holders.items()) and len(holders[members[0].id]) == 1


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("count", [1, 100, 1000])
def test_rates_are_those_of_the_network_that_is_named(name: str, count: int) -> None:
    rates = LINKS[name](count, Random(3))
    assert len(rates) == count and rates == LINKS[name](count, Random(3))
    if name == "department":
        assert set(rates) <= set(DEPARTMENT_MBITS)
        if count == 1000:
            shares = [rates.count(rate) / count for rate in (1000.0, 100.0, 10.0)]
            assert shares == pytest.approx([142 / 353, 205 / 353, 6 / 353], abs=0.05)
    if name in ("planetlab", "square"):
        median, _, least, most = WIDE_MBITS
        assert all(least <= rate <= most for rate in rates)
        if count == 1000:
            assert sorted(rates)[500] == pytest.approx(median, rel=0.15)


def test_a_balanced_tree_has_its_degree_and_every_way_ends_at_the_root() -> None:
    members = [place.peer for place in trivial_world(14).nodes]
    ways = balanced(members, 3)
    assert {way[-1] for node, way in ways.items() if node != members[0].id} == {members[0]}
    children = children_of(ways)
    assert sum(map(len, children.values())) == 13 and max(map(len, children.values())) == 3
    assert max(map(len, ways.values())) == 3


def test_the_tree_of_routes_is_that_of_next_hops() -> None:
    members = [place.peer for place in trivial_world(6).nodes]
    hops: dict[PeerRef, PeerRef | None] = {
        each: members[number // 2] if number else None for number, each in enumerate(members)
    }
    ways = routed(members, lambda member: hops[member])
    assert ways[members[0].id] == ()
    assert ways[members[5].id] == (members[2], members[1], members[0])


def test_every_experiment_tells_its_variants_and_what_the_paper_says() -> None:
    for experiment in LARGE:
        assert experiment.paper and experiment.measure is large.measure
        told = {column.key for column in experiment.columns}
        assert experiment.variants and all(set(variant) <= told for variant in experiment.variants)
