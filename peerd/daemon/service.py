"""The daemon: everything put together, started in order, stopped in reverse within a bound."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

import structlog

from peerd.api import Plugin
from peerd.config import LoadedConfig, PeerdConfig, split_address
from peerd.config.reload import ReloadPlan
from peerd.daemon.admin.event_feed import EventFeed, Record
from peerd.daemon.apply_config import HttpSide, RunningParts
from peerd.daemon.driver import AsyncioDriver
from peerd.daemon.event_log import open_sink
from peerd.daemon.http.access import Access
from peerd.daemon.identity.enrolment import Enrolment
from peerd.daemon.identity.manager import IdentityManager, make_issuer
from peerd.daemon.identity.telemetry import IDENTITY_METRICS, IdentityTelemetry
from peerd.daemon.links.links import Links
from peerd.daemon.links.listener import Listener
from peerd.daemon.links.settings import LinkContext, link_settings, monotonic_s
from peerd.daemon.links.telemetry import LinkTelemetry
from peerd.daemon.loop_lag import LoopLag
from peerd.daemon.loops import LoopName, run
from peerd.daemon.memory_watch import END_S, MemoryWatch
from peerd.daemon.node_settings import (
    advertised,
    bootstrap_addresses,
    load_identity,
    node_settings,
    other_addresses,
    package_version,
)
from peerd.daemon.offload import OffloadPool
from peerd.daemon.reload import Commit, ReadAgain, Reloader
from peerd.daemon.storage.state_directory import STATE_REPAIRS, StateDirectory
from peerd.daemon.storage.tables import ACCESS_TOKENS
from peerd.daemon.tasks import cancel_and_wait, spawn
from peerd.errors import ConfigError, ExitCode, Unavailable
from peerd.front import Front
from peerd.identity.statements import WithoutKeys
from peerd.ids import format_id
from peerd.lib.admission import TokenBucket
from peerd.lib.feed import Feed
from peerd.messages import PeerRef
from peerd.node.node import Node
from peerd.plugins import find_plugins, make_plugins, usable_fronts
from peerd.system.durable_files import write_atomically
from peerd.system.hangup import ignore_hangups
from peerd.system.resources import resource_snapshot, room_for
from peerd.system.sockets import BACKLOG, listening_socket
from peerd.system.systemd import ServiceManager
from peerd.telemetry.metrics import RING_METRICS, PrometheusMetrics
from peerd.telemetry.schema import Event, MetricSnapshot
from peerd.telemetry.sinks import EventSink
from peerd.wire.handshake import LocalNode

SNAPSHOT_INTERVAL_S: Final = 60.0
KNOWN_PEERS_INTERVAL_S: Final = 30.0
DRAIN_TIMEOUT_S: Final = 60.0
"""How long plugins may take to hand over, unless the request says otherwise."""
GC_THRESHOLDS: Final = (50_000, 10, 5)
"""Python looks for reference cycles this rarely. What nodes remember lives long and is in no cycle, but as often as
Python does it by default, to look through it again and again takes a sixth of the processor under load, and holds the
loop up for 100 ms and more. A request leaves no cycle behind either; what does is found after so many objects."""
READY_TIMEOUT_S: Final = 30.0
"""The service manager is told READY when the ring is joined, but after this time at the latest: the only node that
survived a power cut cannot join anything, and is up all the same."""

_log = structlog.get_logger("peerd.daemon")


class RunningListeners(HttpSide, Protocol):
    """The HTTP listeners while they run: `peerd.daemon.admin.server.AdminServer`."""

    @property
    def http_port(self) -> int | None:
        """Operators' port in use on loopback, if any."""

    @property
    def data_http_port(self) -> int | None:
        """Data clients' port in use, if any."""

    @property
    def data_addresses(self) -> Sequence[str]:
        """Where data clients connect: a path, and host and port; whatever there is of it."""

    async def stop(self) -> None: ...


StartAdmin = Callable[["Daemon"], Awaitable[RunningListeners]]


