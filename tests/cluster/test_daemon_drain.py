"""A daemon whose plugin never hands over: every way out is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from peerd.api import Plugin
from peerd.config import LoadedConfig, load_config
from peerd.daemon.service import Daemon

pytestmark = pytest.mark.cluster


class Never(Plugin):
    """A plugin that never finishes handing over."""

    name: ClassVar[str] = "never"

    def drain(self, done: Callable[[], None]) -> None:
        """Never call back."""


def loaded(tmp_path: Path, shutdown: str) -> LoadedConfig:
    sets = [
        "node.listen=127.0.0.1:0",
        f"node.state_dir={tmp_path / 'state'}",
        f"node.shutdown_timeout={shutdown}",
        "tls.mode=off",
    ]
    return load_config(environment={}, sets=sets)


async def ready(daemon: Daemon) -> None:
    async with asyncio.timeout(30):
        while not daemon.node.is_ready:
            await asyncio.sleep(0.01)


async def test_a_drain_ends_with_who_did_not_and_the_stop_after_it_has_nothing_to_do(tmp_path: Path) -> None:
    async with Daemon(loaded(tmp_path, "30s"), plugins=[Never()]) as daemon:
        await ready(daemon)
        task = daemon.drain(0.2)
        assert daemon.drain(60.0) is task
        assert (await task)[:1] == ("never",)
        assert daemon.node.is_stopped and not daemon.node.is_ready and len(daemon.links) == 0


async def test_a_stop_cuts_a_long_drain_short(tmp_path: Path) -> None:
    async with Daemon(loaded(tmp_path, "500ms"), plugins=[Never()]) as daemon:
        await ready(daemon)
        task = daemon.drain(3600.0)
    assert task.cancelled() and daemon.node.is_stopped


async def test_a_stop_waits_for_plugins_no_longer_than_it_may(tmp_path: Path) -> None:
    async with Daemon(loaded(tmp_path, "500ms"), plugins=[Never()]) as daemon:
        await ready(daemon)
    assert daemon.node.is_stopped and (daemon.node.draining or ())[:1] == ("never",)
