"""The San Fermín state machine: whole networks of trees under any order of events, and single transcripts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from peerd.api import LeafSet
from peerd.ids import ID_BITS, NodeId
from peerd.messages import PeerRef
from protocols.aggregation.effects import (
    Arm,
    LevelDone,
    MergeOffer,
    OfferAhead,
    RouteInvite,
    SendAnswer,
    SendInvite,
    SendProposal,
    TreeDone,
    TreePhase,
    TreeTimer,
)
from protocols.aggregation.messages import AnswerKind
from protocols.aggregation.patience import HURRY_RTTS, HURRY_S, LEVEL_RTTS, TreeSettings
from protocols.aggregation.prefix import IdLevels, PlaceLevels, lies_within
from protocols.aggregation.tree import FIRST_INVITED, GIVEN_MAX, BinomialTree
from tests.support.tree_network import RingView, TreeNetwork, pause_s, random_ids

SIZES = st.integers(1, 24)


def run_with_deaths(network: TreeNetwork, deaths: int, after: int) -> None:
    """So many nodes die, each after so many more events; the last one lives."""
    rng = random.Random(network.seed + 1)
    for _ in range(deaths):
        for _ in range(after):
            network.step()
        alive = [peer.id for peer in network.alive()]
        if len(alive) > 1:
            network.kill(rng.choice(alive))
    network.run()


def three_bit(*prefixes: str) -> list[NodeId]:
    """The paper's example ids, in the top three bits."""
    return [NodeId(int(prefix, 2) << (ID_BITS - 3)) for prefix in prefixes]


@given(count=SIZES, seed=st.integers(0, 2**32), known=st.sampled_from([None, 1, 2]))
def test_without_faults_a_tree_ends_with_every_node(count: int, seed: int, known: int | None) -> None:
    network = TreeNetwork(random_ids(count, seed), seed, known)
    network.run()
    assert network.results, "no tree computed the result"
    if known is None:
        assert max(len(contributors) for contributors in network.results.values()) == count


@given(count=st.integers(2, 24), seed=st.integers(0, 2**32), placed=st.booleans())
def test_a_tree_is_pruned_only_when_its_data_is_in_another(count: int, seed: int, placed: bool) -> None:
    network = TreeNetwork(random_ids(count, seed), seed, has_places=placed)
    network.run()
    held = frozenset().union(*network.results.values())
    for node_id, tree in network.trees.items():
        if tree.phase is TreePhase.PRUNED:
            assert node_id in held


@given(
    count=st.integers(2, 20),
    seed=st.integers(0, 2**32),
    deaths=st.integers(1, 4),
    after=st.integers(0, 300),
    placed=st.booleans(),
)
@settings(deadline=None)
def test_crashes_never_stop_the_rest_nor_count_twice(
    count: int, seed: int, deaths: int, after: int, placed: bool
) -> None:
    network = TreeNetwork(random_ids(count, seed), seed, has_places=placed)
    run_with_deaths(network, deaths, after)
    assert network.results


@given(
    count=st.integers(2, 20),
    seed=st.integers(0, 2**32),
    cuts=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19), st.integers(0, 40)), max_size=12),
    riding=st.sampled_from([0.0, 0.5, 1.0]),
    placed=st.booleans(),
)
@settings(deadline=None)
def test_a_node_that_others_cannot_reach_stops_nobody_and_is_counted_once(
    count: int, seed: int, cuts: list[tuple[int, int, int]], riding: float, placed: bool
) -> None:
    network = TreeNetwork(random_ids(count, seed), seed, riding=riding, has_places=placed)
    nodes = sorted(network.trees)
    for one, other, after in cuts:
        for _ in range(after):
            network.step()
        network.cut_off(nodes[one % count], nodes[other % count])
    network.run()
    assert network.results


@given(count=st.integers(2, 20), seed=st.integers(0, 2**32), placed=st.booleans())
@settings(deadline=None)
def test_failing_swaps_never_count_twice(count: int, seed: int, placed: bool) -> None:
    """A third of the swaps fail, half of these on one side only (the two generals)."""
    network = TreeNetwork(random_ids(count, seed), seed, swap_failure=0.33, has_places=placed)
    network.run()
    assert network.results


