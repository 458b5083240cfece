"""What an event costs from a publisher's request to its subscribers' lines, with raw clients that decode nothing."""

from __future__ import annotations

import json
import selectors
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bench import raw
from bench.measure import Bench, BenchFailure, at_least, at_most
from bench.processes import cpu_s
from bench.pubsub.trades import DOCUMENT, SCHEMA, TradeWork, draw
from peerd.client import Client, run_sync
from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from protocols.pubsub.front.client import PubSubClient

FORM_S: Final = 120.0
PROGRESS_S: Final = 120.0
"""When an answer or an event has not come for so long, it does not come."""
ITEM: Final = b'{"type":"item"'
FIRST: Final = b'{"type":"heartbeat"'
ALL: Final = "price >= 0"
# One publisher may use more than its share, and what is faster than the subscriber is not dropped.
TABLES: Final[dict[str, Any]] = {
    "node": {"profile": "lan"},
    "telemetry": {"sink": ""},
    "protocols": {"pubsub": {"publish_timeout": "5m", "events_per_member": 100_000, "delivery_queue": "64MiB"}},
}
PAIR_NODES: Final = 4
RING_NODES: Final = 10
SUBSCRIBERS: Final = 64
LONE_RATE: Final = 30.0
RATE_AIM: Final = 10_000.0
EVENT_AIM_MS: Final = 0.2
LONE_AIM_MS: Final = 2.0
LATENCY_AIMS_MS: Final = {50: 2.0, 99: 5.0}


