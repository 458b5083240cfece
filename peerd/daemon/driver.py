"""The asyncio driver: `peerd.driver.Driver` on sockets, the clock, workers and the disk."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from peerd.api import Files, KeyValues, Log, Metric, Priority, Rng, WorkHandle, WorkLimits
from peerd.daemon.links.buffers import allocate
from peerd.daemon.links.links import LinkEvents, Links
from peerd.daemon.links.settings import monotonic_s
from peerd.daemon.links.telemetry import LINK_METRICS, LinkTelemetry
from peerd.daemon.offload import OffloadPool
from peerd.daemon.processes import ProcessPool
from peerd.daemon.storage.log_files import Work
from peerd.daemon.supervisor import SUPERVISOR_METRICS, PluginSupervisor, SupervisedNode
from peerd.driver import Identity, StreamHandler, TimerHandle
from peerd.errors import PeerMisbehaved
from peerd.ids import NodeId
from peerd.limits import SWAP_SPILL_BYTES
from peerd.messages import PeerRef
from peerd.telemetry.sinks import EventSink
from peerd.wire.frames import Frame
from peerd.wire.handshake import PluginVersions

PROOFS_CHECKED: Final = Metric(
    "peerd_proofs_checked_total", "counter", "Proofs of what other nodes said that were checked.", ("outcome",)
)
DRIVER_METRICS: Final = (
    PROOFS_CHECKED,
    *LINK_METRICS,
    *SUPERVISOR_METRICS,
    Metric("peerd_offload_jobs", "gauge", "Jobs waiting for or running in worker threads and processes."),
)
LOG_WRITES_MAX: Final = 4096
"""Bound on writes that wait: each log has at most one under way, and there are few logs."""
FILE_JOBS_MAX: Final = 1024
"""Bound on pieces of files that wait to be read or written. More are refused, as the disk is too slow for them."""


class DriverMetrics(Protocol):
    """What the driver needs of `peerd.telemetry.metrics.PrometheusMetrics`."""

    def declare(self, metrics: Iterable[Metric]) -> None: ...
    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None: ...
    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...
    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...
    def watch(self, metrics: Sequence[Metric], read: Callable[[], Mapping[str, float]]) -> None: ...
    def watch_traffic(self, read: Callable[[], Mapping[int, Sequence[int]]]) -> None: ...


class Stores(Protocol):
    """Where plugin stores come from: `peerd.daemon.storage.state_directory.StateDirectory`."""

    @property
    def path(self) -> Path: ...
    def plugin_store(self, plugin: str) -> KeyValues: ...
    def plugin_log(self, plugin: str, name: str, work: Work) -> Log: ...
    def plugin_files(self, plugin: str, work: Work) -> Files: ...


class DrivenNode(LinkEvents, SupervisedNode, Protocol):
    """`peerd.node.node.Node` as the driver uses it, besides its start and stop."""


class AsyncioDriver:
    """Implements `peerd.driver.Driver`. Make it in a running loop; `attach` the node before links come in.

    Every upcall into the node starts from the loop, never from within one of these methods.
    """

    carries_padding = False

    def __init__(
        self,
        *,
        links: Links,
        telemetry: LinkTelemetry,
        stores: Stores,
        sink: EventSink,
        metrics: DriverMetrics,
        offload: OffloadPool,
        identity: Identity,
        spill_threshold_bytes: int = SWAP_SPILL_BYTES,
    ) -> None:
        self.links = links
        self.supervisor = PluginSupervisor(metrics)
        self._telemetry = telemetry
        self._stores = stores
        self._sink = sink
        self._metrics = metrics
        self._offload = offload
        self._identity = identity
        self.processes = ProcessPool()
        self._spill_threshold_bytes = spill_threshold_bytes
        self._log_writer: OffloadPool | None = None
        self._file_worker: OffloadPool | None = None
        self._loop = asyncio.get_running_loop()
        metrics.declare(DRIVER_METRICS)
        self.now = monotonic_s  # type: ignore[method-assign]  # the functions themselves: these two are called a lot
        self.send = links.send  # type: ignore[method-assign]  # see above

    def attach(self, node: DrivenNode) -> None:
        """Connect the node that was made with this driver."""
        self.links.attach(node)
        self.supervisor.attach(node)
        self._telemetry.attach(node.emit)

    def now(self) -> float:
        return monotonic_s()

    def wall_time(self) -> float:
        return time.time()

    def rng(self, purpose: str) -> Rng:
        """Return a new generator, whose numbers nobody outside can predict."""
        return random.Random(f"{purpose}:{secrets.token_hex(16)}")

    def send(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        self.links.send(peer, frame, priority)

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        self.links.dial(host, port, done)

    def disconnect(self, peer: PeerRef, reason: str) -> None:
        self.links.disconnect(peer, reason)

    def is_linked(self, peer: PeerRef) -> bool:
        return self.links.is_linked(peer)

    def linked_at(self, peer: PeerRef) -> float | None:
        return self.links.linked_at(peer)

    def boot_epoch_of(self, peer: PeerRef) -> int | None:
        return self.links.boot_epoch_of(peer)

    def queued_bytes(self, peer: PeerRef) -> int:
        return self.links.queued_bytes(peer)

    def introduce(self, plugins: Mapping[str, tuple[int, int]]) -> None:
        context = self.links.context
        versions = tuple(PluginVersions(name, *plugins[name]) for name in sorted(plugins))
        context.local = replace(context.local, plugins=versions)

    def introduced(self, peer: PeerRef) -> Mapping[str, tuple[int, int]] | None:
        return self.links.introduced(peer)

    def charge(self, peer: PeerRef, messages: int) -> None:
        self.links.charge(peer, messages)

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        self.links.misbehaved(peer, error)

    def sign(self, purpose: str, statement: bytes) -> bytes:
        return self._identity.sign(purpose, statement)

    def verify(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes) -> bool:
        is_valid = self._identity.verify(signer, purpose, statement, proof)
        self._metrics.count(PROOFS_CHECKED.name, 1.0, {"outcome": "valid" if is_valid else "invalid"})
        return is_valid

    def open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        self.links.open_stream(peer, handler)

    def allocate(self, size_bytes: int) -> memoryview:
        """Raises `Unavailable` when there is no room."""
        return allocate(size_bytes, spill_threshold_bytes=self._spill_threshold_bytes, directory=self._stores.path)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        return self._loop.call_later(delay_s, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def offload(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        cost_s: float,
        within: WorkLimits | None = None,
    ) -> WorkHandle:
        """``cost_s`` is ignored here, as the clock is real."""
        if within is None:
            return self._offload.submit(function, arguments, done, failed)
        return self.processes.submit(function, arguments, done, failed, within)

    def store(self, plugin: str) -> KeyValues:
        return self._stores.plugin_store(plugin)

    def log(self, plugin: str, name: str) -> Log:
        """Return a log. One thread writes for all logs, so that writing never waits for busy workers."""
        if self._log_writer is None:
            self._log_writer = OffloadPool(workers=1, queued_max=LOG_WRITES_MAX)
        return self._stores.plugin_log(plugin, name, self._log_writer.submit)

    def files(self, plugin: str) -> Files:
        """The files of a plugin. One thread of their own works for all of them, so that their order stays."""
        if self._file_worker is None:
            self._file_worker = OffloadPool(workers=1, queued_max=FILE_JOBS_MAX)
        return self._stores.plugin_files(plugin, self._file_worker.submit)

    def stop_logs(self) -> None:
        """No more writes begin; what is left is written when the state directory is closed."""
        if self._file_worker is not None:
            self._file_worker.close()
        if self._log_writer is not None:
            self._log_writer.close()

    def record(self, record: dict[str, object]) -> None:
        self._sink.write(record)

    def declare_metrics(self, metrics: tuple[Metric, ...]) -> None:
        self._metrics.declare(metrics)

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        self._metrics.count(name, amount, labels)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._metrics.gauge(name, value, labels)

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._metrics.observe(name, value, labels)

    def handler_failed(self, plugin: str, error: Exception, peer: PeerRef | None = None) -> None:
        self.supervisor.handler_failed(plugin, error, peer)
