"""The least that caching can cost, where the tree, the rates and the queries are known beforehand. Pure.

Messages of a read, as along T (section 4.2.2): one for each edge of the tree on the ways from who asks to the first
node on each that caches or owns the value, and an answer of each of these. Messages of a cache: an update each time the
bounds are broken, straight from its provider. What keeps promises alive is not counted, so no system comes down to it.

The search is exact: a cache that is the first of no querier is of no use, so there is an optimum in which each node
that caches a value is the first on the way of some querier, and all of these are tried. Owners that are asked for
together share the messages of a read, so their caches are chosen together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf

from peerd.frozen import Frozen


class RepeatedQuery(Frozen):
    """A node that asks for the values of these, so often a second."""

    querier: int
    owners: tuple[int, ...]
    rate: float


class BestCaches(Frozen):
    """Messages a second of reads and updates, and the nodes that cache the value of each owner."""

    reads: float
    updates: float
    caches: Mapping[int, frozenset[int]]

    @property
    def cost(self) -> float:
        """All messages, a second."""
        return self.reads + self.updates


def way(parents: Mapping[int, int], start: int, end: int) -> list[int]:
    """The nodes on the way through a tree, both ends included. Roots are missing from ``parents``."""
    above = [start]
    while above[-1] in parents:
        above.append(parents[above[-1]])
    place = {node: number for number, node in enumerate(above)}
    below = [end]
    while below[-1] not in place:
        below.append(parents[below[-1]])
    return [*above[: place[below[-1]]], *reversed(below)]


@dataclass(frozen=True, slots=True)
class _Option:
    """Caches of one owner's value: what their updates cost, and for each querier, as bits, the edges that its reads
    take, and who answers."""

    nodes: frozenset[int]
    updates: float
    edges: Mapping[int, int]
    providers: Mapping[int, int]


def best_caches(
    parents: Mapping[int, int], queries: Sequence[RepeatedQuery], updates: Mapping[int, float]
) -> BestCaches:
    """The cheapest caches. ``updates``: how often a second the bounds of each owner's value are broken."""
    reads, cost, caches = 0.0, 0.0, dict[int, frozenset[int]]()
    for together in _components(queries):
        found = _Search(parents, together, updates).best
        reads, cost = reads + found.reads, cost + found.updates
        caches |= found.caches
    return BestCaches(reads, cost, caches)


def without_caches(parents: Mapping[int, int], queries: Sequence[RepeatedQuery]) -> float:
    """What the reads cost a second where nothing is cached."""
    none = {owner: _option(parents, queries, owner, frozenset(), 0.0) for each in queries for owner in each.owners}
    return _reads(queries, none)


def _components(queries: Iterable[RepeatedQuery]) -> list[list[RepeatedQuery]]:
    """The queries, those that have owners in common together."""
    parts: list[tuple[set[int], list[RepeatedQuery]]] = []
    for query in queries:
        owners, members = set(query.owners), [query]
        for part in [part for part in parts if not part[0].isdisjoint(owners)]:
            parts.remove(part)
            owners |= part[0]
            members = [*part[1], *members]
        parts.append((owners, members))
    return [members for _, members in parts]


def _option(
    parents: Mapping[int, int], queries: Iterable[RepeatedQuery], owner: int, nodes: frozenset[int], rate: float
) -> _Option:
    edges, providers = {}, {}
    for query in queries:
        if owner not in query.owners:
            continue
        taken, at = 0, query.querier
        for step in way(parents, query.querier, owner)[1:]:
            if at in nodes:
                break
            taken |= 1 << (at if parents.get(at) == step else step)  # an edge has the number of its lower end
            at = step
        edges[query.querier] = taken
        providers[query.querier] = 0 if at == query.querier else 1 << at
    return _Option(nodes, rate * len(nodes), edges, providers)


def _reads(queries: Iterable[RepeatedQuery], chosen: Mapping[int, _Option]) -> float:
    """What these queries cost a second, as far as caches are chosen."""
    total = 0.0
    for query in queries:
        edges = providers = 0
        for owner in query.owners:
            if (option := chosen.get(owner)) is not None:
                edges |= option.edges[query.querier]
                providers |= option.providers[query.querier]
        total += query.rate * (edges.bit_count() + providers.bit_count())
    return total


@dataclass
class _Search:
    """Of owners that are asked for together. Branch and bound: what the rest adds is never negative."""

    parents: Mapping[int, int]
    queries: Sequence[RepeatedQuery]
    rates: Mapping[int, float]
    best: BestCaches = field(init=False)

    def __post_init__(self) -> None:
        self._owners = sorted({owner for query in self.queries for owner in query.owners})
        self._options = {owner: sorted(self._of(owner), key=self._alone) for owner in self._owners}
        self.best = BestCaches(inf, 0.0, {})
        self._choose({}, 0.0)

    def _of(self, owner: int) -> Iterator[_Option]:
        """Each combination of a first provider for each querier."""
        ways = [way(self.parents, each.querier, owner) for each in self.queries if owner in each.owners]
        for nodes in sorted({frozenset(firsts) - {owner} for firsts in product(*ways)}, key=sorted):
            yield _option(self.parents, self.queries, owner, nodes, self.rates[owner])

    def _alone(self, option: _Option) -> float:
        """What it would cost if nothing else were asked for."""
        return option.updates + _reads([each for each in self.queries if each.querier in option.edges], {0: option})

    def _choose(self, chosen: dict[int, _Option], updates: float) -> None:
        if len(chosen) == len(self._owners):
            caches = {owner: option.nodes for owner, option in chosen.items()}
            self.best = BestCaches(_reads(self.queries, chosen), updates, caches)
            return
        owner = self._owners[len(chosen)]
        for option in self._options[owner]:
            more = {**chosen, owner: option}
            if _reads(self.queries, more) + updates + option.updates < self.best.cost:
                self._choose(more, updates + option.updates)
