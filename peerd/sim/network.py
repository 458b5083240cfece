"""The model network: who is where, what is cut, and when bytes arrive.

Each pair has a fixed latency and a little jitter. Each node has an up and a down direction of so many bytes a second;
both are queues, first in, first out, so bulk takes time and delays what comes behind it. TCP's congestion control is
not modelled: a direction is either free or busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field

from peerd import limits
from peerd.errors import Bug
from peerd.messages import PeerRef
from peerd.sim.engine import Engine
from peerd.sim.latency import EuclideanLatency, LatencyModel
from peerd.sim.rng import fork
from peerd.sim.tables import Bytes, Rate, Table

if TYPE_CHECKING:
    from peerd.sim.driver import SimDriver
    from peerd.sim.links import Link

SEND_TIMEOUT_S: Final = 15.0
"""TCP_USER_TIMEOUT: sent bytes unacknowledged for this long end a connection."""
CONNECT_TIMEOUT_S: Final = limits.HELLO_TIMEOUT_S
CONNECT_RETRY_S: Final = 1.0
"""A SYN that nobody answers is sent again after this."""
RETRANSMIT_S: Final = 0.2
"""What one lost segment costs where loss means retransmission (Linux: TCP_RTO_MIN)."""

DOWNLINK_WAIT_MIN_S: Final = 1e-4
"""A shorter wait for a busy downlink is not worth an event of its own (it still counts for those behind)."""


class NetworkConfig(Table):
    """The parameters of the model network."""

    up_bytes_per_s: Rate | None = Field(
        default=125e6, gt=0, description="Sending rate of a node, bytes a second (1 Gbit/s); null: unlimited."
    )
    down_bytes_per_s: Rate | None = Field(
        default=125e6, gt=0, description="Receiving rate of a node, bytes a second (1 Gbit/s); null: unlimited."
    )
    jitter: float = Field(
        default=0.05, ge=0, le=1, description="Uniform extra delay of each message, as a share of its pair's latency."
    )
    loss: float = Field(default=0.0, ge=0, lt=1, description="Probability that a control message is lost.")
    duplication: float = Field(
        default=0.0, ge=0, lt=1, description="Probability that a control message arrives twice (only TCP's absence)."
    )
    loss_mode: Literal["drop", "retransmit"] = Field(
        default="drop",
        description="What loss and cuts do: drop the message (harsher than TCP, the default, so that protocols are "
        "stressed) or delay it until it gets through, as TCP does. Bulk streams are always retransmitted.",
    )
    is_fifo: bool = Field(default=True, description="Whether messages of one pair and direction keep their order.")
    piece_bytes: Bytes = Field(
        default=64 * limits.KIB,
        ge=1024,
        le=16 * limits.MIB,
        description="Bulk is sent in pieces of this size, bytes; a control message waits for at most one of them per "
        "open stream. Larger is faster to simulate.",
    )


class State(IntEnum):
    """One incarnation of a node, as the network sees it."""

    RUNNING = 0
    PAUSED = 1
    """The process is stopped; its kernel still accepts bytes."""
    STOPPED = 2
    """The process has ended, in order or by SIGKILL: its kernel resets connections."""
    SILENT = 3
    """The machine is gone: nothing is ever heard of it."""


class Port:
    """A node's place in the network. It outlives the incarnations of the node."""

    __slots__ = (
        "deferred_until",
        "down_free_at",
        "down_s_per_byte",
        "draw",
        "driver",
        "index",
        "peer",
        "up_free_at",
        "up_s_per_byte",
    )

    def __init__(self, index: int, peer: PeerRef, config: NetworkConfig, generator: Random) -> None:
        self.index = index
        self.peer = peer
        self.driver: SimDriver | None = None
        self.draw: Callable[[], float] = generator.random
        self.up_s_per_byte = 1.0 / config.up_bytes_per_s if config.up_bytes_per_s else 0.0
        self.down_s_per_byte = 1.0 / config.down_bytes_per_s if config.down_bytes_per_s else 0.0
        self.up_free_at = 0.0
        self.down_free_at = 0.0
        self.deferred_until = 0.0
        """When the last arrival that had to wait gets in; nothing may overtake it."""

    @property
    def state(self) -> State:
        """Of the current incarnation; a node that never started is stopped."""
        return State.STOPPED if self.driver is None else self.driver.state


