"""Rounds over large values in rings of more nodes than one leaf set holds: the requester names all nodes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import pytest

from peerd.messages import PeerRef
from peerd.sim.latency import ConstantLatency
from peerd.sim.simulation import Place, Simulation
from protocols.aggregation.messages import Enrolled, NameNodes
from protocols.aggregation.participant import Participant
from protocols.aggregation.requester import Requester
from tests.support.aggregation import Round, aggregation_of, aggregation_ring, check_answer
from tests.support.aggregation_groups import COUNTS, FREE, L_S, check_groups, ring_of_groups
from tests.support.long_cases import cases
from tests.support.sinks import ListSink

LARGE = 1 << 20


def far_ring(count: int, seed: int, sink: ListSink | None = None) -> Simulation:
    latency = ConstantLatency(L_S)
    return aggregation_ring(count, seed, padding_bytes=LARGE, network=FREE, latency=latency, sink=sink, check_every=10)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[NameNodes]:
    """The names that nodes have been told, one for each node and round."""
    found: list[NameNodes] = []
    named = Participant.named

    def noting(participant: Participant, names: NameNodes) -> None:
        found.append(names)
        named(participant, names)

    monkeypatch.setattr(Participant, "named", noting)
    return found


@pytest.mark.parametrize("count", cases([20, 32], [64]))
def test_large_values_of_a_larger_ring_take_one_to_two_latencies_a_level(count: int) -> None:
    """Values are given to counterparts before these are known to be there: without, it would be two to three latencies.
    Before the first level all enrol, are named, and hear of it, and connections are opened."""
    sink = ListSink()
    simulation = far_ring(count, 1, sink)
    answer = Round(simulation, requester=1).answer()
    check_answer(simulation, answer)
    assert (answer.outcome, answer.contributors) == ("complete", count)
    assert answer.duration_s / L_S <= 1.5 * math.log2(count) + 10
    swapped = [line for line in sink.of_kind("aggregation.level_finished") if line["outcome"] == "swapped"]
    assert max(int(str(line["level"])) for line in swapped) < (count - 1).bit_length(), "by places"


def test_whoever_is_silent_already_is_not_waited_for_by_those_that_are_named(told: list[NameNodes]) -> None:
    simulation = far_ring(24, 2)
    silent = {5, 6, 17}
    for index in silent:
        simulation.silence(simulation.nodes[index])
    answer = Round(simulation, requester=1).answer()
    check_answer(simulation, answer)
    assert answer.contributors == 21
    assert all(missing.reason == "unreachable" for missing in answer.missing)
    live = {place.id for place in simulation.nodes if place.index not in silent}
    assert [{peer.id for peer in names.nodes} for names in told] == [live] * 21


def test_who_enrols_after_the_naming_gives_its_data_all_the_same() -> None:
    """The start comes late to three nodes, over a silent one: they wait for names, and have said that they had no data
    yet."""
    simulation = far_ring(24, 3)
    for index in (5, 6, 17):
        simulation.silence(simulation.nodes[index])
    answer = Round(simulation, requester=1).answer()
    check_answer(simulation, answer)
    assert answer.contributors == 21
    assert all(missing.reason == "unreachable" for missing in answer.missing)


@pytest.mark.parametrize("seed", cases(range(1, 3), range(3, 25)))
@pytest.mark.parametrize("fail", [Simulation.silence, Simulation.kill])
def test_nodes_that_fail_around_the_naming_cost_their_data_at_most(
    seed: int, fail: Callable[[Simulation, Place], None]
) -> None:
    rng = random.Random(seed)
    count = rng.randrange(18, 40)
    simulation = far_ring(count, seed)
    victims = rng.sample([place for place in simulation.nodes if place.index != 1], 2)
    round_ = Round(simulation, requester=1)
    for victim in victims:
        simulation.after(rng.uniform(0.0, 1.2), partial(fail, simulation, victim))
    answer = round_.answer()
    check_answer(simulation, answer)
    assert answer.contributors >= count - 2


def test_a_node_that_does_not_hear_the_names_is_in_the_answer(
    told: list[NameNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody swaps with it, and its data is left over."""
    simulation = far_ring(24, 3)
    deaf = simulation.nodes[9].id
    named = Participant.named
    monkeypatch.setattr(Participant, "named", lambda self, names: self.host.id == deaf or named(self, names))
    answer = Round(simulation, requester=1).answer()
    check_answer(simulation, answer)
    assert (answer.outcome, answer.contributors, len(told)) == ("complete", 24, 23)


