"""For how long values that subscriptions hold are out of date: transcripts, and any clocks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from protocols.dissemination.freshness import Freshness

HOUR_MS = 3_600_000


def test_a_value_is_out_of_date_from_when_the_next_one_was_published_until_that_comes() -> None:
    found = Freshness(1000)
    found.came(1, "a", 900, 1000)
    assert found.until(1000) == (0, 0), "the first value takes nobody's place"
    found.came(1, "a", 2900, 3000)
    assert found.until(5000) == (4000, 100)


def test_two_values_that_are_on_their_way_at_once_count_once() -> None:
    found = Freshness(0)
    found.came(1, "a", 0, 0)
    found.came(1, "a", 1000, 1500)
    found.came(1, "a", 1200, 1700)  # it was published while the one before was on its way
    assert found.until(2000) == (2000, 700)


def test_each_subscription_and_object_counts_for_itself() -> None:
    found = Freshness(0)
    for subscription, name in ((1, "a"), (1, "b"), (2, "a")):
        found.came(subscription, name, 0, 0)
    found.came(1, "a", 500, 1000)
    assert found.until(2000) == (6000, 500)
    found.ended(1, 2000)
    assert found.until(3000) == (7000, 500), "what is over counts as far as it went"
    found.ended(1, 3000)
    found.ended(7, 3000)
    assert found.until(4000) == (8000, 500)


def test_what_nobody_vouches_for_is_out_of_date_until_it_is_given_anew() -> None:
    found = Freshness(0)
    found.came(1, "a", 0, 0)
    found.came(1, "b", 0, 0)
    for at_ms in (1000, 2000):
        found.went_stale(1, at_ms)
    assert found.until(3000) == (6000, 4000)
    found.came(1, "a", 1500, 4000)
    found.came(1, "b", 1500, 4000)
    assert found.until(5000) == (10_000, 6000), "the time without a voucher counts once"
    found.went_stale(1, 5000)
    found.ended(1, 6000)
    assert found.until(9000) == (12_000, 8000)


@pytest.mark.parametrize("published_ms", [-HOUR_MS, HOUR_MS])
def test_clocks_that_are_wrong_make_at_most_the_whole_time_out_of_date(published_ms: int) -> None:
    found = Freshness(0)
    found.came(1, "a", published_ms, 0)
    found.came(1, "a", published_ms, 1000)
    held_ms, outdated_ms = found.until(500)  # this node's own clock was set back
    assert (held_ms, outdated_ms) == (1000, 1000 if published_ms < 0 else 0)


@given(st.integers(0, 1 << 30))
def test_never_more_is_out_of_date_than_is_held(seed: int) -> None:
    rng, found, now_ms = Random(seed), Freshness(0), 0
    for _ in range(60):
        now_ms += rng.randrange(-100, 500)
        subscription, what = rng.randrange(3), rng.random()
        if what < 0.7:
            found.came(subscription, rng.choice("abc"), now_ms - rng.randrange(-50, 900), now_ms)
        elif what < 0.85:
            found.went_stale(subscription, now_ms)
        else:
            found.ended(subscription, now_ms)
        held_ms, outdated_ms = found.until(now_ms)
        assert 0 <= outdated_ms <= held_ms
    for subscription in range(3):
        found.ended(subscription, now_ms)
    assert found.until(now_ms) == found.until(now_ms + HOUR_MS), "nothing is held any more"
