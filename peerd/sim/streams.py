"""Bulk streams: byte pipes between two nodes, limited by the bandwidth of both and by a window.

Bytes travel in pieces of `NetworkConfig.piece_bytes`; a stream has one piece in its node's uplink at a time, so several
streams share it fairly and control messages get in between. Padding travels as a number. What a receiver has not taken
(it is paused) fills the window, and then the sender's queue: back-pressure is end to end.
"""

from __future__ import annotations

import zlib
from collections import deque
from enum import IntEnum
from typing import Final

from peerd import limits
from peerd.driver import StreamHandler
from peerd.errors import Bug, ProtocolError
from peerd.linking.dial_limits import Attempt
from peerd.messages import PeerRef
from peerd.sim.engine import mark_of
from peerd.sim.faults import times_lost
from peerd.sim.network import RETRANSMIT_S, SEND_TIMEOUT_S, Port, Process, State
from peerd.sim.opening import Opening

HIGH_WATER_BYTES: Final = 1 * limits.MIB
LOW_WATER_BYTES: Final = HIGH_WATER_BYTES // 4
WINDOW_BYTES: Final = 4 * limits.MIB
"""How many bytes may be sent and not yet read by the handler at the other end, at most."""
QUEUE_S: Final = 0.1
"""On a slow path TCP has on its way what that carries in a round trip, and lets wait for its slowest link what that
carries in this time. All that waits there holds up control messages, too."""
STALL_RETRY_S: Final = 1.0
PIECE_SAMPLE_BYTES: Final = 64
"""How much of a piece goes into the trace hash; the swap layer's digest covers the rest."""

SENT_MARK: Final = 0x534E54
END_MARK: Final = 0x454E44

Piece = tuple[memoryview | None, int]
"""The bytes (``None`` for padding), and how many they are."""


class StreamState(IntEnum):
    """The life of one end."""

    OPEN = 0
    CLOSING = 1
    """No more writes; what is queued still goes out."""
    CLOSED = 2


