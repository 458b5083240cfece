"""What an idle daemon costs, how soon it is ready, and how soon many daemons are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.measure import Bench, BenchFailure, at_most
from bench.processes import Children, cpu_s, free_ports, resident_mb
from peerd.client import Client, DaemonUnreachable, run_sync
from peerd.cluster.layout import ClusterRecord, Layout, socket_file
from peerd.cluster.local import LocalCluster
from protocols.dissemination.front.client import DisseminationClient

CLUSTER_NODES: Final = 32
RESIDENT_AIM_MB: Final = 70.0
CPU_AIM_PERCENT: Final = 1.0
READY_AIM_S: Final = 1.0
CLUSTER_AIM_S: Final = 20.0
COMMAND_AIM_S: Final = 0.3
READY_TIMEOUT_S: Final = 60.0
SETTLE_S: Final = 5.0


def run(bench: Bench) -> None:
    """Daemons as an operator starts them, one after the other; then a whole local cluster at once."""
    # As on a machine where peerd is installed, the compiled modules are kept: compiling takes as long as a whole start.
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    _single(bench)
    _cluster(bench)


def _single(bench: Bench) -> None:
    count = max(3, bench.runs)
    with tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder, Children() as children:
        layout = Layout(Path(folder) / "cluster")
        layout.directory.mkdir()
        record = layout.create("bench", free_ports(count), settings=lambda index: {"node": {"profile": "lan"}})
        ready: list[float] = []
        processes: list[subprocess.Popen[bytes]] = []
        for index in range(count):
            bench.progress(f"daemon {index + 1} of {count}")
            began = time.monotonic()
            processes.append(_start(children, layout, index))
            _wait_ready(record, index, processes[-1])
            ready.append(time.monotonic() - began)
        seconds = bench.scale.of(60.0, 10.0, 0.2)
        bench.progress(f"{count} daemons rest for {seconds:g} s")
        percents = _rest([process.pid for process in processes], seconds, bench.scale.of(SETTLE_S, SETTLE_S, 0.0))
        resident = [resident_mb(process.pid) for process in processes]
        for index in range(count):
            run_sync(lambda client: client.status(), socket_file(record, index))
        commands = {"--help": ["--help"], "status": ["status", "--socket", str(socket_file(record, 0))]}
        took = {name: _command_s(words, bench.scale.of(10, 5, 2)) for name, words in commands.items()}
        asked = [resident_mb(process.pid) for process in processes]
        idle_percents, idle = _with_streams(bench, record, processes)
    ready = ready[1:]  # the first may have compiled
    bench.row("start-up to ready", "s", ready, at_most(READY_AIM_S), "peerd run, TLS, joining the ring so far")
    bench.row(
        "at rest: RSS",
        "MiB",
        resident,
        at_most(RESIDENT_AIM_MB),
        f"{count} daemons, after {seconds:g} s of probes only",
    )
    bench.row("after a request of /v1: RSS", "MiB", asked, note="it loads the routes of the admin API, and keeps them")
    bench.row("with an idle stream: RSS", "MiB", idle, note="it loads lxml and pyroaring, and keeps them")
    bench.row("with an idle stream: CPU", "%", idle_percents, note="of a core; its producer, without subscribers")
    for name, samples in took.items():
        bench.row(f"peerd {name}", "s", samples, at_most(COMMAND_AIM_S), "from start to end of the process")
    bench.row("at rest: CPU", "%", percents, at_most(CPU_AIM_PERCENT), f"of a core, over {seconds:g} s, each daemon")


def _with_streams(
    bench: Bench, record: ClusterRecord, processes: Sequence[subprocess.Popen[bytes]]
) -> tuple[list[float], list[float]]:
    """What each daemon costs when it produces a stream of XML documents in which nothing is published."""
    for index in range(len(processes)):

        async def create(client: Client, name: str = f"idle{index}") -> None:
            await DisseminationClient(client).create(name, "xpath")

        run_sync(create, socket_file(record, index))
    seconds = bench.scale.of(60.0, 10.0, 0.2)
    bench.progress(f"{len(processes)} daemons with a stream each rest for {seconds:g} s")
    percents = _rest([process.pid for process in processes], seconds, bench.scale.of(SETTLE_S, SETTLE_S, 0.0))
    return percents, [resident_mb(process.pid) for process in processes]


def _command_s(words: list[str], times: int) -> list[float]:
    """How long a command takes. The first run is not counted: it may have to read files that are in no cache."""
    samples = []
    for _ in range(times + 1):
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "peerd", *words], check=True, stdout=subprocess.DEVNULL)
        samples.append(time.monotonic() - began)
    return samples[1:]


def _start(children: Children, layout: Layout, index: int) -> subprocess.Popen[bytes]:
    with layout.log_file(index).open("wb") as log:
        command = [sys.executable, "-m", "peerd", "run", "--config", str(layout.config_file(index))]
        return children.start(command, stdout=log, stderr=log)


def _wait_ready(record: ClusterRecord, index: int, process: subprocess.Popen[bytes]) -> None:
    """Wait with cheap polling, which leaves the cores to the daemon: first for its socket, then with requests."""
    path = socket_file(record, index)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchFailure(f"daemon {index} does not start: {path.parent.parent / 'logs' / f'{index}.log'}")
        time.sleep(0.005)
    run_sync(lambda client: _probe(client, deadline), path)


async def _probe(client: Client, deadline: float) -> None:
    """Probe as a supervisor does; `Client.wait_ready` would make the daemon load the rest of its API."""
    while time.monotonic() < deadline:
        with contextlib.suppress(DaemonUnreachable):  # the socket's file exists a moment before the daemon listens
            if (await client.ready()).status == "ok":
                return
        await asyncio.sleep(0.01)
    raise BenchFailure("a daemon is not ready in time")


def _rest(pids: list[int], seconds: float, settle_s: float) -> list[float]:
    """Percent of a core that each used over the time."""
    time.sleep(settle_s)
    began, before = time.monotonic(), [cpu_s(pid) for pid in pids]
    time.sleep(seconds)
    elapsed_s = time.monotonic() - began
    return [100 * (cpu_s(pid) - used) / elapsed_s for pid, used in zip(pids, before, strict=True)]


def _cluster(bench: Bench) -> None:
    nodes = bench.scale.of(CLUSTER_NODES, CLUSTER_NODES, 3)
    durations: list[float] = []
    percents: list[float] = []
    runs = bench.scale.of(min(3, bench.runs), 1, 1)
    for number in range(runs):
        bench.progress(f"{nodes} daemons, run {number + 1} of {runs}")
        with (
            tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder,
            LocalCluster(Path(folder) / "cluster") as cluster,
        ):
            began = time.monotonic()
            cluster.up(nodes)
            durations.append(time.monotonic() - began)
            if number == 0:
                seconds = bench.scale.of(30.0, 10.0, 0.2)
                bench.progress(f"{nodes} daemons rest for {seconds:g} s")
                pids = [node.process.pid for node in cluster.record().nodes if node.process is not None]
                percents = _rest(pids, seconds, bench.scale.of(SETTLE_S, SETTLE_S, 0.0))
    bench.row(
        f"{nodes} daemons up, ring complete", "s", durations, at_most(CLUSTER_AIM_S), "authority and keys included"
    )
    bench.row(f"at rest among {nodes}: CPU", "%", percents, note="profile local: heartbeats five times as often")
