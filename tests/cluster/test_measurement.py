"""Bounds and ages on real daemons, while owner, asking daemon and client are stopped and go on: none is ever wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from peerd.cluster.local import LocalCluster
from peerd.errors import PeerdError
from protocols.measurement import models
from protocols.measurement.front.client import MeasurementClient

pytestmark = pytest.mark.cluster

OWNER, READER, WATCHER = range(3)
PLACING: dict[str, dict[str, dict[str, str]]] = {
    "owners": {"protocols.measurement": {"placing": "owners"}},
    "tree": {"protocols.measurement": {"placing": "tree", "decide_interval": "1s"}},
}
STEP_S = 0.25
STOP_S = 3.5
SLACK_S = 0.05
WAIT_S = 60.0


@dataclass
class Truth:
    """What the owner was told to measure: values, each between when it was put and when the next one had been."""

    puts: list[tuple[float, float, float]] = field(default_factory=list)
    """(value, when its request began, when it was answered)"""

    def was(self, view: models.ValueView, begin: float, end: float) -> bool:
        """Whether a value that was there not longer ago than the answer says is inside its bounds."""
        since = begin - view.age_s * 1.06 - SLACK_S
        for index, (value, put_at, _) in enumerate(self.puts):
            over_at = self.puts[index + 1][2] if index + 1 < len(self.puts) else float("inf")
            if view.low <= value <= view.high and put_at <= end and over_at >= since:
                return True
        return False


@pytest.fixture(params=PLACING)
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Three daemons that ask owners; or five with caches on the routes to one key."""
    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.up(3 if request.param == "owners" else 5, settings=lambda index: PLACING[request.param])
        yield cluster


@asynccontextmanager
async def stepping(cluster: LocalCluster, truth: Truth) -> AsyncIterator[None]:
    """Have an application put a new value every now and then."""

    async def step() -> None:
        async with cluster.client(OWNER) as client:
            for number in range(1_000_000):
                value, began = float(number * 7 % 1000), time.monotonic()
                await MeasurementClient(client).put("step", value, "60s")
                truth.puts.append((value, began, time.monotonic()))
                await asyncio.sleep(STEP_S)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(step())
        yield
        task.cancel()


@asynccontextmanager
async def reading(cluster: LocalCluster, truth: Truth, stale: str, wrong: list[str]) -> AsyncIterator[list[float]]:
    """Have a client ask all the time; what it is told is judged. Yields the ages of fresh answers."""
    ages: list[float] = []

    async def read() -> None:
        async with cluster.client(READER) as client:
            while True:
                began = time.monotonic()
                try:
                    answer = await MeasurementClient(client).read(["step"], stale=stale)
                except PeerdError:
                    continue
                end = time.monotonic()
                for view in answer.values:
                    if view.stale:
                        continue
                    ages.append(view.age_s)
                    if not truth.was(view, began, end):
                        wrong.append(f"{view} at {end:.3f}; {truth.puts[-5:]}")
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(read())
        yield ages
        task.cancel()


async def test_no_fresh_answer_is_wrong_while_daemons_are_stopped(cluster: LocalCluster) -> None:
    truth, wrong, told = Truth(), list[str](), list[models.ValueView]()

    async def watch() -> None:
        async with cluster.client(WATCHER) as client:
            entries = MeasurementClient(client).watch(["step"], within={"step": 3.0}, stale="2s")
            async with aclosing(entries):
                async for entry in entries:
                    if entry.type == "item":
                        told.append(models.ValueView.model_validate(entry.data))

    async with asyncio.timeout(150), asyncio.TaskGroup() as group, stepping(cluster, truth):
        await until(lambda: bool(truth.puts))
        await known_everywhere(cluster)
        watching = group.create_task(watch())
        async with reading(cluster, truth, "1s", wrong) as young, reading(cluster, truth, "3s", wrong) as older:
            for victim in range(len(cluster.record().nodes)):
                process = cluster.node(victim).process
                assert process is not None
                await asyncio.sleep(1.0)
                os.kill(process.pid, signal.SIGSTOP)
                await asyncio.sleep(STOP_S)
                os.kill(process.pid, signal.SIGCONT)
                await asyncio.sleep(2.0)
            assert len(young) > 100
            assert len(older) > 100
            assert max(young) <= 1.0
            assert max(older) <= 3.0
        assert not wrong
        await until(lambda: any(view.stale for view in told))
        before = len(told)
        await until(lambda: sum(not view.stale for view in told[before:]) >= 3)
        watching.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.05)


async def known_everywhere(cluster: LocalCluster) -> None:
    """Wait until each daemon knows that the owner measures it."""
    for index in range(len(cluster.record().nodes)):
        async with asyncio.timeout(WAIT_S), cluster.client(index) as client:
            while not any("step" in node.measurements for node in (await MeasurementClient(client).nodes()).nodes):
                await asyncio.sleep(0.2)
