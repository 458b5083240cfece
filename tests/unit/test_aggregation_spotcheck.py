"""Asking a sample of a result's contributors: transcripts on a fake host."""

from __future__ import annotations

import pytest

from peerd.ids import NodeId
from peerd.testing.host import FakeHost
from protocols.aggregation import spotcheck
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.messages import ConfirmContribution
from protocols.aggregation.plugin import Aggregation
from protocols.aggregation.spotcheck import CHECK_S_MAX, PAUSE_S, Checked, SpotCheck
from protocols.aggregation.statements import confirm_statement
from tests.support.aggregation import signed

OWN = NodeId(1)
ROUND = b"r" * 16
OTHERS = tuple(NodeId(number) for number in range(10, 22))


class Rig:
    """A check, and what came of it."""

    def __init__(self) -> None:
        self.host = FakeHost(OWN, Aggregation(AggregationConfig()))
        self.check = SpotCheck(self.host, ROUND)
        self.outcomes: list[Checked] = []

    def begin(self, *contributors: NodeId) -> None:
        """A result names these and this node."""
        self.check.begin(sorted((OWN, *contributors)), self.outcomes.append)

    def asked(self) -> set[NodeId]:
        """Who was asked since the last look; each once."""
        found = [to for to, message in self.host.routed if isinstance(message, ConfirmContribution)]
        self.host.routed.clear()
        assert len(found) == len(set(found))
        return set(found)

    def wait(self) -> float:
        """Let the time pass that those asked have; returns how long it was."""
        due_s = self.host.timers.pop((spotcheck.CHECK_TIMER, ROUND))
        waited_s, self.host.time_s = due_s - self.host.time_s, due_s
        self.check.due()
        return waited_s


def test_the_check_ends_as_soon_as_all_have_confirmed() -> None:
    rig = Rig()
    rig.begin(*OTHERS)
    assert rig.asked() == set(OTHERS), "not this node itself"
    for node in OTHERS:
        assert not rig.outcomes and rig.check.expects(node)
        rig.check.confirm(node)
        assert not rig.check.expects(node)
    assert rig.outcomes == [Checked(12, 12)]
    assert not rig.host.timers


def test_each_question_is_signed_for_the_node_that_it_goes_to() -> None:
    rig = Rig()
    rig.begin(*OTHERS)
    for to, message in rig.host.routed:
        assert message == ConfirmContribution(ROUND, signed(OWN, confirm_statement(ROUND, to)))


def test_who_is_silent_is_asked_again_once_and_then_counts_as_silent() -> None:
    rig = Rig()
    rig.begin(*OTHERS)
    rig.asked()
    for node in OTHERS[1:]:
        rig.check.confirm(node)
    assert rig.wait() == PAUSE_S and rig.asked() == {OTHERS[0]}
    assert rig.wait() == CHECK_S_MAX - PAUSE_S and not rig.asked()
    assert rig.outcomes == [Checked(12, 11)] and not rig.outcomes[0].is_refuted
    assert not rig.host.timers


def test_what_was_found_out_in_a_round_is_not_asked_again() -> None:
    rig = Rig()
    rig.begin(*OTHERS[:6])
    rig.asked()
    for node in OTHERS[:4]:
        rig.check.confirm(node)
    rig.wait()
    assert rig.asked() == set(OTHERS[4:6])
    rig.wait()
    rig.begin(*OTHERS)
    assert rig.asked() == set(OTHERS[6:])
    for node in OTHERS[6:]:
        rig.check.confirm(node)
    assert rig.outcomes == [Checked(6, 4), Checked(12, 10)]
    rig.begin(*OTHERS[:6])
    assert not rig.asked() and len(rig.outcomes) == 2, "never before `begin` returns"
    assert rig.wait() == 0.0
    assert rig.outcomes[2] == Checked(6, 4) and rig.outcomes[2].is_refuted


def test_who_was_not_asked_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spotcheck, "SAMPLE_MAX", 5)
    rig = Rig()
    rig.begin(*OTHERS)
    asked = rig.asked()
    assert len(asked) == 5
    for node in OTHERS:
        assert rig.check.expects(node) == (node in asked)
        if node not in asked:
            rig.check.confirm(node)
    assert not rig.outcomes
    for node in sorted(asked):
        rig.check.confirm(node)
        rig.check.confirm(node)
    assert rig.outcomes == [Checked(5, 5)]


@pytest.mark.parametrize(("waits", "had_time"), [(0, False), (1, True)])
def test_a_round_that_ends_refutes_only_what_had_time(waits: int, had_time: bool) -> None:
    rig = Rig()
    rig.begin(*OTHERS)
    for _ in range(waits):
        rig.wait()
    rig.check.stop()
    assert rig.outcomes == [Checked(12, 0, had_time)] and rig.outcomes[0].is_refuted == had_time
    rig.check.stop()
    rig.check.confirm(OTHERS[0])
    assert len(rig.outcomes) == 1 and not rig.host.timers


def test_a_result_of_this_node_alone_needs_nobody_to_confirm_it() -> None:
    rig = Rig()
    rig.begin()
    rig.wait()
    assert rig.outcomes == [Checked(0, 0)] and not rig.outcomes[0].is_refuted
