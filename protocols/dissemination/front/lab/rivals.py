"""Other ways to get the same items to the same members, and the least that a tree can cost, from who wants what.

A set of items is a whole number, one bit an item, so a tree of hundreds of nodes and ten thousand items takes
milliseconds. The producer is 0, members are numbered from 1.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from peerd.lab.experiment import Row
from protocols.dissemination.front.lab.workloads import Wanted

MESH_DEGREE: Final = 6
"""Of gossipsub's meshes (D)."""


@dataclass(slots=True)
class StaticTree:
    """``parents[n]`` is the parent of member n; the producer's own entry means nothing."""

    parents: list[int]

    def depths(self) -> list[int]:
        """How far each node is from the producer."""
        found = [0] + [-1] * (len(self.parents) - 1)
        for node in range(1, len(self.parents)):
            way = []
            at = node
            while found[at] < 0:
                way.append(at)
                at = self.parents[at]
            for each in reversed(way):
                found[each] = found[self.parents[each]] + 1
        return found

    def had(self, wants: Sequence[int]) -> list[int]:
        """What each node gets, where each is sent what it or somebody below it wants."""
        found, depths = list(wants), self.depths()
        for node in sorted(range(1, len(wants)), key=lambda each: -depths[each]):
            found[self.parents[node]] |= found[node]
        return found


