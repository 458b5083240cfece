"""Controlled caching in simulated rings (chapter 3): candidates answer, and what they answer is right."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.sim.hostile.member import Behaviour, Decoded, Frame, Party
from peerd.sim.simulation import Simulation
from protocols.measurement.config import MeasurementConfig
from protocols.measurement.front.hostile import LIE, lie_of
from protocols.measurement.front.simulator import WITHIN, SimulatedQueries, plugin_of
from protocols.measurement.messages import READ_MAX, ReadValue, ReadValues
from protocols.measurement.placing.candidates import SquareRoutes
from protocols.measurement.placing.messages import AlongRead, ReadAlong
from protocols.measurement.plugin import MeasurementQueries
from protocols.measurement.readings import NoReading, Reading
from tests.support.long_cases import cases
from tests.support.measurement_ring import Ring

WIDE = {name: 4 * width for name, width in WITHIN.items()}
STALE_S = 6.0


class SquareRing(Ring):
    """Nodes that know where they are, and a client of each of the first few."""

    def __init__(self, nodes: int, readers: int, **settings: Any) -> None:
        settings = {"update_interval": "2s", "ask_interval": "3s"} | settings
        super().__init__(nodes, placing="squares", describe_interval="10s", **settings)
        self.readers = range(readers)
        self.simulation.run_for(25)
        self.round()
        self.simulation.run_for(10)

    def round(self, *names: str) -> list[tuple[int, list[Reading | NoReading]]]:
        """Each client reads these of all nodes: its index and what it is told."""
        told: list[tuple[int, list[Reading | NoReading]]] = []
        for index in self.readers:

            def take(answers: list[Reading | NoReading] | Exception, index: int = index) -> None:
                assert isinstance(answers, list)
                told.append((index, answers))

            self.plugin(index).asking.read(names or ("walk", "level"), lambda entry: True, WIDE, STALE_S, take)
        self.simulation.run_until(lambda: len(told) == len(self.readers), limit_s=30)
        return told


def routes(plugin: MeasurementQueries) -> SquareRoutes:
    return plugin.along.squares


def by_others(told: list[tuple[int, list[Reading | NoReading]]]) -> int:
    """How many values came from nodes that do not own them."""
    values = [each for _, answers in told for each in answers if isinstance(each, Reading)]
    return sum(each.provider != each.measurement.owner for each in values)


def test_what_is_asked_again_and_again_comes_to_be_answered_by_candidates() -> None:
    ring = SquareRing(28, 8, seed=3)
    spots = ring.plugin().directory.spots
    assert len(spots) == 28
    first = ring.round()
    assert by_others(first) == 0 and ring.sent.counts[ReadAlong] > 0
    for _ in range(45):  # a candidate begins once a quarter of the time would have been worth it
        ring.simulation.run_for(4.0)
        told = ring.round()
        assert all(isinstance(each, Reading) and not each.is_stale for _, answers in told for each in answers)
    assert by_others(told) > 0.2 * 8 * 56, by_others(told)
    held = [len(ring.plugin(index).caching.holder.held) for index in range(28)]
    assert sum(each > 0 for each in held) > 4, held
    assert ring.oracle.judged > 1000
    for index, answers in told:
        squares = routes(ring.plugin(index)).map
        for each in answers:
            assert isinstance(each, Reading)
            owner, me = each.measurement.owner, ring.places[index].id
            if each.provider not in (owner, me):
                assert each.provider == squares.closest_candidate(me, owner)
                assert each.hops == 1 and each.interval.is_within(WIDE[each.measurement.name])


def test_what_the_candidate_has_not_the_owner_tells_the_reader_directly() -> None:
    ring = SquareRing(28, 1, cache_values=0)
    ring.sent.counts.clear()
    [(_, told)] = ring.round("walk")
    assert by_others([(0, told)]) == 0
    reader = ring.places[0].id
    squares = routes(ring.plugin()).map
    asked = {place.id: squares.closest_candidate(reader, place.id) for place in ring.places[1:]}
    by_candidates = {owner: each for owner, each in asked.items() if each is not None and each not in (reader, owner)}
    assert ring.sent.counts[ReadAlong] == len(by_candidates) + len(set(by_candidates.values()))
    assert ring.sent.counts[AlongRead] == len(by_candidates)
    assert ring.sent.counts[ReadValues] == len(asked) - len(by_candidates)


def test_of_an_owner_that_is_dead_there_is_an_old_value_and_of_the_others_soon_fresh_ones() -> None:
    ring = SquareRing(32, 4)
    ring.round()
    dead = ring.places[30]
    ring.simulation.kill(dead)
    ring.simulation.run_for(STALE_S + 1.0)
    started = ring.simulation.now
    for _, answers in ring.round():
        stale = {each.measurement.owner for each in answers if isinstance(each, NoReading) or each.is_stale}
        assert stale == {dead.id}
    assert ring.simulation.now - started < 6.0
    ring.simulation.run_for(STALE_S + 1.0)
    ring.round()
    assert all(
        routes(ring.plugin(index)).branch(dead.id, (ring.places[index].id,)) is None for index in ring.readers
    ), "it is asked itself"


class LiesAlong(Behaviour):
    """As a candidate, it answers for all owners, and not only for those that it was asked about."""

    name = "lies along"

    def hears(self, peer: PeerRef, frame: Frame, decoded: Decoded | None) -> bool:
        read = None if decoded is None else decoded[0]
        if isinstance(read, ReadAlong) and read.reader == peer:
            others = [other.id for other in self.node.others() if other.id != peer.id]
            lies = [ReadValue(*lie_of(owner, name), 0.0) for owner in others for name in ("walk", "level")]
            for number in range(0, len(lies), READ_MAX):
                some = tuple(lies[number : number + READ_MAX])
                self.node.say(peer, AlongRead(read.number, 1.0, some, (0.0,) * len(some)))
            return False
        return True


@pytest.mark.parametrize("signed", cases([False], [True]))
def test_a_candidate_that_answers_for_owners_it_was_not_asked_about_is_not_heard(*, signed: bool) -> None:
    liar, count = 3, 24
    config = MeasurementConfig.model_validate({"placing": "squares", "describe_interval": "10s", "signed": signed})
    simulation = Simulation(1, plugins=lambda index: [SimulatedQueries(index, config)], check_every=20)
    party = Party(simulation, {liar: [LiesAlong]})
    simulation.start(count)
    simulation.run_until(simulation.is_ready, limit_s=120)
    simulation.run_for(30)
    party.begin()
    told: dict[NodeId, list[Reading | NoReading]] = {}
    readers = [place for place in simulation.nodes if place.index != liar]
    plugins = {place.id: plugin for place in readers if (plugin := plugin_of(place)) is not None}

    def read(reader: NodeId, plugin: MeasurementQueries) -> None:
        def take(answers: list[Reading | NoReading] | Exception) -> None:
            assert isinstance(answers, list)
            told[reader] = answers

        plugin.asking.read(["walk", "level"], lambda entry: True, WIDE, STALE_S, take)

    rounds: list[list[tuple[NodeId, Reading | NoReading]]] = []
    for _ in range(3):
        told.clear()
        for reader, plugin in plugins.items():
            read(reader, plugin)
        simulation.run_until(lambda: len(told) == len(plugins), limit_s=30)
        simulation.run_for(STALE_S + 1.0)
        rounds.append([(reader, each) for reader, all_of in told.items() for each in all_of if _is_lie(each)])
    lies = rounds[0]
    me = simulation.nodes[liar].id
    if signed:
        assert not any(rounds), "its owner has not signed that"
        return
    assert lies, "what a candidate says of owners that it was asked about is believed"
    assert not rounds[-1], "until it was checked"
    for reader, each in lies:
        asked = routes(plugins[reader]).map.closest_candidate(reader, each.measurement.owner)
        assert me in (asked, each.measurement.owner)


def _is_lie(answer: Reading | NoReading) -> bool:
    return isinstance(answer, Reading) and answer.value == LIE