@given(count=SIZES, seed=st.integers(0, 2**32), known=st.sampled_from([None, 1, 2]))
def test_small_values_ride_and_every_tree_ends_with_every_node(count: int, seed: int, known: int | None) -> None:
    network = TreeNetwork(random_ids(count, seed), seed, known, riding=1.0)
    network.run()
    assert len(network.results) == count, "none is pruned"
    if known is None:
        assert all(len(contributors) == count for contributors in network.results.values())


@given(
    count=st.integers(2, 20),
    seed=st.integers(0, 2**32),
    deaths=st.integers(0, 4),
    after=st.integers(0, 300),
    riding=st.sampled_from([0.5, 1.0]),
    failure=st.sampled_from([0.0, 0.33]),
    placed=st.booleans(),
)
@settings(deadline=None)
def test_crashes_values_that_cannot_be_merged_and_larger_ones_among_those_that_ride(
    count: int, seed: int, deaths: int, after: int, riding: float, failure: float, placed: bool
) -> None:
    network = TreeNetwork(random_ids(count, seed), seed, riding=riding, swap_failure=failure, has_places=placed)
    run_with_deaths(network, deaths, after)
    assert network.results


@given(count=st.integers(2, 33), seed=st.integers(0, 2**32), riding=st.sampled_from([0.0, 1.0]))
def test_by_places_no_node_swaps_more_often_than_it_needs(count: int, seed: int, riding: float) -> None:
    network = TreeNetwork(random_ids(count, seed), seed, riding=riding, has_places=True)
    network.run()
    swaps = Counter(node for node, done in network.outcomes if done.outcome == "swapped")
    assert max(swaps.values()) <= (count - 1).bit_length()
    assert max(map(len, network.results.values())) == count


def test_places_spread_nodes_evenly_in_the_order_of_their_ids() -> None:
    ids = sorted(random_ids(12, 1))
    levels = [[PlaceLevels(own, ids).level_of(other) for other in ids if other != own] for own in ids]
    assert [sorted(Counter(found).items()) for found in levels] == [
        [(0, 6), (1, 3), *rest] for rest in ([(2, 1), (3, 1)], [(2, 1), (3, 1)], [(2, 2)]) * 4
    ]


def test_a_counterpart_is_at_the_level_and_has_this_node_for_its_own() -> None:
    for count in (1, 2, 3, 12, 16, 17):
        ids = random_ids(count, 1)
        levels = {own: PlaceLevels(own, ids) for own in ids}
        for own, each in levels.items():
            pairs = {level: each.counterpart(level) for level in range(-1, 6)}
            assert pairs[-1] is None
            for level, other in pairs.items():
                if other is not None:
                    assert each.level_of(other) == level and levels[other].counterpart(level) == own
            if count == 16:
                assert None not in [pairs[level] for level in range(4)]


def test_one_of_two_counterparts_offers_its_value_and_nobody_else_is_invited_before_they_had_their_time() -> None:
    ids = sorted(random_ids(3, 1))
    network = TreeNetwork(ids, 1, has_places=True, rtt_s=0.001)
    network.views[ids[2]].levels = PlaceLevels(ids[2], ids, ids[2])
    one, other, third = (network.peers[node] for node in ids)
    giver, taker = network.trees[ids[0]], BinomialTree(ids[2], network.views[ids[2]], TreeSettings())
    effects = giver.begin()
    assert OfferAhead(other, 1) in effects and not any(isinstance(each, SendInvite) for each in effects)
    waiting = taker.begin()
    assert [each for each in waiting if isinstance(each, SendInvite | OfferAhead)] == [SendInvite(one, 0)]
    assert pause_s(waiting) == pytest.approx(HURRY_S)
    invited = [each.peer for each in taker.timer_fired(TreeTimer.INVITE) if isinstance(each, SendInvite)]
    assert sorted(peer.id for peer in invited) == ids[:2] and third.id not in invited


