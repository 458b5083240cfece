"""A daemon in this process reloads: what plugins, the service manager and those who ask at the same time hear of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from peerd.api import Plugin, PluginConfig
from peerd.config import LoadedConfig, load_config
from peerd.daemon.service import Daemon
from peerd.daemon.tasks import spawn
from peerd.errors import ConfigError, Unavailable
from peerd.quantities import Duration, setting
from tests.support.link_rig import until


class NotesConfig(PluginConfig):
    """One key of each sort."""

    patience: Duration = setting("2s", "Reloads.", reloads=True)
    folder: str = setting("", "Needs a restart.")


class Notes(Plugin):
    """Remembers what it was told."""

    name = "notes"
    Config = NotesConfig
    config: NotesConfig

    def __init__(self, config: PluginConfig | None = None) -> None:
        super().__init__(config)
        self.heard: list[float] = []

    def reconfigured(self) -> None:
        self.heard.append(self.config.patience)
        if self.config.patience == 13.0:
            raise RuntimeError("not thirteen")


class Site:
    """A daemon without TLS and the settings that it reads when it reloads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sets: dict[str, Any] = {}
        self.reads = 0
        self.may_read = threading.Event()
        self.may_read.set()

    def read(self) -> LoadedConfig:
        self.may_read.wait(20)
        self.reads += 1
        base = {
            "node.listen": "127.0.0.1:0",
            "node.state_dir": str(self.path / "state"),
            "node.profile": "local",
            "tls.mode": "off",
        }
        return load_config(environment={}, flags=base | self.sets, plugin_models={"notes": NotesConfig})

    def daemon(self, **arguments: Any) -> Daemon:
        loaded = self.read()
        table = loaded.config.protocols["notes"]
        assert isinstance(table, NotesConfig)
        return Daemon(loaded, plugins=[Notes(table)], read_again=self.read, **arguments)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with structlog.testing.capture_logs() as lines:
        yield lines


def notes(daemon: Daemon) -> Notes:
    plugin = daemon.node.plugins["notes"]
    assert isinstance(plugin, Notes)
    return plugin


async def test_a_plugin_is_told_when_a_key_of_its_own_was_applied(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.daemon() as daemon:
        site.sets = {"limits.links_max": 77}
        await daemon.reload()
        assert notes(daemon).heard == [], "nothing of its own changed"
        site.sets = {"protocols.notes.patience": "5s", "protocols.notes.folder": "/srv"}
        plan = await daemon.reload()
        assert notes(daemon).heard == [5.0]
        assert notes(daemon).config == NotesConfig(patience=5.0), "the other key waits"
        assert [change.key for change in plan.needs_restart] == ["protocols.notes.folder"]
        assert daemon.config.limits.links_max != 77, "it is not set any more"


async def test_a_plugin_that_fails_at_it_begins_anew_with_the_new_values(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.daemon() as daemon:
        before = notes(daemon)
        site.sets = {"protocols.notes.patience": "13s", "limits.links_max": 77}
        await daemon.reload()
        assert daemon.config.limits.links_max == 77, "one plugin does not keep the rest from it"
        await until(lambda: notes(daemon) is not before)
        assert notes(daemon).config.patience == 13.0


async def test_one_after_the_other_and_signals_in_between_count_once(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with site.daemon() as daemon:
        reads = site.reads
        site.may_read.clear()
        first = spawn(daemon.reload(), name="first")
        await until(lambda: daemon._reloader._turn.locked())
        for _ in range(5):
            daemon._hung_up()
        site.sets = {"limits.links_max": 99}
        site.may_read.set()
        await first
        await until(lambda: daemon._reloader._asked is None)
        await until(lambda: site.reads == reads + 2)
        async with daemon._reloader._turn:  # whoever else asked would have come first
            assert site.reads == reads + 2
            assert daemon.config.limits.links_max == 99


async def test_stopping_while_it_reads_gives_up(tmp_path: Path) -> None:
    site = Site(tmp_path)
    daemon = site.daemon()
    await daemon.start()
    site.sets = {"telemetry.sink": str(tmp_path / "events"), "limits.links_max": 99}
    site.may_read.clear()
    reload = spawn(daemon.reload(), name="reload", on_error=lambda error: None)
    await until(lambda: daemon._reloader._turn.locked())
    daemon.request_stop("test")
    site.may_read.set()
    with pytest.raises(Unavailable, match="stopping"):
        await reload
    assert daemon.config.limits.links_max != 99
    await daemon.stop()
    with pytest.raises(Unavailable):
        await daemon.reload()


async def test_a_daemon_without_files_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    async with Daemon(site.read(), plugins=[]) as daemon:
        with pytest.raises(Unavailable, match="not started from configuration files"):
            await daemon.reload()


async def test_the_service_manager_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        site = Site(tmp_path)
        async with site.daemon() as daemon:

            async def told() -> list[str]:
                return (await asyncio.to_thread(manager.recv, 4096)).decode().splitlines()

            assert await told() == ["READY=1", "STATUS=in the ring"]
            await daemon.reload()
            reloading = await told()
            assert reloading[0] == "RELOADING=1" and reloading[1].removeprefix("MONOTONIC_USEC=").isdecimal()
            assert await told() == ["READY=1", "STATUS=in the ring"]
            site.sets = {"limits.links_max": 1}
            with pytest.raises(ConfigError):
                await daemon.reload()
            assert (await told())[0] == "RELOADING=1"
            assert (await told())[0] == "READY=1"
