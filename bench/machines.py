"""A ring of daemons, each on a machine of its own behind a slow link: network namespaces."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Final

from bench.measure import BenchFailure
from bench.namespaces import Namespaces
from bench.processes import Children
from peerd.client import Client

PORT: Final = 7420
READY_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines, each with a configuration and a certificate of one ring; ``index`` counts them from 0."""

    folder: Path
    network: Namespaces
    children: Children

    def config_file(self, index: int) -> Path:
        """The configuration of the daemon of that machine."""
        return self._of(index) / "peerd.toml"

    def client(self, index: int) -> Client:
        """A client of that daemon."""
        return Client(str(self._of(index) / "admin.sock"))

    async def ready_clients(self, stack: AsyncExitStack, count: int) -> list[Client]:
        """A client of each daemon, all of which are ready."""
        found = [self.client(index) for index in range(count)]
        for client in found:
            await stack.enter_async_context(client)
            await client.wait_ready(READY_S)
        return found

    @contextmanager
    def daemons(self, count: int, environment: Callable[[int], Mapping[str, str]]) -> Iterator[Sequence[Popen[bytes]]]:
        """Run a daemon on each machine; leaving ends them."""
        started = [self._run(index, environment(index)) for index in range(count)]
        try:
            yield started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                self.children.end(process)

    def _of(self, index: int) -> Path:
        return self.folder / f"node{index}"

    def _run(self, index: int, environment: Mapping[str, str]) -> Popen[bytes]:
        command = [sys.executable, "-m", "peerd", "run", "--config", str(self.config_file(index))]
        with (self.folder / f"{index}.log").open("wb") as log:
            return self.children.start(
                self.network.command(index, *command), stdout=log, stderr=log, environment=environment
            )

    def make(self, index: int) -> None:
        """Make the configuration and the certificate of a machine; the first one makes the ring's authority."""
        command = ["init", "--dir", str(self._of(index)), "--cluster", "bench"]
        command += ["--listen", f"{self.network.address(index)}:{PORT}"]
        if index:
            command += ["--ca", str(self._of(0) / "ca"), "--bootstrap", f"{self.network.address(0)}:{PORT}"]
        made = self.children.start([sys.executable, "-m", "peerd", *command])
        if made.wait():
            raise BenchFailure(f"peerd init ended with status {made.returncode}")
        self.children.end(made)


@contextmanager
def machines(count: int, megabits: float) -> Iterator[Machines]:
    """So many machines, whose links carry so many megabits a second each way. Raises `BenchFailure`."""
    with (
        tempfile.TemporaryDirectory(prefix="peerd-bench-") as folder,
        Namespaces(count, megabits) as network,
        Children() as children,  # they end before their machines are deleted
    ):
        found = Machines(Path(folder), network, children)
        for index in range(count):
            found.make(index)
        yield found
