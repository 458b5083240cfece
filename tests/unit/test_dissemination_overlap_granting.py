"""CoDD's policies, part by part: which moves a node grants to those below it, and where to."""

from __future__ import annotations

import pytest

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.front.lab.net import STREAM
from protocols.dissemination.policies.overlap.events import ReorganisationDecided
from protocols.dissemination.policies.overlap.messages import (
    FreePlace,
    GetOverhead,
    MoveOrder,
    MoveOutcome,
    MoveReport,
    OverheadAnswer,
    Reorganise,
)
from protocols.dissemination.policies.overlap.policy import OverlapPolicy
from tests.unit.test_dissemination_overlap import (
    ABOVE,
    ME,
    PEERS,
    ROOT,
    FakeTree,
    X,
    Y,
    Z,
    every,
    feed,
    policy_at,
    reorganise,
)


def producer(**settings: object) -> tuple[FakeTree, OverlapPolicy]:
    tree = FakeTree(me=ROOT, parent=None)
    policy = policy_at(tree, [X, Y], **settings)
    feed(policy, tree, 400, own=0, to={X: 2, Y: 3})
    return tree, policy


def answer_all(tree: FakeTree, policy: OverlapPolicy, cost: float = 0.0, room: int = 1, to: PeerRef = Y) -> None:
    """Whoever is asked for places tells of one for each mover: itself, unless ``to`` is full there."""
    for peer, asked in tree.take(GetOverhead):
        assert isinstance(asked, GetOverhead)
        places = ((FreePlace(to, cost, cost, room, 1),) if room else (),) * len(asked.movers)
        policy.received(peer, OverheadAnswer(STREAM, asked.sweep, places))


def let_batch_end(tree: FakeTree, policy: OverlapPolicy) -> None:
    tree.at_s += 1.0
    policy.tick()


def outcomes(tree: FakeTree) -> list[str]:
    return [event.outcome for event in tree.events if isinstance(event, ReorganisationDecided)]


def test_a_move_is_ordered_to_the_best_place_and_kept_in_the_history() -> None:
    tree, policy = producer()
    policy.received(X, reorganise(Z, every(3), [X], [0.2]))
    assert [(move.node, move.to_parent) for move in policy.plan()] == [(f"{Z.id:032x}", None)]
    let_batch_end(tree, policy)
    ((to, asked),) = tree.take(GetOverhead)
    assert to == Y and isinstance(asked, GetOverhead), "what is below the branch that it comes from is not looked at"
    policy.received(
        Y, OverheadAnswer(STREAM, asked.sweep, ((FreePlace(Y, 0.01, 0.01, 1, 1), FreePlace(ME, 0.02, 0.0, 2, 2)),))
    )
    ((to, order),) = tree.take(MoveOrder)
    assert isinstance(order, MoveOrder)
    assert to == Z and order == MoveOrder(STREAM, order.number, X.id, Y, (ME,))
    assert policy.plan()[0].gain == pytest.approx(0.2 - 0.01)
    policy.received(Y, MoveReport(STREAM, order.number, True, Y.id))  # not the mover
    assert not policy.history()
    policy.received(Z, MoveReport(STREAM, order.number, True, Y.id))
    policy.received(X, MoveOutcome(STREAM, order.number, Z.id, ROOT, None, 0.25))
    policy.received(PEERS[9], MoveOutcome(STREAM, order.number, Z.id, ROOT, None, 0.5))  # no parent of the mover
    policy.received(Y, MoveOutcome(STREAM, order.number, Z.id, ROOT, None, 0.1))
    (past,) = policy.history()
    assert [past.predicted, past.measured] == pytest.approx([0.2 - 0.01, 0.15])
    assert not policy.plan()


def test_a_gain_below_delta_is_not_worth_a_move() -> None:
    for delta, is_ordered in ((0.1, True), (0.5, False)):
        tree, policy = producer(delta=delta)
        policy.received(X, reorganise(Z, every(3), [X], [0.2]))
        let_batch_end(tree, policy)
        answer_all(tree, policy, cost=0.15)
        assert bool(tree.take(MoveOrder)) is is_ordered


@pytest.mark.parametrize("level_gain", [0.0, 0.1])
def test_a_shallow_place_is_not_given_up_for_less_than_a_level_counts_for(level_gain: float) -> None:
    tree, policy = producer(level_gain=level_gain)
    policy.received(X, reorganise(Z, every(3), [X], [0.2]))
    let_batch_end(tree, policy)
    for peer, asked in tree.take(GetOverhead):
        assert isinstance(asked, GetOverhead)
        policy.received(peer, OverheadAnswer(STREAM, asked.sweep, ((FreePlace(Y, 0.0, 0.0, 1, 3),),)))
    assert bool(tree.take(MoveOrder)) is (level_gain == 0.0)


