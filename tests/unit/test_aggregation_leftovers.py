"""Small results and leftovers that come along with messages, and leftovers that are fetched."""

from __future__ import annotations

import pytest

from peerd.api import SizedBlob
from peerd.ids import NodeId
from peerd.testing.host import peer
from protocols.aggregation.collector import CARRIED_MAX
from protocols.aggregation.exchange import own_tag, result_tag
from protocols.aggregation.leftovers import (
    FETCH_S_MAX,
    FETCHED_AT_ONCE,
    FETCHED_BYTES_AT_ONCE,
    FIRST_FETCHED,
    PATIENCE_S_MAX,
    STATUS_TIMEOUT_S,
    Leftovers,
)
from protocols.aggregation.messages import ConfirmContribution, NodeState, RoundStatus
from protocols.aggregation.patience import OPENING_RTTS, PATIENCE
from protocols.aggregation.requester import RoundListener
from tests.support.asking import QUERY, Asking, data_of


def gathering() -> Asking:
    """The result of nodes 2 and 3 is there, and the other nodes are asked why it lacks them."""
    asking = Asking()
    asking.offer(2, 2)
    asking.settled()
    asking.fetched(2, 3)
    asked = [request.peer.id >> 120 for request in asking.host.requests]
    assert asked == [1, 4, 5, 6, 7, 8], "and not this node itself"
    return asking


def test_the_result_gets_the_own_data_of_those_that_it_lacks() -> None:
    asking = gathering()
    for request in asking.host.requests:
        state = NodeState.EXTRACTING if request.peer.id >> 120 == 6 else NodeState.PRUNED
        request.on_reply(RoundStatus(asking.round_id, state, 0, ""), request.peer)
    assert [number for number, _ in asking.fetches()] == [2, 1, 4, 5, 7], "who still extracts has nothing to give"
    assert {each.arguments["tag"] for each in asking.host.asked if each.what == "fetch"} == {
        result_tag(asking.round_id),
        own_tag(asking.round_id),
    }
    for place, number in enumerate([1, 4, 5, 7, 8], 1):
        found, callbacks = asking.fetches()[place]
        assert found == number
        if number == 1:
            callbacks.failed("timeout")
        elif number == 4:
            callbacks.done(data_of(5).value)
        else:
            callbacks.done(data_of(number).value)
        asking.host.run_later()
    [answer] = asking.answers
    assert {node >> 120 for node in answer.contributor_ids} == {2, 3, 5, 7, 8}
    assert [blamed.id >> 120 for blamed, _ in asking.host.blamed] == [4], "it gave another node's data"
    reasons = {missing.node >> 120: missing.reason for missing in answer.missing}
    assert reasons[6] == "still extracting its data"
    assert reasons[1].endswith("its own data could not be had: timeout")
    assert "not the giver's own data" in reasons[4]


def test_a_small_result_and_what_it_lacks_come_without_a_connection() -> None:
    asking = Asking()
    asking.offer(2, 2, bytes(data_of(2, 3).encoded))
    asking.settled()
    asking.host.run_later()
    for request in asking.host.requests:
        number = request.peer.id >> 120
        value = {1: data_of(1), 4: data_of(5), 5: data_of(5)}.get(number)
        # Who waits for others has its own data, too, and would be asked in vain if it counted as one that extracts.
        state = NodeState.EXTRACTING if number in (5, 6) else NodeState.RUNNING
        carried = b"" if value is None else bytes(value.encoded)
        request.on_reply(RoundStatus(asking.round_id, state, 0, "", carried), request.peer)
        asking.host.run_later()
    assert [number for number, _ in asking.fetches()] == [7, 8], "who gives nothing along is asked for it"
    for _, callbacks in asking.fetches():
        callbacks.failed("timeout")
    asking.host.run_later()
    [answer] = asking.answers
    assert {node >> 120 for node in answer.contributor_ids} == {1, 2, 3, 5}
    assert answer.computed_by == NodeId(2 << 120)
    assert [blamed.id >> 120 for blamed, _ in asking.host.blamed] == [4], "it gave another node's data"


