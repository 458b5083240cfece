"""Real daemons that die, stop, leave and are forgotten: what the others say they expect."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from peerd.cluster.processes import send_signal
from peerd.ids import format_id
from peerd.models.admin import DrainAnswer, Status
from protocols.aggregation.answer import Answer
from tests.support.daemon_process import peerd

pytestmark = pytest.mark.cluster

NODES = 9
MISSED_LIMIT_S = 90.0
"""A stopped process is suspected after its silence, and everybody takes a moment longer on a busy machine."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[int], LocalCluster]]:
    """Clusters with one file a node, ended with the test."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3 * NODES):
        (data / f"{number}.log").write_text("one word\n")
    with LocalCluster(tmp_path / "cluster", name="test") as cluster:

        def up(count: int) -> LocalCluster:
            section = {"data_root": str(data)}
            cluster.up(
                count,
                settings=lambda index: {"protocols": {"aggregation": {**section, "share": f"{index}/{count}"}}},
            )
            return cluster

        yield up
        if cluster.layout.read() is not None:
            resume(cluster)


def resume(cluster: LocalCluster) -> None:
    """Let processes that were stopped go on, so that they end when they are asked to, and need not be killed."""
    for node in cluster.record().nodes:
        send_signal(node.process, signal.SIGCONT)


def aggregate(cluster: LocalCluster, index: int = 0, deadline: str = "15s") -> Answer:
    async def run() -> Answer:
        options = {"files": "*.log", "format": "text", "pattern": r"(?P<word>\w+)", "deadline": deadline}
        async with cluster.client(index) as client, aclosing(client.aggregation.aggregate("count", **options)) as lines:
            async for line in lines:
                if isinstance(line, Answer):
                    return line
        raise AssertionError("no answer")

    return asyncio.run(run())


def status(cluster: LocalCluster, index: int) -> Status:
    async def run() -> Status:
        async with cluster.client(index) as client:
            return await client.status()

    return asyncio.run(run())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + MISSED_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.2)


def command(cluster: LocalCluster, *words: str, index: int = 0) -> subprocess.CompletedProcess[str]:
    return peerd(*words, "--socket", str(socket_file(cluster.record(), index)))


def stop(cluster: LocalCluster, *indices: int) -> None:
    for index in indices:
        process = cluster.node(index).process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)


def test_four_of_nine_stopped_are_missing_and_not_gone(make: Callable[[int], LocalCluster]) -> None:
    cluster = make(NODES)
    whole = aggregate(cluster)
    assert (whole.outcome, whole.expected) == ("complete", NODES)
    assert sum(share.files for share in whole.shares.listed) == whole.report.files_read == 3 * NODES
    stop(cluster, 5, 6, 7, 8)
    time.sleep(13)
    answer = aggregate(cluster)
    assert (answer.outcome, answer.contributors, answer.expected) == ("partial", 5, NODES)
    ids = {cluster.node(index).id for index in (5, 6, 7, 8)}
    assert {format_id(missing.node) for missing in answer.missing} == ids
    until(lambda: status(cluster, 0).missing == 4)
    done = command(cluster, "aggregate", "count", "--files", "*.log", "--format", "text", "--pattern", r"(?P<w>\w+)")
    assert done.returncode == 3
    assert "partial: 5 of 9 nodes" in done.stdout
    for index in (5, 6, 7, 8):
        assert f"{cluster.node(index).id[:8]} (127.0.0.1:{cluster.node(index).port}): lost" in done.stdout
    checked = command(cluster, "ring", "--check", "-o", "json")
    assert checked.returncode == 3
    assert {missing["id"] for missing in json.loads(checked.stdout)["missing"]} == ids


def test_kill_forget_restart_and_leave(make: Callable[[int], LocalCluster]) -> None:
    cluster = make(NODES)
    victim = cluster.node(4)
    cluster.kill(4)
    answer = aggregate(cluster)
    assert (answer.outcome, answer.contributors, answer.expected) == ("partial", 8, NODES)
    assert [format_id(missing.node) for missing in answer.missing] == [victim.id]
    others = [index for index in range(NODES) if index != 4]
    until(lambda: all(status(cluster, index).missing == 1 for index in others))
    again = aggregate(cluster, index=7)
    assert (again.contributors, again.expected) == (8, NODES)
    [missing] = again.missing
    assert missing.lost_s is not None and missing.reason.startswith("lost ")
    assert "peerd_members_missing 1.0" in metrics(cluster, 2)
    assert "peerd_members_expected 9.0" in metrics(cluster, 2)
    ready = command(cluster, "healthcheck", "-o", "json")
    assert ready.returncode == 0
    assert "8 of 9 expected members, 1 missing" in ready.stdout
    forgotten = command(cluster, "forget", victim.id[:8])
    assert forgotten.returncode == 0
    assert f"forgotten: {victim.id}" in forgotten.stdout
    until(lambda: not any(status(cluster, index).missing for index in others))
    answer = aggregate(cluster, index=7)
    assert (answer.outcome, answer.contributors, answer.expected) == ("complete", 8, 8)
    drain(cluster, 8)
    until(lambda: not any(status(cluster, index).missing for index in others[:-1]))
    answer = aggregate(cluster)
    assert (answer.outcome, answer.contributors, answer.expected) == ("complete", 7, 7)
    refused = command(cluster, "aggregate", "count", index=8)
    assert refused.returncode == 69
    assert "has left the ring" in refused.stderr


def test_one_of_three_is_not_the_whole_ring(make: Callable[[int], LocalCluster]) -> None:
    cluster = make(3)
    stop(cluster, 1, 2)
    until(lambda: status(cluster, 0).missing == 2)
    answer = aggregate(cluster)
    assert (answer.outcome, answer.contributors, answer.expected) == ("partial", 1, 3)
    found = status(cluster, 0)
    assert found.is_minority
    assert found.expected == 3.0
    assert command(cluster, "ring", "--check").returncode == 3


def drain(cluster: LocalCluster, index: int) -> None:
    async def run() -> None:
        async with cluster.client(index) as client, aclosing(client.drain(30.0)) as lines:
            async for line in lines:
                if isinstance(line, DrainAnswer):
                    return

    asyncio.run(run())


def metrics(cluster: LocalCluster, index: int) -> str:
    async def run() -> str:
        async with cluster.client(index) as client:
            return await client.metrics()

    return asyncio.run(run())
