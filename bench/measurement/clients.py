"""Clients that ask for values or watch them, on one loop; what they are told is judged."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from bench import raw
from bench.measure import BenchFailure

WITHIN: Final = 0.05
STALE_S: Final = 5
KNOWN_S: Final = 60.0
"""By then a daemon knows all nodes, and a watch has a value of each."""
ROUNDING: Final = 1e-6
WATCH: Final = raw.request("GET", f"/v1/measurement/watch?name=cpu&within=cpu:{WITHIN}&stale={STALE_S}s")
ITEM: Final = b'{"type":"item"'
HEARTBEAT: Final = b'{"type":"heartbeat"'
T = TypeVar("T")


class Value(msgspec.Struct):
    """Of one node. One that is not as good as was asked for, and not told as stale, cannot be decoded."""

    node: str
    low: float
    high: float
    age_s: float
    stale: bool = False

    def __post_init__(self) -> None:
        if not self.stale and (self.age_s > STALE_S or self.high - self.low > 2 * WITHIN + ROUNDING):
            raise ValueError(f"from {self.low} to {self.high}, {self.age_s} s old")


class Answer(msgspec.Struct):
    """To a question. ``messages``: what it has cost."""

    values: list[Value]
    missing: list[Any]
    messages: int


class Line(msgspec.Struct):
    """Of a watch."""

    data: Value


@dataclass(eq=False)
class Connection:
    """Of a client. ``asked_at``: a question is under way. ``nodes``: those of which a watch has told."""

    sock: socket.socket
    asked_at: float | None = None
    data: bytearray = field(default_factory=bytearray)
    nodes: set[str] = field(default_factory=set)


class Clients:
    """So many, at one daemon after the other. ``nodes``: as many values belong to an answer, or `BenchFailure`."""

    def __init__(self, selector: selectors.BaseSelector, connections: Sequence[Connection], nodes: int) -> None:
        self._selector, self._connections, self._nodes = selector, connections, nodes
        self.found: list[tuple[float, int]] = []
        """Milliseconds to each answer, and the messages that it has cost."""
        self.stale = 0
        """How often an answer or a watch has said that a value is stale."""

    def ask(self, seconds: float, question: Callable[[int], bytes]) -> None:
        """A question of each client a second, all spread evenly. Who still waits asks later."""
        began, count = time.monotonic(), len(self._connections)
        for number in range(round(seconds * count)):
            client = self._connections[number % count]
            while (left_s := began + number / count - time.monotonic()) > 0 or client.asked_at is not None:
                self._hear(left_s if left_s > 0 else raw.ANSWER_S)
            client.asked_at = time.monotonic()
            client.sock.sendall(question(number % count))
        while any(client.asked_at is not None for client in self._connections):
            self._hear(raw.ANSWER_S)

    def _hear(self, timeout_s: float) -> None:
        for client in self._readable(timeout_s):
            body = raw.take_answer(client.data)
            if body is None or client.asked_at is None:
                continue
            took_s, client.asked_at = time.monotonic() - client.asked_at, None
            answer = _decoded(body, Answer)
            if answer.missing or len({value.node for value in answer.values}) != self._nodes:
                raise BenchFailure(f"{len(answer.values)} of {self._nodes} values; missing: {answer.missing[:3]}")
            self.found.append((1000 * took_s, answer.messages))
            self.stale += sum(value.stale for value in answer.values)

    def begin_watches(self) -> None:
        """Watch all nodes. Returns when every client has a value of each."""
        for client in self._connections:
            client.sock.sendall(WATCH)
        deadline = time.monotonic() + KNOWN_S
        while any(len(client.nodes) < self._nodes for client in self._connections):
            if time.monotonic() > deadline:
                raise BenchFailure("a watch has not told a value of every node")
            self._lines(1.0)

    def watch(self, seconds: float) -> int:
        """How many values the watches have told in this time."""
        count, over_at = 0, time.monotonic() + seconds
        while (left_s := over_at - time.monotonic()) > 0:
            count += self._lines(left_s)
        return count

    def _lines(self, timeout_s: float) -> int:
        count = 0
        for client in self._readable(timeout_s):
            *lines, client.data = client.data.split(b"\n")
            for line in lines:
                if line.startswith(ITEM):
                    value = _decoded(line, Line).data
                    client.nodes.add(value.node)
                    self.stale += value.stale
                    count += 1
                elif line.startswith(b"{") and not line.startswith(HEARTBEAT):
                    raise BenchFailure(f"a watch says {line!r}")
        return count

    def _readable(self, timeout_s: float) -> Iterator[Connection]:
        """Clients to whom something has come."""
        for key, _ in self._selector.select(timeout_s):
            client: Connection = key.data
            client.data += raw.received(client.sock)
            yield client


@contextmanager
def connected(places: Sequence[str], count: int, nodes: int) -> Iterator[Clients]:
    """Clients that are connected, until the context is left."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        socks = [stack.enter_context(raw.connect(places[number % len(places)])) for number in range(count)]
        connections = [Connection(sock) for sock in socks]
        for connection in connections:
            selector.register(connection.sock, selectors.EVENT_READ, connection)
        yield Clients(selector, connections, nodes)


def read(*nodes: str) -> bytes:
    """The question for the processor of these nodes, or of all."""
    body = {"names": ["cpu"], "nodes": nodes, "within": {"cpu": WITHIN}, "stale": f"{STALE_S}s"}
    return raw.request("POST", "/v1/measurement/read", json.dumps(body).encode())


def _decoded(data: bytes | bytearray, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise BenchFailure(f"not what was asked for: {error}") from error
