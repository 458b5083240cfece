"""One member of a simulated ring lies about a round: the answer is right or says that it is partial."""

from __future__ import annotations

import pytest

from peerd.sim.hostile.member import Party
from peerd.sim.simulation import Simulation
from protocols.aggregation.front.hostile import (
    BEHAVIOURS,
    EndlessRounds,
    GivesGarbage,
    InventsContributors,
    NeverSwaps,
    OffersMore,
    RefusesEverybody,
    RoundBehaviour,
    StartsDirectly,
    StopsDirectly,
)
from tests.support.aggregation import Round, aggregation_plugins, check_answer

COUNT, LIAR = 5, 3
READY_S = 60.0
LIES_ABOUT_ITSELF = (GivesGarbage, InventsContributors, NeverSwaps)


def ring_with(kind: type[RoundBehaviour], liar: int = LIAR) -> Simulation:
    """A calm ring of five, one of which misbehaves in that way."""
    simulation = Simulation(11, plugins=aggregation_plugins)
    party = Party(simulation, {liar: [kind]})
    simulation.start(COUNT, spacing_s=0.2)
    simulation.run_for(COUNT * 0.2)
    simulation.run_until(simulation.is_ready, READY_S)
    simulation.run_for(5.0)
    party.begin()
    return simulation


def accused(simulation: Simulation) -> set[int]:
    """Whom anybody has said to break the protocol."""
    return {about.id for _, _, about, _ in simulation.misbehaviours}


@pytest.mark.parametrize("how", [name for name, kind in BEHAVIOURS.items() if kind not in LIES_ABOUT_ITSELF])
def test_what_one_member_says_costs_nobody_elses_data(how: str) -> None:
    kind = BEHAVIOURS[how]
    assert issubclass(kind, RoundBehaviour)
    simulation = ring_with(kind)
    if kind is EndlessRounds:
        simulation.run_for(60.0)
    answer = Round(simulation).answer()
    check_answer(simulation, answer)
    assert answer.expected == COUNT
    honest = {place.id for place in simulation.honest_nodes()}
    assert honest <= set(answer.contributor_ids)
    liar = simulation.nodes[LIAR].id
    assert accused(simulation) <= {liar}
    if kind in (StopsDirectly, StartsDirectly):
        assert accused(simulation), "it lost its links"
    if kind is OffersMore:
        assert [each.node for each in answer.rejected] == [liar]
        assert any("was rejected" in warning for warning in answer.warnings)
    simulation.run_for(10)
    assert Round(simulation, requester=1).answer().expected == COUNT


@pytest.mark.parametrize("kind", LIES_ABOUT_ITSELF, ids=lambda kind: kind.name)
def test_a_member_that_spoils_its_own_swaps_makes_answers_partial_at_most(kind: type[RoundBehaviour]) -> None:
    simulation = ring_with(kind)
    everybody = {place.id for place in simulation.nodes}
    honest = {place.id for place in simulation.honest_nodes()}
    for requester in (0, 1, 2):
        answer = Round(simulation, requester=requester).answer()
        named = set(answer.contributor_ids)
        assert named <= everybody, "nobody who does not exist"
        assert honest <= named or answer.outcome == "partial"
        assert answer.contributors + answer.missing_count == answer.expected == COUNT
    assert accused(simulation) <= {simulation.nodes[LIAR].id}


@pytest.mark.parametrize("liar", range(1, COUNT))
def test_whom_a_member_refuses_is_asked_by_the_requester(liar: int) -> None:
    """It answers every invitation with NO: I have your data. Those that have nobody else to swap with are pruned."""
    simulation = ring_with(RefusesEverybody, liar)
    answer = Round(simulation).answer()
    check_answer(simulation, answer)
    assert answer.expected == COUNT
    assert {place.id for place in simulation.nodes if place.index != liar} <= set(answer.contributor_ids)
