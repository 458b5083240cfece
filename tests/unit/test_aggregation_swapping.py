"""When the connection of a swap is opened, and what becomes of one that is opened in vain."""

from __future__ import annotations

from typing import Any

import pytest

from peerd.api import Value
from peerd.messages import PeerRef
from peerd.testing.host import FakeHost, peer
from protocols.aggregation.exchange import swap_tag
from protocols.aggregation.messages import AnswerKind, ProposeAnswer
from protocols.aggregation.swapping import AHEAD_RTTS, PREPARED_RTT_S, SILENCE_S, SLOW, Swapping

ROUND = bytes(16)
PATIENCE_S = 4.0
FAR_S, NEAR_S = PREPARED_RTT_S, PREPARED_RTT_S / 2


class Rig:
    """One node's swaps; ``told`` is what its tree hears. It agrees to a swap whose proposal is accepted."""

    def __init__(self, rtt_s: float = FAR_S, *, begins: bool = True) -> None:
        self.rtt_s, self.begins = rtt_s, begins
        self.host = FakeHost(1)
        self.told: list[str] = []
        self.swapping = Swapping(self.host, ROUND, self, lambda: 60.0, lambda peer: PATIENCE_S, lambda peer: self.rtt_s)

    @property
    def asked(self) -> list[str]:
        """The calls about swaps: what, and with whom."""
        return [f"{each.what} {int(each.arguments['peer'].id)}" for each in self.host.asked if each.what != "request"]

    def answer(self, accepted: bool, kind: AnswerKind = AnswerKind.MAYBE_LATER) -> None:
        """The last proposal is answered."""
        request = self.host.requests[-1]
        request.on_reply(ProposeAnswer(ROUND, accepted, kind), request.peer)

    def propose(self, number: int) -> None:
        """The tree would swap with that node."""
        self.swapping.propose(peer(number), 3, b"value")

    def callbacks(self, number: int) -> Any:
        """Those of the connection that was asked for at that place of the transcript."""
        return [each for each in self.host.asked if "callbacks" in each.arguments][number].arguments["callbacks"]

    def fail(self, number: int, reason: str) -> None:
        """That connection is lost."""
        self.callbacks(number).failed(reason)

    def proposal_answered(self, peer: PeerRef, accepted: bool, kind: AnswerKind) -> None:
        self.told.append(f"{'accepted' if accepted else kind.name} {int(peer.id)}")
        if accepted and self.begins:
            self.swapping.begin(peer, 3, b"value")

    def proposal_lost(self, peer: PeerRef) -> None:
        self.told.append(f"lost {int(peer.id)}")

    def swap_received(self, peer: PeerRef, level: int, value: Value) -> None:
        self.told.append(f"received {int(peer.id)} {level}")

    def swap_failed(self, peer: PeerRef, reason: str) -> None:
        self.told.append(f"failed {int(peer.id)} {reason}")


def test_the_connection_to_a_far_partner_is_opened_along_with_the_proposal() -> None:
    rig = Rig()
    rig.propose(2)
    assert rig.asked == ["prepare_swap 2"]
    rig.answer(True)
    assert rig.asked == ["prepare_swap 2", "offer 2"] and rig.told == ["accepted 2"]
    assert rig.host.asked[0].arguments["tag"] == swap_tag(ROUND, 3)
    rig.fail(0, "peer_down")
    assert rig.told[1:] == ["failed 2 peer_down"]


def test_that_to_a_near_one_is_opened_when_it_has_agreed() -> None:
    rig = Rig(NEAR_S)
    rig.propose(2)
    assert not rig.asked
    rig.answer(True)
    assert rig.asked == ["swap 2"]


@pytest.mark.parametrize("is_answered", [False, True])
def test_one_that_was_opened_in_vain_is_closed_and_the_tree_hears_nothing_of_it(is_answered: bool) -> None:
    rig = Rig()
    rig.propose(2)
    if is_answered:
        rig.answer(False, AnswerKind.NO)
    else:
        rig.host.requests[-1].on_timeout()
    assert rig.asked == ["prepare_swap 2", "cancel 2"] and rig.told == ["NO 2" if is_answered else "lost 2"]


