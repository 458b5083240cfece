"""Rounds too large for all to enrol, in small rings whose limit is lower: a sample of the contributors is asked."""

from __future__ import annotations

from math import comb
from typing import Final

import pytest

from peerd.api import Plugin
from peerd.ids import NodeId
from peerd.overlay.messages import Route
from peerd.sim.hostile.member import Party
from peerd.sim.simulation import Simulation
from peerd.wire.codec import decode
from peerd.wire.frames import Frame
from protocols.aggregation import requesting, spotcheck
from protocols.aggregation.answer import Answer
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.front import hostile
from protocols.aggregation.front.hostile import InventsContributors
from protocols.aggregation.messages import ConfirmContribution
from protocols.aggregation.participant import TELL_TRIES_MAX
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.spotcheck import CHECK_S_MAX, SAMPLE_MAX, SILENT_SHARE_MAX, Checked
from protocols.aggregation.statements import confirm_statement
from tests.support.aggregation import Round, check_answer, number_extractor, total
from tests.support.amplification import overheard

COVERED, LARGE = 12, 40
"""A ring that leaf sets cover, so that who is expected is exact; and one where it is estimated."""
READY_S: Final = 60.0


def plugins(index: int) -> list[Plugin]:
    """As for a ring that is too large for a census, however small it is."""
    plugin = Aggregation(AggregationConfig(census_max=0))
    plugin.data.extractor = number_extractor(index)
    return [plugin]


def calm_ring(count: int, seed: int = 11, liars: tuple[int, ...] = ()) -> Simulation:
    """A settled ring in which some invent contributors from now on."""
    simulation = Simulation(seed, plugins=plugins)
    party = Party(simulation, {liar: [InventsContributors] for liar in liars})
    simulation.start(count, spacing_s=0.2)
    simulation.run_for(count * 0.2)
    simulation.run_until(simulation.is_ready, READY_S)
    simulation.run_for(5.0)
    party.begin()
    return simulation


def invented(simulation: Simulation, answer: Answer) -> int:
    """How many of the contributors that an answer names do not exist."""
    return len(set(answer.contributor_ids) - {place.id for place in simulation.nodes})


# The bound


def passes(asked: int, share: float) -> float:
    """The chance that a result is taken of which so large a share is silent."""
    most = int(asked * SILENT_SHARE_MAX)
    assert not Checked(asked, asked - most).is_refuted and Checked(asked, asked - most - 1).is_refuted
    return sum(comb(asked, silent) * share**silent * (1 - share) ** (asked - silent) for silent in range(most + 1))


def test_of_results_with_one_in_a_hundred_invented_one_in_a_thousand_may_look_complete() -> None:
    assert 0.99**SAMPLE_MAX < 0.001 < 0.99 ** (SAMPLE_MAX - 1)


def test_what_is_refuted_has_more_silent_contributors_than_can_have_died() -> None:
    assert passes(SAMPLE_MAX, 0.22) < 0.001
    assert 1 - passes(SAMPLE_MAX, 0.10) < 1e-7


# Rounds


@pytest.mark.parametrize("count", [COVERED, LARGE])
def test_all_who_are_asked_confirm_an_honest_result(count: int) -> None:
    simulation = calm_ring(count)
    answer = Round(simulation).answer()
    check_answer(simulation, answer)
    assert answer.confirmed == answer.sampled == answer.contributors - 1 == count - 1
    assert not answer.warnings
    assert count == LARGE or answer.outcome == "complete"


def test_no_more_are_asked_than_the_sample_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spotcheck, "SAMPLE_MAX", 8)
    simulation = calm_ring(LARGE)
    with overheard() as heard:
        answer = Round(simulation).answer()
    assert answer.contributors == LARGE and answer.confirmed == answer.sampled == 8
    requester = simulation.nodes[0].peer
    asked = [frame for source, _, frame in heard.frames if source == requester and asks(frame)]
    assert len(asked) == 8, "each once, as everybody answers in time"


def asks(frame: Frame) -> bool:
    """Whether a node is asked in it whether it takes part."""
    decoded = decode(frame)
    return decoded is not None and isinstance(decoded[0], Route) and decoded[0].type_id == ConfirmContribution.TYPE_ID


