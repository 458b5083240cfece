"""When a word was said, by the clock of who asked for it."""

from __future__ import annotations

from hypothesis import given, strategies as st

from peerd.lib.leases import ASKS_KEPT, DRIFT_MAX, Asks, at_least, at_most

RATES = st.floats(1 - DRIFT_MAX, 1 + DRIFT_MAX)
SPANS = st.floats(0, 1e5)
ROUNDING = 1e-6


@given(mine=RATES, theirs=RATES, under_way_s=SPANS, since_s=SPANS, late_s=SPANS)
def test_a_word_is_never_dated_later_than_it_was_said(
    mine: float, theirs: float, under_way_s: float, since_s: float, late_s: float
) -> None:
    asks = Asks()
    asks.note(1, now=500.0)
    said_at = 500.0 + mine * (under_way_s + since_s)
    dated = asks.said_at(1, theirs * since_s)
    assert dated is not None
    assert dated <= said_at + ROUNDING
    assert dated >= 500.0 + at_least(at_least(mine * since_s)) - ROUNDING, "nor much earlier, but for the way"


@given(mine=RATES, theirs=RATES, true_s=SPANS)
def test_what_passes_here_is_known_within_bounds_there(mine: float, theirs: float, true_s: float) -> None:
    assert at_least(theirs * true_s) <= mine * true_s + ROUNDING
    assert at_most(theirs * true_s) >= mine * true_s - ROUNDING


def test_only_the_newest_questions_date_anything() -> None:
    asks = Asks()
    for number in range(1, ASKS_KEPT + 2):
        asks.note(number, float(number))
    assert asks.said_at(1, 0.0) is None
    assert asks.said_at(2, 0.0) == 2.0
    assert asks.said_at(99, 0.0) is None
