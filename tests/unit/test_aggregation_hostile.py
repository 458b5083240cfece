"""One member that sends what no member sends: transcripts of a plugin on a fake host."""

from __future__ import annotations

import typing
from io import BytesIO
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from peerd.api import AcceptSwap, SwapRequest
from peerd.errors import PeerMisbehaved, ProtocolError
from peerd.ids import NodeId
from peerd.limits import EVENT_TEXT_LENGTH_MAX
from peerd.messages import Message, PeerRef, decode_body, encode_body
from peerd.testing.host import FakeHost, peer
from protocols.aggregation import participant
from protocols.aggregation.collector import DIRECT_CENSUS_MAX
from protocols.aggregation.config import ROUND_S_MAX
from protocols.aggregation.effects import TreeDone, TreePhase
from protocols.aggregation.events import RoundStarted
from protocols.aggregation.exchange import extract_own, swap_tag
from protocols.aggregation.messages import (
    MESSAGES,
    REASON_BYTES_MAX,
    Absentee,
    AnswerKind,
    AskStart,
    Enrolled,
    Invite,
    InviteAnswer,
    NodeState,
    Noted,
    Propose,
    ProposeAnswer,
    ResultReady,
    RoundStatus,
    StartRound,
    StopRound,
    WhyMissing,
    reason_text,
)
from protocols.aggregation.participant import ENROL_TRIES_MAX, TELL_PAUSE_S, TELL_TRIES_MAX
from protocols.aggregation.participating import CLOCKS_APART_S, EXPIRY_GRACE_S, IDLE_S
from protocols.aggregation.query import parse_query
from protocols.aggregation.requester import RoundListener
from protocols.aggregation.statements import enrolled_statement, noted_statement, stop_statement
from tests.support.aggregation import signed, started
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
from tests.support.examples import examples

LARGE = started(peer(ASKER), QUERY.to_wire(), is_direct=False)


def test_in_a_large_ring_enrolment_goes_through_the_overlay_signed() -> None:
    """The requester has no link left for some."""
    _, host = member(is_near=False)
    broadcast(host, LARGE, peer(ASKER))
    assert not host.requests
    [(to, enrolled)] = [(to, each) for to, each in host.routed if isinstance(each, Enrolled)]
    assert to == ASKER
    asker_plugin, asker = member()
    asker_plugin.data.extractor = None
    round_id = asker_plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    enrolled = replace(enrolled, round_id=round_id)
    with pytest.raises(ProtocolError, match="forged_enrolment"):
        broadcast(asker, enrolled, peer(SIBLING))
    proof = signed(NodeId(SIBLING), enrolled_statement(round_id, peer(SIBLING), ""))
    broadcast(asker, replace(enrolled, absent=(), successor=None, proof=proof), peer(SIBLING))
    assert SIBLING in asker_plugin.requesting.requesters[round_id].collector.enrolled
    answer = asker.routed[-1]
    assert answer == (SIBLING, Noted(round_id, signed(asker.id, noted_statement(round_id, NodeId(SIBLING)))))


def test_what_is_said_when_enrolling_cannot_be_changed_on_the_way() -> None:
    plugin, host = member()
    round_id = plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    proof = signed(NodeId(SIBLING), enrolled_statement(round_id, peer(SIBLING), ""))
    moved = PeerRef(NodeId(SIBLING), "10.9.9.9", 1)
    for enrolled, source in (
        (Enrolled(round_id, "no data", (), proof), peer(SIBLING)),
        (Enrolled(round_id, "", (Absentee(peer(7), 5),), proof), peer(SIBLING)),
        (Enrolled(round_id, "", (), proof), peer(ASKER)),
        (Enrolled(round_id, "", (), proof), moved),
    ):
        with pytest.raises(ProtocolError, match="forged_enrolment"):
            broadcast(host, enrolled, source)
    assert not plugin.requesting.requesters[round_id].collector.enrolled
    broadcast(host, Enrolled(round_id, "", (), proof), peer(SIBLING))
    assert plugin.requesting.requesters[round_id].collector.enrolled == {SIBLING}