def bits(wanted: Wanted, members: int) -> list[int]:
    """What each member wants, as bits; the producer's are none."""
    columns = [bytearray((len(wanted) + 7) // 8) for _ in range(members + 1)]
    for at, some in enumerate(wanted):
        for member in some:
            columns[member][at >> 3] |= 1 << (at & 7)
    return [int.from_bytes(column, "little") for column in columns]


def figures(tree: StaticTree, wants: Sequence[int]) -> Row:
    """What a tree costs: the same figures as those of a run."""
    had, depths = tree.had(wants), tree.depths()
    inner = set(tree.parents[1:]) - {0}
    counts = [had[node].bit_count() for node in range(len(wants))]
    shares = {node: 1 - wants[node].bit_count() / counts[node] for node in range(1, len(wants)) if counts[node]}
    sent = [0] * len(wants)
    for node in range(1, len(wants)):
        sent[tree.parents[node]] += counts[node]
    needed = sum(each.bit_count() for each in wants)
    items = max(each.bit_length() for each in had)
    return {
        "spurious": fmean(shares.values()),
        "spurious_inner": fmean([shares[node] for node in inner if node in shares] or [0.0]),
        "in_vain": 1 - needed / sum(counts[1:]),
        "copies_per_wanted": sum(counts[1:]) / needed,
        "producer_sends": sent[0] / items,
        "depth": fmean(depths[1:]),
        "depth_max": max(depths),
    }


# Rivals


def flooding(wants: Sequence[int], fan_out: int, rng: random.Random) -> Row:
    """A balanced tree in which everybody gets everything, and filters for itself."""
    members = list(range(1, len(wants)))
    rng.shuffle(members)
    tree = StaticTree(balanced(members, fan_out))
    everything = (1 << max(each.bit_length() for each in wants)) - 1
    row = figures(tree, [0, *([everything] * len(members))])
    return {**row, **_all_had(wants, everything, copies=1.0)}


def _all_had(wants: Sequence[int], everything: int, copies: float) -> Row:
    items = everything.bit_count()
    shares = [1 - each.bit_count() / items for each in wants[1:]]
    needed = sum(each.bit_count() for each in wants)
    received = copies * items * len(shares)
    return {
        "spurious": fmean(shares),
        "spurious_inner": fmean(shares),
        "in_vain": 1 - needed / received,
        "copies_per_wanted": received / needed,
    }


def balanced(members: Sequence[int], fan_out: int) -> list[int]:
    """Parents of a tree that is filled level by level, in this order."""
    parents = [0] * (max(members, default=0) + 1)
    order = [0, *members]
    for at in range(1, len(order)):
        parents[order[at]] = order[(at - 1) // fan_out]
    return parents


def siena(wants: Sequence[int], fan_out: int, rng: random.Random) -> Row:
    """CoDD section 5.3.1: random members are servers in a balanced tree; each other one is with a random server.

    There are ``fan_out`` clients a server, and as many servers below it. A server is sent what it or somebody below it
    wants (covering).
    """
    return _servers(wants, fan_out, fan_out, rng)


def siena_same(wants: Sequence[int], fan_out: int, rng: random.Random) -> Row:
    """The same where clients and servers below a server count together: half of its ``fan_out`` each."""
    return _servers(wants, max(1, fan_out // 2), fan_out - fan_out // 2, rng)


def _servers(wants: Sequence[int], clients: int, below: int, rng: random.Random) -> Row:
    members = list(range(1, len(wants)))
    rng.shuffle(members)
    servers = members[: max(1, math.ceil(len(members) / (clients + 1)))]
    parents = [0] * len(wants)
    for at, server in enumerate(servers):
        parents[server] = 0 if at == 0 else servers[(at - 1) // below]
    for client in members[len(servers) :]:
        parents[client] = rng.choice(servers)
    return figures(StaticTree(parents), wants)


def source_based(wants: Sequence[int], fan_out: int, rng: random.Random) -> Row:
    """The producer sends to everybody itself."""
    return figures(StaticTree([0] * len(wants)), wants)


def dita(wants: Sequence[int], fan_out: int, rng: random.Random) -> Row:
    """A tree for each set of members that want the same (DiTA has one an object): nobody gets anything in vain.

    Made anew, with full knowledge, from what is wanted in these items; the producer is the root of every tree.
    """
    groups: dict[int, list[int]] = {}
    for member in range(1, len(wants)):
        groups.setdefault(wants[member], []).append(member)
    parents = [0] * len(wants)
    for members in groups.values():
        for at, member in enumerate(members):
            parents[member] = 0 if at == 0 else members[(at - 1) // fan_out]
    return figures(StaticTree(parents), wants)


def mesh(wants: Sequence[int], fan_out: int, rng: random.Random) -> Row:
    """Like gossipsub: a random mesh of degree 6 over which everybody gets everything, often twice, and filters then."""
    nodes = range(len(wants))
    neighbours: list[set[int]] = [set() for _ in nodes]
    for node in nodes:
        while len(neighbours[node]) < min(MESH_DEGREE, len(wants) - 1):
            other = rng.randrange(len(wants))
            if other != node:
                neighbours[node].add(other)
                neighbours[other].add(node)
    depths, waiting = {0: 0}, deque([0])
    while waiting:
        at = waiting.popleft()
        for other in sorted(neighbours[at]):
            if other not in depths:
                depths[other] = depths[at] + 1
                waiting.append(other)
    everything = (1 << max(each.bit_length() for each in wants)) - 1
    sends = sum(map(len, neighbours)) - (len(wants) - 1)  # nobody sends an item back to whom it came from
    return {
        **_all_had(wants, everything, sends / (len(wants) - 1)),
        "producer_sends": float(len(neighbours[0])),
        "depth": fmean(depths.values()),
        "depth_max": max(depths.values()),
    }


RIVALS: Final[dict[str, Callable[[Sequence[int], int, random.Random], Row]]] = {
    "siena": siena,
    "siena-same": siena_same,
    "flooding": flooding,
    "source": source_based,
    "dita": dita,
    "mesh": mesh,
}


# The least


def grouped(wants: Sequence[int], fan_out: int) -> StaticTree:
    """A good tree to begin with: those that want the same are below each other, and few of them carry for others."""
    groups: dict[int, list[int]] = {}
    for member in range(1, len(wants)):
        groups.setdefault(wants[member], []).append(member)
    ordered = sorted(groups.values(), key=lambda each: (-len(each), each[0]))
    parents = [0] * len(wants)
    heads = deque([0])
    places = {0: fan_out}
    for members in ordered:
        while places[heads[0]] == 0:
            heads.popleft()
        parents[members[0]] = heads[0]
        places[heads[0]] -= 1
        places[members[0]] = fan_out - (1 if len(members) > 1 else 0)
        heads.append(members[0])
        for at in range(1, len(members)):
            # The second is below the first, the others fill a tree below the second: the first keeps its other places.
            parents[members[at]] = members[0] if at == 1 else members[1 + (at - 2) // fan_out]
    return StaticTree(parents)


def annealed(wants: Sequence[int], fan_out: int, start: StaticTree, steps: int, rng: random.Random) -> StaticTree:
    """Look for the tree with the least mean spurious share, by simulated annealing with full knowledge."""
    return _Annealing(wants, fan_out, start, rng).run(steps)


def fewest_copies(
    wants: Sequence[int], fan_out: int, rng: random.Random, steps: int = 150_000, tries: int = 6
) -> StaticTree:
    """Look for the tree in which all members together get the fewest copies, in the same way: the best of some."""
    start = grouped(wants, fan_out)
    found = [_FewestCopies(wants, fan_out, start, rng).run(steps) for _ in range(tries)]
    return min(found, key=lambda tree: sum(each.bit_count() for each in tree.had(wants)[1:]))


class _Annealing:
    WARMTH = 0.1
    """Steps that make one node's share worse by this are taken with probability 1/e at first."""

    def __init__(self, wants: Sequence[int], fan_out: int, start: StaticTree, rng: random.Random) -> None:
        self.wants, self.fan_out, self.rng = wants, fan_out, rng
        self.sizes = [each.bit_count() for each in wants]
        self.items = max(each.bit_length() for each in wants)
        self.parents = list(start.parents)
        self.had = start.had(wants)
        self.children: list[list[int]] = [[] for _ in wants]
        for node in range(1, len(wants)):
            self.children[self.parents[node]].append(node)

    def run(self, steps: int) -> StaticTree:
        rng, count = self.rng, len(self.wants)
        cost = best_cost = 0.0
        best = list(self.parents)
        for step in range(steps):
            node, to = rng.randrange(1, count), rng.randrange(count)
            if len(self.children[to]) >= self.fan_out or to == self.parents[node] or self._is_above(node, to):
                continue
            back = self.parents[node]
            change = self._move(node, to)
            warmth = self.WARMTH * (1 - step / steps) ** 3 + 1e-9
            if change > 0 and rng.random() >= math.exp(-change / warmth):
                self._move(node, back)
                continue
            cost += change
            if cost < best_cost - 1e-12:
                best_cost, best = cost, list(self.parents)
        return StaticTree(best)

    def _is_above(self, node: int, at: int) -> bool:
        while at:
            if at == node:
                return True
            at = self.parents[at]
        return False

    def _move(self, node: int, to: int) -> float:
        """How much the sum of all nodes' spurious shares changes."""
        old = self.parents[node]
        self.children[old].remove(node)
        self.children[to].append(node)
        self.parents[node] = to
        return self._refresh(old) + self._refresh(to)

    def _refresh(self, at: int) -> float:
        change = 0.0
        while at:
            new = self.wants[at]
            for child in self.children[at]:
                new |= self.had[child]
            if new == self.had[at]:
                break
            change += self._share(new, at) - self._share(self.had[at], at)
            self.had[at] = new
            at = self.parents[at]
        return change

    def _share(self, had: int, node: int) -> float:
        count = had.bit_count()
        return 1 - self.sizes[node] / count if count else 0.0


class _FewestCopies(_Annealing):
    WARMTH = 0.03

    def _share(self, had: int, node: int) -> float:
        """Of all items, those that come to the node."""
        return had.bit_count() / self.items
