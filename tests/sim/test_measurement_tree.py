"""Caches on the routes to one key, in simulated rings: the propositions of chapter 4, and what becomes of caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from peerd.ids import NodeId
from peerd.lib.proof_ends import SeenEnds
from peerd.messages import PeerRef
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from protocols.measurement.front.simulator import WITHIN, SimulatedQueries, SimulatedSource, plugin_of
from protocols.measurement.guarantee.messages import CacheAsk, CacheUpdate
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.messages import ReadValues, ValuesRead
from protocols.measurement.placing import (
    decider as decider_module,
    deciding as deciding_module,
    splicing as splicing_module,
    subtree,
    wants as wants_module,
)
from protocols.measurement.placing.messages import AlongRead, ReadAlong, SpliceIn, Subtree
from protocols.measurement.placing.statistics import CacheCandidate
from protocols.measurement.placing.wants import OFTEN
from protocols.measurement.readings import NoReading, Reading
from tests.support.long_cases import long_case
from tests.support.measurement_ring import Ring

Parents = Mapping[NodeId, NodeId | None]


class Handled(Checker):
    """Which nodes have handled READs."""

    watched_messages = (ReadAlong,)

    def __init__(self) -> None:
        self.nodes: set[NodeId] = set()
        self.messages = 0

    def handled(self, simulation: Simulation, place: Place, message: Any, source: PeerRef) -> None:
        self.nodes.add(place.id)
        self.messages += 1


@pytest.fixture(autouse=True)
def asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about READs, of which there are none where values are held because clients ask often."""
    monkeypatch.setattr(wants_module, "OFTEN", 1 << 30)


class Tree(Ring):
    """A ring whose nodes ask over T."""

    def __init__(self, nodes: int, seed: int = 1, **settings: Any) -> None:
        self.handled = Handled()
        super().__init__(nodes, seed, checkers=[self.handled], **({"placing": "tree"} | settings))

    @property
    def plugins(self) -> dict[NodeId, SimulatedQueries]:
        """Those of the nodes that are there."""
        live = self.simulation.live_nodes()
        return {place.id: plugin for place in live if (plugin := plugin_of(place)) is not None}

    def parents(self) -> dict[NodeId, NodeId | None]:
        """T, as its nodes see it."""
        parents = {node: plugin.tree.parent() for node, plugin in self.plugins.items()}
        return {node: None if parent is None else parent.id for node, parent in parents.items()}

    def is_at_rest(self) -> bool:
        """Whether all filters are what T says."""
        parents = self.parents()
        if sum(parent is None for parent in parents.values()) != 1:
            return False
        below: dict[NodeId, set[NodeId]] = {node: set() for node in parents}
        for node in parents:
            for each in way_up(parents, node):
                below.get(each, set()).add(node)
        plugins = self.plugins
        return all(
            {each for each in parents if each in plugins[node].tree.below()} == below[node]
            and set(plugins[node].tree.children()) == {each for each, parent in parents.items() if parent == node}
            for node in parents
        )

    def rest(self) -> None:
        """Wait for that."""
        self.simulation.run_until(self.is_at_rest, limit_s=300)

    def ask(self, reader: NodeId, wants: Iterable[Want], stale_s: float = 8.0) -> list[Reading | NoReading]:
        """What a client of some node is told."""
        told: list[list[Reading | NoReading]] = []
        self.plugins[reader].readings.read(wants, stale_s, told.append)
        self.simulation.run_until(lambda: bool(told), limit_s=30)
        return told[0]


def way_up(parents: Parents, node: NodeId) -> list[NodeId]:
    """From a node to the root, both included."""
    way: list[NodeId] = []
    at: NodeId | None = node
    while at is not None and at not in way:
        way.append(at)
        at = parents.get(at)
    return way