def test_in_a_large_ring_only_the_requester_ends_the_enrolling_and_nobody_waits_for_it() -> None:
    plugin, host = member(is_near=False)
    broadcast(host, LARGE, peer(ASKER))
    for proof in (b"", signed(NodeId(SIBLING), noted_statement(LARGE.round_id, host.id)), LARGE.proof):
        with pytest.raises(ProtocolError, match="forged_note"):
            broadcast(host, Noted(LARGE.round_id, proof), peer(ASKER))
    assert plugin.participating.participants[LARGE.round_id].tree.phase is TreePhase.WAITING
    assert ("enrol_due", LARGE.round_id) in host.timers
    broadcast(host, Noted(LARGE.round_id, signed(NodeId(ASKER), noted_statement(LARGE.round_id, host.id))), peer(ASKER))
    assert ("enrol_due", LARGE.round_id) not in host.timers


def test_an_enrolment_that_is_lost_is_said_again_and_not_for_ever() -> None:
    plugin, host = member(is_near=False)
    broadcast(host, LARGE, peer(ASKER))
    for number in range(ENROL_TRIES_MAX):
        assert host.timers["enrol_due", LARGE.round_id] == host.time_s + TELL_PAUSE_S * 2**number
        host.fire("enrol_due", LARGE.round_id)
    assert sum(isinstance(each, Enrolled) for _, each in host.routed) == ENROL_TRIES_MAX
    assert not plugin.participating.participants
    assert not host.timers


def test_an_enrolment_in_a_round_that_is_over_is_answered_with_its_end() -> None:
    plugin, asker = member()
    round_id = plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    plugin.requesting.cancel(round_id)
    for request in asker.requests:
        request.on_timeout()
    assert not plugin.requesting.requesters
    proof = signed(NodeId(SIBLING), enrolled_statement(round_id, peer(SIBLING), ""))
    broadcast(asker, Enrolled(round_id, "", (), proof), peer(SIBLING))
    assert asker.routed == [(SIBLING, StopRound(round_id, signed(asker.id, stop_statement(round_id))))]


def test_an_enrolment_that_somebody_broadcasts_is_answered_by_nobody_but_the_requester() -> None:
    """Else every node of the ring would answer the one that has signed it, whoever shows it again."""
    _, host = member()
    proof = signed(NodeId(SIBLING), enrolled_statement(ROUND, peer(SIBLING), ""))
    broadcast(host, Enrolled(ROUND, "", (), proof), peer(SIBLING))
    assert not host.routed and not host.sent


def test_an_invitation_that_is_broadcast_is_answered_by_nobody() -> None:
    """Its source may be made up, and every node of the ring would answer it."""
    plugin, host = member()
    assert host.plugin is plugin
    with pytest.raises(ProtocolError, match="not_routed"):
        plugin.deliver(host.id, Invite(ROUND, LEVEL), peer(SIBLING))
    assert not host.sent and not host.requests
    plugin.deliver(NodeId(host.id + 1), Invite(ROUND, LEVEL), peer(SIBLING))
    assert host.requests, "a routed one is for whoever is closest to its key"


@pytest.mark.parametrize("count", [DIRECT_CENSUS_MAX, DIRECT_CENSUS_MAX + 1])
def test_nodes_enrol_on_links_of_their_own_where_everybody_can_have_one(count: int) -> None:
    plugin, host = member()
    host.neighbours = tuple(peer(1000 + number) for number in range(count - 1))
    plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    [told] = [each.arguments["message"] for each in host.asked if each.what == "broadcast"]
    assert told.census
    assert told.is_direct == (count <= DIRECT_CENSUS_MAX)


