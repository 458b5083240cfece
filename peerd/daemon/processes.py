"""Worker processes for jobs that strangers choose: each job has its own, which the kernel limits, and can be killed.

The jobs are forked by `peerd.system.work_server`, a small process that is started for the first job and ends when
there has been none for a while, so that a daemon at rest has none. What comes back from a job is bytes, bounded, and
not to be trusted: only its first byte is looked at here.
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
    CONTROL_BYTES_MAX,
    ENDED,
    KILL,
    NO_MEMORY,
    NO_PROCESS,
    REASON_BYTES_MAX,
    REQUEST_HEADER,
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
"""The server ends after so long without a job. Starting it again takes about a third of a second, a job some 10 ms."""
READ_BYTES: Final = 256 * 1024


@dataclass(slots=True, eq=False)
class _Job:
    """One job. It is over when its process has ended and all that it wrote was read."""

    pool: ProcessPool
    modules: str
    request: bytes
    done: Callable[[Any], None]
    failed: Callable[[BaseException], None]
    within: WorkLimits
    number: int = 0
    connection: socket.socket | None = None
    answer: bytearray = field(default_factory=bytearray)
    code: int | None = None
    is_too_long: bool = False
    is_cancelled: bool = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.pool.call_off(self)

    def outcome(self) -> bytes | Unavailable:
        """Return the job's result, or the reason why there is none."""
        kind, text = bytes(self.answer[:1]), self.answer[1:]
        if self.code == 0 and not self.is_too_long and kind == RESULT:
            return bytes(text)
        return Unavailable(f"{self.within.name} {self._reason(kind, text)}")

    def _reason(self, kind: bytes, text: bytearray) -> str:
        within = self.within
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
        self._running: dict[int, _Job] = {}
        self._numbers = 0
        self._is_closed = False

    @property
    def outstanding(self) -> int:
        """Jobs waiting or running."""
        return len(self._waiting) + len(self._running)

    @property
    def server_pid(self) -> int | None:
        """The process that jobs are forked from, while there is one."""
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
        job = _Job(self, " ".join(modules), REQUEST_HEADER.pack(len(request)) + request, done, failed, within)
        if self._is_closed or self.outstanding >= JOBS_MAX:
            self._refuse(job, f"{self.outstanding} jobs are waiting for a worker")
        elif len(request) > REQUEST_BYTES_MAX:
            self._refuse(job, f"{within.name} takes {len(request)} bytes to describe, more than {REQUEST_BYTES_MAX}")
        else:
            self._waiting.append(job)
            self._start_waiting()
        return job

    def call_off(self, job: _Job) -> None:
        """Forget a job that waits, or kill one that runs; the place is free when the process has ended."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif job.number in self._running:
            self._kill(job)

    def close(self) -> None:
        """Take no more jobs and forget all; the server kills what runs, and is not waited for."""
        self._is_closed = True
        self._waiting.clear()
        for job in self._running.values():
            self._stop_reading(job)
        self._running.clear()
        self._end_server()

    # Jobs

    def _refuse(self, job: _Job, reason: str) -> None:
        error = Unavailable(reason)
        self._loop.call_soon(lambda: None if job.is_cancelled or self._is_closed else job.failed(error))

    def _next(self) -> _Job | None:
        """The first job of the owner that has the fewest running; the last place is for an owner that has none."""
        if len(self._running) >= RUNNING_MAX or not self._waiting:
            return None
        has: Counter[Hashable] = Counter(job.within.owner for job in self._running.values())
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
        within = job.within
        try:
            control = self._server()
            ours, theirs = socket.socketpair()
            with theirs:
                ours.setblocking(False)
                ours.send(job.request)
                self._numbers += 1
                start = START.pack(b"S", self._numbers, within.memory_bytes, within.cpu_s, within.wall_s)
                socket.send_fds(control, [start + job.modules.encode()], [theirs.fileno()])
        except OSError as error:
            self._refuse(job, f"no worker could be started: {error.strerror}")
            return
        job.number, job.connection = self._numbers, ours
        self._running[job.number] = job
        self._loop.add_reader(ours, self._read, job)

    def _read(self, job: _Job) -> None:
        if job.connection is None:
            return
        try:
            data = job.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        job.answer += data
        if len(job.answer) > 1 + job.within.result_bytes_max:
            job.is_too_long = True
            job.answer.clear()
            self._kill(job)
        elif not data:
            self._stop_reading(job)
            self._settle(job)

    def _kill(self, job: _Job) -> None:
        self._stop_reading(job)
        if self._control is not None:
            with suppress(OSError):  # the server is gone, and its jobs with it
                self._control.send(KILL.pack(b"K", job.number))

    def _stop_reading(self, job: _Job) -> None:
        if job.connection is not None:
            self._loop.remove_reader(job.connection)
            job.connection.close()
            job.connection = None

    def _settle(self, job: _Job) -> None:
        if job.code is None or job.connection is not None:
            return
        del self._running[job.number]
        outcome = job.outcome()
        job.answer.clear()
        self._start_waiting()
        if not self._running:
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
        job = self._running.get(number)
        if job is not None:
            job.code = code
            self._settle(job)

    def _server_lost(self) -> None:
        self._end_server()
        lost = list(self._running.values())
        self._running.clear()
        for job in lost:
            self._stop_reading(job)
            self._refuse(job, f"{job.within.name} was ended: the process that workers come from was lost")
        self._start_waiting()

    def _end_server(self) -> None:
        """Close the connection to the server, which then ends. A thread waits for it, so that the loop does not."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._process is not None:
            threading.Thread(target=self._process.wait, name="peerd-work-server-end", daemon=True).start()
            self._process = None
