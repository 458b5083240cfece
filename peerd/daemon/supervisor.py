"""Replaces a plugin whose handler has raised an exception; after a few times it stays off.

A failure while a peer's message is handled also replaces the plugin, after a pause that grows. But it never counts
towards switching the plugin off: otherwise one member with the right message could switch it off on every node.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from peerd.api import Metric
from peerd.daemon.links.settings import monotonic_s
from peerd.daemon.links.telemetry import MetricSink
from peerd.daemon.memory_watch import tell_loop_of_memory
from peerd.ids import format_id
from peerd.messages import PeerRef
from peerd.telemetry.schema import Event, PluginRestarted

RESTARTS_MAX: Final = 5
RESTART_WINDOW_S: Final = 300.0
RESTART_PAUSE_S: Final = 0.1
"""The pause before the first restart. It is four times as long for each further one in the window."""
OVERLAY: Final = "overlay"
"""The overlay cannot be replaced without the node: its failures are logged, and it goes on with its state."""

SUPERVISOR_METRICS: Final = (
    Metric("peerd_handler_failures_total", "counter", "Exceptions that escaped a handler.", ("plugin",)),
    Metric("peerd_plugin_restarts_total", "counter", "Plugins started anew after a failure.", ("plugin",)),
    Metric("peerd_plugins_disabled", "gauge", "Plugins that failed too often and are off."),
)

_log = structlog.get_logger("peerd.daemon")


class SupervisedNode(Protocol):
    """The part of `peerd.node.node.Node` that replaces plugins."""

    def emit(self, event: Event) -> int: ...
    def restart_plugin(self, name: str) -> None: ...
    def disable_plugin(self, name: str) -> None: ...


class PluginSupervisor:
    """Counts failures of each plugin and restarts it with back-off. A failing plugin is off until its restart."""

    def __init__(
        self, metrics: MetricSink, now: Callable[[], float] = monotonic_s, pause_s: float = RESTART_PAUSE_S
    ) -> None:
        self.disabled: dict[str, str] = {}
        """Plugins that are off for good, and their last error."""
        self._metrics = metrics
        self._now = now
        self._pause_s = pause_s
        self._node: SupervisedNode | None = None
        self._failed_at: dict[str, deque[float]] = {}
        self._own_failed_at: dict[str, deque[float]] = {}
        """The failures that no peer's message led to: those that may switch the plugin off."""
        self._restarting: dict[str, asyncio.TimerHandle] = {}

    def attach(self, node: SupervisedNode) -> None:
        """Supervise the plugins of this node."""
        self._node = node

    def stop(self) -> None:
        """Restart nothing from now on, not even a plugin that fails while it is stopped."""
        self._node = None
        for timer in self._restarting.values():
            timer.cancel()
        self._restarting.clear()

    def handler_failed(self, plugin: str, error: Exception, peer: PeerRef | None = None) -> None:
        """Log with the traceback, count, and arrange for the restart; returns before anything changes."""
        sender = {} if peer is None else {"peer": format_id(peer.id)}
        _log.error("plugin.failed", plugin=plugin, error=repr(error), **sender, exc_info=error)
        self._metrics.count("peerd_handler_failures_total", 1.0, {"plugin": plugin})
        tell_loop_of_memory(error)
        if self._node is None or plugin == OVERLAY or plugin in self.disabled or plugin in self._restarting:
            return
        now = self._now()
        recent = _noted(self._failed_at, plugin, now)
        loop = asyncio.get_running_loop()
        loop.call_soon(self._switch_off, plugin)
        if peer is None and _noted(self._own_failed_at, plugin, now) > RESTARTS_MAX:
            self.disabled[plugin] = repr(error)
            self._metrics.gauge("peerd_plugins_disabled", float(len(self.disabled)), {})
            loop.call_soon(self._tell, plugin, error, True)
            return
        pause_s = self._pause_s * 4.0 ** (min(recent, RESTARTS_MAX) - 1)
        self._restarting[plugin] = loop.call_later(pause_s, self._restart, plugin, error)

    def _switch_off(self, plugin: str) -> None:
        if self._node is not None:
            self._node.disable_plugin(plugin)

    def _restart(self, plugin: str, cause: Exception) -> None:
        del self._restarting[plugin]
        if self._node is None:
            return
        self._metrics.count("peerd_plugin_restarts_total", 1.0, {"plugin": plugin})
        try:
            self._node.restart_plugin(plugin)
        except Exception as error:  # the boundary between plugins, as in Node: a start that fails is a failure, too
            self.handler_failed(plugin, error)
            return
        self._tell(plugin, cause, False)

    def _tell(self, plugin: str, error: Exception, disabled: bool) -> None:
        if self._node is not None:
            self._node.emit(PluginRestarted(plugin=plugin, error=repr(error)[:1000], disabled=disabled))


def _noted(failures: dict[str, deque[float]], plugin: str, now: float) -> int:
    """Add a failure; returns how many there were in the window."""
    failed_at = failures.setdefault(plugin, deque(maxlen=RESTARTS_MAX + 1))
    failed_at.append(now)
    return sum(now - at < RESTART_WINDOW_S for at in failed_at)