def test_a_node_that_its_requester_does_not_answer_leaves_the_round() -> None:
    plugin, host = member(is_near=False)
    broadcast(host, start(), peer(ASKER))
    host.fire("enrol_due", ROUND)
    for _ in range(ENROL_TRIES_MAX - 1):
        host.requests[-1].on_timeout()
        host.fire("enrol_due", ROUND)
    assert len(host.requests) == ENROL_TRIES_MAX - 1, "on links of their own after the first, which is routed"
    assert not plugin.participating.participants
    assert not host.timers


@pytest.mark.parametrize("begun", [start(), LARGE], ids=["small ring", "large ring"])
def test_a_neighbour_of_the_requester_enrols_on_their_link_and_then_through_the_overlay(begun: StartRound) -> None:
    plugin, host = member()
    broadcast(host, begun, peer(ASKER))
    [request] = host.requests
    assert (request.peer.id, request.timeout_s) == (ASKER, TELL_PAUSE_S)
    assert isinstance(request.message, Enrolled) and request.message.proof == b"", "the link shows whose word it is"
    assert not host.routed
    request.on_timeout()
    [(to, enrolled)] = host.routed
    assert to == ASKER and isinstance(enrolled, Enrolled) and enrolled.proof
    noted = Noted(begun.round_id, signed(NodeId(ASKER), noted_statement(begun.round_id, host.id)))
    broadcast(host, noted, peer(ASKER))
    assert ("enrol_due", begun.round_id) not in host.timers
    assert begun.round_id in plugin.participating.participants
    for after_the_end in (host.requests[0].on_timeout, lambda: host.requests[0].on_reply(noted, peer(ASKER))):
        host.deliver(StopRound(begun.round_id), peer(ASKER))
        after_the_end()
        assert not plugin.participating.participants and not host.timers


def test_a_value_that_cannot_be_decoded_costs_its_giver_the_link_and_nothing_else() -> None:
    """A column of empty maps once raised TypeError, and six of them took aggregation from every node."""
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    answer = host.deliver(Propose(ROUND, LEVEL), peer(SIBLING))
    assert isinstance(answer, ProposeAnswer)
    assert answer.accepted
    accepted = plugin.swap_requested(SwapRequest(peer(SIBLING), swap_tag(ROUND, LEVEL), 100, False))
    true = bytes(8) + extract_own(one_record, QUERY, NodeId(SIBLING))
    values = list(msgpack.Unpacker(BytesIO(true[8:])))
    values[-5] = bytes.fromhex("80")  # the scales of the sums: an empty map
    assert isinstance(accepted, AcceptSwap) and accepted.callbacks.received is not None
    accepted.callbacks.received(true[:8] + b"".join(map(msgpack.packb, values)))
    host.run_later()
    [(blamed, error)] = host.blamed
    assert blamed == peer(SIBLING)
    assert isinstance(error, ProtocolError)
    assert host.counted["peerd_aggregation_rejected_total", "aggregation_partial"] == 1
    assert plugin.participating.participants[ROUND].tree.contributors == {OWN}
    plugin.validate()


def test_a_result_that_cannot_be_decoded_costs_its_giver_the_link() -> None:
    plugin, host = member()
    plugin.data.extractor = None
    round_id = plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    host.deliver(Enrolled(round_id, ""), peer(SIBLING))
    host.deliver(ResultReady(round_id, 1, 100), peer(SIBLING))
    host.fire("settle_due", round_id)
    [fetch] = [each for each in host.asked if each.what == "fetch"]
    fetch.arguments["callbacks"].done(b"nonsense and more of it")
    host.run_later()
    assert [blamed for blamed, _ in host.blamed] == [peer(SIBLING)]


def test_a_long_query_fits_into_the_events() -> None:
    """Its text is longer than an event's: the node then failed at every such query."""
    where = f"a IN ({', '.join(repr('x' * 200) for _ in range(30))})"
    query = msgpack.packb((3, "count", where, "**/*", "ndjson", None, 100))
    plugin, host = member()
    broadcast(host, start(query), peer(ASKER))
    assert len(plugin.participating.participants) == 1
    [event] = [each for each in host.events if isinstance(each, RoundStarted)]
    assert len(event.query) == EVENT_TEXT_LENGTH_MAX


