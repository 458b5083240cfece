"""Means and deviations beside the plain computation, and what is remembered of the past."""

from __future__ import annotations

import math
import statistics

from hypothesis import given, strategies as st

from protocols.measurement.sources.past import PastSamples
from protocols.measurement.sources.smoothing import BUCKETS, Smoothing

VALUES = st.floats(-1e9, 1e9)
PAUSES = st.lists(st.tuples(st.floats(0.0, 300.0), VALUES), min_size=1, max_size=60)


@given(PAUSES, st.sampled_from([60.0, 300.0, 3600.0]))
def test_mean_and_deviation_are_those_of_the_samples_in_the_window(
    samples: list[tuple[float, float]], window_s: float
) -> None:
    mean, deviation = Smoothing("m", "a", window_s), Smoothing("d", "a", window_s, is_deviation=True)
    width_s = window_s / BUCKETS
    now, past = 1000.0, []
    for pause_s, value in samples:
        now += pause_s
        past.append((now, value))
        end = math.floor(now / width_s)
        inside = [value for at_s, value in past if math.floor(at_s / width_s) > end - BUCKETS]
        scale = max(1.0, *map(abs, inside))
        assert math.isclose(mean.add(value, now), statistics.fmean(inside), abs_tol=1e-9 * scale)
        assert math.isclose(deviation.add(value, now), statistics.pstdev(inside), abs_tol=1e-6 * scale)
        for at_s, _ in past:  # the window is what it is called, to a sixtieth
            is_inside = math.floor(at_s / width_s) > end - BUCKETS
            assert is_inside or now - at_s > window_s - width_s - 1e-6
            assert not is_inside or now - at_s < window_s + 1e-6


def test_small_changes_of_a_large_value_are_not_lost() -> None:
    smoothing = Smoothing("d", "a", 28_800.0, is_deviation=True)
    for second in range(0, 28_000, 10):
        deviation = smoothing.add(1e12 + (second // 10) % 2, float(second))
    assert math.isclose(deviation, 0.5, rel_tol=1e-3)


def test_memory_is_bounded() -> None:
    smoothing = Smoothing("m", "a", 300.0)
    for second in range(1000):
        smoothing.add(1.0, float(second))
    assert len(smoothing._buckets) == BUCKETS


def test_a_clock_that_went_back_does_no_harm() -> None:
    smoothing = Smoothing("m", "a", 60.0)
    smoothing.add(1.0, 1000.0)
    assert smoothing.add(3.0, 10.0) == 2.0
    assert smoothing.add(5.0, 1000.5) == 3.0


# The past


@given(
    st.lists(st.floats(0.0, 10.0), min_size=1, max_size=40),
    st.floats(0.0, 400.0),
    st.floats(0.0, 400.0),
    st.integers(1, 20),
)
def test_a_range_has_the_newest_samples_of_its_time(
    pauses: list[float], start_s: float, end_s: float, most: int
) -> None:
    past, plain, now = PastSamples(samples_max=most), [], 0.0
    for number, pause_s in enumerate(pauses):
        now += pause_s
        past.add("a", now, float(number))
        plain.append((now, float(number)))
    expected = [(at_s, value) for at_s, value in plain[-most:] if start_s <= at_s <= end_s]
    assert past.range("a", start_s, end_s) == expected


def test_nothing_is_known_of_a_name_that_was_never_told() -> None:
    assert PastSamples().range("a", 0.0, 1e9) == []


def test_a_sample_that_is_older_than_the_last_is_not_taken() -> None:
    past = PastSamples()
    past.add("a", 10.0, 1.0)
    past.add("a", 9.0, 2.0)
    past.add("a", 10.0, 3.0)
    assert past.range("a", 0.0, 99.0) == [(10.0, 1.0), (10.0, 3.0)]


def remembered(past: PastSamples) -> list[str]:
    return [name for name in "abc" if past.last(name, 1)]


def test_for_a_new_name_the_one_that_was_silent_longest_goes() -> None:
    past = PastSamples(names_max=2)
    past.add("a", 0.0, 0.0)
    past.add("b", 0.0, 0.0)
    past.add("b", 0.0, 0.0)
    assert remembered(past) == ["a", "b"], "one that is there needs no room"
    past = PastSamples(names_max=2)
    for at_s, name in enumerate(["a", "b", "a", "c"]):
        past.add(name, float(at_s), 1.0)
    assert remembered(past) == ["a", "c"]
    assert past.range("a", 0.0, 9.0) == [(0.0, 1.0), (2.0, 1.0)]
