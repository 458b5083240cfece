"""A requester names all nodes of a round over large values once they have enrolled; then they swap by their places."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from peerd.api import AcceptSwap, HoldSwap, LeafSet, RefuseSwap, SwapRequest
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef, encode_body
from peerd.testing.host import FakeHost, peer
from protocols.aggregation.collector import NAMING_TIMER, Basis, Collector
from protocols.aggregation.effects import OfferAhead, TreePhase, TreeTimer
from protocols.aggregation.exchange import named_swap_tag
from protocols.aggregation.messages import (
    NAMED_MAX,
    AnswerKind,
    Enrolled,
    Invite,
    InviteAnswer,
    NameNodes,
    NamesWanted,
    PieceStage,
    PieceTold,
    Propose,
    ProposeAnswer,
    ResultReady,
    StartRound,
)
from protocols.aggregation.participant import EARLY_NAMED_MAX, NAMES_TIMER, OFFER_TIMER, Participant
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.prefix import PlaceLevels
from protocols.aggregation.requester import NAMING_S, Requester, RoundListener
from protocols.aggregation.requesting import NAMED_FAR_MAX
from protocols.aggregation.statements import names_statement
from protocols.aggregation.treerun import HELD_BYTES_MAX
from tests.support.aggregation import signed, started
from tests.support.aggregation_member import ASKER, OWN, QUERY, SIBLING, broadcast, member

LARGE = 1 << 20


class OfMany(FakeHost):
    """Its leaf set does not cover the ring."""

    ring_size = 3.0

    def estimated_ring_size(self) -> float:
        return self.ring_size

    def leaf_set(self) -> LeafSet:
        return LeafSet((), self.neighbours, True, covers_ring=False)


def nameable(requester: int = ASKER) -> StartRound:
    """The start of a round whose nodes are named when a value is large."""
    return started(peer(requester), QUERY.to_wire(), may_name=True)


def names(round_id: bytes, nodes: tuple[PeerRef, ...], in_pieces: bool = False, by: int = ASKER) -> NameNodes:
    return NameNodes(round_id, nodes, in_pieces, signed(NodeId(by), names_statement(round_id, nodes, in_pieces)))


def waiting(value_bytes: int = LARGE) -> tuple[Participant, Aggregation, FakeHost]:
    """A node whose value is there, in a round that a neighbour has begun."""
    plugin, host = member()
    plugin.data.padding_bytes = value_bytes
    start = nameable()
    broadcast(host, start, peer(ASKER))
    return plugin.participating.participants[start.round_id], plugin, host


def test_a_large_value_waits_for_the_names_and_the_requesters_neighbours_say_that_there_is_one() -> None:
    part, _, host = waiting()
    assert part.tree.phase is TreePhase.IDLE
    assert [each.value_bytes > LARGE for to, each in host.sent if isinstance(each, NamesWanted)] == [True]
    far = 100 << 120
    plugin, host = member()
    plugin.data.padding_bytes = LARGE
    broadcast(host, nameable(far), peer(far))
    assert plugin.participating.participants
    assert not [each for _, each in host.sent if isinstance(each, NamesWanted)]


def test_a_value_that_rides_waits_for_nobody() -> None:
    part, _, host = waiting(0)
    assert part.tree.phase is TreePhase.WAITING
    assert not [each for _, each in host.sent if isinstance(each, NamesWanted)]


def test_who_is_named_swaps_by_places_and_who_is_not_swaps_with_nobody() -> None:
    part, _, host = waiting()
    broadcast(host, names(part.round_id, (peer(OWN), peer(SIBLING), peer(ASKER))), peer(ASKER))
    assert part.run.is_named and part.tree.phase is not TreePhase.IDLE
    assert isinstance(part.tree._levels, PlaceLevels)
    answer = host.deliver(Propose(part.round_id, 0), peer(ASKER))
    assert answer == ProposeAnswer(part.round_id, False, AnswerKind.ABSENT), "of the tree before"
    left, _, other = waiting()
    broadcast(other, names(left.round_id, (peer(SIBLING), peer(ASKER))), peer(ASKER))
    left.noted()
    assert left.tree.phase is TreePhase.PRUNED


def test_names_without_the_requesters_signature_are_refused_and_second_ones_change_nothing() -> None:
    part, _, host = waiting()
    everybody = (peer(OWN), peer(SIBLING), peer(ASKER))
    with pytest.raises(ProtocolError, match="forged_names"):
        broadcast(host, names(part.round_id, everybody, by=SIBLING), peer(ASKER))
    signed_names = names(part.round_id, everybody)
    with pytest.raises(ProtocolError, match="forged_names"):
        broadcast(host, NameNodes(part.round_id, everybody, True, signed_names.proof), peer(ASKER))
    broadcast(host, signed_names, peer(ASKER))
    run = part.run
    broadcast(host, names(part.round_id, (peer(OWN), peer(SIBLING))), peer(ASKER))
    assert part.run is run


def test_without_names_a_large_value_is_swapped_by_ids_after_a_while() -> None:
    part, _, host = waiting()
    part.noted()
    assert part.tree.phase is TreePhase.IDLE
    host.fire(NAMES_TIMER, part.round_id)
    assert part.tree.phase is not TreePhase.IDLE and not part.run.is_named


def test_what_overtakes_the_names_is_kept_and_not_without_bound() -> None:
    part, _, host = waiting()
    for _ in range(2 * EARLY_NAMED_MAX):
        host.deliver(PieceTold(part.round_id, PieceStage.READY), peer(SIBLING))
    assert len(part._early) == EARLY_NAMED_MAX
    part, _, host = waiting()
    host.deliver(Invite(part.round_id, 1, named=True), peer(SIBLING))
    assert not [each for _, each in host.sent if isinstance(each, InviteAnswer)]
    broadcast(host, names(part.round_id, (peer(OWN), peer(SIBLING), peer(ASKER))), peer(ASKER))
    assert [each.kind for to, each in host.sent if isinstance(each, InviteAnswer) and to.id == SIBLING]


def test_who_has_not_heard_the_names_is_told_that_its_tree_has_no_partner_here() -> None:
    part, _, host = waiting()
    broadcast(host, names(part.round_id, (peer(OWN), peer(SIBLING), peer(ASKER))), peer(ASKER))
    host.deliver(Invite(part.round_id, 6), peer(SIBLING))
    answers = [each for to, each in host.sent if isinstance(each, InviteAnswer) and to.id == SIBLING and not each.named]
    assert [each.kind for each in answers] == [AnswerKind.ABSENT]


def early_offer(part: Participant, asked: list[int], size_bytes: int = LARGE) -> SwapRequest:
    """The offer of the counterpart for the last level, before the node has come to that level."""
    [giver] = [other for level, other in part.tree.is_begun_by() if level == 0]

    def ask_again() -> bool:
        asked.append(1)
        return True

    return SwapRequest(giver, named_swap_tag(part.round_id), size_bytes, False, ask_again)


def at_its_first_level() -> tuple[Participant, Aggregation]:
    """A node that was named with others, on the requester's side of the last level."""
    part, plugin, host = waiting()
    others = tuple(peer(number << 120) for number in (2, 210, 220, 230, 240))
    host.neighbours = (peer(SIBLING), peer(ASKER), *others)
    broadcast(host, names(part.round_id, (peer(OWN), *host.neighbours)), peer(ASKER))
    assert part.tree.level is not None and part.tree.level > 0
    return part, plugin


