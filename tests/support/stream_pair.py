"""Bulk streams in memory: two handlers joined, with chunking, faults and a clock that the test decides.

`MemoryNetwork` holds the clock and the nodes, `MemoryNode` is what a swap layer sees below and above itself, and
`StreamPair` is one connection. Nothing is copied before delivery, so a value that changes on the way shows.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from peerd.api import (
    IN_MEMORY,
    AcceptSwap,
    Files,
    HoldSwap,
    KeyValues,
    Log,
    Metric,
    PreparedSwap,
    Priority,
    RefuseSwap,
    Rng,
    Scratch,
    SizedBlob,
    SwapCallbacks,
    SwapDecision,
    SwapHandle,
    SwapProgress,
    SwapRequest,
    Value,
    WorkHandle,
    WorkLimits,
)
from peerd.driver import Stream, StreamHandler, TimerHandle
from peerd.errors import PeerMisbehaved, ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.swap.config import SwapConfig
from peerd.swap.layer import SwapLayer
from peerd.telemetry.schema import Event, SwapFinished
from peerd.wire.frames import Frame

LATENCY_S = 0.001


@dataclass
class Faults:
    """What happens to the bytes of one direction; offsets count from the first byte of the stream."""

    cut_at: int | None = None
    """The connection is reset once this many bytes were delivered."""
    freeze_at: int | None = None
    """From this byte on nothing is delivered, without any sign."""
    flip_at: int | None = None
    """The lowest bit of this byte is inverted."""


class MemoryTimer:
    """One armed timer."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class MemoryNetwork:
    """Clock, event queue and nodes. ``take(queued)`` says how many bytes a delivery moves."""

    def __init__(
        self,
        take: Callable[[int], int] = lambda queued: queued,
        *,
        high_water_bytes: int = 4096,
        faults: tuple[Faults, Faults] | None = None,
    ) -> None:
        self.now_s = 0.0
        self.take = take
        self.high_water_bytes = high_water_bytes
        self.carries_padding = False
        self.faults = faults or (Faults(), Faults())
        self.nodes: dict[NodeId, MemoryNode] = {}
        self.pairs: list[StreamPair] = []
        self._sequence = 0
        self._events: list[tuple[float, int, MemoryTimer, Callable[[], None]]] = []

    def add(self, number: int, config: SwapConfig | None = None) -> MemoryNode:
        """A new node with a swap layer."""
        peer = PeerRef(NodeId(number), "127.0.0.1", 7000 + number)
        node = self.nodes[peer.id] = MemoryNode(self, peer, config or SwapConfig())
        return node

    def call_at(self, time_s: float, callback: Callable[[], None]) -> MemoryTimer:
        """Queue an event."""
        timer = MemoryTimer()
        self._sequence += 1
        heapq.heappush(self._events, (time_s, self._sequence, timer, callback))
        return timer

    def step(self) -> bool:
        """Run the next event; ``False`` when there is none."""
        while self._events:
            time_s, _, timer, callback = heapq.heappop(self._events)
            if not timer.is_cancelled:
                self.now_s = max(self.now_s, time_s)
                callback()
                for node in self.nodes.values():
                    node.layer.validate()
                return True
        return False

    def run(self, until_s: float = float("inf")) -> None:
        """Run every event up to a time, or until nothing is left to happen."""
        while self._events and self._events[0][0] <= until_s:
            if self._events[0][2].is_cancelled:
                heapq.heappop(self._events)
            else:
                self.step()


