"""Dials under way: to peers with frames waiting, to addresses whose node is unknown, for bulk streams."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from peerd.daemon.links.connection import WITHDRAWN, ConnectionOwner, PendingConnection, PendingStream
from peerd.daemon.links.link import TcpLink
from peerd.daemon.links.settings import LinkContext
from peerd.daemon.links.telemetry import LinkTelemetry
from peerd.daemon.tasks import cancel_and_wait, spawn
from peerd.driver import StreamHandler
from peerd.errors import HandshakeRefused, PeerdError, ProtocolError
from peerd.linking.channel import Channel
from peerd.linking.dial_limits import Attempt
from peerd.messages import PeerRef
from peerd.system.sockets import AddressNotAllowed, connected_socket
from peerd.wire.handshake import HandshakeResult, Purpose

FAILURES_MAX: Final = 16
"""Addresses whose last failure is remembered, for people to read."""


class DialOwner(ConnectionOwner, Protocol):
    """Gets the connections: `peerd.daemon.links.links.Links`."""

    def links(self) -> list[TcpLink]: ...

    def begin_stream(self, peer: PeerRef) -> Attempt | str:
        """Permit a stream to be dialled, or say why not."""

    def new_stream(self, peer: PeerRef, handler: StreamHandler) -> PendingStream:
        """Return the stream that a connection is dialled for."""

    def stream_dialled(self, attempt: Attempt, reason: str | None) -> None:
        """How the dial of a stream ended; ``None``: it succeeded."""

    def dial_failed(self, channel: Channel, dial: PeerDial, reason: str) -> bool:
        """A dial ended without a link; returns whether people should hear of it."""


class PeerDial:
    """`peerd.linking.channel.Dial` as a task and the connection that it makes."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.connection: PendingConnection | None = None

    @property
    def has_said_hello(self) -> bool:
        """Whether the connection has begun."""
        return self.connection is not None

    def abandon(self) -> None:
        """End the dial; a peer that counts the connection as established reads a Goodbye."""
        if self.connection is not None:
            self.connection.abandon("duplicate_link")
        if self.task is not None:
            self.task.cancel()


