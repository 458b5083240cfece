"""Worker processes for jobs that strangers choose: the kernel limits them, and they can be killed.

They are forked by `peerd.system.work_server`, a small process that is started for the first job and ends, with all
workers, when there has been no job for a while, so that a daemon at rest has none. A worker has one job at a time, and
gets another one only after one that went well and took little. What comes back is bytes, bounded, and not to be
trusted: only what `peerd.system.work_server.ANSWER` says before them is looked at here.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from peerd.api import WorkLimits
from peerd.errors import Bug, Unavailable
from peerd.quantities import format_duration, format_size
from peerd.system.work_server import (
    ANSWER,
    CONTROL_BYTES_MAX,
    ENDED,
    KILL,
    NO_MEMORY,
    NO_PROCESS,
    REASON_BYTES_MAX,
    REQUEST,
    RESULT,
    START,
)

RUNNING_MAX: Final = 4
"""How many jobs run at a time. One owner has at most one fewer, so that others do not wait for its long jobs."""
JOBS_MAX: Final = 64
"""Waiting and running jobs together; more fail at once with `Unavailable`."""
REQUEST_BYTES_MAX: Final = 64 * 1024
"""The longest pickled function with its arguments: it must fit into the buffer of a socket."""
IDLE_S: Final = 60.0
"""The server ends after so long without a job. Starting it takes about a third of a second, a worker some 5 ms."""
READ_BYTES: Final = 256 * 1024


@dataclass(slots=True, eq=False)
class _Job:
    """One job, which waits for a worker or has one."""

    pool: ProcessPool
    modules: str
    request: bytes
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    within: WorkLimits
    is_cancelled: bool = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.pool.call_off(self)


@dataclass(slots=True, eq=False)
class _Worker:
    """One process. It is over when it has ended, and all that it wrote was read."""

    number: int
    modules: str
    memory_bytes: int
    connection: socket.socket | None
    job: _Job | None = None
    """``None``: it waits for one, or ends."""
    answer: bytearray = field(default_factory=bytearray)
    code: int | None = None
    is_too_long: bool = False

    @property
    def is_spare(self) -> bool:
        return self.job is None and self.connection is not None and self.code is None

    def suits(self, job: _Job) -> bool:
        """Whether it waits for a job, and has the modules and the memory that this one wants."""
        return self.is_spare and (self.modules, self.memory_bytes) == (job.modules, job.within.memory_bytes)

    def header(self) -> tuple[bytes, bool, int]:
        """What the answer says of itself, see `peerd.system.work_server.ANSWER`; nothing as long as it is not here."""
        return ANSWER.unpack_from(self.answer) if len(self.answer) >= ANSWER.size else (b"", False, 0)

    def is_too_much(self, result_bytes_max: int) -> bool:
        """Whether the answer is longer than that, or will be, or is longer than it says."""
        _, _, size = self.header()
        return size > result_bytes_max or len(self.answer) > ANSWER.size + size

    def is_done(self) -> bool:
        """Whether the result is here, and the process waits for another job."""
        kind, stays, size = self.header()
        return kind == RESULT and stays and len(self.answer) == ANSWER.size + size

    def outcome(self, within: WorkLimits) -> bytes | Unavailable:
        """Return the job's result, or the reason why there is none."""
        kind, _, size = self.header()
        text = bytes(memoryview(self.answer)[ANSWER.size :])
        if self.code in (None, 0) and not self.is_too_long and kind == RESULT and len(text) == size:
            return text
        return Unavailable(f"{within.name} {self._reason(kind, text, within)}")

    def _reason(self, kind: bytes, text: bytes, within: WorkLimits) -> str:
        if self.is_too_long:
            return f"gave a result of more than {format_size(within.result_bytes_max)}"
        if kind == NO_MEMORY:
            return f"exceeded {format_size(within.memory_bytes)} of memory"
        if self.code == -signal.SIGXCPU:
            return f"exceeded {format_duration(within.cpu_s)} of processor time"
        if self.code == -signal.SIGALRM:
            return f"took longer than {within.wall_s:.3g} s"
        if self.code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGKILL):
            name = signal.Signals(-self.code).name
            limit = format_size(within.memory_bytes)
            return f"was ended by {name}: it may have exceeded {limit} of memory"
        if self.code == NO_PROCESS:
            return "found no process: the machine has too many"
        if self.code == 0 and text:
            return f"failed: {text[:REASON_BYTES_MAX].decode('utf-8', 'replace')}"
        return f"ended without a result (exit code {self.code})"


