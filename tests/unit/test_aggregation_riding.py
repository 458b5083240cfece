"""Values that ride along with invitations and answers: transcripts of a plugin on a fake host."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.testing.host import FakeHost, peer
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.effects import TreePhase
from protocols.aggregation.enrolments import GIVERS_MAX, SHOWS_MAX
from protocols.aggregation.exchange import decode_value, extract_own
from protocols.aggregation.messages import (
    AnswerKind,
    AskStart,
    FindEnrolment,
    Invite,
    InviteAnswer,
    Noted,
    Participation,
    Propose,
    ProposeAnswer,
    ShownEnrolment,
)
from protocols.aggregation.participating import EARLY_MAX
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.statements import enrolled_statement, find_statement, noted_statement
from tests.support.aggregation import signed
from tests.support.aggregation_member import (
    ASKER,
    LEVEL,
    OWN,
    QUERY,
    ROUND,
    SIBLING,
    broadcast,
    enrolments,
    member,
    one_record,
    start,
)


def test_a_node_enrols_before_its_data_goes_anywhere_and_waits_for_no_answer() -> None:
    """So the requester hears of everybody whose data may be in a result."""
    _, host = member()
    broadcast(host, start(), peer(ASKER))
    assert enrolments(host, peer(ASKER)) == 1
    [(invited, invite)] = [(to, each) for to, each in host.sent if isinstance(each, Invite)]
    assert (invited.id, invite.level, invite.rides) == (SIBLING, LEVEL, True)
    assert invite.value


def sibling_value() -> bytes:
    """The value of the other node, as it rides along."""
    return bytes(8) + extract_own(one_record, QUERY, NodeId(SIBLING))


def test_a_large_value_is_swapped_only_after_the_requester_has_noted_its_node() -> None:
    """Whoever gets it in a swap cannot show that its node takes part, if that dies before it has enrolled."""
    plugin, host = member()
    plugin.data.padding_bytes = 1 << 20
    broadcast(host, start(), peer(ASKER))
    answer = host.deliver(Propose(ROUND, LEVEL), peer(SIBLING))
    assert answer == ProposeAnswer(ROUND, False, AnswerKind.MAYBE_LATER)
    assert plugin.participating.participants[ROUND].tree.phase is TreePhase.IDLE
    broadcast(host, Noted(ROUND, signed(NodeId(ASKER), noted_statement(ROUND, NodeId(OWN)))), peer(ASKER))
    assert plugin.participating.participants[ROUND].tree.phase is TreePhase.PROPOSING
    assert host.requests[-1].message == Propose(ROUND, LEVEL)


def test_who_gives_its_own_data_shows_that_it_takes_part_and_who_has_it_can_show_it() -> None:
    """The enrolment may be lost with the node, when it dies at once; its data is in all results by then."""
    _, giver = member()
    broadcast(giver, start(), peer(ASKER))
    [given] = [each for _, each in giver.sent if isinstance(each, Invite)]
    proof = signed(NodeId(OWN), enrolled_statement(ROUND, peer(OWN), ""))
    assert given.shown == (Participation(peer(OWN), proof),)
    plugin = Aggregation(AggregationConfig())
    plugin.data.extractor = one_record
    host = FakeHost(SIBLING, plugin)
    host.neighbours = (peer(OWN), peer(ASKER))
    broadcast(host, start(), peer(ASKER))
    host.deliver(given, peer(OWN))
    host.run_later()
    host.routed.clear()
    for node in (OWN, 5 << 120):
        asked = find_statement(ROUND, host.id, NodeId(node))
        broadcast(host, FindEnrolment(ROUND, NodeId(node), signed(NodeId(OWN), asked)), peer(ASKER))
        assert node != OWN or not host.routed, "only the requester has an answer"
        broadcast(host, FindEnrolment(ROUND, NodeId(node), signed(NodeId(ASKER), asked)), peer(ASKER))
    assert host.routed == [(ASKER, ShownEnrolment(ROUND, *given.shown))]
    [further] = [each for _, each in host.sent if isinstance(each, Invite) and each.level == 0]
    assert {each.peer.id for each in further.shown} == {OWN, SIBLING}, "both may die"
    question = FindEnrolment(ROUND, NodeId(OWN), signed(NodeId(ASKER), find_statement(ROUND, host.id, NodeId(OWN))))
    for _ in range(2 * SHOWS_MAX):
        broadcast(host, question, peer(SIBLING))
    assert len(host.routed) < SHOWS_MAX, "it may be shown again and again"


def test_a_false_word_about_another_node_does_not_hide_that_nodes_own() -> None:
    """Nor can one giver fill the room of others."""
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    false = Participation(peer(SIBLING), b"false")
    for liar in (5 << 120, 6 << 120):
        host.deliver(Invite(ROUND, 0, rides=True, value=b"x", shown=(false,)), peer(liar))
    proof = signed(NodeId(SIBLING), enrolled_statement(ROUND, peer(SIBLING), ""))
    host.deliver(
        Invite(ROUND, LEVEL, rides=True, value=b"x", shown=(Participation(peer(SIBLING), proof),)), peer(SIBLING)
    )
    for number in range(2 * GIVERS_MAX):
        host.deliver(Invite(ROUND, 0, rides=True, shown=(false,)), peer((100 << 120) + number))
    participant = plugin.participating.participants[ROUND]
    assert participant.shown.about(NodeId(SIBLING)) == ShownEnrolment(ROUND, Participation(peer(SIBLING), proof))
    assert len(participant.shown._by_giver) == GIVERS_MAX


def test_an_invitation_that_overtakes_the_start_is_answered_when_the_start_has_come() -> None:
    plugin, host = member()
    invite = Invite(ROUND, LEVEL, rides=True, value=sibling_value())
    host.deliver(invite, peer(SIBLING))
    assert not host.requests and not host.sent, "the start may be about to come"
    host.deliver(replace(invite, value=b""), peer(SIBLING))
    assert [each.message for each in host.requests] == [AskStart(ROUND)], "it asks again, so it is late"
    broadcast(host, start(), peer(ASKER))
    assert plugin.participating.participants[ROUND].tree.contributors == {OWN, SIBLING}
    assert not plugin.participating._early


def test_only_so_many_invitations_wait_for_rounds_that_nobody_has_started() -> None:
    plugin, host = member()
    for number in range(2 * EARLY_MAX):
        host.deliver(Invite(start(number=number).round_id, LEVEL, rides=True, value=b"x" * 1000), peer(SIBLING))
    assert len(plugin.participating._early) == EARLY_MAX
    plugin.validate()


def test_a_value_is_not_taken_from_a_routed_invitation() -> None:
    """Anybody may have made up its source, and what it says would be that node's fault."""
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    with pytest.raises(ProtocolError, match="own link only"):
        plugin.deliver(NodeId(OWN + 1), Invite(ROUND, LEVEL, rides=True, value=sibling_value()), peer(SIBLING))
    assert plugin.participating.participants[ROUND].tree.contributors == {OWN}


