"""Rounds of counters on daemons behind slow links, in pieces and whole, beside one daemon that fetches everything."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from bench.collecting import collect_s
from bench.counters import QUERY, after_reading_s, count_for, counters, write_csv
from bench.machines import Machines, machines
from bench.measure import Bench, BenchFailure, at_most, ratios
from bench.namespaces import why_not
from bench.processes import Children, Conversation
from peerd.limits import MIB
from protocols.aggregation.answer import Answer
from protocols.aggregation.front.client import AggregationClient

MEGABITS: Final = 10.0
WAYS: Final = (("whole values", "1TiB", 1.3), ("pieces", "1B", 1.0))
"""How values are swapped, the setting for it, and what the time until the answer is there may be at most, as a multiple
of the time that log2 N values take over one link."""
DEADLINE_S: Final = 300.0
SETTLE_S: Final = 3.0


def run(bench: Bench) -> None:
    """The same values over the same links: rounds, each asked by another daemon, both ways; then one fetches all."""
    reason = why_not()
    if reason is not None:
        bench.skip("rounds of daemons behind slow links", reason)
        return
    nodes = bench.scale.of(16, 8, 2)
    size_bytes = bench.scale.of(MIB, MIB, 16 * 1024)
    with machines(nodes, MEGABITS) as ring:
        for index in range(nodes):
            write_csv(counters(count_for(size_bytes), index), _data(ring, index) / "counters.csv")
        exchanges = [_measure(bench, ring, nodes, size_bytes, *way) for way in WAYS]
        bench.progress(f"{nodes} daemons, of which one fetches all")
        central = _collect(bench, ring, nodes, size_bytes)
    bench.row(f"{nodes} daemons: one fetches all", "s", central, note="values in memory, four fetches at a time")
    for (name, _, _), exchange in zip(WAYS, exchanges, strict=True):
        bench.row(f"{name}: after reading / one fetches all", "x", ratios(exchange, central), at_most(1.0))


def _measure(
    bench: Bench, ring: Machines, nodes: int, size_bytes: int, name: str, pieces_from: str, aim: float
) -> list[float]:
    """Some rounds with values swapped in one way; returns how long each took after the last node had read its files."""
    bench.progress(f"{nodes} daemons, {MEGABITS:g} Mb/s a link, {name}")
    events = ring.folder / name
    with ring.daemons(nodes, lambda index: _environment(ring, index, events, pieces_from)):
        rounds = asyncio.run(_rounds(bench, ring, nodes))
    exchange = after_reading_s(events, rounds)
    link_s = rounds[0].value_bytes * 8 / (MEGABITS * 1e6)
    size, values = f"{size_bytes / MIB:.3g} MiB", math.log2(nodes)
    note = f"{size} of counters a node, read from files, TLS, {MEGABITS:g} Mb/s a link"
    bench.row(f"{nodes} daemons, {name}: round", "s", [each.duration_s for each in rounds], note=note)
    bench.row(f"{name}: of it after the last has read its files", "s", exchange, note="they share the processors here")
    note = f"{values:g} values over one link take {values * link_s:.2f} s"
    least = [each / (values * link_s) for each in exchange]
    bench.row(f"{name}: the same / log2 N values over one link", "x", least, at_most(aim), note)
    return exchange


def _data(ring: Machines, index: int) -> Path:
    return ring.folder / "data" / str(index)


def _environment(ring: Machines, index: int, events: Path, pieces_from: str) -> dict[str, str]:
    return {
        "PEERD_TELEMETRY__SINK": str(events),
        "PEERD_PROTOCOLS__AGGREGATION__PIECES_FROM": pieces_from,
        "PEERD_PROTOCOLS__AGGREGATION__DATA_ROOT": str(_data(ring, index)),
    }


async def _rounds(bench: Bench, ring: Machines, nodes: int) -> list[Answer]:
    """All but the first, in which links are dialled and files cached."""
    found: list[Answer] = []
    async with AsyncExitStack() as stack:
        clients = await ring.ready_clients(stack, nodes)
        await asyncio.sleep(SETTLE_S)
        for number in range(bench.runs + 1):
            bench.progress(f"round {number} of {bench.runs}")
            lines = AggregationClient(clients[number % nodes]).aggregate(
                str(QUERY), files=QUERY.files, format=QUERY.format, deadline=DEADLINE_S, top=10
            )
            (answer,) = [line async for line in lines if isinstance(line, Answer)]
            if answer.outcome != "complete" or answer.contributors != nodes:
                raise BenchFailure(f"{answer.outcome}: {answer.contributors} of {nodes}, missing {answer.missing}")
            found.append(answer)
    return found[1:]


def _collect(bench: Bench, ring: Machines, nodes: int, size_bytes: int) -> list[float]:
    with Children() as children:
        peers = [
            Conversation(children, "bench.peer", [str(ring.config_file(index))], ring.network.command(index))
            for index in range(nodes)
        ]
        took = collect_s(peers, size_bytes, bench.runs, DEADLINE_S)
        for peer in peers:
            peer.finish()
    return took
