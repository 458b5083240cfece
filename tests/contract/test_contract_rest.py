"""What `peerd.driver` promises besides its transport: clock, workers, storage, telemetry, for both drivers."""

from __future__ import annotations

from typing import cast

import pytest

from peerd.api import Metric, WorkLimits
from peerd.errors import Bug, Unavailable
from peerd.limits import FILE_PIECE_BYTES_MAX, STORE_VALUE_BYTES_MAX
from tests.support.contract import ContractRig, on_both_hosts

COUNTER = Metric("peerd_contract_calls_total", "counter", "Calls.", ("kind",))
GAUGE = Metric("peerd_contract_depth", "gauge", "Depth.")
HISTOGRAM = Metric("peerd_contract_wait_seconds", "histogram", "Waits.")
WITHIN = WorkLimits(1 << 29, cpu_s=30.0, wall_s=30.0, result_bytes_max=1024, name="its query")


def unexpected(outcome: object) -> None:
    pytest.fail(f"{outcome!r} is not what should come")


# Clock


@on_both_hosts
async def test_timers_fire_in_the_order_in_which_they_are_due_and_not_before(rig: ContractRig) -> None:
    driver = rig.add(1).driver
    fired: list[tuple[str, float]] = []
    begun, wall = driver.now(), driver.wall_time()
    for name, delay_s in (("c", 0.03), ("a", 0.01), ("b", 0.02)):
        driver.call_later(delay_s, lambda name=name: fired.append((name, driver.now() - begun)))  # type: ignore[misc]  # bound early
    assert fired == []
    await rig.until(lambda: len(fired) == 3)
    assert [name for name, _ in fired] == ["a", "b", "c"]
    # uvloop rounds its timers to milliseconds.
    assert all(at >= delay_s - 0.0015 for (_, at), delay_s in zip(fired, (0.01, 0.02, 0.03), strict=True))
    assert driver.wall_time() > wall and wall > 1.7e9, "seconds since 1970"


@on_both_hosts
async def test_a_cancelled_timer_does_not_fire_and_cancelling_is_harmless_later(rig: ContractRig) -> None:
    driver = rig.add(1).driver
    fired: list[str] = []
    cancelled = driver.call_later(0.01, lambda: fired.append("cancelled"))
    kept = driver.call_later(0.02, lambda: fired.append("kept"))
    cancelled.cancel()
    cancelled.cancel()
    await rig.until(lambda: fired)
    kept.cancel()
    assert fired == ["kept"]


@on_both_hosts
async def test_call_soon_runs_after_the_handler_and_before_later_events(rig: ContractRig) -> None:
    driver = rig.add(1).driver
    order: list[str] = []

    def handler() -> None:
        driver.call_later(0.001, lambda: order.append("timer"))
        driver.call_soon(lambda: order.append("first"))
        driver.call_soon(lambda: order.append("second"))
        order.append("handler")

    driver.call_later(0.001, handler)
    await rig.until(lambda: "timer" in order)
    assert order == ["handler", "first", "second", "timer"]


@on_both_hosts
async def test_every_purpose_has_its_own_generator(rig: ContractRig) -> None:
    one, two = rig.add(1).driver, rig.add(2).driver
    draws = [generator.getrandbits(64) for generator in (one.rng("a"), one.rng("b"), two.rng("a"))]
    assert len(set(draws)) == 3


# Workers


@on_both_hosts
async def test_offloaded_work_ends_in_one_callback_later(rig: ContractRig) -> None:
    driver = rig.add(1).driver
    ended: list[object] = []
    failure = ValueError("no")

    def fail() -> None:
        raise failure

    driver.offload(pow, (2, 10), ended.append, ended.append, 0.01)
    driver.offload(fail, (), ended.append, ended.append, 0.02)
    assert ended == []
    await rig.until(lambda: len(ended) == 2)
    assert ended == [1024, failure]


@on_both_hosts
async def test_cancelled_work_calls_nobody_back(rig: ContractRig) -> None:
    driver = rig.add(1).driver
    ended: list[object] = []
    for within in (None, WITHIN):
        ended.clear()
        called_off = [driver.offload(bytes, (2,), ended.append, ended.append, 0.01, within) for _ in range(3)]
        driver.offload(bytes, (3,), ended.append, ended.append, 0.02, within)
        for handle in called_off:
            handle.cancel()
        await rig.until(lambda: ended)
        driver.offload(bytes, (4,), ended.append, ended.append, 0.01, within)
        await rig.until(lambda: len(ended) == 2)
        assert ended == [bytes(3), bytes(4)]
        called_off[0].cancel()


@on_both_hosts
async def test_work_in_a_process_returns_bytes_and_fails_with_unavailable(rig: ContractRig) -> None:
    driver = rig.add(1).driver
    for function, argument, text in ((int, "x", "its query failed: "), (int, "7", "no bytes")):
        failures: list[BaseException] = []
        driver.offload(function, (argument,), unexpected, failures.append, 0.01, WITHIN)
        assert failures == []
        await rig.until(failures.copy)
        assert type(failures[0]) is Unavailable and text in str(failures[0])
    results: list[object] = []
    driver.offload(bytes, (2,), results.append, unexpected, 0.01, WITHIN)
    await rig.until(results.copy)
    assert results == [bytes(2)]


# Storage


