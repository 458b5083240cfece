"""The HTTP listeners of a daemon: uvicorn's protocol inside the daemon's event loop; the routes are in
`peerd.daemon.admin.api`.

Operators have a unix socket and, where ``admin.http`` is set, the routes that only read on loopback TCP. Data clients
have a unix socket and, where ``data.http`` is set, TCP, with the plugins' routes only. Each listener has its own
budget, so that none keeps another from answering. Health and metrics, which are asked for all the time, are answered
by `Gate`. FastAPI and its models take a tenth of a second to import and a seventh of the daemon's memory, so they are
loaded in a thread when the first other request comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from peerd.config import PeerdConfig, is_loopback, split_address
from peerd.daemon.admin.subject import Subject
from peerd.daemon.http.caller import ListenerName
from peerd.daemon.http.gate import App, Gate, ListenerPolicy, Receive, Scope, Send
from peerd.daemon.http.listener import HttpListener
from peerd.daemon.tasks import spawn
from peerd.errors import ConfigError
from peerd.limits import HTTP_REQUESTS_MAX
from peerd.system.resources import http_requests_room
from peerd.system.sockets import listening_socket

SOCKET_UMASK: Final = 0o117
"""With this umask a socket gets mode 0660: its owner and its group may open it."""
SOCKET_DIRECTORY_MODE: Final = 0o750
DATA_LISTENERS: Final[tuple[ListenerName, ...]] = ("data_socket", "data_http")
DATA_PROBES: Final = frozenset({"/livez", "/readyz"})

Refused = Callable[[str], None]
MakeApi = Callable[[Subject, Refused], App]


class LateApi:
    """Routes that are loaded by their first request; those that come meanwhile wait for it."""

    def __init__(self, daemon: Subject, make: Callable[[], MakeApi], refused: Refused) -> None:
        self._daemon = daemon
        self._make = make
        self._refused = refused
        self._loading: asyncio.Task[App] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._loading is None:
            self._loading = spawn(asyncio.to_thread(self._load), name="load the HTTP API")
        app = await asyncio.shield(self._loading)  # who hangs up must not end it for the others
        await app(scope, receive, send)

    def load_again(self) -> None:
        """The next request loads them anew; what is under way ends with those that it began with."""
        self._loading = None

    def _load(self) -> App:
        return self._make()(self._daemon, self._refused)


def _admin_api() -> MakeApi:
    from peerd.daemon.admin.api import admin_api

    return admin_api


def _data_api() -> MakeApi:
    from peerd.daemon.admin.api import data_api

    return data_api


class AdminServer:
    """The listeners of one daemon; `start_admin` makes it."""

    def __init__(self, daemon: Subject) -> None:
        self._daemon = daemon
        self._config = daemon.loaded.config
        self._listeners: dict[ListenerName, HttpListener] = {}
        self._gates: dict[ListenerName, Gate] = {}
        self._routes: dict[ListenerName, LateApi] = {}
        self._files: dict[Path, int] = {}

    @property
    def http_port(self) -> int | None:
        """Port in use by the operators' API over loopback TCP, if any."""
        return self._port("admin_http")

    @property
    def data_http_port(self) -> int | None:
        """Port in use by the data clients' API over TCP, if any."""
        return self._port("data_http")

    @property
    def data_addresses(self) -> list[str]:
        """Where data clients connect: a path, and host and port; whatever there is of it."""
        return [self._listeners[name].address for name in ("data_socket", "data_http") if name in self._listeners]

    def start(self) -> None:
        """Listen everywhere. Raises `ConfigError`; what was opened by then is for `stop` to close."""
        config = self._config
        self._add_unix("admin_socket", Path(config.admin.socket), "admin.socket")
        if config.admin.http:
            self._add("admin_http", _bind_tcp(config.admin.http, "admin.http", only_loopback=True))
        if path := config.data_socket():
            self._add_unix("data_socket", Path(path), "data.socket")
        if config.data.http:
            tls = _server_tls(config)
            self._add("data_http", _bind_tcp(config.data.http, "data.http", only_loopback=False), tls)
        for listener in self._listeners.values():
            listener.start()

    def load_tls(self, config: PeerdConfig) -> ssl.SSLContext | None:
        """What data clients would see of us over TCP with this configuration. Raises `ConfigError`."""
        return _server_tls(config) if "data_http" in self._listeners else None

    def reconfigure(self, config: PeerdConfig, tls: ssl.SSLContext | None) -> None:
        """Other budgets, tokens, web pages and certificate, for what comes from now on; what is under way goes on."""
        are_other_pages = config.data.cors_origins != self._config.data.cors_origins
        self._config = config
        for name, listener in self._listeners.items():
            policy = self._gates[name].policy = self._policy(name)
            listener.reconfigure(policy.requests_max, tls if name == "data_http" else None)
            if name in DATA_LISTENERS and are_other_pages:
                self._routes[name].load_again()

    async def stop(self) -> None:
        """Close all of it, answers under way after a moment of grace; removes the socket files."""
        await asyncio.gather(*(listener.stop() for listener in self._listeners.values()))
        for path, inode in self._files.items():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == inode:
                    path.unlink()

    def report(self) -> None:
        """Bring the gauges up to date."""
        for listener in self._listeners.values():
            listener.report()

    def _port(self, name: ListenerName) -> int | None:
        return self._listeners[name].port if name in self._listeners else None

    def _policy(self, name: ListenerName) -> ListenerPolicy:
        if name not in DATA_LISTENERS:
            return ListenerPolicy(name, http_requests_room(HTTP_REQUESTS_MAX))
        data, is_tcp = self._config.data, name == "data_http"
        return ListenerPolicy(
            name,
            http_requests_room(data.connections_max),
            probes=DATA_PROBES,
            tells_details=False,
            is_local=is_tcp and is_loopback(split_address(data.http)[0]) and not self._config.data_needs_token(),
            origins=frozenset(data.cors_origins),
            takes_tokens=True,
            needs_token=is_tcp and self._config.data_needs_token(),
        )

    def _add_unix(self, name: ListenerName, path: Path, key: str) -> None:
        sock = bind_unix_socket(path, key)
        self._files[path] = path.stat().st_ino
        self._add(name, sock)

    def _add(self, name: ListenerName, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        policy = self._policy(name)

        def refused(reason: str) -> None:
            self._listeners[name].refused(reason)

        routes = LateApi(self._daemon, _data_api if name in DATA_LISTENERS else _admin_api, refused)
        gate = Gate(routes, self._daemon, policy, refused=refused, before_metrics=self.report)
        self._routes[name], self._gates[name] = routes, gate
        self._listeners[name] = HttpListener(
            name, sock, gate, self._daemon.metrics, requests_max=policy.requests_max, tls=tls
        )


async def start_admin(daemon: Subject) -> AdminServer:
    """Open the listeners that the configuration asks for. Raises `ConfigError` when it cannot listen there."""
    server = AdminServer(daemon)
    try:
        server.start()
    except BaseException:
        await server.stop()
        raise
    return server


def bind_unix_socket(path: Path, key: str = "admin.socket") -> socket.socket:
    """A bound unix socket at ``path``, 0660; a directory that is missing is made (0750). ``key``: whose setting it is.

    A socket file that nobody listens on is left over from a crash, and replaced. Raises `ConfigError` when somebody
    does listen, when the file is no socket, or when the system refuses.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _closed_on_error(sock, str(path), key):
        path.parent.mkdir(mode=SOCKET_DIRECTORY_MODE, parents=True, exist_ok=True)
        _remove_stale(path, key)
        previous = os.umask(SOCKET_UMASK)  # before bind, not a chmod after it: there must be no moment of open access
        try:
            sock.bind(str(path))
        finally:
            os.umask(previous)
        sock.setblocking(False)
    return sock


@contextlib.contextmanager
def _closed_on_error(sock: socket.socket, file: str, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen there: {error.strerror}", file=file, key=key) from error
    except BaseException:
        sock.close()
        raise


def _remove_stale(path: Path, key: str) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError("is there and is no socket; it stays as it is", file=str(path), key=key)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise ConfigError("another daemon answers there; give each its own", file=str(path), key=key)


def _bind_tcp(address: str, key: str, *, only_loopback: bool) -> socket.socket:
    host, port = split_address(address)
    if only_loopback and not is_loopback(host):
        raise ConfigError("expected a loopback address: the admin API over TCP asks for no password", key=key)
    try:
        return listening_socket("127.0.0.1" if host == "localhost" else host, port)
    except OSError as error:
        hint = 'choose another port, or "" for none'
        raise ConfigError(f"cannot listen on {address}: {error.strerror}; {hint}", key=key) from error


def _server_tls(config: PeerdConfig) -> ssl.SSLContext | None:
    """What data clients see of us over TCP, if it is HTTPS. Raises `ConfigError`."""
    data = config.data
    if not data.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(data.tls_certificate, data.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        detail = f"cannot be used with data.tls_key = {data.tls_key!r}: {error}"
        raise ConfigError(detail, file=data.tls_certificate, key="data.tls_certificate") from error
    return context


def _no_password() -> str:
    """Refuses an encrypted key: a daemon has nobody whom it could ask for the password."""
    raise ValueError("the key is encrypted; give one that is not")
