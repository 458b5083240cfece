"""The admin API's sockets: permissions, leftovers, limits, start and stop."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from peerd.api import Plugin
from peerd.client import Client, DaemonUnreachable
from peerd.config import LoadedConfig, load_config
from peerd.daemon.admin.server import LateApi, bind_unix_socket, start_admin
from peerd.daemon.http.gate import App
from peerd.errors import ConfigError
from peerd.limits import HTTP_CONNECTIONS_SPARE, HTTP_REQUESTS_MAX
from tests.support.fake_daemon import FakeDaemon


@pytest.fixture(autouse=True)
def plain_umask() -> Iterator[None]:
    """Set the usual umask, so that a mode that was forgotten would show."""
    previous = os.umask(0o022)
    yield
    os.umask(previous)


def loaded(path: Path, http: str = "") -> LoadedConfig:
    return load_config(environment={}, sets=[f"admin.socket={path}", f"admin.http={http}"])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_serves_on_the_socket_and_on_loopback_then_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run" / "admin.sock"
    server = await start_admin(FakeDaemon(loaded=loaded(path, "127.0.0.1:0")))
    assert (mode(path), mode(path.parent)) == (0o660, 0o750)
    assert server.http_port
    for address in (str(path), f"http://127.0.0.1:{server.http_port}"):
        async with Client(address) as client:
            assert (await client.status()).cluster == "peerd"
            assert (await client.metrics()).startswith("peerd_links")
    await server.stop()
    assert not path.exists()
    async with Client(path) as client:
        with pytest.raises(DaemonUnreachable, match=r"no such socket; start one with `peerd run`"):
            await client.status()


async def test_probes_leave_the_api_unloaded_and_the_first_requests_load_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[LateApi] = []
    load = LateApi._load

    def noted(late: LateApi) -> App:
        loads.append(late)
        return load(late)

    monkeypatch.setattr(LateApi, "_load", noted)
    server = await start_admin(FakeDaemon(loaded=loaded(tmp_path / "admin.sock")))
    async with Client(tmp_path / "admin.sock") as client:
        assert (await client.ready()).status == "ok" and await client.metrics()
        assert not loads
        await asyncio.gather(client.status(), client.ring(), client.peers())
    await server.stop()
    assert len(loads) == 1


async def test_without_http_there_is_no_port(tmp_path: Path) -> None:
    server = await start_admin(FakeDaemon(loaded=loaded(tmp_path / "admin.sock")))
    assert server.http_port is None
    await server.stop()


def test_a_left_over_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    bind_unix_socket(path).close()  # the file stays, as after a crash
    inode = path.stat().st_ino
    with bind_unix_socket(path):
        assert path.stat().st_ino != inode or mode(path) == 0o660


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with bind_unix_socket(path) as holder:
        holder.listen()
        with pytest.raises(ConfigError, match="another daemon answers there"):
            bind_unix_socket(path)
        assert path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is no socket"):
        bind_unix_socket(path)
    assert path.read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"admin\.socket: cannot listen there"):
        bind_unix_socket(tmp_path / "file" / "admin.sock")


async def test_a_port_in_use_is_a_configuration_error_and_the_socket_goes(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"admin.http: cannot listen on 127.0.0.1:{port}"):
            await start_admin(FakeDaemon(loaded=loaded(path, f"127.0.0.1:{port}")))
    assert not path.exists()


async def test_another_address_than_loopback_is_refused(tmp_path: Path) -> None:
    found = loaded(tmp_path / "admin.sock")
    admin = found.config.admin.model_copy(update={"http": "0.0.0.0:0"})  # past the configuration's own check
    open_wide = LoadedConfig(found.config.model_copy(update={"admin": admin}), found.origins)
    with pytest.raises(ConfigError, match="expected a loopback address"):
        await start_admin(FakeDaemon(loaded=open_wide))


async def test_stop_leaves_a_successors_socket(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    server = await start_admin(FakeDaemon(loaded=loaded(path)))
    path.unlink()
    with bind_unix_socket(path):
        await server.stop()
        assert path.exists()


class Endless(Plugin):
    """A plugin whose answer never ends."""

    name = "endless"

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[bool] = []

    @staticmethod
    def router(service: Endless) -> APIRouter:
        """One route."""
        routes = APIRouter()

        async def lines() -> AsyncIterator[bytes]:
            yield b"first\n"
            try:
                await asyncio.Event().wait()
            finally:
                service.ended.append(True)

        @routes.get("/endless")
        async def endless() -> StreamingResponse:
            return StreamingResponse(lines())

        return routes


async def test_stop_ends_streams_that_are_under_way(tmp_path: Path) -> None:
    plugin = Endless()
    server = await start_admin(FakeDaemon({"endless": plugin}, loaded=loaded(tmp_path / "admin.sock")))
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "admin.sock"))
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as http,
        http.stream("GET", "/v1/endless") as response,
    ):
        lines = response.aiter_lines()
        assert await anext(lines) == "first"
        await asyncio.wait_for(server.stop(), 30)
        assert plugin.ended == [True]


async def test_idle_connections_give_way_to_those_who_ask(tmp_path: Path) -> None:
    path, daemon = tmp_path / "admin.sock", FakeDaemon(loaded=loaded(tmp_path / "admin.sock"))
    server = await start_admin(daemon)
    idle = [await asyncio.open_unix_connection(str(path)) for _ in range(HTTP_REQUESTS_MAX + HTTP_CONNECTIONS_SPARE)]
    async with Client(path) as client:
        assert (await client.status()).is_ready
    assert await asyncio.wait_for(idle[0][0].read(), 30) == b"", "the one that had waited longest has gone"
    assert daemon.metrics.counts["admin_socket", "connections_max"] == 1
    await server.stop()
    for _, writer in idle:
        writer.close()
