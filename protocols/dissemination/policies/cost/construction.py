"""Trees built from known statistics (Zhou, Ooi and Tan 2008, section 3.3): for the lab, and to compare others with.

`greedy` is algorithm 2, `anneal` algorithm 3. Both work on a `CostTree`, and tell what a change brings from the few
nodes that it touches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from peerd.api import Rng
from peerd.ids import NodeId
from protocols.dissemination.policies.cost.model import Branch, CostTree, Delay, Server, processing_s, step_loss

DRAWS_MAX: Final = 32
"""So often a transformation is drawn again before a step of the annealing is given up: small trees have few."""


@dataclass(frozen=True, slots=True)
class Cooling:
    """The parameters of simulated annealing; the defaults are those of section 3.3.2."""

    start: float = 2.0
    """The first temperature, by the mean loss of the first tree."""
    factor: float = 0.95
    """The next temperature, by the last one."""
    steps_each: int = 64
    """Steps at each temperature, by the number of nodes."""
    frozen: float = 0.001
    """Below this temperature it may end. In units of the mean loss of the first tree."""
    unchanged: int = 10
    """It ends after so many temperatures below that without a better tree."""


def _fresh(source: NodeId, servers: Iterable[Server], delay: Delay) -> CostTree:
    blank = [replace(server, parent=None, children=[]) for server in servers]
    return CostTree(source, blank, delay)


def random_tree(source: NodeId, servers: Sequence[Server], delay: Delay, rng: Rng, fan_out: int = 0) -> CostTree:
    """Every node below a random earlier one. ``fan_out``: children that a node has at most; 0: no limit."""
    tree = _fresh(source, servers, delay)
    order = [server.id for server in servers if server.id != source]
    rng.shuffle(order)
    placed = [source]
    for id in order:
        room = [each for each in placed if not fan_out or len(tree.servers[each].children) < fan_out]
        tree.attach(id, rng.choice(room))
        placed.append(id)
    tree.refresh()
    return tree


def star(source: NodeId, servers: Sequence[Server], delay: Delay) -> CostTree:
    """Every node below the source: the paper's "source-based"."""
    tree = _fresh(source, servers, delay)
    for server in servers:
        if server.id != source:
            tree.attach(server.id, source)
    tree.refresh()
    return tree


def greedy(source: NodeId, servers: Sequence[Server], delay: Delay, fan_out: int = 0) -> CostTree:
    """Place nodes one after another, near and fast ones first, each where all nodes together lose least by it."""
    tree = _fresh(source, servers, delay)
    tree.refresh()
    rest = [server for server in tree.servers.values() if server.id != source]
    rest.sort(key=lambda its: (delay(source, its.id) + its.costs.filter_s + its.costs.send_s, its.id))
    arrival = {source: 0.0}
    for server in rest:
        best, least = source, math.inf
        for parent in arrival:
            if not fan_out or len(tree.servers[parent].children) < fan_out:
                loss = _added_loss(tree, server, parent, arrival[parent])
                if loss < least:
                    best, least = parent, loss
        tree.attach(server.id, best)
        _refresh_up(tree, server.id)
        arrival = _arrivals(tree)
    return tree


def _arrivals(tree: CostTree) -> dict[NodeId, float]:
    """How long a message takes to each node that is in the tree."""
    arrival = {tree.source: 0.0}
    for id in reversed(tree.bottom_up()):
        server = tree.servers[id]
        for child in server.children:
            arrival[child] = arrival[id] + tree.delay(id, child) + server.processing_s
    return arrival


def _added_loss(tree: CostTree, server: Server, parent: NodeId, arrival_s: float) -> float:
    """How much more all nodes lose when a new leaf comes below a parent: up the tree as far as rates change."""
    above = tree.servers[parent]
    branches = [tree.servers[child].branch for child in above.children]
    leaf = Branch(server.id, server.rate, server.rate)
    rate_max = max(above.rate_max, server.rate)
    slower_s = processing_s(above.costs, rate_max, [*branches, leaf])
    below = sum(branch.rate_sum for branch in branches)
    added = server.rate * (arrival_s + tree.delay(parent, server.id) + slower_s)
    added += below * (slower_s - above.processing_s)
    changed = replace(above.branch, rate_max=rate_max, fan_out=above.branch.fan_out + 1)
    while above.parent is not None and (rate_max > above.rate_max or _adapts(tree, above.parent)):
        above = tree.servers[above.parent]
        branches = [tree.servers[child].branch for child in above.children]
        branches = [changed if branch.node == changed.node else branch for branch in branches]
        rate_max = max(above.rate_max, changed.rate_max)
        more_s = processing_s(above.costs, rate_max, branches) - above.processing_s
        added += more_s * (sum(branch.rate_sum for branch in branches) + server.rate)
        changed = replace(above.branch, rate_max=rate_max)
    return added


def _adapts(tree: CostTree, id: NodeId) -> bool:
    costs = tree.servers[id].costs
    return costs.collect > 0 or costs.decide > 0


def _refresh_up(tree: CostTree, id: NodeId | None) -> None:
    while id is not None:
        server = tree.servers[id]
        tree.refresh_node(server)
        id = server.parent


