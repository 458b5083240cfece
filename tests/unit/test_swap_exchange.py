"""Swaps that succeed: contents, sizes, chunking, back-pressure, fetch, progress, spill, padding."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from peerd.api import AcceptSwap, RefuseSwap, SizedBlob, SwapRequest
from peerd.errors import Bug
from peerd.swap.config import SwapConfig
from peerd.swap.ports import SwapState
from peerd.swap.session import FIRST_WINDOW_BYTES
from peerd.swap.transfer import payload_of
from tests.support.stream_pair import Couple, MemoryNetwork, Report

SMALL = SwapConfig(chunk_bytes=64, chunks_per_turn_max=2, progress_bytes=1)


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes without a short period, so that a misplaced chunk shows."""
    return bytes((seed + index * 7 + index // 251) % 256 for index in range(size_bytes))


def cycle(sizes: list[int]) -> Callable[[int], int]:
    """Deliver these many bytes in turn."""
    turns = itertools.cycle(sizes)
    return lambda queued: next(turns)


@pytest.mark.parametrize(
    ("offer_bytes", "answer_bytes"),
    [(0, 0), (0, 5000), (5000, 0), (1, 1), (64, 64), (63, 65), (128, 64), (100_000, 3)],
)
def test_both_get_the_whole_value(offer_bytes: int, answer_bytes: int) -> None:
    couple = Couple(pattern(offer_bytes), pattern(answer_bytes, 9), SMALL)
    couple.swap()
    assert couple.run() == ("done", "done")
    assert couple.here.done == [pattern(answer_bytes, 9)]
    assert couple.there.done == [pattern(offer_bytes)]
    assert couple.requests == [("echo", SwapRequest(couple.first.peer, b"tag", offer_bytes, False))]


@given(
    offer=st.binary(max_size=700),
    answer=st.binary(max_size=700),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    chunks=st.tuples(st.integers(64, 300), st.integers(64, 300)),
)
def test_chunking_does_not_matter(offer: bytes, answer: bytes, sizes: list[int], chunks: tuple[int, int]) -> None:
    configs = [SwapConfig(chunk_bytes=size) for size in chunks]
    network = MemoryNetwork(cycle(sizes), high_water_bytes=128)
    couple = Couple(offer, answer, configs[0], configs[1], network)
    couple.swap()
    assert couple.run() == ("done", "done")
    assert (couple.here.done, couple.there.done) == ([answer], [offer])


@pytest.mark.parametrize("value", [b"x" * 300, bytearray(b"x" * 300), memoryview(b"x" * 300)])
def test_every_kind_of_value_is_sent_without_a_copy(value: bytes | bytearray | memoryview) -> None:
    couple = Couple(value, b"", SMALL)
    couple.swap()
    assert couple.run() == ("done", "done")
    assert couple.there.done == [b"x" * 300]
    owner = value.obj if isinstance(value, memoryview) else value
    slices = [piece for piece in couple.network.pairs[0].dialler.written if isinstance(piece, memoryview)]
    assert [len(piece) for piece in slices] == [64, 64, 64, 64, 44]
    assert all(piece.obj is owner for piece in slices)


def test_a_view_of_wide_items_counts_its_bytes() -> None:
    numbers = memoryview(pattern(800)).cast("Q")
    assert len(payload_of(numbers)) == 800
    couple = Couple(numbers, b"", SMALL)
    couple.swap()
    assert couple.run() == ("done", "done")
    assert couple.there.done == [pattern(800)]


def test_fetch_gives_nothing_and_gets_the_value() -> None:
    couple = Couple(b"", pattern(1000), SMALL)
    couple.fetch()
    assert couple.run() == ("done", "done")
    assert couple.here.done == [pattern(1000)]
    assert couple.there.done == [b""]
    assert couple.requests == [("echo", SwapRequest(couple.first.peer, b"tag", 0, True))]


def test_the_send_queue_stays_near_the_high_water_mark() -> None:
    network = MemoryNetwork(lambda queued: 50, high_water_bytes=512)
    couple = Couple(pattern(60_000), pattern(50_000), SMALL, network=network)
    couple.swap()
    assert couple.run() == ("done", "done")
    pair = network.pairs[0]
    control_and_chunk = 8 + 64 + 128
    assert pair.dialler.peak_queued_bytes <= 512 + control_and_chunk
    assert pair.acceptor.peak_queued_bytes <= 512 + control_and_chunk


@pytest.mark.parametrize("offer_bytes", [0, 100, FIRST_WINDOW_BYTES + 300_000])
def test_a_first_window_goes_with_the_offer_and_the_rest_with_the_answer(offer_bytes: int) -> None:
    couple = Couple(pattern(offer_bytes), pattern(10), network=MemoryNetwork(high_water_bytes=1 << 30))
    couple.swap()
    while not couple.requests:
        assert couple.network.step()
    (session,) = couple.first.layer.sessions
    assert session.state is SwapState.OFFERED
    sent = sum(len(piece) for piece in couple.network.pairs[0].dialler.written if isinstance(piece, memoryview))
    assert sent == min(offer_bytes, FIRST_WINDOW_BYTES)
    assert couple.run() == ("done", "done")
    assert couple.there.done == [pattern(offer_bytes)]


def test_other_work_gets_its_turn_on_a_stream_that_is_always_writable() -> None:
    network = MemoryNetwork(high_water_bytes=1 << 30)
    couple = Couple(pattern(6400), b"", SMALL, network=network)
    couple.swap()
    turns: list[int] = []
    while network.step():
        sent = sum(isinstance(piece, memoryview) for pair in network.pairs for piece in pair.dialler.written)
        turns.append(sent)
    assert max(after - before for before, after in itertools.pairwise(turns)) <= SMALL.chunks_per_turn_max
    assert (couple.here.outcome, couple.there.outcome) == ("done", "done")


def test_one_buffer_of_the_announced_size_is_allocated() -> None:
    couple = Couple(pattern(1000), pattern(10), SMALL)
    couple.swap()
    assert couple.run() == ("done", "done")
    assert (couple.first.allocations, couple.second.allocations) == ([10], [1000])


def test_progress_grows_to_the_end_and_is_rationed() -> None:
    config = SwapConfig(chunk_bytes=64, progress_bytes=1000)
    couple = Couple(pattern(4000), pattern(2000), config)
    couple.swap()
    assert couple.run() == ("done", "done")
    for report, totals in ((couple.here, (4000, 2000)), (couple.there, (2000, 4000))):
        moved = [step.sent_bytes + step.received_bytes for step in report.progress]
        assert len(moved) >= 3
        assert all(after - before >= 1000 for before, after in itertools.pairwise(moved))
        unanswered = {(totals[0], None)} if report is couple.here else set()  # what goes with the offer
        assert {(step.send_total_bytes, step.receive_total_bytes) for step in report.progress} == {totals} | unanswered


def test_a_value_is_told_when_it_is_here_and_its_confirmation_later() -> None:
    couple = Couple(pattern(1000), pattern(10), SMALL)
    couple.swap()
    while not couple.here.received:
        assert couple.network.step()
    assert not couple.here.done
    assert couple.run() == ("done", "done")
    for report, value in ((couple.here, pattern(10)), (couple.there, pattern(1000))):
        assert [bytes(memoryview(each)) for each in report.received] == [value]  # type: ignore[arg-type]  # no blobs


def test_a_value_that_is_here_stays_when_ours_is_not_confirmed() -> None:
    couple = Couple(pattern(1000), pattern(10), SMALL)
    couple.swap()
    while not couple.here.received:
        assert couple.network.step()
    couple.second.layer.stop()
    couple.network.run()
    assert couple.here.failed and not couple.here.done
    assert len(couple.here.received) == 1


def test_both_sides_record_the_end() -> None:
    couple = Couple(pattern(400), pattern(300), SMALL)
    couple.swap()
    couple.run()
    (here,), (there,) = couple.first.events, couple.second.events
    assert (here.outcome, here.initiated, here.sent_bytes, here.received_bytes) == ("done", True, 400, 300)
    assert (there.outcome, there.initiated, there.sent_bytes, there.received_bytes) == ("done", False, 300, 400)
    assert here.plugin == there.plugin == "echo"
    assert here.peer == f"{2:032x}"
    assert 0 < there.duration_s <= here.duration_s < 1
    assert couple.network.now_s < 1, "a timer outlived the swap"


def test_many_swaps_between_two_nodes_do_not_mix() -> None:
    couple = Couple(b"", None, SMALL)
    here, there = [Report() for _ in range(8)], [Report() for _ in range(8)]

    def respond(plugin: str, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        number = request.tag[0]
        return AcceptSwap(pattern(700, 100 + number), there[number].callbacks)

    couple.second.respond = respond
    for number, report in enumerate(here):
        couple.first.layer.swap("echo", couple.second.peer, bytes([number]), pattern(500, number), report.callbacks)
    couple.network.run()
    couple.assert_idle()
    assert [report.done for report in here] == [[pattern(700, 100 + number)] for number in range(8)]
    assert [report.done for report in there] == [[pattern(500, number)] for number in range(8)]


def test_a_value_over_the_spill_threshold_is_counted_apart() -> None:
    config = SwapConfig(
        spill_bytes=100, memory_bytes_max=100, spilled_bytes_max=1000, value_bytes_max=1000, chunk_bytes=64
    )
    network = MemoryNetwork(lambda queued: 10, high_water_bytes=128)
    couple = Couple(pattern(900), pattern(90), config, network=network)
    couple.swap()
    seen = set()
    while network.step():
        budgets = (couple.first.layer.budget, couple.second.layer.budget)
        seen.add(tuple((budget.memory_bytes, budget.spilled_bytes) for budget in budgets))
    assert ((90, 0), (0, 900)) in seen
    assert couple.run() == ("done", "done")


def test_padding_counts_but_is_not_held() -> None:
    config = SwapConfig(chunk_bytes=64, progress_bytes=1 << 20)
    offer = SizedBlob(pattern(100), 5 << 20)
    couple = Couple(offer, SizedBlob(b"", 3), config)
    couple.network.carries_padding = True
    couple.swap()
    assert couple.run() == ("done", "done")
    assert couple.there.done == [offer]
    assert couple.here.done == [SizedBlob(b"", 3)]
    assert couple.second.allocations == [100]
    assert couple.second.events[0].received_bytes == 100 + (5 << 20)
    assert len(couple.there.progress) == 5
    assert couple.requests[0][1].size_bytes == 100 + (5 << 20)


def test_a_blob_without_padding_is_a_plain_value() -> None:
    couple = Couple(SizedBlob(pattern(100)), b"", SMALL)
    couple.swap()
    assert couple.run() == ("done", "done")
    assert couple.there.done == [pattern(100)]


def test_a_prepared_swap_sends_its_offer_when_there_are_a_connection_and_a_value() -> None:
    couple = Couple(b"", pattern(10, 9), SMALL)
    early, late = couple.prepare(b"early"), couple.prepare(b"late")
    early.offer(pattern(300))
    couple.network.run(1.0)
    assert [request.tag for _, request in couple.requests] == [b"early"]
    late.offer(pattern(200))
    couple.network.run()
    assert [request.tag for _, request in couple.requests] == [b"early", b"late"]
    assert couple.there.done == [pattern(300), pattern(200)]
    assert couple.here.done == [pattern(10, 9)] * 2
    assert [event.outcome for event in couple.first.events] == ["done"] * 2


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_prepared_swap_that_is_not_wanted_is_recorded_nowhere(is_cancelled: bool) -> None:
    couple = Couple(b"", b"", SMALL)
    prepared = couple.prepare(b"tag")
    couple.network.run(1.0)
    if is_cancelled:
        prepared.cancel()
    couple.network.run()
    assert couple.here.outcome == ("cancelled" if is_cancelled else "unused")
    assert couple.network.now_s <= SMALL.offer_timeout
    assert not couple.requests and not couple.first.events and not couple.second.events
    assert not couple.first.layer.sessions and not couple.second.layer.sessions
    prepared.offer(b"too late")
    couple.network.run()
    assert not couple.requests


def test_what_is_prepared_keeps_no_swap_from_its_place() -> None:
    """Somebody may have us prepare swaps with nobody."""
    config = SwapConfig(outbound_sessions_max=2)
    couple = Couple(pattern(100), pattern(10), config)
    for _ in range(3):
        couple.prepare(b"tag")
    couple.network.run(0.1)
    assert couple.here.failed == ["busy"] and len(couple.first.layer.sessions) == 2
    for _ in range(2):
        couple.swap()
    couple.network.run(1.0)
    assert couple.here.failed == ["busy"] * 3 and couple.here.done == [pattern(10)] * 2
    assert [event.outcome for event in couple.first.events] == ["done"] * 2


def test_a_prepared_swap_is_offered_once_and_only_what_can_be_sent() -> None:
    couple = Couple(b"", b"", SwapConfig(value_bytes_max=100))
    prepared = couple.prepare(b"tag")
    prepared.offer(bytes(101))
    assert couple.run()[0] == "too_large"
    other = couple.prepare(b"tag")
    other.offer(b"one")
    with pytest.raises(Bug):
        other.offer(b"two")
