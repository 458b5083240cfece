"""A daemon as an operator has it: a process of its own, run by the command line, its log in a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.support.forked import Forked

STOP_S = 30.0
POLL_S = 0.05
PATIENCE_S = 40.0


def peerd(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    with open(os.devnull, "rb") as nothing, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        command = Forked(
            arguments,
            stdin=nothing.fileno(),
            stdout=output.fileno(),
            stderr=errors.fileno(),
            env=clean_environment(),
        )
        try:
            code = command.wait(timeout_s)
        finally:
            command.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read(), errors.read())


def clean_environment() -> dict[str, str]:
    """Return the environment without peerd's settings of the person who runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PEERD_")}


@contextmanager
def restarted(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A node of a local cluster that was killed runs again, with its configuration and state."""
    command = [sys.executable, "-m", "peerd", "run", "--config", str(folder / "peerd.toml")]
    process = subprocess.Popen(command, cwd=folder, env=clean_environment(), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_S)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll; fails with ``what`` after a time that only a broken daemon needs."""
    deadline, look_again = time.monotonic() + timeout_s, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        look_again.wait(POLL_S)


class DaemonProcess:
    """``peerd run`` with its state in ``directory``. Without TLS unless ``config`` names a file of `peerd init`."""

    def __init__(
        self,
        directory: Path,
        *sets: str,
        config: Path | None = None,
        files_max: int | None = None,
        file_bytes_max: int | None = None,
        output: Path | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._ports_file = directory / "ports.json"
        self._ports_file.unlink(missing_ok=True)
        settings = [
            "node.listen=127.0.0.1:0",
            "node.profile=local",
            f"node.ports_file={self._ports_file}",
            f"admin.socket={self.socket}",
            "admin.http=",
            *([] if config else [f"node.state_dir={directory / 'state'}", "tls.mode=off"]),
            *sets,
        ]
        command = ["run", *(["--config", str(config)] if config else [])]
        command += [word for setting in settings for word in ("--set", setting)]
        with (
            open(os.devnull, "rb") as nothing,
            (directory / "log").open("ab") as log,
            (output or directory / "log").open("ab") as printed,
        ):
            self.process = Forked(
                command,
                stdin=nothing.fileno(),
                stdout=printed.fileno(),
                stderr=log.fileno(),
                env=clean_environment(),
                files_max=files_max,
                file_bytes_max=file_bytes_max,
            )

    @property
    def socket(self) -> str:
        """Its admin socket."""
        return str(self.directory / "admin.sock")

    @property
    def ports(self) -> dict[str, Any]:
        """The ports file, which the daemon wrote once it served."""
        wait_until(lambda: self._ports_file.exists() or self.process.poll() is not None, "it serves or ends")
        assert self._ports_file.exists(), self.log()
        ports: dict[str, Any] = json.loads(self._ports_file.read_text())
        return ports

    @property
    def address(self) -> str:
        """host:port for peers."""
        return str(self.ports["peer"])

    @property
    def port(self) -> int:
        """The peer port on loopback."""
        return int(self.address.rpartition(":")[2])

    def log(self) -> str:
        """The daemon's log so far."""
        return (self.directory / "log").read_text(errors="replace")

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that asks this daemon."""
        return peerd(*arguments, "--socket", self.socket)

    def ready(self) -> None:
        """Wait until it is in the ring."""
        assert self.ports
        assert self.ask("healthcheck", "--wait", str(PATIENCE_S)).returncode == 0, self.log()

    def open_files(self) -> int:
        """How many descriptors the process has."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def exit_code(self) -> int:
        """Wait until the process ends by itself; returns its exit code."""
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """Send TERM; returns the exit code. A daemon that does not end is killed, and fails the test."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it did not end within {STOP_S:g} s of TERM:\n{self.log()}") from None


@contextmanager
def running(
    directory: Path,
    *sets: str,
    config: Path | None = None,
    files_max: int | None = None,
    file_bytes_max: int | None = None,
    output: Path | None = None,
) -> Iterator[DaemonProcess]:
    """A daemon process that does not outlive the test. ``file_bytes_max``: as if the disk were full; ``output``: where
    its standard output goes, which is to its log otherwise."""
    limits = {"files_max": files_max, "file_bytes_max": file_bytes_max}
    daemon = DaemonProcess(directory, *sets, config=config, output=output, **limits)
    try:
        yield daemon
    finally:
        daemon.stop()
