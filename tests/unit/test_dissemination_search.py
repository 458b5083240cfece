"""The search for a better place in a stream's tree finds the best one, and asks few nodes for it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.policies.overlap.messages import ChildPlace
from protocols.dissemination.policies.overlap.search import NODES_ASKED_MAX, Search


def grown(
    rng: random.Random, nodes: int
) -> tuple[dict[NodeId, list[NodeId]], dict[NodeId, set[int]], dict[NodeId, bool]]:
    """A tree, what each node has (part of what its parent has), and whether it has room. The root is 1."""
    below: dict[NodeId, list[NodeId]] = {NodeId(1): []}
    has, room = {NodeId(1): set(range(100))}, {NodeId(1): False}
    for number in range(2, nodes + 2):
        node, parent = NodeId(number), rng.choice(sorted(below))
        below[parent].append(node)
        below[node] = []
        has[node] = {item for item in has[parent] if rng.random() < 0.7}
        room[node] = rng.random() < 0.4
    return below, has, room


def ref(node: NodeId) -> PeerRef:
    return PeerRef(node, "127.0.0.1", 1)


@given(st.integers(0, 1 << 30), st.integers(2, 60))
def test_the_search_finds_the_best_place_there_is(seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    below, has, room = grown(rng, nodes)
    wanted = {item for item in range(100) if rng.random() < 0.3}
    missing = {node: len(wanted - items) / 100 for node, items in has.items()}
    shared = {node: missing[node] + rng.random() * 0.1 for node in has}
    shared[NodeId(1)] = 0.0
    costs: dict[NodeId, float] = {}
    above = {NodeId(1): 0.0}
    for node in sorted(has):
        costs[node] = above[node] + shared[node]
        for child in below[node]:
            above[child] = above[node] + missing[node]
    search = Search(NodeId(999), NodeId(998), {}, 10.0, pruning=2.0)
    places = {node: [ChildPlace(ref(child), missing[child]) for child in below[node]] for node in has}
    asked = search.begin(ref(NodeId(1)), room[NodeId(1)], places[NodeId(1)])
    count = 0
    while asked:
        count += len(asked)
        more: list[PeerRef] = []
        for peer in asked:
            more += search.answered(peer.id, missing[peer.id], shared[peer.id], room[peer.id], places[peer.id])
        asked = more
    assert search.is_over and count == search.asked <= nodes
    possible = [cost for node, cost in costs.items() if room[node]]
    assert (search.best is None) == (not possible)
    if search.best is not None:
        assert search.best.cost == pytest.approx(min(possible))


def test_the_search_does_not_look_below_what_it_moves_and_asks_so_many_at_most() -> None:
    mover, parent = NodeId(50), NodeId(51)
    search = Search(mover, parent, {parent: 0.3}, 1.0, pruning=2.0)
    level = [ChildPlace(ref(NodeId(1000 + at)), 0.1) for at in range(60)]
    asked = search.begin(ref(NodeId(1)), False, [ChildPlace(ref(mover), 0.0), ChildPlace(ref(parent), 0.0), *level])
    assert mover not in {peer.id for peer in asked} and parent in {peer.id for peer in asked}
    number = 10_000
    while asked:
        more: list[PeerRef] = []
        for peer in asked:
            places = [ChildPlace(ref(NodeId(number + at)), 0.0) for at in range(60)]
            number += 60
            more += search.answered(peer.id, 0.0, 0.0, peer.id == parent, places)
        asked = more
    assert search.asked == NODES_ASKED_MAX and search.best is None, "the parent itself is no better place"
