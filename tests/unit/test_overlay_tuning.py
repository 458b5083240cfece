"""The period of probes, which tunes itself, and network coordinates."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, strategies as st

from peerd.overlay.coordinates import ERROR_MAX, HEIGHT_MIN_MS, ORIGIN, POSITION_MAX_MS, Coordinate, Vivaldi
from peerd.overlay.tuning import FAILURES_KEPT, FailureRate, dead_probability, probe_period_s, table_hops


def test_the_rate_of_a_young_node_is_an_upper_bound() -> None:
    rate = FailureRate(now=0.0)
    assert rate.per_second(100.0, 50) == pytest.approx(1 / (50 * 100))
    assert rate.per_second(0.0, 50) == 1.0


def test_the_rate_follows_the_failures() -> None:
    rate = FailureRate(now=0.0)
    for number in range(100):
        rate.note_failure(1000.0 + 2.0 * number)
    measured = rate.per_second(1000.0 + 2.0 * 99, 50)
    assert measured == pytest.approx(1 / (50 * 2.0))
    assert rate.per_second(1000.0 + 2.0 * 99 + 3000.0, 50) < measured / 10
    assert FAILURES_KEPT == 16


@pytest.mark.parametrize("exposure", [1e-3, 0.1, 1.0, 30.0])
def test_probability_that_an_entry_is_dead(exposure: float) -> None:
    assert dead_probability(1e-9, 1.0) == pytest.approx(5e-10)
    assert dead_probability(exposure / 2e-4, 2e-4) == pytest.approx(1 - (1 - math.exp(-exposure)) / exposure, rel=1e-4)


def test_the_period_keeps_the_target() -> None:
    rate, size = 1 / 5193, 1000.0
    period = probe_period_s(0.05, rate, size, 3.0, low=1.0, high=1e6)
    dead, detected = dead_probability(period + 3.0, rate), dead_probability(3.0, rate)
    assert 1 - (1 - detected) * (1 - dead) ** table_hops(size) == pytest.approx(0.05, rel=1e-3)
    assert 300 < period < 600


@given(st.floats(1e-7, 1.0), st.floats(1e-7, 1.0), st.floats(1.0, 1e5))
def test_more_failures_never_mean_fewer_probes(one: float, other: float, size: float) -> None:
    periods = [probe_period_s(0.05, rate, size, 3.0, low=30.0, high=1200.0) for rate in sorted((one, other))]
    assert 1200.0 >= periods[0] >= periods[1] - 1e-6 >= 30.0 - 1e-3


def test_coordinates_of_a_plane_predict_its_round_trips() -> None:
    rng = random.Random(5)
    points = [(rng.random() * 0.08, rng.random() * 0.08) for _ in range(40)]
    nodes = [Vivaldi(rng) for _ in points]

    def rtt_s(one: int, other: int) -> float:
        return 0.004 + 2 * math.dist(points[one], points[other])

    for _ in range(150):
        for one in range(len(nodes)):
            other = rng.randrange(len(nodes))
            if other != one:
                nodes[one].observe(rtt_s(one, other), nodes[other].current)
    errors = [
        abs(nodes[one].current.rtt_s(nodes[other].current) - rtt_s(one, other)) / rtt_s(one, other)
        for one in range(40)
        for other in range(one)
    ]
    assert statistics.median(errors) < 0.1
    assert statistics.median(node.current.error for node in nodes) < 0.2


@given(st.lists(st.tuples(st.floats(-10.0, 1e6), st.floats(-6e4, 6e4), st.floats(0.0, 6e4), st.floats(0.0, 100.0))))
def test_no_sample_drives_a_coordinate_out_of_bounds(samples: list[tuple[float, float, float, float]]) -> None:
    node = Vivaldi(random.Random(1))
    for rtt_s, position, height, error in samples:
        node.observe(rtt_s, Coordinate(position, -position, position, height, error))
        place = node.current
        assert max(abs(place.x), abs(place.y), abs(place.z)) <= POSITION_MAX_MS
        assert HEIGHT_MIN_MS <= place.height <= POSITION_MAX_MS
        assert 0.0 < place.error <= ERROR_MAX


def test_absurd_samples_are_ignored() -> None:
    node = Vivaldi(random.Random(1))
    for rtt_s in (0.0, -1.0, 31.0):
        node.observe(rtt_s, ORIGIN)
    assert (node.current, node.samples) == (ORIGIN, 0)