@on_both_hosts
async def test_a_store_keeps_its_values_through_a_crash(rig: ContractRig) -> None:
    one = rig.add(1)
    store = one.driver.store("plugin")
    for key in ("b", "a", "gone"):
        store.put(key, key.encode() * 3)
    store.put("a", b"newer")
    store.delete("gone")
    store.delete("never there")
    one.driver.store("other").put("a", b"another plugin's")
    await rig.crash(one)
    store = rig.again(one).driver.store("plugin")
    assert store.keys() == ["a", "b"]
    assert (store.get("a"), store.get("b"), store.get("gone")) == (b"newer", b"bbb", None)


@on_both_hosts
async def test_a_store_refuses_what_is_too_large(rig: ContractRig) -> None:
    store = rig.add(1).driver.store("plugin")
    store.put("most", bytes(STORE_VALUE_BYTES_MAX))
    with pytest.raises(Unavailable):
        store.put("more", bytes(STORE_VALUE_BYTES_MAX + 1))
    assert store.keys() == ["most"]


@on_both_hosts
async def test_allocated_memory_is_writable_and_of_the_size_asked_for(rig: ContractRig) -> None:
    driver = rig.add(1).driver
    for size_bytes in (1, 4096, 3_000_000):
        buffer = driver.allocate(size_bytes)
        buffer[-1] = 7
        assert (len(buffer), buffer[-1]) == (size_bytes, 7)


# Telemetry


@on_both_hosts
async def test_records_reach_the_sink_in_order(rig: ContractRig) -> None:
    one = rig.add(1)
    for number in range(3):
        one.driver.record({"node": 0, "number": number})
    assert [record["number"] for record in one.records] == [0, 1, 2]


@on_both_hosts
async def test_metrics_are_declared_and_then_used(rig: ContractRig) -> None:
    one = rig.add(1)
    one.driver.declare_metrics((COUNTER, GAUGE, HISTOGRAM))
    one.driver.declare_metrics((COUNTER,))
    one.driver.count(COUNTER.name, 2.0, {"kind": "x"})
    one.driver.count(COUNTER.name, 3.0, {"kind": "x"})
    one.driver.gauge(GAUGE.name, 4.0, {})
    one.driver.gauge(GAUGE.name, 3.0, {})
    one.driver.observe(HISTOGRAM.name, 0.5, {})
    one.driver.observe(HISTOGRAM.name, 1.5, {})
    assert rig.metric(one, COUNTER.name, kind="x") == 5.0
    assert rig.metric(one, GAUGE.name) == 3.0
    assert rig.metric(one, f"{HISTOGRAM.name}_sum") == 2.0 and rig.metric(one, f"{HISTOGRAM.name}_count") == 2.0
    with pytest.raises(Bug):
        one.driver.gauge(COUNTER.name, 1.0, {"kind": "x"})
    with pytest.raises(Bug):
        one.driver.declare_metrics((Metric(COUNTER.name, "counter", "Otherwise."),))


# Files


@on_both_hosts
async def test_files_are_written_by_pieces_in_any_order_and_read_as_they_were_written(rig: ContractRig) -> None:
    files = rig.add(1).driver.files("contract")
    assert files.sizes() == {}
    told: list[object] = []
    files.write("one", 4, memoryview(b"5678"), lambda: told.append("second"), unexpected)
    files.write("one", 0, b"1234", lambda: told.append("first"), unexpected)
    files.read("one", 0, 4, lambda piece: told.append(bytes(cast(bytes, piece))), unexpected)
    files.read("one", 4, 4, lambda piece: told.append(bytes(cast(bytes, piece))), unexpected)
    assert told == [], "nothing is called before the call has returned"
    await rig.until(lambda: len(told) == 4)
    assert told == ["second", "first", b"1234", b"5678"]
    assert files.sizes() == {"one": 8}


@on_both_hosts
async def test_a_file_is_renamed_and_deleted_in_the_order_of_the_calls(rig: ContractRig) -> None:
    driver = rig.add(1).driver
    files, others = driver.files("contract"), driver.files("another")
    told: list[object] = []
    files.write("old", 0, b"1234", lambda: told.append("written"), unexpected)
    files.rename("old", "new", lambda: told.append("renamed"), unexpected)
    files.read("old", 0, 4, unexpected, lambda why: told.append(type(why)))
    files.read("new", 4, 4, unexpected, lambda why: told.append(type(why)))
    files.rename("nobody", "new", lambda: unexpected("renamed"), lambda why: told.append(type(why)))
    files.delete("new")
    files.delete("never-there")
    files.read("new", 0, 4, unexpected, lambda why: told.append("gone"))
    await rig.until(lambda: told[-1:] == ["gone"])
    assert told == ["written", "renamed", Unavailable, Unavailable, Unavailable, "gone"]
    assert files.sizes() == {} and others.sizes() == {}


@on_both_hosts
async def test_names_and_sizes_of_files_are_the_callers_to_get_right(rig: ContractRig) -> None:
    files = rig.add(1).driver.files("contract")
    for name in ("", "../up", "Large", "a/b"):
        with pytest.raises(Bug):
            files.write(name, 0, b"x", lambda: None, unexpected)
    for piece in (b"", bytes(FILE_PIECE_BYTES_MAX + 1)):
        with pytest.raises(Bug):
            files.write("one", 0, piece, lambda: None, unexpected)
