"""Aggregating counters on local daemons, a megabyte a node and sixteen, beside MPI's Allreduce over TCP of as large
arrays, and, of a megabyte, beside one daemon that fetches the counters of all others."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.collecting import collect_s
from bench.counters import QUERY, after_reading_s, count_for, counters, write_csv
from bench.local_peers import local_peers
from bench.measure import Bench, BenchFailure, at_most, ratios
from bench.processes import Children, cpu_with_workers_s
from peerd.client import Client, run_sync
from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from peerd.limits import MIB
from protocols.aggregation.answer import Answer
from protocols.aggregation.figures import GroupedAnswer
from protocols.aggregation.front.client import AggregationClient
from protocols.aggregation.groups import GROUPS_HARD_MAX, GROUPS_MAX

RING_SIZES: Final = (8, 16, 32)
LARGE_RING_SIZES: Final = (8, 16)
LARGE_BYTES: Final = 16 * MIB
LARGE_RUNS: Final = 2
DEADLINE_S: Final = 300.0
EVENTS_S: Final = 1.0
"""By then the last round is in the event log."""
MPIRUN: Final = (
    *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
    *("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "--mca", "mpi_yield_when_idle", "1"),
)


def run(bench: Bench) -> None:
    """One ring size after the other; on each, rounds and Allreduce in turn."""
    missing = why_no_mpi()
    if missing:
        bench.skip("comparison with MPI Allreduce", missing)
    size_bytes = bench.scale.of(MIB, MIB, 16 * 1024)
    for nodes in bench.scale.of(RING_SIZES, RING_SIZES, (2,)):
        _ring(bench, nodes, size_bytes, bench.runs, has_mpi=not missing)
    for nodes in bench.scale.of(LARGE_RING_SIZES, (), ()):
        _ring(bench, nodes, LARGE_BYTES, min(LARGE_RUNS, bench.runs), has_mpi=not missing)


def _ring(bench: Bench, nodes: int, size_bytes: int, runs: int, *, has_mpi: bool) -> None:
    size = f"{size_bytes / MIB:.3g} MiB"
    bench.progress(f"{nodes} daemons, {size}")
    answers: list[Answer] = []
    reductions: list[float] = []
    moved: list[float] = []
    shares: list[float] = []
    with _cluster(nodes, count_for(size_bytes)) as (cluster, total), Children() as children:
        address = socket_file(cluster.record(), 0)
        pids = [node.process.pid for node in cluster.record().nodes if node.process is not None]
        _round(address, nodes, total)  # links are dialled and files cached after it
        for number in range(runs):
            bench.progress(f"{nodes} daemons, {size}, run {number + 1} of {runs}")
            before = [cpu_with_workers_s(pid) for pid in pids]
            answer = _round(address, nodes, total)
            used_s = sum(cpu_with_workers_s(pid) - used for pid, used in zip(pids, before, strict=True))
            answers.append(answer)
            shares.append(used_s / nodes)
            moved.append(answer.moved_bytes / MIB)
            if has_mpi:
                reductions.append(_allreduce_s(children, nodes, size_bytes))
        time.sleep(EVENTS_S)
        exchanges = after_reading_s(cluster.layout.events, answers)
    rounds = [answer.duration_s for answer in answers]
    bench.row(f"{nodes} daemons: round", "s", rounds, note=f"{size} of counters a node, read from files, TLS")
    bench.row(f"{nodes} daemons: of it after the last has read its file", "s", exchanges)
    cores = len(os.sched_getaffinity(0))
    note = f"reading, merging and swapping; the {nodes} share {cores} cores here"
    bench.row(f"{nodes} daemons: processor time a node", "s", shares, note=note)
    bench.row(f"{nodes} daemons: value bytes moved", "MiB", moved)
    if has_mpi:
        bench.row(f"{nodes} ranks: MPI Allreduce", "s", reductions, note=f"{size} of int64 a rank, in memory, no TLS")
        bench.row(f"{nodes}: round / Allreduce", "x", ratios(rounds, reductions))
    if count_for(size_bytes) <= QUERY.groups_max:  # more of them are told in slices, which only rounds have
        _compare_collecting(bench, nodes, size_bytes, exchanges)


def _compare_collecting(bench: Bench, nodes: int, size_bytes: int, exchanges: Sequence[float]) -> None:
    """The same counters, in memory, of which one daemon fetches all."""
    bench.progress(f"{nodes} daemons, of which one fetches all")
    with local_peers(nodes, tls=True) as peers:
        central = collect_s(peers, size_bytes, len(exchanges), DEADLINE_S)
    note = f"{size_bytes / MIB:.3g} MiB of counters a node, in memory, TLS"
    bench.row(f"{nodes} daemons: one fetches all", "s", central, note=note)
    bench.row(f"{nodes}: after reading / one fetches all", "x", ratios(exchanges, central), at_most(1.0))


@contextmanager
def _cluster(nodes: int, count: int) -> Iterator[tuple[LocalCluster, dict[str, int]]]:
    """Daemons with files of ``count`` counters each, and what the sums must be."""
    with tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder:
        data = Path(folder) / "data"
        total: dict[str, int] = {}
        for index in range(nodes):
            own = counters(count, index)
            write_csv(own, data / str(index) / "counters.csv")
            for key, value in own.items():
                total[key] = total.get(key, 0) + value

        def settings(index: int) -> dict[str, Any]:
            return {"protocols": {"aggregation": {"data_root": str(data / str(index))}}}

        with LocalCluster(Path(folder) / "cluster") as cluster:
            cluster.up(nodes, settings=settings)
            yield cluster, total


def _round(address: Path, nodes: int, total: dict[str, int]) -> Answer:
    """One round asked of node 0. Raises `BenchFailure` unless everything is counted once."""

    async def ask(client: Client) -> Answer:
        lines = AggregationClient(client).aggregate(
            str(QUERY),
            files=QUERY.files,
            format=QUERY.format,
            groups_max=GROUPS_MAX if len(total) > GROUPS_HARD_MAX else None,
            deadline=DEADLINE_S,
            top=10,
        )
        answers = [line async for line in lines if isinstance(line, Answer)]
        return answers[0]

    answer = run_sync(ask, address)
    if answer.outcome != "complete" or answer.contributors != nodes:
        raise BenchFailure(f"{answer.outcome}: {answer.contributors} of {nodes}, missing {answer.missing}")
    value = answer.value
    if not isinstance(value, GroupedAnswer) or value.groups_total != len(total):
        raise BenchFailure(f"not the {len(total)} groups that the files hold: {value}")
    wrong = {key: found for key, found in value.groups.items() if total[key] != found}
    if wrong:
        raise BenchFailure(f"wrong sums: {wrong}")
    return answer


def why_no_mpi() -> str:
    """Empty when Allreduce can be measured."""
    if shutil.which("mpirun") is None:
        return "mpirun is not installed: apt-get install openmpi-bin libopenmpi-dev"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'peerd[bench]'"
    return ""


def _allreduce_s(children: Children, ranks: int, size_bytes: int) -> float:
    """Median of several Allreduce calls in one MPI job, the slowest rank's time each."""
    command = [*MPIRUN, "-n", str(ranks), sys.executable, "-m", "bench.allreduce", str(size_bytes)]
    process = children.start(command, stdout=subprocess.PIPE)
    output, _ = process.communicate(timeout=300)
    children.end(process)
    if process.returncode != 0:
        raise BenchFailure(f"mpirun ended with status {process.returncode}; its words are above")
    return float(json.loads(output)["duration_s"])
