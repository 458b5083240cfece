"""Control links: one connection a pair of nodes, modelled as two directions that open together.

What a link does when the other side is not there follows TCP:

- the first message pays a handshake of one round trip; nobody listening: ``refused`` after that round trip, nobody
  answering: ``timeout`` after `CONNECT_TIMEOUT_S`;
- a process that ended resets its connections: the peers get ``reset`` one round trip later, after what was in flight;
- a machine that vanished, or a cut path, says nothing: only who sends learns of it, ``timeout`` `SEND_TIMEOUT_S` after
  the first message that was not acknowledged. A path that heals before that goes on.
"""

from __future__ import annotations

import heapq
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from peerd import limits
from peerd.api import SendRefusal
from peerd.errors import PeerMisbehaved
from peerd.messages import PeerRef
from peerd.sim.engine import mark_of
from peerd.sim.faults import Impairment, times_lost
from peerd.sim.network import (
    CONNECT_RETRY_S,
    CONNECT_TIMEOUT_S,
    DOWNLINK_WAIT_MIN_S,
    RETRANSMIT_S,
    SEND_TIMEOUT_S,
    Network,
    Port,
    State,
)
from peerd.wire.frames import Frame

if TYPE_CHECKING:
    from peerd.sim.driver import SimDriver

HANDSHAKE_MARK: Final = 0x48534B
DOWN_MARK: Final = 0x444F57
WRITABLE_MARK: Final = 0x575254
KERNEL_BUFFERS_BYTES: Final = 256 * limits.KIB
"""What the kernels at both ends take before bytes stay with the sending process."""
SLOW_UNREAD_BYTES: Final = KERNEL_BUFFERS_BYTES + limits.SEND_HIGH_WATER_BYTES
CHECK_MARK: Final = 0x43484B


class LinkState(IntEnum):
    """The life of one direction."""

    CONNECTING = 0
    OPEN = 1
    CLOSED = 2


