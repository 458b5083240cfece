"""Trees built from known statistics: as good as the best of all small trees, and what a step brings is told exactly."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings, strategies as st

from peerd.ids import NodeId
from protocols.dissemination.policies.cost.construction import (
    Annealing,
    Cooling,
    anneal,
    greedy,
    random_tree,
    rebuilt,
    star,
)
from protocols.dissemination.policies.cost.model import Costs, CostTree, Delay, Server, adaptation_s
from tests.support.long_cases import cases

SOURCE = NodeId(0)
QUICK = Cooling(steps_each=16, factor=0.8, frozen=0.01, unchanged=2)


def system(seed: int, count: int, adapt: float = 0.0, rate_max: float = 3.0) -> tuple[list[Server], Delay]:
    rng = random.Random(seed)
    places = [(rng.random(), rng.random()) for _ in range(count)]

    def delay(a: NodeId, b: NodeId) -> float:
        (x, y), (u, v) = places[a], places[b]
        return 0.005 + 0.04 * math.hypot(x - u, y - v)

    servers = [
        Server(
            NodeId(i),
            Costs(rng.uniform(0.002, 0.03), rng.uniform(0.0005, 0.005), adapt, adapt / 50),
            rng.uniform(0.5, rate_max),
        )
        for i in range(count)
    ]
    return servers, delay


def all_trees(servers: list[Server], delay: Delay) -> list[CostTree]:
    found = []
    ids = [server.id for server in servers if server.id != SOURCE]
    for parents in itertools.product([server.id for server in servers], repeat=len(ids)):
        shape = dict(zip(ids, parents, strict=True))
        if all(id != parent for id, parent in shape.items()):
            tree = rebuilt(CostTree(SOURCE, servers, delay), shape)
            if len(tree.bottom_up()) == len(servers):
                found.append(tree)
    return found


@pytest.mark.parametrize("seed", cases(range(2), (2, 3)))
def test_annealing_finds_the_best_of_all_trees_of_five_nodes(seed: int) -> None:
    servers, delay = system(seed, 5)
    trees = all_trees(servers, delay)
    assert len(trees) == 125, "Cayley: 5 to the power of 3"
    best = min(tree.loss() for tree in trees)
    found = anneal(random_tree(SOURCE, servers, delay, random.Random(seed)), random.Random(seed))
    assert found.loss() == pytest.approx(best)
    assert greedy(SOURCE, servers, delay).loss() <= 1.2 * best


def test_greedy_is_nearly_as_good_as_annealing_and_much_better_than_chance() -> None:
    servers, delay = system(7, 40)
    by_greed = greedy(SOURCE, servers, delay).loss()
    by_chance = random_tree(SOURCE, servers, delay, random.Random(7)).loss()
    annealed = anneal(random_tree(SOURCE, servers, delay, random.Random(7)), random.Random(7), QUICK).loss()
    assert by_greed <= 1.15 * annealed
    assert by_chance > 1.5 * by_greed
    assert star(SOURCE, servers, delay).loss() > by_greed


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(3, 20), st.sampled_from([0.0, 0.0003]), st.sampled_from([0, 3]))
def test_a_step_changes_the_loss_by_what_it_says(seed: int, count: int, adapt: float, fan_out: int) -> None:
    servers, delay = system(seed, count, adapt)
    rng = random.Random(seed)
    run = Annealing(random_tree(SOURCE, servers, delay, rng, fan_out), rng, fan_out)
    for _ in range(20):
        step = run.draw()
        if step is None:
            break
        shape, before = run.parents(), run.tree.loss()
        change = run.try_step(step, rng.choice([-1e9, 0.0, 1e9]))
        assert run.tree.loss() == pytest.approx(before + (change or 0.0), rel=1e-9, abs=1e-12)
        assert run.loss == pytest.approx(run.tree.loss())
        assert rebuilt(run.tree, run.parents()).loss() == pytest.approx(run.tree.loss()), "no figure is old"
        assert change is not None or run.parents() == shape
        if fan_out:
            assert max(len(server.children) for server in run.tree.servers.values()) <= fan_out


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(2, 14), st.sampled_from([0.0, 0.0003]), st.sampled_from([0, 2]))
def test_greedy_places_each_node_where_the_whole_tree_loses_least(
    seed: int, count: int, adapt: float, fan_out: int
) -> None:
    """Each choice against full recomputation, in the same order."""
    servers, delay = system(seed, count, adapt)
    found = greedy(SOURCE, servers, delay, fan_out)
    rest = sorted(servers[1:], key=lambda its: delay(SOURCE, its.id) + its.costs.filter_s + its.costs.send_s)
    shape: dict[NodeId, NodeId] = {}
    for server in rest:
        losses = {}
        for parent in (SOURCE, *shape):
            tree = rebuilt(CostTree(SOURCE, servers, delay), {**shape, server.id: parent})
            if not fan_out or len(tree.servers[parent].children) <= fan_out:
                losses[parent] = tree.loss()
        chosen = found.servers[server.id].parent
        assert chosen is not None
        assert losses[chosen] == pytest.approx(min(losses.values()), rel=1e-9)
        shape[server.id] = chosen


def test_the_cost_of_adapting_limits_the_fan_out() -> None:
    cheap, delay = system(3, 30, rate_max=0.6)
    dear, _ = system(3, 30, adapt=0.002, rate_max=0.6)

    def widest(servers: list[Server]) -> int:
        return max(len(server.children) for server in greedy(SOURCE, servers, delay).servers.values())

    assert widest(dear) < widest(cheap)


def test_equation_7_by_hand() -> None:
    """A node with 3 children that have 2, 1 and 0 children."""
    servers, delay = system(1, 7)
    tree = CostTree(SOURCE, servers, delay)
    for node, parent in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 2)):
        tree.attach(NodeId(node), NodeId(parent))
    tree.refresh()
    branches = [tree.servers[NodeId(id)].branch for id in (1, 2, 3)]
    possible = 3 + 3 * 2 + (2 * 1 + 1 * 2 + 0 * 3) + 2 * (1 + 2 + 3)
    assert adaptation_s(Costs(0, 0, 0.5, 0.25), branches) == pytest.approx(0.5 * 6 + 0.25 * possible)
