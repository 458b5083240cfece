"""A file to all daemons of a ring, each behind a slow link of its own, beside the time that one link needs for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from subprocess import Popen
from typing import Final

from bench.machines import READY_S, Machines, machines
from bench.measure import Bench, BenchFailure, at_most
from bench.namespaces import why_not
from bench.processes import cpu_s
from peerd.limits import MIB
from protocols.dissemination.front.client import DisseminationClient

STREAM: Final = "files"
AIM: Final = 1.3
"""Until the last daemon has the whole file, as a multiple of the time that one link needs for it."""
RUNS_MAX: Final = 2
"""A run takes some three minutes."""
SETTLE_S: Final = 2.0
TIMES_MAX: Final = 20.0
POLL_S: Final = 0.25
QUIET: Final = {"PEERD_TELEMETRY__SINK": ""}


@dataclass(frozen=True, slots=True)
class Delivery:
    """One file that has come everywhere."""

    link_s: float
    took_s: float
    first_s: float
    cpu_s: float
    sent: Sequence[float]
    """What each daemon sent, in files; first the producer."""


def run(bench: Bench) -> None:
    """The same file size over the same links, with a new ring each time."""
    reason = why_not()
    if reason is not None:
        bench.skip("a file to daemons behind slow links", reason)
        return
    nodes = bench.scale.of(16, 16, 2)
    size = bench.scale.of(256, 16, 1) * MIB
    megabits = bench.scale.of(20.0, 5.0, 20.0)
    found: list[Delivery] = []
    for number in range(min(RUNS_MAX, bench.runs)):
        bench.progress(f"run {number + 1}: {nodes + 1} daemons, {size // MIB} MiB, {megabits:g} Mb/s a link")
        found.append(_deliver(nodes, size, megabits))
    note = f"{size // MIB} MiB to {nodes} daemons, {megabits:g} Mb/s a link: {found[0].link_s:.1f} s"
    bench.row("the last has the file", "x link", [each.took_s / each.link_s for each in found], at_most(AIM), note)
    bench.row("the first has the file", "x link", [each.first_s / each.link_s for each in found])
    bench.row("the producer sends", "files", [each.sent[0] for each in found], note="with all headers")
    bench.row("of the others, who sends most", "files", [max(each.sent[1:]) for each in found])
    bench.row("all daemons", "CPU s", [each.cpu_s for each in found], note="while the file is on its way")


def _deliver(nodes: int, size: int, megabits: float) -> Delivery:
    with machines(nodes + 1, megabits) as ring, ring.daemons(nodes + 1, lambda index: QUIET) as processes:
        return asyncio.run(_measure(ring, processes, size, megabits))


@asynccontextmanager
async def _subscribed(streams: Sequence[DisseminationClient]) -> AsyncIterator[None]:
    """A subscriber at each of these daemons."""
    live = [asyncio.Event() for _ in streams]

    async def take(stream: DisseminationClient, is_live: asyncio.Event) -> None:
        async for _ in stream.subscribe(STREAM, on_subscribed=lambda view: is_live.set()):
            pass

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(take(*each)) for each in zip(streams, live, strict=True)]
        async with asyncio.timeout(READY_S):
            for each in live:
                await each.wait()
        await asyncio.sleep(SETTLE_S)
        yield
        for task in tasks:
            task.cancel()


async def _measure(ring: Machines, processes: Sequence[Popen[bytes]], size: int, megabits: float) -> Delivery:
    file = ring.folder / "file.bin"
    chance = Random(size)
    with file.open("wb") as out:
        for _ in range(0, size, MIB):
            out.write(chance.randbytes(MIB))
    async with AsyncExitStack() as stack:
        clients = await ring.ready_clients(stack, len(processes))
        producer, *others = [DisseminationClient(client) for client in clients]
        await producer.create(STREAM, "attributes", "first_fit")
        await stack.enter_async_context(_subscribed(others))
        cpu, sent = sum(cpu_s(each.pid) for each in processes), ring.network.sent_bytes()
        await producer.attach(STREAM, file)
        link_s = size * 8 / (megabits * 1e6)
        ends = await _ends(others, link_s)
        cpu = sum(cpu_s(each.pid) for each in processes) - cpu
        files = [(now - before) / size for before, now in zip(sent, ring.network.sent_bytes(), strict=True)]
    return Delivery(link_s, max(ends), min(ends), cpu, files)


async def _ends(streams: Sequence[DisseminationClient], link_s: float) -> list[float]:
    """When each daemon has the whole file, seconds from now."""
    began, ends = time.monotonic(), dict[int, float]()
    while len(ends) < len(streams):
        if time.monotonic() - began > TIMES_MAX * link_s:
            raise BenchFailure(f"{len(ends)} of {len(streams)} daemons have the file after {TIMES_MAX * link_s:.0f} s")
        await asyncio.sleep(POLL_S)
        for index, stream in enumerate(streams):
            if index not in ends and any(view.state == "complete" for view in await stream.documents(STREAM)):
                ends[index] = time.monotonic() - began
    return list(ends.values())