def test_a_small_result_that_lies_is_rejected_as_a_fetched_one_is() -> None:
    asking = Asking()
    asking.offer(2, 7, bytes(data_of(2, 3).encoded))
    asking.offer(4, 7, b"\xc1")
    asking.offer(5, 7, bytes(data_of(5, 4, 7, 6, 2, 3, 8).encoded))
    asking.settled()
    asking.host.run_later()
    assert not asking.fetches()
    assert {blamed.id >> 120: str(error).partition(":")[0] for blamed, error in asking.host.blamed} == {
        2: "false_claim",
        4: "malformed",
    }
    assert asking.host.requests, "it has taken the third, and asks why the others are missing"


def test_the_values_of_so_many_offers_are_kept() -> None:
    asking = Asking()
    asking.enrol(*range(9, 80))
    for number in range(2, 60):
        asking.offer(number, 2, b"value")
    requester = asking.plugin.requesting.requesters[asking.round_id]
    assert sum(bool(each.value) for each in requester.collector.candidates) == CARRIED_MAX


def test_what_came_ahead_is_taken_at_the_end() -> None:
    """A node that was asked while a fuller result was waited for has given its data: it is not asked once more."""
    asking = Asking()
    found: list[None] = []
    requester = asking.plugin.requesting.requesters[asking.round_id]
    leftovers = Leftovers(
        asking.host,
        asking.round_id,
        QUERY,
        requester.collector,
        lambda of: 0.0,
        1.0,
        lambda: None,
        lambda: found.append(None),
    )
    leftovers.ask_ahead([peer(3 << 120)], lambda: None)
    [request] = asking.host.requests
    request.on_reply(RoundStatus(asking.round_id, NodeState.RUNNING, 0, "", bytes(data_of(3).encoded)), request.peer)
    asking.host.run_later()
    assert not leftovers.partials, "it may be in the result that comes yet"
    leftovers.ask([peer(3 << 120)], has_time=False)
    asking.host.run_later()
    assert [each.contributors for each in leftovers.partials] == [(NodeId(3 << 120),)]
    assert found
    assert len(asking.host.requests) == 1
    assert not asking.fetches()


@pytest.mark.parametrize("lives", [False, True])
def test_who_could_not_be_reached_is_asked_once_more_only_if_it_lives(lives: bool) -> None:
    asking = Asking()
    requester = asking.plugin.requesting.requesters[asking.round_id]
    leftovers = Leftovers(
        asking.host, asking.round_id, QUERY, requester.collector, lambda of: 0.0, 1.0, lambda: None, lambda: None
    )
    leftovers.ask_ahead([peer(3 << 120)], lambda: None)
    asking.host.requests[0].on_timeout()
    if lives:  # the overlay finds a way to it where this node does not
        leftovers.lives(NodeId(3 << 120))
    leftovers.ask([peer(3 << 120)], has_time=True)
    assert len(asking.host.requests) == (2 if lives else 1)
    assert leftovers.reasons == {NodeId(3 << 120): "unreachable"}


def test_what_is_not_there_when_the_time_is_over_is_missing() -> None:
    asking = gathering()
    for request in asking.host.requests:
        request.on_reply(RoundStatus(asking.round_id, NodeState.RUNNING, 0, ""), request.peer)
    own = asking.fetches()[1:]
    own[0][1].done(data_of(1).value)
    asking.host.run_later()
    asking.plugin.requesting.round_due(asking.round_id)
    asking.host.run_later()
    for _, callbacks in own[1:]:
        callbacks.failed("cancelled")
    asking.host.run_later()
    [answer] = asking.answers
    assert {node >> 120 for node in answer.contributor_ids} == {1, 2, 3}


