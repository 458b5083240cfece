"""The hostile nodes of the simulator: each behaviour does its harm, and honest nodes stay right about each other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from peerd.api import LookupResult
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.node.node import SENT
from peerd.overlay.messages import FailureNotice, JoinReply, JoinRequest, LeafSetProbe
from peerd.sim.checkers import QUIESCENT, LeafSetConsistency, RingUnity
from peerd.sim.hostile.member import Behaviour, HostileNode, Party
from peerd.sim.hostile.neighbours import Colluders, FalseDeaths, HalfDeaf
from peerd.sim.hostile.noise import Flood, Malformed, Replay, SilentStreams
from peerd.sim.hostile.routing import Astray, BlackHole, FalseRoot
from peerd.sim.rng import random_id
from peerd.sim.simulation import Simulation
from peerd.sim.swarm.liars import KINDS, behaviours_by_name
from peerd.sim.workload import LookupReport, Workload
from peerd.sim.world import SimulationFailure
from peerd.testing.simulation import always
from peerd.wire.codec import Decoded, encode

COUNT = 12
READY_S = 60.0
LIAR, FRIEND = 3, 8


def ring_among(*kinds: type[Behaviour], count: int = COUNT, liars: Sequence[int] = (LIAR,)) -> tuple[Simulation, Party]:
    """A calm ring in which all checkers watch, and some nodes misbehave from now on."""
    simulation = Simulation(5, checkers=always(), check_every=8)
    party = Party(simulation, {index: list(kinds) for index in liars})
    simulation.start(count, spacing_s=0.2)
    simulation.run_for(count * 0.2)
    simulation.run_until(simulation.is_ready, READY_S)
    simulation.run_for(60.0)
    party.begin()
    return simulation, party


def accused(simulation: Simulation) -> set[NodeId]:
    """Whom anybody has said to break the protocol."""
    return {about.id for _, _, about, _ in simulation.misbehaviours}


def probed(simulation: Simulation, party: Party, duration_s: float = 60.0) -> LookupReport:
    """Messages to random keys meanwhile, each of which has arrived, or is lost."""
    workload = Workload(simulation, 5.0, excuses=party.has_had)
    workload.start()
    simulation.run_for(duration_s)
    workload.stop()
    simulation.run_for(10.0)
    return workload.finish()


def looked_up(simulation: Simulation, count: int = 60) -> list[LookupResult]:
    """Random keys from random honest nodes."""
    found: list[LookupResult] = []
    for _ in range(count):
        place = simulation.rng.choice(simulation.honest_nodes())
        place.node.overlay.lookup(random_id(simulation.rng), found.append, 10.0)
    simulation.run_for(12.0)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_honest_nodes_stay_right_about_each_other(kind: type[Behaviour]) -> None:
    simulation, party = ring_among(kind, liars=(LIAR, FRIEND))
    report = probed(simulation, party)
    assert report.wrong == report.lost == 0 and report.right > report.sent / 2
    newcomer = simulation.add_node()
    simulation.run_for(0.1)
    simulation.run_until(lambda: newcomer.node.is_ready, READY_S)
    simulation.run_for(30.0)
    simulation.check(checker() for checker in QUIESCENT)
    assert accused(simulation) <= party.ids


@pytest.mark.parametrize("kind", [Flood, Malformed], ids=lambda kind: kind.name)
def test_who_floods_or_sends_nonsense_is_accused(kind: type[Behaviour]) -> None:
    simulation, party = ring_among(kind)
    simulation.run_for(60.0)
    assert accused(simulation) == party.ids


@pytest.mark.parametrize("kind", [BlackHole, Astray], ids=lambda kind: kind.name)
def test_messages_through_the_liar_do_not_arrive_as_they_should(kind: type[Behaviour]) -> None:
    simulation, party = ring_among(kind)
    report = probed(simulation, party)
    assert report.excused > 0 and report.right + report.excused == report.sent


def test_a_false_root_misleads_lookups_and_nobody_else_does() -> None:
    simulation, party = ring_among(FalseRoot, count=40, liars=(LIAR, FRIEND, 20, 30))
    oracle = simulation.oracle()
    wrong = [each for each in looked_up(simulation, 300) if each.root is None or each.root.id != oracle.root(each.key)]
    assert wrong and all(result.root is not None and result.root.id in party.ids for result in wrong)


def test_colluders_name_each_other() -> None:
    simulation, party = ring_among(Colluders, liars=(LIAR, FRIEND))
    node = simulation.nodes[LIAR].node
    assert isinstance(node, HostileNode)
    reply = JoinReply(True, simulation.nodes[1].peer, (), (), ())
    told = node.behaviours[0].tells(simulation.nodes[0].peer, reply)
    assert isinstance(told, JoinReply) and told.next_hop is None
    assert {peer.id for peer in (*told.smaller, *told.larger)} <= party.ids


def test_one_liar_makes_nobody_dead_and_nobody_missing() -> None:
    simulation, _ = ring_among(FalseDeaths)
    simulation.run_for(60.0)
    honest = {place.id for place in simulation.honest_nodes()}
    verdicts = [
        note.verdict
        for place in simulation.honest_nodes()
        for peer in place.node.overlay.state.history.peers()
        if peer in honest
        for note in place.node.overlay.state.history.of(peer)
    ]
    assert set(verdicts) <= {"accused", "suspected", "cleared"}
    assert not any(place.node.overlay.missing_members() for place in simulation.honest_nodes())
    assert not any(place.node.traffic[FailureNotice.TYPE_ID][SENT] for place in simulation.honest_nodes())


def test_who_is_half_deaf_hears_half_of_the_others() -> None:
    simulation, _ = ring_among(HalfDeaf)
    liar = simulation.nodes[LIAR].node
    assert isinstance(liar, HostileNode)
    question: Decoded = (JoinRequest(), 1, False)
    heard = {liar.behaviours[0].hears(place.peer, encode(question[0]), question) for place in simulation.nodes}
    assert heard == {True, False}


def test_what_is_replayed_is_delivered_once() -> None:
    simulation, party = ring_among(Replay)
    report = probed(simulation, party)
    assert report.duplicates == 0 and report.sent > 0
    simulation.check(checker() for checker in QUIESCENT)


def test_streams_that_say_nothing_are_closed() -> None:
    simulation, _ = ring_among(SilentStreams)
    simulation.run_for(600.0)
    held = max(len(place.driver.streams) for place in simulation.honest_nodes())
    assert held <= 30, "a stream is opened every three seconds, and never closed by who opened it"


def test_a_party_that_has_not_begun_is_honest() -> None:
    simulation = Simulation(5, checkers=always(), check_every=8)
    party = Party(simulation, {LIAR: [BlackHole, Colluders]})
    simulation.start(COUNT, spacing_s=0.2)
    simulation.run_for(READY_S)
    report = probed(simulation, party)
    assert report.right == report.sent and not simulation.misbehaviours


def test_who_is_itself_the_root_that_it_would_ask_asks_nobody() -> None:
    simulation, _ = ring_among(Behaviour, count=4)
    liar, friend = simulation.nodes[LIAR].node, simulation.nodes[0].peer
    assert isinstance(liar, HostileNode)
    before = len(liar.requests)
    liar.ask(liar.peer, LeafSetProbe(True, (), (), (), ()))
    assert len(liar.requests) == before
    liar.ask(friend, LeafSetProbe(True, (), (), (), ()))
    assert len(liar.requests) == before + 1


def test_protocols_bring_behaviours() -> None:
    names = set(behaviours_by_name(("aggregation",)))
    assert names > {kind.name for kind in KINDS} and "gives garbage" in names


# Checkers among hostile nodes


def test_a_leaf_set_may_lack_a_hostile_node_but_no_honest_one() -> None:
    simulation, _ = ring_among(BlackHole, count=40)
    first = simulation.honest_nodes()[0]
    checker = LeafSetConsistency()
    assert checker.check(simulation) == []
    side = simulation.oracle().neighbours(first.id, 8)
    neighbour = simulation.places[side[1][2]]
    state = first.node.overlay.state
    state.leaves.remove(neighbour.id)
    assert any("misses" in text for text in checker.check(simulation))
    simulation.hostile[neighbour.index] = simulation.hostile[LIAR]
    assert not any("misses" in text for text in checker.check(simulation))


def test_a_leaf_set_stays_open_where_only_a_hostile_node_could_close_it() -> None:
    """Seed 9001 of the streams' swarm: 16 honest nodes and two half-deaf ones, which come and go for each of them."""
    simulation, _ = ring_among(BlackHole, count=18)
    first = simulation.honest_nodes()[0]
    leaves, checker = first.node.overlay.state.leaves, LeafSetConsistency()
    beyond = next(place for place in simulation.nodes if place.id not in leaves and place is not first)
    end = simulation.places[leaves.larger()[-1].id]
    leaves.remove(end.id)
    for hostile, is_told in ((end, True), (beyond, False)):
        simulation.hostile[hostile.index] = simulation.hostile[LIAR]
        assert any("not complete" in text for text in checker.check(simulation)) == is_told
    leaves.remove(leaves.smaller()[-2].id)
    assert any("not complete" in text for text in checker.check(simulation))


def test_a_ring_that_lacks_an_honest_node_is_told_though_hostile_ones_are_passed_over() -> None:
    simulation, _ = ring_among(BlackHole)
    assert RingUnity().check(simulation) == []
    ids = [node_id for node_id in simulation.oracle().ids if not simulation.is_hostile(node_id)]
    simulation.places[ids[0]].node.overlay.state.leaves.remove(ids[1])
    assert RingUnity().check(simulation) != []


def test_only_hostile_nodes_may_be_said_to_misbehave() -> None:
    simulation, _ = ring_among(BlackHole)
    error = ProtocolError("nonsense", "said by the test")
    judge = simulation.honest_nodes()[0].driver
    simulation.misbehaved(judge, simulation.nodes[LIAR].peer, error)
    with pytest.raises(SimulationFailure, match="misbehaved"):
        simulation.misbehaved(judge, simulation.honest_nodes()[1].peer, error)