def test_a_query_that_grows_when_it_is_written_anew_is_passed_on_as_it_came() -> None:
    """A filter as long as it may be: with the usual spaces in it the next node would refuse it."""
    query = msgpack.packb((3, "count", "a in(1,2,3)", "**/*", "ndjson", None, 100))
    _, host = member()
    broadcast(host, start(query), peer(ASKER))
    answer = host.deliver(AskStart(start(query).round_id), peer(SIBLING))
    assert isinstance(answer, StartRound)
    assert answer.query == query


def test_a_refusal_that_quotes_a_hostile_pattern_fits_into_the_answer() -> None:
    query = parse_query("count", format="text", pattern="(?P<a>(?=" + "\U0001f600" * 400 + "))").to_wire()
    _, host = member()
    broadcast(host, start(query), peer(ASKER))
    answer = host.deliver(WhyMissing(start(query).round_id), peer(ASKER))
    assert isinstance(answer, RoundStatus)
    assert "refused" in answer.detail
    assert all(len(each.reason.encode()) <= REASON_BYTES_MAX for _, each in host.sent if isinstance(each, Enrolled))


def test_only_the_requester_is_given_a_nodes_own_data_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    host.run_later()
    own = plugin.participating.participants[ROUND].own
    assert own is not None
    answers = [host.deliver(WhyMissing(ROUND), peer(source)) for source in (ASKER, SIBLING)]
    assert [each.value for each in answers if isinstance(each, RoundStatus)] == [own.encoded, b""]
    monkeypatch.setattr(participant, "CARRIED_BYTES_MAX", len(own.encoded) - 1)
    answer = host.deliver(WhyMissing(ROUND), peer(ASKER))
    assert isinstance(answer, RoundStatus)
    assert answer.value == b"", "a larger value is fetched"


@pytest.mark.parametrize(("reason", "is_over"), [("refused", True), ("links_max", False), ("closed_early", False)])
def test_who_has_no_room_for_a_link_is_waited_for_and_who_is_not_there_is_not(reason: str, is_over: bool) -> None:
    plugin, host = member(is_near=False)
    broadcast(host, start(), peer(ASKER))
    host.run_later()
    tree = plugin.participating.participants[ROUND].tree
    assert tree.phase is TreePhase.WAITING
    plugin.peer_down(peer(SIBLING), reason)
    assert tree.is_over is is_over


@pytest.mark.parametrize("text", ["x" * 9000, "\U0001f600" * 9000, "bad name \udcff\udcff", "\ud800" * 400])
def test_any_reason_fits_into_every_message_that_carries_one(text: str) -> None:
    for message in (RoundStatus(ROUND, 5, 0, reason_text(text)), Enrolled(ROUND, reason_text(text))):
        FakeHost(1).send(peer(2), message)


# Rounds without end


def test_17_rounds_of_49_days_from_one_member_leave_room_for_others() -> None:
    plugin, host = member()
    for number in range(17):
        broadcast(host, start(number=1 + number, remaining_s=49 * 86_400.0), peer(ASKER))
    assert len(plugin.participating.participants) == plugin.config.rounds_per_requester_max
    broadcast(host, start(requester=peer(SIBLING)), peer(SIBLING))
    assert enrolments(host, peer(SIBLING)) == 1
    expiries = [due for (name, _), due in host.timers.items() if name == "round_expired"]
    assert max(expiries) <= ROUND_S_MAX + EXPIRY_GRACE_S