def test_a_proposal_that_crosses_the_refusal_of_ours_is_answered_by_another_one() -> None:
    """The other one swapped with a third one when ours came. (Both waited for their timers: count=6, seed=37.)"""
    ids = [NodeId(1), NodeId(1 << 127)]
    network = TreeNetwork(ids, 1)
    small, large = (network.trees[node] for node in ids)
    one, other = (network.peers[node] for node in ids)
    third = PeerRef(NodeId(2), "127.0.0.1", 1)
    small.begin()
    large.begin()
    assert large.proposal_received(third, 0)[0]
    assert SendProposal(other, 0) in small.invite_received(other, 0)
    accepted, refusal, _ = large.proposal_received(one, 0)
    assert not accepted and refusal is AnswerKind.MAYBE_LATER
    assert SendProposal(one, 0) in large.timer_fired(TreeTimer.RESERVE)
    assert small.proposal_received(other, 0)[0] is False
    assert SendProposal(other, 0) in small.proposal_answered(other, False, refusal)
    assert large.proposal_answered(one, False, AnswerKind.MAYBE_LATER)
    assert large.proposal_received(one, 0)[0] is True


def test_a_level_whose_nodes_are_paired_first_is_not_over_before_others_were_invited() -> None:
    ids = sorted(random_ids(2, 1))
    network = TreeNetwork(ids, 1, has_places=True)
    tree = network.trees[ids[1]]
    tree.begin()
    effects = tree.timer_fired(TreeTimer.LEVEL)
    assert [type(each) for each in effects] == [SendInvite, Arm, Arm]
    assert LevelDone(0, "timed_out", None) in tree.timer_fired(TreeTimer.LEVEL)


def test_a_node_without_a_place_swaps_with_nobody_and_its_data_is_left_over() -> None:
    ids = random_ids(5, 1)
    network = TreeNetwork(ids, 1, has_places=True)
    outsider = BinomialTree(NodeId(7), RingView(NodeId(7), network, None), TreeSettings())
    [done] = outsider.begin()
    assert isinstance(done, TreeDone) and outsider.phase is TreePhase.PRUNED
    peer = network.peers[ids[0]]
    assert outsider.proposal_received(peer, 0) == (False, AnswerKind.ABSENT, [])
    assert network.trees[ids[0]].proposal_received(PeerRef(NodeId(7), "127.0.0.1", 1), 0)[1] is AnswerKind.ABSENT


@pytest.mark.parametrize("seed", range(20))
def test_the_example_of_six_nodes(seed: int) -> None:
    """Section 2: 000, 001, 010, 101, 110, 111; L2 is empty for 010 and 101, which start at L1."""
    ids = three_bit("000", "001", "010", "101", "110", "111")
    network = TreeNetwork(ids, seed)
    network.run()
    swaps = [(node, done.level) for node, done in network.outcomes if done.outcome == "swapped"]
    assert (ids[2], 2) not in swaps
    assert (ids[3], 2) not in swaps
    assert any(contributors == frozenset(ids) for contributors in network.results.values())


class Lonely:
    """One known node at level 0. ``is_all``: there is no other."""

    def __init__(self, *peers: PeerRef, rtt_s: float = 0.0, own: NodeId | None = None, is_all: bool = False) -> None:
        self._is_all = is_all
        self.levels = IdLevels(LEFT if own is None else own)
        self.peers = peers
        self.round_trip_s = rtt_s

    def rtt_s(self, peer: PeerRef) -> float:
        return self.round_trip_s

    def longest_level(self) -> int | None:
        return 0

    def members(self, level: int) -> tuple[PeerRef, ...]:
        return self.peers

    def is_exact(self, level: int) -> bool:
        return self._is_all

    def estimated_size(self, level: int) -> float:
        return 40.0


LEFT, RIGHT = three_bit("000", "111")
PEER = PeerRef(RIGHT, "127.0.0.1", 2)


def test_time_out_grows_with_the_estimated_nodes() -> None:
    effects = BinomialTree(LEFT, Lonely(PEER), TreeSettings(timeout_base_s=1, timeout_per_node_s=0.1)).begin()
    [armed] = [effect for effect in effects if isinstance(effect, Arm) and effect.timer is TreeTimer.LEVEL]
    assert armed.delay_s == pytest.approx(1 + 0.1 * 40)


def test_a_partner_that_does_not_answer_is_given_up_whether_it_was_asked_or_offered_the_value() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings(reserve_s=5.0))
    tree.begin()
    effects = tree.invite_received(PEER, 0)
    assert Arm(TreeTimer.RESERVE, 5.0) in effects and SendProposal(PEER, 0) in effects
    tree.timer_fired(TreeTimer.RESERVE)
    assert tree.phase is not TreePhase.PROPOSING and not tree.proposal_received(PEER, 0)[0]
    assert not tree.proposal_answered(PEER, True, AnswerKind.MAYBE_LATER), "too late"


