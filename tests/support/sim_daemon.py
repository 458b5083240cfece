"""A daemon on a node of a simulated ring: the admin API, the client and the command line see the real overlay at work.

Virtual time runs as fast as it can while somebody waits for an answer. So nothing is left to a thread: while one was
waited for, virtual time would run on, by as much as the machine is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import pytest
import structlog

from peerd.client import Client
from peerd.config import LoadedConfig, load_config
from peerd.config.reload import ReloadPlan
from peerd.daemon.admin.api import admin_app
from peerd.daemon.admin.event_feed import Record
from peerd.daemon.http.access import Access
from peerd.daemon.tasks import cancel_and_wait, spawn
from peerd.errors import Unavailable
from peerd.front import Front
from peerd.ids import NodeId
from peerd.lib.feed import Feed
from peerd.node.node import Node
from peerd.sim.simulation import Place, Simulation
from tests.support.fake_daemon import LOCAL_OPERATOR, FakeMetrics, FakeTable, answer_commands, called_by

STEP_S = 0.05

Result = TypeVar("Result")


class AtOnce(ThreadPoolExecutor):
    """Has no threads: what it is given is done when it is given."""

    def submit(self, work: Callable[..., Result], /, *arguments: Any, **named: Any) -> Future[Result]:
        """See `concurrent.futures.Executor.submit`."""
        done: Future[Result] = Future()
        try:
            done.set_result(work(*arguments, **named))
        except Exception as error:
            done.set_exception(error)
        return done


class SimLinks:
    """The links of a simulated node."""

    def __init__(self, simulation: Simulation, place: Place) -> None:
        self._simulation = simulation
        self._place = place

    def links(self) -> Sequence[object]:
        """Those that are up."""
        return [other for other in self._simulation.nodes if self.link_to(other.id)]

    def link_to(self, peer_id: NodeId) -> object | None:
        """The peer, when there is a link."""
        peer = self._simulation.find(peer_id).peer
        return peer if self._place.driver.is_linked(peer) else None

    def cut(self, nodes: frozenset[NodeId]) -> None:
        self.cut_from = nodes

    def misbehaviour(self, peer_id: NodeId) -> float:
        """Nobody misbehaves."""
        return 0.0


class SimDaemon:
    """Implements `peerd.daemon.admin.view.Subject` for one node of a simulation."""

    def __init__(self, simulation: Simulation, place: Place) -> None:
        self.simulation = simulation
        self.place = place
        self.links = SimLinks(simulation, place)
        self.metrics = FakeMetrics()
        self.loop_lag_s = 0.0
        self.uptime_s = 1.0
        self.disabled_plugins: dict[str, str] = {}
        self.events: Feed[Record] = Feed("sim.1")
        self.loaded: LoadedConfig = load_config(environment={})
        self.access = Access(FakeTable())
        self.data_addresses: list[str] = []
        self.stop_reasons: list[str] = []

    @property
    def identity(self) -> None:
        """Simulated nodes have no certificates."""

    @property
    def node(self) -> Node:
        """The node."""
        return self.place.node

    def fronts(self) -> dict[str, Front]:
        """None: it is the core's API that is looked at."""
        return {}

    async def reload(self) -> ReloadPlan:
        """It has no files."""
        raise Unavailable("this daemon was not started from configuration files")

    def drain(self, timeout_s: float) -> asyncio.Task[tuple[str, ...]]:
        """As the daemon does, without links to close."""

        async def run() -> tuple[str, ...]:
            ended: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
            self.node.drain(timeout_s, ended.set_result)
            return await ended

        return spawn(run(), name="drain")

    def request_stop(self, reason: str) -> None:
        """Noted."""
        self.stop_reasons.append(reason)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """The real client; meanwhile virtual time runs."""

        async def run() -> None:
            while True:
                self.simulation.run_for(STEP_S)
                await asyncio.sleep(0)

        asyncio.get_running_loop().set_default_executor(AtOnce())
        running = spawn(run(), name="virtual time")
        try:
            app = called_by(LOCAL_OPERATOR, admin_app(self))
            with structlog.testing.capture_logs():  # the daemon's log is not the command's output
                async with Client("/nowhere/admin.sock", transport=httpx.ASGITransport(app)) as client:
                    yield client
        finally:
            await cancel_and_wait([running])

    def answer_commands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have every command ask this daemon."""
        answer_commands(monkeypatch, self.client)