class Daemon:
    """One node on this machine. `run` is the process's life; ``async with`` or `start` and `stop` embed it.

    ``plugins``, ``fronts``: to use instead of the installed ones. ``start_admin``: what opens the admin API, if any.
    ``listening``: a bound socket to use instead of ``node.listen``, from whoever started this process. ``read_again``
    makes `reload` possible. ``announce`` is called when the node is in the ring, or is still not after a while.
    """

    node: Node
    links: Links
    driver: AsyncioDriver
    peer: PeerRef
    identity: IdentityManager | None
    access: Access
    events: Feed[Record]
    """The newest events, for whoever follows them."""

    def __init__(
        self,
        loaded: LoadedConfig,
        *,
        plugins: Sequence[Plugin] | None = None,
        fronts: Mapping[str, Front] | None = None,
        start_admin: StartAdmin | None = None,
        sink: EventSink | None = None,
        listening: socket.socket | None = None,
        snapshot_interval_s: float = SNAPSHOT_INTERVAL_S,
        read_again: ReadAgain | None = None,
        announce: Callable[[Daemon], None] = lambda daemon: None,
    ) -> None:
        self.loaded = loaded
        self.metrics = PrometheusMetrics(version=package_version())
        self.exit_code = ExitCode.OK
        self._plugins = plugins
        self._fronts = fronts
        self._start_admin = start_admin
        self._admin: RunningListeners | None = None
        self._sink = sink
        self._listening = listening
        self._snapshot_interval_s = snapshot_interval_s
        self._announce = announce
        self._manager = ServiceManager()
        self._status = ""
        self._reloader = Reloader(self, read_again, self.metrics)
        self._is_up = False
        self._has_terminal = sys.stderr.isatty()
        self._lag = LoopLag()
        self._started_at = monotonic_s()
        self._ending: list[Callable[[], Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._known: tuple[PeerRef, ...] = ()
        self._is_save_failing = False
        self._stop_requested = asyncio.Event()
        self._stop_reason = "stopped"
        self._is_hurried = False
        self._has_left = False
        self._drain: asyncio.Task[tuple[str, ...]] | None = None
        self._loop_errors = TokenBucket(1.0, 20.0, self._started_at)
        self._memory = MemoryWatch(self._out_of_memory)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # What the admin API reads

    @property
    def config(self) -> PeerdConfig:
        """The configuration in force."""
        return self.loaded.config

    @property
    def loop_lag_s(self) -> float:
        """How late the event loop ran its last timer."""
        return self._lag.last_s

    @property
    def disabled_plugins(self) -> dict[str, str]:
        """Plugins that failed too often and are off, with their last error."""
        return dict(self.driver.supervisor.disabled)

    @property
    def uptime_s(self) -> float:
        """Seconds since this daemon was made."""
        return monotonic_s() - self._started_at

    @property
    def data_addresses(self) -> Sequence[str]:
        """Where data clients connect: a path, and host and port; whatever there is of it."""
        return () if self._admin is None else self._admin.data_addresses

    @property
    def http_port(self) -> int | None:
        """Operators' port in use on loopback, if any."""
        return None if self._admin is None else self._admin.http_port

    def fronts(self) -> Mapping[str, Front]:
        """The fronts of plugins. One that cannot be used is told of in the log; the others work."""
        if self._fronts is not None:
            return self._fronts
        return usable_fronts(lambda error: _log.warning("front.unusable", error=str(error)))

    def drain(self, timeout_s: float) -> asyncio.Task[tuple[str, ...]]:
        """Hand over, leave the ring and close every link; the process stays, drained, until it is stopped.

        The result is the names of plugins that had not handed over in time. A second call joins the first.
        """
        if self._drain is None:
            _log.info("node.draining", timeout_s=timeout_s)
            self._tell_status("draining")
            self._drain = spawn(self._hand_over_and_leave(timeout_s), name="drain")
        return self._drain

    async def reload(self) -> ReloadPlan:
        """Read the configuration again and apply what can be applied. Raises `ConfigError`, `Unavailable`."""
        return await self._reloader.reload()

    # Life

    async def run(self) -> ExitCode:
        """Start, serve until TERM, INT or a fatal condition, stop; a second signal stops at once. HUP reloads."""
        loop = asyncio.get_running_loop()
        early = asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, early.set)
        await self.start()
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        if early.is_set():
            self._hung_up()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGUSR2, self.drain, DRAIN_TIMEOUT_S)
        try:
            await self._stop_requested.wait()
        finally:
            await self.stop(self._stop_reason)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            loop.remove_signal_handler(signal.SIGUSR2)
            loop.remove_signal_handler(signal.SIGHUP)
            ignore_hangups()  # a HUP from here on must not end the process before it has stopped in order
        return self.exit_code

    async def start(self) -> None:
        """Bring the node up; joining the ring goes on afterwards. Raises `ConfigError`, `Unavailable`, ``OSError``.

        When it raises, what was opened is closed again.
        """
        try:
            state = self._open_state()
            self._build(state)
            self._serve(state)
            if self._start_admin is not None:
                self._admin = await self._start_admin(self)
            self._write_ports_file()
            self._is_up = True
        except BaseException:
            await self.stop("failed to start")
            raise

    def request_stop(self, reason: str, exit_code: ExitCode = ExitCode.OK) -> None:
        """Make `run` end."""
        if not self._stop_requested.is_set():
            self._stop_reason, self.exit_code = reason, exit_code
            self._stop_requested.set()

    async def stop(self, reason: str = "stopped") -> None:
        """Leave the ring, flush, close everything, within ``node.shutdown_timeout``. Harmless when repeated."""
        if not self._ending:
            return
        ending, self._ending = self._ending, []
        self._manager.notify("STOPPING=1", f"STATUS={reason}")
        await cancel_and_wait(self._tasks)
        if self._admin is not None:
            self.events.end("daemon stopping")
            self.node.let_clients_go("daemon stopping")
            await self._admin.stop()
            self._admin = None
        if self._drain is not None:  # `_leave` does what the drain has not done in time
            limit_s = 0.0 if self._is_hurried else self.config.node.shutdown_timeout / 2
            await asyncio.wait({self._drain}, timeout=limit_s)
            await cancel_and_wait([self._drain])
        if hasattr(self, "node") and not self._has_left:
            await self._leave(reason)
        for close in reversed(ending):
            result = close()
            if asyncio.iscoroutine(result):
                await result
        _log.info("node.stopped", reason=reason)

    # Reloading (`peerd.daemon.reload.Reloadable`)

    @property
    def is_ending(self) -> bool:
        """Whether it has been told to stop, or does not run yet."""
        return self._stop_requested.is_set() or not self._ending or not self._is_up

    def emit(self, event: Event) -> None:
        """Record an event that nothing in the node caused, and that causes nothing there."""
        self.node.cause = None
        self.node.emit(event)
        self.node.cause = None

    def reloading(self, is_reloading: bool) -> None:
        """Tell the service manager, unless it still waits to hear that the daemon is ready."""
        if self._status and is_reloading:
            self._manager.reloading()
        elif self._status:
            self._tell_status(self._status, "READY=1")

    async def prepare_reload(self, plan: ReloadPlan) -> tuple[Commit, Commit]:
        """See `peerd.daemon.apply_config`."""
        event_log = self._event_feed if self._sink is None else None
        parts = RunningParts(self.node, self.links, self._listener, self.identity, self._admin, event_log)
        return await parts.prepare(plan)

    # Inside: start

    def _open_state(self) -> StateDirectory:
        state = StateDirectory(Path(self.config.node.state_dir))
        self._ending.append(state.close)
        return state

    def _build(self, state: StateDirectory) -> None:
        config, now = self.config, monotonic_s
        identity = load_identity(config)
        epoch = state.boot_epoch()
        sock = self._listen()
        self._ending.append(sock.close)
        self.peer = advertised(config, identity.node_id, sock.getsockname()[:2])
        room = room_for(config.limits.links_max, config.http_budgets())
        settings = link_settings(config, room, self.peer)
        plugins = self._make_plugins()
        context = LinkContext(LocalNode(self.peer, config.node.cluster, epoch), settings, identity.tls)
        telemetry = LinkTelemetry(self.metrics, now)
        self.links = Links(context, telemetry)
        self.links.on_duplicate_identity = self._duplicate
        self._offload = OffloadPool()
        self.access = Access(state.table(ACCESS_TOKENS))
        self.identity = self._make_keeper(state) if identity.tls is not None else None
        enrolment = Enrolment(self.identity, context) if self.identity is not None else None
        self._listener = Listener(sock, self.links, context, telemetry, enrolment)
        sink = self._open_sink(epoch)
        self.driver = AsyncioDriver(
            links=self.links,
            telemetry=telemetry,
            stores=state,
            sink=sink,
            metrics=self.metrics,
            offload=self._offload,
            identity=WithoutKeys() if self.identity is None else self.identity.statements,
            spill_threshold_bytes=config.swap.spill_bytes,
        )
        self.node = Node(self.driver, node_settings(config, self.peer, epoch), plugins)
        self.driver.attach(self.node)
        if self.identity is not None:
            self.identity.telemetry.attach(self.node.emit)
        self.metrics.watch(RING_METRICS, self._ring_numbers)
        self.metrics.watch_traffic(lambda: self.node.traffic)

    def _make_keeper(self, state: StateDirectory) -> IdentityManager:
        self.metrics.declare(IDENTITY_METRICS)
        return IdentityManager(
            own=self.peer,
            cluster=self.config.node.cluster,
            files=self.config.tls_files(),
            state=state,
            links=self.links,
            issuer=make_issuer(self.config, state),
            telemetry=IdentityTelemetry(self.metrics),
            offload=self._offload.submit,
            seeds=other_addresses(self.config, self.peer),
            neighbours=lambda: self.node.overlay.known_peers(),
        )

    def _listen(self) -> socket.socket:
        host, port = split_address(self.config.node.listen)
        try:
            if self._listening is None:
                return listening_socket(host, port)
            self._listening.setblocking(False)
            self._listening.listen(BACKLOG)
            return self._listening
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.config.node.listen}: {error}", key="node.listen") from error

    def _make_plugins(self) -> list[Plugin]:
        if self._plugins is not None:
            return list(self._plugins)
        return make_plugins(find_plugins(), self.config.protocols)

    def _open_sink(self, epoch: int) -> EventSink:
        inner = open_sink(self.config, self.peer, epoch) if self._sink is None else self._sink
        self._event_feed = sink = EventFeed(inner, self.peer.id, epoch)
        self.events = sink.feed
        self._ending.append(lambda: asyncio.to_thread(sink.close))
        return sink

    def _serve(self, state: StateDirectory) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_failed)
        self._lag.start()
        self._ending += [self._lag.stop, self._offload.close, self.driver.processes.close]
        self._ending += [self.driver.stop_logs, self.driver.supervisor.stop]
        self._state = state
        self.links.start()
        self._listener.start()
        known = [peer for peer in state.load_known_peers() if peer.id != self.peer.id]
        self.node.start(bootstrap_addresses(self.config, self.peer), known)
        if state.closed_off:
            _log.warning("state.was_open", detail=state.closed_off)
        for warning in state.warnings:
            _log.warning("state.damaged", detail=warning)
        self.metrics.declare((STATE_REPAIRS,))
        self.metrics.gauge(STATE_REPAIRS.name, len(state.warnings), {})
        self._manager.start_watchdog()
        self._ending.append(self._manager.stop_watchdog)
        self._tasks = [
            spawn(self._tell_ready(), name="tell ready"),
            spawn(self._save_known_peers(), name="save known peers"),
            spawn(self._snapshots(), name="snapshots"),
        ]
        if self.identity is not None:
            self.identity.watch_denials(self.node.overlay.deny)
            self._tasks.append(spawn(self.identity.run(), name="identity"))
            self._ending.append(self.identity.stop)
        _log.info("node.started", node=format_id(self.peer.id), address=self.peer.address)

    def _write_ports_file(self) -> None:
        if self.config.node.ports_file:
            ports = {
                "pid": os.getpid(),
                "id": format_id(self.peer.id),
                "peer": self.peer.address,
                "admin_socket": self.config.admin.socket,
                "admin_http_port": self._admin.http_port if self._admin is not None else None,
                "data_socket": self.config.data_socket() if self._admin is not None else "",
                "data_http_port": self._admin.data_http_port if self._admin is not None else None,
            }
            write_atomically(Path(self.config.node.ports_file), json.dumps(ports).encode() + b"\n", 0o644)

    # Inside: meanwhile

    async def _tell_ready(self) -> None:
        deadline = monotonic_s() + READY_TIMEOUT_S
        while not self.node.is_ready and monotonic_s() < deadline:  # noqa: ASYNC110  # the node is sans-IO: no event
            await asyncio.sleep(0.05)
        status = "in the ring" if self.node.is_ready else "still joining the ring"
        if not self.node.is_ready:
            seeds = self.links.dial_failures
            _log.warning("node.not_joined", after_s=READY_TIMEOUT_S, seeds=seeds, next="still trying")
        self._tell_status(status, "READY=1")
        self._announce(self)

    def _tell_status(self, status: str, *more: str) -> None:
        """Have the service manager show a status line."""
        self._status = status
        self._manager.notify(*more, f"STATUS={status}")

    async def _save_known_peers(self) -> None:
        while True:
            await asyncio.sleep(KNOWN_PEERS_INTERVAL_S)
            known = self.node.overlay.known_peers()
            if known and known != self._known:
                self._known = known
                self._offload.submit(self._state.save_known_peers, (known,), self._saved, self._save_failed)

    def _save_failed(self, error: BaseException) -> None:
        self._known = ()
        if not self._is_save_failing:  # a full disk is told once, not every half minute
            _log.warning("state.not_saved", error=str(error))
        self._is_save_failing = True

    def _saved(self, result: Any) -> None:
        self._is_save_failing = False

    async def _snapshots(self) -> None:
        while True:
            await asyncio.sleep(self._snapshot_interval_s)
            self.emit(resource_snapshot(len(self.links), self._lag.take_max_s()))
            self.node.snapshot_traffic()
            self._tell_metrics()

    def _tell_metrics(self) -> None:
        for metric, labels, value in self.metrics.changed():
            self.emit(MetricSnapshot(metric=metric, labels=labels, value=value))

    def _ring_numbers(self) -> dict[str, float]:
        overlay = self.node.overlay
        jobs = self._offload.outstanding + self.driver.processes.outstanding
        self.metrics.gauge("peerd_offload_jobs", jobs, {})
        return {
            "peerd_ring_ready": float(self.node.is_ready),
            "peerd_ring_estimated_nodes": overlay.estimated_ring_size(),
            "peerd_members_expected": overlay.estimated_members(),
            "peerd_members_missing": float(len(overlay.missing_members())),
            "peerd_leaf_set_members": float(len(overlay.leaf_set().members())),
            "peerd_links": float(len(self.links)),
            "peerd_event_loop_lag_seconds": self._lag.last_s,
        }

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what no task or callback caught: a bug of ours. At a bounded rate, as it may repeat itself."""
        if self._loop_errors.take(monotonic_s()):
            error = context.get("exception")
            _log.error("loop.failed", message=str(context.get("message")), error=repr(error), exc_info=error)
        self._memory.failed(context.get("exception"), monotonic_s())

    def _out_of_memory(self) -> None:
        asyncio.get_running_loop().call_later(END_S, os._exit, int(ExitCode.FAILURE))
        _log.critical("node.out_of_memory")
        self.request_stop("out of memory", ExitCode.FAILURE)

    # Inside: stop

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop_requested.is_set():
            self._is_hurried = True
            if hasattr(self, "node"):
                self.node.stop(self._stop_reason)
                self.links.abort_all("stopping")
        self.request_stop(f"signal {number.name}")

    def _hung_up(self) -> None:
        """Handle HUP: an operator changed the configuration, or the terminal that started this daemon has closed."""
        if self._has_terminal and not sys.stderr.isatty():
            self.request_stop("the terminal was closed")
        else:
            self._reloader.ask()

    def _duplicate(self, detail: str) -> None:
        if not self._stop_requested.is_set():
            _log.error("node.duplicate_identity", node=format_id(self.peer.id), detail=detail)
        self.request_stop("duplicate identity", ExitCode.DUPLICATE_IDENTITY)

    async def _hand_over_and_leave(self, timeout_s: float) -> tuple[str, ...]:
        unfinished = await self._hand_over(timeout_s, "drained")
        await self._leave("drained")
        self._tell_status("drained")
        _log.info("node.drained", unfinished=list(unfinished))
        return unfinished

    async def _hand_over(self, timeout_s: float, reason: str) -> tuple[str, ...]:
        """Have the plugins hand over; returns the names of those that were not done in time."""
        ended: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()

        def done(unfinished: tuple[str, ...]) -> None:
            if not ended.done():
                ended.set_result(unfinished)

        self.node.drain(timeout_s, done, reason)
        return await ended

    async def _leave(self, reason: str) -> None:
        """Leave the ring, whatever was handed over before. Called once, or twice if a drain was cut short."""
        limit_s = 0.0 if self._is_hurried else self.config.node.shutdown_timeout
        until = monotonic_s() + limit_s
        known = self.node.overlay.known_peers()
        if self.node.is_ready and limit_s:  # unless a drain was cut short, which has used the time
            await self._hand_over(limit_s / 2, reason)
        self.driver.supervisor.stop()
        if not self.node.is_stopped:
            self._tell_metrics()
        self.node.stop(reason)
        self._listener.close()
        await self._listener.wait_closed()
        await self.links.stop(max(0.0, until - monotonic_s()))
        self._has_left = True
        if known:
            try:
                self._state.save_known_peers(known)
            except Unavailable as error:
                self._save_failed(error)


def serve(
    loaded: LoadedConfig,
    *,
    loop: LoopName = "auto",
    listening: socket.socket | None = None,
    read_again: ReadAgain | None = None,
    announce: Callable[[Daemon], None] = lambda daemon: None,
) -> ExitCode:
    """The whole life of a daemon process, admin API included. Raises `ConfigError` when it cannot start."""
    from peerd.daemon.admin.server import start_admin  # FastAPI takes a while to import, and embedders may not want it

    async def main() -> ExitCode:
        daemon = Daemon(loaded, start_admin=start_admin, listening=listening, read_again=read_again, announce=announce)
        return await daemon.run()

    ignore_hangups()  # until the daemon handles the signal
    gc.freeze()  # what is loaded stays: collections need not go through it, which would hold the loop up for 20 ms
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    return run(main(), loop=loop)