def test_of_several_that_have_invited_the_one_is_tried_first_that_said_so_last() -> None:
    """The others have perhaps failed since. (Eight seconds for two of them in a row: department, seed 20.)"""
    first, second = (PeerRef(NodeId((1 << 127) + number), "127.0.0.1", 3) for number in (1, 2))
    for said, expected in (((first, second), second), ((first, second, first), first)):
        tree = BinomialTree(LEFT, Lonely(PEER, first, second), TreeSettings())
        tree.begin()
        assert tree.proposal_received(PEER, 0)[0]
        for peer in said:
            tree.invite_received(peer, 0)
        assert SendProposal(expected, 0) in tree.timer_fired(TreeTimer.RESERVE)
        other = first if expected is second else second
        assert SendProposal(other, 0) in tree.proposal_lost(expected)


def test_time_out_is_the_part_of_it_that_levels_lately_needed() -> None:
    effects = BinomialTree(LEFT, Lonely(PEER), TreeSettings(timeout_base_s=1, timeout_per_node_s=0.1)).begin(False, 0.5)
    [armed] = [effect for effect in effects if isinstance(effect, Arm) and effect.timer is TreeTimer.LEVEL]
    assert armed.delay_s == pytest.approx((1 + 0.1 * 40) / 2)


@pytest.mark.parametrize(("rtt_s", "expected_s"), [(0.0, 5.0), (0.5, 5.0), (1.7, 13.6)])
def test_a_far_partner_gets_the_time_that_opening_a_swap_takes(rtt_s: float, expected_s: float) -> None:
    """Its offer comes four round trips after the agreement."""
    tree = BinomialTree(LEFT, Lonely(PEER, rtt_s=rtt_s), TreeSettings(reserve_s=5.0))
    tree.begin()
    accepted, _, effects = tree.proposal_received(PEER, 0)
    assert accepted
    [armed] = [effect for effect in effects if isinstance(effect, Arm) and effect.timer is TreeTimer.RESERVE]
    assert armed.delay_s == pytest.approx(expected_s)


def test_a_no_prunes_at_the_time_out_only() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    tree.begin()
    assert tree.answer_received(PEER, 0, AnswerKind.NO, (), False) == []
    effects = tree.timer_fired(TreeTimer.LEVEL)
    assert LevelDone(0, "pruned", None) in effects
    assert tree.phase is TreePhase.PRUNED


def test_silence_skips_the_level() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    tree.begin()
    assert LevelDone(0, "timed_out", None) in tree.timer_fired(TreeTimer.LEVEL)
    assert tree.phase is TreePhase.FINISHED


def test_maybe_later_resets_the_time_out() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    tree.begin()
    [effect] = tree.answer_received(PEER, 0, AnswerKind.MAYBE_LATER, (), False)
    assert isinstance(effect, Arm)
    assert effect.timer is TreeTimer.LEVEL


def test_a_node_that_skipped_a_level_does_not_say_no() -> None:
    """The paper's "no" would prune a tree whose data nobody has; here the contributor set decides."""
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    tree.begin()
    tree.timer_fired(TreeTimer.LEVEL)
    assert tree.invite_received(PEER, 0) == [SendAnswer(PEER, 0, AnswerKind.ABSENT)]


def test_crossing_proposals_the_smaller_id_stands() -> None:
    small, large = (
        BinomialTree(LEFT, Lonely(PEER), TreeSettings()),
        BinomialTree(RIGHT, Lonely(own=RIGHT), TreeSettings()),
    )
    left = PeerRef(LEFT, "127.0.0.1", 1)
    small.begin()
    large.begin()
    assert SendProposal(PEER, 0) in small.invite_received(PEER, 0)
    assert SendProposal(left, 0) in large.invite_received(left, 0)
    assert small.proposal_received(PEER, 0)[0] is False
    assert large.proposal_received(left, 0)[0] is True
    assert large.proposal_answered(left, False, AnswerKind.MAYBE_LATER) == []
    assert large.accepts_swap(left, 0)


OTHER = PeerRef(NodeId(RIGHT + 1), "127.0.0.1", 3)
SIX = tuple(PeerRef(NodeId(RIGHT + number), "127.0.0.1", 2 + number) for number in range(6))