class SimStream:
    """One end of a stream; implements `peerd.driver.Stream`.

    The end of who is dialled has no handler until Hello is there; then it gets what was sent behind it.
    """

    def __init__(self, driver: Process, peer_port: Port, handler: StreamHandler | None) -> None:
        self._driver = driver
        self._network = driver.network
        self._engine = driver.engine
        self._port = driver.port
        self._peer_port = peer_port
        self.handler = handler
        self.state = StreamState.OPEN
        self._twin: SimStream | None = None
        self._queue: deque[Piece] = deque()
        self._queued_bytes = 0
        self._in_flight_bytes = 0
        self._is_sending = False
        self._was_full = False
        self._last_arrival = 0.0
        self._blocked_since: float | None = None
        self._early: list[Piece] = []
        self._latency_s = driver.network.latency_s(driver.port, peer_port)
        self._window_bytes = self._window()
        if handler is not None:
            driver.streams[self] = None

    def pair(self, twin: SimStream, hello_due: float) -> None:
        """Connect both ends: what this one sends arrives when Hello has, or later."""
        self._twin, twin._twin = twin, self
        self._last_arrival = hello_due

    def accept(self, handler: StreamHandler) -> None:
        """Hello is there, and so may be what was sent behind it."""
        self.handler = handler
        self._driver.streams[self] = None
        handler.opened(self)
        early, self._early = self._early, []
        for piece in early:
            self._read(piece)

    def is_of(self, process: Process) -> bool:
        """Whether it is an end of this process, and open."""
        return self._driver is process and self.state is not StreamState.CLOSED

    def refused(self) -> None:
        """There will be no stream: its handler is told by whoever wanted it."""
        self.state = StreamState.CLOSED
        self._driver.streams.pop(self, None)
        self._queue.clear()

    # peerd.driver.Stream

    @property
    def peer(self) -> PeerRef:
        """The peer at the other end."""
        return self._peer_port.peer

    @property
    def is_writable(self) -> bool:
        """Whether it is open, and below the high-water mark."""
        return self.state is StreamState.OPEN and not self._was_full

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes; the caller keeps them as they are until the stream has closed."""
        view = memoryview(data).cast("B")
        self._enqueue((view, len(view)))

    def write_padding(self, size_bytes: int) -> None:
        """Queue bytes without content."""
        if size_bytes < 0:
            raise Bug(f"{size_bytes} bytes of padding")
        self._enqueue((None, size_bytes))

    def close(self) -> None:
        """Flush, then close; nothing is read any more."""
        if self.state is StreamState.OPEN:
            self.state = StreamState.CLOSING
            self._send_next()

    def abort(self) -> None:
        """Close at once; the other end sees a reset."""
        self._fail("aborted", "reset")

    def hand_over(self, handler: StreamHandler) -> None:
        """Another handler reads from now on."""
        self.handler = handler

    # Sending

    def _window(self) -> int:
        slowest = max(self._network.s_per_byte(self._port), self._peer_port.down_s_per_byte)
        if not slowest:
            return WINDOW_BYTES
        bytes_on_way = round((2 * self._latency_s + QUEUE_S) / slowest)
        return min(max(bytes_on_way, 2 * self._network.config.piece_bytes), WINDOW_BYTES)

    def _enqueue(self, piece: Piece) -> None:
        if self.state is not StreamState.OPEN or piece[1] == 0:
            return  # dropped, as on a socket: `closed` reports it
        self._queue.append(piece)
        self._queued_bytes += piece[1]
        if self._queued_bytes >= HIGH_WATER_BYTES:
            self._was_full = True
        self._send_next()

    def _send_next(self) -> None:
        if self._is_sending or self.state is StreamState.CLOSED or self._twin is None:
            return
        if not self._queue:
            if self.state is StreamState.CLOSING:
                self._finish()
            return
        if self._in_flight_bytes >= self._window_bytes:
            return  # `_acknowledged` goes on
        self._is_sending = True
        if self._is_blocked():
            self._stall()
            return
        self._blocked_since = None
        piece = self._take_piece()
        size = piece[1]
        self._in_flight_bytes += size
        port, engine = self._port, self._engine
        departure = port.up_free_at = max(port.up_free_at, engine.now) + size * port.up_s_per_byte
        watermark = self._network.through_link(port, self._peer_port, departure, size)
        delay_s = self._delay_s()
        arrival = max(max(watermark, self._stopped_until()) + delay_s, self._last_arrival)
        self._last_arrival = arrival
        engine.schedule(departure, mark_of(port.index, SENT_MARK), self._departed, size)
        view = piece[0]
        sample = view[:PIECE_SAMPLE_BYTES] if view is not None else b""
        engine.schedule(arrival, mark_of(self._peer_port.index, zlib.crc32(sample, size)), self._twin._arrived, piece)

    def _delay_s(self) -> float:
        """How long the impairments of the path delay a piece: TCP repairs them, so all of them are delay."""
        network, port = self._network, self._port
        delay_s = self._latency_s * (1.0 + network.config.jitter * port.draw())
        impairment = network.impairment(port, self._peer_port)
        if impairment is not None:
            if impairment.loss:
                delay_s += times_lost(impairment.loss, port.draw) * max(RETRANSMIT_S, 2 * self._latency_s)
            if impairment.reordering and port.draw() < impairment.reordering:
                delay_s += impairment.reorder_delay_s * port.draw()
        return delay_s

    def _stopped_until(self) -> float:
        """Virtual time until which the path is clogged; in the past if it is not."""
        network, port = self._network, self._port
        impairment = network.impairment(port, self._peer_port)
        stopped_until = network.clogged_until(port, self._peer_port)
        if impairment is None or not impairment.clog:
            return stopped_until
        return max(stopped_until, network.stopped_until(port, self._peer_port, impairment))

    def _take_piece(self) -> Piece:
        view, size = self._queue.popleft()
        piece_bytes = self._network.config.piece_bytes
        if size <= piece_bytes:
            return view, size
        rest = view[piece_bytes:] if view is not None else None
        self._queue.appendleft((rest, size - piece_bytes))
        return (view[:piece_bytes] if view is not None else None), piece_bytes

    def _departed(self, size: int) -> None:
        self._is_sending = False
        self._queued_bytes -= size
        if self.state is StreamState.CLOSED or not self._driver.is_alive:
            return
        if self._was_full and self._queued_bytes <= LOW_WATER_BYTES:
            self._was_full = False
            if self.state is StreamState.OPEN:
                self._driver.run(self._tell_writable)
        self._send_next()

    def _tell_writable(self) -> None:
        if self.is_writable and self.handler is not None:
            self.handler.writable()

    def _is_blocked(self) -> bool:
        if self._network.is_cut_either_way(self._port, self._peer_port):
            return True
        return self._twin is None or self._twin._driver.state is State.SILENT

    def _stall(self) -> None:
        """The path is cut or the machine gone: try again until TCP would give up."""
        now = self._engine.now
        if self._blocked_since is None:
            self._blocked_since = now
        if now - self._blocked_since >= SEND_TIMEOUT_S:
            self._is_sending = False
            self._fail("timeout", "timeout")
        else:
            self._engine.schedule(now + STALL_RETRY_S, mark_of(self._port.index, SENT_MARK), self._retry)

    def _retry(self, _: None) -> None:
        self._is_sending = False
        if self._driver.is_alive:
            self._send_next()

    def _acknowledged(self, size: int) -> None:
        was_blocked = self._in_flight_bytes >= self._window_bytes
        self._in_flight_bytes -= size
        if was_blocked and self._driver.is_alive:
            self._send_next()

    # Receiving

    def _arrived(self, piece: Piece) -> None:
        """The last byte of a piece has come; it may have to wait for the downlink."""
        port, engine = self._port, self._engine
        if port.down_s_per_byte or port.down_free_at > engine.now:  # behind what came while the link was slow
            size, now = piece[1], engine.now
            alone = now + size * (port.down_s_per_byte - self._network.s_per_byte(self._peer_port))
            ready = max(port.down_free_at + size * port.down_s_per_byte, alone, now)
            port.down_free_at = ready
            if ready > now:
                port.deferred_until = ready
                engine.schedule(ready, mark_of(port.index, SENT_MARK), self._read, piece)
                return
        self._read(piece)

    def _read(self, piece: Piece) -> None:
        driver = self._driver
        if driver.state is State.PAUSED:
            driver.keep(self._read, piece)
            return
        if driver.state is not State.RUNNING or self.state is StreamState.CLOSED:
            return
        handler = self.handler
        if handler is None:
            self._early.append(piece)
            return
        view, size = piece
        if self.state is StreamState.CLOSING:  # thrown away, so that two ends that both close do not wait for ever
            self._acknowledge(size)
            return
        self._network.stream_bytes += size
        self._port.bulk_received += size
        self._peer_port.bulk_sent += size
        try:
            if view is None:
                handler.padding_received(size)
            else:
                self._fill_buffers(view)
        except ProtocolError as error:
            self._fail(error.reason, "reset")
            driver.misbehaved(self.peer, error)
            return
        self._acknowledge(size)

    def _acknowledge(self, size: int) -> None:
        if self._twin is not None:
            self._twin._acknowledged(size)

    def _fill_buffers(self, view: memoryview) -> None:
        while view and self.state is StreamState.OPEN and self.handler is not None:
            buffer = self.handler.get_buffer(len(view))
            size = min(len(buffer), len(view))
            if size == 0:
                raise Bug("a stream handler gave an empty buffer")
            buffer[:size] = view[:size]
            self.handler.buffer_updated(size)  # another one, perhaps, now that bytes have come
            view = view[size:]

    # The end

    def _finish(self) -> None:
        """Everything written has been sent: tell both ends."""
        self._send_end(self._engine.now + SEND_TIMEOUT_S)
        self._ended(None)

    def _send_end(self, deadline: float) -> None:
        """Send the end of the stream, without waiting: the kernel repeats it on a cut path until it gives up."""
        twin, engine, network = self._twin, self._engine, self._network
        if twin is None:
            return
        if self._driver.state is not State.SILENT and not network.is_cut(self._port, self._peer_port):
            due = max(max(engine.now, self._stopped_until()) + self._latency_s, self._last_arrival)
            engine.schedule(due, mark_of(self._peer_port.index, END_MARK), twin._end_arrived)
        elif engine.now < deadline:
            retry_at = min(engine.now + STALL_RETRY_S, deadline)
            engine.schedule(retry_at, mark_of(self._port.index, END_MARK), self._send_end, deadline)
        else:
            twin._ended("timeout")

    def _fail(self, reason: str, reason_there: str) -> None:
        if self.state is StreamState.CLOSED:
            return
        self._tell_twin(reason_there, self._engine.now + self._latency_s)
        self._ended(reason)

    def _tell_twin(self, reason: str, due: float) -> None:
        """Send a reset to the other end. If it cannot arrive, that end notices by its keepalive."""
        twin = self._twin
        if twin is None:
            return
        if self._driver.state is State.SILENT or self._network.is_cut(self._port, self._peer_port):
            reason, due = "timeout", self._engine.now + SEND_TIMEOUT_S
        self._engine.schedule(due, mark_of(self._peer_port.index, END_MARK), twin._ended, reason)

    def crashed(self) -> None:
        """This end's process or machine is gone. The other end gets a reset, or notices by its keepalive."""
        self.state = StreamState.CLOSED
        self._driver.streams.pop(self, None)
        self._queue.clear()
        self._tell_twin("reset", max(self._engine.now + self._latency_s, self._last_arrival))

    def _end_arrived(self, _: None) -> None:
        """The end of the stream has come. It is handled after pieces that wait for the downlink or a paused node."""
        ready = self._port.down_free_at
        if ready >= self._engine.now:  # also when the last piece is read at this very instant
            self._engine.schedule(ready, mark_of(self._port.index, END_MARK), self._end_read)
        else:
            self._end_read(None)

    def _end_read(self, _: None) -> None:
        if self._driver.state is State.PAUSED:
            self._driver.keep(self._end_read, None)
        else:
            self._ended(None)

    def _ended(self, reason: str | None) -> None:
        if self.state is StreamState.CLOSED:
            return
        self.state = StreamState.CLOSED
        self._driver.streams.pop(self, None)
        self._queue.clear()
        if self.handler is not None:
            self._engine.call_soon(self._driver.run, lambda: self._tell_closed(reason))

    def _tell_closed(self, reason: str | None) -> None:
        if self.handler is not None:
            self.handler.closed(reason)


