"""Values that are offered to counterparts far away before these are known to be there (docs/protocols/aggregation.md,
*Places*): transcripts of single trees. Networks of them under any order of events are in test_aggregation_tree.py."""

from __future__ import annotations

import pytest

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.aggregation.effects import (
    AnswerHeld,
    Arm,
    Disarm,
    Effect,
    LevelDone,
    OfferAhead,
    OpenSwap,
    SendAnswer,
    SendInvite,
    SendProposal,
    TreePhase,
    TreeTimer,
    WithdrawOffer,
)
from protocols.aggregation.messages import AnswerKind
from protocols.aggregation.patience import HURRY_S, PAIRING_RTTS, TreeSettings
from protocols.aggregation.prefix import PlaceLevels
from protocols.aggregation.tree import BinomialTree
from tests.support.tree_network import TreeNetwork, pause_s, random_ids


def two_far_away() -> tuple[BinomialTree, BinomialTree, PeerRef, PeerRef]:
    """Counterparts at level 1 of four nodes: the one that gives first, and the other one."""
    ids = sorted(random_ids(4, 1))
    network = TreeNetwork(ids, 1, has_places=True, rtt_s=0.05)
    first, second = (network.trees[node] for node in ids[:2])
    one, other = (network.peers[node] for node in ids[:2])
    assert first.begins_soon() == [(1, other), (0, network.peers[ids[2]])]
    return first, second, one, other


def test_a_counterpart_that_is_far_away_is_given_the_value_before_it_is_known_to_be_there() -> None:
    first, second, one, other = two_far_away()
    effects = first.begin()
    assert [each for each in effects if not isinstance(each, Arm)] == [OfferAhead(other, 1)]
    assert pause_s(effects) == pytest.approx(max(HURRY_S, PAIRING_RTTS * 0.05))
    second.begin()
    assert second.proposal_received(one, 1)[0]
    assert second.swap_accepted(one) == [Disarm(TreeTimer.RESERVE)]
    accepted = first.proposal_answered(other, True, AnswerKind.MAYBE_LATER)
    assert accepted[-1] == OpenSwap(other, 1) and WithdrawOffer() not in accepted


def test_connections_are_opened_for_the_level_in_work_and_three_more() -> None:
    ids = sorted(random_ids(64, 1))
    network = TreeNetwork(ids, 1, has_places=True)
    tree = network.trees[ids[0]]
    assert [level for level, _ in tree.begins_soon()] == [5, 4, 3, 2]
    assert [level for level, _ in network.trees[ids[-1]].begins_soon()] == [], "it is given the value everywhere"


def swapping_before() -> tuple[BinomialTree, PeerRef, list[NodeId]]:
    """A node at level 1 of four nodes, and its counterpart at level 0, which gives first."""
    ids = sorted(random_ids(4, 1))
    network = TreeNetwork(ids, 1, has_places=True, rtt_s=0.05)
    tree = network.trees[ids[2]]
    assert OfferAhead(network.peers[ids[3]], 1) in tree.begin()
    tree.proposal_answered(network.peers[ids[3]], True, AnswerKind.MAYBE_LATER)
    return tree, network.peers[ids[0]], ids


def come_to_level_0(tree: BinomialTree, ids: list[NodeId]) -> list[Effect]:
    tree.swap_done(PeerRef(ids[3], "127.0.0.1", 1))
    return tree.merged(frozenset(ids[2:]))


def test_an_offer_for_a_level_to_come_is_held_until_then() -> None:
    tree, early, ids = swapping_before()
    assert tree.holds(early, 0)
    assert come_to_level_0(tree, ids)[-1] == AnswerHeld(0)
    assert tree.proposal_received(early, 0)[0]


def test_an_offer_is_held_only_of_the_counterpart_and_for_a_level_to_come() -> None:
    tree, early, ids = swapping_before()
    other = PeerRef(ids[1], "127.0.0.1", 1)
    assert not tree.holds(other, 0) and not tree.holds(early, 1)
    come_to_level_0(tree, ids)
    assert not tree.holds(early, 0)
    first, _, _, counterpart = two_far_away()
    assert not first.holds(counterpart, 1), "before its own data is there"