def way(parents: Parents, start: NodeId, end: NodeId) -> list[NodeId]:
    """Over T from one node to another, both included."""
    up, down = way_up(parents, start), way_up(parents, end)
    common = next(node for node in up if node in down)
    return [*up[: up.index(common) + 1], *reversed(down[: down.index(common)])]


@pytest.mark.parametrize(
    ("nodes", "seed", "exact_max"), [(5, 1, 128), (13, 2, 128), (31, 3, 128), (31, 5, 2), (60, 4, 128)]
)
def test_proposition_1_nobody_handles_a_read_outside_of_the_smallest_part_of_t_that_has_its_reader_and_owners(
    monkeypatch: pytest.MonkeyPatch, nodes: int, seed: int, exact_max: int
) -> None:
    monkeypatch.setattr(subtree, "EXACT_MAX", exact_max)
    ring = Tree(nodes, seed, cache_values=0)
    ring.read("walk")  # all know where the others are
    rng, everybody = Random(seed), sorted(ring.plugins)
    for _ in range(40):
        ring.rest()
        parents = ring.parents()
        reader = rng.choice(everybody)
        owners = rng.sample([node for node in everybody if node != reader], rng.randint(1, min(nodes - 1, 12)))
        ways = [way(parents, reader, owner) for owner in owners]
        inside = {node for each in ways for node in each}
        edges = {frozenset(pair) for each in ways for pair in pairwise(each)}
        ring.plugins[reader].readings._kept.clear()
        ring.handled.nodes.clear()
        ring.handled.messages = 0
        ring.sent.counts.clear()
        told = ring.ask(reader, [Want(Measurement(owner, "walk"), 1.0) for owner in owners])
        assert ring.handled.nodes <= inside
        assert ring.handled.messages == len(edges), "over each edge once"
        assert ring.sent.counts[AlongRead] == len(owners) and not ring.sent.counts[ReadValues]
        readings = [each for each in told if isinstance(each, Reading) and not each.is_stale]
        assert {each.measurement.owner for each in readings} == set(owners)
        cost = sum(each.messages for each in readings)
        assert abs(cost - len(edges) - len(owners)) <= 0.5 * len(owners), "rounded for each answer"
    assert max(len(way_up(parents, node)) for node in everybody) >= (2 if nodes < 20 else 3)


Holding = tuple[NodeId, Measurement]


def way_over_regions(ring: Tree, start: NodeId, end: NodeId) -> list[NodeId]:
    """The same where a tag makes regions, as nodes see it."""
    path = [start]
    while path[-1] != end:
        peer = ring.plugins[path[-1]].splicing._routes.branch(end, path)
        assert peer is not None and peer.id not in path
        path.append(peer.id)
    return path


def first_on_the_way(ring: Tree, parents: Parents, node: NodeId, measurement: Measurement) -> NodeId:
    """The first node on the way to the owner that holds a value well enough for this one; else the owner."""
    plugins, wanted = ring.plugins, ring.plugins[node].caching.holder.wanted[measurement]
    is_regional = plugins[node].config.region_tag
    owner = measurement.owner
    for each in (way_over_regions(ring, node, owner) if is_regional else way(parents, node, owner))[1:-1]:
        caching = plugins[each].caching
        theirs, held = caching.holder.wanted.get(measurement), caching.holder.held.get(measurement)
        if theirs is None or held is None or not held.vouched:
            continue
        if held.claim.interval.is_within(wanted.half_width) and theirs.update_s <= wanted.update_s:
            return each
    return measurement.owner


def wrong_providers(ring: Tree) -> tuple[list[Holding], dict[Holding, NodeId]]:
    """Which values are not held of whom they should be, and whom all are held of."""
    parents, providers = ring.parents(), {}
    for node, plugin in ring.plugins.items():
        for measurement, wanted in plugin.caching.holder.wanted.items():
            providers[node, measurement] = wanted.provider
    wrong = [each for each, provider in providers.items() if provider != first_on_the_way(ring, parents, *each)]
    return wrong, providers