@pytest.fixture
def without_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requester names nobody, as in a larger ring: where it does, nobody takes invented ones."""
    monkeypatch.setattr(requesting, "PLACED_MAX", 0)


@pytest.mark.usefixtures("without_places")
@pytest.mark.parametrize("count", [COVERED, LARGE])
def test_a_result_with_many_invented_contributors_is_not_taken_and_its_givers_are_named(count: int) -> None:
    reasons: list[str] = []
    for seed in range(3):
        simulation = calm_ring(count, seed, liars=(3, 7))
        for requester in (0, 1):
            answer = Round(simulation, requester=requester).answer()
            assert invented(simulation, answer) == 0
            assert answer.confirmed == answer.sampled
            reasons += [each.reason for each in answer.rejected]
            honest = {place.id for place in simulation.honest_nodes()}
            assert honest <= set(answer.contributor_ids) or answer.outcome == "partial"
    assert any("did not say that they take part" in reason for reason in reasons)


@pytest.mark.usefixtures("without_places")
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_with_an_invented_contributor_is_called_complete(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "INVENTED", 1)
    simulation = calm_ring(COVERED, seed, liars=(2, 3))
    found = [Round(simulation, requester=requester).answer() for requester in (0, 1, 5)]
    for answer in found:
        false = invented(simulation, answer)
        assert (false == 0) == (answer.confirmed == answer.sampled)
        assert not false or (answer.outcome == "partial" and "confirmed that they take part" in answer.warnings[0])
    assert any(invented(simulation, answer) for answer in found), "one in twelve may have died: the result is taken"


@pytest.mark.parametrize("seed", range(4))
def test_where_all_nodes_are_named_nobody_swaps_invented_contributors(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without places, a single one is in some answer of each of these seeds, as above."""
    monkeypatch.setattr(hostile, "INVENTED", 1)
    simulation = calm_ring(COVERED, seed, liars=(2, 3))
    for requester in (0, 1, 5):
        answer = Round(simulation, requester=requester).answer()
        assert invented(simulation, answer) == 0
        assert {place.id for place in simulation.honest_nodes()} <= set(answer.contributor_ids)


def test_contributors_that_die_make_an_answer_partial_and_their_data_stays() -> None:
    simulation = calm_ring(COVERED)
    asked = Round(simulation)
    simulation.run_until(lambda: any(each.stage == "checking" for each in asked.progress), limit_s=60.0, poll_s=0.001)
    dead = simulation.nodes[5]
    simulation.kill(dead)
    answer = asked.answer()
    assert dead.id in answer.contributor_ids and not answer.rejected
    assert (answer.sampled, answer.confirmed) == (COVERED - 1, COVERED - 2)
    assert answer.outcome == "partial" and answer.value == total(simulation, answer.contributor_ids)


def test_a_node_confirms_to_the_requester_only_and_not_without_end() -> None:
    simulation = calm_ring(COVERED)
    asked = Round(simulation)
    simulation.run_until(lambda: any(each.stage == "checking" for each in asked.progress), limit_s=60.0, poll_s=0.001)
    plugin = simulation.nodes[5].node.plugins["aggregation"]
    assert isinstance(plugin, Aggregation)
    participant, requester, other = (
        plugin.participating.participants[asked.round_id],
        simulation.nodes[0],
        simulation.nodes[6],
    )
    routed: list[NodeId] = []
    participant.host.route = lambda key, message: routed.append(key)  # type: ignore[method-assign]  # counts only
    statement = confirm_statement(asked.round_id, simulation.nodes[5].id)
    for signer in (other, requester):
        question = ConfirmContribution(asked.round_id, signer.driver.sign("aggregation", statement))
        for _ in range(10):
            plugin.deliver(participant.host.id, question, signer.peer)
    assert routed == [requester.id] * TELL_TRIES_MAX


def test_a_check_that_the_end_of_the_round_cuts_short_refutes_nothing_and_confirms_nothing() -> None:
    simulation = calm_ring(COVERED)
    asked = Round(simulation)
    simulation.run_until(lambda: any(each.stage == "checking" for each in asked.progress), limit_s=60.0, poll_s=0.001)
    asked.plugin.requesting.cancel(asked.round_id)
    answer = asked.answer()
    assert answer.contributors == COVERED and not answer.rejected
    assert (answer.sampled, answer.confirmed, answer.outcome) == (COVERED - 1, 0, "partial")


def test_what_the_requesters_own_tree_holds_is_checked_too_when_nobody_offers_a_result() -> None:
    simulation = calm_ring(COVERED)
    asked = Round(simulation)
    requester = asked.plugin.requesting.requesters[asked.round_id]
    requester.offered = lambda ready, peer: None  # type: ignore[method-assign]  # nobody's offer arrives
    answer = asked.answer()
    assert [each.stage for each in asked.progress].count("checking") == 1
    assert answer.outcome == "complete" and answer.confirmed == answer.sampled == COVERED - 1
    assert answer.duration_s < asked.deadline_s - CHECK_S_MAX, "there would have been time to fetch what is missing"
