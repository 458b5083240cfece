"""Values of 32 daemons for a hundred clients that ask, or watch, beside a Prometheus that scrapes as many."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import raw
from bench.measure import Aim, Bench, BenchFailure, at_most
from bench.measurement.clients import KNOWN_S, STALE_S, connected, read
from bench.measurement.scraping import scrape
from bench.processes import cpu_s, wait_until
from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from protocols.measurement.plugin import MeasurementQueries

FORM_S: Final = 120.0
KNOWN_AIM_MS: Final = 2.0
SCRAPING_AIM: Final = 0.1
TABLES: Final[dict[str, Any]] = {"node": {"profile": "lan"}, "telemetry": {"sink": ""}}
NAMES: Final = "|".join(each.__name__ for each in MeasurementQueries.messages)
MOVED: Final = re.compile(rf'^peerd_messages_received(_bytes|)_total{{message="({NAMES})"}} (\S+)$', re.MULTILINE)


@dataclass
class Cost:
    """Of all daemons, in so many seconds. ``moved``: messages ("") and bytes ("_bytes") by the type of message."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)

    def rate(self, kind: str) -> float:
        """How many a second, of all types."""
        return sum(count for (each, _), count in self.moved.items() if each == kind) / self.seconds

    def by_type(self) -> str:
        """Bytes a second."""
        parts = sorted(((count, name) for (kind, name), count in self.moved.items() if kind and count), reverse=True)
        return ", ".join(f"{name} {count / self.seconds:,.0f}" for count, name in parts)


