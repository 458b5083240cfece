"""A stream of XML documents on local daemons, beside brokers whose subscribers get everything and filter themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.measure import Bench, at_least, at_most, ratios
from bench.rivals.systems import (
    Sample,
    System,
    Systems,
    in_turns,
    many_descriptors,
    metric_of,
    tell_latencies,
    usable_brokers,
)
from bench.streams.documents import STREAM, DocumentWork, draw
from peerd.client import Client
from protocols.dissemination.config import DisseminationConfig
from protocols.dissemination.front.client import DisseminationClient
from protocols.dissemination.front.lab.rivals import fewest_copies, figures

PEERD: Final = "peerd"
RUNS_MAX: Final = 5
RATE_AIM: Final = 2000.0
"""Documents a second from one producer."""
BYTES_AIM: Final = 1.15
"""What all daemons together receive, for each byte of a document that a subscriber wanted."""
LATENCY_RATE: Final = 20.0
"""Documents a second while latencies are measured: what all systems can do on two cores."""
MOVES_METRIC: Final = "peerd_dissemination_moves_total"
ITEMS_METRIC: Final = 'peerd_dissemination_items_total{direction="in"}'
SPURIOUS_METRIC: Final = "peerd_dissemination_spurious_total"
NODE_TABLES: Final[dict[str, Any]] = {"node": {"profile": "lan"}, "telemetry": {"sink": ""}}

Samples = Mapping[str, Sequence[Sample]]


def run(bench: Bench) -> None:
    """One ring and one of each broker, with a subscriber at each daemon but the producer's; all systems in turn."""
    nodes = bench.scale.of(32, 12, 3)
    documents = bench.scale.of(2000, 300, 40)
    work = draw(documents)
    brokers = usable_brokers(bench)
    with ExitStack() as stack, many_descriptors():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peerd-bench-")))
        calm_s = bench.scale.of(3.0, 1.0, 0.0)
        systems = _start(bench, Systems(stack, folder, work, "bench.streams.child", calm_s), nodes, brokers)
        for system in systems:
            bench.progress(f"{nodes - 1} subscribers of {system.name}")
            system.join(nodes - 1)
        for broker in systems[1:]:
            broker.measure(0, documents // 10)  # what is loaded when it is first used is loaded
        _settle(bench, systems[0], documents)
        samples = in_turns(bench, systems, min(RUNS_MAX, bench.runs), documents, 0)
        _rates(bench, samples)
        _bytes(bench, samples, work, systems[0])
        few = bench.scale.of(200, 40, 5)
        lone = in_turns(bench, systems, bench.scale.of(3, 1, 1), few, few, LATENCY_RATE)
        tell_latencies(bench, lone, f"{LATENCY_RATE:g} documents a second")


def _start(bench: Bench, systems: Systems, nodes: int, brokers: Sequence[str]) -> list[System]:
    bench.progress(f"{nodes} daemons{''.join(f', {name}' for name in brokers)}")

    async def create(client: Client) -> None:
        await DisseminationClient(client).create(STREAM, "xpath")

    peerd = systems.peerd(nodes, NODE_TABLES, create, MOVES_METRIC)
    peerd.places = peerd.places[1:]
    return [peerd, *map(systems.broker, brokers)]


def _settle(bench: Bench, system: System, documents: int) -> None:
    """Publish until the tree is not reorganised any more, or only now and then."""
    moves = -1
    for number in range(bench.scale.of(8, 2, 1)):
        bench.progress(f"the tree settles, {number + 1}")
        system.measure(number * documents // 2, documents)
        before, moves = moves, sum(metric_of(place, MOVES_METRIC) for place in system.places)
        if moves == before:
            break


def _rates(bench: Bench, samples: Samples) -> None:
    """How fast the systems are when they get as many documents as they take, and what that costs."""
    for name, found in samples.items():
        aim = at_least(RATE_AIM) if name == PEERD else None
        rates = [each.events / each.duration_s for each in found]
        bench.row(f"{name}: published", "documents/s", rates, aim, "as fast as the system takes and delivers them")
    for name, found in samples.items():
        bench.row(f"{name}: wanted documents delivered", "1/s", [each.useful / each.duration_s for each in found])
    useful = {name: [each.useful / each.cpu_s for each in found] for name, found in samples.items()}
    for name, values in useful.items():
        bench.row(f"{name}: wanted documents", "1/CPU s", values, note="servers and clients together")
    for name, values in useful.items():
        if name != PEERD:
            bench.row(f"{PEERD} / {name}: wanted documents a CPU second", "x", ratios(useful[PEERD], values))
    for name, found in samples.items():
        values = [each.server_cpu_s / each.cpu_s for each in found]
        bench.row(f"{name}: processor time of servers", "%", [100 * value for value in values], note="of all of it")


def _bytes(bench: Bench, samples: Samples, work: DocumentWork, peerd: System) -> None:
    """What travels, counted in documents: what a subscriber's machine receives, and what leaves the source."""
    published = work.published_bytes(0, samples[PEERD][0].events)
    wanted = work.due_bytes(peerd.subscribers, 0, samples[PEERD][0].events)
    share = wanted / published / peerd.subscribers
    bench.row(
        "selectivity", "%", [100 * share], note=f"{peerd.subscribers} subscribers, of {len(work.queries)} classes"
    )
    for name, found in samples.items():
        aim = at_most(BYTES_AIM) if name == PEERD else None
        note = "by all daemons, messages of all kinds" if name == PEERD else "by subscribers"
        values = [each.received_bytes / wanted for each in found]
        bench.row(f"{name}: received for a wanted byte", "bytes", values, aim, note)
    fan_out = DisseminationConfig().fan_out
    wants = work.wanted_bits(peerd.subscribers)
    copies = figures(fewest_copies(wants, fan_out, Random(1)), wants)["copies_per_wanted"]
    bench.row("the best tree found", "bytes", [copies], note="with full knowledge; documents alone, without headers")
    spurious = sum(metric_of(place, SPURIOUS_METRIC) for place in peerd.places)
    items = sum(metric_of(place, ITEMS_METRIC) for place in peerd.places)
    bench.row(
        f"{PEERD}: spurious share", "%", [100 * spurious / max(1, items)], note="of what all daemons have received"
    )
    for name, found in samples.items():
        aim = at_most(float(fan_out)) if name == PEERD else None
        note = "by the producer's daemon" if name == PEERD else "by the broker; its publisher sends each once"
        values = [each.source_bytes / published for each in found]
        bench.row(f"{name}: sent for a published byte", "bytes", values, aim, note)
