"""One member of a simulated ring lies about a round: the answer is right or says that it is partial."""

from __future__ import annotations

import pytest

from peerd.messages import PeerRef
from peerd.sim.simulation import Simulation
from peerd.testing.simulation import ring
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.messages import (
    AnswerKind,
    Enrolled,
    Invite,
    InviteAnswer,
    ResultReady,
    StartRound,
    StopRound,
)
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.statements import stop_statement
from tests.support.aggregation import Round, check_answer, number_extractor

COUNT, LIAR = 5, 3


class Liar(Aggregation):
    """Takes part, and tells the others what is not so, ``how`` the test says."""

    how = ""

    def lie(self, start: StartRound) -> None:
        """Say it, as soon as the round is known."""
        host, others = self.host, [peer for peer in self.host.leaf_set().members() if peer.id != self.host.id]
        round_id, asker = start.round_id, start.requester
        match self.how:
            case "stops by broadcast":
                host.broadcast(StopRound(round_id, host.sign(stop_statement(round_id))))
            case "stops directly":
                for peer in others:
                    host.send(peer, StopRound(round_id))
            case "offers what it has not":
                host.send(asker, ResultReady(round_id, COUNT, 100))
                host.send(asker, ResultReady(round_id, 15, 100))
            case "declines for others":
                for _ in others:
                    host.route(asker.id, Enrolled(round_id, "no data"))
            case "answers for others":
                for peer in others:
                    host.route(peer.id, InviteAnswer(round_id, 0, 0))
            case "starts rounds directly":
                for number in range(300):
                    host.send(others[number % len(others)], start)

    def on_invite(self, invite: Invite, source: PeerRef) -> None:
        """Say that it has everybody's data."""
        if self.how == "refuses everybody":
            self.host.send(source, InviteAnswer(invite.round_id, invite.level, AnswerKind.NO))
        else:
            super().on_invite(invite, source)

    def _start(self, start: StartRound) -> None:
        super()._start(start)
        self.lie(start)


def ring_with(how: str, liar: int = LIAR) -> Simulation:
    def plugins(index: int) -> list[Aggregation]:
        plugin = Liar(AggregationConfig()) if index == liar else Aggregation(AggregationConfig())
        if isinstance(plugin, Liar):
            plugin.how = how
        plugin.extractor = number_extractor(index)
        return [plugin]

    simulation = ring(COUNT, 11, plugins=plugins)
    simulation.misbehaviour_is_failure = False
    return simulation


@pytest.mark.parametrize(
    "how",
    [
        "stops by broadcast",
        "stops directly",
        "offers what it has not",
        "declines for others",
        "answers for others",
        "starts rounds directly",
    ],
)
def test_what_one_member_says_costs_nobody_elses_data(how: str) -> None:
    simulation = ring_with(how)
    answer = Round(simulation).answer()
    check_answer(simulation, answer)
    assert answer.expected == COUNT
    honest = {place.id for place in simulation.nodes if place.index != LIAR}
    assert honest <= set(answer.contributor_ids)
    accused = {about.id for _, _, about, _ in simulation.misbehaviours}
    assert accused <= {simulation.nodes[LIAR].id}
    if how in ("stops directly", "starts rounds directly"):
        assert accused, "it lost its links"
    if how == "offers what it has not":
        assert [each.node for each in answer.rejected] == [simulation.nodes[LIAR].id]
        assert any("was rejected" in warning for warning in answer.warnings)
    simulation.run_for(10)
    assert Round(simulation, requester=1).answer().expected == COUNT


@pytest.mark.parametrize("liar", range(1, COUNT))
def test_whom_a_member_refuses_is_asked_by_the_requester(liar: int) -> None:
    """It answers every invitation with NO: I have your data. Those that have nobody else to swap with are pruned."""
    simulation = ring_with("refuses everybody", liar)
    answer = Round(simulation).answer()
    check_answer(simulation, answer)
    assert answer.expected == COUNT
    assert {place.id for place in simulation.nodes if place.index != liar} <= set(answer.contributor_ids)
