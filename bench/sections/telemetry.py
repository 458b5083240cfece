"""What event logs cost busy daemons: events are published in a burst, and each is a line at its leaf and its publisher.

Rings that differ in their sink only are up at the same time, and take bursts in turn.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.measure import Bench, BenchFailure, at_least, ratios
from bench.pubsub.trades import draw
from bench.sections.events import ALL, Listener, Ring, ring

NODES: Final = 2
RATE_AIM: Final = 0.95
"""Beside no sink."""
FULL_SIZE: Final = "64k"
"""Of a disk that is full soon."""
NONE: Final = "none"


def run(bench: Bench) -> None:
    """No sink, files, a full disk, and a collector that takes connections and reads nothing."""
    count = bench.scale.of(20_000, 5_000, 40)
    work = draw(4_000, 1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peerd-bench-")))
        sinks = {NONE: "", "files": str(folder / "events"), "a collector that reads nothing": _deaf(stack)}
        if why := stack.enter_context(_small_disk(folder / "full")):
            bench.skip("a full disk", why)
        else:
            sinks["a full disk"] = str(folder / "full")
        rings: dict[str, tuple[Ring, Listener]] = {}
        for name, sink in sinks.items():
            bench.progress(f"{NODES} daemons, sink: {name}")
            made = stack.enter_context(ring(NODES, sink))
            rings[name] = made, stack.enter_context(made.listener([ALL], 1))
        rates: dict[str, list[float]] = {name: [] for name in rings}
        for each, listener in rings.values():
            each.burst(work, count, listener, count, "received")  # the first one is slower, wherever it goes
        for number in range(bench.runs):
            for name, (each, listener) in rings.items():
                bench.progress(f"run {number + 1} of {bench.runs}: {count:,} events, sink: {name}")
                rates[name].append(each.burst(work, count, listener, count, "received")[0])
        if not any((folder / "events").rglob("*.ndjson*")):
            raise BenchFailure("there are no event files")
    note = f"{count:,} events, 1 publisher, 1 subscriber, {NODES} daemons"
    bench.row("published without a sink", "events/s", rates[NONE], note=note)
    for name in list(rings)[1:]:
        bench.row(f"{name} / {NONE}", "x", ratios(rates[name], rates[NONE]), at_least(RATE_AIM))


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
