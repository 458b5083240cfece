"""What event logs cost busy daemons: events are published in a burst, and each is a line at its leaf and its publisher.

One ring gets one sink after the other by reloads: which daemon has the leaf, by chance, would make more difference.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.measure import Bench, BenchFailure, at_least, ratios
from bench.pubsub.trades import TradeWork, draw
from bench.sections.events import ALL, Listener, Ring, ring
from peerd.client import run_sync

NODES: Final = 2
SINK: Final = re.compile(r"^telemetry.sink = .*$", re.MULTILINE)
RATE_AIM: Final = 0.95
"""Beside no sink."""
FULL_SIZE: Final = "64k"
"""Of a disk that is full soon."""
NONE: Final = "none"
AGAIN: Final = "none again"
"""The same once more: what its row is away from 1 is noise."""


def run(bench: Bench) -> None:
    """No sink, twice; files; a full disk; and a collector that takes connections and reads nothing."""
    count = bench.scale.of(20_000, 5_000, 40)
    work = draw(4_000, 1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peerd-bench-")))
        sinks = {NONE: "", AGAIN: "", "files": str(folder / "events"), "a collector that reads nothing": _deaf(stack)}
        if why := stack.enter_context(_small_disk(folder / "full")):
            bench.skip("a full disk", why)
        else:
            sinks["a full disk"] = str(folder / "full")
        made = stack.enter_context(ring(NODES))
        listener = stack.enter_context(made.listener([ALL], 1))
        rates: dict[str, list[float]] = {name: [] for name in sinks}
        costs: dict[str, list[float]] = {name: [] for name in sinks}
        for name in sinks:  # the first burst is slower, and what a sink can hold is full after it
            _measure(made, listener, work, count, sinks[name])
        for number in range(bench.runs):
            for name in in_turn(list(sinks), number):
                bench.progress(f"run {number + 1} of {bench.runs}: {count:,} events, sink: {name}")
                rate, cost_ms = _measure(made, listener, work, count, sinks[name])
                rates[name].append(rate)
                costs[name].append(cost_ms)
        if not any((folder / "events").rglob("*.ndjson*")):
            raise BenchFailure("there are no event files")
    note = f"{count:,} events, 1 publisher, 1 subscriber, {NODES} daemons"
    bench.row("published without a sink", "events/s", rates[NONE], note=note)
    bench.row("processor without a sink", "ms/event", costs[NONE])
    for name in list(sinks)[1:]:
        bench.row(f"{name} / {NONE}", "x", ratios(rates[name], rates[NONE]), at_least(RATE_AIM))
        bench.row(f"{name} / {NONE}: processor", "x", ratios(costs[name], costs[NONE]))


def _measure(made: Ring, listener: Listener, work: TradeWork, count: int, sink: str) -> tuple[float, float]:
    """A burst with this sink: events a second, and milliseconds of processor an event."""
    for place, config in zip(made.places, made.configs, strict=True):
        text, changed = SINK.subn(f"telemetry.sink = {json.dumps(sink)}", config.read_text("utf-8"))
        if changed != 1:
            raise BenchFailure(f"{config} names {changed} sinks")
        config.write_text(text, "utf-8")
        run_sync(lambda client: client.reload(), place)
    return made.burst(work, count, listener, count, "received")


def in_turn(names: list[str], number: int) -> list[str]:
    """All of them, each run beginning with another one: who comes first or last is in no better place."""
    first = number % len(names)
    return names[first:] + names[:first]


def _deaf(stack: ExitStack) -> str:
    """A collector whose connections fill up."""
    listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2 * NODES))
    return f"tcp://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def _small_disk(folder: Path) -> Iterator[str]:
    """A file system that is full soon; yields why there is none, or nothing."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        yield "needs root, to mount a small tmpfs"
        return
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={FULL_SIZE}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        yield f"no tmpfs can be mounted: {done.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", str(folder)], check=True)
