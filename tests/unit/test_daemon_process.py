"""Around the node: the service manager, loop lag, loops, plugins, descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from pydantic import Field

from peerd.api import Plugin, PluginConfig
from peerd.daemon.loop_lag import LoopLag
from peerd.daemon.loops import loop_factory, run
from peerd.entry_points import PLUGINS
from peerd.errors import ConfigError
from peerd.plugins import find_plugins, make_plugins, plugin_models
from peerd.system.resources import http_requests_room, resource_snapshot, room_for, rss_bytes
from peerd.system.systemd import ServiceManager
from tests.support.both_loops import both_loops


class EchoConfig(PluginConfig):
    limit: int = Field(3, description="How many.")


class Echo(Plugin):
    name = "echo"
    Config = EchoConfig


# The service manager


def test_notifications_are_datagrams(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5.0)
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}).notify("READY=1", "STATUS=in the ring")
        assert manager.recv(1000) == b"READY=1\nSTATUS=in the ring"


def test_without_a_manager_nothing_happens(tmp_path: Path) -> None:
    ServiceManager({}).notify("READY=1")
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).notify("READY=1")
    assert ServiceManager({"WATCHDOG_USEC": "junk"}).watchdog_s == 0.0
    assert ServiceManager({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s == 0.0
    assert ServiceManager({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid())}).watchdog_s == 1.5


@both_loops
async def test_the_watchdog_is_fed_by_the_loop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5.0)
        watched = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000"})
        watched.start_watchdog()
        for _ in range(3):
            assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"
        watched.stop_watchdog()


# The loop


@both_loops
async def test_lag_is_how_late_a_timer_runs() -> None:
    clock = [0.0]
    lag = LoopLag(interval_s=0.001, now=lambda: clock[0])
    lag.start()
    clock[0] = 0.25
    fired = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, fired.set_result, None)
    await fired
    lag.stop()
    assert lag.take_max_s() == pytest.approx(0.249)


@pytest.mark.parametrize(("name", "module"), [("asyncio", "asyncio"), ("uvloop", "uvloop"), ("auto", "uvloop")])
def test_the_loop_is_the_one_asked_for(name: str, module: str) -> None:
    async def which() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert run(which(), loop=name).startswith(module)  # type: ignore[arg-type]  # parametrize knows no literals


def test_a_missing_uvloop_is_only_an_error_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peerd.daemon.loops.find_spec", lambda name: None)
    assert loop_factory("auto") is asyncio.SelectorEventLoop
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    with pytest.raises(ConfigError, match="uvloop"):
        loop_factory("uvloop")


# Plugins


def test_installed_plugins_are_found() -> None:
    found = find_plugins()
    assert list(found) == sorted(found)
    assert "aggregation" in found
    assert plugin_models(found)["aggregation"] is found["aggregation"].Config


def test_a_plugin_gets_its_own_table() -> None:
    (echo,) = make_plugins({"echo": Echo}, {"echo": {"limit": 5}})
    assert isinstance(echo.config, EchoConfig)
    assert echo.config.limit == 5
    (default,) = make_plugins({"echo": Echo}, {})
    assert default.config == EchoConfig(limit=3)
    (same,) = make_plugins({"echo": Echo}, {"echo": EchoConfig(limit=9)})
    assert same.config == EchoConfig(limit=9)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"ehco": {}}, r"protocols.ehco: no plugin of this name is installed, did you mean \"echo\""),
        ({"echo": {"limit": "many"}}, r"protocols.echo.limit: expected a whole number"),
        ({"echo": {"limits": 3}}, r"protocols.echo.limits: there is no such key"),
    ],
)
def test_a_wrong_table_is_named(configs: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plugins({"echo": Echo}, configs)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no.such.module:Plugin", "cannot be imported"),
        ("peerd.api:NoSuchPlugin", "cannot be imported"),
        ("peerd.api:Host", "not a subclass"),
        (f"{__name__}:Echo", "calls itself 'echo'"),
    ],
)
def test_what_is_no_plugin_is_named(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    entry = EntryPoint("other", value, PLUGINS)
    monkeypatch.setattr("peerd.entry_points._registered", lambda places: EntryPoints([entry]))
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("types").SimpleNamespace(Echo=Echo))
    with pytest.raises(ConfigError, match=f"protocols.other: .*{message}"):
        find_plugins()


# Resources


def test_the_process_sees_itself() -> None:
    snapshot = resource_snapshot(links=3, loop_lag_s=0.5)
    assert snapshot.rss_bytes == pytest.approx(rss_bytes(), rel=0.2)
    assert snapshot.rss_bytes > 1 << 20
    assert snapshot.open_files > 2
    assert (snapshot.links, snapshot.loop_lag_s) == (3, 0.5)


def test_links_leave_descriptors_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (256, 1024))
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.setrlimit", lambda kind, limits: raised.append(limits))
    assert room_for(100) == (100, 1024 * 4 // 5 - 64)
    assert room_for(100_000).links == (1024 * 4 // 5 - 64) // 2
    assert raised == [(1024, 1024)] * 2


def test_http_listeners_and_peers_have_descriptors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1024, 1024))
    assert [http_requests_room(wanted) for wanted in (4, 64, 16_384)] == [4, 64, 64]
    assert room_for(100, [64] * 2).sockets == 1024 * 4 // 5 - 64, "the fifth that peers never had is enough"
    assert room_for(100, [64] * 2 + [16_384] * 2).sockets == 1024 - 4 * (64 + 16) - 64
    monkeypatch.setattr("resource.getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert http_requests_room(16_384) == 16_384 and room_for(100, [16_384]).links == 100


def test_a_daemon_loads_nothing_that_draws_on_terminals_and_may_do_so_later() -> None:
    code = (
        "import sys, peerd.daemon.service; "
        "print([name for name in ('rich', 'pygments') if name in sys.modules]); "
        "import rich.console, structlog; print(structlog.dev.rich is None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]