def test_an_offer_of_the_counterpart_for_a_level_to_come_is_held_and_decided_about_in_time() -> None:
    part, plugin = at_its_first_level()
    asked: list[int] = []
    request = early_offer(part, asked)
    assert plugin.swap_requested(request) == HoldSwap(part.config.swap_deadline)
    second = plugin.swap_requested(request)
    assert isinstance(second, RefuseSwap) and second.reason == "maybe_later", "one for a level"
    while not asked and part.tree.level is not None:
        part.timer_fired(TreeTimer.RESERVE)
        part.timer_fired(TreeTimer.INVITE)
        part.timer_fired(TreeTimer.LEVEL)
    assert asked and part.tree.level == 0
    assert isinstance(plugin.swap_requested(request), AcceptSwap)


def test_no_offer_is_held_of_a_value_that_would_keep_much_room_or_when_swaps_are_slow() -> None:
    part, plugin = at_its_first_level()
    assert isinstance(plugin.swap_requested(early_offer(part, [], HELD_BYTES_MAX + 1)), RefuseSwap)
    part, plugin = at_its_first_level()
    part.run.swapping._longest_s = 1.0  # at this distance that is long
    assert isinstance(plugin.swap_requested(early_offer(part, [])), RefuseSwap)


@pytest.mark.parametrize(("value_bytes", "is_given"), [(LARGE, True), (HELD_BYTES_MAX, False)])
def test_a_value_is_given_ahead_only_if_it_would_be_held(value_bytes: int, is_given: bool) -> None:
    part, _, host = waiting(value_bytes)
    broadcast(host, names(part.round_id, (peer(OWN), peer(SIBLING), peer(ASKER))), peer(ASKER))
    [(level, other), *_] = part.tree.begins_soon()
    assert level == part.tree.level and "offer" not in [each.what for each in host.asked], "before its first swap"
    part.run.swapping._has_swapped = True
    part.run.apply([OfferAhead(other, level)])
    assert ("offer" in [each.what for each in host.asked]) is is_given


