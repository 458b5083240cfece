"""What a requester does while results are offered to it: transcripts of a plugin on a fake host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.testing.host import FakeHost, peer
from protocols.aggregation.collector import ENROLMENTS_TIMER, GATHER_TIMER, OWN_TIMER
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.exchange import (
    EXTRACTION_MODULES,
)
from protocols.aggregation.leftovers import GONE_S
from protocols.aggregation.messages import (
    Enrolled,
    FindEnrolment,
    NodeState,
    Participation,
    ResultReady,
    RoundStatus,
    ShownEnrolment,
    StopRound,
)
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.query import parse_query
from protocols.aggregation.requester import FETCHES_MAX
from protocols.aggregation.statements import enrolled_statement
from tests.support.aggregation import signed, started
from tests.support.asking import OWN, Asking, data_of


def test_a_fuller_result_that_is_offered_during_the_fetch_is_taken() -> None:
    asking = Asking()
    asking.offer(2, 2)
    asking.settled()
    asking.offer(4, 4)
    asking.offer(3, 2)
    assert [number for number, _ in asking.fetches()] == [2]
    asking.fetched(2, 3)
    assert [number for number, _ in asking.fetches()] == [2, 4]
    asking.fetched(4, 5, 6, 7)
    answer = asking.answer()
    assert (answer.contributors, answer.computed_by) == (4, NodeId(4 << 120))


def test_no_fuller_one_is_waited_for_after_the_fetch() -> None:
    asking = Asking()
    asking.offer(2, 2)
    asking.settled()
    asking.offer(3, 2)
    asking.fetched(2, 3)
    assert asking.answer().contributors == 2
    assert len(asking.fetches()) == 1


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_what_was_fetched_is_the_answer_when_the_fuller_one_does_not_come(is_cut_short: bool) -> None:
    asking = Asking()
    asking.offer(2, 2)
    asking.settled()
    asking.offer(4, 4)
    asking.fetched(2, 3)
    if is_cut_short:
        asking.plugin.requesting.cancel(asking.round_id)
    else:
        asking.fetches()[-1][1].failed("timeout")
    assert asking.answer().contributors == 2


class LastSwap:
    """What a requester asks of its own part in the round: the last swap is under way, and over in time or not."""

    own = None

    def __init__(self, asking: Asking, due_s: float) -> None:
        self.tree = SimpleNamespace(is_over=False)
        self.due_s = due_s
        asking.enrol(1)
        asking.host.deliver(Enrolled(asking.round_id, "no data"), asking.host.peer)
        parts: Any = asking.plugin.participating.participants
        parts[asking.round_id] = self

    def result_due_s(self) -> float:
        return self.due_s


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_own_tree_whose_last_swap_is_under_way_comes_before_a_fetch(is_complete: bool) -> None:
    """The fetch halved the rate of the swap, and the answer came after both: 0.8 s of 6, on links of 10 Mb/s."""
    asking = Asking()
    own = LastSwap(asking, 2.0)
    asking.offer(2, 8)
    asking.offer(4, 8)
    assert not asking.fetches()
    if is_complete:
        own.tree.is_over = True
        requester = asking.plugin.requesting.requesters[asking.round_id]
        requester.own_aggregate = data_of(*range(1, 9))
        asking.host.deliver(ResultReady(asking.round_id, 8, 100), asking.host.peer)
        assert not asking.fetches() and asking.answers[0].contributors == 8
    else:
        asking.host.time_s += 2.0
        asking.host.fire(OWN_TIMER, asking.round_id)
        assert [number for number, _ in asking.fetches()] == [2]


def test_a_tree_that_has_other_swaps_before_it_is_not_waited_for() -> None:
    asking = Asking()
    LastSwap(asking, 0.0)
    asking.offer(2, 8)
    assert [number for number, _ in asking.fetches()] == [2]


def test_an_offer_that_claims_more_than_it_holds_does_not_hide_a_fuller_one() -> None:
    asking = Asking()
    asking.enrol(1)
    asking.host.deliver(Enrolled(asking.round_id, "no data"), asking.host.peer)
    asking.offer(2, 8)
    asking.offer(4, 4)
    assert [number for number, _ in asking.fetches()] == [2], "it says that it has everybody"
    asking.fetched(2, 3)
    assert [number for number, _ in asking.fetches()] == [2, 4]
    assert [blamed.id >> 120 for blamed, _ in asking.host.blamed] == [2]
    asking.fetched(4, 5, 6, 7)
    answer = asking.answer()
    assert (answer.contributors, answer.outcome) == (4, "partial")
    assert [each.node >> 120 for each in answer.rejected] == [2]


def test_invented_contributors_neither_count_nor_make_an_answer_complete() -> None:
    """Answers once said "complete: 20 of 20" in a ring of 5."""
    asking = Asking()
    asking.offer(2, 6)
    asking.settled()
    asking.fetched(2, 3, 4, 20, 21, 22)
    asking.offer(5, 2)
    assert len(asking.fetches()) == 1, "they may be about to enrol"
    asking.host.fire(ENROLMENTS_TIMER, asking.round_id)
    asking.fetched(5, 6)
    answer = asking.answer()
    assert (answer.contributors, answer.expected, answer.outcome) == (2, 9, "partial")
    [rejected] = answer.rejected
    assert rejected.node == NodeId(2 << 120)
    assert "3 nodes that do not take part" in rejected.reason
    assert any("was rejected" in warning for warning in answer.warnings)
    assert not asking.host.blamed, "it may have been given them"


def test_a_result_that_is_quicker_than_an_enrolment_waits_for_it() -> None:
    asking = Asking()
    asking.offer(2, 8)
    assert not asking.fetches(), "eight contributors, and seven that have enrolled"
    asking.enrol(9)
    asking.settled()
    asking.fetched(2, 3, 4, 5, 6, 7, 8, 10)
    assert not asking.host.requests, "it is not the answer yet"
    asking.enrol(10)
    answer = asking.answer()
    assert (answer.contributors, answer.rejected) == (8, ())


def test_when_no_sound_result_comes_the_nodes_own_data_is_fetched_long_before_the_deadline() -> None:
    """Somebody gave its data and died before it had enrolled: every tree may have its data."""
    asking = Asking()
    asking.offer(2, 3)
    asking.settled()
    asking.fetched(2, 3, 20)
    asking.host.fire(ENROLMENTS_TIMER, asking.round_id)
    asking.host.fire(GATHER_TIMER, asking.round_id)
    asked = [request.peer.id >> 120 for request in asking.host.requests]
    assert {2, 3, 4, 5} < set(asked)
    assert asking.host.time_s < 10.0


def test_the_own_result_is_rather_taken_than_one_as_full_that_is_being_fetched() -> None:
    asking = Asking()
    asking.offer(2, 2)
    asking.settled()
    requester = asking.plugin.requesting.requesters[asking.round_id]
    requester.own_aggregate = data_of(4, 5)
    asking.host.deliver(ResultReady(asking.round_id, 2, 100), asking.host.peer)
    assert len(asking.fetches()) == 1
    answer = asking.answer()
    assert {node >> 120 for node in answer.contributor_ids} == {4, 5}


class TestWhileAFullerResultIsWaitedFor:
    """The own tree is complete, and lacks the nodes 3 and 5."""

    @pytest.fixture
    def asking(self) -> Asking:
        asking = Asking()
        asking.enrol(1)
        asking.host.deliver(Enrolled(asking.round_id, "no data"), asking.host.peer)
        asking.offer(4, 6)
        assert not asking.asked(), "nobody knows whose data that is"
        asking.plugin.requesting.requesters[asking.round_id].own_aggregate = data_of(1, 2, 4, 6, 7, 8)
        asking.host.deliver(ResultReady(asking.round_id, 6, 100), asking.host.peer)
        asking.offer(6, 2)
        assert asking.asked() == [3, 5] and not asking.answers, "once, whatever comes meanwhile"
        return asking

    def test_the_silent_are_not_asked_again(self, asking: Asking) -> None:
        asking.settled()
        assert not asking.answers
        answer = asking.answer()
        assert [(each.node >> 120, each.reason) for each in answer.missing if each.node != OWN] == [
            (3, "unreachable"),
            (5, "unreachable"),
        ]
        assert asking.asked() == [3, 5]

    def test_who_has_its_data_is_fetched_only_when_no_fuller_result_has_come(self, asking: Asking) -> None:
        third, fifth = asking.host.requests
        for request in (third, fifth):
            request.on_reply(RoundStatus(asking.round_id, NodeState.PRUNED, 0, ""), request.peer)
        asking.offer(3, 2)
        assert not asking.fetches()
        asking.settled()
        assert [number for number, _ in asking.fetches()] == [3, 5]
        assert not asking.answers

    def test_who_had_no_data_yet_is_asked_again(self, asking: Asking) -> None:
        third, fifth = asking.host.requests
        third.on_reply(RoundStatus(asking.round_id, NodeState.EXTRACTING, 0, ""), third.peer)
        fifth.on_timeout()
        asking.settled()
        assert asking.asked() == [3, 5, 3]

    @pytest.mark.parametrize(
        ("third_says", "within_s"),
        [("its data", GONE_S), ("nothing", GONE_S), ("that it has data", None), ("that it has none", None)],
    )
    def test_no_fuller_result_is_waited_for_when_nobody_can_be_in_it(
        self, asking: Asking, third_says: str, within_s: float | None
    ) -> None:
        settle_s = asking.host.timers["settle_due", asking.round_id]
        third, fifth = asking.host.requests
        fifth.on_timeout()
        assert asking.host.timers["settle_due", asking.round_id] == settle_s, "the third may be"
        if third_says == "nothing":
            third.on_timeout()
        else:
            state = NodeState.EXTRACTING if third_says == "that it has none" else NodeState.RUNNING
            value = bytes(data_of(3).encoded) if third_says == "its data" else b""
            third.on_reply(RoundStatus(asking.round_id, state, 0, "", value), third.peer)
        assert asking.host.timers["settle_due", asking.round_id] == (settle_s if within_s is None else within_s)

    def test_one_that_the_overlay_reaches_may_be_in_a_fuller_result(self, asking: Asking) -> None:
        third, fifth = asking.host.requests
        third.on_timeout()
        settle_s = asking.host.timers["settle_due", asking.round_id]
        asking.enrol(3)  # it says once more, through the overlay, that it takes part
        fifth.on_timeout()
        assert asking.host.timers["settle_due", asking.round_id] == settle_s

    def test_a_far_node_has_as_long_to_be_reached_as_its_enrolment_took_twice(self, asking: Asking) -> None:
        requester = asking.plugin.requesting.requesters[asking.round_id]
        requester.collector.enrolled_in_s[NodeId(5 << 120)] = 0.3
        third, fifth = asking.host.requests
        third.on_timeout()
        fifth.on_timeout()
        assert asking.host.timers["settle_due", asking.round_id] == 0.6

    def test_who_is_in_a_fuller_result_is_not_waited_for(self, asking: Asking) -> None:
        asking.offer(6, 7)
        asking.settled()
        asking.fetched(1, 2, 3, 4, 6, 7, 8)
        assert not asking.answers
        asking.host.requests[1].on_timeout()
        assert asking.answers[0].contributors == 7
        assert [each.node >> 120 for each in asking.answers[0].missing] == [0, 5]


def test_an_offer_of_more_nodes_than_take_part_is_not_fetched() -> None:
    asking = Asking()
    asking.offer(2, 20)
    assert not asking.fetches()
    asking.plugin.requesting.cancel(asking.round_id)
    answer = asking.answer()
    assert answer.outcome == "failed"
    assert answer.expected == 9
    assert [each.reason for each in answer.rejected] == [
        "invented_contributors: it has 20 contributors, where 7 take part"
    ]


def test_an_own_tree_that_was_given_invented_contributors_is_no_answer() -> None:
    asking = Asking()
    asking.plugin.requesting.requesters[asking.round_id].own_aggregate = data_of(2, 3, 20)
    asking.plugin.requesting.cancel(asking.round_id)
    assert asking.answer().outcome == "failed"


def test_those_who_only_claim_are_asked_so_often_and_not_for_ever() -> None:
    asking = Asking()
    asking.enrol(*range(9, 60))
    asking.offer(2, 2)
    asking.settled()
    for number in range(8, 8 + 2 * FETCHES_MAX):
        asking.offer(number, 50)
    asking.fetched(2, 3)
    for _ in range(FETCHES_MAX - 1):
        asking.fetched(asking.fetches()[-1][0])
    assert len(asking.fetches()) == FETCHES_MAX
    assert asking.answer().contributors == 2


def test_the_enrolment_that_a_result_lacks_is_looked_for_where_its_node_has_given_its_data() -> None:
    """It gave its data and died, and its enrolment was lost: every result has its data."""
    asking = Asking()
    asking.offer(2, 3)
    asking.settled()
    asking.fetched(2, 3, 20)
    asked = [key >> 120 for key, each in asking.host.routed if isinstance(each, FindEnrolment)]
    assert asked == [3, 2] or asked == [2, 3]
    dead = peer(20 << 120)
    forged = ShownEnrolment(asking.round_id, Participation(dead, b"forged"))
    with pytest.raises(ProtocolError, match="forged_enrolment"):
        asking.plugin.deliver(NodeId(OWN), forged, peer(3 << 120))
    proof = signed(dead.id, enrolled_statement(asking.round_id, dead, ""))
    shown = ShownEnrolment(asking.round_id, Participation(dead, proof))
    asking.plugin.deliver(NodeId(OWN), shown, peer(3 << 120))
    answer = asking.answer()
    assert {node >> 120 for node in answer.contributor_ids} == {2, 3, 20}
    assert not answer.rejected


def test_a_result_of_many_more_nodes_than_have_enrolled_waits_and_is_then_rejected() -> None:
    asking = Asking()
    asking.offer(2, 12)
    assert not asking.fetches()
    asking.host.fire(ENROLMENTS_TIMER, asking.round_id)
    asking.host.fire(GATHER_TIMER, asking.round_id)
    answer = asking.answer()
    assert [each.node >> 120 for each in answer.rejected] == [2]


@pytest.mark.parametrize("ending", ["stopped", "expired"])
def test_a_round_that_has_ended_gives_its_worker_back(ending: str, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text("{}\n" * 3)
    plugin = Aggregation(AggregationConfig(data_root=str(tmp_path)))
    host = FakeHost(OWN, plugin)
    query = parse_query("count")
    start = started(peer(2), query.to_wire(), remaining_s=1.0, census=False)
    plugin.deliver(peer(2).id, start, peer(2))
    [extraction], [work] = host.later, host.work
    assert work.within is not None and not work.is_cancelled
    assert (work.within.wall_s, work.within.owner) == (1.0, NodeId(2))
    assert work.within.modules == EXTRACTION_MODULES
    participant = plugin.participating.participants[start.round_id]
    if ending == "stopped":
        plugin.participating.on_stop_round(StopRound(start.round_id), peer(2))
    else:
        plugin.participating.round_expired(start.round_id)
    assert participant.is_over and work.is_cancelled
    extraction()
    assert participant.aggregate is None
