"""The node at which all routes of T end misbehaves: of what its part of T does, values and the others' caches depend
little, and what they do depend on is said here."""

from __future__ import annotations

import pytest

from peerd.ids import closest
from peerd.sim.hostile.member import Behaviour, Party
from peerd.sim.simulation import Simulation
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.front.hostile import (
    LIE,
    ForgesQuestions,
    InventsOnTheWay,
    MovesToItself,
    SaysAllAreBelow,
    SplicesMuch,
)
from protocols.measurement.front.simulator import NAMES, WITHIN, GuaranteeHolds, SimulatedQueries, plugin_of
from protocols.measurement.placing.statistics import SEEN_MAX
from protocols.measurement.placing.tree import ROOT_KEY
from protocols.measurement.readings import NoReading, Reading

COUNT, SEED, STALE_S = 14, 5, 8.0
CACHED_MAX = 20


def root_index() -> int:
    """Which node that is: ids go by the seed."""
    simulation = Simulation(SEED)
    simulation.start(COUNT, spacing_s=0.2)
    simulation.run_for(COUNT * 0.2)
    root = closest(ROOT_KEY, [place.id for place in simulation.nodes])
    return next(place.index for place in simulation.nodes if place.id == root)


class Attacked:
    """A ring whose root of T, or another node, does this, and whose clients go on all the same."""

    def __init__(
        self, kind: type[Behaviour], placing: str = "tree", *, is_root: bool = True, signed: bool = True
    ) -> None:
        self.oracle = GuaranteeHolds()
        settings = {"update_interval": "2s", "ask_interval": "3s", "decide_interval": "3s", "cache_values": CACHED_MAX}
        config = MeasurementConfig.model_validate({"placing": placing, "signed": signed} | settings)
        self.simulation = Simulation(
            SEED, plugins=lambda index: [SimulatedQueries(index, config)], checkers=[self.oracle], check_every=20
        )
        party = Party(self.simulation, {(root_index() + (not is_root)) % COUNT: [kind]})
        self.simulation.start(COUNT, spacing_s=0.2)
        self.simulation.run_for(COUNT * 0.2)
        self.simulation.run_until(self.simulation.is_ready, 60.0)
        self.simulation.run_for(20.0)
        party.begin()
        [self.liar] = party.ids
        honest = self.simulation.honest_nodes()
        self.plugins = {place.id: plugin for place in honest if (plugin := plugin_of(place))}

    def read(self, seconds: float) -> list[Reading | NoReading]:
        """What clients of all honest nodes are told of honest owners."""
        told: list[Reading | NoReading] = []
        for _ in range(round(seconds / 4.0)):
            for plugin in self.plugins.values():
                take = lambda answers: told.extend(answers) if isinstance(answers, list) else None  # noqa: E731  it is short
                plugin.asking.read(NAMES, lambda entry: entry.id in self.plugins, WITHIN, STALE_S, take)
            self.simulation.run_for(4.0)
        return told

    def blamed(self) -> set[object]:
        """Who lost a link."""
        return {about.id for _, _, about, _ in self.simulation.misbehaviours}


@pytest.mark.parametrize("kind", [SaysAllAreBelow, MovesToItself, ForgesQuestions, SplicesMuch])
def test_what_the_root_of_t_says_of_the_way_costs_time_and_no_answer(kind: type[Behaviour]) -> None:
    ring = Attacked(kind)
    watching = list(ring.plugins.values())[:3]
    for plugin in watching:
        plugin.watching.watch({"level": 0.5}, lambda entry: entry.id in ring.plugins, STALE_S)
    told = ring.read(60.0)
    fresh = [each for each in told if isinstance(each, Reading) and not each.is_stale]
    assert len(fresh) == len(told) > 5000
    assert all(each.value != LIE for each in fresh)
    assert ring.oracle.judged > 500
    assert ring.blamed() <= {ring.liar}
    watched = [value for plugin in watching for value in plugin.caching.holder.held.values()]
    assert len(watched) >= 3 * (COUNT - 2) and all(value.vouched for value in watched)
    for plugin in ring.plugins.values():
        assert len(plugin.decider.statistics) <= SEEN_MAX
        wanted = {each for each in plugin.caching.holder.wanted if each.name != "level"}
        assert len(wanted) <= CACHED_MAX


def test_who_invents_on_the_way_what_a_read_is_told_is_found_and_believed_no_more() -> None:
    ring = Attacked(InventsOnTheWay)
    told = [each for each in ring.read(20.0) if isinstance(each, Reading)]
    assert len(told) > 1000 and not [each for each in told if each.value == LIE or each.is_stale]
    ring = Attacked(InventsOnTheWay, signed=False)
    told = [each for each in ring.read(4.0) if isinstance(each, Reading)]
    lies = {each.provider for each in told if each.value == LIE}
    assert lies == {ring.liar}, "the first answers, if nobody signs; and they say who has told it"
    ring.simulation.run_for(STALE_S)
    told = [each for each in ring.read(20.0) if isinstance(each, Reading)]
    assert len(told) > 1000 and not [each for each in told if each.value == LIE or each.is_stale]
    ring = Attacked(InventsOnTheWay, "owners")
    told = [each for each in ring.read(20.0) if isinstance(each, Reading)]
    assert told and not [each for each in told if each.value == LIE], "where owners are asked there is no way"
