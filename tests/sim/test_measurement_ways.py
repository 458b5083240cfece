"""Which way questions go in simulated rings: over T, by squares, or to the owners, and by a tag's regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from peerd.ids import NodeId
from peerd.sim.checkers import Checker
from peerd.sim.simulation import Place, Simulation
from protocols.measurement.directory import by_value
from protocols.measurement.front.simulator import WITHIN, SimulatedQueries, SimulatedSource
from protocols.measurement.guarantee.words import Measurement, Want
from protocols.measurement.placing import along
from protocols.measurement.placing.messages import QuestionWay, ReadAlong
from protocols.measurement.placing.tree import UP_HOPS
from protocols.measurement.readings import NoReading, Reading
from tests.support.measurement_ring import Ring

QUICK: dict[str, Any] = {
    "decide_interval": "2s",
    "describe_interval": "10s",
    "update_interval": "2s",
    "ask_interval": "3s",
}
TRIALS_S = 2 * along.TRIAL * 2.0
"""So long both ways are tried."""
PERIOD_S = 2.0
TOWN = 12
"""Nodes of one of two towns."""


def keep_nothing(ring: Ring) -> dict[NodeId, SimulatedQueries]:
    """The plugins, whose clients' reads are all asked for."""
    plugins = {place.id: ring.plugin(place.index) for place in ring.places}
    for plugin in plugins.values():
        plugin.readings.kept_max = 0
    return dict(sorted(plugins.items()))


def read(
    ring: Ring, plugins: Iterable[SimulatedQueries], owners: Iterable[NodeId], seconds: float
) -> list[Reading | NoReading]:
    """Some nodes ask for others' level again and again; what they are told."""
    told: list[Reading | NoReading] = []
    wants = [Want(Measurement(owner, "level"), 2 * WITHIN["level"]) for owner in owners]
    for _ in range(round(seconds / PERIOD_S)):
        for plugin in plugins:
            mine = [want for want in wants if want.measurement.owner != plugin.host.id]
            plugin.readings.read(mine, 8.0, told.extend)
        ring.simulation.run_for(PERIOD_S)
    return told


class TwoTowns:
    """Nodes of the same town are near each other."""

    def latency_s(self, source: int, target: int) -> float:
        """Seconds."""
        return 0.001 if (source < TOWN) == (target < TOWN) else 0.06


def no_room_but_with_candidates(ring: Ring, plugins: dict[NodeId, SimulatedQueries]) -> None:
    """Only the candidate of the first town has room for caches."""
    [candidate, *_] = by_value("web", (place.id for place in ring.places[:TOWN]))
    for node, plugin in plugins.items():
        if node != candidate:
            plugin.decider._config = plugin.config.model_copy(update={"cache_values": 0})


def never_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values change all the time, so that no cache is worth it."""
    calm = SimulatedSource.read

    def wild(self: SimulatedSource, now: float) -> dict[str, float]:
        return calm(self, now) | {"level": 1000.0 * now}

    monkeypatch.setattr(SimulatedSource, "read", wild)


@pytest.mark.parametrize("expected", [QuestionWay.TREE, QuestionWay.SQUARES, None])
def test_auto_chooses_what_is_the_cheapest(monkeypatch: pytest.MonkeyPatch, expected: QuestionWay | None) -> None:
    monkeypatch.setattr(along, "TREE_WEIGHT", 1.0)
    if expected is None:
        never_the_same(monkeypatch)
    towns: dict[str, Any] = {"latency": TwoTowns(), "region_tag": "role"} if expected is QuestionWay.SQUARES else {}
    ring = Ring(2 * TOWN, 2, placing="auto", **QUICK, **towns)
    plugins = keep_nothing(ring)
    ring.simulation.run_for(20)
    if expected is QuestionWay.SQUARES:
        no_room_but_with_candidates(ring, plugins)
    asking = [ring.plugin(index) for index in range(TOWN)][: 1 if expected is None else 8]
    owners = [place.id for place in ring.places[TOWN:]]
    told = read(ring, asking, owners, TRIALS_S + PERIOD_S)
    chosen: Counter[QuestionWay | None] = Counter()
    for plugin in asking:
        choose = plugin.along.choose

        def noted(wants: Any, choose: Callable[[Any], QuestionWay | None] = choose) -> QuestionWay | None:
            way = choose(wants)
            chosen[way] += 1
            return way

        monkeypatch.setattr(plugin.along, "choose", noted)
    told += read(ring, asking, owners, 20.0)
    costs = [plugin.along.chooser.costs for plugin in asking]
    assert chosen[expected] > 0.8 * chosen.total(), (chosen, costs)
    assert all(isinstance(each, Reading) and not each.is_stale for each in told)


class Paths(Checker):
    """The ways of all READs, each with the node that got it."""

    watched_messages = (ReadAlong,)

    def __init__(self) -> None:
        self.seen: list[tuple[NodeId, ...]] = []

    def handled(self, simulation: Simulation, place: Place, message: Any, source: Any) -> None:
        self.seen.append((*message.path, place.id))


@pytest.mark.parametrize("placing", ["tree", "squares"])
def test_questions_for_a_region_of_a_tag_go_by_one_node_for_all_owners_and_caches_there_answer(placing: str) -> None:
    paths = Paths()
    ring = Ring(24, 3, placing=placing, checkers=[paths], region_tag="role", **QUICK)
    plugins = keep_nothing(ring)
    everybody = list(plugins)
    asking, owners = [plugins[node] for node in everybody[:6]], everybody[6:18]
    ring.simulation.run_for(20)
    for plugin in plugins.values():
        plugin.directory.refreshed(lambda: None, fresh_s=0.0)
    ring.simulation.run_for(5)
    head = by_value("web", everybody)[0]
    told = read(ring, asking, owners, 2 * PERIOD_S)
    assert paths.seen
    if placing == "tree":
        for path in paths.seen:
            assert len(path) <= UP_HOPS + 3 and len(set(path)) == len(path)
            if path[-1] in owners and path[-1] != head and len(path) > UP_HOPS + 1:
                assert head in path, "an owner is asked by its head"
    else:
        by_reader = {reader: {path[1] for path in paths.seen if path[0] == reader} for reader in everybody[:6]}
        assert max(map(len, by_reader.values())) <= 4, "one candidate in a square"
    told += read(ring, asking, owners, 24.0)
    assert all(isinstance(each, Reading) and not each.is_stale for each in told)
    assert sum(isinstance(each, Reading) and each.hops > 0 for each in told[-72:]) > 36, "caches answer"
    assert ring.oracle.judged > 50


def test_a_head_that_is_dead_is_replaced_and_values_are_fresh_soon() -> None:
    ring = Ring(24, 3, placing="tree", region_tag="role", **QUICK)
    plugins = keep_nothing(ring)
    everybody = list(plugins)
    ring.simulation.run_for(10)
    first, second = by_value("web", everybody)[:2]
    asking = [plugins[node] for node in everybody if node not in (first, second)][:6]
    owners = [node for node in everybody if node not in (first, second)][6:18]
    read(ring, asking, owners, 16.0)
    ring.simulation.kill(ring.simulation.places[first])
    read(ring, asking, owners, 16.0)
    told = read(ring, asking, owners, 16.0)
    assert told and all(isinstance(each, Reading) and not each.is_stale for each in told)
    held = [plugins[node].caching.holder.wanted.values() for node in everybody if node != first]
    assert not [wanted for each in held for wanted in each if wanted.provider == first]
