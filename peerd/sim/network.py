"""The model network: addresses, faults of paths, and when bytes arrive.

Each pair has a fixed latency and a little jitter. Each node has an up and a down direction of so many bytes a second;
both are queues, first in, first out, so bulk takes time and delays what comes behind it. TCP's congestion control is
not modelled: a direction is either free or busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from random import Random
from typing import Any, Final, Literal, Protocol

from pydantic import Field

from peerd import limits
from peerd.api import SendRefusal
from peerd.driver import StreamHandler
from peerd.errors import Bug, PeerMisbehaved
from peerd.linking.channel import Dial
from peerd.linking.policy import LinkPolicy
from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.sim.clock import SimClock
from peerd.sim.engine import NO_NODE, Engine, mark_of
from peerd.sim.faults import Cut, Impairment, Scope, between_groups, times_lost
from peerd.sim.latency import EuclideanLatency, LatencyModel
from peerd.sim.rng import fork
from peerd.sim.tables import Bytes, Probability, Rate, Seconds, Table
from peerd.wire.frames import Frame

SEND_TIMEOUT_S: Final = 15.0
"""TCP_USER_TIMEOUT: sent bytes unacknowledged for this long end a connection."""
CONNECT_RETRY_S: Final = 1.0
"""A SYN that nobody answers is sent again after this."""
RETRANSMIT_S: Final = 0.2
"""How long the repair of one lost segment takes at least (Linux: TCP_RTO_MIN); the round trip if that is longer."""

DOWNLINK_WAIT_MIN_S: Final = 1e-4
"""A shorter wait for a busy downlink gets no event of its own; it still delays the frames behind."""

FAULT_MARK: Final = 0x46415554


class NetworkConfig(Table):
    """The parameters of the model network."""

    up_bytes_per_s: Rate | None = Field(
        default=125e6, gt=0, description="Sending rate of a node, bytes a second (1 Gbit/s); null: unlimited."
    )
    down_bytes_per_s: Rate | None = Field(
        default=125e6, gt=0, description="Receiving rate of a node, bytes a second (1 Gbit/s); null: unlimited."
    )
    link_bytes_per_s: Rate | None = Field(
        default=None, gt=0, description="Rate of one path, from one node to one other, bytes a second; null: unlimited."
    )
    jitter: float = Field(
        default=0.05, ge=0, le=1, description="Uniform extra delay of each message, as a share of its pair's latency."
    )
    loss: Probability = Field(default=0.0, description="Probability that a control message is lost.")
    duplication: Probability = Field(
        default=0.0, description='Probability that a control message arrives twice (loss_mode "drop" only).'
    )
    reordering: Probability = Field(default=0.0, description="Probability that a control message is held up.")
    reorder_delay: Seconds = Field(default=0.1, ge=0, le=60, description="At most this long, uniformly.")
    clog: Probability = Field(default=0.0, description="Probability, each second, that a path stops.")
    clog_longest: Seconds = Field(default=5.0, ge=0, le=3600, description="At most this long, uniformly.")
    loss_mode: Literal["drop", "retransmit"] = Field(
        default="drop",
        description="drop: lost and cut messages are gone, repeated ones come twice, those behind a held-up one "
        "overtake it (harsher than TCP, the default, so that protocols are stressed). retransmit: as in TCP's byte "
        "stream, all of that is delay, also for what is behind. Bulk streams are always so.",
    )
    is_fifo: bool = Field(default=True, description="Whether messages of one pair and direction keep their order.")
    piece_bytes: Bytes = Field(
        default=64 * limits.KIB,
        ge=1024,
        le=16 * limits.MIB,
        description="Bulk is sent in pieces of this size, bytes; a control message waits for at most one of them per "
        "open stream. Larger is faster to simulate.",
    )

    def impairment(self) -> Impairment:
        """The impairment of every path, from the configuration."""
        return Impairment(
            self.loss, self.duplication, self.reordering, self.reorder_delay, self.clog, self.clog_longest
        )


class State(IntEnum):
    """One incarnation of a node, as the network sees it."""

    RUNNING = 0
    PAUSED = 1
    """The process is stopped; its kernel still accepts bytes."""
    STOPPED = 2
    """The process has ended, in order or by SIGKILL: its kernel resets connections."""
    SILENT = 3
    """The machine is gone: it sends nothing at all."""


class Receiver(Protocol):
    """The node above a driver: `peerd.node.node.Node`, or something smaller in a test."""

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        """A control frame arrived."""

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """There is no link to that peer, and none can be made."""

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """A frame will not be sent; may be told from within `SimDriver.send`."""

    def writable(self, peer: PeerRef) -> None:
        """Most of what waited for a slow peer has been sent."""

    def stream_accepted(self, peer: PeerRef) -> StreamHandler:
        """A peer opened a bulk stream."""


class Stalled(Protocol):
    """A link that holds frames."""

    def retry(self) -> None:
        """The network changed: send them if they get through now."""


class Process(Protocol):
    """One incarnation of a node as its links, streams and openings see it: `peerd.sim.driver.SimDriver`."""

    network: Network
    engine: Engine
    port: Port
    peer: PeerRef
    boot_epoch: int
    state: State
    policy: LinkPolicy[Any]
    openings: dict[Any, None]
    streams: dict[Any, None]
    plugins: Mapping[str, tuple[int, int]]
    receive: Callable[[PeerRef, Frame], None]

    @property
    def node(self) -> Receiver | None: ...

    @property
    def is_alive(self) -> bool: ...

    def now(self) -> float:
        """Return the time by this machine's clock."""

    def run(self, callback: Callable[[], None]) -> None:
        """Call back into the node: now, when it is resumed, or never."""

    def keep(self, function: Callable[[Any], None], argument: Any) -> None:
        """Hold an event back until the node is resumed."""

    def keep_frame(self, function: Callable[[Any], None], argument: Any) -> bool:
        """Hold a frame back; returns whether there was room."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back after the current handler."""

    def link_up(self, link: Any, dial: Dial | None) -> None:
        """A link is past its handshake."""

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """A frame will not be sent."""

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        """A peer broke the protocol."""