def test_where_the_connection_is_lost_before_they_agree_the_swap_takes_another() -> None:
    rig = Rig()
    rig.propose(2)
    rig.fail(0, "peer_down")
    rig.answer(True)
    assert rig.asked == ["prepare_swap 2", "swap 2"] and rig.told == ["accepted 2"]


def test_who_invites_first_to_a_level_to_come_is_offered_the_value_at_once() -> None:
    rig = Rig()
    for number in (2, 4, 2):
        rig.swapping.expect(peer(number), 3)
    assert rig.asked == ["prepare_swap 2"]
    rig.propose(2)
    assert rig.asked == ["prepare_swap 2", "offer 2"] and not rig.host.requests and not rig.told
    rig.callbacks(0).accepted()
    assert rig.asked == ["prepare_swap 2", "offer 2"] and rig.told == ["accepted 2"]
    rig.callbacks(0).received(b"theirs")
    assert rig.told[1:] == ["received 2 3"]


@pytest.mark.parametrize("kind", [AnswerKind.NO, AnswerKind.MAYBE_LATER, AnswerKind.ABSENT])
def test_an_offer_that_is_refused_is_a_proposal_that_is_refused(kind: AnswerKind) -> None:
    rig = Rig()
    rig.swapping.expect(peer(2), 3)
    rig.propose(2)
    rig.fail(0, f"refused:{kind.name.lower()}")
    assert rig.told == [f"{kind.name} 2"] and not rig.host.requests


def test_an_offer_on_a_connection_that_was_lost_says_nothing_of_the_partner() -> None:
    rig = Rig()
    rig.swapping.expect(peer(2), 3)
    rig.propose(2)
    rig.fail(0, "peer_down")
    assert rig.told == ["MAYBE_LATER 2"]
    rig.propose(2)
    rig.answer(True)
    assert rig.asked == ["prepare_swap 2", "offer 2", "prepare_swap 2", "offer 2"]


def test_an_offer_that_is_accepted_when_the_tree_has_gone_on_comes_to_nothing() -> None:
    """It proposed to another one meanwhile, or gave way to a proposal of the same. (A member could end the plugin.)"""
    rig = Rig()
    rig.swapping.expect(peer(2), 3)
    rig.propose(2)
    rig.propose(4)
    rig.callbacks(0).accepted()
    rig.callbacks(0).received(b"theirs")
    rig.fail(0, "cancelled")
    assert rig.asked == ["prepare_swap 2", "offer 2", "prepare_swap 4", "cancel 2"] and not rig.told
    rig = Rig(begins=False)
    rig.swapping.expect(peer(2), 3)
    rig.propose(2)
    rig.callbacks(0).accepted()
    rig.callbacks(0).received(b"theirs")
    assert rig.asked == ["prepare_swap 2", "offer 2", "cancel 2"]
    assert not any(told.startswith("received") for told in rig.told)


def test_who_says_nothing_to_an_offer_is_given_up() -> None:
    rig = Rig()
    rig.swapping.expect(peer(2), 3)
    rig.propose(2)
    rig.fail(0, "stalled")
    assert rig.told == ["lost 2"] and not rig.host.requests


def test_after_it_is_accepted_an_offer_fails_like_any_swap() -> None:
    rig = Rig()
    rig.swapping.expect(peer(2), 3)
    rig.propose(2)
    rig.callbacks(0).accepted()
    rig.fail(0, "peer_down")
    assert rig.told == ["accepted 2", "failed 2 peer_down"]


def test_an_offer_that_nobody_has_answered_ends_with_the_round() -> None:
    rig = Rig()
    rig.swapping.expect(peer(2), 3)
    rig.propose(2)
    rig.swapping.cancel()
    assert rig.asked == ["prepare_swap 2", "offer 2", "cancel 2"]


def test_what_was_opened_for_a_level_is_closed_with_it() -> None:
    rig = Rig()
    rig.swapping.expect(peer(2), 3)
    rig.propose(4)
    rig.answer(True)
    assert rig.asked == ["prepare_swap 2", "prepare_swap 4", "offer 4"]
    rig.swapping.level_left(3)
    rig.swapping.expect(peer(6), 2)
    rig.swapping.cancel()
    assert rig.asked[3:] == ["cancel 2", "prepare_swap 6", "cancel 4", "cancel 6"]
    assert rig.told == ["accepted 4", "failed 4 cancelled"]  # only of the swap that was agreed


