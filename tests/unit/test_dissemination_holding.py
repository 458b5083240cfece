"""Trees that adapt at the same time: every order of messages of small systems is tried, and each one ends."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from peerd.ids import NodeId
from protocols.dissemination.policies.cost.holding import HoldMessage, HoldRequest, HoldStill

Shape = dict[int, tuple[int, ...]]
"""Children by node; the root is the node that is nobody's child."""


class Wire:
    """What one node does: it is sent to the others, or written down."""

    def __init__(self, system: System, name: int) -> None:
        self._system, self._name = system, name

    def _send(self, kind: str, to: int, tree: int) -> None:
        links = self._system.links
        links[self._name, to] = (*links.get((self._name, to), ()), (kind, tree))

    def children(self, tree: NodeId) -> list[NodeId]:
        return [NodeId(child) for child in self._system.trees[tree].get(self._name, ())]

    def adapt(self, tree: NodeId) -> None:
        self._system.adapted.append((self._name, tree))
        for child in self.children(tree):
            held = self._system.nodes[child].held
            assert held == HoldRequest(NodeId(self._name), tree), "all children hold still for this tree"

    def pass_token(self, child: NodeId, tree: NodeId) -> None:
        self._send("token", child, tree)

    def tell(self, node: NodeId, message: HoldMessage) -> None:
        self._send(type(message).__name__, node, message.stream)


class System:
    """Some nodes, some trees over them, and the messages between them, in order on each link."""

    def __init__(self, trees: list[Shape]) -> None:
        self.trees = trees
        self.links: dict[tuple[int, int], tuple[tuple[str, int], ...]] = {}
        self.adapted: list[tuple[int, int]] = []
        names = sorted({node for tree in trees for node in tree} | {c for t in trees for cs in t.values() for c in cs})
        self.nodes = {name: self._node(name) for name in names}

    def _node(self, name: int) -> HoldStill:
        return HoldStill(NodeId(name), Wire(self, name))

    def begin(self) -> None:
        for number, tree in enumerate(self.trees):
            self.nodes[root_of(tree)].token(NodeId(number))

    def step(self, link: tuple[int, int]) -> None:
        (kind, tree), *rest = self.links[link]
        if rest:
            self.links[link] = tuple(rest)
        else:
            del self.links[link]
        sender, receiver = link
        node = self.nodes[receiver]
        peer, name = NodeId(sender), NodeId(tree)
        if kind == "token":
            node.token(name)
        elif kind == "AskToHold":
            node.requested(HoldRequest(peer, name))
        elif kind == "HoldsStill":
            node.child_held(peer, name)
        elif kind == "AskToYield":
            node.asked_to_yield(peer, name)
        else:
            node.yielded(peer, name)

    def copy(self) -> System:
        new = object.__new__(System)
        new.trees, new.links, new.adapted = self.trees, dict(self.links), list(self.adapted)
        new.nodes = {}
        for name, node in self.nodes.items():
            fresh = new._node(name)
            fresh.held, fresh.is_asked_back = node.held, node.is_asked_back
            fresh.rounds = copy.deepcopy(node.rounds)
            fresh.tokens, fresh.requests = node.tokens.copy(), node.requests.copy()
            new.nodes[name] = fresh
        return new

    def key(self) -> Any:
        nodes = tuple(
            (
                n.held,
                n.is_asked_back,
                tuple((r.tree, tuple(sorted(r.missing))) for r in n.rounds),
                tuple(n.tokens),
                tuple(sorted(n.requests)),
            )
            for n in self.nodes.values()
        )
        return nodes, tuple(sorted(self.links.items())), tuple(sorted(self.adapted))


def root_of(tree: Shape) -> int:
    below = {child for children in tree.values() for child in children}
    return next(node for node in tree if node not in below)


def explore(trees: list[Shape]) -> int:
    """Try every order; returns how many states there are."""
    start = System(trees)
    start.begin()
    seen, todo = {start.key()}, [start]
    while todo:
        system = todo.pop()
        if not system.links:
            for name, node in system.nodes.items():
                assert node.held is None, f"{name} is left holding still for {node.held} by {trees}"
                assert not (node.rounds or node.tokens or node.requests), f"{name} is left waiting by {trees}"
            members = [{root_of(t)} | {c for children in t.values() for c in children} for t in trees]
            expected = sorted((n, at) for at, nodes in enumerate(members) for n in nodes)
            assert sorted(system.adapted) == expected, "every node of every tree has had its turn, once"
            continue
        for link in sorted(system.links):
            then = system.copy()
            then.step(link)
            if (key := then.key()) not in seen:
                seen.add(key)
                todo.append(then)
    return len(seen)


def all_trees(nodes: tuple[int, ...]) -> Iterator[Shape]:
    """Every rooted tree over these nodes."""
    for root in nodes:
        rest = [node for node in nodes if node != root]
        for parents in itertools.product(nodes, repeat=len(rest)):
            shape: dict[int, tuple[int, ...]] = {root: ()}
            for node, parent in zip(rest, parents, strict=True):
                shape[parent] = (*shape.get(parent, ()), node)
            reached = [root]
            for node in reached:
                reached.extend(shape.get(node, ()))
                if len(reached) > len(nodes):
                    break
            if sorted(reached) == sorted(nodes):
                yield shape


def test_two_nodes_that_are_each_others_parents_do_not_wait_for_ever() -> None:
    assert explore([{1: (2,)}, {2: (1,)}]) > 5


def test_a_circle_of_parents_over_three_trees_does_not_wait_for_ever() -> None:
    assert explore([{1: (2,)}, {2: (3,)}, {3: (1,)}]) > 20


def test_every_pair_of_trees_over_three_nodes_ends_in_every_order() -> None:
    trees = list(all_trees((1, 2, 3)))
    assert len(trees) == 9
    for one, other in itertools.product(trees, repeat=2):
        explore([one, other])


@pytest.mark.parametrize("other", range(0, 64, 7))
def test_pairs_of_trees_over_four_nodes_end_in_every_order(other: int) -> None:
    trees = list(all_trees((1, 2, 3, 4)))
    assert len(trees) == 64
    for one in trees[::9]:
        explore([one, trees[other]])