class Ring:
    """Daemons. ``rest``: the processor that they use in a second while nobody asks anything."""

    def __init__(self, places: Sequence[str], ids: Sequence[str], pids: Sequence[int]) -> None:
        self.places, self.ids, self.pids = places, ids, pids
        self.rest = 0.0

    def used_s(self) -> float:
        """Processor seconds of all daemons so far."""
        return sum(map(cpu_s, self.pids))

    @contextmanager
    def counted(self) -> Iterator[Cost]:
        """What the daemons move and use meanwhile, the latter beyond rest."""
        cost, before = Cost(), self._moved()
        began, used_s = time.monotonic(), self.used_s()
        yield cost
        cost.seconds = time.monotonic() - began
        cost.cpu_s = max(0.0, self.used_s() - used_s - self.rest * cost.seconds)
        cost.moved = self._moved()
        cost.moved.subtract(before)

    def _moved(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for place in self.places:
            for kind, name, count in MOVED.findall(_answer(place, raw.request("GET", "/metrics")).decode()):
                found[kind, name] += round(float(count))
        return found

    def is_known(self) -> bool:
        """Whether every daemon has a value of each."""
        with suppress(BenchFailure):  # refused until somebody's processor is known, which takes two readings
            return all(len(json.loads(_answer(place, read()))["values"]) == len(self.ids) for place in self.places)
        return False


def run(bench: Bench) -> None:
    """The ring at rest; clients that ask; one that watches, and many; then Prometheus."""
    nodes, clients = bench.scale.of(32, 32, 3), bench.scale.of(100, 100, 6)
    seconds, rest_s = bench.scale.of((60.0, 30.0), (15.0, 6.0), (0.6, 2.0))
    with ring(nodes) as daemons:
        bench.progress(f"{nodes} daemons rest for {rest_s:g} s")
        time.sleep(rest_s / 3)
        used_s = daemons.used_s()
        time.sleep(rest_s)
        daemons.rest = (daemons.used_s() - used_s) / rest_s
        wait_until(daemons.is_known, KNOWN_S, "a value of every node", poll_s=0.5)
        moved = {f"{clients} clients ask": _ask(bench, daemons, clients, seconds) / nodes}
        moved["1 client watches"] = _watch(bench, daemons, 1, seconds)
        # After the lone one, as a watch goes on for a while without its client.
        moved[f"{clients} clients watch"] = _watch(bench, daemons, clients, seconds) / nodes
    if (program := shutil.which("prometheus")) is None:
        bench.skip("scraping by Prometheus", "prometheus is not installed: apt-get install prometheus")
        return
    bench.progress(f"Prometheus scrapes {nodes} nodes for {seconds:g} s")
    with tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder:
        scraped = scrape(program, Path(folder), nodes, bench.scale.of(STALE_S, STALE_S, 1), seconds)
    total = scraped.question_bytes + scraped.answer_bytes
    note = f"one number of each node, each {STALE_S} s; {scraped.answer_bytes:,.0f} of them are answers"
    bench.row("Prometheus: bytes", "B/s", [total], note=note)
    bench.row("Prometheus: its processor", "ms/s", [1000 * scraped.processor_s])
    for name, rate in moved.items():
        note = "bytes of a daemon that reads, which is as one Prometheus"
        bench.row(f"{name}: peerd / Prometheus", "x", [rate / total], at_most(SCRAPING_AIM), note)


def _ask(bench: Bench, daemons: Ring, count: int, seconds: float) -> float:
    """Bytes between daemons in a second, while clients ask for all nodes' values each second; then for one node's."""
    nodes, name = len(daemons.ids), f"{count} clients ask"
    bench.progress(f"{name} for {nodes} values each second for {seconds:g} s")
    with connected(daemons.places, count, nodes) as clients, daemons.counted() as cost:
        clients.ask(seconds, lambda client: read())
    found = clients.found
    note = f"each for all {nodes} values, each second; {len(found):,} questions; {clients.stale} values told as stale"
    bench.row(f"{name}: messages", "1/s", [cost.rate("")], note=note)
    bench.row(f"{name}: bytes", "B/s", [cost.rate("_bytes")], note=cost.by_type())
    note = f"beyond the ring at rest, which takes {1000 * daemons.rest:.0f} ms/s"
    bench.row(f"{name}: processor of all daemons", "ms/question", [1000 * cost.cpu_s / len(found)], note=note)
    free = sum(not messages for _, messages in found) / len(found)
    _latencies(bench, f"{nodes} values", [ms for ms, _ in found], note=f"{free:.0%} without a message")
    bench.progress(f"{name} for one value each second for {seconds / 3:g} s")
    with connected(daemons.places, count, 1) as clients:
        clients.ask(seconds / 3, lambda client: read(daemons.ids[(client + 1) % nodes]))
    known = [ms for ms, messages in clients.found if not messages]
    _latencies(bench, "one known value", known, at_most(KNOWN_AIM_MS), f"{len(known):,} of {len(clients.found):,}")
    return cost.rate("_bytes")


def _latencies(bench: Bench, what: str, found: Sequence[float], aim: Aim | None = None, note: str = "") -> None:
    order = sorted(found)
    bench.row(f"{what}: half answered within", "ms", order[len(order) // 2 :][:1], aim, note)
    bench.row(f"{what}: 99 % answered within", "ms", order[len(order) * 99 // 100 :][:1])


def _watch(bench: Bench, daemons: Ring, count: int, seconds: float) -> float:
    """The same, while so many clients watch the values of all nodes."""
    name = "1 client watches" if count == 1 else f"{count} clients watch"
    bench.progress(f"{name} for {seconds:g} s")
    with connected(daemons.places, count, len(daemons.ids)) as clients:
        clients.begin_watches()
        with daemons.counted() as cost:
            lines = clients.watch(seconds)
    note = f"{lines / cost.seconds / count / len(daemons.ids):.2g} broken bounds of a value a second"
    note += f"; {clients.stale} of {lines:,} lines told that a value was stale"
    bench.row(f"{name}: messages", "1/s", [cost.rate("")], note=note)
    bench.row(f"{name}: bytes", "B/s", [cost.rate("_bytes")], note=cost.by_type())
    bench.row(f"{name}: processor of all daemons", "ms/s", [1000 * cost.cpu_s / cost.seconds], note="beyond rest")
    return cost.rate("_bytes")


@contextmanager
def ring(nodes: int) -> Iterator[Ring]:
    """Daemons with mutual TLS, as an operator starts them."""
    with (
        tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder,
        LocalCluster(Path(folder) / "cluster") as cluster,
    ):
        cluster.up(nodes, settings=lambda index: TABLES, timeout_s=FORM_S)
        record = cluster.record()
        places = [str(socket_file(record, index)) for index in range(nodes)]
        pids = [node.process.pid for node in record.nodes if node.process is not None]
        yield Ring(places, [node.id for node in record.nodes], pids)


def _answer(place: str, request: bytes) -> bytes:
    with raw.connect(place, request) as sock:
        return raw.answer(sock)