class Network:
    """All ports, the faults, and the counters. ``version`` changes whenever reachability may have."""

    __slots__ = (
        "_clogs",
        "_cuts",
        "_groups",
        "_ports_by_address",
        "config",
        "dropped",
        "engine",
        "frames_delivered",
        "frames_delivered_bytes",
        "latency",
        "ports",
        "seed",
        "stalled",
        "stream_bytes",
        "version",
    )

    def __init__(self, engine: Engine, seed: int, config: NetworkConfig, latency: LatencyModel | None = None) -> None:
        self.engine = engine
        self.seed = seed
        self.config = config
        self.latency = latency if latency is not None else EuclideanLatency(seed)
        self.ports: list[Port] = []
        self.version = 0
        self.stalled: dict[Link, None] = {}
        """Links that hold frames until a cut heals, in the order in which they stalled."""
        self.frames_delivered = 0
        self.frames_delivered_bytes = 0
        self.stream_bytes = 0
        """Bulk bytes delivered, padding included."""
        self.dropped: dict[str, int] = {}
        """Control frames that never arrived, by reason."""
        self._ports_by_address: dict[tuple[str, int], Port] = {}
        self._groups: dict[int, int] = {}
        self._cuts: set[tuple[int, int]] = set()
        self._clogs: dict[tuple[int, int], float] = {}

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
        """Who is at an address."""
        return self._ports_by_address.get((host, port))

    def latency_s(self, source: Port, target: Port) -> float:
        """One-way delay without jitter."""
        return self.latency.latency_s(source.index, target.index)

    def rtt_s(self, source: Port, target: Port) -> float:
        """There and back, without jitter: what proximity measurements should find."""
        return self.latency_s(source, target) + self.latency_s(target, source)

    # Faults

    def configure(self, **changes: float) -> None:
        """Change loss, duplication or jitter from now on. Raises ``ValueError`` for a bad value."""
        self.config = NetworkConfig.model_validate({**dict(self.config), **changes})
        self.changed()

    def changed(self) -> None:
        """Reachability may have changed: links look again, and stalled ones retry."""
        self.version += 1
        for link in list(self.stalled):
            link.retry()

    def partition(self, groups: Iterable[Iterable[int]]) -> None:
        """Only nodes of the same group reach each other; nodes in no group form one more. Replaces the last one."""
        self._groups = {index: number for number, group in enumerate(groups, start=1) for index in group}
        self.changed()

    def cut(self, source: int, target: int) -> None:
        """Nothing gets from ``source`` to ``target`` any more; the other direction is left alone."""
        self._cuts.add((source, target))
        self.changed()

    def clog(self, source: int, target: int, duration_s: float) -> None:
        """What ``source`` sends to ``target`` in the next ``duration_s`` seconds arrives after that, in order."""
        self._clogs[source, target] = self.engine.now + duration_s
        self.changed()

    def heal(self) -> None:
        """Undo partition, cuts and clogs."""
        self._groups.clear()
        self._cuts.clear()
        self._clogs.clear()
        self.changed()

    @property
    def is_faulty(self) -> bool:
        """Whether anything is cut."""
        return bool(self._groups or self._cuts)

    def is_cut(self, source: Port, target: Port) -> bool:
        """Whether bytes cannot get from one port to the other."""
        a, b = source.index, target.index
        groups = self._groups
        return (bool(groups) and groups.get(a, 0) != groups.get(b, 0)) or (a, b) in self._cuts

    def is_cut_either_way(self, a: Port, b: Port) -> bool:
        """Whether a handshake between the two must fail."""
        return self.is_cut(a, b) or self.is_cut(b, a)

    def clogged_until(self, source: Port, target: Port) -> float:
        """Virtual time before which nothing new arrives from ``source``; 0 when it never was clogged."""
        return self._clogs.get((source.index, target.index), 0.0)

    def count_drop(self, reason: str) -> None:
        """One control frame will not arrive."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
