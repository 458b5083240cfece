"""The swap layer between two daemons on loopback, without and with TLS, beside ``iperf3`` in the same run."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from typing import Final

import xxhash

from bench.measure import Bench, BenchFailure, at_least, ratios
from bench.pair import Pair, pair
from bench.processes import LOOPBACK, Children, free_ports
from peerd.limits import MIB

SWAPS_PER_RUN: Final = 4
PLAIN_AIM: Final = 0.8
TLS_AIM: Final = 0.4


class Iperf:
    """One iperf3 server and clients against it, one TCP stream."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._port = free_ports(1)[0]
        command = ["iperf3", "--server", "--bind", LOOPBACK, "--port", str(self._port), "--forceflush"]
        server = children.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert server.stdout is not None
        while b"listening" not in (line := server.stdout.readline()):
            if not line:
                raise BenchFailure("iperf3 --server ended")

    def one_way_gbps(self, duration_s: float) -> float:
        """Rate received, Gb/s."""
        command = ["iperf3", "--client", LOOPBACK, "--port", str(self._port), "--time", f"{duration_s:g}", "--json"]
        client = self._children.start(command, stdout=subprocess.PIPE)
        output, _ = client.communicate(timeout=duration_s + 30)
        self._children.end(client)
        answer = json.loads(output)
        if "error" in answer:
            raise BenchFailure(f"iperf3: {answer['error']}")
        return float(answer["end"]["sum_received"]["bits_per_second"]) / 1e9


def run(bench: Bench) -> None:
    """Measure what the module describes."""
    size_bytes = bench.scale.of(64 * MIB, 64 * MIB, MIB)
    plain: list[float] = []
    secure: list[float] = []
    iperf_rates: list[float] = []
    digests: list[float] = []
    with pair(tls=False) as bare, pair(tls=True) as encrypted, Children() as children:
        iperf = _iperf(bench, children)
        for swappers in (bare, encrypted):
            for peer in (swappers.first, swappers.second):
                peer.ask("hold", size_bytes=size_bytes)
            _swap_gbps(swappers, size_bytes)  # the link, the buffers and the code are warm after it
        for number in range(bench.runs):
            bench.progress(f"run {number + 1} of {bench.runs}")
            if iperf is not None:
                iperf_rates.append(iperf.one_way_gbps(bench.scale.of(2, 1, 1)))
            plain.append(_median_gbps(bench, bare, size_bytes))
            secure.append(_median_gbps(bench, encrypted, size_bytes))
            digests.append(_digest_gbps(size_bytes))
    _report(bench, size_bytes, plain, secure, iperf_rates)
    bench.row("XXH3 alone, one thread", "Gb/s", digests, note="each byte is hashed once at each side")


def _report(bench: Bench, size_bytes: int, plain: list[float], secure: list[float], iperf: list[float]) -> None:
    size = f"{size_bytes // MIB} MiB both ways"
    bench.row(f"swap, {size}, no TLS", "Gb/s", plain, note="both directions summed")
    bench.row(f"swap, {size}, TLS 1.3", "Gb/s", secure, note="both directions summed")
    if iperf:
        bench.row("iperf3, one stream, one way", "Gb/s", iperf)
        bench.row("swap / iperf3, no TLS", "x", ratios(plain, iperf), at_least(PLAIN_AIM))
        bench.row("swap / iperf3, TLS 1.3", "x", ratios(secure, iperf), at_least(TLS_AIM))


def _iperf(bench: Bench, children: Children) -> Iperf | None:
    if shutil.which("iperf3") is None:
        bench.skip("comparison with iperf3", "iperf3 is not installed")
        return None
    return Iperf(children)


def _median_gbps(bench: Bench, swappers: Pair, size_bytes: int) -> float:
    count = bench.scale.of(SWAPS_PER_RUN, 2, 1)
    return statistics.median(_swap_gbps(swappers, size_bytes) for _ in range(count))


def _swap_gbps(swappers: Pair, size_bytes: int) -> float:
    answer = swappers.ask("swap")
    if answer["received_bytes"] != size_bytes:
        raise BenchFailure(f"a swap of {size_bytes} bytes gave {answer['received_bytes']}")
    return 2 * size_bytes * 8 / float(answer["duration_s"]) / 1e9


def _digest_gbps(size_bytes: int) -> float:
    value = os.urandom(size_bytes)
    began = time.perf_counter()
    xxhash.xxh3_128(value).digest()
    return size_bytes * 8 / (time.perf_counter() - began) / 1e9