def riding(*peers: PeerRef, rtt_s: float = 0.0) -> BinomialTree:
    """A tree at level 0 whose aggregate rides; it has invited the node that it prefers."""
    tree = BinomialTree(LEFT, Lonely(*peers, rtt_s=rtt_s), TreeSettings())
    tree.begin(rides=True)
    return tree


def test_whoever_is_invited_with_a_value_merges_it_and_answers_with_its_own() -> None:
    tree = riding()
    effects = tree.invite_received(PEER, 0, rides=True, value=b"theirs")
    assert effects[0] == SendAnswer(PEER, 0, AnswerKind.VALUE)
    assert effects[-1] == MergeOffer(PEER, 0, b"theirs")
    assert tree.phase is TreePhase.MERGING


def test_two_that_invite_each_other_send_no_answers() -> None:
    tree = riding(PEER)
    effects = tree.invite_received(PEER, 0, rides=True, value=b"theirs")
    assert not [effect for effect in effects if isinstance(effect, SendAnswer)]
    assert MergeOffer(PEER, 0, b"theirs") in effects


def test_who_is_not_ready_answers_with_its_value_when_it_is_and_before_that_only_who_asks_again() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    assert tree.invite_received(PEER, 0, rides=True, value=b"theirs") == []
    assert tree.invite_received(PEER, 0, rides=True) == [SendAnswer(PEER, 0, AnswerKind.MAYBE_LATER)]
    effects = tree.begin(rides=True)
    assert effects[0] == SendAnswer(PEER, 0, AnswerKind.VALUE)
    assert effects[-1] == MergeOffer(PEER, 0, b"theirs"), "it need not invite anybody"


def test_who_has_gone_on_gives_its_value_and_not_without_end() -> None:
    tree = riding(PEER)
    tree.timer_fired(TreeTimer.LEVEL)
    assert tree.phase is TreePhase.FINISHED
    for _ in range(GIVEN_MAX):
        assert tree.invite_received(PEER, 0, rides=True) == [SendAnswer(PEER, 0, AnswerKind.VALUE)]
    assert tree.invite_received(PEER, 0, rides=True) == []


def test_others_are_invited_when_the_preferred_one_takes_long_and_each_gets_the_value_once() -> None:
    tree = BinomialTree(LEFT, Lonely(*SIX, rtt_s=0.3), TreeSettings())
    first = tree.begin(rides=True)
    invited = {effect.peer for effect in first if isinstance(effect, SendInvite) and effect.with_value}
    assert len(invited) == FIRST_INVITED
    assert pause_s(first) == pytest.approx(HURRY_RTTS * 0.3)
    second = tree.timer_fired(TreeTimer.INVITE)
    sent = {effect.peer: effect.with_value for effect in second if isinstance(effect, SendInvite)}
    assert {peer for peer, with_value in sent.items() if not with_value} == invited
    assert len(sent) == 2 * FIRST_INVITED
    assert pause_s(second) >= pause_s(first)


def test_a_level_lasts_until_one_who_is_far_away_can_have_answered() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER, rtt_s=3.0), TreeSettings())
    [armed] = [each for each in tree.begin(rides=True) if isinstance(each, Arm) and each.timer is TreeTimer.LEVEL]
    assert armed.delay_s == pytest.approx(LEVEL_RTTS * 3.0)


def test_the_next_value_is_taken_when_one_cannot_be_merged() -> None:
    tree = riding(PEER, OTHER)
    assert MergeOffer(PEER, 0, b"false") in tree.invite_received(PEER, 0, rides=True, value=b"false")
    assert tree.invite_received(OTHER, 0, rides=True, value=b"true") in ([], [SendAnswer(OTHER, 0, AnswerKind.VALUE)])
    assert MergeOffer(OTHER, 0, b"true") in tree.merge_rejected(PEER)
    assert tree.invite_received(PEER, 0, rides=True) == [SendAnswer(PEER, 0, AnswerKind.ABSENT)], "not asked again"


def test_only_so_many_values_are_kept_for_later() -> None:
    tree = BinomialTree(NodeId(0), Lonely(), TreeSettings())
    for level in range(ID_BITS):
        for number in range(3):
            node = NodeId((1 << (ID_BITS - 1 - level)) + number * (level < ID_BITS - 3))
            tree.invite_received(PeerRef(node, "127.0.0.1", 1), level, rides=True, value=b"x")
    tree.validate()


