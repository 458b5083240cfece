"""Worker threads: results and errors come back on the loop, the queue is bounded, a stop does not wait."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peerd.daemon.links.buffers import allocate
from peerd.daemon.offload import OffloadPool
from peerd.errors import Unavailable
from tests.support.both_loops import both_loops


def submit(pool: OffloadPool, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    outcome = asyncio.get_running_loop().create_future()
    pool.submit(function, arguments, outcome.set_result, lambda error: outcome.set_exception(error))
    return outcome


@both_loops
async def test_results_and_errors_come_back_on_the_loop() -> None:
    pool = OffloadPool(workers=2)
    threads = await asyncio.gather(*(submit(pool, threading.get_ident) for _ in range(20)))
    assert threading.get_ident() not in threads
    assert await submit(pool, divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await submit(pool, divmod, 7, 0)
    with pytest.raises(BaseException, match="the job's own"):
        await submit(pool, exit_thread)
    assert await submit(pool, divmod, 9, 3) == (3, 0)
    assert pool.outstanding == 0
    pool.close()


def exit_thread() -> None:
    raise SystemExit("the job's own")


@both_loops
async def test_more_jobs_than_the_bound_fail_at_once_but_not_re_entrantly() -> None:
    pool = OffloadPool(workers=1, queued_max=3)
    release = threading.Event()
    jobs = [submit(pool, release.wait) for _ in range(3)]
    refused = submit(pool, divmod, 1, 1)
    assert not refused.done()
    with pytest.raises(Unavailable, match="3 jobs"):
        await refused
    assert pool.rejected == 1
    release.set()
    assert await asyncio.gather(*jobs) == [True] * 3
    assert await submit(pool, divmod, 7, 3) == (2, 1)
    pool.close()


@both_loops
async def test_a_closed_pool_reports_nothing_and_does_not_wait() -> None:
    pool = OffloadPool(workers=1)
    release, started = threading.Event(), threading.Event()
    reported: list[Any] = []

    def stuck() -> None:
        started.set()
        release.wait(20)

    pool.submit(stuck, (), reported.append, reported.append)
    pool.submit(divmod, (1, 1), reported.append, reported.append)
    await asyncio.to_thread(started.wait)
    pool.close()
    assert all(thread.daemon for thread in pool._threads)
    release.set()
    for thread in pool._threads:
        await asyncio.to_thread(thread.join, 5.0)
        assert not thread.is_alive()
    refused = submit(pool, divmod, 1, 1)
    with pytest.raises(Unavailable):
        await refused
    assert reported == []


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000])
def test_buffers_have_the_size_asked_for_in_memory_or_in_a_file(tmp_path: Path, size: int) -> None:
    view = allocate(size, spill_threshold_bytes=4096, directory=tmp_path)
    assert (len(view), view.readonly, view.itemsize) == (size, False, 1)
    view[:] = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert bytes(view[:256]) == (bytes(range(256)) * (size // 256))[:256] or size < 256
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_an_answer(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no room"):
        allocate(1 << 62, spill_threshold_bytes=0, directory=tmp_path)
    with pytest.raises(Unavailable, match="no room"):
        allocate(100, spill_threshold_bytes=0, directory=tmp_path / "missing")


def test_a_buffer_in_a_file_has_all_of_its_room_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []
    map_file = mmap.mmap

    def mapped(descriptor: int, size_bytes: int) -> mmap.mmap:
        found = os.fstat(descriptor)
        sizes.append((found.st_size, found.st_blocks * 512))
        return map_file(descriptor, size_bytes)

    monkeypatch.setattr("peerd.daemon.links.buffers.mmap.mmap", mapped)
    allocate(1 << 20, spill_threshold_bytes=4096, directory=tmp_path)
    ((size, on_disk),) = sizes
    assert size == 1 << 20
    assert on_disk >= size or not hasattr(os, "posix_fallocate")


def test_a_buffer_in_a_file_leaves_some_of_the_disk_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    size = 1 << 20
    monkeypatch.setattr(
        "peerd.daemon.links.buffers.FILES_FREE_BYTES_MIN", disk.f_bavail * disk.f_frsize + (1 << 32) - size
    )
    with pytest.raises(Unavailable, match="must stay free"):
        allocate(size, spill_threshold_bytes=4096, directory=tmp_path)


def test_a_file_system_that_cannot_set_room_aside_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr("peerd.daemon.links.buffers.os.posix_fallocate", unsupported, raising=False)
    assert len(allocate(100_000, spill_threshold_bytes=4096, directory=tmp_path)) == 100_000