class MemoryStream:
    """One end of a connection: a `peerd.driver.Stream`."""

    def __init__(self, pair: StreamPair, peer: PeerRef, handler: StreamHandler, faults: Faults) -> None:
        self._pair = pair
        self.peer = peer
        self.handler = handler
        self.faults = faults
        self.other: MemoryStream
        self.queue: deque[memoryview | int] = deque()
        self.written: list[object] = []
        self.queued_bytes = 0
        self.peak_queued_bytes = 0
        self.delivered_bytes = 0
        self.was_full = False
        self.is_closing = False

    @property
    def is_writable(self) -> bool:
        return self.queued_bytes < self._pair.network.high_water_bytes and not self.is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closing, "a write after close"
        self.written.append(data)
        if data:
            self._queue(memoryview(data), len(data))

    def write_padding(self, size_bytes: int) -> None:
        assert size_bytes > 0
        self._queue(size_bytes, size_bytes)

    def close(self) -> None:
        self.is_closing = True
        self._pair.wake(self)

    def abort(self) -> None:
        self.is_closing = True
        self.queue.clear()
        self._pair.end_later("reset")

    def hand_over(self, handler: StreamHandler) -> None:
        self.handler = handler

    def _queue(self, item: memoryview | int, size_bytes: int) -> None:
        self.queue.append(item)
        self.queued_bytes += size_bytes
        self.peak_queued_bytes = max(self.peak_queued_bytes, self.queued_bytes)
        self.was_full = self.was_full or not self.is_writable
        self._pair.wake(self)


class StreamPair:
    """One connection between two handlers."""

    def __init__(self, network: MemoryNetwork, dialler: MemoryNode, acceptor: MemoryNode, handler: StreamHandler):
        self.network = network
        self.is_over = False
        self._awake: set[int] = set()
        accepted = acceptor.layer.accept(dialler.peer)
        self.dialler = MemoryStream(self, acceptor.peer, handler, network.faults[0])
        self.acceptor = MemoryStream(self, dialler.peer, accepted, network.faults[1])
        self.dialler.other, self.acceptor.other = self.acceptor, self.dialler
        accepted.opened(self.acceptor)
        handler.opened(self.dialler)

    def wake(self, stream: MemoryStream) -> None:
        """Deliver something of this end's queue soon."""
        if id(stream) not in self._awake and not self.is_over:
            self._awake.add(id(stream))
            self.network.call_at(self.network.now_s + LATENCY_S, lambda: self._deliver(stream))

    def end_later(self, reason: str | None) -> None:
        """Close both ends, after the current handler."""
        self.network.call_at(self.network.now_s, lambda: self._end(reason))

    def _end(self, reason: str | None) -> None:
        if not self.is_over:
            self.is_over = True
            for stream in (self.dialler, self.acceptor):
                stream.is_closing = True
                stream.queue.clear()
                stream.handler.closed(reason)

    def _deliver(self, stream: MemoryStream) -> None:
        self._awake.discard(id(stream))
        if self.is_over:
            return
        faults = stream.faults
        if faults.cut_at is not None and stream.delivered_bytes >= faults.cut_at:
            self._end("reset")
            return
        if stream.queue and not self._is_frozen(stream):
            self._deliver_first(stream)
        if self._is_stuck(stream):
            return
        if stream.was_full and stream.queued_bytes <= self.network.high_water_bytes // 2 and not stream.is_closing:
            stream.was_full = False
            stream.handler.writable()
        if stream.queue or (faults.cut_at is not None and stream.delivered_bytes >= faults.cut_at):
            self.wake(stream)
        elif stream.is_closing:
            self.end_later(None)

    def _is_stuck(self, stream: MemoryStream) -> bool:
        return self.is_over or self._is_frozen(stream)

    def _is_frozen(self, stream: MemoryStream) -> bool:
        return stream.faults.freeze_at is not None and stream.delivered_bytes >= stream.faults.freeze_at

    def _deliver_first(self, stream: MemoryStream) -> None:
        item = stream.queue.popleft()
        if isinstance(item, int):
            stream.queued_bytes -= item
            stream.delivered_bytes += item
            if not stream.other.is_closing:
                stream.other.handler.padding_received(item)
            return
        piece = item[: self._allowance(stream, len(item))]
        if len(piece) < len(item):
            stream.queue.appendleft(item[len(piece) :])
        stream.queued_bytes -= len(piece)
        self._hand_over(stream, piece)

    def _allowance(self, stream: MemoryStream, queued: int) -> int:
        size = max(1, min(queued, self.network.take(queued)))
        for stop in (stream.faults.cut_at, stream.faults.freeze_at):
            if stop is not None:
                size = min(size, stop - stream.delivered_bytes)
        return size

    def _hand_over(self, stream: MemoryStream, piece: memoryview) -> None:
        data = bytearray(piece)
        flip = stream.faults.flip_at
        if flip is not None and 0 <= flip - stream.delivered_bytes < len(data):
            data[flip - stream.delivered_bytes] ^= 1
        stream.delivered_bytes += len(data)
        there = stream.other
        while data and not there.is_closing:
            buffer = there.handler.get_buffer(len(data))
            assert len(buffer) > 0, "an empty buffer"
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            del data[:size]
            try:
                there.handler.buffer_updated(size)
            except ProtocolError as error:
                self.network.nodes[stream.other.peer.id].blamed.append(error.reason)
                self._end("reset")
                return