class Link:
    """What one incarnation of a node sends to one incarnation of another. `send` and `arrived` are the hot path."""

    __slots__ = (
        "_blocked_since",
        "_deadline",
        "_engine",
        "_held",
        "_held_bytes",
        "_impairment",
        "_is_checked",
        "_is_impaired",
        "_is_slow",
        "_last_arrival",
        "_latency_s",
        "_mark",
        "_network",
        "_port",
        "_s_per_byte",
        "_twin",
        "_unread_bytes",
        "_version",
        "peer",
        "source",
        "state",
        "target",
        "target_port",
    )

    def __init__(self, network: Network, source: SimDriver, target_port: Port) -> None:
        self._network = network
        self._engine = network.engine
        self._port = source.port
        self.source = source
        self.peer: PeerRef = target_port.peer
        self.target_port = target_port
        self.target: SimDriver | None = None
        self.state = LinkState.CONNECTING
        self._latency_s = network.latency_s(source.port, target_port)
        self._is_impaired = False
        self._impairment: Impairment | None = None
        self._mark = target_port.mark
        self._s_per_byte = 0.0
        self._last_arrival = 0.0
        self._version = -1
        self._twin: Link | None = None
        self._held: list[Frame] | None = None
        self._held_bytes = 0
        self._unread_bytes = 0
        """Sent, and neither read at the other end nor lost."""
        self._is_slow = False
        """More waited than the high-water mark, and the node has not been told that this is over."""
        self._blocked_since: float | None = None
        self._is_checked = False
        self._deadline = 0.0

    @property
    def is_open(self) -> bool:
        """Past its handshake, and not closed."""
        return self.state is LinkState.OPEN

    @property
    def last_arrival_s(self) -> float:
        """When the last frame sent on it arrives or arrived; before the first, when it opened."""
        return self._last_arrival

    @property
    def last_used_s(self) -> float:
        """The later of both directions' last arrivals."""
        twin = self._twin
        return self._last_arrival if twin is None else max(self._last_arrival, twin._last_arrival)

    # Sending

    def send(self, frame: Frame) -> None:
        """Queue one frame."""
        network = self._network
        if self._version != network.paths_version and not self._refresh():
            self._send_blocked(frame)
            return
        engine = self._engine
        now = engine.now
        body = frame.body
        size = 8 + len(body)
        unread_bytes = self._unread_bytes + size
        if unread_bytes > SLOW_UNREAD_BYTES and not self._takes_more(frame, unread_bytes):
            return
        self._unread_bytes = unread_bytes
        port = self._port
        departure = port.up_free_at
        if departure < now:
            departure = now
        port.up_free_at = departure = departure + size * port.up_s_per_byte
        delay_s = self._latency_s * (1.0 + network.jitter * port.draw())
        if self._is_impaired:
            self._send_impaired(frame, network.through_link(port, self.target_port, departure, size) + delay_s)
            return
        arrival = departure + delay_s
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        self._last_arrival = arrival
        engine.sequence = sequence = engine.sequence + 1
        mark = self._mark | zlib.crc32(body, frame.type_id)
        heapq.heappush(engine.heap, (arrival, sequence, mark, self.arrived, frame))

    def _send_impaired(self, frame: Frame, arrival: float) -> None:
        """Loss, clogs, duplication and reordering, where the path has any."""
        network, impairment, draw = self._network, self._impairment, self._port.draw
        clogged_until = network.clogged_until(self._port, self.target_port)
        if clogged_until > self._engine.now:  # what keeps its order waits for `_last_arrival` besides
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
                self._unread_bytes -= frame.size_bytes
                return
            losses = 1 + times_lost(impairment.loss, draw)
            arrival += losses * max(RETRANSMIT_S, 2 * self._latency_s)
        if impairment.reordering and draw() < impairment.reordering:
            late = arrival + impairment.reorder_delay_s * draw()
            if not is_stream:  # what follows does not wait for it
                self._schedule(frame, late)
                return
            arrival = late
        self._push(frame, arrival)
        if impairment.duplication and not is_stream and draw() < impairment.duplication:
            self._unread_bytes += frame.size_bytes
            self._schedule(frame, arrival + self._latency_s * draw())

    def _push(self, frame: Frame, arrival: float) -> None:
        last_arrival = max(arrival, self._last_arrival)
        self._last_arrival = last_arrival
        self._schedule(frame, last_arrival if self._network.config.is_fifo else arrival)

    def _schedule(self, frame: Frame, arrival: float) -> None:
        what = self._mark | zlib.crc32(frame.body, frame.type_id)
        self._engine.schedule(arrival, what, self.arrived, frame)

    # Arriving

    def arrived(self, frame: Frame) -> None:
        """The last byte reached the target: it may still have to wait for the bytes before it to get in."""
        target = self.target
        if target is None:
            return
        network = self._network
        size = 8 + len(frame.body)
        port = self.target_port
        per_byte = port.down_s_per_byte
        if per_byte:
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
        if target.state == 0:  # State.RUNNING; the same as `_read`, without a call
            self._unread_bytes -= size
            if self._is_slow:
                self._check_slow()
            network.frames_delivered += 1
            network.frames_delivered_bytes += size
            try:
                target.receive(self._port.peer, frame)
            except PeerMisbehaved as error:
                target.misbehaved(self._port.peer, error)
        else:
            self._read(frame)

    def _read(self, frame: Frame) -> None:
        target = self.target
        network = self._network
        if target is None:
            return
        if target.state == State.PAUSED:
            if not target.keep_frame(self._read, frame):
                self._unread_bytes -= frame.size_bytes
            return
        self._unread_bytes -= frame.size_bytes
        if self._is_slow:
            self._check_slow()
        if target.state == State.RUNNING:
            network.frames_delivered += 1
            network.frames_delivered_bytes += 8 + len(frame.body)
            try:
                target.receive(self._port.peer, frame)
            except PeerMisbehaved as error:
                target.misbehaved(self._port.peer, error)
        else:
            network.count_drop("target_down")

    # A slow peer

    @property
    def queued_bytes(self) -> int:
        """What the sending process holds: for the handshake or a cut, or because the kernels have enough."""
        return max(0, self._unread_bytes - KERNEL_BUFFERS_BYTES) + self._held_bytes

    def _takes_more(self, frame: Frame, unread_bytes: int) -> bool:
        """Above the high-water mark: note it, and refuse what does not fit the queue."""
        self._is_slow = True
        if unread_bytes - KERNEL_BUFFERS_BYTES <= limits.SEND_QUEUE_BYTES_MAX:
            return True
        self._refuse(frame, "queue_full", SendRefusal.QUEUE_FULL)
        return False

    def _refuse(self, frame: Frame, count_as: str, reason: SendRefusal) -> None:
        self._network.count_drop(count_as)
        self.source.frame_refused(self.peer, frame, reason)

    def _check_slow(self) -> None:
        """The peer has read something; its kernel's word of that takes the way back."""
        if self.queued_bytes <= limits.SEND_HIGH_WATER_BYTES // limits.SEND_LOW_WATER_SHARE:
            self._tell_writable(self._network.latency_s(self.target_port, self._port))

    def _tell_writable(self, delay_s: float) -> None:
        self._is_slow = False
        mark = mark_of(self._port.index, WRITABLE_MARK)
        self._engine.schedule(self._engine.now + delay_s, mark, self.source.writable, self.peer)

    # The handshake

    def connect(self) -> None:
        """Begin the handshake."""
        engine = self._network.engine
        self._deadline = engine.now + CONNECT_TIMEOUT_S
        network = self._network
        due = engine.now + network.handshake_s(self._port, self.target_port)
        step = self._handshake_due if due <= self._deadline else self._handshake_late
        engine.schedule(min(due, self._deadline), mark_of(self._port.index, HANDSHAKE_MARK), step)

    def _handshake_late(self, _: None) -> None:
        if self.state is LinkState.CONNECTING and self.source.is_alive:
            self._down("timeout")

    def _handshake_due(self, _: None) -> None:
        if self.state is not LinkState.CONNECTING or not self.source.is_alive:
            return
        state = self.target_port.state
        engine = self._network.engine
        is_cut = self._network.is_cut_either_way(self._port, self.target_port)
        if is_cut or state in (State.SILENT, State.PAUSED):
            if engine.now >= self._deadline:
                self._down("timeout")
            else:
                retry_at = min(engine.now + CONNECT_RETRY_S, self._deadline)
                engine.schedule(retry_at, mark_of(self._port.index, HANDSHAKE_MARK), self._handshake_due)
        elif state is State.STOPPED or self.target_port.driver is None:
            self._down("refused")
        else:
            self.establish(self.target_port.driver)

    def establish(self, target: SimDriver) -> None:
        """Open both directions. A dial of the other side that is under way ends in this same connection."""
        source = self.source
        back = target.links.get(source.port.peer.id)
        if back is not None and back.state is LinkState.OPEN and back.target is not source:
            back.close()  # to an incarnation of ours that is gone
            back = None
        if back is None:
            back = target.add_link(source.port)
        back._twin = self
        self._open(target, back)
        if back.state is LinkState.CONNECTING:
            back._open(source, self)

    def _open(self, target: SimDriver, twin: Link) -> None:
        """The handshake is done, with this incarnation of the peer."""
        self.target = target
        self._twin = twin
        self.state = LinkState.OPEN
        self._last_arrival = max(self._last_arrival, self._engine.now)
        self._flush()

    # Trouble

    def _refresh(self) -> bool:
        """Look again at what may have changed. Whether frames get through now."""
        network, target = self._network, self.target
        if self.state is not LinkState.OPEN or target is None:
            return False
        if not target.is_alive or network.is_cut_either_way(self._port, self.target_port):
            return self._refresh_impaired(target)
        clogged_until = network.clogged_until(self._port, self.target_port)
        if clogged_until > network.engine.now:
            self._last_arrival = max(self._last_arrival, clogged_until + self._latency_s)
        self._blocked_since = None
        self._configure()
        self._version = network.paths_version
        return True

    def _configure(self) -> None:
        config = self._network.config
        self._impairment = self._network.impairment(self._port, self.target_port)
        has_rate = config.link_bytes_per_s is not None
        self._is_impaired = self._impairment is not None or has_rate or not config.is_fifo
        self._s_per_byte = self._network.s_per_byte(self._port)

    def _refresh_impaired(self, target: SimDriver) -> bool:
        """Dead, or cut at least one way. With only the way back cut, data arrive but are never acknowledged."""
        if self._blocked_since is None:
            self._blocked_since = self._network.engine.now
        self._configure()
        self._check_later()
        return target.is_alive and not self._network.is_cut(self._port, self.target_port)

    def _send_blocked(self, frame: Frame) -> None:
        network = self._network
        is_kept = self.state is LinkState.CONNECTING or network.config.loss_mode == "retransmit"
        if self.state is LinkState.CLOSED:
            self._refuse(frame, "link_down", SendRefusal.PEER_DOWN)
        elif not is_kept:
            network.count_drop("cut")
        elif self._held_bytes + frame.size_bytes > limits.SEND_QUEUE_BYTES_MAX:
            self._refuse(frame, "queue_full", SendRefusal.QUEUE_FULL)
        else:
            self._held = self._held or []
            self._held.append(frame)
            self._held_bytes += frame.size_bytes
            self._is_slow |= self.queued_bytes > limits.SEND_HIGH_WATER_BYTES
            if self.state is LinkState.OPEN:
                network.stalled[self] = None

    def retry(self) -> None:
        """The network changed: send what was held if it gets through now."""
        if self.state is LinkState.OPEN and self._refresh():
            self._network.stalled.pop(self, None)
            self._flush()

    def _flush(self) -> None:
        held, self._held, self._held_bytes = self._held, None, 0
        for frame in held or ():
            self.send(frame)
        if self._is_slow:
            self._check_slow()

    def _check_later(self) -> None:
        """Notice, as a kernel would, that what was sent is not acknowledged. One check at a time."""
        if self._is_checked:
            return
        self._is_checked = True
        network = self._network
        is_reset = self._is_reset_by_peer()
        due = self._gives_up_at
        if is_reset:
            due = network.engine.now + network.rtt_s(self._port, self.target_port)
        network.engine.schedule(due, mark_of(self._port.index, CHECK_MARK), self._check)

    @property
    def _gives_up_at(self) -> float:
        """When what was not acknowledged first will have waited for too long."""
        since = self._network.engine.now if self._blocked_since is None else self._blocked_since
        return since + SEND_TIMEOUT_S

    def _is_reset_by_peer(self) -> bool:
        """Whether a kernel at the other end answers, and knows nothing of this connection."""
        if self.target is None or self.target.is_alive:
            return False
        if self._network.is_cut_either_way(self._port, self.target_port):
            return False
        return self.target_port.state is not State.SILENT

    def _check(self, _: None) -> None:
        if self.state is not LinkState.OPEN or not self.source.is_alive:
            return
        is_healed = self._refresh() and self._version == self._network.paths_version
        self._is_checked = False
        if is_healed:
            return
        if self._is_reset_by_peer():
            self._down("reset")
        elif self._network.engine.now >= self._gives_up_at:
            self._down("timeout")
        else:
            self._check_later()

    def reset_by_peer(self, peer_link: Link | None) -> None:
        """The process at the other end ended: its FIN or RST comes behind what it had sent (``peer_link``)."""
        engine = self._network.engine
        due = engine.now + self._network.rtt_s(self._port, self.target_port)
        if peer_link is not None:
            due = max(due, peer_link.last_arrival_s)
        engine.schedule(due, mark_of(self._port.index, DOWN_MARK), self._reset_arrived)

    def _reset_arrived(self, _: None) -> None:
        if self.state is LinkState.OPEN and self.source.is_alive:
            self._down("reset")

    def close(self) -> None:
        """Forget the link without telling anybody; what is in flight still arrives."""
        self.state = LinkState.CLOSED
        self._version = -1
        held, self._held, self._held_bytes = self._held, None, 0
        for frame in held or ():
            self._refuse(frame, "link_down", SendRefusal.PEER_DOWN)
        self._unread_bytes = 0
        if self._is_slow:
            self._tell_writable(0.0)
        self._twin = None
        self._network.stalled.pop(self, None)
        if self.source.links.get(self.peer.id) is self:
            del self.source.links[self.peer.id]

    def _down(self, reason: str) -> None:
        back = self.back()
        self.close()
        if back is not None and back._blocked_since is None:
            back.close()  # one that waits for an acknowledgement finds out for itself
        self.source.peer_down(self.peer, reason)

    def back(self) -> Link | None:
        """The other direction, if it is open."""
        twin = self._twin
        return twin if twin is not None and twin.state is LinkState.OPEN else None