class Port:
    """A node's place in the network. It outlives the incarnations of the node."""

    __slots__ = (
        "bulk_received",
        "bulk_sent",
        "clock",
        "deferred_until",
        "down_free_at",
        "down_s_per_byte",
        "draw",
        "driver",
        "index",
        "mark",
        "peer",
        "up_backlog_s",
        "up_free_at",
        "up_s_per_byte",
    )

    def __init__(self, index: int, peer: PeerRef, config: NetworkConfig, generator: Random) -> None:
        self.index = index
        self.mark = mark_of(index, 0)
        self.peer = peer
        self.driver: Process | None = None
        self.draw: Callable[[], float] = generator.random
        self.up_s_per_byte = self.down_s_per_byte = self.up_backlog_s = 0.0
        self.set_rates(config.up_bytes_per_s, config.down_bytes_per_s)
        self.bulk_sent = self.bulk_received = 0
        """Bytes of streams that this machine has sent and that were read, and that it has read."""
        self.up_free_at = 0.0
        self.down_free_at = 0.0
        self.deferred_until = 0.0
        """When the downlink delivers the last arrival that had to wait; nothing may overtake it."""
        self.clock: SimClock | None = None
        """The machine's clock; ``None`` while it is exact."""

    def set_rates(self, up_bytes_per_s: float | None, down_bytes_per_s: float | None) -> None:
        """How fast the machine sends and receives from now on, bytes a second; ``None``: without a limit."""
        self.up_s_per_byte = 1.0 / up_bytes_per_s if up_bytes_per_s else 0.0
        self.down_s_per_byte = 1.0 / down_bytes_per_s if down_bytes_per_s else 0.0
        # So many seconds of sending may wait for the uplink; what is more waits in the send queues, by priority.
        self.up_backlog_s = limits.WRITE_HIGH_WATER_BYTES * self.up_s_per_byte

    def skewed_clock(self) -> SimClock:
        """Return the machine's clock, in order to set it wrong."""
        if self.clock is None:
            self.clock = SimClock()
        return self.clock

    @property
    def state(self) -> State:
        """The state of the current incarnation; a node that never started counts as stopped."""
        return State.STOPPED if self.driver is None else self.driver.state