def test_a_large_value_among_small_ones_is_swapped() -> None:
    """Its node takes the small value that it is given, and proposes to who wants one and has given none."""
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    tree.begin(rides=False)
    assert MergeOffer(PEER, 0, b"theirs") in tree.invite_received(PEER, 0, rides=True, value=b"theirs")
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    tree.begin(rides=False)
    assert SendProposal(PEER, 0) in tree.invite_received(PEER, 0, rides=True)
    small = riding(PEER)
    assert SendProposal(PEER, 0) in small.invite_received(PEER, 0)


def test_a_level_whose_invited_node_is_gone_asks_the_next_one_at_once() -> None:
    neighbourhood = Lonely(*SIX)
    tree = BinomialTree(LEFT, neighbourhood, TreeSettings())
    invited = {effect.peer for effect in tree.begin(rides=True) if isinstance(effect, SendInvite)}
    neighbourhood.peers = tuple(peer for peer in SIX if peer not in invited)
    effects = tree.neighbourhood_changed()
    assert len(effects) == FIRST_INVITED
    assert all(isinstance(each, SendInvite) and each.with_value and each.peer not in invited for each in effects)
    assert tree.neighbourhood_changed() == []


def test_a_level_is_over_when_no_link_to_its_last_node_can_be_had() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER, is_all=True), TreeSettings())
    tree.begin(rides=True)
    assert tree.peer_down(PeerRef(NodeId(LEFT + 1), "127.0.0.1", 9)) == [], "it is at another level"
    assert LevelDone(0, "empty", None) in tree.peer_down(PEER)
    assert tree.phase is TreePhase.FINISHED


def test_others_are_looked_for_once_when_no_link_to_those_known_can_be_had() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    tree.begin(rides=True)
    assert RouteInvite(0) in tree.peer_down(PEER)
    assert tree.peer_down(PEER) == []


def test_who_could_not_be_reached_and_invites_is_there_again() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER, SIX[0]), TreeSettings())
    tree.begin(rides=True)
    assert not any(isinstance(each, LevelDone) for each in tree.peer_down(PEER))
    assert MergeOffer(PEER, 0, b"theirs") in tree.invite_received(PEER, 0, rides=True, value=b"theirs")


def test_a_partner_that_has_agreed_and_cannot_be_reached_is_given_up_at_once() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER, SIX[0]), TreeSettings())
    tree.begin()
    accepted, _, _ = tree.proposal_received(PEER, 0)
    assert accepted
    assert tree.phase is TreePhase.RESERVED
    assert not any(isinstance(each, SendInvite) and each.peer == PEER for each in tree.peer_down(PEER))
    assert tree.partner is None


def test_an_invitation_of_the_wrong_prefix_is_no_candidate() -> None:
    tree = BinomialTree(LEFT, Lonely(PEER), TreeSettings())
    tree.begin()
    assert tree.invite_received(PEER, 5) == [SendAnswer(PEER, 5, AnswerKind.ABSENT)]
    assert tree.partner is None


def test_a_leaf_set_that_seems_to_span_a_large_ring_knows_no_level() -> None:
    """After a death the ninth successor stood for the eighth predecessor, and levels of 64 nodes passed for empty."""
    step = (1 << 128) // 1024
    own = NodeId(512 * step)

    def node(offset: int) -> PeerRef:
        return PeerRef(NodeId(own + offset * step), "10.0.0.1", 7420)

    larger = tuple(node(offset) for offset in range(1, 9))
    right = LeafSet(tuple(node(-offset) for offset in range(1, 9)), larger, is_complete=True, covers_ring=False)
    wrong = LeafSet((*right.smaller[:7], node(9)), larger, is_complete=True, covers_ring=False)
    far = (NodeId(0), NodeId((1 << 127) - 1 - 16 * step))
    near = (node(2).id, node(6).id)
    assert [lies_within(right, own, *found) for found in (near, far)] == [True, False]
    assert [lies_within(replace(wrong, covers_ring=spans), own, *near) for spans in (False, True)] == [False, False]
    assert not lies_within(replace(wrong, covers_ring=True), own, *far)
