"""The HTTP listeners take other settings while they are open; what is under way goes on."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from peerd.config import LoadedConfig, load_config
from peerd.errors import ConfigError
from peerd.identity.authority import ClusterAuthority, create_node_files
from tests.support.both_loops import both_loops
from tests.support.http_site import HttpSite, http_site

PAGE = {"Origin": "https://dashboard.example"}


def reload(site: HttpSite, **settings: object) -> None:
    """As the daemon does, with these settings on top of those that it has."""
    flags = {key: value for key, value, _ in site.daemon.loaded.rows() if key in KEPT}
    flags |= {key.replace("__", "."): value for key, value in settings.items()}
    loaded: LoadedConfig = load_config(environment={}, flags=flags)
    tls = site.server.load_tls(loaded.config)
    site.server.reconfigure(loaded.config, tls)
    site.daemon.loaded = loaded


KEPT = ("admin.socket", "admin.http", "data.http")


@both_loops
async def test_another_budget_of_requests(tmp_path: Path) -> None:
    async with http_site(tmp_path, data__connections_max=1) as site:
        client = site.http("data_http")
        async with client.stream("GET", "/v1/numbers/counted") as first:
            lines = first.aiter_lines()
            await anext(lines)
            assert (await client.get("/v1/numbers")).status_code == 503
            reload(site, data__connections_max=2)
            assert (await client.get("/v1/numbers")).status_code == 200
            reload(site, data__connections_max=1)
            assert (await client.get("/v1/numbers")).status_code == 503
            site.plugin.counted.push(1, 1)
            assert '"data":1' in await asyncio.wait_for(anext(lines), 30), "the stream goes on"


@both_loops
async def test_other_web_pages(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        client = site.http("data_http")
        assert (await client.get("/v1/numbers", headers=PAGE)).status_code == 403
        reload(site, data__cors_origins=[PAGE["Origin"]])
        answer = await client.get("/v1/numbers", headers=PAGE)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE["Origin"])
        reload(site)
        assert (await client.get("/v1/numbers", headers=PAGE)).status_code == 403


@both_loops
async def test_tokens_become_needed(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        client = site.http("data_http")
        assert (await client.get("/v1/numbers")).status_code == 200
        reload(site, data__tokens="required")
        assert (await client.get("/v1/numbers")).status_code == 401
        assert (await site.http("data_http", site.token("*")).get("/v1/numbers")).status_code == 200


@both_loops
async def test_other_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_site(tmp_path) as site:
        client = site.http("admin_socket")
        caller = os.geteuid()
        monkeypatch.setattr("peerd.daemon.http.admission.ROOT_USER_ID", caller + 1)
        monkeypatch.setattr(os, "geteuid", lambda: caller + 1)
        assert (await client.delete("/v1/numbers")).status_code == 403
        reload(site, admin__operators=[caller])
        assert (await client.delete("/v1/numbers")).status_code == 200


@both_loops
async def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    authority, folder = ClusterAuthority.create("web"), tmp_path / "tls"
    create_node_files(authority, folder)
    settings = {"data__tls_certificate": str(folder / "node.crt"), "data__tls_key": str(folder / "node.key")}
    async with http_site(tmp_path, **settings) as site:

        async def certificate() -> str:
            port = site.server.data_http_port or 0
            return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))

        before = await certificate()
        other = tmp_path / "other"
        create_node_files(authority, other)
        for name in ("node.crt", "node.key"):
            (folder / name).write_bytes((other / name).read_bytes())
        assert await certificate() == before
        reload(site, **settings)
        assert await certificate() != before

        (folder / "node.key").write_text("no key")
        with pytest.raises(ConfigError, match=r"data\.tls_certificate"):
            reload(site, **settings)
        assert await certificate() != before, "what cannot be used was not taken"


@both_loops
async def test_operators_listeners_keep_their_own_budget(tmp_path: Path) -> None:
    async with http_site(tmp_path) as site:
        reload(site, data__connections_max=1)
        answers = await asyncio.gather(*(site.http("admin_socket").get("/v1/status") for _ in range(5)))
        assert {answer.status_code for answer in answers} == {200}
