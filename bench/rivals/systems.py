"""The systems that are compared, with their servers and clients, and one measurement of one of them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench.measure import Bench, BenchFailure
from bench.processes import LOOPBACK, Children, Conversation, cpu_s, free_ports, wait_until
from bench.rivals.work import Work
from peerd.client import Client, run_sync
from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster

BROKERS: Final = ("NATS", "Mosquitto")
CLIENT_PROCESSES: Final = 4
"""Processes that the subscribers of one system share; its publisher has one more."""
DESCRIPTORS: Final = 8192
"""A broker needs one for each subscriber, and a process of subscribers, too."""
START_S: Final = 20.0
FORM_S: Final = 300.0
MEASURE_S: Final = 900.0
ADMIN_FOLDERS: Final = "/usr/sbin:/usr/local/sbin"
"""Where brokers are installed, and what is not on everybody's path."""
RECEIVED_METRIC: Final = "peerd_messages_received_bytes_total"
SENT_METRIC: Final = "peerd_messages_sent_bytes_total"
PERCENTILES: Final = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. ``duration_s``: from the first publish to the last useful delivery."""

    events: int
    useful: int
    """Events that a subscriber wanted and got."""
    duration_s: float
    cpu_s: float
    """Processor time of servers and clients together."""
    server_cpu_s: float
    """And of the servers alone."""
    source_bytes: int
    """What the daemon or broker has sent that the publisher talks to: to other daemons, or to all subscribers."""
    received_bytes: int
    """What came to nodes or, from a broker, to clients over network connections."""
    client_bytes: int
    """What came to clients, whatever the way."""
    latencies_ms: Sequence[float]


@dataclass
class System:
    """A system that runs, with subscribers that can be added."""

    name: str
    work: Work
    source: str
    """Where the publisher publishes."""
    places: Sequence[str]
    """Where subscribers are; they take turns."""
    server_pids: Sequence[int]
    is_filtering: bool
    """It sends subscribers what they want, not everything."""
    clients: Sequence[Conversation]
    publisher: Conversation
    network_bytes: Callable[[], tuple[int, int]] | None = None
    """What servers have received from each other, and what the source has sent; ``None``: see clients' connections."""
    wait_calm: Callable[[], None] = lambda: None
    """Waits until what new subscribers have set going is over."""
    subscribers: int = 0
    _members: list[list[int]] = field(default_factory=list)

    def join(self, subscribers: int) -> None:
        """Have so many subscribers."""
        self._members = [list(range(index, subscribers, len(self.clients))) for index in range(len(self.clients))]
        for members, client in zip(self._members, self.clients, strict=True):
            new = [number for number in members if number >= self.subscribers]
            client.ask("join", MEASURE_S, members=[(number, self._place(number)) for number in new])
        self.wait_calm()
        self.subscribers = subscribers

    def _place(self, number: int) -> str:
        return self.places[number % len(self.places)]

    def measure(self, first: int, count: int, rate: float = 0.0, **options: str) -> Sample:
        """Publish messages and wait for all that is due. Raises `BenchFailure` unless everybody gets exactly that."""
        due = self.work.due(self.subscribers, first, count)
        before = sum(client.ask("begin")["received_bytes"] for client in self.clients)
        network_before = (0, 0) if self.network_bytes is None else self.network_bytes()
        client_pids = [each.process.pid for each in (*self.clients, self.publisher)]
        server_s, client_s = (sum(map(cpu_s, pids)) for pids in (self.server_pids, client_pids))
        published = self.publisher.ask(
            "publish", MEASURE_S, place=self.source, first=first, count=count, rate=rate, **options
        )
        answers = [
            client.ask("finish", MEASURE_S, received=self._expected(members, due, count))
            for client, members in zip(self.clients, self._members, strict=True)
        ]
        server_s, client_s = sum(map(cpu_s, self.server_pids)) - server_s, sum(map(cpu_s, client_pids)) - client_s
        came = sum(answer["received_bytes"] for answer in answers) - before
        received, sent = came, came
        if self.network_bytes is not None:
            received, sent = (now - then for now, then in zip(self.network_bytes(), network_before, strict=True))
        found = dict(entry for answer in answers for entry in answer["found"])
        if [found.get(number, 0) for number in range(self.subscribers)] != due:
            raise BenchFailure(f"{self.name}: not every subscriber got exactly what it wanted")
        last_at = max(published["began_at"], *(answer["last_at"] for answer in answers))
        return Sample(
            count,
            sum(due),
            last_at - published["began_at"],
            server_s + client_s,
            server_s,
            sent,
            received,
            came,
            [each for answer in answers for each in answer["latencies_ms"]],
        )

    def _expected(self, members: Sequence[int], due: Sequence[int], count: int) -> int:
        return sum(due[number] for number in members) if self.is_filtering else count * len(members)


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Let this process and those that it starts open as many files as the comparison needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def usable_brokers(bench: Bench) -> list[str]:
    """The brokers that peerd can be compared with here; what is missing for the others is said."""
    for name in BROKERS:
        if why := why_not(name):
            bench.skip(f"comparison with {name}", why)
    return [name for name in BROKERS if not why_not(name)]


