"""``peerd ARGUMENTS`` as a process of its own, without half a second of imports each time.

The first command starts a server (this module, run as a program) that imports everything once and forks a child for
each command: the very same code runs in a process with its own pid, signals, environment and files. Only what
``python -m`` does before `peerd.cli.main` is left out; the tests of starting up run real ones.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX: Final = 256 * 1024
DESCRIPTORS: Final = 4
"""Descriptors sent with a request: standard input, output, error, and the pipe for the exit code."""
IMPORTED: Final = (
    "peerd.cli.app",
    "peerd.cli.run",
    "peerd.cluster.node_process",
    "protocols.aggregation.front.client",
    "protocols.aggregation.front.commands",
    "protocols.aggregation.front.http",
)


class Forked:
    """A running command; of `subprocess.Popen` what the tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        files_max: int | None = None,
        file_bytes_max: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._ending, writer = os.pipe()
        try:
            asked = {
                "arguments": list(arguments),
                "env": dict(env),
                "cwd": os.getcwd(),
                "files_max": files_max,
                "file_bytes_max": file_bytes_max,
            }
            server = _server()
            socket.send_fds(server, [json.dumps(asked).encode()], [stdin, stdout, stderr, writer])
            self.pid = int(server.recv(64))
        finally:
            os.close(writer)

    def __del__(self) -> None:
        os.close(self._ending)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal that ended it. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            waiting = select.poll()  # unlike select(), for any number of descriptors
            waiting.register(self._ending, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("peerd", timeout or 0.0)
            self.returncode = int(os.read(self._ending, 64))
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, or ``None`` while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal; does nothing when the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server() -> socket.socket:
    """Return the connection to the server, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], env=_without_settings())

    def end() -> None:
        ours.close()
        process.wait(10)

    atexit.register(end)
    return ours


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PEERD_")}


# --- the server -----------------------------------------------------------------------------------------------------


class Server:
    """Forks commands, and reports their exit codes. One thread."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._endings: dict[int, int] = {}
        """For each process id, the pipe for its exit code."""
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve until the tests close the connection; then kill the processes that are left."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests end this process
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        while True:
            readable, _, _ = select.select([self._line.fileno(), self._wake_reader], [], [])
            if self._wake_reader in readable:
                os.read(self._wake_reader, 512)
                self._reap()
            if self._line.fileno() in readable:
                data, descriptors, _, _ = socket.recv_fds(self._line, REQUEST_BYTES_MAX, DESCRIPTORS)
                if not data:
                    break
                self._start(json.loads(data), descriptors)
        for pid in self._endings:
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._endings:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            ending = self._endings.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for the exit code any more
                os.write(ending, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(ending)

    def _start(self, asked: dict[str, Any], descriptors: list[int]) -> None:
        *standard, ending = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for descriptor in (self._line.fileno(), self._wake_reader, self._wake_writer, ending):
                os.close(descriptor)
            for other in self._endings.values():
                os.close(other)
            be_peerd(asked, standard)
        self._endings[pid] = ending
        for descriptor in standard:
            os.close(descriptor)
        self._line.send(str(pid).encode())


def be_peerd(asked: dict[str, Any], standard: list[int]) -> NoReturn:
    """Run the command in the child, which ends afterwards."""
    status = 1
    try:
        for target, descriptor in enumerate(standard):
            os.dup2(descriptor, target)
            os.close(descriptor)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(asked["env"])
        os.chdir(asked["cwd"])
        if (files_max := asked["files_max"]) is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
        if (file_bytes_max := asked["file_bytes_max"]) is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
        sys.argv = ["peerd", *asked["arguments"]]
        from peerd.cli.main import main

        status = int(main(asked["arguments"]))
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # as the interpreter does
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    """Import all that commands and daemons need, and serve."""
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("peerd.cluster.node_process").prepare()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as line:
        Server(line).run()


if __name__ == "__main__":
    serve()