def test_18496_rounds_leave_the_node_working() -> None:
    plugin, host = member()
    host.neighbours = ()
    for number in range(18_496):
        asker = peer(1000 + number)
        with pytest.raises(ProtocolError, match="by a broadcast only"):
            host.deliver(start(requester=asker, number=number), asker)
        broadcast(host, start(requester=asker, number=number), asker)
    assert len(plugin.participating.participants) == plugin.config.rounds_max
    assert len(host.timers) <= 4 * plugin.config.rounds_max
    plugin.validate()
    host.time_s += IDLE_S
    broadcast(host, start(), peer(ASKER))
    assert ROUND in plugin.participating.participants
    assert enrolments(host, peer(ASKER)) == 1


def test_an_old_start_of_this_nodes_own_that_is_shown_again_takes_no_room_from_its_rounds() -> None:
    """Somebody has kept it, and this node has been restarted: it waits for no answer any more."""
    plugin, host = member()
    for number in range(plugin.config.rounds_per_requester_max):
        old = start(requester=host.peer, number=1 + number)
        broadcast(host, old, host.peer)
        plugin.participating.participants[old.round_id].idle_since = 0.0
    host.time_s = IDLE_S
    asked = plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    host.run_later()
    waiting = start(requester=host.peer)
    broadcast(host, waiting, host.peer)
    assert waiting.round_id in plugin.participating.participants, "the oldest of those gave way"
    assert plugin.participating.is_asked(asked) and not plugin.participating.is_asked(waiting.round_id)


def test_the_round_that_is_idle_for_longest_makes_room_and_one_at_work_does_not() -> None:
    plugin, host = member()
    most = plugin.config.rounds_per_requester_max
    ids = []
    for number in range(most):
        each = start(number=1 + number)
        broadcast(host, each, peer(ASKER))
        ids.append(each.round_id)
        plugin.participating.participants[ids[-1]].idle_since = None
    for number, since in ((3, 2.0), (5, 1.0)):
        plugin.participating.participants[ids[number]].idle_since = since
    host.time_s = 1.0 + IDLE_S
    broadcast(host, start(), peer(ASKER))
    assert ids[5] not in plugin.participating.participants
    assert ROUND in plugin.participating.participants
    broadcast(host, start(number=999), peer(ASKER))
    answer = host.deliver(WhyMissing(start(number=999).round_id), peer(ASKER))
    assert isinstance(answer, RoundStatus)
    assert answer.detail == f"busy: {most} rounds of this requester are open on this node"


def test_a_declined_round_costs_no_timer_and_is_remembered_by_its_reason() -> None:
    plugin, host = member()
    plugin.data.extractor = None
    broadcast(host, start(), peer(ASKER))
    assert not plugin.participating.participants
    assert not host.timers
    assert host.deliver(Propose(ROUND, LEVEL), peer(SIBLING)) == ProposeAnswer(ROUND, False, AnswerKind.ABSENT)
    answer = host.deliver(WhyMissing(ROUND), peer(ASKER))
    assert answer == RoundStatus(ROUND, NodeState.DECLINED, 0, "no data root is configured on this node")


# Forged control


def test_a_round_ends_by_its_requesters_word_only() -> None:
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    of_another = signed(NodeId(ASKER), stop_statement(start(number=5).round_id))
    for proof in (b"", start().proof, of_another, signed(NodeId(SIBLING), stop_statement(ROUND))):
        with pytest.raises(ProtocolError, match="not the sender's"):
            host.deliver(StopRound(ROUND, proof), peer(SIBLING))
        with pytest.raises(ProtocolError, match="has not signed it"):
            broadcast(host, StopRound(ROUND, proof), peer(ASKER))  # the source is made up
    assert ROUND in plugin.participating.participants
    broadcast(host, StopRound(ROUND, signed(NodeId(ASKER), stop_statement(ROUND))), peer(SIBLING))
    assert not plugin.participating.participants


