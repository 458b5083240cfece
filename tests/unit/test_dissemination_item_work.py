"""What an item costs a node is told apart from how long the node was busy."""

from __future__ import annotations

import random

import pytest

from protocols.dissemination.item_work import ITEMS_MIN, MODEL, WorkMeter


def metered(filter_s: float, send_s: float, counts: list[tuple[int, int]], noise: float = 0.0) -> WorkMeter:
    meter, rng = WorkMeter(), random.Random(1)
    for looked, sent in counts:
        meter.add((looked * filter_s + sent * send_s) * rng.uniform(1 - noise, 1 + noise), looked, sent)
    return meter


def test_looking_and_sending_are_told_apart() -> None:
    rng = random.Random(2)
    counts = [(looked, rng.randint(0, looked)) for looked in rng.choices(range(1, 9), k=500)]
    found = metered(30e-6, 200e-6, counts, noise=0.3).work()
    assert found is not None
    assert found.filter_s == pytest.approx(30e-6, rel=0.3)
    assert found.send_s == pytest.approx(200e-6, rel=0.1)


def test_it_follows_what_changes() -> None:
    rng = random.Random(3)
    meter = metered(30e-6, 200e-6, [(4, rng.randint(0, 4)) for _ in range(500)])
    for _ in range(3000):
        sent = rng.randint(0, 4)
        meter.add(10 * (4 * 30e-6 + sent * 200e-6), 4, sent)
    found = meter.work()
    assert found is not None and found.send_s == pytest.approx(2000e-6, rel=0.1)


@pytest.mark.parametrize("sent", [0, 3])
def test_where_the_counts_say_too_little_the_sum_is_right_all_the_same(sent: int) -> None:
    found = metered(50e-6, 100e-6, [(3, sent)] * 100).work()
    assert found is not None
    assert 3 * found.filter_s + sent * found.send_s == pytest.approx(3 * 50e-6 + sent * 100e-6)


def test_where_handlers_take_no_time_a_stated_model_is_used() -> None:
    assert metered(0, 0, [(3, 1)] * ITEMS_MIN).work() == MODEL


def test_nothing_is_said_of_few_items_or_of_absurd_ones() -> None:
    assert metered(1e-6, 1e-6, [(3, 1)] * (ITEMS_MIN - 1)).work() is None
    meter = WorkMeter()
    for _ in range(100):
        meter.add(50.0, 3, 1)
        meter.add(1e-6, 0, 0)
        meter.add(-1e-6, 3, 1)
    assert meter.work() is None
