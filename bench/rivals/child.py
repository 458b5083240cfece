"""A process with subscribers, or the publisher, of one system: ``python -m MODULE SYSTEM WORK``.

``WORK`` is the file of what is published and wanted. It answers JSON lines with JSON lines until the end of its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from bench.rivals.clients import Clients, Publisher, Subscribers, W
from peerd.daemon import loops
from peerd.errors import PeerdError

COMMAND_BYTES_MAX: Final = 4 * 1024 * 1024
JOINING_AT_ONCE: Final = 4
PROGRESS_S: Final = 60.0
"""When nothing has come for so long, what is missing does not come."""


class Child:
    """Carries out the commands of `bench.rivals.systems`."""

    def __init__(self, clients: Clients[W], system: str, work: W) -> None:
        make_subscribers, make_publisher = clients.of[system]
        self._subscribers: Subscribers = make_subscribers(work, self._on_found, self._on_received)
        self._publisher: Publisher = make_publisher(work)
        self._changed = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        self._found: dict[int, int] = {}
        self._latencies_ms: list[float] = []
        self._received = 0
        self._last_at = 0.0

    def _on_found(self, number: int, sent_ns: int) -> None:
        self._found[number] = self._found.get(number, 0) + 1
        self._last_at = time.monotonic()
        self._latencies_ms.append((time.monotonic_ns() - sent_ns) / 1e6)

    def _on_received(self) -> None:
        self._received += 1
        self._changed.set()

    async def join(self, members: list[tuple[int, str]]) -> dict[str, Any]:
        """Add subscribers: their numbers and places."""
        turns = asyncio.Semaphore(JOINING_AT_ONCE)

        async def join(number: int, place: str) -> None:
            async with turns:
                await self._subscribers.join(place, number)

        await asyncio.gather(*(join(number, place) for number, place in members))
        return {}

    async def begin(self) -> dict[str, Any]:
        """Count anew from here on."""
        self._begin()
        return {"received_bytes": self._subscribers.received_bytes()}

    async def finish(self, received: int) -> dict[str, Any]:
        """Wait until so many messages have come, and say what they were."""
        while self._received < received:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), PROGRESS_S)
            except TimeoutError:
                return {"failed": f"{self._received} of {received} messages came"}
        return {
            "found": sorted(self._found.items()),
            "received": self._received,
            "received_bytes": self._subscribers.received_bytes(),
            "last_at": self._last_at,
            "latencies_ms": self._latencies_ms,
        }

    async def publish(self, place: str, first: int, count: int, rate: float, **options: str) -> dict[str, Any]:
        """Publish messages, ``rate`` a second, or as fast as the system takes them if that is 0."""
        began_at = time.monotonic()
        await self._publisher.publish(place, self._numbers(first, count, rate), **options)
        return {"began_at": began_at, "ended_at": time.monotonic()}

    @staticmethod
    async def _numbers(first: int, count: int, rate: float) -> AsyncGenerator[int, None]:
        began_at = time.monotonic()
        for number in range(count):
            if rate and (wait_s := began_at + number / rate - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            yield first + number

    async def command(self, line: bytes) -> dict[str, Any]:
        """Carry out one line."""
        arguments = json.loads(line)
        commands: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "join": self.join,
            "begin": self.begin,
            "finish": self.finish,
            "publish": self.publish,
        }
        try:
            return await commands[arguments.pop("command")](**arguments)
        except PeerdError as error:
            return {"failed": str(error)}


async def serve(clients: Clients[W], system: str, work: W) -> None:
    """Answer commands until there are no more."""
    reader = asyncio.StreamReader(limit=COMMAND_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    child = Child(clients, system, work)
    while line := await reader.readline():
        answer = await child.command(line)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def run(clients: Clients[W], work_of: Callable[[dict[str, Any]], W]) -> None:
    """The whole process."""
    _, system, file = sys.argv
    loops.run(serve(clients, system, work_of(json.loads(Path(file).read_text()))))