def test_the_requester_ends_a_round_that_it_never_asked_for() -> None:
    _, asker = member()
    stop = asker.deliver(Enrolled(ROUND, ""), peer(SIBLING))
    assert stop == StopRound(ROUND)
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    host.requests[-1].on_reply(stop, peer(ASKER))
    assert not plugin.participating.participants
    assert asker.deliver(ResultReady(ROUND, 1, 100), peer(SIBLING)) == stop
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    host.deliver(stop, peer(ASKER))
    assert not plugin.participating.participants


def test_nobody_starts_another_round_under_the_same_id() -> None:
    plugin, host = member()
    true = start()
    other = parse_query("count").to_wire()
    for forged in (
        replace(true, query=other),
        replace(true, requester=peer(SIBLING)),
        replace(true, lasts_ms=true.lasts_ms + 1),
        replace(true, is_direct=False),
        replace(true, proof=signed(NodeId(SIBLING), b"start" + ROUND)),
        replace(true, proof=b""),
    ):
        with pytest.raises(ProtocolError, match="forged_round"):
            broadcast(host, forged, forged.requester)
    assert not plugin.participating.participants
    assert not host.requests
    broadcast(host, true, peer(SIBLING))
    assert plugin.participating.participants[ROUND].requester == peer(ASKER), "whoever passes it on"


def test_a_start_that_somebody_has_kept_cannot_be_shown_again_later() -> None:
    plugin, host = member()
    host.time_s = 60.0 + CLOCKS_APART_S + 1
    with pytest.raises(ProtocolError, match="old_round"):
        broadcast(host, start(), peer(ASKER))
    host.time_s = 60.0 + CLOCKS_APART_S - 1
    broadcast(host, start(), peer(ASKER))
    assert ROUND in plugin.participating.participants


def test_a_round_that_begins_in_the_far_future_is_not_taken_part_in() -> None:
    plugin, host = member()
    for early_s, is_in in ((CLOCKS_APART_S + 1, False), (CLOCKS_APART_S - 1, True)):
        early = started(peer(ASKER), QUERY.to_wire(), begins_at_s=host.time_s + early_s)
        if not is_in:
            with pytest.raises(ProtocolError, match="early_round"):
                broadcast(host, early, peer(ASKER))
        else:
            broadcast(host, early, peer(ASKER))
        assert (early.round_id in plugin.participating.participants) == is_in


def test_a_round_is_never_told_to_be_older_than_fits() -> None:
    plugin, host = member()
    host.time_s = 50 * 86_400.0
    true = started(peer(ASKER), QUERY.to_wire(), begins_at_s=host.time_s, remaining_s=ROUND_S_MAX)
    with pytest.raises(ProtocolError, match="old_round"):
        broadcast(host, replace(true, age_ms=2**32 - 1), peer(ASKER))
    broadcast(host, replace(true, age_ms=int(ROUND_S_MAX) * 1000), peer(ASKER))
    host.time_s += ROUND_S_MAX - 1
    told = plugin.participating.on_ask_start(AskStart(true.round_id), peer(SIBLING))
    assert isinstance(told, StartRound)
    assert decode_body(StartRound, encode_body(told)) == told


def test_who_passes_on_a_start_that_this_node_does_not_believe_keeps_its_link() -> None:
    """It may have checked it under another root."""
    plugin, host = member()
    host.deliver(Invite(ROUND, LEVEL), peer(SIBLING))
    host.requests[-1].on_reply(replace(start(), proof=b"of another root"), peer(SIBLING))
    assert not plugin.participating.participants
    assert host.counted["peerd_aggregation_rejected_total", "forged_round"] == 1


def test_a_result_is_offered_again_until_the_requester_answers() -> None:
    plugin, host = member()
    host.neighbours = (peer(ASKER),)
    broadcast(host, start(), peer(ASKER))
    participant = plugin.participating.participants[ROUND]
    participant.run._carry_out(TreeDone("result"))
    for _ in range(TELL_TRIES_MAX - 1):
        host.requests[-1].on_timeout()
        host.fire("offer_due", ROUND)
    offers = [each for each in host.requests if isinstance(each.message, ResultReady)]
    assert len(offers) == TELL_TRIES_MAX
    offers[-1].on_reply(StopRound(ROUND), peer(ASKER))
    assert not plugin.participating.participants