def use(ring: Tree, rng: Random, readers: Iterable[NodeId], names: Iterable[str], rounds: int, gap_s: float) -> None:
    """Clients of some nodes read everything now and again, each with a width of its own."""
    widths = {reader: rng.choice((0.5, 1.0, 1.0, 4.0)) for reader in readers}
    for _ in range(rounds):
        for reader, factor in widths.items():
            wants = [
                Want(Measurement(owner, name), factor * WITHIN[name])
                for owner in ring.plugins
                for name in names
                if owner != reader
            ]
            ring.plugins[reader].readings.read(wants, 8.0, lambda told: None)
        ring.simulation.run_for(gap_s)


def decide_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, what is cached stays cached, and nothing else is."""

    def stay(candidates: Iterable[CacheCandidate], *limits: Any) -> dict[Measurement, CacheCandidate]:
        return {each.want.measurement: each for each in candidates if each.is_cached}

    monkeypatch.setattr(decider_module, "decide", stay)


@pytest.mark.parametrize(
    ("nodes", "seed", "region_tag"), [(12, 2, ""), (16, 2, ""), (24, 3, ""), (40, 4, ""), (24, 3, "role")]
)
def test_proposition_2_each_cache_is_provided_for_by_the_first_one_on_its_way_to_the_owner(
    monkeypatch: pytest.MonkeyPatch, nodes: int, seed: int, region_tag: str
) -> None:
    monkeypatch.setattr(deciding_module, "PASSING", 1.0)  # many caches on the way
    ring = Tree(nodes, seed, decide_interval="4s", region_tag=region_tag)
    ring.read("walk")
    ring.rest()
    rng = Random(seed)
    readers = rng.sample(sorted(ring.plugins), nodes // 2)
    for reader in readers[: nodes // 6]:
        some = frozenset(rng.sample(sorted(ring.plugins), nodes // 2))
        ring.plugins[reader].watching.hold({"walk": rng.choice((1.0, 4.0))}, some, 30.0)  # no cache is too late
    use(ring, rng, readers, ["walk", "level"], 20, 3.0)
    decide_nothing_new(monkeypatch)
    monkeypatch.setattr(splicing_module, "RENEWED_LEAST", 1)  # places are renewed now, and not in a while
    use(ring, rng, readers, ["walk", "level"], 30, 3.0)
    wrong, providers = wrong_providers(ring)
    assert not wrong, f"{len(wrong)} of {len(providers)}"
    between = [each for each, provider in providers.items() if provider != each[1].owner]
    assert len(between) > len(providers) / 10


def brothers(ring: Tree) -> tuple[NodeId, list[NodeId], list[NodeId]]:
    """The node of T, not its root, with the most children; these; and all nodes that are not below it."""
    parents = ring.parents()
    below: dict[NodeId, list[NodeId]] = {}
    for node, parent in parents.items():
        if parent is not None and parents[parent] is not None:
            below.setdefault(parent, []).append(node)
    found = max(sorted(below), key=lambda node: len(below[node]))
    assert len(below[found]) >= 2
    return found, sorted(below[found]), [node for node in parents if found not in way_up(parents, node)]


def read_for(
    ring: Tree,
    seconds: float,
    readers: Iterable[NodeId],
    owners: Iterable[NodeId],
    *,
    names: Iterable[str] = ("level",),
    stale_s: float = 8.0,
) -> list[tuple[NodeId, Reading | NoReading]]:
    """Some nodes read measurements of others every two seconds; what they are told."""
    told: list[tuple[NodeId, Reading | NoReading]] = []

    def read(reader: NodeId) -> None:
        if (plugin := ring.plugins.get(reader)) is not None:
            measurements = [Measurement(owner, name) for owner in owners if owner != reader for name in names]
            wants = [Want(measurement, WITHIN[measurement.name]) for measurement in measurements]
            plugin.readings.read(wants, stale_s, lambda answers: told.extend((reader, each) for each in answers))

    for _ in range(round(seconds / 2.0)):
        for reader in readers:
            read(reader)
        ring.simulation.run_for(2.0)
    return told


def tables(plugin: SimulatedQueries) -> dict[str, int]:
    """How much a node knows of what it holds and provides."""
    holder, splicing = plugin.caching.holder, plugin.splicing
    return {
        "wanted": len(holder.wanted),
        "held": len(holder.held),
        "provided": sum(len(edge.guarantees) for edge in plugin.caching.provider.edges.values()),
        "holders": len(plugin.caching.provider.edges),
        "providers": len(list(holder.providers())),
        "statistics": len(plugin.decider.statistics),
        "open": len(splicing._open),
        "sought": len(splicing._sought),
        "ways": len(splicing._ways),
        "ways below": len(splicing._holders),
        "leaving": len(splicing._leaving),
        "lost": len(splicing._lost),
        "asked": len(plugin.along._asked),
        "partners": len(plugin._partners),
    }


def test_nodes_near_each_other_come_to_be_answered_by_a_cache_between_and_nothing_is_left_when_nobody_asks() -> None:
    ring = Tree(30, 2, decide_interval="4s", update_interval="2s", ask_interval="3s", max_age="10s")
    ring.read("level")
    ring.rest()
    between, readers, owners = brothers(ring)
    read_for(ring, 40.0, readers, owners[:5])
    told = read_for(ring, 40.0, readers, owners[:5])
    assert all(isinstance(each, Reading) and not each.is_stale for _, each in told)
    near = [each for _, each in told if isinstance(each, Reading) and each.provider == between]
    assert len(near) > 0.8 * len(told)
    assert all(each.hops >= 1 for each in near)
    assert ring.oracle.judged > 100
    ring.simulation.run_for(600.0)
    assert not [(node, tables(plugin)) for node, plugin in ring.plugins.items() if any(tables(plugin).values())]
    ring.sent.counts.clear()
    ring.simulation.run_for(50.0)
    assert set(ring.sent.counts) <= {Subtree}


def test_a_value_that_changes_too_often_is_cached_by_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    is_wild = False
    calm = SimulatedSource.read

    def read(self: SimulatedSource, now: float) -> dict[str, float]:
        values = calm(self, now)
        return values | {"level": 100.0 * Random(f"{self._seed} {now}").random() if is_wild else 5.0}

    monkeypatch.setattr(SimulatedSource, "read", read)
    ring = Tree(24, 4, decide_interval="4s")
    ring.read("level")
    ring.rest()
    _, readers, [owner, *_] = brothers(ring)

    def caches() -> list[NodeId]:
        level = Measurement(owner, "level")
        return [node for node, plugin in ring.plugins.items() if level in plugin.decider._wants.cached()]

    read_for(ring, 60.0, readers[:2], [owner])
    assert caches()
    is_wild = True
    read_for(ring, 150.0, readers[:2], [owner])
    assert not caches()
    ring.sent.counts.clear()
    told = read_for(ring, 30.0, readers[:2], [owner])
    assert not ring.sent.counts[SpliceIn] and not ring.sent.counts[CacheUpdate]
    assert all(isinstance(each, Reading) and not each.is_stale for _, each in told)


@pytest.mark.parametrize("is_goodbye", [False, True])
def test_a_cache_that_is_gone_is_replaced_and_values_are_fresh_soon(is_goodbye: bool) -> None:
    ring = Tree(24, 4, decide_interval="4s", update_interval="2s", ask_interval="3s", max_age="10s")
    ring.read("level")
    ring.rest()
    between, readers, owners = brothers(ring)
    for watcher in (between, *readers):
        ring.plugins[watcher].watching.hold({"level": 0.5}, owners[:5], 8.0)
    read_for(ring, 60.0, readers, owners[:5])
    assert any(wanted.provider == between for wanted in ring.plugins[readers[0]].caching.holder.wanted.values())
    place = ring.simulation.places[between]
    (ring.simulation.stop if is_goodbye else ring.simulation.kill)(place)
    worst = read_for(ring, 20.0, readers, owners[:5])
    told = read_for(ring, 40.0, readers, owners[:5])
    assert all(isinstance(each, Reading) for _, each in (*worst, *told))
    assert not [each for _, each in told if not isinstance(each, Reading) or each.is_stale]
    ring.rest()
    read_for(ring, 60.0, readers, owners[:5])
    for reader in readers:
        holder = ring.plugins[reader].caching.holder
        assert not [each for each in holder.wanted.values() if each.provider == between]
        assert all(held.vouched for held in holder.held.values())


def test_two_readers_that_want_different_bounds_and_ages_get_what_they_want() -> None:
    ring = Tree(24, 4, decide_interval="4s")
    ring.read("level")
    ring.rest()
    _, [strict, easy, *_], owners = brothers(ring)
    told: dict[NodeId, list[Reading]] = {strict: [], easy: []}
    for plugin in ring.plugins.values():
        plugin.readings.kept_max = 0  # else reads are too few for caches to be worth it
    terms = {strict: (0.25, 6.0), easy: (6.0, 20.0)}
    for _ in range(60):
        for reader, (half_width, stale_s) in terms.items():
            wants = [Want(Measurement(owner, "level"), half_width) for owner in owners[:4]]
            take = lambda answers, reader=reader: told[reader].extend(answers)  # noqa: E731  it is short
            ring.plugins[reader].readings.read(wants, stale_s, take)
        ring.simulation.run_for(1.5)
    for reader, (half_width, stale_s) in terms.items():
        assert len(told[reader]) == 240
        assert not [each for each in told[reader] if each.is_stale or each.age_s > stale_s]
        assert all(each.interval.half_width <= half_width * 1.000001 for each in told[reader])
        assert sum(each.hops > 0 for each in told[reader]) > 10, "caches answer both"
    assert ring.oracle.judged > 100


def test_nodes_that_have_forgotten_all_certificates_lose_no_question() -> None:
    ring = Tree(24, 2, cache_values=0)
    ring.read("walk")
    ring.rest()
    [reader, *others] = sorted(ring.plugins)
    plugin = ring.plugins[reader]

    def read() -> int:
        plugin.readings._kept.clear()
        ring.sent.counts.clear()
        told = ring.ask(reader, [Want(Measurement(owner, "walk"), 1.0) for owner in others])
        assert len(told) == len(others) and all(isinstance(each, Reading) and not each.is_stale for each in told)
        assert not ring.sent.counts[ReadValues], "all of it is answered over T"
        return ring.sent.counts[ReadAlong]

    read()
    usual = read()
    for node in others:
        ring.plugins[node].along._proofs._seen = SeenEnds()
    branches = {plugin.tree.branch(owner, None) for owner in others}
    assert usual < read() <= usual + 2 * len(branches), "it is sent back, and again, once on each way"
    assert read() == usual


@pytest.mark.parametrize(
    ("nodes", "seed", "share", "stale_max"),
    [
        (18, 3, 0.35, 0),
        long_case(16, 3, 0.35, 4),
        long_case(24, 3, 0.35, 0),
        long_case(24, 4, 0.35, 4),
        long_case(24, 5, 0.45, 8),
    ],
)
def test_many_that_watch_everything_are_provided_for_by_a_few_and_hardly_anything_grows_stale_when_one_of_these_dies(
    nodes: int, seed: int, share: float, stale_max: int
) -> None:
    """Of 18 nodes that watch each other, owners would provide for 306 holders. Those who lose their provider together
    once found each other first, and told each other what was old: up to a tenth grew stale."""
    messages = {}
    for placing in ("owners", "auto"):
        ring = Tree(nodes, seed, placing=placing)
        ring.read("walk")
        ring.simulation.run_for(60.0)
        watches = [plugin.watching.hold({"walk": 50.0}, list(ring.plugins), 5.0) for plugin in ring.plugins.values()]
        ring.simulation.run_for(40.0)
        ring.sent.counts.clear()
        for watch in watches:
            assert len(watch.told) == nodes
        for _ in range(40):
            ring.simulation.run_for(1.0)
            assert not grown_stale(ring)
        messages[placing] = ring.sent.counts[CacheUpdate] + ring.sent.counts[CacheAsk]
    assert messages["auto"] < share * messages["owners"]
    wanted = [each for plugin in ring.plugins.values() for each in plugin.caching.holder.wanted.items()]
    providers = Counter(want.provider for each, want in wanted if want.provider != each.owner)
    [(hub, count)] = providers.most_common(1)
    assert count > len(wanted) / 2
    ring.simulation.kill(next(place for place in ring.simulation.live_nodes() if place.id == hub))
    stale = set[tuple[NodeId, Measurement]]()
    for _ in range(100):
        ring.simulation.run_for(0.2)
        stale |= {(node, each) for node, each in grown_stale(ring) if each.owner != hub}
    assert len(stale) <= stale_max


def grown_stale(ring: Tree) -> set[tuple[NodeId, Measurement]]:
    """What nodes hold that is older than 5 s, or that nobody vouches for."""
    return {
        (node, measurement)
        for node, plugin in ring.plugins.items()
        for measurement, held in plugin.caching.holder.held.items()
        if not held.vouched or plugin.host.now() - held.basis > 5.0
    }


def test_what_clients_ask_for_all_the_time_costs_no_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wants_module, "OFTEN", OFTEN)
    ring = Tree(24, 3, placing="auto")
    ring.read("walk")
    ring.rest()
    reader, *others = sorted(ring.plugins)
    read_for(ring, 10.0, [reader], others, names=("walk",))
    ring.sent.counts.clear()
    told = read_for(ring, 60.0, [reader], others, names=("walk",))
    assert all(isinstance(each, Reading) and not each.is_stale for _, each in told)
    assert not ring.sent.counts[ReadAlong] and not ring.sent.counts[ReadValues]
    plugin = ring.plugins[reader]
    assert plugin.caching.holder.wanted
    ring.simulation.run_for(120.0)
    assert not plugin.caching.holder.wanted, "nobody asks any more"


def test_caches_save_four_fifths_of_what_reads_cost() -> None:
    costs = []
    for cache_values in (0, 1000):
        ring = Tree(30, 5, decide_interval="8s", cache_values=cache_values)
        ring.read("level")
        ring.rest()
        everybody = sorted(ring.plugins)
        read_for(ring, 120.0, everybody[::3], everybody, names=("level", "spike"), stale_s=15.0)
        ring.sent.counts.clear()
        told = read_for(ring, 120.0, everybody[::3], everybody, names=("level", "spike"), stale_s=15.0)
        assert all(isinstance(each, Reading) and not each.is_stale for _, each in told)
        counts = ring.sent.counts
        foreground = sum(counts[kind] for kind in (ReadAlong, AlongRead, ReadValues, ValuesRead))
        costs.append((foreground, sum(counts.values()) - counts[Subtree]))
    (without, _), (with_caches, everything) = costs
    assert without > 4000 and with_caches <= 0.2 * without
    assert everything < 0.75 * without, "with all that caches cost"


def test_what_caches_answer_is_not_too_old_when_it_comes() -> None:
    ring = Tree(30, 5, decide_interval="4s")
    ring.read("level")
    ring.rest()
    everybody = sorted(ring.plugins)
    told = read_for(ring, 80.0, everybody, everybody, names=("level", "spike"))
    assert not [each for _, each in told if not isinstance(each, Reading) or each.is_stale]
    assert sum(isinstance(each, Reading) and each.hops > 0 for _, each in told) > len(told) / 2