def test_what_is_held_is_decided_about_when_the_round_is_left() -> None:
    part, plugin = at_its_first_level()
    asked: list[int] = []
    request = early_offer(part, asked)
    assert isinstance(plugin.swap_requested(request), HoldSwap)
    plugin.participating._forget(part.round_id, "stopped")
    assert asked
    assert plugin.swap_requested(request) == RefuseSwap("no_such_round")


def test_who_waits_for_the_pieces_of_a_node_that_has_left_is_told_to_go_whole() -> None:
    part, plugin, host = waiting()
    plugin.participating._forget(part.round_id, "refused")
    host.deliver(PieceTold(part.round_id, PieceStage.BEGIN), peer(SIBLING))
    assert host.sent[-1] == (peer(SIBLING), PieceTold(part.round_id, PieceStage.WHOLE))


def test_a_result_that_was_not_answered_is_not_offered_again_once_another_tree_has_begun() -> None:
    part, _, host = waiting(0)
    part.tree_done("result")
    offer, *_ = [each for each in host.requests if isinstance(each.message, ResultReady)]
    broadcast(host, names(part.round_id, (peer(OWN), peer(SIBLING), peer(ASKER))), peer(ASKER))
    offer.on_timeout()
    assert (OFFER_TIMER, part.round_id) not in host.timers


# The requester


def asking() -> tuple[Requester, Aggregation, OfMany]:
    """A node of a ring that it does not know, which has asked, and taken part itself."""
    plugin = Aggregation()
    host = OfMany(OWN, plugin)
    host.neighbours = (peer(SIBLING), peer(ASKER))
    round_id = plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    requester = plugin.requesting.requesters[round_id]
    enrol(requester, OWN, SIBLING)
    return requester, plugin, host


def large(requester: Requester) -> None:
    requester.names_wanted(peer(OWN), LARGE)


def named_by(host: FakeHost) -> list[tuple[int, ...]]:
    told = [each.arguments["message"] for each in host.asked if each.what == "broadcast"]
    return [tuple(each.id for each in message.nodes) for message in told if isinstance(message, NameNodes)]


def enrol(requester: Requester, node: int, successor: int, reason: str = "") -> None:
    requester.enrolled(peer(node), Enrolled(requester.round_id, reason, successor=NodeId(successor)))


def test_all_have_enrolled_when_each_ones_successor_has() -> None:
    collector = Collector(NodeId(1), 3.0, Basis.CENSUS, True)
    for node, successor, is_closed in ((3, 4, False), (1, 3, False), (4, 1, True), (7, 9, False), (9, 1, True)):
        collector.enrol(peer(node), "", successor=NodeId(successor))
        assert collector.have_all_enrolled is is_closed, node


def test_who_enrols_again_and_again_does_not_say_each_time_whom_to_wait_for() -> None:
    collector = Collector(NodeId(1), 3.0, Basis.CENSUS, True)
    for number in range(100):
        collector.enrol(peer(3), "", successor=NodeId(1000 + number))
    assert collector.awaited == {1000}


@pytest.mark.parametrize(("count", "host_name", "are_named"), [(1780, "10.1.2.3", True), (300, "n" * 253, False)])
def test_nobody_is_named_whose_addresses_do_not_fit_into_a_message(count: int, host_name: str, are_named: bool) -> None:
    requester, _, host = asking()
    large(requester)
    for number in range(3, count):
        node = PeerRef(NodeId(number), host_name, 7000)
        requester.collector.enrol(node, "", successor=NodeId(number + 1 if number < count - 1 else number))
    requester.naming_due()
    assert bool(named_by(host)) is are_named
    for message in [each.arguments["message"] for each in host.asked if each.what == "broadcast"]:
        encode_body(message)  # raises for one that is too large


