"""A daemon without sockets: what the admin API reads of one, under the test's control."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import structlog
from fastapi import APIRouter

import peerd.client
from peerd.api import HistorySize, LeafSet, LookupResult, Metric, MissingMember, Plugin, RoutedHop
from peerd.client import Client
from peerd.config import LoadedConfig, load_config
from peerd.config.reload import ReloadPlan
from peerd.daemon.admin.api import admin_app
from peerd.daemon.admin.event_feed import Record
from peerd.daemon.http.access import Access
from peerd.daemon.http.caller import STATE_KEY, Caller
from peerd.daemon.http.gate import App, Receive, Scope, Send
from peerd.daemon.identity.manager import IdentityManager
from peerd.daemon.storage.state_table import Entry
from peerd.daemon.storage.tables import Row
from peerd.daemon.tasks import spawn
from peerd.errors import Unavailable
from peerd.front import Front
from peerd.ids import NodeId
from peerd.lib.feed import Feed
from peerd.messages import PeerRef
from peerd.node.node import Node
from peerd.overlay.config import OverlayConfig
from peerd.overlay.coordinates import Coordinate
from peerd.overlay.messages import Reached, ViewReply
from peerd.overlay.ports import OverlayHost
from peerd.overlay.state import OverlayState
from peerd.overlay.survey.walk import NodeView, Survey, WalkProgress
from peerd.plugins import usable_fronts


def peer(number: int) -> PeerRef:
    """A peer whose id begins with ``number``."""
    return PeerRef(NodeId(number << 120), "127.0.0.1", 7000 + number)


OWN = peer(0x40)
LOCAL_OPERATOR = Caller("admin_socket", user_id=os.geteuid(), process_id=os.getpid())


def answer_commands(monkeypatch: pytest.MonkeyPatch, client: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
    """Make every command use this client."""

    def run_sync(call: Callable[[Client], Coroutine[Any, Any, Any]], address: str) -> Any:
        async def run() -> Any:
            with structlog.testing.capture_logs():  # the daemon's log is not the command's output
                async with client() as connected:
                    return await call(connected)

        return asyncio.run(run())

    monkeypatch.setattr(peerd.client, "run_sync", run_sync)


def called_by(caller: Caller | None, app: App) -> App:
    """Wrap the application as that caller's listener would call it."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {STATE_KEY: caller}}, receive, send)

    return called


class RoutesOnly(Front):
    """The front of a test's own plugin, which has its routes in a static method."""

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin

    def router(self, service: Any) -> APIRouter:
        """The plugin's."""
        routes: APIRouter = self._plugin.router(service)
        return routes

    def operator_router(self, service: Any) -> APIRouter | None:
        """The plugin's, if it has one."""
        made = getattr(self._plugin, "operator_router", None)
        routes: APIRouter | None = None if made is None else made(service)
        return routes


class FakeSurvey:
    """A ring in which nobody else answers, and a peer 2 ms away."""

    def __init__(self, leaves: Callable[[], LeafSet]) -> None:
        self._leaves = leaves

    def view(self) -> ViewReply:
        """The leaf set."""
        leaves = self._leaves()
        coordinate = Coordinate(0.0, 0.0, 0.0, 1.0, 0.25)
        sides = leaves.smaller, leaves.larger
        return ViewReply(True, True, False, leaves.is_complete, leaves.covers_ring, *sides, coordinate, 17.4, False)

    def ask_view(self, asked: PeerRef, done: Callable[[ViewReply | None], None]) -> None:
        """Answer with the same view for every node."""
        done(self.view())

    def walk(self, finished: Callable[[Survey], None], progress: Callable[[WalkProgress], None]) -> object:
        """Finish at once."""
        view = self.view()
        finished(Survey(OWN.id, {OWN.id: NodeView(OWN, view)}, {other.id: other for other in view.larger}))
        return None

    def measure(
        self,
        asked: PeerRef,
        targets: Sequence[PeerRef],
        pings: int,
        done: Callable[[dict[NodeId, Reached] | str], None],
    ) -> None:
        """Answer that every node was reached."""
        done({target.id: Reached(target.id, True, 0.002) for target in targets})


