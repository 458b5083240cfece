"""`peerd.driver.Driver` for one incarnation of one simulated node.

Nothing here ever calls the node before the call that caused it has returned: everything goes through the engine. All
that reaches the node passes `run`, `fire` or `receive`, which hold it back while the node is paused and drop it once
the node is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from peerd import limits
from peerd.api import (
    IN_MEMORY,
    Files,
    KeyValues,
    Log,
    Metric,
    Priority,
    Scratch,
    SendRefusal,
    WorkHandle,
    WorkLimits,
)
from peerd.driver import StreamHandler
from peerd.errors import Bug, PeerMisbehaved, Unavailable
from peerd.ids import NodeId, format_id
from peerd.lib.group_log import LOG_NAME, GroupLog
from peerd.linking.channel import Channel, Dial
from peerd.linking.policy import LinkPolicy, PolicyTransport
from peerd.messages import PeerRef
from peerd.sim.clock import WALL_TIME_START_S
from peerd.sim.engine import Engine, Timer, mark_of
from peerd.sim.files import FileDisk, SimFiles
from peerd.sim.identity import SimulatedKeys, public_key_of
from peerd.sim.links import SimLink
from peerd.sim.logs import LogDisk, open_log
from peerd.sim.network import Network, Port, Receiver, State
from peerd.sim.opening import AddressOpening, Opening, PeerOpening
from peerd.sim.rng import fork
from peerd.sim.streams import SimStream, StreamOpening
from peerd.wire.frames import Frame

if TYPE_CHECKING:
    from peerd.node.node import Node

BACKLOG_MAX: Final = 100_000
"""A paused node holds at most this many events; later messages are lost, as socket buffers are bounded, too."""

LINKS_SWEEP_S: Final = 60.0
"""A node looks for unused links at most this often."""
FLUSH_POLL_S: Final = 0.02
"""How often a node that is ending looks whether all that it had queued has been sent."""

TIMER_MARK: Final = 0x54494D
END_MARK: Final = 0x454E44
WORK_MARK: Final = 0x574F52
LOG_MARK: Final = 0x4C4F47
FILE_MARK: Final = 0x46494C


class Surroundings(Protocol):
    """What the driver needs of the simulation around it: `peerd.sim.world.World`."""

    @property
    def seed(self) -> int: ...
    @property
    def keys(self) -> SimulatedKeys: ...

    def record(self, record: dict[str, object]) -> None:
        """Take one event record of one node."""

    def handler_failed(self, driver: SimDriver, plugin: str, error: Exception) -> None:
        """A handler raised an exception: raise one that names the node, the time and the seed."""

    def misbehaved(self, driver: SimDriver, peer: PeerRef, error: PeerMisbehaved) -> None:
        """A node says that another broke the protocol."""

    def duplicate_identity(self, driver: SimDriver, detail: str) -> None:
        """Another process has the node's identity and is newer: this one has to end."""


class SimStore:
    """The key-value store of one plugin and the disk of its logs, kept across the restarts of its node."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self.logs: dict[str, LogDisk] = {}
        self.files_on_disk: FileDisk = {}

    def get(self, key: str) -> bytes | None:
        """The value, if there is one."""
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Raises `Unavailable` over the same limits as on disk."""
        if len(value) > limits.STORE_VALUE_BYTES_MAX:
            raise Unavailable(f"a value of {len(value)} bytes, limit {limits.STORE_VALUE_BYTES_MAX}")
        if key not in self._values and len(self._values) >= limits.STORE_KEYS_MAX:
            raise Unavailable(f"{limits.STORE_KEYS_MAX} keys are stored already")
        self._values[key] = bytes(value)

    def delete(self, key: str) -> None:
        """Harmless when it is not there."""
        self._values.pop(key, None)

    def keys(self) -> list[str]:
        """All keys, sorted."""
        return sorted(self._values)


