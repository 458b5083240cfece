"""When a certificate is renewed, on a clock that the test turns."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from peerd.identity.renewal import ERROR_AT, RENEW_AT, RETRY_LONGEST, SPREAD, RenewalClock

DAY_S = 86_400.0
START = 1_000_000.0


def clock(seed: int = 1, life_s: float = DAY_S) -> RenewalClock:
    return RenewalClock(random.Random(seed), START, START + life_s)


@given(st.integers(), st.floats(10.0, 1e9))
def test_due_at_half_of_the_life_and_a_random_tenth(seed: int, life_s: float) -> None:
    due = clock(seed, life_s)
    assert RENEW_AT * life_s <= due.due_at - START <= (RENEW_AT + SPREAD) * life_s
    assert not due.is_due(START + 0.49 * life_s)
    assert due.is_due(START + 0.61 * life_s)


def test_nodes_that_joined_together_do_not_ask_together() -> None:
    assert len({round(clock(seed).due_at) for seed in range(50)}) > 40


def test_failures_pause_longer_and_longer_but_never_give_up() -> None:
    failing = clock()
    now, pauses = failing.due_at, []
    while now < failing.expires_at + DAY_S:
        assert failing.is_due(now)
        pauses.append(failing.failed(now))
        assert not failing.is_due(now)
        now = failing.due_at
    assert pauses[0] < pauses[3] < pauses[6]
    assert max(pauses) <= DAY_S * RETRY_LONGEST
    assert len(pauses) > 20


def test_a_new_certificate_starts_over() -> None:
    renewed = clock()
    renewed.failed(renewed.due_at)
    renewed.follow(START + DAY_S, START + 2 * DAY_S)
    assert renewed.failures == 0
    assert not renewed.is_due(START + DAY_S)


def test_a_change_of_the_root_brings_renewal_forward_and_never_back() -> None:
    hurried = clock()
    hurried.hurry(START, 600.0)
    assert START <= hurried.due_at <= START + 600.0
    due_at = hurried.due_at
    hurried.hurry(START, DAY_S * 10)
    assert hurried.due_at <= due_at


def test_how_worrying_it_is() -> None:
    watched = clock()
    assert watched.state(START) == "ok"
    watched.failed(START + 0.6 * DAY_S)
    assert watched.state(START + 0.6 * DAY_S) == "warning"
    assert watched.state(START + ERROR_AT * DAY_S) == "error"
    assert watched.state(START + DAY_S) == "expired"
