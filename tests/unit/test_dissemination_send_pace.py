"""When a producer that signs sends what was published: alone where items are few, together where they come fast."""

from __future__ import annotations

from itertools import pairwise

import pytest

from protocols.dissemination.producer.release_queue import HASTE_S, HOLD_S, TOGETHER, SendPace


def batches(gap_s: float, items: int, *, is_signed: bool = True) -> tuple[list[int], float]:
    """How many items go out at a time where they come so far apart, once the pace is known; and the longest wait."""
    pace, now, waiting, sizes, longest_s = SendPace(lambda: is_signed), 0.0, list[float](), list[int](), 0.0
    for number in range(items):
        now = number * gap_s
        while waiting and (due := max(waiting[-1], waiting[-1] + pace.pause_s(waiting[-1]))) <= now:
            longest_s = max(longest_s, due - waiting[0])
            sizes.append(len(waiting))
            pace.sent(due)
            waiting = []
        pace.published(now)
        waiting.append(now)
    return sizes[len(sizes) // 2 :], longest_s


@pytest.mark.parametrize("gap_s", [HASTE_S * 1.01, 0.1, 5.0])
def test_items_that_come_slowly_do_not_wait(gap_s: float) -> None:
    sizes, longest_s = batches(gap_s, 200)
    assert set(sizes) == {1} and longest_s == 0.0


@pytest.mark.parametrize("gap_s", [0.01, 0.005, 0.002])
def test_items_that_come_fast_are_signed_together_and_wait_for_a_stated_time(gap_s: float) -> None:
    sizes, longest_s = batches(gap_s, 2000)
    assert min(sizes) >= min(TOGETHER, HOLD_S / gap_s) - 1 and max(sizes) <= TOGETHER
    assert 0.0 < longest_s <= HOLD_S + gap_s


def test_a_burst_goes_out_as_soon_as_it_is_as_large_as_a_batch_may_be() -> None:
    pace = SendPace(lambda: True)
    pace.sent(0.0)
    pauses = []
    for number in range(200):
        pace.published(number * 1e-4)
        pauses.append(pace.pause_s(number * 1e-4))
        if pauses[-1] == 0.0:
            pace.sent(number * 1e-4)
    due = [number for number, pause_s in enumerate(pauses) if pause_s == 0.0 and number > 100]
    assert {later - earlier for earlier, later in pairwise(due)} == {TOGETHER}


def test_who_does_not_sign_holds_nothing_back() -> None:
    assert batches(0.002, 500, is_signed=False) == ([1] * 250, 0.0)