class FakeOverlay:
    """A leaf set of two, and one entry of the routing table."""

    name = "overlay"
    version = 1

    def __init__(self) -> None:
        self.is_ready = True
        self.missing: tuple[MissingMember, ...] = ()
        self.outside: str | None = None
        self.forgotten: list[NodeId] = []
        self.leaves = LeafSet((peer(0x30), peer(0x50)), (peer(0x50), peer(0x60)), is_complete=True, covers_ring=False)
        clock = SimpleNamespace(id=OWN.id, rng=random.Random(1), now=lambda: 1000.0, wall_time=lambda: 1.8e9)
        self.state = OverlayState(cast(OverlayHost, clock), OverlayConfig())
        self.state.is_ready = True
        self.state.proximity.observe(peer(0x30).id, 0.001)
        self.survey = FakeSurvey(self.leaf_set)
        self.table_care = SimpleNamespace(probe_period_s=lambda: 600.0)

    def leaf_set(self) -> LeafSet:
        """As set."""
        return self.leaves

    def estimated_ring_size(self) -> float:
        """Not exact."""
        return 17.4

    def expected_members(self) -> tuple[PeerRef, ...]:
        """The leaf set, this node, and who is missing."""
        return (OWN, *self.leaves.members(), *(member.peer for member in self.missing))

    def missing_members(self) -> tuple[MissingMember, ...]:
        """As set."""
        return self.missing

    def estimated_members(self) -> float:
        """Estimate as if as many were missing everywhere."""
        return 17.4 + len(self.missing)

    @property
    def is_minority(self) -> bool:
        """As in the overlay."""
        return len(self.missing) > len(self.leaves.members()) + 1

    def outside_reason(self) -> str | None:
        """As set."""
        return self.outside

    def forget(self, node_ids: Iterable[NodeId]) -> None:
        """Noted."""
        self.forgotten += node_ids

    def table_peers(self) -> tuple[PeerRef, ...]:
        """One that is a leaf, too."""
        return (peer(0x60), peer(0xF0))


class FakeLinks:
    """One link."""

    def links(self) -> Sequence[object]:
        """One."""
        return ["link"]

    def link_to(self, peer_id: NodeId) -> object | None:
        """To 0x30."""
        return "link" if peer_id == peer(0x30).id else None

    def cut(self, nodes: frozenset[NodeId]) -> None:
        self.cut_from = nodes

    def misbehaviour(self, peer_id: NodeId) -> float:
        """The score: only 0x60 has misbehaved."""
        return 7.5 if peer_id == peer(0x60).id else 0.0


class FakeHost:
    """Answers lookups at once, with 0x50 as the root; or never."""

    def __init__(self) -> None:
        self.result: Callable[[NodeId], LookupResult] = lambda key: LookupResult(
            key, peer(0x50), (RoutedHop(peer(0x30), 0.002), RoutedHop(peer(0x50), None)), 0.003
        )

    def lookup(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float = 10.0) -> None:
        """See `Host.lookup`."""
        on_result(self.result(key))


class FakeMetrics:
    """Metrics that render as one line, and keep what is counted."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.gauges: dict[str, float] = {}

    def declare(self, metrics: Iterable[Metric]) -> None:
        """Everything is known."""

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        """By listener and reason."""
        self.counts[labels["listener"], labels["reason"]] += int(amount)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """By listener."""
        self.gauges[labels["listener"]] = value

    def render(self) -> bytes:
        """Prometheus text."""
        return b"peerd_links 1.0\n"


class FakeTable:
    """A table of the state in memory."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.is_full = False

    def load(self, parse: Callable[[Row], Entry]) -> list[Entry]:
        """As it was replaced last."""
        return [parse(row) for row in self.rows]

    def replace(self, rows: Iterable[Row]) -> None:
        """Raises `Unavailable` on a full disk."""
        if self.is_full:
            raise Unavailable("the disk is full")
        self.rows = list(rows)


