"""Rounds over more groups than a value holds as a whole: the same swaps, exchanges and answers, of values in slices."""

from __future__ import annotations

import pytest

from peerd.sim.simulation import Simulation
from protocols.aggregation.answer import Answer
from protocols.aggregation.groups import GROUPS_HARD_MAX
from protocols.aggregation.messages import PieceTold
from protocols.aggregation.participating import SLICED_ROUNDS_MAX
from protocols.aggregation.query import parse_query
from tests.support.aggregation import Round, aggregation_of
from tests.support.aggregation_groups import COUNTS, L_S, check_groups, ring_of_groups
from tests.support.long_cases import cases
from tests.support.sinks import ListSink

MANY = parse_query("count by key", groups_max=GROUPS_HARD_MAX + 1)


def without_padding(simulation: Simulation) -> Simulation:
    for place in simulation.nodes:
        aggregation_of(simulation, place.index).data.padding_bytes = 0
    return simulation


@pytest.mark.parametrize("count", cases([2, 5], [3, 4, 8, 17, 20]))
def test_values_in_slices_go_whole_or_in_pieces_as_others_do(count: int) -> None:
    sink = ListSink()
    simulation = ring_of_groups(count, seed=count, sink=sink)
    plain = Round(simulation, requester=1, query=COUNTS)
    check_groups(simulation, plain)
    simulation.run_for(10.0)
    told = len(sink.of_kind("aggregation.pieces_finished"))
    sliced = Round(simulation, requester=1, query=MANY)
    assert check_groups(simulation, sliced) == list(range(count))
    assert plain.answers[0].value == sliced.answers[0].value
    assert len(sink.of_kind("aggregation.pieces_finished")) - told == (0 if count < 4 else count + 1)
    assert sliced.answers[0].duration_s < plain.answers[0].duration_s + 6 * L_S


def test_few_groups_ride_although_there_may_be_many() -> None:
    simulation = without_padding(ring_of_groups(8, seed=2, pieces_from=1 << 20))
    round_ = Round(simulation, query=MANY)
    assert check_groups(simulation, round_) == list(range(8))
    assert PieceTold.TYPE_ID not in simulation.traffic()
    assert PieceTold.TYPE_ID not in simulation.traffic()
    assert round_.answers[0].duration_s < 12 * L_S


@pytest.mark.parametrize("seed", cases([1, 2], range(3, 20)))
def test_a_node_that_dies_takes_its_own_data_only(seed: int) -> None:
    simulation = ring_of_groups(8, seed=seed)
    round_ = Round(simulation, requester=0, query=MANY)
    simulation.run_for((4 + seed % 7) * L_S)
    simulation.kill(simulation.nodes[3 + seed % 5])
    assert len(check_groups(simulation, round_)) >= 7


def test_nothing_is_held_when_a_round_is_over() -> None:
    simulation = ring_of_groups(5, seed=1)
    round_ = Round(simulation, query=MANY)
    simulation.run_for(8 * L_S)
    parts = [
        part
        for place in simulation.nodes
        for part in aggregation_of(simulation, place.index).participating.participants.values()
    ]
    requester = aggregation_of(simulation, 0).requesting.requesters[round_.round_id]
    assert len(parts) == 5
    assert any(part.own is not None for part in parts)
    check_groups(simulation, round_)
    simulation.run_for(5.0)
    assert all(part.is_over and part.own is None and part.aggregate is None for part in parts)
    assert requester.own_aggregate is None


def test_a_node_takes_part_in_few_rounds_of_many_groups_at_a_time() -> None:
    simulation = ring_of_groups(4, seed=1)
    rounds = [Round(simulation, requester=at, query=MANY) for at in range(SLICED_ROUNDS_MAX + 1)]
    rounds.append(Round(simulation, requester=3, query=COUNTS))
    answers: list[Answer] = [each.answer() for each in rounds]
    assert [answer.outcome for answer in answers].count("complete") >= SLICED_ROUNDS_MAX
    assert answers[-1].outcome == "complete", "one over fewer groups is not in the way of these"
    reasons = {missing.reason for answer in answers for missing in answer.missing}
    assert all("rounds of more than" in reason for reason in reasons)
    assert len(reasons) == 1


def test_who_has_no_data_of_its_own_fetches_a_result() -> None:
    simulation = ring_of_groups(5, seed=4)
    plugin = aggregation_of(simulation, 2)
    plugin.data.extractor = None
    round_ = Round(simulation, requester=2, query=MANY)
    assert check_groups(simulation, round_) == [0, 1, 3, 4]
    assert round_.answers[0].missing[0].node == simulation.nodes[2].id


def test_rounds_of_many_groups_whose_requester_is_gone_are_in_nobodys_way() -> None:
    """They wait for an end that nobody says, until their deadline: the oldest makes room, as any idle round does."""
    simulation = ring_of_groups(5, seed=1)
    left = [Round(simulation, requester=4, query=MANY, deadline_s=3600.0) for _ in range(SLICED_ROUNDS_MAX)]
    simulation.run_for(8 * L_S)
    simulation.kill(simulation.nodes[4])
    simulation.run_for(120.0)
    open_rounds = aggregation_of(simulation, 1).participating.participants
    assert {each.round_id for each in left} == set(open_rounds)
    assert check_groups(simulation, Round(simulation, requester=0, query=MANY)) == [0, 1, 2, 3]
    assert len(open_rounds) == SLICED_ROUNDS_MAX