@pytest.mark.parametrize(
    ("ring_size", "rtts_s", "may_name"),
    [
        (NAMED_FAR_MAX, (1.0, 1.0, 1.0), True),
        (NAMED_FAR_MAX + 1, (1.0, 1.0, 0.001), False),
        (NAMED_FAR_MAX + 1, (0.001, 0.001, 1.0), True),
        (NAMED_MAX + 1, (0.001, 0.001, 0.001), False),
        (NAMED_MAX, (), True),
    ],
)
def test_nodes_of_a_large_ring_are_named_where_they_are_near_each_other(
    ring_size: int, rtts_s: tuple[float, ...], may_name: bool
) -> None:
    plugin = Aggregation()
    host = OfMany(OWN, plugin)
    host.neighbours = (peer(SIBLING), peer(ASKER), peer(77 << 120))
    host.rtts = {each.id: rtt_s for each, rtt_s in zip(host.neighbours, rtts_s, strict=False)}
    host.ring_size = ring_size
    plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    assert [each.arguments["message"].may_name for each in host.asked if each.what == "broadcast"] == [may_name]


def test_the_requester_names_those_that_take_part_once_all_have_enrolled() -> None:
    requester, _, host = asking()
    large(requester)
    enrol(requester, SIBLING, ASKER)
    enrol(requester, ASKER, 201 << 120)
    assert not named_by(host)
    enrol(requester, 201 << 120, OWN, "no data root is configured on this node")
    assert named_by(host) == [(OWN, SIBLING, ASKER)]


def test_all_are_named_at_once_when_they_have_enrolled_before_somebodys_value_is_known_to_be_large() -> None:
    requester, _, host = asking()
    enrol(requester, SIBLING, OWN)
    assert not named_by(host)
    large(requester)
    assert named_by(host) == [(OWN, SIBLING)]


def test_whoever_has_not_enrolled_in_time_is_not_named() -> None:
    requester, _, host = asking()
    large(requester)
    enrol(requester, SIBLING, ASKER)
    assert host.timers[NAMING_TIMER, requester.round_id] == NAMING_S and not named_by(host)
    host.fire(NAMING_TIMER, requester.round_id)
    assert named_by(host) == [(OWN, SIBLING)]


def test_nobody_is_named_when_a_tree_is_complete_already() -> None:
    requester, _, host = asking()
    requester.offered(ResultReady(requester.round_id, 2, 10), peer(SIBLING))
    large(requester)
    enrol(requester, SIBLING, OWN)
    assert not named_by(host)


def test_a_result_of_a_tree_before_the_naming_is_not_taken() -> None:
    """Its giver has begun anew, and would not have it any more."""
    requester, _, host = asking()
    large(requester)
    enrol(requester, SIBLING, OWN)
    assert named_by(host)
    requester.offered(ResultReady(requester.round_id, 2, 10), peer(SIBLING))
    assert not requester.collector.candidates
    requester.offered(ResultReady(requester.round_id, 2, 10, named=True), peer(SIBLING))
    assert requester.collector.candidates


def test_only_who_has_enrolled_has_nodes_named() -> None:
    requester, _, host = asking()
    host.deliver(NamesWanted(requester.round_id, LARGE), peer(77 << 120))
    assert (NAMING_TIMER, requester.round_id) not in host.timers
    host.deliver(NamesWanted(requester.round_id, LARGE), peer(OWN))
    assert (NAMING_TIMER, requester.round_id) in host.timers


@pytest.mark.parametrize(("value_bytes", "in_pieces"), [(LARGE - 1, False), (LARGE, True)])
def test_values_go_in_pieces_when_one_is_large_enough(value_bytes: int, in_pieces: bool) -> None:
    requester, _, host = asking()
    for node, successor in ((SIBLING, ASKER), (ASKER, 201 << 120), (201 << 120, OWN)):
        enrol(requester, node, successor)
    requester.names_wanted(peer(OWN), value_bytes)
    [names] = [each.arguments["message"] for each in host.asked if each.what == "broadcast"][1:]
    assert isinstance(names, NameNodes) and names.in_pieces is in_pieces


# The plan of who swaps with whom


@given(st.sets(st.integers(0, 2**128 - 1), min_size=1, max_size=150), st.data())
def test_as_long_as_nobody_fails_the_requester_gets_the_data_of_all(ids: set[int], data: st.DataObject) -> None:
    nodes = sorted(map(NodeId, ids))
    first = data.draw(st.sampled_from(nodes))
    levels = {node: PlaceLevels(node, nodes, first) for node in nodes}
    held = {node: {node} for node in nodes}
    for level in reversed(range(max(1, (len(nodes) - 1).bit_length()))):
        pairs = {node: other for node in nodes if (other := levels[node].counterpart(level)) is not None}
        assert all(pairs[other] == node for node, other in pairs.items())
        for node, other in pairs.items():
            assert levels[node].level_of(other) == level
        merged = {node: held[node] | held[other] for node, other in pairs.items()}
        assert all(len(found) == len(held[node]) + len(held[pairs[node]]) for node, found in merged.items())
        held |= merged
    assert held[first] == set(nodes)