Step = tuple[tuple[NodeId, NodeId], ...]
"""Moves of a transformation: a node, and its new parent."""


class Annealing:
    """One run of simulated annealing over the transformations of section 3.2.1."""

    def __init__(self, tree: CostTree, rng: Rng, fan_out: int = 0) -> None:
        self.tree = tree
        self.loss = tree.loss()
        self._rng = rng
        self._fan_out = fan_out
        self._ids = [id for id in tree.servers if id != tree.source]

    def parents(self) -> dict[NodeId, NodeId]:
        """The shape of the tree."""
        return {id: parent for id in self._ids if (parent := self.tree.servers[id].parent) is not None}

    def draw(self) -> Step | None:
        """A random transformation of one of the six kinds that the fan-out allows."""
        for _ in range(DRAWS_MAX):
            step = self._draw_one()
            if step is not None and self._is_allowed(step):
                return step
        return None

    def _draw_one(self) -> Step | None:
        servers, rng = self.tree.servers, self._rng
        node = rng.choice(self._ids)
        parent = servers[node].parent
        assert parent is not None
        above = servers[parent].parent
        kind = rng.randrange(6)
        if kind == 0:  # demotion: the only one for which a parent is enough
            siblings = [each for each in servers[parent].children if each != node]
            return ((node, rng.choice(siblings)),) if siblings else None
        if above is None:
            return None
        if kind == 1:
            return ((node, above),)
        if kind == 2:
            return (node, above), (parent, node)
        uncles = [each for each in servers[above].children if each != parent]
        if not uncles:
            return None
        uncle = rng.choice(uncles)
        if kind == 3:
            return ((node, uncle),)
        if kind == 4:
            return (node, above), (uncle, parent)
        cousins = servers[uncle].children
        return ((node, uncle), (rng.choice(cousins), parent)) if cousins else None

    def _is_allowed(self, step: Step) -> bool:
        if not self._fan_out:
            return True
        counts: dict[NodeId, int] = {}
        for node, to in step:
            old = self.tree.servers[node].parent
            assert old is not None
            counts[old] = counts.get(old, 0) - 1
            counts[to] = counts.get(to, 0) + 1
        return all(len(self.tree.servers[id].children) + more <= self._fan_out for id, more in counts.items())

    def try_step(self, step: Step, accept_up_to: float) -> float | None:
        """Take a step unless it makes the loss grow by more than that; the change, or ``None``: not taken."""
        servers = self.tree.servers
        back = tuple((node, servers[node].parent) for node, _ in step)
        touched = {to for _, to in step} | {old for _, old in back if old is not None}
        touched |= {above for id in touched if (above := servers[id].parent) is not None}
        before = self._local(touched)
        for node, to in step:
            self.tree.attach(node, to)
        self._refresh(touched)
        change = self._local(touched) - before
        if change <= accept_up_to:
            self.loss += change
            return change
        for node, old in reversed(back):
            assert old is not None
            self.tree.attach(node, old)
        self._refresh(touched)
        return None

    def _local(self, touched: Iterable[NodeId]) -> float:
        total = 0.0
        for id in touched:
            server = self.tree.servers[id]
            branches = [self.tree.servers[child].branch for child in server.children]
            total += step_loss(id, server.processing_s, branches, self.tree.delay)
        return total

    def _refresh(self, touched: Iterable[NodeId]) -> None:
        for id in sorted(touched, key=self._depth, reverse=True):
            self.tree.refresh_node(self.tree.servers[id])

    def _depth(self, id: NodeId) -> int:
        depth, at = 0, self.tree.servers[id].parent
        while at is not None:
            depth, at = depth + 1, self.tree.servers[at].parent
        return depth


def anneal(tree: CostTree, rng: Rng, cooling: Cooling | None = None, fan_out: int = 0) -> CostTree:
    """Simulated annealing from a tree, which is changed; returns the best one met, that one included."""
    with_ = cooling or Cooling()
    run = Annealing(tree, rng, fan_out)
    count = max(1, len(tree.servers) - 1)
    unit = run.loss / count
    temperature = with_.start * unit
    best, shape, unchanged = run.loss, run.parents(), 0
    while unit > 0 and (temperature >= with_.frozen * unit or unchanged < with_.unchanged):
        unchanged += 1
        for _ in range(with_.steps_each * count):
            step = run.draw()
            if step is None:
                break
            # as of Metropolis: a growth of the mean loss by c is taken with the probability exp(-c / T)
            accept = -math.log(1.0 - rng.random()) * temperature * count
            run.try_step(step, accept)
            if run.loss < best * (1 - 1e-9):
                best, shape, unchanged = run.loss, run.parents(), 0
        temperature *= with_.factor
    return rebuilt(tree, shape)


def rebuilt(tree: CostTree, shape: dict[NodeId, NodeId]) -> CostTree:
    """Return a tree of the same nodes with this shape (parents by node)."""
    found = _fresh(tree.source, tree.servers.values(), tree.delay)
    for id, parent in shape.items():
        found.attach(id, parent)
    found.refresh()
    return found