def why_not(name: str) -> str:
    """Empty when a broker and the client library can be used; else what is missing and how to install it."""
    program, package, module = {
        "NATS": ("nats-server", "nats-py", "nats"),
        "Mosquitto": ("mosquitto", "paho-mqtt", "paho"),
    }[name]
    if _program(program) is None:
        return f"{program} is not installed: apt-get install {program}"
    if find_spec(module) is None:
        return f"{package} is not installed: pip install 'peerd[bench]'"
    return ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{ADMIN_FOLDERS}")


Prepare = Callable[[Client], Coroutine[Any, Any, object]]
"""Makes what is needed before anybody can subscribe, at the publisher's daemon."""


class Systems:
    """Starts systems below a folder; leaving the stack ends them.

    ``module``: what runs as a process of clients, see `bench.rivals.child`.
    ``calm_s``: new subscribers have settled when the metric that tells of it has not changed for so long.
    """

    def __init__(self, stack: ExitStack, folder: Path, work: Work, module: str, calm_s: float) -> None:
        self._module = module
        self._calm_s = calm_s
        self._stack = stack
        self._servers = stack.enter_context(Children())
        self._folder = folder
        self._work = work
        self._work_file = folder / "work.json"
        self._work_file.write_text(json.dumps(work.to_json()))

    def peerd(self, nodes: int, tables: dict[str, Any], prepare: Prepare, calm_metric: str) -> System:
        """Daemons with mutual TLS, as an operator starts them. The first one is the publisher's."""
        cluster = self._stack.enter_context(LocalCluster(self._folder / "cluster"))
        cluster.up(nodes, settings=lambda index: tables, timeout_s=FORM_S)
        record = cluster.record()
        places = [str(socket_file(record, index)) for index in range(nodes)]
        run_sync(prepare, places[0])
        pids = [node.process.pid for node in record.nodes if node.process is not None]
        clients, publisher = self._clients("peerd")

        def count(metric: str) -> int:
            return sum(metric_of(place, metric) for place in places)

        return System(
            "peerd",
            self._work,
            places[0],
            places,
            pids,
            is_filtering=True,
            clients=clients,
            publisher=publisher,
            network_bytes=lambda: (count(RECEIVED_METRIC), metric_of(places[0], SENT_METRIC)),
            wait_calm=lambda: _wait_steady(lambda: count(calm_metric), self._calm_s),
        )

    def broker(self, name: str) -> System:
        """A broker on loopback, without TLS, with unbounded queues where it would drop."""
        [port] = free_ports(1)
        command = self._nats(port) if name == "NATS" else self._mosquitto(port)
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        server = self._servers.start(command, stdout=log, stderr=log)
        wait_until(lambda: _answers(port), START_S, f"{name} at port {port}")
        clients, publisher = self._clients(name)
        place = f"{LOOPBACK}:{port}"
        return System(name, self._work, place, [place], [server.pid], False, clients, publisher)

    def _clients(self, system: str) -> tuple[list[Conversation], Conversation]:
        """Processes with subscribers, and the publisher's; they end before the servers."""
        children = self._stack.enter_context(Children())
        arguments = [system, str(self._work_file)]
        *clients, publisher = [Conversation(children, self._module, arguments) for _ in range(CLIENT_PROCESSES + 1)]
        return clients, publisher

    @staticmethod
    def _nats(port: int) -> list[str]:
        return [_program("nats-server") or "nats-server", "-a", LOOPBACK, "-p", str(port)]

    def _mosquitto(self, port: int) -> list[str]:
        config = self._folder / "mosquitto.conf"
        config.write_text(f"listener {port} {LOOPBACK}\nallow_anonymous true\nmax_queued_messages 0\n")
        return [_program("mosquitto") or "mosquitto", "-c", str(config)]


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1.0):
        return True
    return False


def metric_of(place: str, name: str) -> int:
    """The sum of a daemon's metrics whose lines begin with this."""

    async def ask(client: Client) -> str:
        return await client.metrics()

    lines = run_sync(ask, place).splitlines()
    return round(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)))


def _wait_steady(value: Callable[[], int], calm_s: float) -> None:
    """Wait until a value has stayed the same for so long. Raises `BenchFailure`."""
    last, since = value(), time.monotonic()

    def is_steady() -> bool:
        nonlocal last, since
        now = value()
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since >= calm_s

    wait_until(is_steady, MEASURE_S, "subscriptions at rest", poll_s=calm_s / 4)


def in_turns(
    bench: Bench, systems: Sequence[System], runs: int, events: int, step: int, rate: float = 0.0
) -> dict[str, list[Sample]]:
    """The samples of each system, all in turn in each run; each run begins ``step`` events after the one before."""
    samples: dict[str, list[Sample]] = {system.name: [] for system in systems}
    for number in range(runs):
        for system in systems:
            bench.progress(f"{system.subscribers:,} subscribers, run {number + 1}: {system.name}")
            samples[system.name].append(system.measure(number * step, events, rate))
    return samples


def tell_latencies(bench: Bench, samples: Mapping[str, Sequence[Sample]], note: str) -> None:
    """A row for each system and percentile of its latencies."""
    for name, found in samples.items():
        runs = [sorted(sample.latencies_ms) for sample in found if sample.latencies_ms]
        for percent in PERCENTILES if runs else ():
            values = [latencies[len(latencies) * percent // 100] for latencies in runs]
            bench.row(f"{name}: {percent} % delivered within", "ms", values, note=note)