@dataclass
class FakeDaemon:
    """Implements `peerd.daemon.admin.view.Subject`."""

    plugins: dict[str, Plugin] = field(default_factory=dict)
    loop_lag_s: float = 0.0
    disabled_plugins: Mapping[str, str] = field(default_factory=dict)
    uptime_s: float = 12.5
    identity: IdentityManager | None = None
    storage: FakeTable = field(default_factory=FakeTable)
    wall_s: float = 1.8e9
    data_addresses: Sequence[str] = ()
    loaded: LoadedConfig = field(default_factory=lambda: load_config(environment={}, sets=["node.cluster=blue"]))

    def __post_init__(self) -> None:
        self.events: Feed[Record] = Feed("fake.1")
        self.overlay = FakeOverlay()
        self.host = FakeHost()
        self.links = FakeLinks()
        self.metrics = FakeMetrics()
        self.access = Access(self.storage, wall_time=lambda: self.wall_s)
        self.fake_node = SimpleNamespace(
            histories=lambda: [("pubsub", HistorySize("events taken", 2, 520, 1000))],
            peer=OWN,
            overlay=self.overlay,
            hosts={"overlay": self.host},
            plugins={"overlay": self.overlay, **self.plugins},
            settings=SimpleNamespace(version="9.9", boot_epoch=77),
            is_stopped=False,
            is_ready=True,
            draining=None,
        )
        self.unfinished: tuple[str, ...] = ()
        self.stop_reasons: list[str] = []
        self.drained_with: list[float] = []
        self.reloads: ReloadPlan | Exception = ReloadPlan(self.loaded, (), ())

    @property
    def node(self) -> Node:
        """The node's part that is read."""
        return cast(Node, self.fake_node)

    def fronts(self) -> Mapping[str, Front]:
        """Those that are installed, and one for each of the test's own plugins that has a ``router``."""
        own = {name: RoutesOnly(plugin) for name, plugin in self.plugins.items() if hasattr(plugin, "router")}
        return {**usable_fronts(), **own}

    async def reload(self) -> ReloadPlan:
        """Return the plan or raise the error that the test has set."""
        if isinstance(self.reloads, Exception):
            raise self.reloads
        return self.reloads

    def drain(self, timeout_s: float) -> asyncio.Task[tuple[str, ...]]:
        """Ends a few turns of the loop later."""
        self.drained_with.append(timeout_s)
        self.fake_node.draining = ("overlay",)

        async def run() -> tuple[str, ...]:
            for _ in range(3):
                await asyncio.sleep(0)
            self.fake_node.draining, self.fake_node.is_stopped = self.unfinished, True
            self.set_ready(False)
            return self.unfinished

        return spawn(run(), name="drain")

    def request_stop(self, reason: str) -> None:
        """Noted."""
        self.stop_reasons.append(reason)

    def set_ready(self, is_ready: bool) -> None:
        """Joined, or not."""
        self.overlay.is_ready = self.fake_node.is_ready = is_ready

    def transport(self, caller: Caller | None = None, **options: Any) -> httpx.ASGITransport:
        """The admin API without a server; without a ``caller`` the requests come from somewhere over TCP."""
        return httpx.ASGITransport(called_by(caller, admin_app(self)), **options)

    def client(self) -> Client:
        """The real client on it, as the local operator."""
        return Client("/nowhere/admin.sock", transport=self.transport(LOCAL_OPERATOR, client=None))

    def http(self, **options: Any) -> httpx.AsyncClient:
        """Raw HTTP on it."""
        return httpx.AsyncClient(transport=self.transport(**options), base_url="http://localhost")