def test_a_partner_that_has_given_its_value_still_gets_ours_when_the_round_is_left() -> None:
    rig = Rig()
    rig.propose(2)
    rig.answer(True)
    (asked,) = [each for each in rig.host.asked if "callbacks" in each.arguments]
    asked.arguments["callbacks"].received(b"theirs")
    before = rig.asked
    rig.swapping.cancel()
    assert rig.asked == before and rig.told == ["accepted 2", "received 2 3"]


@pytest.mark.parametrize(("rtt_s", "silence_s"), [(NEAR_S, SILENCE_S), (0.3, SILENCE_S), (2.0, 16.0)])
def test_a_partner_is_given_up_after_a_silence_that_is_long_for_its_distance(rtt_s: float, silence_s: float) -> None:
    rig = Rig(rtt_s)
    rig.propose(2)
    rig.answer(True)
    (asked,) = [each for each in rig.host.asked if "callbacks" in each.arguments]
    assert asked.arguments["silence_s"] == silence_s
    assert rig.swapping.accept(peer(2), 3, b"value").silence_s == silence_s


def test_a_last_swap_is_due_when_it_takes_much_longer_than_those_before() -> None:
    rig = Rig(NEAR_S)
    assert rig.swapping.due_s() == 0.0

    def swap(number: int, level: int, took_s: float) -> None:
        answer = rig.swapping.accept(peer(number), level, b"value")
        rig.host.time_s += took_s
        assert answer.callbacks.received is not None
        answer.callbacks.received(b"theirs")

    rig.swapping.accept(peer(2), 3, b"value")
    rig.host.time_s += 4.0
    assert rig.swapping.due_s() == 4.0, "of the first one nothing is known but its age"
    swap(4, 3, 2.0)
    rig.swapping.accept(peer(6), 2, b"value")
    rig.host.time_s += 0.5
    assert rig.swapping.due_s() == SLOW * 2.0 - 0.5
    rig.host.time_s += 9.5
    assert rig.swapping.due_s() < 0
    swap(6, 2, 1.0)
    assert rig.swapping.due_s() == 1.0, "the value is here, and merged soon"


def test_values_are_given_ahead_of_their_level_only_by_who_has_swapped_in_a_few_round_trips() -> None:
    rig = Rig()
    assert not rig.swapping.are_quick(peer(9)) and not rig.swapping.are_slow(peer(9))
    rig.propose(2)
    rig.answer(True)
    rig.host.time_s += AHEAD_RTTS * FAR_S / 2
    rig.callbacks(0).received(b"theirs")
    assert rig.swapping.are_quick(peer(9))
    rig.propose(4)
    rig.answer(True)
    rig.host.time_s += AHEAD_RTTS * FAR_S * 0.9
    assert rig.swapping.are_quick(peer(9))
    rig.host.time_s += AHEAD_RTTS * FAR_S * 0.2
    assert not rig.swapping.are_quick(peer(9)) and rig.swapping.are_slow(peer(9)), "the swap under way is slow"
    rig.callbacks(1).received(b"theirs")
    assert not rig.swapping.are_quick(peer(9)) and rig.swapping.are_slow(peer(9)), "it was slow"
    rig.rtt_s *= 2
    assert rig.swapping.are_quick(peer(9)), "beside the way to one that is farther it was not"


def test_an_offer_ahead_needs_a_connection_and_can_be_taken_back() -> None:
    rig = Rig()
    assert not rig.swapping.offer_ahead(peer(2), 3, b"value") and rig.asked == []
    rig.swapping.expect(peer(2), 3)
    assert not rig.swapping.offer_ahead(peer(4), 3, b"value")
    assert rig.swapping.offer_ahead(peer(2), 3, b"value")
    rig.swapping.withdraw()
    assert rig.asked == ["prepare_swap 2", "offer 2", "cancel 2"]
    rig.fail(0, "cancelled")
    assert rig.told == []


def test_a_connection_that_was_closed_unused_is_opened_again_for_the_same_counterpart() -> None:
    rig = Rig()
    rig.swapping.expect(peer(2), 3)
    rig.fail(0, "unused")
    rig.swapping.expect(peer(4), 3)
    rig.swapping.expect(peer(2), 3)
    assert rig.asked == ["prepare_swap 2", "prepare_swap 2"]