def test_who_comes_first_and_is_to_be_offered_the_value_lets_the_other_one_know() -> None:
    first, second, one, other = two_far_away()
    assert [each for each in second.begin() if isinstance(each, SendInvite)] == [SendInvite(one, 1, False)]
    first.invite_received(other, 1)
    assert SendProposal(other, 1) in first.begin()
    assert second.proposal_received(one, 1)[0]


def test_an_invitation_that_crosses_the_offer_changes_nothing() -> None:
    first, second, one, other = two_far_away()
    first.begin()
    assert first.invite_received(other, 1) == [SendAnswer(other, 1, AnswerKind.MAYBE_LATER)]
    assert first.proposal_received(other, 1)[0] is False
    second.begin()
    assert second.proposal_received(one, 1)[0]


def test_an_offer_that_was_lost_or_refused_leaves_the_node_waiting_for_its_counterpart() -> None:
    first, _, _, other = two_far_away()
    first.begin()
    assert first.proposal_lost(other) == []
    assert first.phase is TreePhase.WAITING
    assert SendProposal(other, 1) in first.invite_received(other, 1)
    again, _, _, other = two_far_away()
    again.begin()
    assert again.proposal_answered(other, False, AnswerKind.MAYBE_LATER) == []
    assert again.phase is TreePhase.WAITING
    assert SendProposal(other, 1) in again.invite_received(other, 1)


def test_an_offer_is_withdrawn_when_somebody_else_is_swapped_with() -> None:
    ids = sorted(random_ids(3, 1))
    network = TreeNetwork(ids, 1, has_places=True, rtt_s=0.05)
    network.views[ids[2]].levels = PlaceLevels(ids[2], ids, ids[0])  # what is given first is given to the requester
    tree, peers = BinomialTree(ids[2], network.views[ids[2]], TreeSettings()), network.peers
    assert OfferAhead(peers[ids[0]], 0) in tree.begin()
    accepted, _, effects = tree.proposal_received(peers[ids[1]], 0)
    assert accepted and WithdrawOffer() in effects
    assert tree.proposal_answered(peers[ids[0]], True, AnswerKind.MAYBE_LATER) == []


def test_an_offer_is_withdrawn_when_the_level_is_over() -> None:
    first, _, _, _ = two_far_away()
    first.begin()
    first.timer_fired(TreeTimer.INVITE)
    effects = first.timer_fired(TreeTimer.LEVEL)
    assert WithdrawOffer() in effects and LevelDone(1, "timed_out", None) in effects


def test_an_offer_that_stands_no_more_when_its_level_comes_is_as_none() -> None:
    tree, early, ids = swapping_before()
    assert tree.holds(early, 0)
    assert come_to_level_0(tree, ids)[-1] == AnswerHeld(0)
    assert SendInvite(early, 0, False) in tree.held_lost(0)


@pytest.mark.parametrize("count", [2, 5, 16, 33, 100])
def test_the_requester_gives_first_nowhere_and_one_of_two_counterparts_does(count: int) -> None:
    ids = sorted(random_ids(count, count))
    requester = ids[count // 3]
    levels = {node: PlaceLevels(node, ids, requester) for node in ids}
    pairs = 0
    for node in ids:
        for level in range((count - 1).bit_length()):
            other = levels[node].counterpart(level)
            assert not (node == requester and levels[node].gives_first(level))
            if other is not None:
                pairs += 1
                assert levels[node].gives_first(level) != levels[other].gives_first(level)
    assert pairs >= count - 1


def test_before_the_places_are_known_the_smaller_of_two_neighbours_is_the_one_that_opens_the_connection() -> None:
    ids = sorted(random_ids(8, 1))
    for node, other in zip(ids[::2], ids[1::2], strict=True):
        small, large = (PlaceLevels(each, ids, ids[5], is_early=False) for each in (node, other))
        assert small.counterpart(2) == other
        assert small.gives_first(2) and not large.gives_first(2)