def test_at_the_deadline_nothing_is_fetched_any_more() -> None:
    asking = Asking()
    asking.plugin.requesting.round_due(asking.round_id)
    for request in asking.host.requests:
        request.on_reply(RoundStatus(asking.round_id, NodeState.RUNNING, 0, ""), request.peer)
    assert not asking.fetches()
    [answer] = asking.answers
    assert answer.outcome == "failed"


@pytest.mark.parametrize(
    ("value_bytes", "at_once"), [(0, 16), (1000, 16), (FETCHED_BYTES_AT_ONCE // 3, 3), (2 * FETCHED_BYTES_AT_ONCE, 1)]
)
def test_so_many_are_fetched_from_at_once_as_their_values_allow(value_bytes: int, at_once: int) -> None:
    """With sixteen of a MiB over a link of 8 Mb/s none came whole within its time, and all of them were lost."""
    asking = Asking()
    asking.enrol(*range(9, 9 + 2 * FETCHED_AT_ONCE))
    asking.offer(2, 2)
    asking.settled()
    asking.fetched(2, 3)
    for request in asking.host.requests:
        request.on_reply(RoundStatus(asking.round_id, NodeState.RUNNING, 0, ""), request.peer)
    assert len(asking.fetches()) == 1 + FIRST_FETCHED
    own = asking.fetches()[1:]
    own[0][1].done(SizedBlob(b"", value_bytes))
    assert len(asking.fetches()) == 1 + max(FIRST_FETCHED, 1 + at_once)
    for _, callbacks in own[1:]:
        callbacks.failed("stalled")
    assert len(asking.fetches()) == 1 + FIRST_FETCHED + at_once, "so many are under way, and four are over"


def test_a_far_node_has_longer_for_its_answer_but_not_for_ever() -> None:
    asking = Asking()
    asking.host.neighbours += (peer(20 << 120), peer(21 << 120))
    asking.host.rtts = {NodeId(20 << 120): 1.0, NodeId(21 << 120): 5.0}
    asking.round_id = asking.plugin.requesting.aggregate(QUERY, RoundListener(asking.answers.append), 60.0)
    asking.enrol(5)
    asking.offer(5, 1)
    asking.settled()
    asking.fetched(5)
    asking.enrol(6)
    within = {each.peer.id >> 120: each.timeout_s for each in asking.host.requests}
    assert within[20] == PATIENCE * OPENING_RTTS * 1.0
    assert within[21] == PATIENCE_S_MAX
    far = next(each for each in asking.host.requests if each.peer.id >> 120 == 21)
    asking.host.time_s += 7.0
    far.on_reply(RoundStatus(asking.round_id, NodeState.RUNNING, 0, ""), far.peer)
    fetch = [each.arguments for each in asking.host.asked if each.what == "fetch"][-1]
    assert fetch["silence_s"] == PATIENCE * 7.0, "as long for each step as the answer took"
    assert fetch["deadline_s"] == FETCH_S_MAX


def test_a_node_that_has_enrolled_has_time_for_its_answer_however_near_it_seems() -> None:
    """Its enrolment came through the overlay, round the slow path between the two. So the overlay tells if it lives."""
    asking = gathering()
    assert {each.timeout_s for each in asking.host.requests} == {STATUS_TIMEOUT_S}
    asked = [key >> 120 for key, each in asking.host.routed if isinstance(each, ConfirmContribution)]
    assert asked == [4, 5, 6, 7, 8], "all but the one that has not enrolled"
    asking.enrol(4)
    for request in list(asking.host.requests):
        request.on_timeout()
    again = asking.host.requests[6:]
    assert [(each.peer.id >> 120, each.timeout_s) for each in again] == [(4, PATIENCE_S_MAX)]
    assert not asking.answers
    again[0].on_timeout()
    [answer] = asking.answers
    assert {missing.node >> 120 for missing in answer.missing} >= {4, 5, 6}
