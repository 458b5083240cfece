"""Worker threads for what would hold the loop up: parsing, merging, SQL. The queue is bounded.

The threads are daemons of the process, not an executor's: an executor joins its threads at exit, and a stop with a
time limit must not wait for a stuck worker.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

from peerd.errors import Unavailable

QUEUED_MAX: Final = 256
"""Waiting and running jobs together; more fail at once with `Unavailable`."""
WORKERS_MAX: Final = 8


@dataclass(slots=True, eq=False)
class _Job:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class OffloadPool:
    """Runs functions in threads; one of ``done`` and ``failed`` is called, on the loop, unless closed or cancelled."""

    def __init__(self, workers: int | None = None, queued_max: int = QUEUED_MAX) -> None:
        self.rejected = 0
        self._workers_max = workers or min(WORKERS_MAX, max(2, os.cpu_count() or 2))
        self._queued_max = queued_max
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def outstanding(self) -> int:
        """Jobs waiting or running."""
        return self._outstanding

    def submit(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> _Job:
        """Queue one job; over the bound it fails, after this has returned."""
        job = _Job(function, arguments, done, failed)
        if self._is_closed or self._outstanding >= self._queued_max:
            self.rejected += 1
            refusal = Unavailable(f"{self._outstanding} jobs are waiting for a worker")
            self._loop.call_soon(lambda: None if job.is_cancelled else failed(refusal))
            return job
        self._outstanding += 1
        if len(self._threads) < min(self._workers_max, self._outstanding):
            thread = threading.Thread(target=self._work, name=f"peerd-offload-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(job)
        return job

    def close(self) -> None:
        """Take no more jobs, forget the waiting ones; what runs is not waited for, and its result not reported."""
        self._is_closed = True
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            callback: Callable[[Any], None]
            try:
                result = None if job.is_cancelled else job.function(*job.arguments)
                callback = job.done
            except BaseException as error:  # SystemExit, too, belongs to the job: the thread goes on
                result, callback = error, job.failed
            if self._is_closed:
                return
            try:
                self._loop.call_soon_threadsafe(self._finished, job, callback, result)
            except RuntimeError:  # the loop was closed without closing the pool
                return

    def _finished(self, job: _Job, callback: Callable[[Any], None], result: Any) -> None:
        self._outstanding -= 1
        if not self._is_closed and not job.is_cancelled:
            callback(result)
