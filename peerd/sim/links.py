"""Control links: one connection a pair of nodes, modelled as two directions.

When the other side is not there, a link behaves as TCP does:

- a process that ended resets its connections: the peers notice it one latency later, after what was in flight;
- a machine that vanished, or a cut path, sends nothing: only a sender notices it, ``timeout`` `SEND_TIMEOUT_S` after
  the first message that was not acknowledged. A path that heals before that goes on.

What follows from a lost link, a redial first of all, is decided by `peerd.linking.policy.LinkPolicy`, as in the daemon.

Frames go into the uplink as they come while little waits there, and little of what was sent is unread. When more than a
socket would take waits, or the peer reads too slowly, they wait in the peer's send queue instead, and leave by
priority: one piece at a time, as bulk streams do, or as the peer reads.
"""

from __future__ import annotations

import heapq
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final, cast

from peerd import limits
from peerd.api import Priority, SendRefusal
from peerd.errors import PeerMisbehaved, ProtocolError
from peerd.lib.admission import TokenBucket
from peerd.messages import PeerRef
from peerd.sim.engine import mark_of
from peerd.sim.faults import Impairment, times_lost
from peerd.sim.network import DOWNLINK_WAIT_MIN_S, RETRANSMIT_S, SEND_TIMEOUT_S, Process, State
from peerd.wire.frames import Frame, frame_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peerd.linking.channel import Channel
    from peerd.linking.send_queue import SendQueue

DOWN_MARK: Final = 0x444F57
CHECK_MARK: Final = 0x43484B
DRAIN_MARK: Final = 0x44524E
KERNEL_BUFFERS_BYTES: Final = 256 * limits.KIB
"""How much the kernels at both ends hold of a link, besides what is on its path."""
WINDOW_BYTES_MAX: Final = 4 * limits.MIB
"""As much as Linux lets a connection have under way at most (``net.ipv4.tcp_wmem``)."""
CHARGE_FRAMES: Final = 64
"""So many frames are charged to the peer's message rate at a time; the daemon does it for each read."""


class LinkState(IntEnum):
    """The life of one direction."""

    OPEN = 0
    CLOSED = 1


class _Deaf:
    """Stands for a target whose end of the connection is gone: its kernel accepts nothing for it, and sends resets."""

    state: Final = State.STOPPED
    is_alive: Final = False


_DEAF: Final = cast("Process", _Deaf())


