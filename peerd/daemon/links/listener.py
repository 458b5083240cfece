"""The peer port: accepts connections, throttles before any costly TLS, and runs each handshake to its end."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from peerd.daemon.identity.enrolment import Enrolment, first_byte
from peerd.daemon.links.connection import ConnectionOwner, PendingConnection
from peerd.daemon.links.settings import LinkContext
from peerd.daemon.links.telemetry import LinkTelemetry
from peerd.daemon.tasks import cancel_and_wait, spawn
from peerd.errors import HandshakeRefused, ProtocolError
from peerd.lib.admission import TokenBucket
from peerd.linking.handshakes import Handshakes
from peerd.linking.join_limits import host_of
from peerd.system.sockets import format_address, tune
from peerd.wire.enrolment import PREFACE

ACCEPTS_PER_WAKE_MAX: Final = 64
"""How many connections are accepted in one loop iteration: a flood of them must not starve the links."""
DESCRIPTOR_PAUSE_S: Final = 0.5
"""How long nothing is accepted after the process ran out of file descriptors."""
_OF_THE_CONNECTION: Final = frozenset(
    {
        errno.EPERM,
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ETIMEDOUT,
    }
)
"""Errors of accept(2) that concern only the connection being accepted: the next one may succeed."""
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Accepts on one listening socket; owns and closes it. ``enrolment`` serves machines that have no certificate."""

    def __init__(
        self,
        sock: socket.socket,
        owner: ConnectionOwner,
        context: LinkContext,
        telemetry: LinkTelemetry,
        enrolment: Enrolment | None = None,
    ) -> None:
        self._socket = sock
        self._owner = owner
        self._context = context
        self._telemetry = telemetry
        self._enrolment = enrolment
        settings = context.settings
        self._bucket = TokenBucket(settings.accepts_per_second, settings.accepts_burst, context.now())
        self._handshakes: Handshakes[asyncio.Task[None]] = Handshakes()
        self._closing: dict[asyncio.Task[None], None] = {}
        """Handshakes that gave way to newer ones, until they have closed their sockets."""
        self._resume: asyncio.TimerHandle | None = None
        self._accept: Callable[[], tuple[socket.socket, Any]] = sock.accept
        """Replaced in tests of descriptor exhaustion."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port listened on."""
        name = self._socket.getsockname()
        return str(name[0]), int(name[1])

    @property
    def handshakes(self) -> int:
        """How many connections are still in their handshake."""
        return len(self._handshakes)

    def start(self) -> None:
        """Begin accepting."""
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept_waiting)

    def reconfigured(self) -> None:
        """The context has other settings."""
        settings = self._context.settings
        self._bucket.adjust(settings.accepts_per_second, settings.accepts_burst)

    def close(self) -> None:
        """Stop accepting and free the port; handshakes under way go on."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
        if self._resume is not None:
            self._resume.cancel()

    async def wait_closed(self) -> None:
        """End the handshakes under way."""
        await asyncio.sleep(0)  # the first step of each must run, or nobody closes its socket
        await cancel_and_wait([*self._handshakes, *self._closing])

    def _accept_waiting(self) -> None:
        for _ in range(ACCEPTS_PER_WAKE_MAX):
            try:
                sock, address = self._accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause()
                elif error.errno not in _OF_THE_CONNECTION:
                    raise
                return
            self._accepted(sock, format_address(address))

    def _accepted(self, sock: socket.socket, address: str) -> None:
        settings = self._context.settings
        host = host_of(address)
        if len(self._handshakes) + self._owner.sockets >= settings.sockets_max:
            reason = "sockets_max"
        elif not self._bucket.take(self._context.now()):
            reason = "accept_rate"
        else:
            sock.setblocking(False)
            tune(sock)
            task = spawn(self._serve(sock, address), name=f"accept {address}")
            self._give_way(host)
            self._handshakes.add(task, host)
            task.add_done_callback(self._handshake_ended)
            return
        sock.close()
        self._telemetry.throttled(reason)

    def _give_way(self, host: str) -> None:
        """Make room for one more from ``host``: over a limit the oldest handshake ends, which has had the most time."""
        settings = self._context.settings
        if self._handshakes.of_host(host) >= settings.transient_links_host_max:
            oldest, reason = self._handshakes.oldest_of(host), "transient_links_host_max"
        elif len(self._handshakes) >= settings.transient_links_max:
            oldest, reason = self._handshakes.oldest_of(self._handshakes.busiest_host()), "transient_links_max"
        else:
            return
        self._handshakes.discard(oldest)
        self._closing[oldest] = None
        asyncio.get_running_loop().call_soon(oldest.cancel)  # later: its first step must run to close its socket
        self._telemetry.throttled(reason)

    def _handshake_ended(self, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        self._closing.pop(task, None)

    def _pause(self) -> None:
        """Stop accepting for a while: without file descriptors every accept would fail, in a busy loop."""
        self._telemetry.throttled("file_descriptors")
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket.fileno())
        self._resume = loop.call_later(DESCRIPTOR_PAUSE_S, self.start)

    async def _serve(self, sock: socket.socket, address: str) -> None:
        if self._enrolment is None or self._context.tls is None:
            await self._handshake(sock, address, self._context.settings.tls_handshake_timeout_s)
            return
        is_newcomer: bool | None = None
        limit_s = self._context.settings.tls_handshake_timeout_s
        due_at = self._context.now() + limit_s
        try:
            async with asyncio.timeout(limit_s):
                is_newcomer = await first_byte(sock) == PREFACE[:1]
            if is_newcomer:
                await self._enrolment.serve(sock, address)
        except ProtocolError as error:
            self._telemetry.refused(None, address, error.reason, error.detail)
        except TimeoutError:
            self._telemetry.refused(None, address, "tls_timeout", "too slow before it had a certificate")
        except OSError as error:
            self._telemetry.refused(None, address, *_tls_failure(error))
        finally:
            if is_newcomer is None:
                sock.close()
        if is_newcomer is False:  # time spent before the first byte counts
            await self._handshake(sock, address, max(0.1, due_at - self._context.now()))

    async def _handshake(self, sock: socket.socket, address: str, tls_timeout_s: float) -> None:
        settings = self._context.settings
        connection = PendingConnection(self._owner, self._context, dialled=False, address=address)
        tls: dict[str, Any] = {}
        if self._context.tls is not None:
            tls = {
                "ssl": self._context.tls.server,
                "ssl_handshake_timeout": tls_timeout_s,
                "ssl_shutdown_timeout": settings.tls_shutdown_timeout_s,
            }
        try:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock, **tls)
            except BaseException:
                connection.closed_by_loop()
                raise
            await asyncio.wait([connection.outcome], timeout=settings.hello_timeout_s)
            connection.refuse("hello_timeout", f"no HELLO within {settings.hello_timeout_s:g} s")  # unless it ended
            await connection.outcome
        except (HandshakeRefused, ProtocolError) as error:
            if error.reason != "self":  # it was our own dial, which has noticed
                self._telemetry.refused(connection.certified_id, address, error.reason, error.detail)
        except OSError as error:
            self._telemetry.refused(None, address, *_tls_failure(error))
        finally:
            if connection.outcome.done() and not connection.outcome.cancelled():
                connection.outcome.exception()  # retrieved, so that asyncio does not report it
            else:
                connection.abandon("stopping")


def _tls_failure(error: OSError) -> tuple[str, str]:
    match error:
        case ssl.SSLCertVerificationError():
            return "bad_certificate", error.verify_message
        case ssl.SSLError(reason="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
            return "no_certificate", "the peer presented no certificate"
        case ssl.SSLError():
            return "tls", error.reason or str(error)
        case ConnectionAbortedError():
            return "tls_timeout", "the TLS handshake took too long"
        case _:
            return "closed_early", "closed during the TLS handshake"
