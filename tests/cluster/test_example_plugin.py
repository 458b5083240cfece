"""The plugin of docs/writing-a-plugin.md, run in both Hosts; and the page shows the code that runs."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType

import pytest

from peerd.config import LoadedConfig, load_config
from peerd.daemon.authority import ClusterAuthority, create_node_files
from peerd.daemon.service import Daemon
from peerd.ids import NodeId
from peerd.testing.simulation import ring

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rollcall", DOCS / "examples" / "rollcall.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rollcall"] = module  # get_type_hints looks here for the annotations' names
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_code_that_runs(example: ModuleType) -> None:
    source = (DOCS / "examples" / "rollcall.py").read_text()
    blocks = (DOCS / "writing-a-plugin.md").read_text().split("```python\n")[1:]
    for block in blocks:
        for line in block.partition("```")[0].splitlines():
            if line.strip() and "simulation" not in line:
                assert line.removesuffix(" ...") in source, (
                    f"docs/writing-a-plugin.md shows a line that the example has not: {line}"
                )


def test_in_the_simulator(example: ModuleType) -> None:
    simulation = ring(40, seed=7, plugins=lambda index: [example.RollCall()], check_every=1)
    calls: list[dict[NodeId, float]] = []
    simulation.nodes[3].node.plugins["rollcall"].call(calls.append)  # type: ignore[attr-defined]  # loaded from docs
    simulation.run_for(10)
    [answers] = calls
    assert sorted(answers) == sorted(place.id for place in simulation.nodes)
    assert all(uptime_s > 0 for uptime_s in answers.values())


def node_config(directory: Path, authority: ClusterAuthority, port: int, bootstrap: list[int]) -> LoadedConfig:
    create_node_files(authority, directory)
    flags: dict[str, object] = {
        "node.cluster": "example",
        "node.profile": "local",
        "node.listen": f"127.0.0.1:{port}",
        "node.bootstrap": [f"127.0.0.1:{seed}" for seed in bootstrap],
        "node.state_dir": str(directory),
        "admin.http": "",
    }
    return load_config(environment={}, flags=flags)


@pytest.mark.cluster
async def test_in_daemons(example: ModuleType, tmp_path: Path) -> None:
    authority = ClusterAuthority.create("example")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [each.getsockname()[1] for each in sockets]
    async with AsyncExitStack() as stack:
        plugins = [example.RollCall() for _ in sockets]
        daemons = []
        for index, listening in enumerate(sockets):
            directory = tmp_path / f"node{index}"
            directory.mkdir(mode=0o700)
            config = node_config(directory, authority, ports[index], ports[:1] if index else [])
            daemon = Daemon(config, plugins=[plugins[index]], listening=listening)
            daemons.append(await stack.enter_async_context(daemon))
        async with asyncio.timeout(20):
            while not all(daemon.node.overlay.estimated_ring_size() == 3 for daemon in daemons):
                await asyncio.sleep(0.05)
        finished: asyncio.Future[dict[NodeId, float]] = asyncio.get_running_loop().create_future()
        plugins[2].call(finished.set_result)
        answers = await asyncio.wait_for(finished, 10)
        assert sorted(answers) == sorted(daemon.peer.id for daemon in daemons)