@dataclass
class MemoryNode:
    """One node: `peerd.swap.ports.SwapNode` and `peerd.driver.Driver` at once, recording what is asked of it."""

    network: MemoryNetwork
    peer: PeerRef
    config: SwapConfig
    respond: Callable[[str, SwapRequest], SwapDecision] = lambda plugin, request: RefuseSwap("no_answer")
    is_dial_failing: bool = False
    dial_s: float = LATENCY_S
    """How long opening a connection takes, or until it has failed."""
    allocation_error: BaseException | None = None
    events: list[SwapFinished] = field(default_factory=list)
    allocations: list[int] = field(default_factory=list)
    blamed: list[str] = field(default_factory=list)
    """The reasons for which its peers blamed this node."""

    def __post_init__(self) -> None:
        self.layer = SwapLayer(self.config, self)

    # The swap layer's node

    @property
    def driver(self) -> MemoryNode:
        return self

    @property
    def carries_padding(self) -> bool:
        return self.network.carries_padding

    def swap_requested(self, plugin: str, request: SwapRequest) -> SwapDecision:
        return self.respond(plugin, request)

    def run_from(self, peer: PeerRef, plugin: str, callback: Callable[..., Any], *arguments: Any) -> None:
        try:
            callback(*arguments)
        except PeerMisbehaved as error:
            self.misbehaved(peer, error)

    def emit(self, event: Event) -> int:
        assert isinstance(event, SwapFinished)
        self.events.append(event)
        return len(self.events)

    # The driver

    def now(self) -> float:
        return self.network.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        return self.network.call_at(self.network.now_s + delay_s, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.network.call_at(self.network.now_s, callback)

    def allocate(self, size_bytes: int) -> memoryview:
        if self.allocation_error is not None:
            raise self.allocation_error
        self.allocations.append(size_bytes)
        return memoryview(bytearray(size_bytes))

    def open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        if self.is_dial_failing:
            self.call_later(self.dial_s, lambda: handler.closed("refused"))
        else:
            self.call_later(self.dial_s, lambda: self._connect(peer, handler))

    def _connect(self, peer: PeerRef, handler: StreamHandler) -> None:
        self.network.pairs.append(StreamPair(self.network, self, self.network.nodes[peer.id], handler))

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        self.network.nodes[peer.id].blamed.append(str(error))

    def rng(self, purpose: str) -> Rng:
        return random.Random(purpose)

    def wall_time(self) -> float:
        return self._unused()

    def send(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        self._unused()

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        self._unused()

    def charge(self, peer: PeerRef, messages: int) -> None:
        self._unused()

    def disconnect(self, peer: PeerRef, reason: str) -> None:
        self._unused()

    def log(self, plugin: str, name: str) -> Log:
        return self._unused()

    def scratch(self) -> Scratch:
        """All in memory."""
        return IN_MEMORY

    def files(self, plugin: str) -> Files:
        return self._unused()

    def queued_bytes(self, peer: PeerRef) -> int:
        return self._unused()

    def introduce(self, plugins: Mapping[str, tuple[int, int]]) -> None:
        self._unused()

    def introduced(self, peer: PeerRef) -> Mapping[str, tuple[int, int]] | None:
        return self._unused()

    def is_linked(self, peer: PeerRef) -> bool:
        self._unused()

    def linked_at(self, peer: PeerRef) -> float | None:
        self._unused()

    def boot_epoch_of(self, peer: PeerRef) -> int | None:
        self._unused()

    def offload(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        cost_s: float,
        within: WorkLimits | None = None,
    ) -> WorkHandle:
        return self._unused()

    def store(self, plugin: str) -> KeyValues:
        self._unused()

    def record(self, record: dict[str, object]) -> None:
        self._unused()

    def declare_metrics(self, metrics: tuple[Metric, ...]) -> None:
        self._unused()

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        self._unused()

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._unused()

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._unused()

    def handler_failed(self, plugin: str, error: Exception, peer: PeerRef | None = None) -> None:
        self._unused()

    def _unused(self) -> NoReturn:
        raise AssertionError("the swap layer has no business here")


_: type[Stream] = MemoryStream


@dataclass
class Report:
    """What a plugin is told about one swap."""

    done: list[bytes | SizedBlob] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    progress: list[SwapProgress] = field(default_factory=list)
    received: list[Value] = field(default_factory=list)

    @property
    def callbacks(self) -> SwapCallbacks:
        """To hand to a swap; each call is recorded."""
        return SwapCallbacks(self._done, self.failed.append, self.progress.append, self.received.append)

    @property
    def outcome(self) -> str:
        """ "done", or the reason; asserts that there was exactly one call."""
        assert len(self.done) + len(self.failed) == 1, (self.done, self.failed)
        return self.failed[0] if self.failed else "done"

    def _done(self, value: Value) -> None:
        if isinstance(value, memoryview):
            assert value.readonly
            self.done.append(bytes(value))
        else:
            assert isinstance(value, SizedBlob), "a received value is a view or a blob"
            self.done.append(value)


class Couple:
    """Two nodes, 1 and 2, on one network. Node 2 accepts with ``answer_value``, or refuses without one."""

    def __init__(
        self,
        offer_value: Value,
        answer_value: Value | None,
        config: SwapConfig | None = None,
        answer_config: SwapConfig | None = None,
        network: MemoryNetwork | None = None,
    ) -> None:
        self.network = network or MemoryNetwork()
        self.first = self.network.add(1, config)
        self.second = self.network.add(2, answer_config or config)
        self.offer_value = offer_value
        self.answer_value = answer_value
        self.here = Report()
        self.there = Report()
        self.requests: list[tuple[str, SwapRequest]] = []
        self.holds = False
        """Whether node 2 puts off what it answers."""
        self.held: list[SwapRequest] = []
        self.second.respond = self._respond

    def swap(self, deadline_s: float | None = None, tag: bytes = b"tag") -> SwapHandle:
        """Node 1 starts a swap with node 2."""
        return self.first.layer.swap("echo", self.second.peer, tag, self.offer_value, self.here.callbacks, deadline_s)

    def prepare(self, tag: bytes) -> PreparedSwap:
        """Node 1 opens the connection of a swap."""
        return self.first.layer.prepare("echo", self.second.peer, tag, self.here.callbacks, None)

    def fetch(self) -> SwapHandle:
        """Node 1 fetches node 2's value."""
        return self.first.layer.fetch("echo", self.second.peer, b"tag", self.here.callbacks, None)

    def run(self) -> tuple[str, str]:
        """Run until nothing is left to do; both outcomes. Asserts that nothing is held any more."""
        self.network.run()
        self.assert_idle()
        return self.here.outcome, self.there.outcome if self.requests else "unasked"

    def assert_idle(self) -> None:
        """No session, no reserved byte, no open stream is left."""
        for node in (self.first, self.second):
            assert node.layer.sessions == ()
            assert (node.layer.budget.memory_bytes, node.layer.budget.spilled_bytes) == (0, 0)
        assert all(pair.is_over for pair in self.network.pairs)

    def _respond(self, plugin: str, request: SwapRequest) -> SwapDecision:
        if self.holds:
            self.held.append(request)
            return HoldSwap()
        if self.answer_value is None:
            return RefuseSwap("not_now")
        self.requests.append((plugin, SwapRequest(request.peer, request.tag, request.size_bytes, request.is_fetch)))
        return AcceptSwap(self.answer_value, self.there.callbacks)
