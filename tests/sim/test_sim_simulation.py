"""Whole simulated clusters of real nodes: life and death, workers, stores, metrics, invariants."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar

import pytest

from peerd.api import (
    AcceptSwap,
    Host,
    Metric,
    Plugin,
    PluginConfig,
    Priority,
    RefuseSwap,
    SizedBlob,
    SwapCallbacks,
    SwapRequest,
    Value,
    handles,
    on_timer,
)
from peerd.errors import Bug, Unavailable
from peerd.ids import NodeId
from peerd.limits import MIB, STORE_VALUE_BYTES_MAX
from peerd.messages import U32, Message, PeerRef, message
from peerd.sim.checkers import (
    RING_CHECKERS,
    Boundedness,
    Checker,
    CorrectDelivery,
    LeafSetConsistency,
    RingOracle,
    RingUnity,
)
from peerd.sim.latency import ConstantLatency
from peerd.sim.network import NetworkConfig, State
from peerd.sim.records import NdjsonSink
from peerd.sim.rng import fork, random_id
from peerd.sim.simulation import Simulation
from peerd.sim.world import SimulationFailure
from peerd.testing.simulation import ring
from tests.support.sinks import ListSink


@message(0x7F20, bytes_max=64)
class Count(Message):
    """A message that asks to be counted."""

    number: U32


class Counter(Plugin):
    """Counts what reaches it; does one thing wrong when told to."""

    name: ClassVar[str] = "sim_test_counter"
    messages = (Count,)
    metrics = (
        Metric("peerd_test_counts_total", "counter", "Counts.", ("kind",)),
        Metric("peerd_test_level", "gauge", "Level."),
        Metric("peerd_test_duration_seconds", "histogram", "Duration."),
    )

    def start(self, host: Host) -> None:
        """Remember the boot epoch."""
        super().start(host)
        self.seen: list[int] = []
        self.outcomes: list[tuple[float, Any]] = []
        self.host.store.put(f"boot-{host.boot_epoch}", b"was here")

    @handles(Count)
    def on_count(self, message: Count, source: PeerRef) -> Count | None:
        """Count the message, and fail at number 13."""
        if message.number == 13:
            raise ValueError("thirteen")
        self.seen.append(message.number)
        return Count(message.number + 1)

    @on_timer("tick")
    def on_tick(self, payload: object) -> None:
        """Do nothing."""

    def work(self, function: Any, *arguments: Any, cost_s: float) -> None:
        """Offload, and note what came of it with its time."""
        self.host.offload(
            function,
            *arguments,
            done=lambda result: self.outcomes.append((self.host.now(), result)),
            failed=lambda error: self.outcomes.append((self.host.now(), repr(error))),
            cost_s=cost_s,
        )


def counter(simulation: Simulation, index: int) -> Counter:
    """Return the plugin of one node."""
    plugin = simulation.nodes[index].node.plugins[Counter.name]
    assert isinstance(plugin, Counter)
    return plugin


def counters(count: int, seed: int = 0, **arguments: Any) -> Simulation:
    """A converged ring of `Counter` nodes."""
    return ring(count, seed, plugins=lambda index: [Counter()], **arguments)


def test_ring_forms_and_survives_a_crash() -> None:
    simulation = ring(24, seed=5)
    simulation.check(RING_CHECKERS)
    simulation.kill(simulation.nodes[3])
    simulation.run_for(40.0)
    simulation.check(RING_CHECKERS)
    assert len(simulation.live_nodes()) == 23
    assert simulation.nodes[3].state is State.STOPPED


def test_same_seed_same_run_other_seed_other_run() -> None:
    digests = [ring(6, seed=seed, settle_s=10.0).digest() for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_messages_and_requests_between_plugins() -> None:
    simulation = counters(3)
    here, there = counter(simulation, 0), counter(simulation, 1)
    replies: list[Message] = []
    here.host.send(there.host.peer, Count(1))
    here.host.request(
        there.host.peer, Count(2), 1.0, lambda reply, peer: replies.append(reply), lambda: replies.append(Count(0))
    )
    here.host.send(here.host.peer, Count(3), Priority.URGENT)
    simulation.run_for(1.0)
    assert there.seen == [1, 2] and replies == [Count(3)] and here.seen == [3]


def test_handler_that_raises_stops_the_run_with_seed_time_and_node() -> None:
    simulation = counters(3, seed=77)
    counter(simulation, 0).host.send(simulation.nodes[2].peer, Count(13))
    with pytest.raises(SimulationFailure, match=r"sim_test_counter raised ValueError: thirteen .*node 2 .*seed 77"):
        simulation.run_for(1.0)


def test_restart_keeps_the_store_and_raises_the_boot_epoch() -> None:
    simulation = counters(4)
    place = simulation.nodes[2]
    old = counter(simulation, 2)
    draws = {old.host.rng.random()}
    simulation.restart(place, delay_s=5.0)
    simulation.run_for(1.0)
    assert not simulation.is_ready(), "a node is still to come"
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    new = counter(simulation, 2)
    assert new is not old and new.host.boot_epoch == 2
    assert new.host.store.keys() == ["boot-1", "boot-2"]
    draws.add(new.host.rng.random())
    assert len(draws) == 2, "a restarted node does not repeat its draws"


def test_stop_is_a_graceful_leave() -> None:
    sink = ListSink()
    simulation = ring(10, sink=sink)
    simulation.stop(simulation.nodes[4], "maintenance")
    simulation.run_for(20.0)
    simulation.check(RING_CHECKERS)
    (stopped,) = sink.of_kind("node.stopped")
    assert stopped["reason"] == "maintenance" and simulation.nodes[4].state is State.STOPPED


def test_offload_costs_virtual_time_and_reports_errors() -> None:
    simulation = counters(1)
    plugin = counter(simulation, 0)
    begun = simulation.now
    plugin.work(sum, [1, 2, 3], cost_s=2.0)
    plugin.work(int, "not a number", cost_s=1.0)
    assert plugin.outcomes == [], "never from within the call"
    simulation.run_for(5.0)
    (failed_at, error), (done_at, result) = plugin.outcomes
    assert (failed_at - begun, done_at - begun) == pytest.approx((1.0, 2.0))
    assert result == 6 and "ValueError" in error


def test_store_has_the_limits_of_the_real_one() -> None:
    store = counter(counters(1), 0).host.store
    with pytest.raises(Unavailable):
        store.put("large", bytes(STORE_VALUE_BYTES_MAX + 1))
    store.put("small", b"x")
    assert store.get("small") == b"x"
    store.delete("small")
    assert store.get("small") is None


def test_metrics_must_be_declared_and_add_up() -> None:
    simulation = counters(1)
    host = counter(simulation, 0).host
    host.count("peerd_test_counts_total", kind="a")
    host.count("peerd_test_counts_total", 2.0, kind="a")
    host.gauge("peerd_test_level", 4.0)
    host.observe("peerd_test_duration_seconds", 0.5)
    metrics = simulation.nodes[0].driver.metrics
    assert metrics["peerd_test_counts_total", (("kind", "a"),)] == 3.0
    assert metrics["peerd_test_level", ()] == 4.0
    assert metrics["peerd_test_duration_seconds_sum", ()] == 0.5
    with pytest.raises(Bug, match="was not declared so"):
        host.count("peerd_test_unheard_of")
    with pytest.raises(Bug, match="was not declared so"):
        host.gauge("peerd_test_counts_total", 1.0, kind="a")
    with pytest.raises(Bug, match="was not declared so"):
        host.count("peerd_test_counts_total", colour="b")


def test_check_mode_validates_the_touched_node() -> None:
    simulation = counters(3, check_every=1)
    simulation.run_for(10.0)
    plugin = counter(simulation, 1)

    def broken() -> None:
        raise Bug("an invariant of mine")

    plugin.validate = broken  # type: ignore[method-assign]  # one broken instance is the point
    counter(simulation, 0).host.send(plugin.host.peer, Count(1))
    with pytest.raises(SimulationFailure, match=r"validate: Bug: an invariant of mine .*node 1 "):
        simulation.run_for(1.0)


class NeverHolds(Checker):
    """A checker that fails from a certain time on."""

    name = "never"
    holds_always = True

    def check(self, simulation: Simulation) -> list[str]:
        """Fail after ten seconds."""
        return ["it is late"] * 10 if simulation.now > 10.0 else []


def test_sweeps_ask_the_checkers_that_hold_always() -> None:
    simulation = Simulation(3, checkers=[NeverHolds(), Boundedness()], sweep_every=50)
    simulation.start(8)
    with pytest.raises(SimulationFailure, match=r"never: it is late; .*and 2 more"):
        simulation.run_for(60.0)
    assert simulation.sweeps > 1 and 10.0 < simulation.now < 40.0


def test_checkers_bite() -> None:
    simulation = ring(20, seed=2)
    simulation.silence(simulation.nodes[7])  # nobody knows yet
    for checker in (RingUnity(), LeafSetConsistency()):
        with pytest.raises(SimulationFailure, match=checker.name):
            simulation.check([checker])
    simulation.run_for(90.0)
    simulation.check(RING_CHECKERS)


def test_deliveries_are_checked_against_the_true_ring() -> None:
    checker = CorrectDelivery()
    simulation = Simulation(4, plugins=lambda index: [Counter()], checkers=[checker])
    simulation.start(30, spacing_s=0.3)
    simulation.run_until(simulation.is_ready, limit_s=60.0)
    simulation.run_for(10.0)
    generator = fork(1, "keys")
    for number in range(100):
        counter(simulation, number % 30).host.route(random_id(generator), Count(number + 100))
    simulation.run_for(10.0)
    assert checker.deliveries == 100 and checker.wrong == 0
    wrong = next(place for place in simulation.nodes if place.id != simulation.oracle().root(NodeId(5)))
    with pytest.raises(SimulationFailure, match=r"correct delivery: Count for 0+5 was delivered at"):
        wrong.node.deliver(NodeId(5), Count.TYPE_ID, b"\x91\x01", wrong.peer)


def test_oracle_knows_roots_and_neighbours() -> None:
    ids = [NodeId(value << 120) for value in (10, 50, 90, 130, 250)]
    oracle = RingOracle(list(reversed(ids)))
    assert oracle.root(NodeId(60 << 120)) == ids[1]
    assert oracle.root(NodeId(1 << 120)) == ids[4], "the short way round"
    assert oracle.root(NodeId(70 << 120)) == ids[1], "the smaller id wins a tie"
    assert oracle.neighbours(ids[0], 2) == ([ids[4], ids[3]], [ids[1], ids[2]])
    with pytest.raises(ValueError):
        RingOracle([]).root(NodeId(1))


def test_events_are_written_as_the_daemon_writes_them(tmp_path: Path) -> None:
    simulation = ring(5, sink=NdjsonSink(tmp_path))
    simulation.snapshot_traffic()
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"], "not there before it is whole"
    simulation.close()
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("events-") and path.suffix == ".ndjson"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert {record["event"] for record in records} >= {"node.started", "node.ready", "traffic.snapshot"}
    assert len({record["node"] for record in records}) == 5
    assert all(record["schema_version"] == 1 for record in records)


class Swapper(Plugin):
    """Swaps values of any size with whoever asks."""

    name: ClassVar[str] = "sim_test_swapper"

    def __init__(self, config: PluginConfig | None = None) -> None:
        super().__init__(config)
        self.value: Value = b""
        self.got: list[tuple[float, Value]] = []
        self.failures: list[str] = []

    def callbacks(self) -> SwapCallbacks:
        """Note the outcome and the time."""
        return SwapCallbacks(
            done=lambda value: self.got.append((self.host.now(), value)), failed=lambda why: self.failures.append(why)
        )

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        """Accept every swap."""
        return AcceptSwap(self.value, self.callbacks())


def swappers(first: Value, second: Value) -> tuple[Simulation, Swapper, Swapper]:
    """Two nodes at 1 MiB a second, with a swap between them under way."""
    network = NetworkConfig(up_bytes_per_s=float(MIB), down_bytes_per_s=float(MIB), jitter=0.0)
    simulation = ring(2, plugins=lambda index: [Swapper()], network=network, latency=ConstantLatency(0.01))
    here, there = (place.node.plugins[Swapper.name] for place in simulation.nodes)
    assert isinstance(here, Swapper) and isinstance(there, Swapper)
    here.value, there.value = first, second
    here.host.swap(there.host.peer, b"tag", first, here.callbacks())
    return simulation, here, there


def test_swap_moves_real_bytes() -> None:
    simulation, here, there = swappers(b"a" * 300_000, b"b" * 100_001)
    simulation.run_for(10.0)
    assert bytes(memoryview(here.got[0][1])) == b"b" * 100_001  # type: ignore[arg-type]  # not a SizedBlob here
    assert bytes(memoryview(there.got[0][1])) == b"a" * 300_000  # type: ignore[arg-type]  # nor here


def test_swap_of_sized_blobs_costs_time_but_no_memory() -> None:
    tracemalloc.start()
    simulation, here, there = swappers(SizedBlob(b"here", 8 * MIB), SizedBlob(b"there", 4 * MIB))
    begun = simulation.now
    simulation.run_for(30.0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not here.failures and not there.failures
    ((_, value_here),), ((done_at, value_there),) = here.got, there.got
    assert isinstance(value_here, SizedBlob) and isinstance(value_there, SizedBlob)
    assert bytes(value_here.payload) == b"there" and value_here.padding_bytes == 4 * MIB
    assert bytes(value_there.payload) == b"here" and value_there.padding_bytes == 8 * MIB
    assert done_at - begun == pytest.approx(8.0, rel=0.05), "8 MiB at 1 MiB a second, both directions at once"
    assert peak_bytes < 4 * MIB


def test_swap_with_a_peer_that_is_killed_fails_once() -> None:
    simulation, here, there = swappers(SizedBlob(b"", 8 * MIB), SizedBlob(b"", 8 * MIB))
    simulation.run_for(3.0)
    simulation.kill(simulation.nodes[1])
    simulation.run_for(60.0)
    assert len(here.failures) == 1 and not here.got and not there.got and not there.failures


def test_a_ring_that_forms_leaves_no_reference_cycles_behind() -> None:
    """Python looks for cycles rarely while a simulation runs (`GC_THRESHOLDS`), so nothing common may die in one."""
    simulation = Simulation(1)
    simulation.start(24)
    gc.collect()
    gc.disable()
    try:
        simulation.run_until(simulation.is_ready, limit_s=60)
        simulation.run_for(30)
        unreachable = gc.collect()
    finally:
        gc.enable()
    assert simulation.network.frames_delivered > 1_000
    assert unreachable < 24, "less than one object a node; a closure that holds itself makes some ten"
