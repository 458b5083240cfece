"""One place where the daemon takes HTTP: a listening socket with a budget of its own.

Whatever happens at one listener leaves the others alone. At most `capacity` connections are open; above it the one that
has waited longest without a request gives way to the newcomer, so that neither idle connections nor unfinished requests
keep anybody out. How many requests may be under way is `peerd.daemon.http.gate.Gate`'s to say.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any, Final, cast

from peerd.api import Metric
from peerd.daemon.admin.subject import AdminMetrics
from peerd.daemon.http.caller import Caller, ListenerName, identify
from peerd.daemon.http.gate import App
from peerd.daemon.http.protocol import BoundedProtocol, websocket_protocol
from peerd.daemon.http.uvicorn_parts import Config, ServerState
from peerd.daemon.tasks import cancel_and_wait, spawn
from peerd.lib.admission import TokenBucket
from peerd.limits import ACCEPTS_BURST, ACCEPTS_PER_SECOND, HTTP_CONNECTIONS_SPARE, KIB
from peerd.system.sockets import format_address, tune

BACKLOG: Final = 64
KEEP_ALIVE_S: Final = 5
STOP_GRACE_S: Final = 1.0
"""How long answers under way may go on once the daemon stops."""
WEBSOCKET_MESSAGE_BYTES_MAX: Final = 16 * KIB
"""Longest message from a client: the streams that there are expect none."""
TLS_HANDSHAKE_LIMIT_S: Final = 5.0
TLS_HANDSHAKES_PER_SECOND: Final = ACCEPTS_PER_SECOND
TLS_HANDSHAKES_BURST: Final = ACCEPTS_BURST
"""A handshake costs a millisecond and a half of a core, and anybody can ask for one."""
ACCEPT_PAUSE_S: Final = 0.1
"""How long to wait after a failed accept, for example when the process is out of file descriptors."""

HTTP_METRICS: Final = (
    Metric("peerd_http_connections", "gauge", "Open connections of HTTP clients.", ("listener",)),
    Metric(
        "peerd_http_refused_total",
        "counter",
        "Connections and requests of HTTP clients that were refused, by reason.",
        ("listener", "reason"),
    ),
)


def _is_failure(record: logging.LogRecord) -> bool:
    """Whether an error that uvicorn logs is one: it also reports the answers that `HttpListener.stop` cancels."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class HttpListener:
    """A bound socket that serves ``app``, until `stop`. It owns the socket."""

    def __init__(
        self,
        name: ListenerName,
        sock: socket.socket,
        app: App,
        metrics: AdminMetrics,
        *,
        requests_max: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.capacity = requests_max + HTTP_CONNECTIONS_SPARE
        self._socket = sock
        self._metrics = metrics
        self._tls = tls
        self._state = ServerState()
        self._handshakes = TokenBucket(
            TLS_HANDSHAKES_PER_SECOND, TLS_HANDSHAKES_BURST, asyncio.get_running_loop().time()
        )
        self._waiting: dict[BoundedProtocol, None] = {}
        self._opening: dict[asyncio.Task[None], None] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._config = Config(
            app,
            http=BoundedProtocol,
            ws=cast(type[asyncio.Protocol], websocket_protocol),
            ws_max_size=WEBSOCKET_MESSAGE_BYTES_MAX,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()
        # uvicorn's warnings are about what strangers send, which we count; its errors are tracebacks of our own bugs.
        errors = logging.getLogger("uvicorn.error")
        errors.setLevel(logging.ERROR)
        errors.addFilter(_is_failure)
        metrics.declare(HTTP_METRICS)

    def reconfigure(self, requests_max: int, tls: ssl.SSLContext | None) -> None:
        """Another budget and certificate for the connections that come from now on; those that are open stay."""
        self.capacity = requests_max + HTTP_CONNECTIONS_SPARE
        self._tls = tls

    @property
    def port(self) -> int:
        """Port in use, of a TCP listener."""
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """Where it listens: a path, or host and port."""
        name = self._socket.getsockname()
        return name if isinstance(name, str) else format_address(name)

    @property
    def connections(self) -> int:
        """How many are open, or being opened."""
        return len(self._state.connections) + len(self._opening)

    def start(self) -> None:
        """Accept connections."""
        self._socket.listen(BACKLOG)
        self._accepting = spawn(self._accept(), name=f"accept {self.name}")

    async def stop(self) -> None:
        """Close: new connections at once, answers under way after `STOP_GRACE_S` at most."""
        await cancel_and_wait([*([self._accepting] if self._accepting else []), *self._opening])
        self._socket.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if tasks := set(self._state.tasks):
            await asyncio.wait(tasks, timeout=STOP_GRACE_S)
            await cancel_and_wait(list(self._state.tasks))
        for connection in list(self._state.connections):
            connection.transport.abort()

    def report(self) -> None:
        """Bring the gauge up to date."""
        self._metrics.gauge("peerd_http_connections", self.connections, {"listener": self.name})

    # What connections tell

    def waits(self, connection: BoundedProtocol) -> None:
        """The connection has no request under way: it joins the end of the line of those that may have to give way."""
        self._waiting[connection] = None

    def works(self, connection: BoundedProtocol) -> None:
        """The connection has a request under way, or has ended."""
        self._waiting.pop(connection, None)

    def refused(self, reason: str) -> None:
        """Count a connection or a request that came to nothing."""
        self._metrics.count("peerd_http_refused_total", 1.0, {"listener": self.name, "reason": reason})

    # Inside

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._socket)
            except OSError:
                self.refused("accept_failed")
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self._accepted(sock, address)

    def _accepted(self, sock: socket.socket, address: Any) -> None:
        if self._tls is not None and not self._handshakes.take(asyncio.get_running_loop().time()):
            self.refused("accept_rate")
            sock.close()
            return
        if self.connections >= self.capacity and not self._make_room():
            self.refused("connections_max")
            sock.close()
            return
        try:
            caller = identify(self.name, sock, address)
        except OSError:  # it has hung up already
            sock.close()
            return
        if caller.is_tcp:
            tune(sock, may_be_slow=True)
        task = spawn(self._open(sock, caller), name=f"open {self.name}")
        self._opening[task] = None

        def opened(task: asyncio.Task[None]) -> None:
            self._opening.pop(task, None)
            if task.cancelled():  # perhaps before it began: then only this code can close the socket
                sock.close()

        task.add_done_callback(opened)

    def _make_room(self) -> bool:
        """End the connection that has waited longest for a request, or else for its TLS handshake."""
        if self._waiting:
            longest = next(iter(self._waiting))
            connection = next((waiting for waiting in self._waiting if not waiting.is_sending), longest)
            self._waiting.pop(connection)
            self._state.connections.discard(connection)
            connection.give_up("connections_max")
            return True
        if self._opening:
            task = next(iter(self._opening))
            self._opening.pop(task)
            self.refused("connections_max")
            task.cancel()
            return True
        return False

    async def _open(self, sock: socket.socket, caller: Caller) -> None:
        def protocol() -> BoundedProtocol:
            return BoundedProtocol(self, caller, config=self._config, server_state=self._state)

        limit_s = None if self._tls is None else TLS_HANDSHAKE_LIMIT_S
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, sock, ssl=self._tls, ssl_handshake_timeout=limit_s
            )
        except OSError:  # ssl.SSLError, too: the client went away, or does not speak TLS
            self.refused("tls" if self._tls is not None else "closed_early")
