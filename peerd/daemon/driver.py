"""The asyncio driver: `peerd.driver.Driver` on sockets, the clock, workers and the disk."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from peerd.api import Files, Log, Metric, Rng, Scratch, WorkHandle, WorkLimits
from peerd.daemon.links.buffers import allocate
from peerd.daemon.links.links import Links
from peerd.daemon.links.settings import monotonic_s
from peerd.daemon.links.telemetry import LINK_METRICS, LinkTelemetry
from peerd.daemon.offload import OffloadPool
from peerd.daemon.processes import ProcessPool
from peerd.daemon.storage.state_directory import StateDirectory
from peerd.daemon.supervisor import SUPERVISOR_METRICS, PluginSupervisor
from peerd.driver import Identity, TimerHandle
from peerd.ids import NodeId
from peerd.limits import SWAP_SPILL_BYTES
from peerd.node.node import Node
from peerd.telemetry.metrics import PrometheusMetrics
from peerd.telemetry.sinks import EventSink
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
        stores: StateDirectory,
        sink: EventSink,
        metrics: PrometheusMetrics,
        offload: OffloadPool,
        identity: Identity,
        spill_threshold_bytes: int = SWAP_SPILL_BYTES,
    ) -> None:
        self.links = links
        self.supervisor = PluginSupervisor(metrics)
        self._telemetry = telemetry
        self._stores = stores
        self._metrics = metrics
        self._offload = offload
        self._identity = identity
        self.processes = ProcessPool()
        self._spill_threshold_bytes = spill_threshold_bytes
        self._log_writer: OffloadPool | None = None
        self._file_worker: OffloadPool | None = None
        self._loop = asyncio.get_running_loop()
        metrics.declare(DRIVER_METRICS)
        # What another object does as `peerd.driver` says is its method itself: these are called a lot.
        self.now = monotonic_s
        self.wall_time = time.time
        self.send = links.send
        self.dial = links.dial
        self.disconnect = links.disconnect
        self.is_linked = links.is_linked
        self.linked_at = links.linked_at
        self.boot_epoch_of = links.boot_epoch_of
        self.queued_bytes = links.queued_bytes
        self.introduced = links.introduced
        self.charge = links.charge
        self.misbehaved = links.misbehaved
        self.open_stream = links.open_stream
        self.sign, self.public_key = identity.sign, identity.public_key
        self.store = stores.plugin_store
        self.record = sink.write
        self.declare_metrics = metrics.declare
        self.count = metrics.count
        self.gauge = metrics.gauge
        self.observe = metrics.observe
        self.handler_failed = self.supervisor.handler_failed

    def attach(self, node: Node) -> None:
        """Connect the node that was made with this driver."""
        self.links.attach(node)
        self.supervisor.attach(node)
        self._telemetry.attach(node.emit)

    def rng(self, purpose: str) -> Rng:
        """Return a new generator, whose numbers nobody outside can predict."""
        return random.Random(f"{purpose}:{secrets.token_hex(16)}")

    def introduce(self, plugins: Mapping[str, tuple[int, int]]) -> None:
        context = self.links.context
        versions = tuple(PluginVersions(name, *plugins[name]) for name in sorted(plugins))
        context.local = replace(context.local, plugins=versions)

    def verify(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes) -> bool:
        return self._counted(self._identity.verify(signer, purpose, statement, proof))

    def verify_by_key(self, signer: NodeId, purpose: str, statement: bytes, proof: bytes, key: bytes) -> bool:
        return self._counted(self._identity.verify_by_key(signer, purpose, statement, proof, key))

    def _counted(self, is_valid: bool) -> bool:
        self._metrics.count(PROOFS_CHECKED.name, 1.0, {"outcome": "valid" if is_valid else "invalid"})
        return is_valid

    def allocate(self, size_bytes: int) -> memoryview:
        """Raises `Unavailable` when there is no room."""
        return allocate(size_bytes, spill_threshold_bytes=self._spill_threshold_bytes, directory=self._stores.path)

    def scratch(self) -> Scratch:
        """In the state directory, where what a crash leaves behind is removed at the next start."""
        from peerd.system.scratch import DiskScratch  # few need it

        return DiskScratch(str(self._stores.path), self._spill_threshold_bytes)

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
