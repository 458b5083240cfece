"""Graphs of routers that nodes hang on: transit-stub graphs, generated, and Inet graphs, read from a file.

Delay is that of the shortest path. In a transit-stub graph every stub domain has one link to the core, so a path is
put together from a few small tables. In any other graph Dijkstra's algorithm runs once for each router in use, when it
is first asked for.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from pydantic import Field

from peerd.errors import ConfigError
from peerd.sim.rng import fork
from peerd.sim.tables import Seconds, Table

ROUTERS_MAX: Final = 20_000
FILE_BYTES_MAX: Final = 64 << 20
LENGTH_MAX: Final = 1e30
"""A longer link could make a path too long for single precision, and a mean below its inverse one too short."""
SAMPLE: Final = 64
"""From so many routers the paths to all others are measured, as an estimate of the graph's mean."""

Graph = Sequence[Sequence[tuple[int, float]]]
"""For each router its links: (other router, length)."""


def shortest_paths(graph: Graph, source: int) -> list[float]:
    """Length of the shortest path to every router, infinite where there is none (Dijkstra 1959)."""
    lengths = [math.inf] * len(graph)
    lengths[source] = 0.0
    heap = [(0.0, source)]
    while heap:
        length, router = heapq.heappop(heap)
        if length > lengths[router]:
            continue
        for other, more in graph[router]:
            if length + more < lengths[other]:
                lengths[other] = length + more
                heapq.heappush(heap, (length + more, other))
    return lengths


# Transit-stub


class TransitStub(Table):
    """Zegura, Calvert and Bhattacharjee 1996 ("How to model an internetwork"), with delays instead of a map.

    Transit domains form the core; every transit router has stub domains, each hanging on it by one link. A domain, and
    the graph of the transit domains, is a random tree with more links added at random. The delay of a link is uniform
    within half of its kind's mean.
    """

    transit_domains: int = Field(default=10, ge=1, le=100, description="Domains of the core.")
    transit_routers: int = Field(default=5, ge=1, le=100, description="Routers in each.")
    stubs: int = Field(default=10, ge=1, le=100, description="Stub domains of each transit router.")
    stub_routers: int = Field(default=10, ge=1, le=100, description="Routers in each; nodes hang on these.")
    more_links: float = Field(
        default=0.3, ge=0, le=1, description="Probability of a link between two that the tree does not connect."
    )
    domain_link: Seconds = Field(default=0.02, ge=0, le=60, description="Mean delay between transit domains, one-way.")
    transit_link: Seconds = Field(default=0.005, ge=0, le=60, description="Mean delay inside a transit domain.")
    access_link: Seconds = Field(default=0.005, ge=0, le=60, description="Mean delay from a stub domain to its router.")
    stub_link: Seconds = Field(default=0.002, ge=0, le=60, description="Mean delay inside a stub domain.")
    last_hop: Seconds = Field(default=0.0005, ge=0, le=60, description="From a node to its router, exactly.")


class _Stub:
    """One stub domain: how far its routers are from each other, and from the transit router."""

    def __init__(self, shape: TransitStub, generator: Random) -> None:
        graph = _random_graph(shape.stub_routers, shape.more_links, shape.stub_link, generator)
        self.inside = [array("d", shortest_paths(graph, router)) for router in range(shape.stub_routers)]
        up_s = _around(shape.access_link, generator)
        self.up = array("d", (up_s + inside_s for inside_s in self.inside[0]))


