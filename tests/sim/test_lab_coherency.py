"""The experiments with values within a tolerance, at tiny sizes: figures follow from what happened."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from peerd.lab.experiment import COST, Point, Row
from peerd.lab.pool import run_point
from peerd.lab.registry import find
from protocols.dissemination.front.lab.coherency_adapting import AdaptingTrees
from protocols.dissemination.front.lab.coherency_experiments import EXPERIMENTS, in_time
from protocols.dissemination.front.lab.coherency_run import relative
from protocols.dissemination.front.lab.coherency_system import System
from protocols.dissemination.front.lab.coherency_trees import PLANS, Shape, dita
from protocols.dissemination.front.lab.coherency_world import (
    CoherencyWorld,
    Update,
    count_wanted,
    several_objects,
    single_object,
    tolerance_for,
    walk,
)
from protocols.dissemination.policies.cost.model import Costs

SQUARE = "square=euclidean@40ms"
SECONDS = 60.0
LOAD = "dissemination/coherency-load"


def point(experiment: str = LOAD, **variant: float | str | bool | None) -> Point:
    return Point(experiment, 16, SQUARE, SECONDS, 0, 0.0, 3, variant)


def without_cost(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in {*COST, "build_s"}}


def of_one(tolerance: float, values: list[float], delay_s: float = 1.0, each_s: float = 10.0) -> CoherencyWorld:
    """A source and one server, a link apart; the values come each ten seconds; filtering and sending take no time."""
    updates = tuple(Update(each_s * number, 0, value) for number, value in enumerate(values, 1))
    delays = ((0.0, delay_s), (delay_s, 0.0))
    costs = Costs(1e-9, 1e-9)
    return CoherencyWorld((costs, costs), delays, ({}, {0: tolerance}), ({0: 0.1}, {0: 0.1}), updates, (0.0,))


def lost_s(world: CoherencyWorld, parents: dict[int, int], until_s: float) -> float:
    system = System(world, (Shape((0,), parents),), Random(1))
    system.run(until_s)
    return until_s * system.fidelity.end_window(system.now)


def test_a_value_is_wrong_from_its_change_until_it_arrives() -> None:
    assert lost_s(of_one(0.5, [1.0, 2.0, 3.0]), {1: 0}, 40.0) == pytest.approx(3.0, abs=1e-6)


def test_a_value_within_the_tolerance_is_neither_sent_nor_wrong() -> None:
    world = of_one(1.5, [1.0, 2.0, 3.0])
    system = System(world, (Shape((0,), {1: 0}),), Random(1))
    system.run(40.0)
    assert system.sent == 1
    assert 40.0 * system.fidelity.end_window(40.0) == pytest.approx(1.0, abs=1e-6)


def test_what_is_still_wrong_counts_in_each_window() -> None:
    world = of_one(0.5, [1.0], delay_s=25.0)
    system = System(world, (Shape((0,), {1: 0}),), Random(1))
    shares = []
    for until_s in (20.0, 30.0, 40.0):
        system.run(until_s)
        shares.append(system.fidelity.end_window(system.now))
    assert shares == pytest.approx([0.5, 1.0, 0.5], abs=1e-6)


def test_a_slow_server_makes_those_below_it_wait() -> None:
    costs = (Costs(1e-9, 1e-9), Costs(2.0, 1e-9), Costs(1e-9, 1e-9))
    delays = tuple(tuple(0.0 if a == b else 0.001 for b in range(3)) for a in range(3))
    updates = tuple(Update(10.0 * number, 0, float(number)) for number in range(1, 1000))
    world = CoherencyWorld(costs, delays, ({}, {0: 0.1}, {0: 0.1}), ({0: 0.1},) * 3, updates, (0.0,))
    below, beside = (lost_s(world, parents, 10_000.0) for parents in ({1: 0, 2: 1}, {1: 0, 2: 0}))
    assert beside == pytest.approx(1.0, rel=0.05)
    # half of the two servers, each update 2 s late; 0.1 updates a second do not often wait for each other
    assert below == pytest.approx(0.5 * 999 * 2.0, rel=0.2)


@pytest.mark.parametrize("plan", [*PLANS, "dita"])
def test_every_plan_reaches_everybody_with_what_they_want(plan: str) -> None:
    world = several_objects(SQUARE, 2, 12, 2000.0, 1.0, 6, 0.5)
    made = dita(world, 3) if plan == "dita" else PLANS[plan](world, Random(1))
    for object in range(6):
        (shape,) = [shape for shape in made if object in shape.objects]
        wanting = {node for node in world.nodes if object in world.tolerances[node]}
        assert wanting <= set(shape.parents)
        assert set(shape.breadth_first()) == {0, *shape.parents}
        if plan == "dita":
            assert all(list(shape.parents.values()).count(node) <= 3 for node in world.nodes)
    system = System(world, made, Random(2))
    system.run(2000.0)
    for tree in system.trees:  # nothing is under way any more: everybody is within the tolerance
        for node, its in tree.nodes.items():
            for held in its.own.newest():
                object = int(held.content.object)
                true = next(each.value for each in reversed(world.updates) if each.object == object)
                if object in its.wants and world.updates[-1].at_s < 1990.0:
                    assert abs(true - held.content.value) <= world.tolerances[node][object] + 1e-9


def test_rates_and_tolerances_belong_together() -> None:
    rng = Random(5)
    values = list(walk(0.0, [rng.gauss(0.0, 1.0) for _ in range(20_000)]))
    for share in (0.35, 0.6, 0.9):
        assert count_wanted(iter(values), tolerance_for(share)) / len(values) == pytest.approx(share, rel=0.05)


def test_a_tree_that_adapts_becomes_better_and_stays_right() -> None:
    world = single_object(SQUARE, 4, 16, 3000.0, 3.0, 1.0)
    chain = Shape((0,), {node: node - 1 for node in range(1, 17)})
    system = System(world, (chain,), Random(1))
    trees = AdaptingTrees(system, Random(2))
    draws = {policy._tree.random() for policy in trees.policies.values()}
    assert len(draws) == 17, "of a large family, other changes are looked at in each round"
    system.run(600.0)
    before = system.fidelity.end_window(system.now)
    system.run(2400.0)
    system.fidelity.end_window(system.now)
    system.run(3000.0)
    after = system.fidelity.end_window(system.now)
    assert system.moves > 5 and trees.told > 100
    assert after < 0.5 * before
    assert len(list(system.trees[0].above(16))) < 17
    (tree,) = system.trees
    for node in range(1, 17):  # each has a parent, which knows it, and what it needs
        parent = tree.nodes[node].parent
        assert parent is not None and node in tree.nodes[parent].children
        assert tree.nodes[parent].needs.get(0, 0.0) <= tree.nodes[node].needs[0] or parent == 0


def test_the_same_point_is_the_same_row_and_another_seed_is_not() -> None:
    first = run_point(point(plan="random", adaptive=True, load=2.0))
    assert without_cost(run_point(point(plan="random", adaptive=True, load=2.0))) == without_cost(first)
    other = run_point(replace(point(plan="random", adaptive=True, load=2.0), seed=4))
    assert other["lost_windows"] != first["lost_windows"]


def test_ten_nodes_become_slow_at_half_time() -> None:
    row = run_point(point("dissemination/coherency-change", plan="greedy", adaptive=False, change=True))
    assert row["lost_after"] > 1.5 * row["lost_before"]


def test_losses_are_told_in_multiples_of_the_annealed_tree() -> None:
    rows = [run_point(point(plan=plan, adaptive=False, load=3.0)) for plan in ("annealed", "source", "dita")]
    found = relative(rows, ("load",))
    assert found[0]["relative"] == 1.0
    assert found[1]["relative"] == pytest.approx(rows[1]["lost"] / rows[0]["lost"], abs=0.001)
    assert relative(rows[1:], ("load",))[0]["relative"] is None
    assert rows[2]["fan_out"] in (2, 3, 4, 6, 8, 12)


@pytest.mark.parametrize("name", [each.name for each in EXPERIMENTS])
def test_every_experiment_has_a_variant_that_runs_and_charts(name: str) -> None:
    (found,) = find([name])
    settings = replace(found.quick, nodes=(found.quick.nodes[0],), topologies=(SQUARE,), duration_s=20.0)
    first = found.points(settings)[0]
    rows = found.derive([run_point(first)])
    assert {column.key for column in found.columns if column.key in rows[0]} >= {"processor_s", "seed"}
    assert all(not chart.is_empty for chart in found.charts(rows))


def test_seeds_are_one_line_of_a_chart_over_time() -> None:
    row = {"plan": "random", "adaptive": True, "simulated_s": 40.0, "load": 1.0}
    first, other = {**row, "lost_windows": [4.0, 2.0]}, {**row, "lost_windows": [2.0, 1.0]}
    (chart,) = in_time("adapting", "")([first, other])
    (line,) = chart.lines
    assert line.label == "random + adaptive"
    assert line.points == ((2.0, 3.0, 2.0, 4.0), (4.0, 1.5, 1.0, 2.0))