def run(bench: Bench) -> None:
    """One publisher to one subscriber; a ring of subscribers with bursts and lone events; latencies at rest."""
    count, lone = bench.scale.of(20_000, 5_000, 40), bench.scale.of(600, 200, 5)
    work = draw(4_000, SUBSCRIBERS)
    with ring(bench.scale.of(PAIR_NODES, PAIR_NODES, 2)) as pair, pair.listener([ALL], 1) as listener:
        for ack in ("received", "replicated"):
            samples = [pair.burst(work, count, listener, count, ack) for _ in range(bench.runs)]
            rates, costs = ([sample[index] for sample in samples] for index in (0, 1))
            note = f"{count:,} events, 1 publisher, 1 subscriber, {len(pair.places)} daemons, JSON lines in and out"
            bench.row(f"{ack}: published and delivered", "events/s", rates, at_least(RATE_AIM), note)
            bench.row(f"{ack}: processor of all daemons", "ms/event", costs)
    wanted = [interest.text() for interest in work.interests]
    with ring(bench.scale.of(RING_NODES, RING_NODES, 2)) as many, many.listener(wanted, 0) as listener:
        due = sum(work.due(SUBSCRIBERS, 0, count // 5))
        costs = [many.burst(work, count // 5, listener, due, "received")[1] for _ in range(bench.runs)]
        note = f"{len(many.places)} daemons, {SUBSCRIBERS} subscribers of 1 %"
        bench.row("burst: processor of all daemons", "ms/event", costs, at_most(EVENT_AIM_MS), note)
        rest_s, costs = many.rest(bench.scale.of(10.0, 5.0, 0.1)), []
        for _ in range(bench.runs):
            costs.append(1000 * many.lone(work, lone, listener)[0])
        bench.row("lone events: processor of all daemons", "ms/event", costs, at_most(LONE_AIM_MS), f"{LONE_RATE:g}/s")
        bench.row("of which the ring at rest", "ms/event", [1000 * rest_s / LONE_RATE])
    with ring(bench.scale.of(RING_NODES, RING_NODES, 2)) as idle, idle.listener([ALL], -1) as listener:
        idle.lone(work, 10, listener)
        runs = [sorted(idle.lone(work, lone, listener)[1]) for _ in range(bench.runs)]
        for percent, aim in LATENCY_AIMS_MS.items():
            values = [1000 * latencies[len(latencies) * percent // 100] for latencies in runs]
            note = f"publish to delivery, {LONE_RATE:g} a second, {len(idle.places)} daemons"
            bench.row(f"{percent} % delivered within", "ms", values, at_most(aim), note)


class Ring:
    """Daemons with a schema; events are published at the first one."""

    def __init__(self, places: Sequence[str], pids: Sequence[int], configs: Sequence[Path]) -> None:
        self.places, self.pids, self.configs = places, pids, configs

    @contextmanager
    def listener(self, filters: Sequence[str], first: int) -> Iterator[Listener]:
        """Have a subscriber of each filter, at one daemon after the other from ``first`` on."""
        places = [self.places[(first + number) % len(self.places)] for number in range(len(filters))]
        listener = Listener([raw.connect(place, _follow(text)) for place, text in zip(places, filters, strict=True)])
        try:
            yield listener
        finally:
            listener.close()

    def used_s(self) -> float:
        """Processor seconds of all daemons so far."""
        return sum(map(cpu_s, self.pids))

    def rest(self, seconds: float) -> float:
        """Processor seconds that the daemons use in a second in which nothing is published."""
        before = self.used_s()
        time.sleep(seconds)
        return (self.used_s() - before) / seconds

    def burst(self, work: TradeWork, count: int, listener: Listener, due: int, ack: str) -> tuple[float, float]:
        """One request with all events: events a second up to the last delivery and the answer, processor ms of each."""
        body = b"".join(_line(work, number) for number in range(count))
        listener.begin()
        began, before = time.monotonic(), self.used_s()
        with raw.connect(self.places[0], _publish(f"?ack={ack}", body, "application/x-ndjson")) as sock:
            answer = _answer(sock)
        listener.wait(due)
        elapsed_s = time.monotonic() - began
        if answer.get("accepted") != count:
            raise BenchFailure(f"not every event was taken: {answer}")
        return count / elapsed_s, 1000 * (self.used_s() - before) / count

    def lone(self, work: TradeWork, count: int, listener: Listener) -> tuple[float, list[float]]:
        """A request an event, `LONE_RATE` a second: processor seconds of each event, and seconds to each delivery."""
        before, began, latencies = self.used_s(), time.monotonic(), []
        with raw.connect(self.places[0]) as sock:
            for number in range(count):
                time.sleep(max(0.0, began + number / LONE_RATE - time.monotonic()))
                listener.begin()
                sent_at = time.monotonic()
                sock.sendall(_publish("?ack=received", _line(work, number).strip()))
                if _answer(sock).get("outcome") != "received":
                    raise BenchFailure("an event was not taken")
                if len(listener.sockets) == 1:
                    listener.wait(1)
                    latencies.append(listener.last_at - sent_at)
        return (self.used_s() - before) / count, latencies


class Listener:
    """Counts the items on the connections of subscribers, in a thread."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self.sockets = sockets
        self.last_at = 0.0
        self._count = 0
        self._changed = threading.Condition()
        self._silent = set(sockets)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._silent, PROGRESS_S):
                raise BenchFailure("not every subscriber has its first line")

    def begin(self) -> None:
        """Count anew."""
        with self._changed:
            self._count = 0

    def wait(self, count: int) -> None:
        """Wait for so many items; no more than these may have come. Raises `BenchFailure`."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count, PROGRESS_S)
            if self._count != count:
                raise BenchFailure(f"{self._count} of {count} events came")

    def close(self) -> None:
        """End the subscriptions."""
        for sock in self.sockets:
            sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for sock in self.sockets:
            sock.close()

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for sock in self.sockets:
                selector.register(sock, selectors.EVENT_READ, bytearray())
            while selector.get_map():
                for key, _ in selector.select():
                    self._come(selector, key)

    def _come(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        sock, tail = key.fileobj, key.data
        assert isinstance(sock, socket.socket)
        if not (data := sock.recv(1 << 20)):
            selector.unregister(sock)
            return
        tail += data
        count = tail.count(ITEM)
        if FIRST in tail:
            self._silent.discard(sock)
        del tail[: max(0, len(tail) - len(ITEM) + 1)]
        with self._changed:
            self.last_at = time.monotonic()
            self._count += count
            self._changed.notify()


@contextmanager
def ring(nodes: int) -> Iterator[Ring]:
    """Daemons with mutual TLS, as an operator starts them, that know the schema."""
    with (
        tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder,
        LocalCluster(Path(folder) / "cluster") as cluster,
    ):
        cluster.up(nodes, settings=lambda index: TABLES, timeout_s=FORM_S)
        record = cluster.record()
        places = [str(socket_file(record, index)) for index in range(nodes)]

        async def declare(client: Client) -> None:
            await PubSubClient(client).declare(DOCUMENT)

        run_sync(declare, places[0])
        pids = [node.process.pid for node in record.nodes if node.process is not None]
        yield Ring(places, pids, [cluster.layout.config_file(index) for index in range(nodes)])


def _line(work: TradeWork, number: int) -> bytes:
    event = {**work.trade(number), "_payload": str(time.monotonic_ns())}
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def _follow(text: str) -> bytes:
    return raw.request("GET", f"/v1/pubsub/{SCHEMA}/events?policy=block&filter={quote(text, safe='')}")


def _publish(query: str, body: bytes, kind: str = "application/json") -> bytes:
    return raw.request("POST", f"/v1/pubsub/{SCHEMA}/events{query}", body, kind)


def _answer(sock: socket.socket) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw.answer(sock))
    return found
