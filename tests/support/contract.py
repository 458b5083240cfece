"""Two nodes below a driver each, once on real sockets and once simulated, for tests that must hold for both Hosts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from peerd.api import Metric, Priority, SendRefusal
from peerd.daemon import loops
from peerd.daemon.driver import AsyncioDriver
from peerd.daemon.offload import OffloadPool
from peerd.daemon.processes import ProcessPool
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.tasks import running_tasks
from peerd.driver import Driver, Stream, StreamHandler
from peerd.errors import ProtocolError
from peerd.identity.statements import WithoutKeys
from peerd.ids import NodeId
from peerd.linking.policy import LinkPolicy
from peerd.linking.settings import LinkSettings
from peerd.messages import Message, PeerRef
from peerd.sim.driver import SimDriver
from peerd.sim.latency import ConstantLatency
from peerd.sim.network import NetworkConfig
from peerd.sim.world import SimNode, World
from peerd.system.sockets import listening_socket
from peerd.telemetry.metrics import PrometheusMetrics
from peerd.telemetry.schema import Event
from peerd.wire.codec import decode, encode
from peerd.wire.frames import Frame
from tests.support.link_rig import FAST, Note, Peer, Rig, until

LIMIT_S = 30.0
LATENCY_S = 0.005


class Handler:
    """A stream handler that keeps what it reads and notes what it is told."""

    def __init__(self, node: ContractNode) -> None:
        self._node = node
        self._buffer = bytearray(64 * 1024)
        self.stream: Stream | None = None
        self.received = bytearray()
        self.writable_calls = 0
        self.reasons: list[str | None] = []
        self.fail_with: str | None = None
        self.is_unwanted = False
        """Whether it ends the stream as soon as that opens."""

    @property
    def open(self) -> Stream:
        """The stream, which must be open."""
        assert self.stream is not None
        return self.stream

    def opened(self, stream: Stream) -> None:
        self._node.upcall()
        assert self.stream is None and not self.reasons
        self.stream = stream
        if self.is_unwanted:
            stream.abort()

    def get_buffer(self, size_hint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, size_bytes: int) -> None:
        self._node.upcall()
        assert not self.reasons, "nothing comes after the end"
        if self.fail_with is not None:
            raise ProtocolError(self.fail_with)
        self.received += self._buffer[:size_bytes]

    def padding_received(self, size_bytes: int) -> None:
        raise AssertionError("nobody sends padding here")

    def writable(self) -> None:
        self._node.upcall()
        self.writable_calls += 1

    def closed(self, reason: str | None) -> None:
        self._node.upcall()
        self.reasons.append(reason)


class ContractNode:
    """The node above a driver. It records every call, and checks that none comes from within a call of its own."""

    def __init__(self, peer: PeerRef) -> None:
        self.peer = peer
        self.driver: Driver
        self.policy: LinkPolicy[Any]
        self.received: list[tuple[PeerRef, int]] = []
        self.downs: list[tuple[PeerRef, str]] = []
        self.refused: list[tuple[PeerRef, int, SendRefusal]] = []
        """The peer, number and reason of each refused frame."""
        self.writables: list[PeerRef] = []
        self.accepted: list[Handler] = []
        self.misbehaviours: list[str] = []
        self.others: list[tuple[PeerRef, Message]] = []
        """The messages that are not `Note`, with their senders."""
        self.records: list[dict[str, object]] = []
        self.on_frame: Callable[[PeerRef, Frame], None] = lambda peer, frame: None
        self.reentered: list[str] = []
        self._is_calling = False

    # From the driver

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        self.upcall()
        self.on_frame(peer, frame)
        decoded = decode(frame)
        assert decoded is not None
        if isinstance(decoded[0], Note):
            self.received.append((peer, decoded[0].number))
        else:
            self.others.append((peer, decoded[0]))

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        self.upcall()
        self.downs.append((peer, reason))

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """Record a refusal; only this may be called from within a call."""
        decoded = decode(frame)
        assert decoded is not None and isinstance(decoded[0], Note)
        self.refused.append((peer, decoded[0].number, reason))

    def writable(self, peer: PeerRef) -> None:
        self.upcall()
        self.writables.append(peer)

    def stream_accepted(self, peer: PeerRef) -> StreamHandler:
        self.upcall()
        self.accepted.append(Handler(self))
        return self.accepted[-1]

    def emit(self, event: Event) -> int:
        return 1

    def upcall(self) -> None:
        """Check every call of the driver."""
        if self._is_calling:
            self.reentered.append(inspect.stack()[1].function)

    # To the driver

    @contextmanager
    def calling(self) -> Iterator[Driver]:
        """Nothing may be called back while this is entered."""
        self._is_calling = True
        try:
            yield self.driver
        finally:
            self._is_calling = False

    def note(
        self, target: ContractNode | PeerRef, number: int, priority: Priority = Priority.NORMAL, size: int = 0
    ) -> None:
        """Send one frame."""
        peer = target if isinstance(target, PeerRef) else target.peer
        with self.calling() as driver:
            driver.send(peer, encode(Note(number, None, bytes(size))), priority)

    def open_stream(self, target: ContractNode | PeerRef) -> Handler:
        """Begin to open a stream."""
        handler = Handler(self)
        with self.calling() as driver:
            driver.open_stream(target if isinstance(target, PeerRef) else target.peer, handler)
        return handler

    def numbers(self, source: ContractNode) -> list[int]:
        """The numbers received from a node, in order."""
        return [number for peer, number in self.received if peer.id == source.peer.id]

    def is_linked(self, other: ContractNode) -> bool:
        """Whether this node has a link to another."""
        return self.driver.is_linked(other.peer)


class ContractRig(Protocol):
    """Makes nodes of one cluster. ``settings`` are those of every node made from then on."""

    settings: LinkSettings

    def add(self, number: int) -> ContractNode:
        """A node that runs; the number is its id."""

    def again(self, node: ContractNode) -> ContractNode:
        """Start a node that has ended again, with the same identity, address and state directory."""

    def nobody(self) -> PeerRef:
        """An address where a machine runs and no process listens."""

    def dropped(self, node: ContractNode, reason: str) -> float:
        """How many control frames were dropped for that reason."""

    def metric(self, node: ContractNode, name: str, **labels: str) -> float:
        """The value of a metric that was declared."""

    def stand_still(self, node: ContractNode) -> None:
        """The node reads nothing from its links."""

    def go_on(self, node: ContractNode) -> None:
        """It reads again."""

    async def crash(self, node: ContractNode) -> None:
        """End a node as SIGKILL does."""

    async def stop(self, node: ContractNode) -> None:
        """Stop a node's links as in a graceful stop."""

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds; fails when that takes too long."""

    async def close(self) -> None:
        """End all nodes after the test."""


class SocketRig:
    """The daemon's driver on loopback."""

    def __init__(self, path: Path, *, tls: bool = False) -> None:
        self.settings = FAST
        self._rig = Rig(tls=tls)
        self._path = path
        self._numbers: dict[ContractNode, int] = {}
        self._peers: dict[ContractNode, Peer] = {}
        self._metrics: dict[ContractNode, PrometheusMetrics] = {}
        self._pools: list[OffloadPool] = []
        self._processes: list[ProcessPool] = []
        self._states: dict[ContractNode, StateDirectory] = {}

    def add(self, number: int, *, epoch: int = 1, port: int = 0, files: Path | None = None) -> ContractNode:
        peer = self._rig.add(number, epoch=epoch, port=port, settings=self.settings, files=files)
        node = ContractNode(peer.ref)
        self._numbers[node] = number
        state = self._states[node] = StateDirectory(self._path / f"{number}")
        metrics = self._metrics[node] = PrometheusMetrics(version="0")
        self._pools.append(OffloadPool(1))
        sink = _Sink(node)
        driver = AsyncioDriver(
            links=peer.links,
            telemetry=peer.telemetry,
            stores=state,
            sink=sink,  # type: ignore[arg-type]  # only its `write` is used here
            metrics=metrics,
            offload=self._pools[-1],
            identity=peer.statements or WithoutKeys(),
        )
        self._processes.append(driver.processes)
        driver.attach(node)  # type: ignore[arg-type]  # no plugins to restart here
        count_misbehaviour = peer.telemetry.misbehaved

        def misbehaved(peer: PeerRef, error: Any, banned: bool) -> None:
            node.misbehaviours.append(error.reason)
            count_misbehaviour(peer, error, banned)

        peer.telemetry.misbehaved = misbehaved  # type: ignore[method-assign]  # listened to
        node.driver, node.policy = driver, peer.links.policy
        self._peers[node] = peer
        return node

    def again(self, node: ContractNode) -> ContractNode:
        self._states[node].close()
        epoch = self._peers[node].context.local.boot_epoch + 1
        return self.add(self._numbers[node], epoch=epoch, port=node.peer.port, files=self._peers[node].files)

    def nobody(self) -> PeerRef:
        sock = listening_socket("127.0.0.1", 0)
        port: int = sock.getsockname()[1]
        sock.close()
        return PeerRef(NodeId(999), "127.0.0.1", port)

    def dropped(self, node: ContractNode, reason: str) -> float:
        return self._peers[node].counters.values.get(f"peerd_frames_dropped_total{{reason={reason}}}", 0.0)

    def metric(self, node: ContractNode, name: str, **labels: str) -> float:
        value = self._metrics[node].registry.get_sample_value(name, labels)
        assert value is not None
        return value

    def stand_still(self, node: ContractNode) -> None:
        for link in self._peers[node].links.links():
            assert link._transport is not None
            link._transport.pause_reading()

    def go_on(self, node: ContractNode) -> None:
        for link in self._peers[node].links.links():
            assert link._transport is not None
            link._transport.resume_reading()

    async def crash(self, node: ContractNode) -> None:
        await self._peers[node].crash()

    async def stop(self, node: ContractNode) -> None:
        await self._peers[node].stop()

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition, LIMIT_S)

    async def close(self) -> None:
        for processes in self._processes:
            processes.close()
        for pool in self._pools:
            pool.close()
        await self._rig.__aexit__()
        for state in self._states.values():
            state.close()
        assert running_tasks() == []