class TransitStubLatency:
    """Nodes at random stub routers.

    Stub domains are generated, and ways through the core computed, when a node there is first asked for.
    """

    def __init__(self, seed: int, shape: TransitStub) -> None:
        self._seed = seed
        self._shape = shape
        self._core = _core(shape, fork(seed, "transit"))
        self._rows: dict[int, array[float]] = {}
        self._stubs: dict[int, _Stub] = {}
        self._places: dict[int, tuple[int, int]] = {}

    def place(self, index: int) -> tuple[int, int]:
        """The stub domain of a node, and its router there."""
        place = self._places.get(index)
        if place is None:
            shape = self._shape
            generator = fork(self._seed, "router", index)
            stub = generator.randrange(len(self._core) * shape.stubs)
            place = self._places[index] = stub, generator.randrange(shape.stub_routers)
        return place

    def _stub(self, number: int) -> _Stub:
        stub = self._stubs.get(number)
        if stub is None:
            stub = self._stubs[number] = _Stub(self._shape, fork(self._seed, "stub", number))
        return stub

    def across(self, router: int, other: int) -> float:
        """Return the delay through the core."""
        row = self._rows.get(router)
        if row is None:
            row = self._rows[router] = array("d", shortest_paths(self._core, router))
        return row[other]

    def latency_s(self, source: int, target: int) -> float:
        """Return the delay of the shortest path, with the last hop at both ends."""
        # in order of place, so that both directions have the same delay
        (stub_a, router_a), (stub_b, router_b) = sorted((self.place(source), self.place(target)))
        ends_s = 2 * self._shape.last_hop
        if stub_a == stub_b:
            return ends_s + self._stub(stub_a).inside[router_a][router_b]
        stubs = self._shape.stubs
        across_s = self.across(stub_a // stubs, stub_b // stubs)
        return ends_s + self._stub(stub_a).up[router_a] + across_s + self._stub(stub_b).up[router_b]


def _around(mean_s: float, generator: Random) -> float:
    return mean_s * (0.5 + generator.random())


def _random_edges(size: int, more: float, generator: Random) -> list[tuple[int, int]]:
    """Return the edges of a random recursive tree, plus each other pair with probability ``more``."""
    tree = [(generator.randrange(router), router) for router in range(1, size)]
    others = [(a, b) for b in range(1, size) for a in range(b) if a != tree[b - 1][0]]
    return tree + [edge for edge in others if generator.random() < more]


def _random_graph(size: int, more: float, mean_s: float, generator: Random) -> list[list[tuple[int, float]]]:
    graph: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for a, b in _random_edges(size, more, generator):
        _link(graph, a, b, _around(mean_s, generator))
    return graph


def _link(graph: list[list[tuple[int, float]]], a: int, b: int, length: float) -> None:
    graph[a].append((b, length))
    graph[b].append((a, length))


def _core(shape: TransitStub, generator: Random) -> list[list[tuple[int, float]]]:
    size = shape.transit_routers
    core: list[list[tuple[int, float]]] = []
    for domain in range(shape.transit_domains):
        inside = _random_graph(size, shape.more_links, shape.transit_link, generator)
        core += [[(domain * size + other, length) for other, length in links] for links in inside]
    for a, b in _random_edges(shape.transit_domains, shape.more_links, generator):
        ends = a * size + generator.randrange(size), b * size + generator.randrange(size)
        _link(core, *ends, _around(shape.domain_link, generator))
    return core


# Any graph


class RouterLatency:
    """Nodes at random routers of a graph whose lengths have no unit: the mean RTT of two routers gives them one.

    The mean is that of the paths from `SAMPLE` routers, drawn from the seed, to all others. Two nodes are at least
    ``local_rtt_s / 2`` apart. Raises `ConfigError` unless every router reaches every other.
    """

    def __init__(self, graph: Graph, seed: int, mean_rtt_s: float, local_rtt_s: float) -> None:
        self._graph = graph
        self._seed = seed
        self._local_s = local_rtt_s / 2
        self._rows: dict[int, array[float]] = {}
        self._places: dict[int, int] = {}
        size = len(graph)
        sample = fork(seed, "sample").sample(range(size), min(SAMPLE, size))
        total = math.fsum(math.fsum(shortest_paths(graph, router)) for router in sample)
        mean = total / (len(sample) * (size - 1))
        if not 1 / LENGTH_MAX < mean < math.inf:
            message = "not every router can reach every other, or all distances are 0 or next to it"
            raise ConfigError(message, key="topology.file")
        self._unit_s = mean_rtt_s / 2 / mean

    def router(self, index: int) -> int:
        """Return the router of a node."""
        router = self._places.get(index)
        if router is None:
            router = self._places[index] = fork(self._seed, "router", index).randrange(len(self._graph))
        return router

    def latency_s(self, source: int, target: int) -> float:
        """Return the delay of the shortest path."""
        a, b = self.router(source), self.router(target)
        if b < a:  # always the same row, so that both directions have the same delay
            a, b = b, a
        row = self._rows.get(a)
        if row is None:  # single precision: 20 KB a row of 5,000 routers
            row = self._rows[a] = array("f", shortest_paths(self._graph, a))
        return max(row[b] * self._unit_s, self._local_s)


def read_routers(path: Path) -> Graph:
    """A graph as Inet writes it: ``routers links``, then ``letter id x y`` a router, then ``from to length`` a link.

    Raises `ConfigError` with file and line.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"over {FILE_BYTES_MAX} bytes is no router graph", file=str(path))
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8 text", file=str(path)) from None
    rows = [(f"line {number}", line.split()) for number, line in enumerate(lines, start=1) if line.strip()]
    routers, links = map(int, _fields(rows, 0, (int, int), path)) if rows else (0, 0)
    if not 2 <= routers <= ROUTERS_MAX:
        raise ConfigError(f"{routers} routers; expected 2 to {ROUTERS_MAX}", file=str(path))
    if links < 0 or len(rows) != 1 + routers + links:
        message = f"{len(rows)} lines; the first one promises {routers} routers and {links} links"
        raise ConfigError(message, file=str(path))
    graph: list[list[tuple[int, float]]] = [[] for _ in range(routers)]
    for number in range(1 + routers, len(rows)):
        a, b, length = _fields(rows, number, (int, int, float), path)
        if not (0 <= a < routers and 0 <= b < routers and 0 <= length <= LENGTH_MAX):
            message = f"expected two routers from 0 to {routers - 1} and a length from 0 to {LENGTH_MAX:g}"
            raise ConfigError(message, file=str(path), key=rows[number][0])
        _link(graph, int(a), int(b), length)
    return graph


def _fields(
    rows: list[tuple[str, list[str]]], number: int, kinds: Sequence[type[int] | type[float]], path: Path
) -> Sequence[float]:
    place, words = rows[number]
    try:
        return [kind(word) for kind, word in zip(kinds, words, strict=True)]
    except ValueError:
        raise ConfigError(f"expected {len(kinds)} numbers", file=str(path), key=place) from None