@pytest.mark.parametrize("seed", [4, 5])  # a neighbour of the requester, and a node that it does not know
def test_a_node_that_is_not_named_is_in_the_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = far_ring(24, seed)
    unnamed = simulation.nodes[9].id
    enrolled = Requester.enrolled

    def late(requester: Requester, peer: PeerRef, message: Enrolled) -> None:
        if peer.id == unnamed and not requester._is_named:
            simulation.after(0.25, partial(late, requester, peer, message))
        else:
            enrolled(requester, peer, message)

    monkeypatch.setattr(Requester, "enrolled", late)
    answer = Round(simulation, requester=1).answer()
    check_answer(simulation, answer)
    assert (answer.outcome, answer.contributors) == ("complete", 24)


def test_one_large_value_among_small_ones_has_all_begin_anew(told: list[NameNodes]) -> None:
    """Whatever the trees of the small ones hold by then is not counted twice. A value that is the requester's own or
    its neighbour's is known to it; of another one it may not hear."""
    for large in (1, 2, 9):
        simulation = aggregation_ring(30, 5, network=FREE, latency=ConstantLatency(L_S), check_every=10)
        aggregation_of(simulation, large).data.padding_bytes = LARGE
        answer = Round(simulation, requester=1).answer()
        check_answer(simulation, answer)
        assert (answer.outcome, answer.contributors) == ("complete", 30), large
        if large == 1:
            assert len(told) == 30


def test_nodes_of_a_round_over_small_values_are_not_named(told: list[NameNodes]) -> None:
    simulation = aggregation_ring(30, 5, network=FREE, latency=ConstantLatency(L_S))
    answer = Round(simulation, requester=1).answer()
    assert answer.outcome == "complete" and not told


@pytest.mark.parametrize("count", cases([20], [40]))
def test_large_groups_of_a_larger_ring_go_in_pieces(count: int) -> None:
    sink = ListSink()
    simulation = ring_of_groups(count, 1, sink=sink)
    assert check_groups(simulation, Round(simulation, requester=1, query=COUNTS)) == list(range(count))
    joined = [line for line in sink.of_kind("aggregation.pieces_finished") if line["outcome"] == "joined"]
    assert [line["nodes"] for line in joined] == [count]


@pytest.mark.parametrize("seed", cases([1], [2, 3]))
def test_a_node_that_fails_has_all_of_a_larger_ring_swap_whole_values(seed: int) -> None:
    simulation = ring_of_groups(24, seed)
    victim = simulation.nodes[random.Random(seed).randrange(2, 24)]
    round_ = Round(simulation, requester=1, query=COUNTS)
    simulation.after(0.6, lambda: simulation.silence(victim))
    assert len(check_groups(simulation, round_)) >= 23


def test_no_more_pieces_are_exchanged_at_once_than_a_node_has_places_for() -> None:
    """Also where slow links keep exchanges open whose piece is here (seed 4; `Pieces.validate` counts them)."""
    sink = ListSink()
    simulation = ring_of_groups(40, 4, sink=sink)
    rng = random.Random(4)
    for place in rng.sample(simulation.nodes, 4):
        place.port.set_rates(2e5, 2e5)
    assert check_groups(simulation, Round(simulation, requester=1, query=COUNTS)) == list(range(40))
    assert [line for line in sink.of_kind("aggregation.pieces_finished") if line["outcome"] == "joined"]


def test_pieces_that_find_no_place_are_exchanged_when_there_is_one() -> None:
    """More nodes than a node may have swaps with at once."""
    sink = ListSink()
    simulation = ring_of_groups(40, 2, sink=sink)
    for place in simulation.nodes:
        swaps = place.node.swaps
        swaps.reconfigure(swaps.config.model_copy(update={"outbound_sessions_max": 5, "inbound_sessions_max": 5}))
    assert check_groups(simulation, Round(simulation, requester=1, query=COUNTS)) == list(range(40))
    assert [line for line in sink.of_kind("aggregation.pieces_finished") if line["outcome"] == "joined"]
