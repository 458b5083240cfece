"""What the admin API needs of a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from peerd.api import Metric
from peerd.config import LoadedConfig
from peerd.config.reload import ReloadPlan
from peerd.daemon.admin.event_feed import Record
from peerd.daemon.http.access import Access
from peerd.daemon.identity.manager import IdentityManager
from peerd.front import Front
from peerd.ids import NodeId
from peerd.lib.feed import Feed
from peerd.node.node import Node


class AdminMetrics(Protocol):
    """What the admin API needs of `peerd.telemetry.metrics.PrometheusMetrics`."""

    def render(self) -> bytes: ...
    def declare(self, metrics: Iterable[Metric]) -> None: ...
    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None: ...
    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None: ...


class LinkTable(Protocol):
    """What the admin API needs of `peerd.daemon.links.links.Links`."""

    def links(self) -> Sequence[object]: ...
    def link_to(self, peer_id: NodeId) -> object | None: ...
    def misbehaviour(self, peer_id: NodeId) -> float: ...
    def cut(self, nodes: frozenset[NodeId]) -> None: ...


class Subject(Protocol):
    """What the admin API needs of `peerd.daemon.service.Daemon`."""

    @property
    def node(self) -> Node: ...
    @property
    def links(self) -> LinkTable: ...
    @property
    def loaded(self) -> LoadedConfig: ...
    @property
    def metrics(self) -> AdminMetrics: ...
    @property
    def loop_lag_s(self) -> float:
        """How late the event loop ran its last timer."""

    @property
    def disabled_plugins(self) -> Mapping[str, str]:
        """Plugins that failed too often and are off, with their last error."""

    @property
    def uptime_s(self) -> float: ...
    @property
    def events(self) -> Feed[Record]:
        """The newest events."""

    @property
    def identity(self) -> IdentityManager | None:
        """What keeps this node's identity; ``None`` without TLS."""

    @property
    def access(self) -> Access:
        """The access tokens of data clients."""

    @property
    def data_addresses(self) -> Sequence[str]:
        """Where data clients connect: a path, and host and port; whatever there is of it."""

    async def reload(self) -> ReloadPlan:
        """Read the configuration again and apply what can be applied. Raises `ConfigError`, `Unavailable`."""

    def fronts(self) -> Mapping[str, Front]:
        """The fronts of plugins, by name; asked once, when the API is loaded."""

    def drain(self, timeout_s: float) -> asyncio.Task[tuple[str, ...]]:
        """Hand over and leave the ring; the result names the plugins that had not finished."""

    def request_stop(self, reason: str) -> None:
        """Have the process end."""
