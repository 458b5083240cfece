"""How much of others' messages a node passes on to one peer."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd import limits
from peerd.ids import NodeId
from peerd.overlay.transit import PEERS_MAX, TRANSIT_BURST, TRANSIT_PER_SECOND, TransitBudget

HOP, OTHER = NodeId(1), NodeId(2)


def test_a_burst_passes_and_then_so_many_a_second() -> None:
    budget = TransitBudget()
    assert budget.may_pass(HOP, int(TRANSIT_BURST), 0.0)
    assert not budget.may_pass(HOP, 1, 0.0)
    assert budget.may_pass(OTHER, 1, 0.0), "each hop has its own"
    assert budget.may_pass(HOP, int(TRANSIT_PER_SECOND), 1.0)
    assert not budget.may_pass(HOP, 1, 1.0)


def test_what_is_refused_costs_nothing() -> None:
    budget = TransitBudget()
    assert not budget.may_pass(HOP, int(TRANSIT_BURST) + 1, 0.0)
    assert budget.may_pass(HOP, int(TRANSIT_BURST), 0.0)


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(0.0, 2.0)), max_size=200))
def test_a_node_that_passes_on_all_it_may_is_never_over_half_of_the_message_rate(
    steps: list[tuple[int, float]],
) -> None:
    budget, now, passed = TransitBudget(), 0.0, 0
    for keys, pause_s in steps:
        now += pause_s
        passed += keys if budget.may_pass(HOP, keys, now) else 0
        assert passed <= 0.5 * (limits.PEER_MESSAGES_BURST + limits.PEER_MESSAGES_PER_SECOND * now) + 1e-6


def test_records_are_bounded() -> None:
    budget = TransitBudget()
    for number in range(PEERS_MAX + 10):
        budget.may_pass(NodeId(number), 1, 0.0)
    assert len(budget._hops) == PEERS_MAX