class _Work:
    """A job that was given away."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimDriver(PolicyTransport):
    """The driver of one incarnation of a node. ``stores`` belongs to the node, and outlives this incarnation."""

    carries_padding = True

    def __init__(
        self, world: Surroundings, network: Network, port: Port, boot_epoch: int, stores: dict[str, SimStore]
    ) -> None:
        self.world = world
        self.network = network
        self.engine: Engine = network.engine
        self.port = port
        self.peer = port.peer
        self.boot_epoch = boot_epoch
        self.state = State.RUNNING
        self.policy: LinkPolicy[SimLink] = LinkPolicy(port.peer.id, network.links, self, port.draw)
        self.links: dict[NodeId, SimLink] = self.policy.links
        self.openings: dict[Opening, None] = {}
        self.streams: dict[SimStream, None] = {}
        self.receive: Callable[[PeerRef, Frame], None] = self._not_attached
        self.node: Receiver | None = None
        self.metrics: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        """Counters and gauges as they are; histograms as ``<name>_sum`` and ``<name>_count``."""
        self.records_written = 0
        self.verifications = 0
        """How often this node has checked a proof."""
        self.plugins: Mapping[str, tuple[int, int]] = {}
        """What this node says in handshakes."""
        self._declared: dict[str, Metric] = {}
        self._stores = stores
        self._backlog: list[tuple[Callable[[Any], None], Any]] = []
        self._timer_mark = mark_of(port.index, TIMER_MARK)
        self._logs: dict[tuple[str, str], GroupLog] = {}
        self._is_sweeping = False

    def attach(self, node: Receiver | Node) -> None:
        """Connect the node to drive; called once, before anything can arrive."""
        self.node = node
        self.receive = node.frame_received

    def detach(self) -> None:
        """Release a node that has ended for good."""
        self.node = None
        self.receive = self._not_attached

    def _not_attached(self, peer: PeerRef, frame: Frame) -> None:
        raise Bug(f"{self.peer} has a driver but no node")

    @property
    def is_alive(self) -> bool:
        """Whether the process runs or is paused."""
        return self.state <= State.PAUSED

    # Gates

    def run(self, callback: Callable[[], None]) -> None:
        """Call back into the node: now, or when it is resumed, or never if it is dead."""
        if self.state is State.RUNNING:
            callback()
        elif self.state is State.PAUSED:
            self.keep(self.run, callback)

    def fire(self, timer: Timer) -> None:
        """Run a timer of this node under the same conditions."""
        if self.state is State.PAUSED:
            self.keep(self.fire, timer)
        elif self.state is State.RUNNING and timer.callback is not None:
            callback, timer.callback = timer.callback, None
            callback()

    def keep(self, function: Callable[[Any], None], argument: Any) -> None:
        """Hold an event back until the node is resumed."""
        self._backlog.append((function, argument))

    def keep_frame(self, function: Callable[[Any], None], argument: Any) -> bool:
        """Hold a frame back, up to a limit. Timers and streams, which are bounded by themselves, have no limit here.

        Returns whether there was room.
        """
        if len(self._backlog) >= BACKLOG_MAX:
            self.network.count_drop("backlog_full")
            return False
        self.keep(function, argument)
        return True

    def pause(self) -> None:
        """SIGSTOP."""
        if self.state is State.RUNNING:
            self.state = State.PAUSED
            self.network.version += 1

    def resume(self) -> None:
        """SIGCONT: what came in meanwhile is handled now, in order, before what arrives at this instant."""
        if self.state is State.PAUSED:
            self.state = State.RUNNING
            self.network.version += 1
            kept, self._backlog = self._backlog, []
            for function, argument in kept:
                self.engine.schedule_first(self._timer_mark, function, argument)

    def leave(self, limit_s: float, then: Callable[[], None]) -> None:
        """The process ends in order: what is queued is sent, links and streams are closed, at most in ``limit_s``."""
        self.policy.stop()
        for opening in list(self.openings):
            opening.abandon()
        for stream in list(self.streams):
            stream.close()
        self._leave(self.engine.now + limit_s, then)

    def _leave(self, deadline: float, then: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        is_done = self.policy.is_flushed and not self.streams
        if is_done or self.engine.now >= deadline:
            for link in list(self.links.values()):
                link.retire("stopping")
            self.policy.clear("stopping")
            then()
        else:
            self._later(FLUSH_POLL_S, END_MARK, lambda: self._leave(deadline, then))

    def end(self, state: State) -> None:
        """The process (STOPPED) or the whole machine (SILENT) is gone. Peers hear of the first, not of the second."""
        if not self.is_alive:
            return
        self.state = state
        self._backlog.clear()
        self.policy.stop()
        for opening in list(self.openings):
            opening.abandon()
        for link in list(self.links.values()):
            link.crashed(is_heard=state is State.STOPPED)
        self.links.clear()
        for stream in list(self.streams):
            stream.crashed()
        self.network.node_ended()

    # Clock, randomness, timers

    def now(self) -> float:
        """Virtual seconds since the simulation began, as this machine's clock has it."""
        clock = self.port.clock
        return self.engine.now if clock is None else clock.monotonic(self.engine.now)

    def wall_time(self) -> float:
        """Virtual time of day, as this machine's clock has it."""
        clock = self.port.clock
        return WALL_TIME_START_S + self.engine.now if clock is None else clock.wall(self.engine.now)

    def rng(self, purpose: str) -> Random:
        """A generator forked for (seed, node, boot, purpose), so that a restarted node draws other numbers."""
        return fork(self.world.seed, "node", self.port.index, self.boot_epoch, purpose)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """One-shot timer, by this machine's clock."""
        if self.port.clock is not None:
            delay_s = self.port.clock.true_s(delay_s)
        return self.engine.call_later(delay_s, self._timer_mark, callback, self.fire)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run the callback after the current handler, before any later event."""
        self.engine.soon.append((self.run, callback))

    def offload(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        cost_s: float,
        within: WorkLimits | None = None,
    ) -> WorkHandle:
        """Run the function at once, and report after ``cost_s`` virtual seconds. There are always enough workers."""
        work = _Work()
        callback: Callable[[Any], None]
        try:
            outcome, callback = function(*arguments), done
        except Exception as error:  # any exception is the job's outcome, and goes to its owner
            outcome, callback = error if within is None else Unavailable(f"{within.name} failed: {error}"), failed
        if within is not None and callback is done and type(outcome) is not bytes:
            outcome, callback = Unavailable(f"{within.name} failed: it returned no bytes"), failed
        self._later(cost_s, WORK_MARK, lambda: None if work.is_cancelled else callback(outcome))
        return work

    def _later(self, delay_s: float, what: int, callback: Callable[[], None]) -> None:
        self.engine.schedule(self.engine.now + delay_s, mark_of(self.port.index, what), self.run, callback)

    # Links

    def send(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        """Send one frame."""
        link = self.links.get(peer.id)
        if link is not None:
            link.send(frame, priority)
        elif self.is_alive:
            self.policy.send(peer, frame, priority)

    def link_up(self, link: SimLink, dial: Dial | None) -> None:
        """A link is past its handshake."""
        self.policy.link_up(link, dial)
        if not self._is_sweeping:
            self._sweep_later(self.network.links.unused_s)
        link.wake()

    def _sweep_later(self, delay_s: float) -> None:
        self._is_sweeping = True
        self.engine.schedule(self.engine.now + delay_s, self._timer_mark, self._sweep_links)

    def _sweep_links(self, _: None) -> None:
        """Close unused links, as the daemon does; look again when the next one may be due."""
        self._is_sweeping = False
        if not self.is_alive or not self.links:
            return
        due = self.engine.now - self.network.links.unused_s
        if self.state is State.RUNNING:  # a paused process closes nothing
            for link in [link for link in self.links.values() if link.is_open and link.last_used_s <= due]:
                link.retire("idle")
            self.policy.forget_idle()
        oldest = min((link.last_used_s for link in self.links.values()), default=due)
        self._sweep_later(max(oldest - due, LINKS_SWEEP_S))

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """Tell the node that a peer cannot be reached, unless it is paused or dead."""
        self.run(lambda: self._tell_down(peer, reason))

    def _tell_down(self, peer: PeerRef, reason: str) -> None:
        if self.node is not None:
            self.node.peer_down(peer, reason)

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        """Find out who is at an address, and have a link to it."""
        target = self.network.port_at(host, port)
        if target is not None and self.policy.is_linked(target.peer.id):
            self.call_soon(lambda: done(target.peer))
        elif self.policy.is_stopping:
            self.call_soon(lambda: done(None))
        else:
            AddressOpening(self, target, done)

    def introduce(self, plugins: Mapping[str, tuple[int, int]]) -> None:
        """Set what the peer of every new link is told."""
        self.plugins = plugins

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """Have the node note a frame that will not be sent."""
        if self.is_alive and self.node is not None:
            self.node.frame_refused(peer, frame, reason)

    def writable(self, peer: PeerRef) -> None:
        """Tell the node that a slow peer has caught up, unless it is dead; `call_soon` has waited for a paused one."""
        if self.node is not None:
            self.node.writable(peer)

    def start_dial(self, channel: Channel, delay_s: float) -> Dial:
        """Dial for the policy (`peerd.linking.channel.LinkHost`)."""
        return PeerOpening(self, channel, delay_s)

    def dial_refused(self, peer: PeerRef, reason: str) -> None:
        """Count a dial that the policy's limits did not permit."""
        refused = self.network.dials_refused
        refused[reason] = refused.get(reason, 0) + 1

    def frames_dropped(self, frames: int, reason: str) -> None:
        """Count frames that the policy dropped."""
        self.network.count_drop(reason, frames)

    def duplicate_identity(self, detail: str) -> None:
        """Have the world end this incarnation, as a newer one has the node's identity."""
        self.world.duplicate_identity(self, detail)

    def charge(self, peer: PeerRef, messages: int) -> None:
        """See `peerd.driver.Transport.charge`."""
        link = self.links.get(peer.id)
        incoming = None if link is None else link.back()
        if incoming is not None:
            incoming.charge(messages)

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        """Count it, add to the score, close the link. In a simulation of honest nodes the world raises."""
        self.world.misbehaved(self, peer, error)
        self.policy.misbehaved(peer.id, getattr(error, "reason", "misbehaved"))
        link = self.links.get(peer.id)
        if link is not None:
            link.abort("misbehaved")

    # Statements

    def sign(self, purpose: str, statement: bytes) -> bytes:
        """In the name of this node, and of no other."""
        return self.world.keys.sign(self.peer.id, purpose, statement)

    def verify(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes) -> bool:
        """Whether it is the signer's proof."""
        self.verifications += 1
        return self.world.keys.verify(signer, purpose, statement, proof)

    def public_key(self) -> bytes:
        """As long as in the daemon."""
        return public_key_of(self.peer.id)

    def verify_by_key(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes, key: bytes) -> bool:
        """Whether it begins like the signer's proof, and the key is the signer's."""
        self.verifications += 1
        return self.world.keys.verify_by_key(signer, purpose, statement, proof, key)

    # Bulk

    def open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        """Open a bulk connection: two round trips until this side may write, and half of one more for the peer's."""
        if self.policy.is_stopping:
            self.call_soon(lambda: handler.closed("stopping"))
            return
        attempt = self.policy.begin_stream(peer)
        if isinstance(attempt, str):
            why = attempt
            self.call_soon(lambda: handler.closed(why))
        else:
            StreamOpening(self, attempt, handler)

    def allocate(self, size_bytes: int) -> memoryview:
        """Return plain memory."""
        return memoryview(bytearray(size_bytes))

    # State and telling

    def store(self, plugin: str) -> KeyValues:
        """Return a plugin's store, which survives restarts."""
        return self._stores.setdefault(plugin, SimStore())

    def log(self, plugin: str, name: str) -> Log:
        """Return a plugin's log, whose durable part survives restarts."""
        log = self._logs.get((plugin, name))
        if log is None:
            if LOG_NAME.fullmatch(name) is None:
                raise Bug(f"not a name of a log: {name!r}")
            disks = self._stores.setdefault(plugin, SimStore()).logs
            if name not in disks and len(disks) >= limits.LOGS_PER_PLUGIN_MAX:
                raise Unavailable(f"{plugin} has {len(disks)} logs, limit {limits.LOGS_PER_PLUGIN_MAX}")
            disk = disks.setdefault(name, LogDisk())
            log = self._logs[plugin, name] = open_log(
                disk, lambda delay_s, callback: self._later(delay_s, LOG_MARK, callback)
            )
        return log

    def scratch(self) -> Scratch:
        """All in memory."""
        return IN_MEMORY

    def files(self, plugin: str) -> Files:
        """Return a plugin's files, which survive restarts."""
        disk = self._stores.setdefault(plugin, SimStore()).files_on_disk
        return SimFiles(disk, lambda delay_s, callback: self._later(delay_s, FILE_MARK, callback))

    def record(self, record: dict[str, object]) -> None:
        """Give a record to the simulation's sink."""
        self.records_written += 1
        self.world.record(record)

    def declare_metrics(self, metrics: tuple[Metric, ...]) -> None:
        """Remember names and kinds; raises `Bug` for one name declared in two ways."""
        for metric in metrics:
            if self._declared.setdefault(metric.name, metric) != metric:
                raise Bug(f"metric {metric.name} is declared in two ways")

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        """Add to a counter."""
        self._add(name, "counter", name, amount, labels)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Set a gauge."""
        self._check_metric(name, "gauge", labels)
        self.metrics[name, tuple(sorted(labels.items()))] = value

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """Add to a histogram."""
        self._add(name, "histogram", f"{name}_sum", value, labels)
        self._add(name, "histogram", f"{name}_count", 1.0, labels)

    def _add(self, name: str, kind: str, series: str, amount: float, labels: Mapping[str, str]) -> None:
        self._check_metric(name, kind, labels)
        key = series, tuple(sorted(labels.items()))
        self.metrics[key] = self.metrics.get(key, 0.0) + amount

    def _check_metric(self, name: str, kind: str, labels: Mapping[str, str]) -> None:
        metric = self._declared.get(name)
        if metric is not None and metric.kind == kind and metric.labels == tuple(labels):
            return
        if metric is None or metric.kind != kind or set(metric.labels) != set(labels):
            raise Bug(f"{kind} {name} with labels {sorted(labels)} was not declared so: {metric}")

    def handler_failed(self, plugin: str, error: Exception, peer: PeerRef | None = None) -> None:
        """Raise with context: the simulation stops at the first bug, also if a peer's message led to it."""
        self.world.handler_failed(self, plugin, error)

    def __repr__(self) -> str:
        return f"SimDriver({format_id(self.peer.id)}, boot {self.boot_epoch}, {self.state.name.lower()})"
