"""The small process from which workers are forked, and what these do: ``python -m peerd.system.work_server FD``.

`peerd.daemon.processes` starts it and talks to it. It imports the modules of the jobs and nothing else of the daemon's,
has one thread, and so forks in a few milliseconds. A worker is a process that bounds itself before it reads what it has
to do. After a job that went well and took little memory it waits for another one, as forking costs more than most jobs;
else it ends. This module imports little, because the daemon waits for it before its first job.
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

START: Final = struct.Struct("!cQQ")
"""``S``, number of the worker, bytes of memory; then the names of modules, with a space between. The worker's
connection is sent along."""
KILL: Final = struct.Struct("!cQ")
"""``K``, number of the worker."""
ENDED: Final = struct.Struct("!Qi")
"""Number of the worker, and how its process ended: the exit code, or minus the signal."""
REQUEST: Final = struct.Struct("!Idd")
"""What the daemon sends to a worker for each job: length, seconds of processor time, seconds in all; then the pickled
function and arguments, of that length."""
ANSWER: Final = struct.Struct("!c?Q")
"""What a worker sends for each job: its kind, whether the worker waits for another job, length; then so many bytes."""
CONTROL_BYTES_MAX: Final = 4096

RESULT: Final = b"R"
"""A kind of answer: the bytes are what the function returned."""
NO_MEMORY: Final = b"M"
FAILED: Final = b"F"
"""A kind of answer: the bytes are why the job failed."""
GROWN_BYTES_MAX: Final = 8 * 1024 * 1024
"""A worker that has grown by more than that ends after its job: the next one is to have as much memory as the first."""
REASON_BYTES_MAX: Final = 1024
NO_PROCESS: Final = 71
"""Exit code of a worker for which no process could be made (``EX_OSERR``)."""
WALL_S_MIN: Final = 0.01
"""The least time for a job: a timer of 0 s would never fire."""
NICENESS: Final = 10
"""The niceness of workers, so that the daemon gets the processor first."""
OOM_SCORE: Final = b"500"
"""When the machine, or the unit's ``MemoryMax``, has no memory left, the kernel ends a worker and not the daemon."""


class WorkServer:
    """Forks workers, kills them when told, reports how they ended. Ends, with all workers, with the daemon."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: dict[int, int] = {}
        """The processes that have not been waited for, and their numbers."""
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
        signal.set_wakeup_fd(-1)  # nobody reads on, and Python would complain of each worker that ends
        for process in self._workers:
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
            for process, number in self._workers.items():
                if number == killed:
                    os.kill(process, signal.SIGKILL)
            return True
        _, number, memory_bytes = START.unpack_from(message)
        for name in message[START.size :].decode().split(" "):
            with suppress(ImportError):  # the job will meet it again, and say so
                importlib.import_module(name)
        gc.freeze()
        with socket.socket(fileno=descriptors[0]) as connection:
            self._fork(number, connection, memory_bytes)
        return True

    def _fork(self, number: int, connection: socket.socket, memory_bytes: int) -> None:
        try:
            process = os.fork()
        except OSError:
            self._tell(number, NO_PROCESS)
            return
        if process:
            self._workers[process] = number
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._children, self._wake):
                end.close()
            work(connection, memory_bytes)
            code = 0
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._workers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            self._tell(self._workers.pop(process), os.waitstatus_to_exitcode(status))

    def _tell(self, number: int, code: int) -> None:
        with suppress(OSError):  # the daemon is gone, which the next read shows
            self._control.send(ENDED.pack(number, code))


def work(connection: socket.socket, memory_bytes: int) -> None:
    """Do one job after the other in this process, which ends afterwards."""
    _bound(memory_bytes)
    most_bytes = _memory_most() + GROWN_BYTES_MAX
    while _do(connection, most_bytes):
        pass


def _do(connection: socket.socket, most_bytes: int) -> bool:
    """Read what to do, do it, write the answer. Returns whether to wait for another job."""
    header = _read(connection, REQUEST.size)
    if not header:
        return False
    size, cpu_s, wall_s = REQUEST.unpack(header)
    try:
        _limit(cpu_s, wall_s)
        kind, answer = RESULT, _run(_read(connection, size))
    except MemoryError:
        kind, answer = NO_MEMORY, b""
    except Exception as error:  # any exception is the job's outcome, and is reported to whoever submitted it
        text = str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
        kind, answer = FAILED, text.encode("utf-8", "replace")[:REASON_BYTES_MAX]
    stays = kind == RESULT and _memory_most() <= most_bytes
    if stays:
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # first: it must not end a worker that has said that it stays
    connection.sendall(ANSWER.pack(kind, stays, len(answer)))
    connection.sendall(answer)
    return stays


def _bound(memory_bytes: int) -> None:
    """Have the kernel limit this process: that holds even if a library hangs or the daemon dies."""
    with suppress(OSError):
        os.nice(NICENESS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb") as file:
        file.write(OOM_SCORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _limit(cpu_s: float, wall_s: float) -> None:
    """Have the kernel end this process when the job takes longer."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = round(used.ru_utime + used.ru_stime) + max(1, round(cpu_s))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if most < 0 else min(seconds, most), most))
    signal.setitimer(signal.ITIMER_REAL, max(wall_s, WALL_S_MIN))


def _memory_most() -> int:
    """The most memory that this process has taken so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _run(request: bytes) -> bytes:
    function, arguments = pickle.loads(request)
    result: Any = function(*arguments)
    if type(result) is not bytes:
        raise TypeError("it returned no bytes")
    return result


def _read(connection: socket.socket, size: int) -> bytes:
    """So many bytes; none if the daemon has nothing more to say."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part and data:
            raise EOFError("the daemon has gone")
        if not part:
            break
        data += part
    return bytes(data)


if __name__ == "__main__":
    WorkServer(socket.socket(fileno=int(sys.argv[1]))).run()