class Dialling:
    """Runs dials as tasks, a bounded number at a time; whether and when to dial is decided by the link policy."""

    def __init__(self, owner: DialOwner, context: LinkContext, telemetry: LinkTelemetry) -> None:
        self._owner = owner
        self._context = context
        self._telemetry = telemetry
        self._slots = asyncio.Semaphore(context.settings.dials_max)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_stopping = False
        self.failures: dict[str, str] = {}
        """Why no node answered at an address when it was last dialled; by address."""

    async def stop(self) -> None:
        """Give up every dial; nobody is told but the handlers of streams."""
        self._is_stopping = True
        await cancel_and_wait(list(self._tasks))

    def dial_peer(self, channel: Channel, delay_s: float) -> PeerDial:
        """Get a link to a peer, from ``delay_s`` on."""
        dial = PeerDial()
        dial.task = self._spawn(self._dial_peer(channel, dial, delay_s), f"dial {channel.peer}")
        return dial

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
        if self._is_stopping:  # a dial that begins now would never be ended
            asyncio.get_running_loop().call_soon(handler.closed, "stopping")
            return
        attempt = self._owner.begin_stream(peer)
        if isinstance(attempt, str):
            asyncio.get_running_loop().call_soon(handler.closed, attempt)
            return
        self._spawn(self._open_stream(attempt, handler), f"stream to {peer}")

    async def _dial_peer(self, channel: Channel, dial: PeerDial, delay_s: float) -> None:
        peer = channel.peer
        try:
            await asyncio.sleep(delay_s)
            async with self._slots:
                dial.connection = self._connection(peer, Purpose.CONTROL)
                await connect(peer.host, peer.port, self._context, dial.connection, self._permits)
        except DialFailed as error:
            self._telemetry.dialled(error.reason)
            if self._owner.dial_failed(channel, dial, error.reason):
                self._telemetry.refused(peer.id, peer.address, error.reason, error.detail)
        else:
            self._telemetry.dialled("ok")

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
        """Wait for the other connection that the peer prefers: it is up already, or about to be."""
        deadline = self._context.now() + self._context.settings.dial_timeout_s
        while self._context.now() < deadline:
            for link in self._owner.links():
                if link.peer.id == connection.certified_id or link.peer.address == connection.address:
                    return link.peer
            await asyncio.sleep(0.02)
        return None

    async def _open_stream(self, attempt: Attempt, handler: StreamHandler) -> None:
        peer = attempt.peer
        connection = self._connection(peer, Purpose.BULK, self._owner.new_stream(peer, handler))
        try:
            async with self._slots:
                await connect(peer.host, peer.port, self._context, connection, self._permits)
        except DialFailed as error:
            is_withdrawn = error.reason == WITHDRAWN
            self._owner.stream_dialled(attempt, None if is_withdrawn else error.reason)
            self._telemetry.dialled(error.reason)
            if not is_withdrawn:
                self._telemetry.refused(peer.id, peer.address, error.reason, error.detail)
            handler.closed("aborted" if is_withdrawn else error.reason)
        except asyncio.CancelledError:
            if not connection.is_established:
                handler.closed("stopping")
            raise
        else:
            self._owner.stream_dialled(attempt, None)
            self._telemetry.dialled("ok")

    def _permits(self, host: str) -> bool:
        """Whether a host that only other nodes have named may be dialled: of a name, one of its addresses."""
        return self._context.settings.allowed_hosts.permits(host)

    def _connection(self, peer: PeerRef, purpose: Purpose, stream: PendingStream | None = None) -> PendingConnection:
        return PendingConnection(
            self._owner,
            self._context,
            dialled=True,
            address=peer.address,
            purpose=purpose,
            expected_id=peer.id,
            stream=stream,
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = spawn(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)


class DialFailed(PeerdError):
    """No connection. ``reason`` is a stable label: refused, unreachable, timeout, tls, auth_rejected, ..."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


async def connect(
    host: str,
    port: int,
    context: LinkContext,
    connection: PendingConnection,
    permits: Callable[[str], bool] | None = None,
) -> HandshakeResult:
    """Bring ``connection`` to the end of its handshake. Raises `DialFailed`; then nothing is left open.

    Of the addresses of a host name only those are dialled that ``permits`` lets pass.
    """
    timeout_s, loop = context.settings.dial_timeout_s, asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s) as limit:
            sock = await connected_socket(host, port, permits)
            limit.reschedule(loop.time() + timeout_s)  # who has answered may be far away, and is not dead
            try:
                await loop.create_connection(lambda: connection, sock=sock, **tls_arguments(context))
            except BaseException:
                connection.closed_by_loop()
                raise
            limit.reschedule(loop.time() + timeout_s)
            return await connection.outcome
    except TimeoutError as error:
        if limit.expired():
            connection.refuse("timeout", "the handshake took too long")
            raise DialFailed("timeout", f"no answer within {timeout_s:g} s") from None
        raise DialFailed("unreachable", str(error)) from None  # ETIMEDOUT is a TimeoutError, too
    except (HandshakeRefused, ProtocolError) as error:
        raise DialFailed(error.reason, error.detail) from None
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
        raise failure_of(error) from None
    finally:
        if connection.outcome.done() and not connection.outcome.cancelled():
            connection.outcome.exception()  # retrieved, so that asyncio does not report it as never seen
        else:
            connection.abandon("duplicate_link")


def tls_arguments(context: LinkContext) -> dict[str, Any]:
    """What ``create_connection`` needs for TLS; no server name is sent, the certificate's id is what counts."""
    if context.tls is None:
        return {}
    return {
        "ssl": context.tls.client,
        "server_hostname": "",
        "ssl_handshake_timeout": context.settings.tls_handshake_timeout_s,
        "ssl_shutdown_timeout": context.settings.tls_shutdown_timeout_s,
    }


def failure_of(error: OSError | UnicodeError) -> DialFailed:
    """A network error as a stable reason."""
    match error:
        case ssl.SSLCertVerificationError():
            return DialFailed("bad_certificate", f"the peer's certificate: {error.verify_message}")
        case ssl.SSLError():
            return DialFailed("tls", str(error))
        case AddressNotAllowed():
            return DialFailed("not_allowed", str(error))
        case ConnectionRefusedError():
            return DialFailed("refused", str(error))
        case socket.gaierror() | UnicodeError():
            return DialFailed("name_resolution", str(error))
        case ConnectionResetError() | ConnectionAbortedError():
            return DialFailed("closed_early", "closed during the TLS handshake")
        case _:
            return DialFailed("unreachable", str(error))