class SimLink:
    """One direction of a link after its handshake: from one incarnation of a node to one incarnation of another.

    Implements `peerd.linking.channel.Link`. `send` and `arrived` are the hot path.
    """

    __slots__ = (
        "_awaits_reading",
        "_blocked_since",
        "_bucket",
        "_channel",
        "_ending",
        "_engine",
        "_impairment",
        "_is_checked",
        "_is_draining",
        "_is_impaired",
        "_last_arrival",
        "_latency_s",
        "_mark",
        "_network",
        "_port",
        "_s_per_byte",
        "_twin",
        "_uncharged",
        "_unread_bytes",
        "_version",
        "_window_bytes",
        "boot_epoch",
        "dialled",
        "established_at",
        "goodbye",
        "peer",
        "plugins",
        "source",
        "state",
        "target",
        "target_port",
    )

    def __init__(self, source: Process, target: Process, *, dialled: bool, latency_s: float) -> None:
        self._network = network = source.network
        self._engine = network.engine
        self._port = source.port
        self.source = source
        self.target = target
        self.target_port = target.port
        self.peer: PeerRef = target.port.peer
        self.boot_epoch = target.boot_epoch
        self.plugins: Mapping[str, tuple[int, int]] = target.plugins
        self.dialled = dialled
        self.established_at = source.now()
        self.goodbye: str | None = None
        self.state = LinkState.OPEN
        self._channel: Channel = source.policy.channel(self.peer)
        self._latency_s = latency_s
        self._is_impaired = False
        self._impairment: Impairment | None = None
        self._mark = target.port.mark
        self._s_per_byte = 0.0
        # What the acceptor sends arrives after its answer to Hello.
        self._last_arrival = self._engine.now + (0.0 if dialled else self._latency_s)
        self._version = -1
        self._twin: SimLink | None = None
        self._ending: tuple[str, str | None] | None = None
        self._is_draining = False
        """Whether frames in the queue are being taken care of: an event is due, or the peer has to read."""
        self._awaits_reading = False
        self._unread_bytes = 0
        """Bytes that were sent, and neither read at the other end nor lost."""
        self._window_bytes = 0.0
        self._blocked_since: float | None = None
        self._is_checked = False
        self._uncharged = 0
        self._bucket: TokenBucket | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is not closed."""
        return self.state is LinkState.OPEN

    @property
    def is_up(self) -> bool:
        """Whether frames may be sent on it."""
        return self.state is LinkState.OPEN

    @property
    def last_used_s(self) -> float:
        """The time of the last arrival in either direction; before the first one, the time when it opened."""
        twin = self._twin
        return self._last_arrival if twin is None else max(self._last_arrival, twin._last_arrival)

    @property
    def used_at(self) -> float:
        """The same time by the clock of this end's machine."""
        clock = self._port.clock
        return self.last_used_s if clock is None else clock.monotonic(self.last_used_s)

    # Sending

    def send(self, frame: Frame, priority: Priority) -> None:
        """Queue one frame."""
        network = self._network
        is_in_doubt = self._version != network.paths_version or self.target.state > 1  # State.PAUSED
        if is_in_doubt and (self._is_draining or not self._refresh()):
            self._send_blocked(frame, priority)
            return
        engine = self._engine
        now = engine.now
        port = self._port
        departure = port.up_free_at
        if departure < now:
            departure = now
        elif departure - now > port.up_backlog_s:
            self._send_later(frame, priority)
            return
        if self._unread_bytes > self._window_bytes:
            self._send_later(frame, priority)
            return
        if self._is_impaired:
            self._transmit(frame)
            return
        body = frame[2]
        size = 8 + len(body)
        self._unread_bytes += size
        port.up_free_at = departure = departure + size * port.up_s_per_byte
        arrival = departure + self._latency_s * (1.0 + network.jitter * port.draw())
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        engine.sequence = sequence = engine.sequence + 1
        mark = self._mark | zlib.crc32(body, frame[0])
        heapq.heappush(engine.heap, (arrival, sequence, mark, self.arrived, frame))

    def wake(self) -> None:
        """Send what may be queued."""
        if self._channel.outbox and not self._is_draining:
            self.flush()

    def flush(self) -> None:
        """Send what waits, by priority: at once while uplink and peer take it, then a piece at a time."""
        port, engine, network = self._port, self._engine, self._network
        outbox = self._channel.outbox
        self._stop_draining()
        while outbox:
            if not self._refresh():
                self._stall(outbox)
                return
            if self._unread_bytes > self._window_bytes:
                self._await_reading()
                return
            is_full = port.up_free_at - engine.now > port.up_backlog_s
            departure = engine.now
            for frame in outbox.take_frames(network.config.piece_bytes):
                departure = self._transmit(frame)
            if outbox.has_recovered():
                self.source.policy.caught_up(self.peer)
            if is_full:
                self._is_draining = True
                self._version = -1  # so that frames queued meanwhile wait as well
                engine.schedule(departure, mark_of(port.index, DRAIN_MARK), self._drain)
                return
        outbox.clear()  # releases its memory, as there are very many links

    def _stop_draining(self) -> None:
        self._is_draining = False
        if self._awaits_reading:
            self._awaits_reading = False
            self._network.stalled.pop(self, None)

    def _await_reading(self) -> None:
        """Wait until the peer has read some of what was sent. A path that breaks meanwhile is noticed as in a stall."""
        self._is_draining = self._awaits_reading = True
        self._version = -1
        self._network.stalled[self] = None

    def _room_made(self) -> None:
        """The peer has read something; its kernel's window update arrives here one latency later."""
        if self._unread_bytes <= self._window_bytes:
            self._stop_draining()
            self._is_draining = True
            due = self._engine.now + self._network.latency_s(self.target_port, self._port)
            self._engine.schedule(due, mark_of(self._port.index, DRAIN_MARK), self._drain)

    def _drain(self, _: None) -> None:
        if self.state is LinkState.OPEN and self.source.is_alive:
            self.flush()

    def _transmit(self, frame: Frame) -> float:
        """Put one frame into the uplink; returns when it is through the uplink, and the path if that has a rate."""
        port, network = self._port, self._network
        size = 8 + len(frame[2])
        self._unread_bytes += size
        port.up_free_at = departure = max(port.up_free_at, self._engine.now) + size * port.up_s_per_byte
        delay_s = self._latency_s * (1.0 + network.jitter * port.draw())
        if self._is_impaired:
            departure = network.through_link(port, self.target_port, departure, size)
            self._send_impaired(frame, departure + delay_s)
        else:
            self._push(frame, departure + delay_s)
        return departure

    def _send_impaired(self, frame: Frame, arrival: float) -> None:
        """Send on a path with loss, clogs, duplication or reordering."""
        network, impairment, draw = self._network, self._impairment, self._port.draw
        clogged_until = network.clogged_until(self._port, self.target_port)
        if clogged_until > self._engine.now:  # in order, it also waits for `_last_arrival`
            arrival = max(arrival, clogged_until + self._latency_s)
        if impairment is None:
            self._push(frame, arrival)
            return
        is_stream = network.config.loss_mode == "retransmit"
        if impairment.clog:
            stopped_until = network.stopped_until(self._port, self.target_port, impairment)
            arrival = max(arrival, stopped_until + self._latency_s)
        if impairment.loss and draw() < impairment.loss:
            if not is_stream:
                network.count_drop("loss")
                self._unread_bytes -= frame_size(frame)
                return
            losses = 1 + times_lost(impairment.loss, draw)
            arrival += losses * max(RETRANSMIT_S, 2 * self._latency_s)
        if impairment.reordering and draw() < impairment.reordering:
            late = arrival + impairment.reorder_delay_s * draw()
            if not is_stream:  # later frames do not wait for it
                self._schedule(frame, late)
                return
            arrival = late
        self._push(frame, arrival)
        if impairment.duplication and not is_stream and draw() < impairment.duplication:
            self._unread_bytes += frame_size(frame)
            self._schedule(frame, arrival + self._latency_s * draw())

    def _push(self, frame: Frame, arrival: float) -> None:
        last_arrival = max(arrival, self._last_arrival)
        self._last_arrival = last_arrival
        self._schedule(frame, last_arrival if self._network.config.is_fifo else arrival)

    def _schedule(self, frame: Frame, arrival: float) -> None:
        what = self._mark | zlib.crc32(frame[2], frame[0])
        self._engine.schedule(arrival, what, self.arrived, frame)

    # Arriving

    def arrived(self, frame: Frame) -> None:
        """The last byte reached the target; it may have to wait until the downlink has taken the bytes before it."""
        size = 8 + len(frame[2])
        port = self.target_port
        per_byte = port.down_s_per_byte
        if per_byte or port.down_free_at > self._engine.now:  # behind what came while the link was slow
            now = self._engine.now
            ready = port.down_free_at + size * per_byte
            alone = now + size * (per_byte - self._s_per_byte)  # its first byte came earlier
            if ready < alone:
                ready = alone
            if ready < now:
                ready = now
            port.down_free_at = ready
            if ready - now > DOWNLINK_WAIT_MIN_S or port.deferred_until >= now:
                port.deferred_until = ready
                self._engine.schedule(ready, self._mark | CHECK_MARK, self._read, frame)
                return
        self._read(frame)

    def _read(self, frame: Frame) -> None:
        target, network, size = self.target, self._network, 8 + len(frame[2])
        state = target.state
        if state == 1 and target.keep_frame(self._read, frame):  # State.PAUSED
            return
        self._unread_bytes -= size
        if self._awaits_reading:
            self._room_made()
        if state == 0:  # State.RUNNING
            network.frames_delivered += 1
            network.frames_delivered_bytes += size
            self._uncharged = uncharged = self._uncharged + 1
            if uncharged >= CHARGE_FRAMES and not self._charge():
                return
            sender = self._port.peer
            target.policy.informant = sender.id
            try:
                target.receive(sender, frame)
            except PeerMisbehaved as error:
                target.misbehaved(sender, error)
            target.policy.informant = None
        elif state != State.PAUSED:
            network.count_drop("target_down")

    def _charge(self) -> bool:
        """Whether the peer's message rate allows what came; otherwise it costs the sender its link."""
        frames, self._uncharged = self._uncharged, 0
        try:
            self.charge(frames)
        except ProtocolError as error:
            self.target.misbehaved(self._port.peer, error)
            return False
        return True

    def charge(self, messages: int) -> None:
        """Count messages that came. Raises `ProtocolError` when that is above the peer's rate."""
        now, settings = self._engine.now, self._network.links
        if self._bucket is None:
            self._bucket = TokenBucket(settings.messages_per_second, settings.messages_burst, now)
        if not self._bucket.take(now, messages):
            raise ProtocolError("flood", f"more than {settings.messages_per_second:g} messages a second")

    # Trouble

    def _refresh(self) -> bool:
        """Update what may have changed; returns whether frames get through now."""
        network, target = self._network, self.target
        if self.state is not LinkState.OPEN:
            return False
        if target.state > State.PAUSED or network.is_cut_either_way(self._port, self.target_port):
            return self._refresh_impaired(target)
        clogged_until = network.clogged_until(self._port, self.target_port)
        if clogged_until > network.engine.now:
            self._last_arrival = max(self._last_arrival, clogged_until + self._latency_s)
        self._blocked_since = None
        self._configure()
        self._version = network.paths_version
        return True

    def _configure(self) -> None:
        """Look again at what the path does to messages."""
        network = self._network
        config = network.config
        self._impairment = network.impairment(self._port, self.target_port)
        has_rate = config.link_bytes_per_s is not None
        self._is_impaired = self._impairment is not None or has_rate or not config.is_fifo
        self._s_per_byte = network.s_per_byte(self._port)
        slowest = max(self._s_per_byte, self.target_port.down_s_per_byte)
        on_path_bytes = 2 * self._latency_s / slowest if slowest else WINDOW_BYTES_MAX
        self._window_bytes = min(KERNEL_BUFFERS_BYTES + on_path_bytes, WINDOW_BYTES_MAX)

    def _refresh_impaired(self, target: Process) -> bool:
        """The target is dead, or a direction is cut. If only the way back is, data arrive and are not acknowledged."""
        if self._blocked_since is None:
            self._blocked_since = self._network.engine.now
        self._configure()
        self._check_later()
        return target.is_alive and not self._network.is_cut(self._port, self.target_port)

    def _send_blocked(self, frame: Frame, priority: Priority) -> None:
        network = self._network
        if self._is_draining:
            self._queue(frame, priority)
        elif self.state is LinkState.CLOSED:
            network.count_drop("link_down")
            self.source.frame_refused(self.peer, frame, SendRefusal.PEER_DOWN)
        elif network.config.loss_mode == "drop":
            network.count_drop("cut")
        else:
            self._queue(frame, priority)
            network.stalled[self] = None

    def _send_later(self, frame: Frame, priority: Priority) -> None:
        self._queue(frame, priority)
        self.wake()

    def _queue(self, frame: Frame, priority: Priority) -> None:
        self.source.policy.queue(self._channel, frame, priority)

    def _stall(self, outbox: SendQueue) -> None:
        """Keep what cannot be sent until the path heals or the link is gone."""
        if self._network.config.loss_mode == "drop":
            self._network.count_drop("cut", len(outbox.clear()))
            if outbox.has_recovered():
                self.source.policy.caught_up(self.peer)
        else:
            self._network.stalled[self] = None

    def retry(self) -> None:
        """The network changed: send what was held back if it gets through now."""
        if self.state is not LinkState.OPEN or (self._is_draining and not self._awaits_reading):
            return
        is_through = self._refresh()
        if self._awaits_reading:
            self._version = -1
        elif is_through:
            self._network.stalled.pop(self, None)
            self.flush()

    def _check_later(self) -> None:
        """Notice, as a kernel would, that what was sent is not acknowledged. One check at a time."""
        if self._is_checked:
            return
        self._is_checked = True
        network = self._network
        due = self._gives_up_at
        if self._is_reset_by_peer():
            due = network.engine.now + network.rtt_s(self._port, self.target_port)
        network.engine.schedule(due, mark_of(self._port.index, CHECK_MARK), self._check)

    @property
    def _gives_up_at(self) -> float:
        """When the oldest unacknowledged bytes will have waited for too long."""
        since = self._network.engine.now if self._blocked_since is None else self._blocked_since
        return since + SEND_TIMEOUT_S

    def _is_reset_by_peer(self) -> bool:
        """Whether a kernel at the other end answers that it does not know this connection."""
        if self.target.is_alive or self._network.is_cut_either_way(self._port, self.target_port):
            return False
        return self.target_port.state is not State.SILENT

    def _check(self, _: None) -> None:
        if self.state is not LinkState.OPEN or not self.source.is_alive:
            return
        is_healed = self._refresh() and self._version == self._network.paths_version
        self._is_checked = False
        if self._is_draining:
            self._version = -1
        if is_healed:
            return
        if self._is_reset_by_peer():
            self._lost(("reset", None))
        elif self._network.engine.now >= self._gives_up_at:
            twin = self._twin
            self._lost(("timeout", None))
            if twin is not None and twin._blocked_since is None:
                twin._lost(("timeout", None))  # it gets nothing either; if it sends, it notices by itself
        else:
            self._check_later()

    # The end

    def pair(self, there: SimLink) -> None:
        """The answer to Hello has come: ``there`` is the acceptor's direction of the same connection."""
        self._twin, there._twin = there, self
        if there.state is LinkState.CLOSED:  # closed meanwhile; this end notices after what was sent before
            ending = there._ending or ("reset", None)
            due = max(self._engine.now, there._last_arrival)
            self._engine.schedule(due, mark_of(self._port.index, DOWN_MARK), self._lost, ending)

    def retire(self, reason: str) -> None:
        """Say goodbye; what the peer has under way still arrives."""
        if self.state is LinkState.OPEN:
            self._close()
            self._tell((f"goodbye:{reason}", reason))
            self.source.policy.link_lost(self, reason)

    def abort(self, reason: str) -> None:
        """Close at once; the peer sees a reset."""
        if self.state is LinkState.OPEN:
            self._close()
            self._be_deaf()
            self._tell(("reset", None))
            self.source.policy.link_lost(self, reason)

    def crashed(self, is_heard: bool) -> None:
        """This end's process or machine is gone."""
        self._close()
        self._tell(("reset", None) if is_heard else None)

    def dialler_gone(self, goodbye: str | None) -> None:
        """The dialler gave up after this end was made, with a Goodbye or without."""
        due = self._engine.now + self._network.latency_s(self.target_port, self._port)
        ending = ("reset", None) if goodbye is None else (f"goodbye:{goodbye}", goodbye)
        self._engine.schedule(due, mark_of(self._port.index, DOWN_MARK), self._lost, ending)

    def _close(self) -> None:
        self.state = LinkState.CLOSED
        self._awaits_reading = False
        self._version = -1
        self._network.stalled.pop(self, None)

    def _be_deaf(self) -> None:
        """From now on this end's kernel accepts nothing more for the connection."""
        if self._twin is not None:
            self._twin.target = _DEAF

    def _tell(self, ending: tuple[str, str | None] | None) -> None:
        """Tell the other end after what is in flight; if nothing can reach it, its heartbeats notice."""
        network, twin, self._ending = self._network, self._twin, ending
        if twin is None or ending is None:
            return
        due = max(self._engine.now + self._latency_s, self._last_arrival)
        if network.is_cut(self._port, self.target_port):
            due, ending = self._engine.now + SEND_TIMEOUT_S, ("timeout", None)
        self._engine.schedule(due, mark_of(self.target_port.index, DOWN_MARK), twin._lost, ending)

    def _lost(self, ending: tuple[str, str | None]) -> None:
        """The link ended for a reason that is not this end's own."""
        source = self.source
        if self.state is LinkState.CLOSED or not source.is_alive:
            return
        if source.state is State.PAUSED:
            source.keep(self._lost, ending)
            return
        self._close()
        self._be_deaf()
        reason, self.goodbye = ending
        source.policy.link_lost(self, reason)

    def back(self) -> SimLink | None:
        """The other direction, if it is open."""
        twin = self._twin
        return twin if twin is not None and twin.state is LinkState.OPEN else None