class Network:
    """All ports, the faults, and the counters.

    ``version`` changes whenever a node comes, goes or stops, or a path changes; ``paths_version`` only when a link must
    look again at its path.
    """

    def __init__(
        self,
        engine: Engine,
        seed: int,
        config: NetworkConfig,
        latency: LatencyModel | None = None,
        links: LinkSettings | None = None,
    ) -> None:
        self.engine = engine
        self.seed = seed
        self.config = config
        self.links = links if links is not None else LinkSettings()
        """The link settings of every node."""
        self.latency = latency if latency is not None else EuclideanLatency(seed)
        self.ports: list[Port] = []
        self.version = 0
        self.paths_version = 0
        self.stalled: dict[Stalled, None] = {}
        """Links that hold frames until a cut heals or the peer reads, in the order in which they stalled."""
        self.frames_delivered = 0
        self.frames_delivered_bytes = 0
        self.stream_bytes = 0
        """Bulk bytes delivered, padding included."""
        self.dropped: dict[str, int] = {}
        """Control frames that never arrived, by reason."""
        self.dials_refused: dict[str, int] = {}
        """Dials that the nodes' own limits did not permit, by reason."""
        self._ports_by_address: dict[tuple[str, int], Port] = {}
        self._everywhere = config.impairment()
        self._is_harmless = self._everywhere.is_harmless
        self.jitter = config.jitter
        self._faults = 0
        self._cuts: dict[int, Cut] = {}
        self._impairments: dict[int, tuple[Impairment, Scope]] = {}
        self._partition = 0
        self._clogs: dict[tuple[int, int], float] = {}
        self._stops: dict[tuple[int, int], tuple[float, float]] = {}
        """For each path that may clog, the last clog that was drawn: its begin and end."""
        self._links_free_at: dict[tuple[int, int], float] = {}

    # Places

    def add_port(self, peer: PeerRef) -> Port:
        """A place for a new node. Raises `Bug` for an address in use."""
        if (peer.host, peer.port) in self._ports_by_address:
            raise Bug(f"two nodes at {peer.address}")
        index = len(self.ports)
        port = Port(index, peer, self.config, fork(self.seed, "network", index))
        self.ports.append(port)
        self._ports_by_address[peer.host, peer.port] = port
        return port

    def port_at(self, host: str, port: int) -> Port | None:
        """Return the port at an address, if any."""
        return self._ports_by_address.get((host, port))

    def latency_s(self, source: Port, target: Port) -> float:
        """One-way delay without jitter."""
        return self.latency.latency_s(source.index, target.index)

    def rtt_s(self, source: Port, target: Port) -> float:
        """The round trip without jitter, which proximity measurements should find."""
        return self.latency_s(source, target) + self.latency_s(target, source)

    # Faults

    def configure(self, **changes: float) -> None:
        """Change loss, duplication, jitter and the like from now on. Raises ``ValueError`` for a bad value."""
        self.config = NetworkConfig.model_validate({**dict(self.config), **changes})
        self._everywhere = self.config.impairment()
        self._is_harmless = self._everywhere.is_harmless
        self.jitter = self.config.jitter
        self.changed()

    def changed(self) -> None:
        """Paths may have changed: links look again, and stalled ones retry."""
        self.paths_version += 1
        self.node_ended()

    def node_ended(self) -> None:
        """Links to it notice when they are used; stalled ones look at once."""
        self.version += 1
        for link in list(self.stalled):
            link.retry()

    def cut_by(self, cut: Cut, duration_s: float | None = None) -> int:
        """Let nothing through on the paths that ``cut`` names, until `end` or `heal`; returns a number for `end`."""
        self._faults += 1
        self._cuts[self._faults] = cut
        return self._begun(duration_s)

    def impair(self, impairment: Impairment, scope: Scope, duration_s: float | None = None) -> int:
        """Impair the paths of a scope, until `end` or `heal`; returns a number for `end`."""
        self._faults += 1
        self._impairments[self._faults] = impairment, scope
        return self._begun(duration_s)

    def _begun(self, duration_s: float | None) -> int:
        if duration_s is not None:
            self.engine.schedule(self.engine.now + duration_s, mark_of(NO_NODE, FAULT_MARK), self.end, self._faults)
        self.changed()
        return self._faults

    def end(self, fault: int) -> None:
        """End a fault. Harmless when it has ended."""
        if self._cuts.pop(fault, None) is not None or self._impairments.pop(fault, None) is not None:
            self.changed()

    def partition_by(self, cut: Cut, duration_s: float | None = None) -> None:
        """Do as `cut_by`; replaces the last partition."""
        self._cuts.pop(self._partition, None)
        self._partition = self.cut_by(cut, duration_s)

    def partition(self, groups: Iterable[Iterable[int]]) -> None:
        """Let only nodes of the same group reach each other; nodes in no group form one more. Replaces the last one."""
        self.partition_by(between_groups(groups))

    def cut(self, source: int, target: int) -> None:
        """Let nothing from ``source`` to ``target`` through any more; the other direction is not changed."""
        self.cut_by(lambda a, b: a == source and b == target)

    def clog(self, source: int, target: int, duration_s: float) -> None:
        """What ``source`` sends to ``target`` in the next ``duration_s`` seconds arrives after that.

        In order where messages keep theirs; a longer clog of the path goes on.
        """
        now, path = self.engine.now, (source, target)
        self._clogs = {known: until for known, until in self._clogs.items() if until > now}
        self._clogs[path] = max(self._clogs.get(path, 0.0), now + duration_s)
        self.changed()

    def heal(self) -> None:
        """Undo every fault but what the configuration says."""
        self._cuts.clear()
        self._impairments.clear()
        self._clogs.clear()
        self._stops.clear()
        self.changed()

    @property
    def is_faulty(self) -> bool:
        """Whether anything is cut."""
        return bool(self._cuts)

    @property
    def is_disturbed(self) -> bool:
        """Whether some path is cut, loses messages or clogs. Duplicates and reordering do not count as disturbances."""
        impairments = (self._everywhere, *(impairment for impairment, _ in self._impairments.values()))
        return self.is_faulty or any(impairment.loss or impairment.clog for impairment in impairments)

    def is_cut(self, source: Port, target: Port) -> bool:
        """Whether bytes cannot get from one port to the other."""
        return bool(self._cuts) and any(cut(source.index, target.index) for cut in self._cuts.values())

    def is_cut_either_way(self, a: Port, b: Port) -> bool:
        """Whether a handshake between the two must fail."""
        return bool(self._cuts) and (self.is_cut(a, b) or self.is_cut(b, a))

    def impairment(self, source: Port, target: Port) -> Impairment | None:
        """Return the impairment of a path, all causes together; ``None`` if there is none."""
        result = self._everywhere
        if not self._impairments and self._is_harmless:
            return None
        for impairment, scope in self._impairments.values():
            if scope.covers(source.index, target.index):
                result = result.combined(impairment)
        return None if result.is_harmless else result

    def stopped_until(self, source: Port, target: Port, impairment: Impairment) -> float:
        """Virtual time before which a path that clogs now and then carries nothing; in the past, unless it is clogged.

        Clogs are drawn one after another, exponential times apart (Poisson), when this is called.
        """
        now, path = self.engine.now, (source.index, target.index)
        longest_s = impairment.clog_longest_s
        begin, until = self._stops.get(path, (0.0, now - longest_s))
        while until <= now:
            begin = until - math.log(1.0 - source.draw()) / -math.log1p(-impairment.clog)
            until = begin + longest_s * source.draw()
        self._stops[path] = begin, until
        return until if begin <= now else 0.0

    def connect_wait_s(self, source: Port, target: Port) -> float:
        """Return the seconds that lost SYNs, lost answers and clogs add to TCP's handshake."""
        if self._is_harmless and not self._impairments and not self._clogs:
            return 0.0
        wait_s = max(self.clogged_until(source, target), self.clogged_until(target, source)) - self.engine.now
        for one, other in ((source, target), (target, source)):
            impairment = self.impairment(one, other)
            if impairment is None:
                continue
            if impairment.clog:
                wait_s = max(wait_s, self.stopped_until(one, other, impairment) - self.engine.now)
            losses = times_lost(impairment.loss, source.draw)
            if losses:
                wait_s = max(wait_s, 0.0) + losses * CONNECT_RETRY_S
        return max(wait_s, 0.0)

    def repair_s(self, source: Port, target: Port) -> float:
        """Return the seconds that lost segments of TLS and Hello add; each direction may lose one."""
        wait_s = 0.0
        if self._is_harmless and not self._impairments:
            return wait_s
        for one, other in ((source, target), (target, source)):
            impairment = self.impairment(one, other)
            if impairment is not None and impairment.loss:
                losses = times_lost(impairment.loss, source.draw)
                wait_s += losses * max(RETRANSMIT_S, self.rtt_s(source, target))
        return wait_s

    def through_link(self, source: Port, target: Port, departure: float, size: int) -> float:
        """When the last byte of what left the uplink at ``departure`` is through a path of limited rate."""
        rate = self.config.link_bytes_per_s
        if rate is None:
            return departure
        path = source.index, target.index
        alone = departure + size * max(1.0 / rate - source.up_s_per_byte, 0.0)  # its first byte left earlier
        ready = max(self._links_free_at.get(path, 0.0) + size / rate, alone)
        self._links_free_at[path] = ready
        return ready

    def s_per_byte(self, source: Port) -> float:
        """Seconds a byte at the end of a path from ``source``: those of its uplink or of the path, the slower one."""
        rate = self.config.link_bytes_per_s
        return source.up_s_per_byte if rate is None else max(source.up_s_per_byte, 1.0 / rate)

    def clogged_until(self, source: Port, target: Port) -> float:
        """Virtual time before which nothing new arrives from ``source``; 0 when it never was clogged."""
        return self._clogs.get((source.index, target.index), 0.0)

    def count_drop(self, reason: str, frames: int = 1) -> None:
        """Count control frames that will not arrive; ``frames`` may be 0."""
        if frames:
            self.dropped[reason] = self.dropped.get(reason, 0) + frames
