"""A TCP relay between two daemons that can go quiet: it closes nothing and forwards nothing, as a cut cable does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast

CHUNK_BYTES = 65_536


class Relay:
    """Listens on loopback and forwards to ``target``, which is asked for with each connection.

    While it is `quiet`, connections are still accepted by the kernel, as a dead machine's would not be: the dialler
    finds out by its time limit. The difference to packets that are dropped is that the kernel acknowledges what fits
    the buffers, so that only time limits of the daemons themselves can end a link.
    """

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self.port = 0
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        """Where daemons dial in place of the target."""
        return f"127.0.0.1:{self.port}"

    def quiet(self) -> None:
        """Forward nothing any more, and close nothing, even if an end closes its connection."""
        self._open.clear()

    def resume(self) -> None:
        """Go on."""
        self._open.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._tasks[task] = None
        writers = [writer]
        try:
            await self._relay(reader, writers)
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            del self._tasks[task]
            for each in writers:
                each.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]) -> None:
        await self._open.wait()
        try:
            answers, there = await asyncio.open_connection(*self._target())
            writers.append(there)
            await asyncio.gather(self._pump(reader, there), self._pump(answers, writers[0]))
        except OSError:
            await self._open.wait()  # an end is gone: the other one must not hear of it before the cable is whole

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        await self._open.wait()
        if writer.can_write_eof():
            writer.write_eof()


@dataclass
class Passage:
    """One connection through a `LongPath`: how many one-way latencies what each end has heard took, one after another.

    Loopback connects at once, so TCP's own round trip is counted, and waited for, by the relay.
    """

    dialler: int = 2
    target: int = 1


class LongPath(Relay):
    """A relay that takes ``latency_s`` each way, TCP's handshake included, and counts the latencies."""

    def __init__(self, target: Callable[[], tuple[str, int]], latency_s: float) -> None:
        super().__init__(target)
        self.passages: list[Passage] = []
        """In the order in which they were opened."""
        self._latency_s = latency_s

    async def _relay(self, reader: asyncio.StreamReader, writers: list[asyncio.StreamWriter]) -> None:
        passage = Passage()
        self.passages.append(passage)
        connected_at = asyncio.get_running_loop().time() + 2 * self._latency_s
        answers, there = await asyncio.open_connection(*self._target())
        writers.append(there)
        with contextlib.suppress(OSError):  # an end is gone: so is the other one, when the connections are closed
            await asyncio.gather(
                self._carry(reader, there, passage, "dialler", "target", connected_at),
                self._carry(answers, writers[0], passage, "target", "dialler", connected_at),
            )

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        passage: Passage,
        source: str,
        target: str,
        connected_at: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        data = b"to begin with"

        def arrive(data: bytes, heard: int) -> None:
            setattr(passage, target, max(heard, getattr(passage, target)))
            if writer.is_closing():
                return
            if data:
                writer.write(data)
            elif writer.can_write_eof():
                writer.write_eof()

        while data:
            data = await reader.read(CHUNK_BYTES)
            due = max(loop.time(), connected_at) + self._latency_s
            loop.call_at(due, arrive, data, getattr(passage, source) + 1)
        arrived = loop.create_future()
        loop.call_later(2 * self._latency_s, arrived.set_result, None)
        await arrived