class _Sink:
    """Drops event records."""

    def __init__(self, node: ContractNode) -> None:
        self._node = node

    def write(self, record: dict[str, object]) -> None:
        self._node.records.append(record)


class ContractWorld(World[ContractNode]):
    """Makes a node of the contract at each start."""

    def boot(self, place: SimNode[ContractNode], driver: SimDriver) -> ContractNode:
        node = ContractNode(place.peer)
        node.driver, node.policy = driver, driver.policy
        return node

    def record(self, record: dict[str, object]) -> None:
        for place in self.nodes:
            if place.current is not None and record.get("node") == place.index:
                place.current.records.append(record)

    def misbehaved(self, driver: SimDriver, peer: PeerRef, error: Any) -> None:
        super().misbehaved(driver, peer, error)
        assert isinstance(driver.node, ContractNode)
        driver.node.misbehaviours.append(error.reason)


class SimulatedRig:
    """The simulator's driver on a model network, 5 ms apart."""

    def __init__(self, path: Path) -> None:
        self.world = ContractWorld(
            1, network=NetworkConfig(up_bytes_per_s=50e6), latency=ConstantLatency(LATENCY_S), links=FAST
        )
        self.world.misbehaviour_is_failure = False
        self._places: dict[ContractNode, SimNode[ContractNode]] = {}

    @property
    def settings(self) -> LinkSettings:
        """The link settings of every node of the network."""
        return self.world.network.links

    @settings.setter
    def settings(self, settings: LinkSettings) -> None:
        self.world.network.links = settings

    def add(self, number: int) -> ContractNode:
        return self._started(self.world.add_node(NodeId(number)))

    def _started(self, place: SimNode[ContractNode]) -> ContractNode:
        self.world.run_for(0.0)
        self._places[place.node] = place
        return place.node

    def again(self, node: ContractNode) -> ContractNode:
        place = self._places[node]
        self.world.restart(place)
        return self._started(place)

    def nobody(self) -> PeerRef:
        return self.world.add_node(NodeId(999), delay_s=None).peer

    def dropped(self, node: ContractNode, reason: str) -> float:
        return float(self.world.network.dropped.get(reason, 0))

    def metric(self, node: ContractNode, name: str, **labels: str) -> float:
        assert isinstance(node.driver, SimDriver)
        return node.driver.metrics[name, tuple(sorted(labels.items()))]

    def stand_still(self, node: ContractNode) -> None:
        self.world.pause(self._places[node])

    def go_on(self, node: ContractNode) -> None:
        self.world.resume(self._places[node])

    async def crash(self, node: ContractNode) -> None:
        self.world.kill(self._places[node])

    async def stop(self, node: ContractNode) -> None:
        place = self._places[node]
        place.driver.leave(1.0, lambda: self.world.kill(place))
        self.world.run_until(lambda: not place.driver.is_alive, limit_s=LIMIT_S, poll_s=0.001)

    async def until(self, condition: Callable[[], object]) -> None:
        self.world.run_until(lambda: bool(condition()), limit_s=LIMIT_S, poll_s=0.001)

    async def close(self) -> None:
        """Do nothing: a simulation holds only memory."""


