"""Budgets of those who name peers: `peerd.overlay.hearsay`."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd.ids import NodeId
from peerd.overlay.hearsay import (
    FALSE_NAMES_MAX,
    FORGIVEN_AFTER_S,
    HEARSAY_PROBES_MAX,
    INFORMANT_PROBES_MAX,
    INFORMANTS_MAX,
    PASSED_ON_WEIGHT,
    Hearsay,
)

LIAR, HONEST = NodeId(1), NodeId(2)


def ask(hearsay: Hearsay, informant: NodeId, now: float = 0.0) -> bool:
    """Begin a probe if there is room for it."""
    may = hearsay.may_ask(informant, now)
    if may:
        hearsay.began(informant, now)
    return may


def test_one_informant_does_not_use_up_what_the_others_need() -> None:
    hearsay = Hearsay()
    assert sum(ask(hearsay, LIAR) for _ in range(200)) == INFORMANT_PROBES_MAX
    assert ask(hearsay, HONEST)
    liars = [NodeId(number) for number in range(10, 90)]
    assert sum(ask(hearsay, liar) for liar in liars for _ in range(5)) == HEARSAY_PROBES_MAX - INFORMANT_PROBES_MAX - 1
    hearsay.ended(LIAR)
    assert ask(hearsay, HONEST)


def test_who_names_what_nobody_finds_is_asked_into_no_more_until_that_is_forgiven() -> None:
    hearsay, told = Hearsay(), 0
    for _ in range(FALSE_NAMES_MAX):
        assert ask(hearsay, LIAR) and not hearsay.is_doubted(LIAR)
        hearsay.ended(LIAR)
        told += hearsay.proved_false(LIAR, 1.0, 0.0)
    assert told == 1 and hearsay.is_doubted(LIAR), "said once, when it is so"
    assert not ask(hearsay, LIAR) and not ask(hearsay, LIAR, 0.9 * FORGIVEN_AFTER_S)
    assert ask(hearsay, LIAR, 1.1 * FORGIVEN_AFTER_S) and not ask(hearsay, LIAR, 1.1 * FORGIVEN_AFTER_S)
    hearsay.may_ask(LIAR, FALSE_NAMES_MAX * FORGIVEN_AFTER_S)
    assert not hearsay.is_doubted(LIAR)
    assert not hearsay.is_doubted(HONEST)


def test_what_was_passed_on_counts_less() -> None:
    hearsay = Hearsay()
    for _ in range(FALSE_NAMES_MAX):
        hearsay.began(HONEST, 0.0)
        hearsay.ended(HONEST)
        assert not hearsay.proved_false(HONEST, PASSED_ON_WEIGHT, 0.0)
    assert ask(hearsay, HONEST)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * INFORMANTS_MAX)), max_size=2000))
def test_the_books_balance_however_many_informants_there_are(steps: list[tuple[bool, int]]) -> None:
    hearsay = Hearsay()
    for is_begin, number in steps:
        if is_begin:
            ask(hearsay, NodeId(number))
        else:
            hearsay.ended(NodeId(number))
        records = hearsay._records.values()
        assert len(records) <= INFORMANTS_MAX
        assert hearsay._under_way == sum(record.under_way for record in records) <= HEARSAY_PROBES_MAX
