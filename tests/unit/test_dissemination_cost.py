"""The cost model against the equations of the paper worked by hand, and local decisions against the whole tree."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from peerd.ids import NodeId
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.lab.coherency_building import family_of as family_with
from protocols.dissemination.policies.cost.model import (
    Branch,
    Costs,
    CostTree,
    Server,
    message_s,
    processing_s,
    queueing,
)
from protocols.dissemination.policies.cost.policy import CHANGES_MAX
from protocols.dissemination.policies.cost.transformations import Family, Kind, Relative
from tests.support.examples import examples


def test_a_message_takes_what_equations_2_to_5_say() -> None:
    costs = Costs(filter_s=0.005, send_s=0.001)
    children = [Branch(NodeId(1), rate_max=1.0, rate_sum=1.0), Branch(NodeId(2), rate_max=0.5, rate_sum=3.0)]
    each = (0.005 + 0.001 * 1.0 / 2.0) + (0.005 + 0.001 * 0.5 / 2.0)
    assert message_s(costs, 2.0, children) == pytest.approx(each)
    busy = 2.0 * each
    expected = (1 + busy) / (2 * (1 - busy)) * each + 0.006 - each / 4
    assert processing_s(costs, 2.0, children) == pytest.approx(expected)


def test_equation_5_is_the_mean_of_equation_4() -> None:
    costs = Costs(filter_s=0.004, send_s=0.002)
    rates = [0.5, 1.0, 1.5]
    children = [Branch(NodeId(i), rate, rate) for i, rate in enumerate(rates)]
    each = message_s(costs, 2.0, children)
    busy = 2.0 * each
    by_child = [(1 + busy) / (2 * (1 - busy)) * each + 0.006 - 0.5 * (0.004 + 0.002 * rate / 2.0) for rate in rates]
    assert processing_s(costs, 2.0, children) == pytest.approx(sum(by_child) / 3)


def test_an_overloaded_node_costs_more_the_more_it_is_overloaded() -> None:
    found = [queueing(busy) for busy in (0.5, 0.9, 0.95, 0.9501, 1.0, 1.5, 3.0)]
    assert found == sorted(found)
    assert queueing(0.9501) == pytest.approx(queueing(0.95), rel=0.01), "no jump"


def random_tree(seed: int, count: int) -> CostTree:
    rng = random.Random(seed)
    delays = {(a, b): rng.uniform(0.001, 0.1) for a in range(count) for b in range(a)}

    def delay(a: NodeId, b: NodeId) -> float:
        return delays[max(a, b), min(a, b)]

    servers = [
        Server(NodeId(i), Costs(rng.uniform(0.001, 0.05), rng.uniform(0.0001, 0.01)), rng.uniform(0.5, 3.0))
        for i in range(count)
    ]
    servers[0].rate = 3.0
    tree = CostTree(NodeId(0), servers, delay)
    for i in range(1, count):
        tree.attach(NodeId(i), NodeId(rng.randrange(max(0, i - 4), i)))
    tree.refresh()
    return tree


def family_of(tree: CostTree, id: NodeId) -> Family:
    server = tree.servers[id]
    relatives = {}
    for child in server.children:
        for each in (child, *tree.servers[child].children):
            own = tree.servers[each]
            branches = tuple(tree.servers[below].branch for below in own.children)
            relatives[each] = Relative(each, own.costs, own.rate, branches)
    return Family(id, server.costs, server.rate, tuple(server.children), relatives, tree.delay)


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 1 << 30), st.integers(3, 24))
def test_what_a_node_expects_of_a_transformation_is_what_the_whole_tree_gains(seed: int, count: int) -> None:
    tree = random_tree(seed, count)
    before = tree.loss()
    for id in list(tree.servers):
        family = family_of(tree, id)
        for transformation in family.transformations():
            parents = {move.node: tree.servers[move.node].parent for move in transformation.moves}
            for move in transformation.moves:
                tree.attach(move.node, move.to)
                assert len(tree.bottom_up()) == count, "no move cuts a subtree off"
            tree.refresh()
            assert family.benefit(transformation) == pytest.approx(before - tree.loss(), rel=1e-9, abs=1e-9)
            for move in reversed(transformation.moves):
                old = parents[move.node]
                assert old is not None
                tree.attach(move.node, old)
            tree.refresh()
            assert tree.loss() == pytest.approx(before)


def test_all_six_transformations_are_considered_as_often_as_equation_7_counts() -> None:
    """A node with children 1 (children 3, 4) and 2 (child 5)."""
    tree = random_tree(1, 6)
    for node, parent in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2)):
        tree.attach(NodeId(node), NodeId(parent))
    tree.refresh()
    kinds = Counter(each.kind for each in family_of(tree, NodeId(0)).transformations())
    assert kinds == {
        Kind.PROMOTION: 3,
        Kind.DEMOTION: 2,
        Kind.PARENT_CHILD_SWAP: 3,
        Kind.COUSIN_SWAP: 2,
        Kind.NEPHEW_ADOPTION: 3,
        Kind.UNCLE_NEPHEW_SWAP: 3,
    }


@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 300))
@settings(max_examples=60)
def test_a_large_family_is_looked_at_in_part(seed: int, count: int, limit: int) -> None:
    tree, rng = random_tree(seed, count), random.Random(seed)
    family = family_of(tree, NodeId(0))
    every = list(family.transformations())
    assert family.count() == len(every)
    some = list(family.some(limit, rng.random))
    assert len(some) == min(limit, len(set(some))), "each once"
    assert set(some) <= set(every)
    if len(every) <= limit:
        assert some == every


def test_a_family_of_the_default_fan_out_is_looked_at_whole_in_each_round() -> None:
    fan_out = DisseminationConfig().fan_out
    family = family_with(fan_out, random.Random(1))
    assert family.count() == len(list(family.some(CHANGES_MAX, random.random))) > 500


def test_no_child_is_always_left_out() -> None:
    tree = CostTree(NodeId(0), [Server(NodeId(i), Costs(0.001, 0.001), 1.0) for i in range(31)], lambda a, b: 0.01)
    for i in range(1, 31):
        tree.attach(NodeId(i), NodeId(0 if i <= 10 else (i - 1) % 10 + 1))
    tree.refresh()
    family, rng = family_of(tree, NodeId(0)), random.Random(1)
    assert family.count() > 500
    looked_at = {move.node for _ in range(20) for each in family.some(100, rng.random) for move in each.moves}
    assert looked_at == {NodeId(i) for i in range(1, 31)}
