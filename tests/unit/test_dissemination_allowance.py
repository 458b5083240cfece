"""How much of the past is looked through for one member."""

from __future__ import annotations

from peerd.ids import NodeId
from protocols.dissemination.tree.allowance import BURST_MAX, MEMBERS_MAX, PER_SECOND, PastAllowance

ONE, OTHER = NodeId(1), NodeId(2)


def test_what_one_member_uses_is_gone_for_a_while_and_for_that_member_only() -> None:
    allowance = PastAllowance()
    assert allowance.take(ONE, BURST_MAX, 0.0)
    assert not allowance.take(ONE, 1, 0.0)
    assert allowance.take(OTHER, BURST_MAX, 0.0)
    assert allowance.take(ONE, PER_SECOND, 1.0)
    assert not allowance.take(ONE, PER_SECOND, 1.5)
    assert allowance.take(ONE, PER_SECOND, 2.0)


def test_members_that_asked_long_ago_are_forgotten() -> None:
    allowance = PastAllowance()
    allowance.take(ONE, BURST_MAX, 0.0)
    for number in range(MEMBERS_MAX):
        allowance.take(NodeId(10 + number), 1, 0.0)
    assert allowance.take(ONE, BURST_MAX, 0.0)
