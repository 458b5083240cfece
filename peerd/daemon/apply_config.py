"""What a running daemon changes when its configuration does; docs/operating.md has the table of the keys.

A key that is marked as reloading and is read where it is used needs nothing here.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from peerd.api import PluginConfig
from peerd.config import PeerdConfig
from peerd.config.reload import ReloadPlan
from peerd.daemon.admin.event_feed import EventFeed
from peerd.daemon.event_log import limit_sink, open_sink
from peerd.daemon.identity.manager import IdentityManager
from peerd.daemon.links.links import Links
from peerd.daemon.links.listener import Listener
from peerd.daemon.links.settings import link_settings
from peerd.daemon.node_settings import bootstrap_addresses, other_addresses
from peerd.daemon.reload import Commit
from peerd.daemon.tasks import spawn
from peerd.frozen import Frozen
from peerd.node.node import Node
from peerd.system.resources import room_for
from peerd.telemetry.logs import set_level
from peerd.telemetry.sinks import EventSink


class HttpSide(Protocol):
    """The part of `peerd.daemon.admin.server.AdminServer` that is used here."""

    def load_tls(self, config: PeerdConfig) -> ssl.SSLContext | None:
        """What data clients would see of us over TCP with this configuration. Raises `ConfigError`."""

    def reconfigure(self, config: PeerdConfig, tls: ssl.SSLContext | None) -> None:
        """Work with other settings; ``tls`` is what `load_tls` made of them."""


class RunningParts(Frozen):
    """The parts of a daemon that take other settings while they run."""

    node: Node
    links: Links
    listener: Listener
    identity: IdentityManager | None
    http: HttpSide | None
    event_log: EventFeed | None
    """``None`` when the configuration does not decide its destination."""

    async def prepare(self, plan: ReloadPlan) -> tuple[Commit, Commit]:
        """Open whatever may fail. Returns what applies the plan, and what closes it all again. Raises `ConfigError`."""
        config, changed = plan.loaded.config, {change.key for change in plan.applied}
        tls, sink = None, None
        if self.http is not None:
            tls = await asyncio.to_thread(self.http.load_tls, config)
        if "telemetry.sink" in changed and self.event_log is not None:
            settings = self.node.settings
            sink = await asyncio.to_thread(open_sink, config, settings.peer, settings.boot_epoch)

        def commit() -> None:
            if "telemetry.log_level" in changed:
                set_level(config.telemetry.log_level)
            if "node.bootstrap" in changed:
                self._reseed(config)
            if self.http is not None:
                self.http.reconfigure(config, tls)
            room = room_for(config.limits.links_max, config.http_budgets())
            self.links.reconfigure(link_settings(config, room, self.node.peer))
            self.listener.reconfigured()
            tables = {name: table for name, table in config.protocols.items() if isinstance(table, PluginConfig)}
            self.node.reconfigure(config.overlay, config.swap, tables)
            self._redirect(config, sink)

        def give_up() -> None:
            if sink is not None:
                _close_soon(sink)

        return commit, give_up

    def _reseed(self, config: PeerdConfig) -> None:
        self.node.overlay.reseed(bootstrap_addresses(config, self.node.peer))
        if self.identity is not None:
            self.identity.seeds = other_addresses(config, self.node.peer)

    def _redirect(self, config: PeerdConfig, sink: EventSink | None) -> None:
        if self.event_log is None:
            return
        if sink is not None:
            _close_soon(self.event_log.redirect(sink))
        limit_sink(self.event_log.sink, config.telemetry)


def _close_soon(sink: EventSink) -> None:
    spawn(asyncio.to_thread(sink.close), name="close the event log")