def test_the_first_node_that_has_another_branch_for_the_mover_grants_the_move() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X, Y], threshold=1.0)
    feed(policy, tree, 400, own=0, to={X: 2, Y: 3})
    policy.received(X, reorganise(Z, every(3), [X], [0.2]))
    assert len(policy.plan()) == 1 and not tree.take(Reorganise)
    policy.received(X, reorganise(PEERS[8], every(7), [X], [0.1]))
    ((to, passed_on),) = tree.take(Reorganise)
    assert to == ABOVE and isinstance(passed_on, Reorganise) and passed_on.child == PEERS[8], "Y does not want these"
    let_batch_end(tree, policy)
    answer_all(tree, policy, room=0)
    ((to, passed_on),) = tree.take(Reorganise)
    assert isinstance(passed_on, Reorganise) and passed_on.child == Z, "there is no room"
    assert passed_on.path == (X.id, ME.id) and not policy.plan() and not tree.take(MoveOrder)


def test_a_node_has_those_of_its_children_that_want_the_same_go_below_each_other() -> None:
    tree = FakeTree()
    policy = policy_at(tree, [X, Y, Z], children=2)
    feed(policy, tree, 400, own=7, to={X: 2, Y: 2, Z: 9})
    policy.tick()
    assert {move.node for move in policy.plan()} == {f"{X.id:032x}", f"{Y.id:032x}"} and not tree.take(Reorganise)
    let_batch_end(tree, policy)
    for peer, asked in tree.take(GetOverhead):
        assert isinstance(asked, GetOverhead)
        place = FreePlace(peer, 0.0, 0.0, 2, 1)
        policy.received(peer, OverheadAnswer(STREAM, asked.sweep, ((place,),) * len(asked.movers)))
    assert len(tree.take(MoveOrder)) == 1, "both would be a circle, and neither would come about"


def test_free_places_are_given_away_once() -> None:
    tree, policy = producer(children=4)
    movers = PEERS[5:9]
    for number, peer in enumerate(movers):
        policy.received(X, reorganise(peer, every(3), [X], [0.5 - number / 10]))
    let_batch_end(tree, policy)
    answer_all(tree, policy, room=2)
    assert [to for to, _ in tree.take(MoveOrder)] == movers[:2]
    assert outcomes(tree) == ["no_gain"] * 2


def test_a_node_asks_once_in_so_many_items_of_the_stream() -> None:
    tree, policy = producer(children=1, request_items=100)
    policy.received(X, reorganise(Z, every(3), [X], [0.2]))
    policy.received(X, reorganise(PEERS[9], every(3), [X], [0.3]))
    assert len(policy.plan()) == 1
    feed(policy, tree, 100, own=0, to={}, begin=401)
    policy.received(X, reorganise(PEERS[9], every(3), [X], [0.3]))
    assert len(policy.plan()) == 2


def test_a_storm_of_requests_moves_so_many_nodes_a_minute() -> None:
    tree, policy = producer(moves_per_minute=3, top=100, children=16)
    for number in range(50):
        mover = PeerRef(NodeId(500 + number), "127.0.0.1", 1)
        policy.received(X, reorganise(mover, every(3), [PeerRef(NodeId(900 + number), "h", 1), X], [0.2, 0.1]))
        tree.at_s += 0.1
    let_batch_end(tree, policy)
    answer_all(tree, policy, room=100)
    assert len(tree.take(MoveOrder)) == 3
    tree.at_s += 61
    for number in range(50):
        mover = PeerRef(NodeId(700 + number), "127.0.0.1", 1)
        policy.received(X, reorganise(mover, every(3), [PeerRef(NodeId(1900 + number), "h", 1), X], [0.2, 0.1]))
        tree.at_s += 0.1
    let_batch_end(tree, policy)
    answer_all(tree, policy, room=100)
    assert len(tree.take(MoveOrder)) == 3


def test_nodes_that_do_not_answer_are_gone_without() -> None:
    tree, policy = producer()
    policy.received(X, reorganise(Z, every(3), [X], [0.2]))
    let_batch_end(tree, policy)
    assert tree.take(GetOverhead)
    tree.at_s += 2.5
    policy.tick()
    assert not policy.plan()
    assert outcomes(tree) == ["no_gain"]


def test_a_mover_that_does_not_report_is_forgotten() -> None:
    tree, policy = producer()
    policy.received(X, reorganise(Z, every(3), [X], [0.2]))
    let_batch_end(tree, policy)
    answer_all(tree, policy)
    assert policy.plan()
    tree.at_s += 6.0
    policy.tick()
    assert not policy.plan() and not policy.history()
