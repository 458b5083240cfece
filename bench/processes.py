"""Processes that a section starts, and what they use. They are ended by process id when it ends. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from bench.measure import BenchFailure
from peerd.cluster.processes import die_with_parent
from peerd.limits import MIB
from peerd.system.proc import resident_bytes

STOP_TIMEOUT_S: Final = 8.0
ANSWER_TIMEOUT_S: Final = 120.0
LOOPBACK: Final = "127.0.0.1"
REPOSITORY: Final = Path(__file__).resolve().parent.parent


class Children:
    """A context manager: leaving it ends every process started, SIGTERM first and SIGKILL after a bounded wait.

    Should this process be killed, the kernel sends SIGTERM to each of them.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end_all()

    def start(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] = subprocess.DEVNULL,
        stderr: int | IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in its own session: an interrupt at the terminal goes to this one, which ends it in order."""
        parent = os.getpid()
        process = subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=REPOSITORY,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
        )
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End one of them."""
        self._end([process])

    def end_all(self) -> None:
        """End all, last started first."""
        self._end(list(reversed(self._processes)))

    def _end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            if process in self._processes:
                self._processes.remove(process)


class Conversation:
    """A child of ours, run as ``python -m MODULE``, that answers JSON lines with JSON lines."""

    def __init__(
        self, children: Children, module: str, arguments: Sequence[str] = (), within: Sequence[str] = ()
    ) -> None:
        """``within``: a command that runs it, such as that of a network namespace."""
        self._children = children
        command = [*within, sys.executable, "-m", module, *arguments]
        self.process = children.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._name = " ".join([module, *arguments])
        self._rest = b""

    def ask(self, command: str, timeout_s: float = ANSWER_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
        """Send one command and read its answer. Raises `BenchFailure`."""
        self.tell(command, **arguments)
        return self.read(timeout_s)

    def tell(self, command: str, **arguments: Any) -> None:
        """Send one command. Raises `BenchFailure` when the child has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"command": command, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def read(self, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Read the child's next line. Raises `BenchFailure` if it ended, is silent, or says that it failed."""
        line = self._line(time.monotonic() + timeout_s)
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise BenchFailure(f"{self._name}: {answer['failed']}")
        return answer

    def finish(self) -> None:
        """Close the child's input, at which it stops by itself, and wait. Raises `BenchFailure` when it does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise BenchFailure(f"{self._name} does not stop") from error
        if status != 0:
            raise self._ended()

    def _line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._rest:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise BenchFailure(f"{self._name}: no answer in time")
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise self._ended()
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _ended(self) -> BenchFailure:
        return BenchFailure(f"{self._name} ended with status {self.process.wait(STOP_TIMEOUT_S)}; its words are above")


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, poll_s: float = 0.02) -> float:
    """Poll; returns how long it took, seconds. Raises `BenchFailure`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise BenchFailure(f"{what}: not within {timeout_s:g} s")
        time.sleep(poll_s)
    return time.monotonic() - began


def resident_mb(pid: int) -> float:
    """Resident memory in MiB, pages shared with other processes included. Raises ``OSError`` when it is gone."""
    resident = resident_bytes(pid)
    if resident is None:
        raise ProcessLookupError(f"process {pid} is gone")
    return resident / MIB


def cpu_with_workers_s(pid: int) -> float:
    """The same of a daemon, of the server that its workers are forked from, and of the workers that have ended."""
    total_s = cpu_s(pid)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        ticks = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15]
        total_s += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return total_s


def cpu_s(pid: int) -> float:
    """Seconds of processor time that all threads of a process have used, to the nanosecond. Raises ``OSError``."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