class StreamOpening(Opening):
    """A stream that is being opened. Both ends are made with Hello; the target's is part of it when it accepts."""

    def __init__(self, driver: Process, attempt: Attempt, handler: StreamHandler) -> None:
        peer = attempt.peer
        self._attempt = attempt
        self._handler = handler
        self._here: SimStream | None = None
        self._there: SimStream | None = None
        super().__init__(driver, driver.network.port_at(peer.host, peer.port), peer.id)

    def greeted(self, due: float) -> None:
        """Make both ends, and let the handler write."""
        target = self.target
        if target is None or target.driver is None:
            return
        self._here = SimStream(self.driver, target, self._handler)
        self._there = SimStream(target.driver, self.driver.port, None)
        self._here.pair(self._there, due)
        self._handler.opened(self._here)

    def accept(self, target: Process) -> str | None:
        """Give the target's end to its node, unless it refuses."""
        driver, there = self.driver, self._there
        refusal = target.policy.admit_stream(driver.peer.id, [stream.peer.id for stream in target.streams])
        if refusal is not None:
            return refusal[0]
        if target.node is None or there is None or not there.is_of(target):
            return "closed_early"
        there.accept(target.node.stream_accepted(driver.peer))
        return None

    def opened(self) -> None:
        """The node is where it was said to be."""
        self.driver.policy.stream_opened(self._attempt)

    def failed(self, reason: str) -> None:
        """Tell the handler, unless it has given the stream up itself."""
        here, there = self._here, self._there
        if there is not None:
            there.refused()
        if here is not None and here.state is StreamState.CLOSED:
            self.driver.policy.stream_opened(self._attempt)
            return
        if here is not None:
            here.refused()
        self.driver.policy.stream_failed(self._attempt, reason)
        self._handler.closed(reason)

    def given_up(self) -> None:
        """This node stops; if it has died, nobody is told."""
        if self._here is None and self.driver.is_alive:
            self.driver.call_soon(lambda: self._handler.closed("stopping"))
