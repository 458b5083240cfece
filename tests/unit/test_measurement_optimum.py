"""The offline optimum of caching: by hand, and beside all sets of caches of small trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise, product
from random import Random

import pytest
from hypothesis import given, strategies as st

from protocols.measurement.front.lab.optimum import RepeatedQuery, best_caches, way, without_caches

LINE = {1: 0, 2: 1, 3: 2, 4: 0}
"""0 is the root; 3 - 2 - 1 - 0 - 4."""


def cost_of(
    parents: Mapping[int, int],
    queries: Sequence[RepeatedQuery],
    rates: Mapping[int, float],
    caches: Mapping[int, frozenset[int]],
) -> float:
    """By following each read along the tree, step by step."""
    total = sum(rates[owner] * len(nodes) for owner, nodes in caches.items())
    for query in queries:
        edges: set[frozenset[int]] = set()
        providers: set[int] = set()
        for owner in query.owners:
            nodes = way(parents, query.querier, owner)
            first = next(node for node in nodes if node == owner or node in caches[owner])
            taken = nodes[: nodes.index(first) + 1]
            edges.update(frozenset(edge) for edge in pairwise(taken))
            providers.update({first} - {query.querier})
        total += query.rate * (len(edges) + len(providers))
    return total


def subsets(nodes: Sequence[int]) -> Iterator[frozenset[int]]:
    for count in range(len(nodes) + 1):
        yield from map(frozenset, combinations(nodes, count))


def test_ways_go_up_to_the_lowest_common_ancestor_and_down() -> None:
    assert way(LINE, 3, 4) == [3, 2, 1, 0, 4]
    assert way(LINE, 3, 1) == [3, 2, 1]
    assert way(LINE, 0, 2) == [0, 1, 2]
    assert way(LINE, 2, 2) == [2]


@pytest.mark.parametrize(
    ("updates", "caches", "cost"),
    [
        (0.0, {3}, 0.0),  # who asks may as well hold it
        (4.9, {3}, 4.9),
        (5.1, set(), 5.0),  # four edges and an answer
    ],
)
def test_one_querier_holds_the_value_itself_or_asks(updates: float, caches: set[int], cost: float) -> None:
    best = best_caches(LINE, [RepeatedQuery(3, (4,), 1.0)], {4: updates})
    assert best.caches == {4: frozenset(caches)}
    assert best.cost == pytest.approx(cost)
    assert without_caches(LINE, [RepeatedQuery(3, (4,), 1.0)]) == 5.0


def test_queriers_share_a_cache_near_them_where_updates_are_dear() -> None:
    parents = {1: 0, 2: 1, 3: 1, 4: 1, 9: 0}
    queries = [RepeatedQuery(querier, (9,), 1.0) for querier in (2, 3, 4)]
    assert best_caches(parents, queries, {9: 2.9}).caches == {9: frozenset({2, 3, 4})}
    best = best_caches(parents, queries, {9: 4.0})
    assert best.caches == {9: frozenset({1})}
    assert (best.reads, best.updates) == (3 * 2, 4.0)
    assert best_caches(parents, queries, {9: 6.1}).caches == {9: frozenset()}


def test_values_that_are_asked_for_together_are_cached_together_or_not_at_all() -> None:
    parents = {1: 0, 2: 1, 3: 1, 4: 1, 5: 0, 8: 5, 9: 5}
    apart = [RepeatedQuery(querier, (8,), 1.0) for querier in (2, 3, 4)]
    together = [RepeatedQuery(querier, (8, 9), 1.0) for querier in (2, 3, 4)]
    for rate, at in ((7.0, {1}), (7.6, set())):
        rates = {8: rate, 9: rate}
        assert best_caches(parents, apart, rates).caches == {8: frozenset({1})}
        assert best_caches(parents, together, rates).caches == {8: frozenset(at), 9: frozenset(at)}


def every(parents: Mapping[int, int], owners: Sequence[int]) -> Iterator[dict[int, frozenset[int]]]:
    nodes = sorted({*parents, *parents.values()})
    for chosen in product(*(subsets([node for node in nodes if node != owner]) for owner in owners)):
        yield dict(zip(owners, chosen, strict=True))


@given(st.integers(0, 1_000_000))
def test_no_set_of_caches_of_a_small_tree_is_cheaper(seed: int) -> None:
    rng = Random(seed)
    parents = {node: rng.randrange(node) for node in range(1, rng.randint(3, 6))}
    nodes = range(len(parents) + 1)
    owners = rng.sample(nodes, rng.randint(1, 2))
    queries = [
        RepeatedQuery(rng.choice(nodes), tuple(rng.sample(owners, rng.randint(1, len(owners)))), rng.uniform(0.1, 2.0))
        for _ in range(rng.randint(1, 3))
    ]
    queries = [each for each in queries if each.querier not in each.owners]
    asked = sorted({owner for each in queries for owner in each.owners})
    rates = {owner: rng.choice((0.0, 0.5, 2.0, 8.0)) for owner in asked}
    best = best_caches(parents, queries, rates)
    assert best.caches.keys() == set(asked)
    assert best.cost == pytest.approx(cost_of(parents, queries, rates, best.caches))
    least = min(cost_of(parents, queries, rates, caches) for caches in every(parents, asked))
    assert best.cost == pytest.approx(least)
    none = dict.fromkeys(asked, frozenset[int]())
    assert without_caches(parents, queries) == pytest.approx(cost_of(parents, queries, rates, none))
