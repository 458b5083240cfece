"""The admin HTTP API: FastAPI on uvicorn, inside the daemon's event loop.

On a unix socket (who may open it may command the daemon) and, where ``admin.http`` is set, on loopback TCP. Everything
runs on the loop, between two events of the node, so a route sees a consistent state and needs no lock. A plugin adds
routes below ``/v1`` through a static method ``router(service) -> APIRouter``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

import uvicorn
from fastapi import FastAPI, Path as PathParameter, Query, Response

from peerd.admin_models import API_PREFIX, ROUTE_KEY_LENGTH_MAX, Check, Health, Peers, Ring, Route, Settings, Status
from peerd.api import LookupResult
from peerd.config import is_loopback, split_address
from peerd.daemon import admin_view
from peerd.daemon.admin_guard import RequestGuard, add_problem_handlers
from peerd.daemon.admin_identity import identity_router
from peerd.daemon.admin_survey import survey_router
from peerd.daemon.admin_view import Subject
from peerd.daemon.sockets import listening_socket
from peerd.errors import ConfigError, Unavailable
from peerd.limits import KIB

CONNECTIONS_MAX: Final = 64
"""Connections and running requests together; above it the answer is 503."""
BACKLOG: Final = 64
KEEP_ALIVE_S: Final = 5
STOP_GRACE_S: Final = 1
"""How long answers under way may go on once the daemon stops."""
REQUEST_HEAD_BYTES_MAX: Final = 16 * KIB
ROUTE_TIMEOUT_S: Final = 10.0
SOCKET_UMASK: Final = 0o117
"""The socket becomes 0660: owner and group."""
SOCKET_DIRECTORY_MODE: Final = 0o750
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NO_STORE: Final = {"Cache-Control": "no-store"}

Key = Annotated[str, PathParameter(max_length=ROUTE_KEY_LENGTH_MAX)]


class AdminServer:
    """The listening admin API; `start_admin` makes it."""

    def __init__(self, app: FastAPI, path: Path, sockets: list[socket.socket]) -> None:
        self.path = path
        self.http_port = sockets[1].getsockname()[1] if len(sockets) > 1 else None
        """Port in use on loopback, if any."""
        self._sockets = sockets
        self._inode = path.stat().st_ino
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
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
        server = AdminServer(admin_app(daemon), path, sockets)
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


def admin_app(daemon: Subject) -> FastAPI:
    """The application without a server: tests call it directly."""
    app = FastAPI(
        title="peerd admin API",
        version=daemon.node.settings.version,
        openapi_url=f"{API_PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(RequestGuard)
    add_problem_handlers(app)
    _add_state_routes(app, daemon)
    _add_probe_routes(app, daemon)
    app.include_router(identity_router(daemon), prefix=API_PREFIX, tags=["identity"])
    app.include_router(survey_router(daemon), prefix=API_PREFIX)
    for name, plugin in sorted(daemon.node.plugins.items()):
        router = getattr(plugin, "router", None)
        if router is not None:
            app.include_router(router(LivePlugin(daemon, name)), prefix=API_PREFIX, tags=[name])
    return app


class LivePlugin:
    """Stands for a plugin by name: after a failure the node replaces the instance, and routes must use the new one."""

    def __init__(self, daemon: Subject, name: str) -> None:
        self._daemon = daemon
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if self._name in self._daemon.disabled_plugins:
            raise Unavailable(f"the plugin {self._name} is off after repeated failures; see the daemon's log")
        return getattr(self._daemon.node.plugins[self._name], attribute)


def _add_state_routes(app: FastAPI, daemon: Subject) -> None:
    @app.get(f"{API_PREFIX}/status", tags=["state"])
    async def status() -> Status:
        """The daemon in one object."""
        return admin_view.status(daemon)

    @app.get(f"{API_PREFIX}/peers", tags=["state"])
    async def peers() -> Peers:
        """Every peer that this node knows, in id order, and those that it has removed."""
        return Peers(peers=admin_view.peers(daemon), departed=admin_view.departed(daemon))

    @app.get(f"{API_PREFIX}/ring", tags=["state"])
    async def ring() -> Ring:
        """The ring as seen from here."""
        return admin_view.ring(daemon)

    @app.get(f"{API_PREFIX}/route/{{key:path}}", tags=["state"])
    async def route(key: Key) -> Route:
        """Look up the root of a key: 32 hexadecimal digits are taken as they are, any other text is hashed."""
        node_id, is_hashed = admin_view.parse_key(key)
        node = daemon.node
        if not node.is_ready:
            raise Unavailable("this node has not joined the ring yet; try again in a moment")
        found: asyncio.Future[LookupResult] = asyncio.get_running_loop().create_future()

        def finished(result: LookupResult) -> None:
            if not found.done():
                found.set_result(result)

        node.hosts[node.overlay.name].lookup(node_id, finished, ROUTE_TIMEOUT_S)
        try:
            result = await asyncio.wait_for(found, ROUTE_TIMEOUT_S + 1)
        except TimeoutError as error:
            raise Unavailable("the daemon stopped during the lookup") from error
        return admin_view.route(daemon, result, is_hashed)

    @app.get(f"{API_PREFIX}/config", tags=["state"])
    async def config() -> Settings:
        """Effective values with their origins."""
        return admin_view.settings(daemon)


def _add_probe_routes(app: FastAPI, daemon: Subject) -> None:
    def answer(response: Response, checks: list[Check], verbose: bool) -> Health:
        ok = all(check.ok for check in checks)
        response.status_code = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
        response.headers.update(NO_STORE)
        return Health(status="ok" if ok else "failing", checks=checks if verbose else [])

    @app.get("/livez", tags=["health"], responses={503: {"model": Health}})
    async def livez(response: Response) -> Health:
        """Whether the event loop keeps up; a supervisor may restart the daemon when not."""
        checks = admin_view.health(daemon).checks
        return answer(response, [check for check in checks if check.name == "event_loop"], True)

    @app.get("/readyz", tags=["health"], responses={503: {"model": Health}})
    async def readyz(response: Response) -> Health:
        """Whether the node serves: joined, leaf set complete, not stopping."""
        checks = admin_view.health(daemon).checks
        return answer(response, [check for check in checks if check.name != "plugins"], True)

    @app.get("/healthz", tags=["health"], responses={503: {"model": Health}})
    async def healthz(response: Response, verbose: Annotated[str | None, Query(max_length=8)] = None) -> Health:
        """Every check; ``?verbose`` lists them."""
        checks = admin_view.health(daemon).checks
        return answer(response, checks, verbose is not None and verbose not in ("0", "false"))

    @app.get("/metrics", tags=["health"], response_class=Response)
    async def metrics() -> Response:
        """Prometheus exposition text."""
        return Response(daemon.metrics.render(), media_type=METRICS_TYPE)
