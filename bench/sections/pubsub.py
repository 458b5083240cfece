"""Subscriptions by content on local daemons, beside brokers whose subscribers get everything and filter themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.measure import Bench, at_least, ratios
from bench.pubsub.trades import DATA, DOCUMENT, TradeWork, draw
from bench.rivals.systems import Sample, System, Systems, in_turns, many_descriptors, tell_latencies, usable_brokers
from peerd.client import Client
from protocols.pubsub.front.client import PubSubClient

PEERD: Final = "peerd"
RUNS_MAX: Final = 3
LATENCY_RATE: Final = 10.0
"""Trades a second while latencies are measured: what all systems can do on two cores."""
BYTES_RATIO_MIN: Final = 10.0
AHEAD_FROM: Final = 256
"""From so many subscribers on, peerd should do more useful deliveries in a second of processor time."""
MOVED_METRIC: Final = 'peerd_messages_received_bytes_total{message="Transferred"}'
NODE_TABLES: Final[dict[str, Any]] = {
    "node": {"profile": "lan"},
    "telemetry": {"sink": ""},
    "protocols": {"pubsub": {"publish_timeout": "5m"}},  # on a busy machine this many daemons are slow, but do not fail
}

Samples = Mapping[str, Sequence[Sample]]


def run(bench: Bench) -> None:
    """One ring and one of each broker, with more and more subscribers; at each number all systems in turn."""
    sizes = bench.scale.of((16, 64, 256, 1000), (16, 100), (16, 48))
    trades = bench.scale.of(1000, 300, 40)
    work = draw(2 * trades, sizes[-1])
    brokers = usable_brokers(bench)
    with ExitStack() as stack, many_descriptors():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peerd-bench-")))
        systems = _start(
            bench, Systems(stack, folder, work, "bench.pubsub.child", bench.scale.of(3.0, 3.0, 0.0)), brokers
        )
        for size in sizes:
            for system in systems:
                bench.progress(f"{size:,} subscribers of {system.name}")
                system.join(size)
                system.measure(0, trades // 10)  # leaves, links and caches become known
            samples = in_turns(bench, systems, _runs(bench), trades, trades // 2)
            _crossover(bench, size, samples)
        _largest(bench, samples, work)
        few = bench.scale.of(100, 20, 5)
        lone = in_turns(bench, systems, _runs(bench), few, few, LATENCY_RATE)
        tell_latencies(bench, lone, f"{LATENCY_RATE:g} events a second")
        _replicated(bench, systems[0], trades)


def _start(bench: Bench, systems: Systems, brokers: Sequence[str]) -> list[System]:
    nodes = bench.scale.of(32, 8, 3)
    bench.progress(f"{nodes} daemons{''.join(f', {name}' for name in brokers)}")

    async def declare(client: Client) -> None:
        await PubSubClient(client).declare(DOCUMENT)

    return [systems.peerd(nodes, NODE_TABLES, declare, MOVED_METRIC), *map(systems.broker, brokers)]


def _runs(bench: Bench) -> int:
    return min(RUNS_MAX, bench.runs)


def _crossover(bench: Bench, size: int, samples: Samples) -> None:
    """Useful deliveries a second of processor time, servers and clients together."""
    each = {name: [sample.useful / sample.cpu_s for sample in found] for name, found in samples.items()}
    for name, values in each.items():
        bench.row(f"{size:,} subscribers: {name}", "useful/CPU s", values)
    for name, values in each.items():
        if name != PEERD:
            aim = at_least(1.0) if size >= AHEAD_FROM else None
            bench.row(f"{size:,} subscribers: {PEERD} / {name}", "x", ratios(each[PEERD], values), aim)


def _largest(bench: Bench, samples: Samples, work: TradeWork) -> None:
    """Everything else, with all subscribers."""
    first = samples[PEERD][0]
    share = first.useful / first.events / len(work.interests)
    source = f"trades of {DATA}" if work.is_real else "made-up trades"
    for name, found in samples.items():
        note = f"{source}, each for {share:.1%} of the subscribers" if name == PEERD else "each for every subscriber"
        bench.row(f"{name}: published", "events/s", [each.events / each.duration_s for each in found], note=note)
    for name, found in samples.items():
        bench.row(f"{name}: useful deliveries", "1/s", [each.useful / each.duration_s for each in found])
    for name, found in samples.items():
        million_s = [1e6 * each.cpu_s / each.useful for each in found]
        bench.row(f"{name}: processor time", "s", million_s, note="a million useful deliveries, clients included")
    received = {name: [each.received_bytes / each.useful for each in found] for name, found in samples.items()}
    for name, values in received.items():
        note = "by all nodes together, of all kinds" if name == PEERD else "by subscribers"
        bench.row(f"{name}: received a useful delivery", "bytes", values, note=note)
    local = [each.client_bytes / each.useful for each in samples[PEERD]]
    bench.row(f"{PEERD}: from a node to its client", "bytes", local, note="a useful delivery, over a unix socket")
    for name, values in received.items():
        if name != PEERD:
            bench.row(f"{name} / {PEERD}: bytes", "x", ratios(values, received[PEERD]), at_least(BYTES_RATIO_MIN))


def _replicated(bench: Bench, system: System, trades: int) -> None:
    """What it costs that the death of a leaf's root loses nothing, which no broker here promises."""
    bench.progress("acknowledged as replicated")
    samples = [system.measure(number * trades // 2, trades, ack="replicated") for number in range(_runs(bench))]
    values = [each.useful / each.cpu_s for each in samples]
    bench.row(f"{PEERD}, replicated", "useful/CPU s", values, note="the rows above ask for received")