def test_what_tells_about_its_sender_is_not_taken_from_a_routed_message() -> None:
    plugin, host = member()
    round_id = plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    for message in (
        ResultReady(round_id, 3, 100),
        InviteAnswer(round_id, LEVEL, AnswerKind.NO),
        Propose(round_id, LEVEL),
    ):
        with pytest.raises(ProtocolError, match="own link only"):
            broadcast(host, message, peer(SIBLING))
    with pytest.raises(ProtocolError, match="has not signed it"):  # made-up sources once made every node "decline"
        broadcast(host, Enrolled(round_id, "no data here"), peer(SIBLING))
    collector = plugin.requesting.requesters[round_id].collector
    assert not collector.declined
    assert not collector.candidates


numbers = st.integers(0, 2**64 - 1) | st.integers(0, 200) | st.integers(-2, 2)
junk = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=5) | st.binary(max_size=20) | st.just(ROUND),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)
peers = st.sampled_from([peer(SIBLING), peer(ASKER), peer(7)])
wire_peer = st.tuples(
    st.just(ASKER.to_bytes(16, "big")) | st.just((7).to_bytes(16, "big")), st.just("10.0.0.9"), st.integers(1, 65535)
).map(list)
likely = {
    "round_id": st.just(ROUND) | st.just(b"s" * 16),
    "nonce": st.just(start().nonce) | st.binary(min_size=16, max_size=16),
    "begins_at_ms": st.just(0) | st.integers(0, 2**64 - 1),
    "lasts_ms": st.just(60_000) | st.integers(0, 2**32 - 1),
    "is_direct": st.booleans(),
    "proof": st.just(start().proof) | st.binary(max_size=16),
    "query": st.just(QUERY.to_wire()) | st.binary(max_size=30),
    "level": st.integers(0, 127) | st.just(LEVEL),
    "kind": st.sampled_from([*AnswerKind, 9]),
    "age_ms": st.integers(0, 2**32 - 1),
    "remaining_ms": st.integers(0, 2**32 - 1),
    "census": st.booleans(),
    "accepted": st.booleans(),
    "is_exact": st.booleans(),
    "contributors": st.integers(0, 2**32 - 1),
    "value_bytes": st.integers(0, 2**64 - 1),
    "state": st.integers(0, 255),
    "reason": st.text(max_size=8),
    "detail": st.text(max_size=8),
}


_FIELDS = {kind: list(typing.get_type_hints(kind.__init__))[:-1] for kind in MESSAGES}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[type[Message], bytes]:
    """The body of a message whose fields are likely values, or anything at all."""
    kind = draw(st.sampled_from(MESSAGES))
    fields = [draw(likely.get(name, wire_peer) | junk) for name in _FIELDS[kind]]
    return kind, msgpack.packb(fields[: draw(st.integers(0, len(fields)))] if draw(st.booleans()) else fields)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(bodies(), peers, st.booleans()), max_size=6))
def test_nothing_that_a_member_sends_is_a_failure_of_the_plugin(sent: list[Any]) -> None:
    plugin, host = member()
    broadcast(host, start(), peer(ASKER))
    round_id = plugin.requesting.aggregate(QUERY, RoundListener(lambda answer: None), 60.0)
    for (kind, body), source, through_overlay in sent:
        try:
            message = decode_body(kind, body.replace(b"s" * 16, round_id))
            if through_overlay:
                broadcast(host, message, source)
            elif kind in plugin.handlers.messages:
                host.deliver(message, source)
            else:
                for request in host.requests:
                    request.on_reply(message, request.peer)
                host.requests.clear()
        except PeerMisbehaved:
            continue
        plugin.validate()
