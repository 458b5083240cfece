"""The admin HTTP API: uvicorn inside the daemon's event loop; the routes are in `peerd.daemon.admin_api`.

On a unix socket (who may open it may command the daemon) and, where ``admin.http`` is set, on loopback TCP. What is
asked all the time (health, metrics) is answered by `Front`. FastAPI and its models are a tenth of a second to import
and a seventh of the daemon's memory, so they are loaded in a thread when the first other request comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from pathlib import Path
from typing import Final

import uvicorn

from peerd.config import is_loopback, split_address
from peerd.daemon.admin_front import App, Front, Receive, Scope, Send
from peerd.daemon.admin_subject import Subject
from peerd.daemon.http_connection import MESSAGE_BYTES_MAX, WEBSOCKETS, HttpConnection
from peerd.daemon.sockets import listening_socket
from peerd.daemon.tasks import spawn
from peerd.errors import ConfigError
from peerd.limits import KIB

CONNECTIONS_MAX: Final = 64
"""Connections and running requests together; above it the answer is 503."""
BACKLOG: Final = 64
KEEP_ALIVE_S: Final = 5
STOP_GRACE_S: Final = 1
"""How long answers under way may go on once the daemon stops."""
REQUEST_HEAD_BYTES_MAX: Final = 16 * KIB
SOCKET_UMASK: Final = 0o117
"""The socket becomes 0660: owner and group."""
SOCKET_DIRECTORY_MODE: Final = 0o750


class LateApi:
    """The API's application, loaded by its first request; those that come meanwhile wait for it."""

    def __init__(self, daemon: Subject) -> None:
        self._daemon = daemon
        self._loading: asyncio.Task[App] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._loading is None:
            self._loading = spawn(asyncio.to_thread(self._load), name="load the admin API")
        app = await asyncio.shield(self._loading)  # who hangs up must not end it for the others
        await app(scope, receive, send)

    def _load(self) -> App:
        from peerd.daemon.admin_api import api

        return api(self._daemon)


class AdminServer:
    """The listening admin API; `start_admin` makes it."""

    def __init__(self, app: App, path: Path, sockets: list[socket.socket]) -> None:
        self.path = path
        self.http_port = sockets[1].getsockname()[1] if len(sockets) > 1 else None
        """Port in use on loopback, if any."""
        self._sockets = sockets
        self._inode = path.stat().st_ino
        config = uvicorn.Config(
            app,
            http=HttpConnection,
            ws=WEBSOCKETS,
            ws_max_size=MESSAGE_BYTES_MAX,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_GRACE_S,
            h11_max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX,
        )
        config.load()
        # It says "Shutting down" and the like, of the server alone: misleading in a daemon's log.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        # Neither `serve` nor its main loop: signals are the daemon's, and a tick ten times a second costs at rest.
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)

    async def start(self) -> None:
        """Accept requests."""
        await self._server.startup(self._sockets)

    async def stop(self) -> None:
        """Close: new connections at once, answers under way after `STOP_GRACE_S` at most. Removes the socket file."""
        await self._server.shutdown(self._sockets)
        if tasks := set(self._server.server_state.tasks):  # cancelled by now; let them end before the loop does
            await asyncio.wait(tasks, timeout=STOP_GRACE_S)
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()


async def start_admin(daemon: Subject) -> AdminServer:
    """Open the admin API that the configuration asks for. Raises `ConfigError` when it cannot listen there."""
    settings = daemon.loaded.config.admin
    path = Path(settings.socket)
    sockets = [bind_unix_socket(path)]
    try:
        if settings.http:
            sockets.append(_bind_loopback(settings.http))
        server = AdminServer(Front(LateApi(daemon), daemon), path, sockets)
        await server.start()
    except BaseException:
        for sock in sockets:
            sock.close()
        path.unlink(missing_ok=True)
        raise
    return server


def bind_unix_socket(path: Path) -> socket.socket:
    """A bound unix socket at ``path``, 0660; a directory that is missing is made (0750).

    A socket file that nobody listens on is left over from a crash, and replaced. Raises `ConfigError` when somebody
    does listen, when the file is no socket, or when the system refuses.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=SOCKET_DIRECTORY_MODE, parents=True, exist_ok=True)
        _remove_stale(path)
        previous = os.umask(SOCKET_UMASK)  # before bind, not a chmod after it: there must be no moment of open access
        try:
            sock.bind(str(path))
        finally:
            os.umask(previous)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen there: {error.strerror}", file=str(path), key="admin.socket") from error
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError("is there and is no socket; it stays as it is", file=str(path), key="admin.socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise ConfigError("another daemon answers there; give each its own", file=str(path), key="admin.socket")


def _bind_loopback(address: str) -> socket.socket:
    host, port = split_address(address)
    if not is_loopback(host):
        raise ConfigError("expected a loopback address: the admin API over TCP asks for no password", key="admin.http")
    try:
        return listening_socket("127.0.0.1" if host == "localhost" else host, port)
    except OSError as error:
        hint = 'choose another port, or "" for none'
        raise ConfigError(f"cannot listen on {address}: {error.strerror}; {hint}", key="admin.http") from error