Scenario = Callable[[ContractRig], Awaitable[None]]
_HOSTS = ["asyncio", "uvloop", "simulator"]


def on_both_hosts_with_keys(scenario: Scenario) -> Callable[..., None]:
    """As `on_both_hosts`, with TLS: ``peer.id`` of the daemon's nodes is what follows from their keys."""
    return on_both_hosts(scenario, tls=True)


def on_both_hosts(scenario: Scenario, *, tls: bool = False) -> Callable[..., None]:
    """Run a test of the contract with the daemon's driver on both event loops, and with the simulator's."""

    async def checked(rig: ContractRig) -> None:
        nodes: list[ContractNode] = []
        add, again = rig.add, rig.again

        def noted(make: Callable[..., ContractNode]) -> Callable[..., ContractNode]:
            def call(*arguments: Any, **more: Any) -> ContractNode:
                nodes.append(make(*arguments, **more))
                return nodes[-1]

            return call

        rig.add, rig.again = noted(add), noted(again)  # type: ignore[method-assign]  # to look at them at the end
        try:
            await scenario(rig)
            for node in nodes:
                assert node.reentered == [], f"{node.peer} was called from within its own call"
        finally:
            await rig.close()

    def run(host: str, tmp_path: Path) -> None:
        async def main() -> None:
            await checked(SimulatedRig(tmp_path) if host == "simulator" else SocketRig(tmp_path, tls=tls))

        if host == "simulator":
            asyncio.run(main())
        else:
            loops.run(main(), loop=host)  # type: ignore[arg-type]  # one of two names

    run.__name__, run.__doc__, run.__module__ = (
        str(getattr(scenario, "__name__", "")),
        scenario.__doc__,
        scenario.__module__,
    )
    parametrised: Callable[..., None] = pytest.mark.parametrize("host", _HOSTS)(run)
    return parametrised


def counter(name: str, *labels: str) -> Metric:
    """A declaration of a counter."""
    return Metric(name, "counter", "For a test.", labels)