@pytest.mark.parametrize("how", ["invitation", "answer"])
def test_a_false_value_that_rides_along_costs_its_giver_the_link(how: str) -> None:
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    false = bytes(8) + extract_own(one_record, QUERY, NodeId(5 << 120))
    if how == "invitation":
        host.deliver(Invite(ROUND, LEVEL, rides=True, value=false), peer(SIBLING))
    else:
        host.deliver(InviteAnswer(ROUND, LEVEL, AnswerKind.VALUE, value=false), peer(SIBLING))
    host.run_later()
    assert [blamed.id for blamed, _ in host.blamed] == [SIBLING]
    assert plugin.participating.participants[ROUND].tree.contributors == {OWN}


def test_a_node_gives_at_each_level_what_it_held_when_it_came_there() -> None:
    """So whoever is late gets the data of one side, and never what it is to get at a shorter level."""
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    host.deliver(Invite(ROUND, LEVEL, rides=True, value=sibling_value()), peer(SIBLING))
    host.run_later()
    participant = plugin.participating.participants[ROUND]
    assert participant.tree.contributors == {OWN, SIBLING} and participant.tree.level == 0
    for level, contributors in ((LEVEL + 3, {OWN}), (LEVEL, {OWN}), (LEVEL - 1, {OWN, SIBLING}), (0, {OWN, SIBLING})):
        held, _ = decode_value(QUERY, participant.run._side(level).encoded)
        assert set(held.contributors) == contributors
