"""Walks over simulated rings, and the verdicts on what they find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from peerd.errors import Unavailable
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from peerd.overlay.coordinates import ORIGIN, Coordinate
from peerd.overlay.messages import Reached, ReachReport, ReachRequest, ViewReply
from peerd.overlay.survey.judge import judge
from peerd.overlay.survey.reach import Reachability, ReachTest, plan
from peerd.overlay.survey.survey import WALKS_MAX
from peerd.overlay.survey.walk import NODES_MAX, NodeView, Survey, WalkProgress
from peerd.sim.network import NetworkConfig
from peerd.sim.simulation import Place, Simulation
from peerd.testing.simulation import ring

WALK_LIMIT_S = 120.0
BIG = 300


def walk(
    simulation: Simulation, place: Place, progress: Callable[[WalkProgress], None] = lambda progress: None
) -> Survey:
    """A whole walk from one node."""
    found: list[Survey] = []
    place.node.overlay.survey.walk(found.append, progress)
    simulation.run_until(lambda: bool(found), limit_s=WALK_LIMIT_S)
    assert len(found) == 1
    return found[0]


def linked(simulation: Simulation, place: Place) -> set[NodeId]:
    """Return the nodes with which a node has a link."""
    return {other.id for other in simulation.nodes if other is not place and place.driver.is_linked(other.peer)}


def reach(simulation: Simulation, place: Place, targets_each: int = 64) -> Reachability:
    """A whole test from one node."""
    found: list[Reachability] = []
    survey = walk(simulation, place)
    overlay = place.node.overlay
    host = overlay.state.host
    test = ReachTest(overlay.survey.measure, host.now, host.rng, survey, targets_each, found.append)
    assert test.begin()
    simulation.run_until(lambda: bool(found), limit_s=600.0)
    assert len(found) == 1
    return found[0]


@pytest.fixture(scope="module")
def big() -> Simulation:
    return ring(BIG, seed=5, settle_s=60.0)


def test_a_walk_finds_everybody_and_judges_a_calm_ring_consistent(big: Simulation) -> None:
    seen: list[WalkProgress] = []
    before = linked(big, big.nodes[7])
    survey = walk(big, big.nodes[7], seen.append)
    assert survey.views.keys() == {place.id for place in big.nodes} and not survey.silent
    judgement = judge(survey)
    assert (judgement.problems, judgement.unanswered, judgement.notes) == ([], [], [])
    assert judgement.cycles == [BIG] and judgement.members == sorted(survey.views)
    assert [progress.answered for progress in seen] == list(range(2, BIG + 1))
    assert seen[-1] == WalkProgress(BIG, 0, BIG)
    assert len(linked(big, big.nodes[7]) - before) < 16, "it hangs up on whom it asked only once"
    big.validate()


def test_dead_members_are_unanswered_and_then_forgotten() -> None:
    simulation = ring(60, seed=3, settle_s=60.0)
    for place in simulation.nodes[10:14]:
        simulation.kill(place)
    judgement = judge(walk(simulation, simulation.nodes[0]))
    assert judgement.unanswered and not judgement.problems, judgement
    assert any(simulation.nodes[10].peer.address in line for line in judgement.unanswered)
    simulation.run_for(120.0)
    judgement = judge(walk(simulation, simulation.nodes[0]))
    assert (judgement.problems, judgement.unanswered, judgement.cycles) == ([], [], [56])


def test_two_rings_are_told_from_one() -> None:
    simulation = ring(60, seed=4, settle_s=60.0)
    halves = simulation.nodes[::2], simulation.nodes[1::2]
    simulation.partition(*halves)
    simulation.run_for(180.0)
    judgement = judge(walk(simulation, simulation.nodes[0]))
    assert judgement.cycles == [30], judgement  # the other half is out of sight, and suspected
    assert any("suspect a partition" in note for note in judgement.notes), judgement
    simulation.heal()
    torn = Survey(simulation.nodes[0].id)  # as one walk would see them that knows somebody in each
    for place in simulation.nodes:
        torn.views[place.id] = NodeView(place.peer, place.node.overlay.survey.view())
    judgement = judge(torn)
    assert judgement.cycles == [30, 30]
    assert any("not one ring: the successors form 2 cycles, of 30, 30 nodes" in text for text in judgement.problems)
    assert any("do not list each other, though near" in text for text in judgement.problems)


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 18, 20])
def test_small_rings(count: int) -> None:
    simulation = ring(count, seed=count, settle_s=60.0)
    judgement = judge(walk(simulation, simulation.nodes[-1]))
    assert (judgement.problems, judgement.unanswered, judgement.cycles) == ([], [], [count])


def test_walks_survive_loss() -> None:
    simulation = ring(40, seed=2, network=NetworkConfig(loss=0.05), settle_s=60.0)
    survey = walk(simulation, simulation.nodes[0])
    assert len(survey.views) + len(survey.silent) == 40 and len(survey.views) >= 38


def test_a_walk_can_be_given_up_and_too_many_are_refused() -> None:
    simulation = ring(20, seed=6)
    surveyor = simulation.nodes[0].node.overlay.survey
    found: list[Survey] = []
    walks = [surveyor.walk(found.append, lambda progress: None) for _ in range(WALKS_MAX)]
    with pytest.raises(Unavailable, match="4 walks"):
        surveyor.walk(found.append, lambda progress: None)
    for each in walks:
        each.cancel()
        surveyor.walk_over()
    simulation.run_for(30.0)
    assert found == []
    assert len(walk(simulation, simulation.nodes[0]).views) == 20


def test_a_member_that_invents_nodes_cannot_make_a_walk_endless() -> None:
    simulation = ring(3, seed=1)
    liar = simulation.nodes[1].node.overlay.survey
    honest = liar.view
    invented = iter(range(1, 1 << 20))

    def view() -> ViewReply:
        names = tuple(PeerRef(NodeId(next(invented)), "10.9.9.9", 9) for _ in range(8))
        return replace(honest(), smaller=names, larger=names)

    liar.view = view  # type: ignore[method-assign]  # the lie
    survey = walk(simulation, simulation.nodes[0])
    assert len(survey.silent) == 8 and len(survey.views) == 3
    assert NODES_MAX < 1 << 20


# Verdicts on views made by hand


def made(*numbers: int) -> dict[int, NodeView]:
    """The right views of a ring of these nodes, at most 17 of them."""
    peers = {number: PeerRef(NodeId(number << 120), "127.0.0.1", 7000 + number) for number in sorted(numbers)}
    views = {}
    for position, number in enumerate(sorted(numbers)):
        around = [peers[other] for other in sorted(numbers)]
        others = around[position + 1 :] + around[:position]
        views[number] = NodeView(
            peers[number],
            ViewReply(
                True,
                True,
                False,
                True,
                True,
                tuple(others[::-1][:8]),
                tuple(others[:8]),
                ORIGIN,
                float(len(peers)),
                False,
            ),
        )
    return views


def survey_of(views: dict[int, NodeView], silent: tuple[PeerRef, ...] = ()) -> Survey:
    by_id = {view.peer.id: view for view in views.values()}
    return Survey(next(iter(by_id)), by_id, {peer.id: peer for peer in silent})


def changed(views: dict[int, NodeView], number: int, **says: object) -> dict[int, NodeView]:
    view = views[number]
    return {**views, number: NodeView(view.peer, replace(view.says, **says))}


def test_the_right_views_have_no_fault() -> None:
    judgement = judge(survey_of(made(1, 2, 3, 4, 5)))
    assert judgement.problems == judgement.unanswered == judgement.notes == []


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"may_serve": False}, "00000003.*may not serve"),
        ({"is_ready": False}, "still joining"),
        ({"is_leaving": True}, "has left and is still listed by"),
        ({"is_complete": False}, "incomplete leaf set"),
    ],
)
def test_a_node_that_does_not_serve(says: dict[str, bool], words: str) -> None:
    problems = judge(survey_of(changed(made(1, 2, 3, 4), 3, **says))).problems
    assert len(problems) == 1 and words.split(".*")[-1] in problems[0]


def test_a_leaf_set_that_is_not_mutual() -> None:
    views = made(1, 2, 3, 4, 5)
    gone = views[4].peer

    def without(side: tuple[PeerRef, ...]) -> tuple[PeerRef, ...]:
        return tuple(peer for peer in side if peer != gone)

    says = views[2].says
    problems = judge(survey_of(changed(views, 2, smaller=without(says.smaller), larger=without(says.larger)))).problems
    assert problems == [f"{gone} lists {views[2].peer}, which does not list it"]


def test_a_listed_node_that_is_silent_makes_the_answer_partial() -> None:
    views = made(1, 2, 3, 4, 5)
    silent = views.pop(4).peer
    judgement = judge(survey_of(views, (silent,)))
    assert judgement.problems == [] and len(judgement.unanswered) == 1
    assert "and is listed by" in judgement.unanswered[0] and "1 more" in judgement.unanswered[0]


def test_a_silent_entry_of_the_own_table_is_only_a_note() -> None:
    judgement = judge(survey_of(made(1, 2, 3), (PeerRef(NodeId(9), "127.0.0.1", 1),)))
    assert judgement.unanswered == [] and "1 peers" in judgement.notes[0]


# Reach


def test_everybody_reaches_everybody() -> None:
    simulation = ring(20, seed=8, settle_s=60.0)
    result = reach(simulation, simulation.nodes[4])
    assert len(result.reached) == 20 * 19 and not result.failed and not result.untested
    assert result.broken() == [] and result.dead() == []
    assert all(rtt_s is not None and rtt_s > 0 for rtt_s in result.reached.values())
    simulation.validate()


def test_a_pair_that_cannot_talk_is_named_and_a_dead_node_is_told_apart() -> None:
    simulation = ring(20, seed=9, settle_s=60.0)
    one, other, dead = simulation.nodes[3], simulation.nodes[11], simulation.nodes[15]
    simulation.network.cut(one.index, other.index)
    simulation.silence(dead)
    result = reach(simulation, simulation.nodes[0])
    assert set(result.broken()) == {(one.id, other.id), (other.id, one.id)}
    assert result.dead() == [dead.id]


def test_a_large_ring_is_sampled_evenly() -> None:
    simulation = ring(10)
    rng = simulation.rng
    ids = [NodeId(number) for number in range(100)]
    pairs = [(node, target) for node, targets in plan(ids, ids, 7, rng) for target in targets]
    assert len(pairs) == len(set(pairs)) == 700 and all(node != target for node, target in pairs)
    assert all(sum(target == node for _, target in pairs) == 7 for node in ids)
    assert plan(ids[:1], ids[:1], 64, rng) == []
    assert all(len(targets) == 64 for _, targets in plan(ids, ids, 1000, rng))


def test_a_node_serves_one_batch_at_a_time_and_believes_only_what_it_asked() -> None:
    simulation = ring(5, seed=3)
    asker, busy, *others = simulation.nodes
    targets = [place.peer for place in others]
    batches: list[object] = []
    for _ in range(2):
        asker.node.overlay.survey.measure(busy.peer, targets, 2, batches.append)
    assert not busy.node.overlay.survey.reach_requested(ReachRequest(9, (busy.peer,), 1), asker.peer).accepted
    simulation.run_until(lambda: len(batches) == 2, limit_s=60.0)
    for found in batches:
        assert isinstance(found, dict) and {format_id(key) for key in found} == {format_id(each.id) for each in targets}
    surveyor = asker.node.overlay.survey
    done: list[object] = []
    surveyor.measure(busy.peer, targets, 1, done.append)
    surveyor.reach_reported(ReachReport(3, (Reached(targets[0].id, False, None),)), targets[0])  # not whom we asked
    assert done == []
    surveyor.reach_reported(ReachReport(3, (Reached(NodeId(5), True, 0.1),)), busy.peer)
    assert done == [{}]


def test_a_dead_node_is_not_waited_for_for_ever() -> None:
    simulation = ring(4, seed=3)
    asker, dead, other, _ = simulation.nodes
    simulation.silence(dead)
    done: list[object] = []
    asker.node.overlay.survey.measure(dead.peer, [other.peer], 1, done.append)
    simulation.run_until(lambda: bool(done), limit_s=60.0)
    assert done == ["does not answer"]


def test_outliers_are_measured_against_the_prediction() -> None:
    views = made(1, 2, 3)
    place = Coordinate(0.0, 0.0, 0.0, 1.0, 0.1)
    for number in views:
        views = changed(views, number, coordinate=place)
    survey = survey_of(views)
    one, two, three = (NodeId(number << 120) for number in (1, 2, 3))
    result = Reachability(survey, 2, {(one, two): 0.002, (two, three): 0.2, (one, three): None})
    assert [(pair, rtt_s) for pair, rtt_s, _ in result.outliers()] == [((two, three), 0.2)]
    assert result.outliers()[0][2] == pytest.approx(0.002)


def test_a_pair_that_fails_once_is_tried_again() -> None:
    """Two nodes that dial each other at once may both lose a ping; that is no broken pair."""
    survey = survey_of(made(1, 2, 3))
    asked: list[tuple[NodeId, tuple[NodeId, ...]]] = []
    results: list[Reachability] = []

    class Flaky:
        def measure(
            self,
            peer: PeerRef,
            targets: Sequence[PeerRef],
            pings: int,
            done: Callable[[dict[NodeId, Reached] | str], None],
        ) -> None:
            asked.append((peer.id, tuple(target.id for target in targets)))
            is_first = [node_id for node_id, _ in asked].count(peer.id) == 1
            waiting.append(lambda: done({each.id: Reached(each.id, not is_first, 0.001) for each in targets}))

    waiting: list[Callable[[], None]] = []
    test = ReachTest(Flaky().measure, lambda: 0.0, ring(1).rng, survey, 64, results.append)
    assert test.begin()
    while waiting:
        waiting.pop(0)()
    assert len(asked) == 6 and asked[:3] == asked[3:]
    assert [(len(result.reached), result.failed) for result in results] == [(6, [])]
