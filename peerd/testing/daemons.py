"""A few real daemons in the event loop of a test: real connections on loopback, real TLS, the real admin API.

For a test that needs processes of their own (signals, kill -9), `peerd.cluster.local.LocalCluster` starts them.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peerd.api import Plugin
from peerd.client import Client
from peerd.config import LoadedConfig, load_config
from peerd.daemon.admin.server import start_admin
from peerd.daemon.service import Daemon
from peerd.identity.authority import ClusterAuthority, create_node_files
from peerd.node.node import Node
from peerd.plugins import find_plugins, plugin_models

LOOPBACK: Final = "127.0.0.1"
CLUSTER: Final = "testing"
WHOLE_LIMIT_S: Final = 30.0
POLL_S: Final = 0.05

PluginsOf = Callable[[int], Sequence[Plugin]]


@dataclass(frozen=True)
class RunningDaemon:
    """One of the daemons."""

    daemon: Daemon
    directory: Path
    """The folder of its state, its event log (in ``events``) and its admin socket."""

    @property
    def node(self) -> Node:
        """Return the daemon's node, which has its plugins in ``plugins``."""
        return self.daemon.node

    @property
    def events(self) -> Path:
        """The folder of its event log. The current file is ``*.partial`` until the daemon stops."""
        return self.directory / "events"

    @property
    def socket(self) -> Path:
        """Return the path of the socket on which its admin API listens."""
        return self.directory / "admin.sock"

    def client(self) -> Client:
        """The client of its admin API; use it with ``async with``."""
        return Client(self.socket)


@asynccontextmanager
async def daemons(
    count: int,
    *,
    plugins: PluginsOf | None = None,
    settings: Mapping[str, object] | None = None,
    limit_s: float = WHOLE_LIMIT_S,
) -> AsyncIterator[list[RunningDaemon]]:
    """Start ``count`` daemons and wait for a whole ring; at the end they are stopped, and their files removed.

    ``plugins(index)`` makes the plugins of each; without it they run the installed ones. ``settings``: dotted keys of
    the configuration and their values, for all. Raises ``TimeoutError`` when there is no ring within ``limit_s``.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peerd-")))
        authority = ClusterAuthority.create(CLUSTER)
        sockets = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        addresses = [f"{LOOPBACK}:{each.getsockname()[1]}" for each in sockets]
        running: list[RunningDaemon] = []
        for index, listening in enumerate(sockets):
            directory = folder / f"{index}"
            directory.mkdir(mode=0o700)
            create_node_files(authority, directory)
            config = _config(directory, addresses[index], addresses[:1] if index else [], settings or {})
            daemon = Daemon(
                config,
                plugins=plugins(index) if plugins is not None else None,
                start_admin=start_admin,
                listening=listening,
            )
            running.append(RunningDaemon(await stack.enter_async_context(daemon), directory))
        async with asyncio.timeout(limit_s):
            await wait_for(lambda: all(each.node.overlay.estimated_ring_size() == count for each in running))
        yield running


async def wait_for(condition: Callable[[], object]) -> None:
    """Wait until the condition is true. Put ``asyncio.timeout`` around it."""
    while not condition():  # noqa: ASYNC110  # what daemons become in their own time has no event to wait for
        await asyncio.sleep(POLL_S)


def _config(directory: Path, address: str, bootstrap: list[str], settings: Mapping[str, object]) -> LoadedConfig:
    flags: dict[str, object] = {
        "node.cluster": CLUSTER,
        "node.profile": "local",
        "node.listen": address,
        "node.bootstrap": bootstrap,
        "node.state_dir": str(directory),
        "admin.http": "",
        "admin.socket": str(directory / "admin.sock"),
        "telemetry.sink": str(directory / "events"),
    }
    models = plugin_models(find_plugins())
    return load_config(environment={}, flags={**flags, **settings}, plugin_models=models)
