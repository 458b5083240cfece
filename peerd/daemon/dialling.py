"""Dials under way: to peers with frames waiting, to addresses whose node is unknown, for bulk streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from peerd.daemon.channel import Dial, PeerChannel
from peerd.daemon.connection import ConnectionOwner, PendingConnection
from peerd.daemon.dialler import DialFailed, backoff_s, connect
from peerd.daemon.link import Link
from peerd.daemon.link_settings import LinkContext
from peerd.daemon.link_telemetry import LinkTelemetry
from peerd.daemon.tasks import cancel_and_wait, spawn
from peerd.driver import StreamHandler
from peerd.messages import PeerRef
from peerd.wire.handshake import Purpose

FAILURES_MAX: Final = 16
"""Addresses whose last failure is remembered, for people to read."""
DUPLICATE_PATIENCE: Final = 6
"""How often a peer may refuse our dial because of its own before that counts as unreachable."""


class DialOwner(ConnectionOwner, Protocol):
    """Who wants the connections: `peerd.daemon.links.Links`."""

    def links(self) -> list[Link]: ...

    def give_up(self, channel: PeerChannel, reason: str) -> None:
        """The peer cannot be reached: drop what is queued, tell the node."""


class Dialling:
    """Runs dials as tasks, a bounded number at a time, and remembers failures in the peer's channel."""

    def __init__(self, owner: DialOwner, context: LinkContext, telemetry: LinkTelemetry) -> None:
        self._owner = owner
        self._context = context
        self._telemetry = telemetry
        self._slots = asyncio.Semaphore(context.settings.dials_max)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_stopping = False
        self.failures: dict[str, str] = {}
        """Addresses that answered with no node when they were dialled last, and why."""

    async def stop(self) -> None:
        """Give up every dial; nobody is told but the handlers of streams."""
        self._is_stopping = True
        await cancel_and_wait(list(self._tasks))

    def dial_peer(self, channel: PeerChannel) -> None:
        """Get a link to a peer, unless a dial is under way; starts when its back-off is over."""
        if channel.dial is None and not self._is_stopping:
            dial = channel.dial = Dial()
            dial.task = self._spawn(self._dial_peer(channel, dial), f"dial {channel.peer}")

    def dial_again(self, channel: PeerChannel, reason: str) -> None:
        """After a loss: at once, or for a link that keeps breaking after its back-off."""
        settings = self._context.settings
        pause_s = backoff_s(settings, channel.failures) if channel.failures else 0.0
        channel.retry_at = self._context.now() + pause_s
        channel.failures += 1
        if pause_s > settings.backoff_wait_s:
            self._owner.give_up(channel, reason)
        else:
            self.dial_peer(channel)

    def dial_address(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        """Find out who answers there; ``done`` is called later, once."""
        for link in self._owner.links():
            if (link.peer.host, link.peer.port) == (host, port):
                asyncio.get_running_loop().call_soon(done, link.peer)
                return
        if self._is_stopping:
            asyncio.get_running_loop().call_soon(done, None)
            return
        self._spawn(self._dial_address(host, port, done), f"dial {host}:{port}")

    def open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        """Open a bulk connection; the handler is told how that ended, later."""
        if self._is_stopping:  # nobody would end a dial that begins now
            asyncio.get_running_loop().call_soon(handler.closed, "stopping")
            return
        self._spawn(self._open_stream(peer, handler), f"stream to {peer}")

    async def _dial_peer(self, channel: PeerChannel, dial: Dial) -> None:
        peer = channel.peer
        failure: DialFailed | None = None
        try:
            await asyncio.sleep(max(0.0, channel.retry_at - self._context.now()))
            async with self._slots:
                dial.connection = self._connection(peer, Purpose.CONTROL)
                await connect(peer.host, peer.port, self._context, dial.connection)
        except DialFailed as error:
            failure = error
        finally:
            if channel.dial is dial:
                channel.dial = None
        channel.touched_at = self._context.now()
        self._telemetry.dialled("ok" if failure is None else failure.reason)
        if failure is not None and channel.link is None:
            self._dial_failed(channel, failure)

    def _dial_failed(self, channel: PeerChannel, failure: DialFailed) -> None:
        channel.failures += 1
        channel.retry_at = self._context.now() + backoff_s(self._context.settings, channel.failures)
        if failure.reason == "duplicate_link" and channel.failures < DUPLICATE_PATIENCE:
            if channel.outbox:
                self.dial_peer(channel)  # in case that the peer's own dial does not arrive
            return
        self._telemetry.refused(channel.peer.id, channel.peer.address, failure.reason, failure.detail)
        self._owner.give_up(channel, failure.reason)

    async def _dial_address(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        connection = PendingConnection(self._owner, self._context, dialled=True, address=f"{host}:{port}")
        try:
            async with self._slots:
                established = await connect(host, port, self._context, connection)
        except DialFailed as error:
            self._telemetry.dialled(error.reason)
            if error.reason == "duplicate_link":
                done(await self._existing_link(connection))
                return
            if error.reason == "self":  # a list of bootstrap addresses may well contain our own, by another name
                done(self._context.local.node)
                return
            self._telemetry.refused(connection.certified_id, connection.address, error.reason, error.detail)
            self._failed(f"{host}:{port}", str(error))
            done(None)
        else:
            self._telemetry.dialled("ok")
            self.failures.pop(f"{host}:{port}", None)
            done(established.peer)

    def _failed(self, address: str, why: str) -> None:
        self.failures.pop(address, None)
        self.failures[address] = why
        if len(self.failures) > FAILURES_MAX:
            del self.failures[next(iter(self.failures))]

    async def _existing_link(self, connection: PendingConnection) -> PeerRef | None:
        """The peer keeps another connection with us: it is up already, or about to be."""
        deadline = self._context.now() + self._context.settings.dial_timeout_s
        while self._context.now() < deadline:
            for link in self._owner.links():
                if link.peer.id == connection.certified_id or link.peer.address == connection.address:
                    return link.peer
            await asyncio.sleep(0.02)
        return None

    async def _open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        connection = self._connection(peer, Purpose.BULK, handler)
        try:
            async with self._slots:
                await connect(peer.host, peer.port, self._context, connection)
        except DialFailed as error:
            self._telemetry.dialled(error.reason)
            self._telemetry.refused(peer.id, peer.address, error.reason, error.detail)
            handler.closed(error.reason)
        except asyncio.CancelledError:
            if not connection.is_established:
                handler.closed("stopping")
            raise
        else:
            self._telemetry.dialled("ok")

    def _connection(self, peer: PeerRef, purpose: Purpose, handler: StreamHandler | None = None) -> PendingConnection:
        return PendingConnection(
            self._owner,
            self._context,
            dialled=True,
            address=peer.address,
            purpose=purpose,
            expected_id=peer.id,
            stream_handler=handler,
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = spawn(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
