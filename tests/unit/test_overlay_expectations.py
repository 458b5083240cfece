"""Missing members: expected until they are back, dismissed, denied or expired, and never on one node's word alone."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.expectations import (
    ABSENT_MAX,
    CLAIMS_MAX,
    CLAIMS_PER_INFORMANT_MAX,
    DISMISSAL_SLACK_S,
    DISMISSALS_MAX,
    OUTSIDE_MAX_S,
    Absent,
    Dismissed,
    Expectations,
)

OWN = NodeId(1)
LIFE_S = 1000.0


def peer(number: int) -> PeerRef:
    return PeerRef(NodeId(number), "10.0.0.1", 1 + number % 60_000)


def expecting(*lost: int, at: float = 0.0) -> Expectations:
    found = Expectations(OWN, LIFE_S)
    for number in lost:
        assert found.lost(peer(number), at, at)
    return found


def missing(expectations: Expectations) -> list[int]:
    return sorted(absent.peer.id for absent in expectations)


def test_a_lost_member_is_missing_until_it_is_back() -> None:
    expectations = expecting(2, 3)
    assert not expectations.lost(peer(2), 5.0, 5.0), "it is missing already"
    assert missing(expectations) == [2, 3]
    back = expectations.returned(NodeId(2))
    assert back is not None
    assert back.lost_at == 0.0
    assert missing(expectations) == [3]


def test_nobody_misses_itself() -> None:
    expectations = Expectations(OWN, LIFE_S)
    assert not expectations.lost(peer(OWN), 0.0, 0.0)
    assert expectations.claimed(peer(OWN), 0.0, NodeId(5), 0.0)
    assert expectations.settle({NodeId(5)}, 1, 0.0) == []


def test_one_informant_is_not_enough() -> None:
    expectations = Expectations(OWN, LIFE_S)
    members = {NodeId(5), NodeId(6), NodeId(7)}
    for _ in range(3):
        expectations.claimed(peer(9), 0.0, NodeId(5), 1.0)
    expectations.claimed(peer(9), 0.0, NodeId(99), 1.0)
    assert expectations.settle(members, 3, 1.0) == [], "5 says it again and again, and 99 is no member"
    expectations.claimed(peer(9), -2.0, NodeId(6), 1.0)
    [found] = expectations.settle(members, 3, 1.0)
    assert (found.peer, found.lost_at) == (peer(9), -2.0)


def test_in_a_ring_of_two_the_other_one_is_all_there_are() -> None:
    expectations = Expectations(OWN, LIFE_S)
    expectations.claimed(peer(9), 0.0, NodeId(5), 1.0)
    assert expectations.settle(set(), 0, 1.0) == []
    assert [found.peer for found in expectations.settle({NodeId(5)}, 1, 1.0)] == [peer(9)]


def test_who_is_a_member_is_not_missing_whatever_others_say() -> None:
    expectations = Expectations(OWN, LIFE_S)
    for informant in (5, 6):
        expectations.claimed(peer(9), 0.0, NodeId(informant), 1.0)
    assert expectations.settle({NodeId(5), NodeId(6), NodeId(9)}, 3, 1.0) == []


def test_an_informant_has_a_budget() -> None:
    expectations = Expectations(OWN, LIFE_S)
    for number in range(100, 100 + 2 * CLAIMS_PER_INFORMANT_MAX):
        expectations.claimed(peer(number), 0.0, NodeId(5), 1.0)
    expectations.validate()
    assert len(expectations.settle({NodeId(5)}, 1, 1.0)) == CLAIMS_PER_INFORMANT_MAX


def test_claims_and_losses_are_bounded() -> None:
    expectations = Expectations(OWN, LIFE_S)
    for number in range(100, 100 + 2 * CLAIMS_MAX):
        expectations.claimed(peer(number), 0.0, NodeId(5 + number // 50), 1.0)
    expectations.validate()
    for number in range(10_000, 10_000 + 2 * ABSENT_MAX):
        expectations.lost(peer(number), 0.0, 1.0)
    assert missing(expectations)[0] == 10_000 + ABSENT_MAX, "the latest stay"
    for number in range(2 * DISMISSALS_MAX):
        expectations.dismiss(NodeId(50_000 + number), Dismissed(1.0))
    expectations.validate()


def test_a_dismissal_is_not_undone_by_who_has_not_heard_it() -> None:
    expectations = expecting(2)
    gone = expectations.dismiss(NodeId(2), Dismissed(10.0))
    assert gone is not None
    assert not expectations.claimed(peer(2), 3.0, NodeId(5), 20.0)
    assert not expectations.lost(peer(2), 10.0 + DISMISSAL_SLACK_S, 20.0)
    assert not expectations.lost(peer(2), 20.0, 20.0, is_dated=False), "remembered from before, nobody knows when"
    assert missing(expectations) == []


def test_a_dismissal_that_one_member_claims_is_not_enough() -> None:
    expectations, members = expecting(9, at=10.0), {NodeId(5), NodeId(6), NodeId(7)}

    def claim(informant: int, at: float) -> bool:
        return expectations.dismissal_claimed(NodeId(9), Dismissed(at), NodeId(informant), members, 3) is not None

    assert not claim(5, 20.0) and not claim(5, 21.0), "one that says it twice is one"
    assert not claim(99, 20.0), "no member"
    assert not claim(6, 1.0), "it speaks of an earlier absence"
    members.remove(NodeId(5))
    assert not claim(6, 20.0), "the other one is gone"
    assert claim(7, 30.0)
    assert missing(expectations) == [] and expectations.dismissal(NodeId(9)) == Dismissed(20.0), "what both say"
    assert not claim(7, 30.0), "nothing is kept of who is not missing"


def test_a_loss_after_a_dismissal_is_a_new_one() -> None:
    expectations = expecting(2)
    expectations.dismiss(NodeId(2), Dismissed(10.0))
    assert expectations.lost(peer(2), 30.0, 31.0)
    assert expectations.dismiss(NodeId(2), Dismissed(11.0)) is None, "old news"
    assert missing(expectations) == [2]


def test_a_goodbye_ends_its_own_life_and_none_after_it() -> None:
    """Whatever the times say: a restart takes less than `DISMISSAL_SLACK_S`, and goodbyes may come late."""
    expectations = Expectations(OWN, LIFE_S)
    expectations.dismiss(NodeId(2), Dismissed(10.0, epoch=7))
    assert not expectations.lost(peer(2), 15.0, 16.0, epoch=7)
    assert not expectations.claimed(peer(2), 15.0, NodeId(5), 16.0, epoch=6)
    assert expectations.lost(peer(2), 10.5, 16.0, epoch=8)
    assert expectations.dismiss(NodeId(2), Dismissed(11.0, epoch=7)) is None
    members = {NodeId(5), NodeId(6)}
    for informant in members:
        assert expectations.dismissal_claimed(NodeId(2), Dismissed(11.0, epoch=7), informant, members, 2) is None
    assert expectations.dismiss(NodeId(2), Dismissed(10.5)) is not None, "an operator's order goes by time"


def test_no_informant_alone_makes_an_absence_outlast_a_goodbye() -> None:
    expectations = Expectations(OWN, LIFE_S)
    expectations.claimed(peer(2), 1.0, NodeId(5), 2.0, epoch=99)
    expectations.claimed(peer(2), 1.0, NodeId(6), 2.0, epoch=7)
    expectations.claimed(peer(2), 1.0, NodeId(7), 2.0)
    assert [found.epoch for found in expectations.settle({NodeId(5), NodeId(6)}, 2, 2.0)] == [7]


def test_coming_back_ends_a_dismissal() -> None:
    expectations = expecting(2)
    expectations.dismiss(NodeId(2), Dismissed(10.0))
    expectations.returned(NodeId(2))
    assert expectations.lost(peer(2), 11.0, 11.5)


def test_who_is_denied_is_not_expected() -> None:
    expectations = expecting(2, 3)
    expectations.claimed(peer(4), 0.0, NodeId(5), 1.0)
    assert [absent.peer for absent in expectations.deny(frozenset({NodeId(2), NodeId(4)}))] == [peer(2)]
    assert missing(expectations) == [3]
    assert expectations.settle({NodeId(5)}, 1, 1.0) == []
    assert not expectations.lost(peer(2), 2.0, 2.0)
    assert expectations.deny(frozenset()) == []
    assert expectations.lost(peer(2), 3.0, 3.0), "it was let in again"


def test_the_stated_time_ends_an_expectation_everywhere_at_once() -> None:
    expectations = expecting(2, at=0.0)
    expectations.lost(peer(3), 500.0, 510.0)
    assert expectations.expire(LIFE_S - 1.0) == []
    assert [absent.peer for absent in expectations.expire(LIFE_S)] == [peer(2)]
    expectations.claimed(peer(2), 0.0, NodeId(5), LIFE_S)
    assert expectations.settle({NodeId(5)}, 1, LIFE_S) == [], "another one, whose clock is late, says so"
    assert missing(expectations) == [3]


def test_a_place_that_others_watch_is_left_to_them() -> None:
    expectations = expecting(2)
    expectations.drop_outside(lambda node_id: False, 10.0)
    expectations.drop_outside(lambda node_id: True, 10.0 + OUTSIDE_MAX_S)
    expectations.drop_outside(lambda node_id: False, 20.0 + OUTSIDE_MAX_S)
    assert missing(expectations) == [2], "it was near again meanwhile"
    expectations.drop_outside(lambda node_id: False, 20.0 + 2 * OUTSIDE_MAX_S)
    assert missing(expectations) == []


def test_a_restart_loses_nothing() -> None:
    before = expecting(2, 3)
    before.dismiss(NodeId(4), Dismissed(7.0))
    after = Expectations(OWN, LIFE_S)
    after.restore(list(before), before.dismissals().items(), 50.0)
    assert missing(after) == [2, 3]
    assert not after.lost(peer(4), 6.0, 50.0)


NUMBERS = st.integers(2, 12)


class ExpectationsMachine(RuleBasedStateMachine):
    """Against a plain model: who was lost first-hand, or named by two members, and not dismissed since."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.real = Expectations(OWN, LIFE_S)
        self.members = {NodeId(number) for number in range(2, 6)}
        self.lost_at: dict[int, float] = {}
        self.dismissed_at: dict[int, float] = {}
        self.denied: set[int] = set()

    def is_possible(self, number: int, at: float) -> bool:
        dismissed = self.dismissed_at.get(number)
        is_fresh = dismissed is None or at > dismissed + DISMISSAL_SLACK_S
        return is_fresh and number not in self.denied and self.now - at < LIFE_S

    @rule(number=NUMBERS, silence=st.floats(0, 20))
    def lose(self, number: int, silence: float) -> None:
        self.members.discard(NodeId(number))
        at = self.now - silence
        self.real.lost(peer(number), at, self.now)
        if number not in self.lost_at and self.is_possible(number, at):
            self.lost_at[number] = at

    @rule(number=NUMBERS)
    def admit(self, number: int) -> None:
        self.members.add(NodeId(number))
        self.real.returned(NodeId(number))
        self.lost_at.pop(number, None)
        self.dismissed_at.pop(number, None)

    @rule(number=NUMBERS, age=st.floats(0, 20))
    def dismiss(self, number: int, age: float) -> None:
        at = self.now - age
        self.real.dismiss(NodeId(number), Dismissed(at))
        self.dismissed_at[number] = max(at, self.dismissed_at.get(number, at))
        if number in self.lost_at and self.lost_at[number] <= at + DISMISSAL_SLACK_S:
            del self.lost_at[number]

    @rule(number=NUMBERS, informant=st.integers(20, 40))
    def a_liar_claims(self, number: int, informant: int) -> None:
        """Strangers, as many as they like, change nothing."""
        self.real.claimed(peer(number + 100), self.now, NodeId(informant), self.now)
        self.real.settle(self.members, len(self.members), self.now)

    @rule(denied=st.sets(NUMBERS, max_size=3))
    def deny(self, denied: set[int]) -> None:
        self.real.deny(frozenset(map(NodeId, denied)))
        self.denied = denied
        for number in denied:
            self.lost_at.pop(number, None)

    @rule(seconds=st.floats(0, 400))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.real.expire(self.now)
        self.lost_at = {number: at for number, at in self.lost_at.items() if self.now - at < LIFE_S}
        self.dismissed_at = {number: at for number, at in self.dismissed_at.items() if self.now - at < LIFE_S}

    @invariant()
    def the_same_are_missing(self) -> None:
        self.real.validate()
        assert missing(self.real) == sorted(self.lost_at)


TestExpectations = ExpectationsMachine.TestCase


def test_undated_absences_take_the_older_word() -> None:
    expectations = Expectations(OWN, LIFE_S)
    expectations.restore([Absent(peer(2), 100.0, is_dated=False)], (), 100.0)
    expectations.claimed(peer(2), 40.0, NodeId(5), 101.0)
    assert [absent.lost_at for absent in expectations] == [40.0]
