"""Bounds and ages on real daemons, while owner, caches, asking daemon and client stop and go on: none is ever wrong."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from peerd.client import Client
from peerd.cluster.layout import socket_file
from peerd.cluster.local import LocalCluster
from peerd.errors import PeerdError
from protocols.measurement import models
from protocols.measurement.front.client import MeasurementClient

pytestmark = pytest.mark.cluster

OWNER, WATCHER = range(2)
PLACING = {"owners": 3, "tree": 5}
"""How questions find values, and so many daemons."""
STEP = "step"
AGES_S = (1.0, 3.0)
HALF_WIDTH = 3.0
STEP_S = 1.5
STOP_S = 3.5
SLACK_S = 0.05
WAIT_S = 60.0


@dataclass
class Truth:
    """What the owner's file has said: values, each between when it was put and when the next one had been."""

    puts: list[tuple[float, float, float]] = field(default_factory=list)
    """(value, when it began to be put there, when it was there)"""

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
    """Three daemons that ask owners; or five with caches on the routes to one key. One of them monitors a file."""
    step = {"kind": "file", "path": str(tmp_path / STEP), "period": "1s"}

    def settings(index: int) -> dict[str, Any]:
        sources = {STEP: step} if index == OWNER else {}
        return {"protocols.measurement": {"placing": request.param, "decide_interval": "1s", "sources": sources}}

    with LocalCluster(tmp_path / "cluster") as cluster:
        cluster.up(PLACING[request.param], settings=settings)
        yield cluster


@asynccontextmanager
async def stepping(file: Path, truth: Truth) -> AsyncIterator[None]:
    """Put a new value into the file every now and then, also while its owner is stopped."""

    new = file.with_suffix(".new")

    async def step() -> None:
        for number in range(1_000_000):
            value, began = float(number * 7 % 1000), time.monotonic()
            new.write_text(f"{value}\n")
            new.replace(file)
            truth.puts.append((value, began, time.monotonic()))
            await asyncio.sleep(STEP_S)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(step())
        yield
        task.cancel()


Answer = tuple[models.ValueView, float, float]
"""What a client was told, when it began to ask, and when it had the answer."""


class AskingProcess:
    """A client in a process of its own, which asks all the time for values of several ages."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would have this process's event loop
        self._answers, theirs = context.Pipe()
        self._process = context.Process(target=ask_until_told, args=(sockets, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    async def end(self) -> dict[float, list[Answer]]:
        """What it was told that was fresh, by the largest age that it wanted."""
        self._answers.send(None)
        told: dict[float, list[Answer]] = await asyncio.to_thread(self._answers.recv)
        self._process.join()
        return told


def ask_until_told(sockets: Sequence[Path], parent: Connection) -> None:
    """Ask until the parent says something, and answer it with all that was told."""
    told: dict[float, list[Answer]] = {stale_s: [] for stale_s in AGES_S}

    async def ask(socket: Path, stale_s: float) -> None:
        async with Client(socket) as client:
            while not parent.poll():
                began = time.monotonic()
                with suppress(PeerdError):
                    answer = await MeasurementClient(client).read([STEP], within={STEP: HALF_WIDTH}, stale=stale_s)
                    end = time.monotonic()
                    told[stale_s] += [(view, began, end) for view in answer.values if not view.stale]
                    await asyncio.sleep(0.02)

    async def ask_all() -> None:
        await asyncio.gather(*(ask(socket, stale_s) for socket in sockets for stale_s in AGES_S))

    asyncio.run(ask_all())
    parent.send(told)


async def test_no_fresh_answer_is_wrong_while_daemons_and_clients_are_stopped(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    truth, told = Truth(), list[models.ValueView]()

    async def watch() -> None:
        async with cluster.client(WATCHER) as client:
            entries = MeasurementClient(client).watch([STEP], within={STEP: HALF_WIDTH}, stale="2s")
            async with aclosing(entries):
                async for entry in entries:
                    if entry.type == "item":
                        told.append(models.ValueView.model_validate(entry.data))

    async with asyncio.timeout(150), asyncio.TaskGroup() as group, stepping(tmp_path / STEP, truth):
        await until(lambda: bool(truth.puts))
        await known_everywhere(cluster)
        watching = group.create_task(watch())
        record = cluster.record()
        client = AskingProcess([socket_file(record, index) for index in range(len(record.nodes)) if index != OWNER])
        for victim in (*(node.process.pid for node in record.nodes if node.process is not None), client.pid):
            await asyncio.sleep(0.5)
            os.kill(victim, signal.SIGSTOP)
            await asyncio.sleep(STOP_S)
            os.kill(victim, signal.SIGCONT)
            await asyncio.sleep(1.5)
        for stale_s, answers in (await client.end()).items():
            assert len(answers) > 100
            assert max(view.age_s for view, _, _ in answers) <= stale_s
            assert any(view.hops for view, _, _ in answers), "some are told by nodes that hold the value"
            wrong = [answer for answer in answers if not truth.was(*answer)]
            assert not wrong, truth.puts
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
            while not any(STEP in node.measurements for node in (await MeasurementClient(client).nodes()).nodes):
                await asyncio.sleep(0.2)
