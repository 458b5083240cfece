"""Reading the configuration again while the daemon runs: all that can be applied is applied, or nothing is.

The steps: read and validate (`ReadAgain`), compare with what is in force (`peerd.config.reload`), open everything that
can fail (`prepare`), and only then change anything, in one turn of the event loop. Whoever asked, the log, the event
log, the metrics and the service manager all hear how it ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from peerd.api import Metric
from peerd.config import LoadedConfig
from peerd.config.reload import Change, ReloadPlan, plan_reload
from peerd.daemon.admin.subject import AdminMetrics
from peerd.daemon.tasks import spawn
from peerd.errors import ConfigError, Unavailable
from peerd.limits import EVENT_TEXT_LENGTH_MAX
from peerd.telemetry.schema import ConfigReloaded, Event

RELOAD_METRICS: Final = (
    Metric("peerd_config_last_reload_successful", "gauge", "1 when the configuration was valid as last read, else 0."),
    Metric(
        "peerd_config_last_reload_success_timestamp_seconds",
        "gauge",
        "Unix time at which a valid configuration was last read: at the start, or by a reload.",
    ),
)

ReadAgain = Callable[[], LoadedConfig]
"""Reads the same files, environment and flags as at the start. Raises `ConfigError`. Called in a thread."""
Commit = Callable[[], None]

_log = structlog.get_logger("peerd.daemon")


class Reloadable(Protocol):
    """What is needed of `peerd.daemon.service.Daemon`."""

    loaded: LoadedConfig

    @property
    def is_ending(self) -> bool:
        """Whether it has been told to stop."""

    def emit(self, event: Event) -> None:
        """Record an event of the daemon itself."""

    def reloading(self, is_reloading: bool) -> None:
        """Tell the service manager."""

    async def prepare_reload(self, plan: ReloadPlan) -> tuple[Commit, Commit]:
        """Open what the plan needs: what applies it, which cannot fail, and what gives it up. Raises `ConfigError`."""


class Reloader:
    """One reload after the other. ``read`` is ``None`` for a daemon that was not started from a command line."""

    def __init__(self, daemon: Reloadable, read: ReadAgain | None, metrics: AdminMetrics) -> None:
        self._daemon = daemon
        self._read = read
        self._metrics = metrics
        self._turn = asyncio.Lock()
        self._asked: asyncio.Task[None] | None = None
        metrics.declare(RELOAD_METRICS)
        self._succeeded()

    def ask(self) -> None:
        """Reload soon, as after a signal; asking again before it has begun changes nothing."""
        if self._asked is None:
            self._asked = spawn(self._answer(), name="reload")

    async def reload(self) -> ReloadPlan:
        """Read and apply. Raises `ConfigError` when the new configuration is wrong, `Unavailable` when stopping."""
        async with self._turn:
            self._asked = None  # later requests need a reload of their own: files read now may change after
            if self._read is None:
                raise Unavailable("this daemon was not started from configuration files")
            if self._daemon.is_ending:
                raise Unavailable("the daemon is stopping")
            self._daemon.reloading(True)
            try:
                return await self._reload(self._read)
            finally:
                self._daemon.reloading(False)

    async def _reload(self, read: ReadAgain) -> ReloadPlan:
        try:
            plan = plan_reload(self._daemon.loaded, await asyncio.to_thread(read))
            commit, give_up = await self._daemon.prepare_reload(plan)
        except ConfigError as error:
            self._failed(error)
            raise
        if self._daemon.is_ending:
            give_up()
            raise Unavailable("the daemon is stopping")
        commit()
        self._daemon.loaded = plan.loaded
        self._succeeded()
        self._tell(plan)
        return plan

    async def _answer(self) -> None:
        """Reload for a signal: nobody waits for the outcome, so it only goes to the log."""
        try:
            await self.reload()
        except ConfigError:
            pass
        except Unavailable as error:
            _log.info("config.not_reloaded", reason=str(error))

    def _failed(self, error: ConfigError) -> None:
        _log.error("config.refused", error=str(error), next="the daemon goes on with the configuration that it has")
        self._metrics.gauge("peerd_config_last_reload_successful", 0.0, {})
        self._daemon.emit(ConfigReloaded(applied="", needs_restart="", error=str(error)[:EVENT_TEXT_LENGTH_MAX]))

    def _succeeded(self) -> None:
        self._metrics.gauge("peerd_config_last_reload_successful", 1.0, {})
        self._metrics.gauge("peerd_config_last_reload_success_timestamp_seconds", time.time(), {})

    def _tell(self, plan: ReloadPlan) -> None:
        log = _log.warning if plan.needs_restart else _log.info
        told = {"conflict": plan.conflict} if plan.conflict else {}
        log("config.reloaded", applied=_texts(plan.applied), needs_restart=_texts(plan.needs_restart), **told)
        event = ConfigReloaded(applied=_keys(plan.applied), needs_restart=_keys(plan.needs_restart), error="")
        self._daemon.emit(event)


def _texts(changes: tuple[Change, ...]) -> list[str]:
    return [f"{change.key}: {change.old} -> {change.new}" for change in changes]


def _keys(changes: tuple[Change, ...]) -> str:
    return ", ".join(change.key for change in changes)[:EVENT_TEXT_LENGTH_MAX]
