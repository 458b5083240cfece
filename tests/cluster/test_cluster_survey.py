"""Real daemons: the ring is checked, everybody reaches everybody, and nodes drain in three ways."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from peerd.client import Client, DaemonBusy
from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from tests.support import daemon_process

pytestmark = pytest.mark.cluster

NODES = 6
LIMIT_S = 90.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "cluster", name="survey") as found:
        found.up(NODES)
        yield found


def peerd(cluster: LocalCluster, index: int, *words: str) -> subprocess.CompletedProcess[str]:
    """One command to one of the daemons."""
    return daemon_process.peerd(*words, "--socket", str(socket_file(cluster.record(), index)), timeout_s=LIMIT_S)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def ask(cluster: LocalCluster, index: int, *words: str) -> tuple[int, str]:
    done = peerd(cluster, index, *words)
    return done.returncode, done.stdout + done.stderr


def state(cluster: LocalCluster, index: int) -> str:
    async def run() -> str:
        async with cluster.client(index) as client:
            return (await client.status()).state

    return asyncio.run(run())


def test_check_reach_and_drain(cluster: LocalCluster) -> None:
    said: list[tuple[int, str]] = []

    def is_consistent(count: int) -> bool:
        said.append(ask(cluster, 0, "ring", "--check"))
        return said[-1][0] == 0 and f"{count} nodes, consistent" in said[-1][1]

    def is_reached() -> bool:
        said.append(ask(cluster, 1, "doctor", "reach", "-o", "json"))
        return said[-1][0] == 0 and json.loads(said[-1][1])["pairs_tested"] == NODES * (NODES - 1)

    wait_until(lambda: is_consistent(NODES), f"the ring is consistent: {said[-1:]}")
    wait_until(is_reached, f"everybody reaches everybody: {said[-1:]}")

    drained = peerd(cluster, 2, "drain")
    assert drained.returncode == 0 and "stays up" in drained.stdout, drained
    assert state(cluster, 2) == "drained"
    assert peerd(cluster, 2, "healthcheck").returncode == 1
    wait_until(lambda: is_consistent(NODES - 1), f"the others have closed the gap: {said[-1:]}")

    assert peerd(cluster, 3, "drain", "--stop").returncode == 0
    process = cluster.node(4).process
    assert process is not None
    os.kill(process.pid, signal.SIGUSR2)
    wait_until(lambda: state(cluster, 4) == "drained", "USR2 drains")
    wait_until(lambda: not cluster.status()[3].is_alive, "--stop ends the process")
    assert cluster.status()[2].is_alive and cluster.status()[4].is_alive
    wait_until(lambda: is_consistent(NODES - 3), f"three are left: {said[-1:]}")


def test_a_walk_that_is_given_up_ends(cluster: LocalCluster) -> None:
    """Whoever hangs up frees the place of his walk: there are few."""

    async def run() -> None:
        async with cluster.client(0) as client:
            for _ in range(20):
                await give_up(client)
            deadline = time.monotonic() + LIMIT_S
            while not await finish(client):
                assert time.monotonic() < deadline, "its place is never free again"
                await asyncio.sleep(0.1)

    async def finish(client: Client) -> bool:
        with contextlib.suppress(DaemonBusy):
            async with aclosing(client.check_ring()) as lines:
                return [line.type async for line in lines][-1] == "answer"
        return False

    async def give_up(client: Client) -> None:
        with contextlib.suppress(DaemonBusy):  # it may not have noticed yet that the one before is gone
            async with aclosing(client.check_ring()) as lines:
                async for _ in lines:
                    return

    asyncio.run(run())
