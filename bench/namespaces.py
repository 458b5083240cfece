"""Machines that are network namespaces, joined by links of a stated rate. Linux, root, ``ip`` and ``tc`` only."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType
from typing import Final, Self

from bench.measure import BenchFailure

TOOLS: Final = ("ip", "tc")
QUEUE: Final = ("burst", "128kb", "latency", "100ms")
"""What waits in front of a link: up to 100 ms, as in a common router."""


def why_not() -> str | None:
    """Why there can be no namespaces here; ``None`` where there can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {' and '.join(missing)} (iproute2)"
    return None if os.geteuid() == 0 else "needs root, for network namespaces"


class Namespaces:
    """A context manager: ``count`` machines on one switch, which is a namespace of its own; all are deleted after use.

    Each has one link, of ``megabits`` a second both ways, and the address `address` says.
    """

    def __init__(self, count: int, megabits: float) -> None:
        self._count, self._megabits = count, megabits
        self._hub = f"peerd-bench-{os.getpid()}"
        self._made: list[str] = []

    def name(self, index: int) -> str:
        """The namespace of a machine."""
        return f"{self._hub}-{index}"

    def address(self, index: int) -> str:
        """Its IPv4 address."""
        return f"10.79.0.{index + 1}"

    def command(self, index: int, *command: str) -> list[str]:
        """A command that runs on a machine."""
        return ["ip", "netns", "exec", self.name(index), *command]

    def __enter__(self) -> Self:
        try:
            self._add(self._hub)
            self._ip(self._hub, "link", "add", "switch", "type", "bridge")
            self._ip(self._hub, "link", "set", "switch", "up")
            for index in range(self._count):
                self._machine(index)
        except BaseException:
            self._delete()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._delete()

    def sent_bytes(self) -> list[int]:
        """What each machine has sent so far, with the headers of all layers."""
        files = [f"/sys/class/net/port{index}/statistics/rx_bytes" for index in range(self._count)]
        return [int(line) for line in _run("ip", "netns", "exec", self._hub, "cat", *files).split()]

    def _machine(self, index: int) -> None:
        name, port = self.name(index), f"port{index}"
        self._add(name)
        self._ip(self._hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._ip(self._hub, "link", "set", port, "master", "switch", "up")
        self._ip(name, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
        for link in ("eth0", "lo"):
            self._ip(name, "link", "set", link, "up")
        for namespace, link in ((name, "eth0"), (self._hub, port)):
            rate = ("rate", f"{self._megabits:g}mbit", *QUEUE)
            _run("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", link, "root", "tbf", *rate)

    def _add(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)

    @staticmethod
    def _ip(namespace: str, *arguments: str) -> None:
        _run("ip", "-n", namespace, *arguments)

    def _delete(self) -> None:
        while self._made:
            subprocess.run(["ip", "netns", "delete", self._made.pop()], check=False, capture_output=True)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailure(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
