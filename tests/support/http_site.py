"""A daemon of the test's with its HTTP listeners open, and clients of each of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from peerd.config import load_config
from peerd.daemon.admin.server import AdminServer, start_admin
from peerd.daemon.http.caller import ListenerName
from peerd.daemon.http.gate import Gate
from tests.support.fake_daemon import FakeDaemon
from tests.support.numbers_plugin import Numbers

UNFINISHED_BODY = (
    b"POST /v1/numbers/sum HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 100\r\n\r\n["
)
UNFINISHED_HEAD = b"GET /v1/numbers HTTP/1.1\r\nhost: local"


@dataclass
class HttpSite:
    """The daemon, its plugin, its listeners."""

    daemon: FakeDaemon
    plugin: Numbers
    server: AdminServer
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def ports(self) -> dict[str, int | None]:
        """The port of each listener over TCP."""
        return {"admin_http": self.server.http_port, "data_http": self.server.data_http_port}

    def http(self, listener: str, token: str = "", **options: Any) -> httpx.AsyncClient:
        """A client of "admin_socket", "admin_http", "data_socket" or "data_http"; closed with the site."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if listener in self.ports:
            client = httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{self.ports[listener]}", headers=headers, trust_env=False, **options
            )
        else:
            transport = httpx.AsyncHTTPTransport(uds=self.path(listener))
            client = httpx.AsyncClient(base_url="http://localhost", headers=headers, transport=transport, **options)
        self.stack.push_async_callback(client.aclose)
        return client

    def path(self, listener: str) -> str:
        """The path of a listener's unix socket."""
        config = self.daemon.loaded.config
        return config.admin.socket if listener == "admin_socket" else config.data_socket()

    async def connect(self, listener: str, sent: bytes = b"") -> asyncio.StreamReader:
        """A raw connection on which ``sent`` was sent; closed with the site."""
        if listener in self.ports:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[listener])
        else:
            reader, writer = await asyncio.open_unix_connection(self.path(listener))
        self.stack.callback(writer.close)
        writer.write(sent)
        await writer.drain()
        return reader

    async def running(self, listener: str, count: int) -> None:
        """Returns when that many requests are under way there."""
        front = self.server._listeners[cast(ListenerName, listener)]._config.app
        assert isinstance(front, Gate)
        await until(lambda: len(front._running) == count)

    def token(self, *scopes: str, name: str = "program", life_s: float = 3600.0) -> str:
        """Make an access token."""
        return self.daemon.access.create(name, scopes, life_s)[0]

    def refused(self, listener: str, reason: str) -> int:
        """How often a listener has refused something for this reason."""
        return self.daemon.metrics.counts[listener, reason]


@asynccontextmanager
async def http_site(path: Path, **settings: object) -> AsyncIterator[HttpSite]:
    """All four listeners, below ``path``; ``settings`` such as ``data__connections_max=4``."""
    flags: dict[str, object] = {
        "admin.socket": str(path / "admin.sock"),
        "admin.http": "127.0.0.1:0",
        "data.http": "127.0.0.1:0",
    }
    flags |= {key.replace("__", "."): value for key, value in settings.items()}
    plugin = Numbers()
    daemon = FakeDaemon({"numbers": plugin}, loaded=load_config(environment={}, flags=flags))
    server = await start_admin(daemon)
    site = HttpSite(daemon, plugin, server)
    try:
        async with site.stack:
            yield site
    finally:
        await server.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Give the loop turns until it holds; the test's time limit ends it otherwise."""
    while not condition():  # noqa: ASYNC110  # nothing announces it
        await asyncio.sleep(0)


def detail(response: httpx.Response) -> str:
    """The text of a problem document."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    return str(json.loads(response.text)["detail"])