class ProcessPool:
    """Runs functions in processes; ``done`` or ``failed`` is called, on the loop, unless closed or cancelled."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_s = idle_s
        self._idle: asyncio.TimerHandle | None = None
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[_Job] = []
        self._workers: dict[int, _Worker] = {}
        self._numbers = 0
        self._is_closed = False

    @property
    def outstanding(self) -> int:
        """Jobs waiting or running."""
        return len(self._waiting) + len(self._running())

    @property
    def server_pid(self) -> int | None:
        """The process that workers are forked from, while there is one."""
        return None if self._process is None else self._process.pid

    def submit(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        within: WorkLimits,
    ) -> _Job:
        """Queue one job; over the bound it fails, after this has returned. Raises `Bug` for what cannot be pickled."""
        try:
            request = pickle.dumps((function, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise Bug(f"a job for a process has to be picklable: {error}") from error
        modules = getattr(function, "__module__", None) or "builtins", *within.modules
        header = REQUEST.pack(len(request), within.cpu_s, within.wall_s)
        job = _Job(self, " ".join(modules), header + request, done, failed, within)
        if self._is_closed or self.outstanding >= JOBS_MAX:
            self._refuse(job, f"{self.outstanding} jobs are waiting for a worker")
        elif len(request) > REQUEST_BYTES_MAX:
            self._refuse(job, f"{within.name} takes {len(request)} bytes to describe, more than {REQUEST_BYTES_MAX}")
        else:
            self._waiting.append(job)
            self._start_waiting()
        return job

    def call_off(self, job: _Job) -> None:
        """Forget a job that waits, or kill its worker; the place is free when the process has ended."""
        if job in self._waiting:
            self._waiting.remove(job)
        for worker in self._workers.values():
            if worker.job is job:
                self._kill(worker)

    def close(self) -> None:
        """Take no more jobs and forget all; the server kills what runs, and is not waited for."""
        self._is_closed = True
        self._waiting.clear()
        self._end_server()

    # Jobs

    def _running(self) -> list[_Job]:
        return [worker.job for worker in self._workers.values() if worker.job is not None]

    def _refuse(self, job: _Job, reason: str) -> None:
        error = Unavailable(reason)
        self._loop.call_soon(lambda: None if job.is_cancelled or self._is_closed else job.failed(error))

    def _next(self) -> _Job | None:
        """The first job of the owner that has the fewest running; the last place is for an owner that has none."""
        running = self._running()
        if len(running) >= RUNNING_MAX or not self._waiting:
            return None
        has: Counter[Hashable] = Counter(job.within.owner for job in running)
        job = min(self._waiting, key=lambda each: has[each.within.owner])
        return None if has[job.within.owner] >= RUNNING_MAX - 1 else job

    def _start_waiting(self) -> None:
        while (job := self._next()) is not None:
            self._waiting.remove(job)
            self._start(job)

    def _start(self, job: _Job) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            worker = self._spare_with(job) or self._forked_with(job)
        except OSError as error:
            self._refuse(job, f"no worker could be started: {error.strerror}")
        else:
            worker.job = job

    def _spare_with(self, job: _Job) -> _Worker | None:
        """Give the job to a worker that waits for one; ``None`` where there is none."""
        for worker in self._workers.values():
            if worker.suits(job) and worker.connection is not None:
                with suppress(OSError):  # it has just ended, as the server will say
                    worker.connection.send(job.request)
                    return worker
        return None

    def _forked_with(self, job: _Job) -> _Worker:
        """Give the job to a new worker, in the place of one that waits for others if there are too many."""
        spare = next((worker for worker in self._workers.values() if worker.is_spare), None)
        if spare is not None and len(self._workers) >= RUNNING_MAX:
            self._kill(spare)
        control = self._server()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            ours.send(job.request)
            self._numbers += 1
            start = START.pack(b"S", self._numbers, job.within.memory_bytes)
            socket.send_fds(control, [start + job.modules.encode()], [theirs.fileno()])
        worker = _Worker(self._numbers, job.modules, job.within.memory_bytes, ours)
        self._workers[worker.number] = worker
        self._loop.add_reader(ours, self._read, worker)
        return worker

    def _read(self, worker: _Worker) -> None:
        if worker.connection is None:
            return
        try:
            data = worker.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._stop_reading(worker)
            self._settle(worker)
            return
        worker.answer += data
        if worker.job is None:  # it says what nobody has asked for
            self._kill(worker)
        elif worker.is_too_much(worker.job.within.result_bytes_max):
            worker.is_too_long = True
            worker.answer.clear()
            self._kill(worker)
        elif worker.is_done():
            self._finish(worker, worker.job)

    def _kill(self, worker: _Worker) -> None:
        self._stop_reading(worker)
        if self._control is not None:
            with suppress(OSError):  # the server is gone, and its workers with it
                self._control.send(KILL.pack(b"K", worker.number))

    def _stop_reading(self, worker: _Worker) -> None:
        if worker.connection is not None:
            self._loop.remove_reader(worker.connection)
            worker.connection.close()
            worker.connection = None

    def _settle(self, worker: _Worker) -> None:
        """The process may have ended, and all that it wrote may be here."""
        if worker.code is None or worker.connection is not None:
            return
        del self._workers[worker.number]
        if worker.job is not None:
            self._finish(worker, worker.job)

    def _finish(self, worker: _Worker, job: _Job) -> None:
        outcome = worker.outcome(job.within)
        worker.job = None
        worker.answer.clear()
        self._start_waiting()
        if not self._running():
            self._idle = self._loop.call_later(self._idle_s, self._end_server)
        if job.is_cancelled:
            return
        if isinstance(outcome, Unavailable):
            job.failed(outcome)
        else:
            job.done(outcome)

    # The server

    def _server(self) -> socket.socket:
        """The connection to the server, which is started if need be."""
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with theirs:
                descriptor = theirs.fileno()
                # -P: nothing is imported from the current folder. The new session keeps a terminal's signals away.
                command = [sys.executable, "-P", "-m", "peerd.system.work_server", str(descriptor)]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[descriptor], start_new_session=True
                )
            self._control = ours
            self._loop.add_reader(ours, self._hear)
        return self._control

    def _hear(self) -> None:
        if self._control is None:
            return
        try:
            message = self._control.recv(CONTROL_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._server_lost()
            return
        number, code = ENDED.unpack(message)
        worker = self._workers.get(number)
        if worker is not None:
            worker.code = code
            self._settle(worker)

    def _server_lost(self) -> None:
        lost = self._running()
        self._end_server()
        for job in lost:
            self._refuse(job, f"{job.within.name} was ended: the process that workers come from was lost")
        self._start_waiting()

    def _end_server(self) -> None:
        """Close the connection to the server, which then ends with all workers. A thread waits for it, and not the
        loop."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        for worker in self._workers.values():
            self._stop_reading(worker)
        self._workers.clear()
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._process is not None:
            threading.Thread(target=self._process.wait, name="peerd-work-server-end", daemon=True).start()
            self._process = None
