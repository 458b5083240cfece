"""The small process from which jobs are forked, and what one of them does: ``python -m peerd.system.work_server FD``.

`peerd.daemon.processes` starts it and talks to it. It imports the modules of the jobs and nothing else of the daemon's,
has one thread, and so forks in a few milliseconds. Each job is one process that bounds itself before it reads what it
has to do. This module imports little, because the daemon waits for it before its first job.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, Final

from peerd.errors import Unavailable

START: Final = struct.Struct("!cQQdd")
"""``S``, number of the job, bytes of memory, seconds of processor time, seconds in all; then the names of modules, with
a space between. The job's connection is sent along."""
KILL: Final = struct.Struct("!cQ")
"""``K``, number of the job."""
ENDED: Final = struct.Struct("!Qi")
"""Number of the job, and how its process ended: the exit code, or minus the signal."""
REQUEST_HEADER: Final = struct.Struct("!I")
"""Length of the pickled function and arguments that the daemon sends to a job."""
CONTROL_BYTES_MAX: Final = 4096

RESULT: Final = b"R"
"""First byte of a job's answer: the rest is what the function returned."""
NO_MEMORY: Final = b"M"
FAILED: Final = b"F"
"""First byte of a job's answer: the rest is why it failed."""
REASON_BYTES_MAX: Final = 1024
NO_PROCESS: Final = 71
"""Exit code of a job for which no process could be made (``EX_OSERR``)."""
WALL_S_MIN: Final = 0.01
"""The least time for a job: a timer of 0 s would never fire."""
NICENESS: Final = 10
"""The niceness of jobs, so that the daemon gets the processor first."""
OOM_SCORE: Final = b"500"
"""When the machine, or the unit's ``MemoryMax``, has no memory left, the kernel ends a job and not the daemon."""


class WorkServer:
    """Forks a process for each job, kills it when told, reports how it ended. Ends, with all jobs, with the daemon."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._jobs: dict[int, int] = {}
        """The processes that have not been waited for, and the numbers of their jobs."""
        self._children, self._wake = socket.socketpair()
        for end in (self._children, self._wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the daemon closes the connection, which it also does by dying."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._children.fileno() in ready:
                with suppress(BlockingIOError):
                    self._children.recv(CONTROL_BYTES_MAX)
            self._reap()
            if self._control.fileno() in ready and not self._take():
                break
        for process in self._jobs:
            os.kill(process, signal.SIGKILL)

    def _take(self) -> bool:
        """Handle one message; ``False`` at the end."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, CONTROL_BYTES_MAX, 1)
        except ConnectionResetError:  # the daemon has gone before it read all that it was told
            return False
        if not message:
            return False
        if message[:1] == b"K":
            _, killed = KILL.unpack(message)
            for process, number in self._jobs.items():
                if number == killed:
                    os.kill(process, signal.SIGKILL)
            return True
        _, number, memory_bytes, cpu_s, wall_s = START.unpack_from(message)
        for name in message[START.size :].decode().split(" "):
            with suppress(ImportError):  # the job will meet it again, and say so
                importlib.import_module(name)
        gc.freeze()
        with socket.socket(fileno=descriptors[0]) as connection:
            self._fork(number, connection, memory_bytes, cpu_s, wall_s)
        return True

    def _fork(self, number: int, connection: socket.socket, memory_bytes: int, cpu_s: float, wall_s: float) -> None:
        try:
            process = os.fork()
        except OSError:
            self._tell(number, NO_PROCESS)
            return
        if process:
            self._jobs[process] = number
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._children, self._wake):
                end.close()
            work(connection, memory_bytes, cpu_s, wall_s)
            code = 0
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._jobs:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            self._tell(self._jobs.pop(process), os.waitstatus_to_exitcode(status))

    def _tell(self, number: int, code: int) -> None:
        with suppress(OSError):  # the daemon is gone, which the next read shows
            self._control.send(ENDED.pack(number, code))


def work(connection: socket.socket, memory_bytes: int, cpu_s: float, wall_s: float) -> None:
    """Do one job in this process, which ends afterwards: read the function, run it, write the answer."""
    try:
        _bound(memory_bytes, cpu_s, wall_s)
        answer = RESULT, _run(connection)
    except MemoryError:
        answer = NO_MEMORY, b""
    except Exception as error:  # any exception is the job's outcome, and is reported to whoever submitted it
        text = str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
        answer = FAILED, text.encode("utf-8", "replace")[:REASON_BYTES_MAX]
    connection.sendall(answer[0])
    connection.sendall(answer[1])


def _bound(memory_bytes: int, cpu_s: float, wall_s: float) -> None:
    """Have the kernel limit this process: that holds even if a library hangs or the daemon dies."""
    with suppress(OSError):
        os.nice(NICENESS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
        file.write(OOM_SCORE)
    seconds = max(1, round(cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    signal.setitimer(signal.ITIMER_REAL, max(wall_s, WALL_S_MIN))


def _run(connection: socket.socket) -> bytes:
    (size,) = REQUEST_HEADER.unpack(_read(connection, REQUEST_HEADER.size))
    function, arguments = pickle.loads(_read(connection, size))
    result: Any = function(*arguments)
    if type(result) is not bytes:
        raise TypeError("it returned no bytes")
    return result


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the daemon has gone")
        data += part
    return bytes(data)


if __name__ == "__main__":
    WorkServer(socket.socket(fileno=int(sys.argv[1]))).run()
