"""Worker processes: bounded by the kernel, killed when nobody waits, and never the daemon's end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peerd.api import WorkLimits
from peerd.client import Client
from peerd.daemon.processes import JOBS_MAX, REQUEST_BYTES_MAX, RUNNING_MAX, ProcessPool
from peerd.daemon.tasks import spawn
from peerd.errors import Bug, Unavailable
from peerd.system.work_server import GROWN_BYTES_MAX, START
from protocols.aggregation.answer import Answer
from protocols.aggregation.front.client import AggregationClient
from tests.support.both_loops import both_loops
from tests.support.daemon_process import DaemonProcess, running, wait_until

pytestmark = pytest.mark.cluster

MIB = 1024 * 1024
WITHIN = WorkLimits(512 * MIB, cpu_s=30.0, wall_s=30.0, result_bytes_max=MIB, name="its query")
LONG_S = 600.0


@contextmanager
def pool_of(idle_s: float = 60.0) -> Iterator[ProcessPool]:
    pool = ProcessPool(idle_s)
    try:
        yield pool
    finally:
        pool.close()


def unexpected(outcome: object) -> None:
    pytest.fail(f"{outcome!r}, of a job that nobody waits for")


async def outcome(pool: ProcessPool, function: Callable[..., Any], *arguments: Any, **limits: Any) -> object:
    """What the job returned, or the text of its failure."""
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pool.submit(function, arguments, ended.set_result, ended.set_result, replace(WITHIN, **limits))
    result = await ended
    assert isinstance(result, bytes | Unavailable)
    return str(result) if isinstance(result, Unavailable) else result


def is_gone(process: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has, too."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second, when it ends between open and read
        return True


def children_of(process: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


@both_loops
async def test_what_passes_a_limit_ends_with_the_reason_and_the_next_job_runs() -> None:
    with pool_of() as pool:
        assert pool.server_pid is None
        assert await outcome(pool, bytes, 5) == bytes(5)
        server = pool.server_pid
        assert await outcome(pool, bytes, 1 << 30) == "its query exceeded 512MiB of memory"
        assert await outcome(pool, bytes, 2 * MIB) == "its query gave a result of more than 1MiB"
        assert await outcome(pool, sum, range(1 << 60), cpu_s=1.0) == "its query exceeded 1s of processor time"
        assert await outcome(pool, time.sleep, LONG_S, wall_s=0.2) == "its query took longer than 0.2 s"
        assert await outcome(pool, os.abort) == (
            "its query was ended by SIGABRT: it may have exceeded 512MiB of memory"
        )
        assert await outcome(pool, os._exit, 3) == "its query ended without a result (exit code 3)"
        assert await outcome(pool, bytes, 7) == bytes(7)
        assert pool.server_pid == server
        assert pool.outstanding == 0


@both_loops
async def test_a_worker_takes_one_job_after_the_other_until_one_fails_or_takes_much() -> None:
    who = "b'%d' % __import__('os').getpid()"
    most = "b'%d' % __import__('resource').getrlimit(__import__('resource').RLIMIT_CPU)[0]"
    with pool_of() as pool:
        first = await outcome(pool, eval, who)
        assert await outcome(pool, eval, who) == first
        assert await outcome(pool, eval, "1") == "its query failed: TypeError: it returned no bytes"
        second = await outcome(pool, eval, who)
        assert second != first, "no other job meets what a failed one has left"
        assert await outcome(pool, eval, "(__import__('time').sleep(0.05), b'')[1]", wall_s=0.1) == b""
        await asyncio.sleep(0.1)
        assert await outcome(pool, eval, who) == second, "the time of a job ends with it"
        assert [await outcome(pool, eval, most, cpu_s=seconds) for seconds in (7.0, 5.0)] == [b"7", b"5"]
        assert await outcome(pool, eval, f"len(b'1' * {2 * GROWN_BYTES_MAX}) and {who}") == second
        assert await outcome(pool, eval, who) != second, "it has grown"


@both_loops
async def test_a_worker_that_was_ended_while_it_waited_is_replaced() -> None:
    who = "b'%d' % __import__('os').getpid()"
    with pool_of() as pool:
        first = await outcome(pool, eval, who)
        assert isinstance(first, bytes) and pool.server_pid is not None
        os.kill(int(first), signal.SIGKILL)
        while not is_gone(int(first)):
            await asyncio.sleep(0.01)
        assert await outcome(pool, eval, who) != first


@both_loops
async def test_what_a_job_imports_is_there_before_its_process() -> None:
    """Each extraction paid a third of a second for imports, when its process made them itself."""
    is_there = "b'%d' % ('colorsys' in __import__('sys').modules)"
    with pool_of() as pool:
        assert await outcome(pool, eval, is_there) == b"0"
        assert await outcome(pool, eval, is_there, modules=("no.such", "colorsys")) == b"1"
        assert await outcome(pool, eval, is_there, memory_bytes=256 * MIB) == b"1", "it stays there, for new workers"


@both_loops
async def test_a_result_is_whole_at_its_largest() -> None:
    with pool_of() as pool:
        assert await outcome(pool, bytes, MIB) == bytes(MIB)


@both_loops
async def test_a_cancelled_job_is_killed_and_its_place_is_free() -> None:
    with pool_of() as pool:
        await outcome(pool, bytes, 1)
        assert pool.server_pid is not None
        jobs = [
            pool.submit(time.sleep, (LONG_S,), unexpected, unexpected, replace(WITHIN, owner=owner))
            for owner in range(RUNNING_MAX + 1)
        ]
        workers = children_of(pool.server_pid)
        while len(workers) < RUNNING_MAX:
            await asyncio.sleep(0.01)
            workers = children_of(pool.server_pid)
        for job in jobs:
            job.cancel()
        assert await outcome(pool, bytes, 2) == bytes(2)
        while not all(map(is_gone, workers)):
            await asyncio.sleep(0.01)


@both_loops
async def test_one_owner_never_has_all_places() -> None:
    with pool_of() as pool:
        for _ in range(2 * RUNNING_MAX):
            pool.submit(time.sleep, (LONG_S,), unexpected, unexpected, replace(WITHIN, owner="greedy"))
        assert await outcome(pool, bytes, 2, owner="modest") == bytes(2)


@both_loops
async def test_too_many_jobs_and_too_long_ones_are_refused_and_the_others_forgotten_at_the_end() -> None:
    with pool_of() as pool:
        assert "more than" in str(await outcome(pool, bytes, bytes(REQUEST_BYTES_MAX)))
        for _ in range(JOBS_MAX):
            pool.submit(time.sleep, (LONG_S,), unexpected, unexpected, WITHIN)
        assert await outcome(pool, bytes, 1) == f"{JOBS_MAX} jobs are waiting for a worker"
        with pytest.raises(Bug, match="picklable"):
            pool.submit(lambda: b"", (), unexpected, unexpected, WITHIN)


@both_loops
async def test_a_lost_server_fails_its_jobs_and_is_replaced() -> None:
    with pool_of() as pool:
        await outcome(pool, bytes, 1)
        server = pool.server_pid
        assert server is not None
        job = spawn(outcome(pool, time.sleep, 5.0), name="job")
        await asyncio.sleep(0)
        os.kill(server, signal.SIGKILL)
        assert "was lost" in str(await job)
        assert await outcome(pool, bytes, 2) == bytes(2)
        assert pool.server_pid != server


@both_loops
async def test_the_server_ends_after_a_while_without_jobs_and_with_the_pool() -> None:
    with pool_of(idle_s=0.05) as pool:
        await outcome(pool, bytes, 1)
        server = pool.server_pid
        assert server is not None
        while not is_gone(server):
            await asyncio.sleep(0.01)
        assert pool.server_pid is None
        assert await outcome(pool, bytes, 2) == bytes(2)
        pool.submit(time.sleep, (LONG_S,), unexpected, unexpected, WITHIN)
        server = pool.server_pid
        assert server is not None
    while not is_gone(server):
        await asyncio.sleep(0.01)


def test_a_daemon_that_went_without_reading_what_it_was_told_ends_the_jobs_too() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(number: int) -> socket.socket:
        mine, its = socket.socketpair()
        with its:
            message = START.pack(b"S", number, WITHIN.memory_bytes) + b"time"
            socket.send_fds(ours, [message], [its.fileno()])
        return mine

    command = [sys.executable, "-m", "peerd.system.work_server", str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as server, start(1):
        theirs.close()  # the first job waits for what it has to do; the second finds that nobody will tell it
        start(2).close()
        assert select.select([ours], [], [], LONG_S)[0], "the second has ended, and the server says so"
        workers = children_of(server.pid)
        assert workers
        ours.close()
        assert server.wait(LONG_S) == 0
        wait_until(lambda: all(map(is_gone, workers)), "no job is left", 10.0)
        assert server.stderr is not None
        assert server.stderr.read() == b""


# A daemon


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with a small file, and one whose second line takes 10 GiB and nearly no disk."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "small.ndjson").write_text('{"n": 1}\n' * 3)
    with (data / "large.ndjson").open("wb") as file:
        file.write(b'{"n": 1}\n' * 1000)  # more than what is probed for a NUL
        file.truncate(10 << 30)
    with running(tmp_path / "daemon", f"protocols.aggregation.data_root={data}") as found:
        found.ready()
        yield found


def rss_mib(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


async def abandon(client: Client, files: str, when: asyncio.Event) -> None:
    """Ask, and go away without an answer when that is set."""
    async with aclosing(AggregationClient(client).aggregate("count", files=files)) as lines:
        async for line in lines:
            assert not isinstance(line, Answer)
            break
        await when.wait()


async def ask(client: Client, files: str) -> Answer:
    async with aclosing(AggregationClient(client).aggregate("count", files=files)) as lines:
        async for line in lines:
            if isinstance(line, Answer):
                return line
    raise AssertionError("no answer")


def test_abandoned_queries_free_the_workers_and_the_next_query_is_answered(daemon: DaemonProcess) -> None:
    process = daemon.process.pid
    assert children_of(process) == [], "a daemon at rest has no process besides its own"

    def workers() -> list[int]:
        return [worker for server in children_of(process) for worker in children_of(server)]

    async def scenario() -> Answer:
        async with Client(daemon.socket) as client:
            await ask(client, "small.ndjson")
            # One watcher for all: the first query that goes away ends the state that the others would look for.
            busy = asyncio.Event()
            waiting = [spawn(abandon(client, "large.ndjson", busy), name="abandoned") for _ in range(4)]
            assert (await client.health()).status
            while len(workers()) < RUNNING_MAX - 1:
                await asyncio.sleep(0.01)
            of_abandoned.extend(workers())
            busy.set()
            await asyncio.gather(*waiting)
            return await ask(client, "small.ndjson")

    before, of_abandoned = rss_mib(process), list[int]()
    answer = asyncio.run(scenario())
    assert (answer.contributors, answer.value) == (1, 3)
    wait_until(lambda: all(map(is_gone, of_abandoned)), "no worker of an abandoned query is left", 10.0)
    # The fourth query had a worker, too, if one of the three was gone before it was.
    wait_until(lambda: len(workers()) <= 1, "one that waits for the next query", 10.0)
    assert rss_mib(process) < before + 32


def test_a_query_that_takes_too_much_memory_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with (data / "keys.ndjson").open("w") as file:
        for number in range(150_000):
            file.write(f'{{"key": "{number:0>200}"}}\n')
    sets = (f"protocols.aggregation.data_root={data}", "protocols.aggregation.extraction_memory=64MiB")
    with running(tmp_path / "daemon", *sets) as daemon:
        daemon.ready()
        answer = daemon.ask("aggregate", "count by key", "--groups-max", "200000")
        assert "exceeded 64MiB of memory" in answer.stdout + answer.stderr
        assert daemon.ask("aggregate", "count").stdout.split()[0] == "150,000"


def test_a_pattern_without_end_stops_neither_the_daemon_nor_the_next_query(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "lines.txt").write_text("a" * 200 + "\n")
    sets = (f"protocols.aggregation.data_root={data}", "protocols.aggregation.regex_engine=python")
    with running(tmp_path / "daemon", *sets) as daemon:
        daemon.ready()
        process = daemon.process.pid
        endless = daemon.ask("aggregate", "count by x", "--pattern", "(?P<x>(a+)+)b", "--deadline", "1s")
        assert endless.returncode != 0, "its data is missing"

        def workers() -> list[int]:
            return [worker for server in children_of(process) for worker in children_of(server)]

        wait_until(lambda: workers() == [], "no worker is left", 10.0)
        answer = daemon.ask("aggregate", "count by x", "--pattern", "(?P<x>a+)")
        assert answer.returncode == 0, answer.stdout + answer.stderr
