"""The event heap, its clock, its timers and its trace hash."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from peerd.errors import Bug, ConfigError
from peerd.sim import engine as engine_module
from peerd.sim.engine import CHECKPOINT_EVENTS, COMPACT_MIN, STRETCH_S, Engine, Timer, mark_of
from peerd.sim.latency import ConstantLatency, EuclideanLatency
from peerd.sim.rng import fork
from peerd.sim.topology.sites import SiteLatency


def run_timer(timer: Timer) -> None:
    """The simplest gate."""
    callback, timer.callback = timer.callback, None
    assert callback is not None
    callback()


def arm(engine: Engine, delay_s: float, callback: Callable[[], None]) -> Timer:
    """Arm a timer of node 0."""
    return engine.call_later(delay_s, 0, callback, run_timer)


@given(st.lists(st.floats(0, 100), max_size=60))
def test_order_is_time_then_sequence(times: list[float]) -> None:
    engine = Engine()
    ran: list[tuple[float, int]] = []
    for number, time_s in enumerate(times):
        engine.schedule(time_s, 0, lambda number: ran.append((engine.now, number)), number)
    assert engine.run(1000.0) == len(times)
    assert ran == sorted((time_s, number) for number, time_s in enumerate(times))
    assert engine.now == 1000.0 and engine.pending == 0


DELAYS_S = st.sampled_from([0.0, STRETCH_S / 2, STRETCH_S, 3 * STRETCH_S]) | st.floats(0, 1) | st.floats(0, 1000)


@given(
    firsts=st.lists(st.tuples(DELAYS_S, st.lists(DELAYS_S, max_size=3), st.booleans()), max_size=30),
    pauses=st.lists(st.floats(0, 400), max_size=5),
)
def test_events_that_cause_others_run_in_the_order_of_a_single_heap(
    firsts: list[tuple[float, list[float], bool]], pauses: list[float]
) -> None:
    """Wherever the engine keeps what is not due yet: near or far, from outside or from within an event, cancelled."""
    engine = Engine()
    ran: list[tuple[float, int]] = []
    due: dict[int, float] = {}

    def arm_one(delay_s: float, delays: list[float]) -> Timer:
        number = len(due)
        due[number] = engine.now + delay_s
        return arm(engine, delay_s, lambda: run_one(number, delays))

    def run_one(number: int, delays: list[float]) -> None:
        ran.append((engine.now, number))
        for delay_s in delays:
            arm_one(delay_s, [])

    for delay_s, delays, is_cancelled in firsts:
        timer = arm_one(delay_s, delays)
        if is_cancelled:
            timer.cancel()
    for pause_s in pauses:
        engine.run(engine.now + pause_s)
        next_s = engine.next_time_s
        assert next_s is None or next_s >= engine.now
    engine.run(1e6)
    assert ran == sorted(ran) and engine.pending == 0
    assert all(due[number] == time_s for time_s, number in ran)
    cancelled = sum(is_cancelled for _, _, is_cancelled in firsts)
    expected = sum(1 + len(delays) for _, delays, is_cancelled in firsts if not is_cancelled)
    assert len(ran) == expected and len(due) == expected + cancelled


def test_the_past_is_now() -> None:
    engine = Engine()
    engine.run(5.0)
    seen: list[float] = []
    engine.schedule(1.0, 0, lambda _: seen.append(engine.now))
    engine.run(6.0)
    assert seen == [5.0]


def test_run_stops_at_its_time_and_goes_on_from_there() -> None:
    engine = Engine()
    seen: list[float] = []
    for time_s in (1.0, 2.0, 3.0):
        engine.schedule(time_s, 0, lambda _: seen.append(engine.now))
    engine.run(2.0)
    assert seen == [1.0, 2.0] and engine.now == 2.0 and engine.next_time_s == 3.0
    engine.run(2.5)
    assert engine.now == 2.5
    assert engine.run(math.inf, events_max=1) == 1 and seen[-1] == 3.0 and engine.now == 3.0
    assert engine.run(math.inf, events_max=1) == 0


def test_soon_runs_before_the_next_event_and_in_order() -> None:
    engine = Engine()
    seen: list[str] = []

    def first(_: None) -> None:
        engine.call_soon(seen.append, "soon 1")
        engine.call_soon(lambda _: engine.call_soon(seen.append, "soon 3"), None)
        engine.call_soon(seen.append, "soon 2")
        seen.append("first")

    engine.schedule(1.0, 0, first)
    engine.schedule(1.0, 0, seen.append, "second")
    engine.run(1.0)
    assert seen == ["first", "soon 1", "soon 2", "soon 3", "second"]


def test_endless_soon_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SOON_MAX", 100)
    engine = Engine()

    def again(_: None) -> None:
        engine.call_soon(again, None)

    engine.call_soon(again, None)
    with pytest.raises(Bug, match="for ever"):
        engine.run(1.0)


def test_engine_is_not_reentrant() -> None:
    engine = Engine()
    engine.schedule(1.0, 0, lambda _: engine.run(2.0))
    with pytest.raises(Bug, match="within an event"):
        engine.run(3.0)


def test_cancelled_timer_neither_fires_nor_counts() -> None:
    engine = Engine()
    fired: list[str] = []
    kept, gone = arm(engine, 1.0, lambda: fired.append("kept")), arm(engine, 1.0, lambda: fired.append("gone"))
    gone.cancel()
    gone.cancel()
    assert engine.pending == 1
    assert engine.run(2.0) == 1 and fired == ["kept"]
    kept.cancel()
    assert engine.pending == 0 and engine.next_time_s is None


@pytest.mark.parametrize("delay_s", [float("nan"), float("inf")])
def test_timer_of_no_duration_is_a_bug(delay_s: float) -> None:
    with pytest.raises(Bug, match="timer of"):
        arm(Engine(), delay_s, lambda: None)


def test_cancelled_timers_do_not_pile_up() -> None:
    engine = Engine()
    fired: list[int] = []
    for number in range(20 * COMPACT_MIN):
        timer = arm(engine, 1000.0 + number, lambda: fired.append(1))
        if number % 100:
            timer.cancel()
    assert engine.pending == 20 * COMPACT_MIN // 100 + 1
    assert engine.entries < 3 * COMPACT_MIN
    engine.run(1e6)
    assert len(fired) == 20 * COMPACT_MIN // 100 + 1


def test_heap_may_be_compacted_in_the_middle_of_a_run() -> None:
    engine = Engine()
    fired: list[int] = []
    timers = [arm(engine, 5.0, lambda: fired.append(-1)) for _ in range(3 * COMPACT_MIN)]

    def cancel_all(_: None) -> None:
        for timer in timers:
            timer.cancel()
        engine.schedule(6.0, 0, fired.append, 1)

    engine.schedule(1.0, 0, cancel_all)
    engine.run(10.0)
    assert fired == [1] and engine.pending == 0


def test_digest_covers_time_node_and_event() -> None:
    def digest(time_s: float, mark: int) -> str:
        engine = Engine()
        engine.schedule(time_s, mark, lambda _: None)
        engine.run(10.0)
        return engine.digest()

    base = digest(1.0, mark_of(3, 7))
    assert base == digest(1.0, mark_of(3, 7))
    assert len({base, digest(1.5, mark_of(3, 7)), digest(1.0, mark_of(4, 7)), digest(1.0, mark_of(3, 8))}) == 4
    known = hashlib.blake2b(struct.pack("=dQ", 1.0, mark_of(3, 7)), digest_size=16)
    assert base == known.hexdigest()


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6))
def test_digest_and_checkpoints_do_not_depend_on_how_the_run_is_cut(cuts: list[int]) -> None:
    def engine_with_events() -> Engine:
        engine = Engine()
        for number in range(2 * CHECKPOINT_EVENTS + 10):
            engine.schedule(number * 1e-3, number, lambda _: None)
        return engine

    whole, parts = engine_with_events(), engine_with_events()
    whole.run(100.0)
    for cut in cuts:
        assert parts.run(100.0, events_max=cut) == cut or parts.pending == 0
    parts.run(100.0)
    assert parts.digest() == whole.digest()
    assert parts.checkpoints == whole.checkpoints
    assert [point.events for point in whole.checkpoints] == [CHECKPOINT_EVENTS, 2 * CHECKPOINT_EVENTS]


def test_one_chunk_can_be_kept() -> None:
    for chunk, expected in (
        (1, range(CHECKPOINT_EVENTS, 2 * CHECKPOINT_EVENTS)),
        (2, range(2 * CHECKPOINT_EVENTS, 8202)),
    ):
        engine = Engine()
        engine.keep_chunk = chunk
        for number in range(8202):
            engine.schedule(float(number), number, lambda _: None)
        engine.run(1e9)
        assert [mark for _, mark in engine.chunk()] == list(expected)


# Generators and latencies


def test_generators_are_forked_by_path() -> None:
    assert fork(1, "node", 2, "overlay").random() == fork(1, "node", 2, "overlay").random()
    paths: list[tuple[int | str, ...]] = [("node", 2, "overlay"), ("node", 3, "overlay"), ("node", 2, "swap"), ()]
    draws = {fork(seed, *path).random() for seed in (1, 2) for path in paths}
    assert len(draws) == 8


def test_fork_is_the_same_on_every_machine() -> None:
    assert fork(7, "node", 0, "overlay").getrandbits(32) == 0xB0689586


@given(st.integers(0, 500), st.integers(0, 500))
def test_euclidean_latency_is_a_metric_with_a_minimum(a: int, b: int) -> None:
    model = EuclideanLatency(5, side_s=0.1, minimum_s=0.002)
    assert model.latency_s(a, b) == model.latency_s(b, a) >= 0.002
    assert model.latency_s(a, b) <= 0.002 + 0.1 * 2**0.5
    assert model.latency_s(a, b) == EuclideanLatency(5, side_s=0.1, minimum_s=0.002).latency_s(a, b)


def test_matrix_latency_takes_sites_in_turn() -> None:
    model = SiteLatency([[0.0, 0.1], [0.2, 0.0]], local_s=0.001)
    assert model.latency_s(0, 1) == 0.1 and model.latency_s(3, 2) == 0.2
    assert model.latency_s(0, 2) == 0.001
    assert ConstantLatency(0.5).latency_s(1, 2) == 0.5


@pytest.mark.parametrize("rows", [[], [[0.0, 1.0]], [[0.0, -1.0], [0.0, 0.0]], [[float("nan")]]])
def test_bad_matrix_is_refused(rows: list[list[float]]) -> None:
    with pytest.raises(ConfigError, match="matrix_s"):
        SiteLatency(rows)
