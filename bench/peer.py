"""A daemon with the benchmark's plugin, told what to do on standard input: ``python -m bench.peer CONFIG``.

It answers JSON lines with JSON lines and stops at the end of its input.
"""

from __future__ import annotations

import asyncio
import cProfile
import io
import json
import logging
import os
import pstats
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.counters import QUERY, count_for, counters, partial as partial_of
from bench.workload import Pump
from peerd.api import SizedBlob, SwapCallbacks, Value
from peerd.config import load_config
from peerd.daemon import loops
from peerd.daemon.service import Daemon
from peerd.ids import format_id, parse_id
from peerd.messages import PeerRef
from peerd.telemetry.logs import configure_logging
from protocols.aggregation.partial import Partial, merge

COMMAND_BYTES_MAX: Final = 65536
POLL_S: Final = 0.01
FETCHES_AT_ONCE: Final = 4
"""More at a time would share the link of the node that fetches, and gain nothing."""


class Peer:
    """Carries out commands on one daemon."""

    def __init__(self, daemon: Daemon, pump: Pump) -> None:
        self._daemon = daemon
        self._pump = pump

    async def wait_ring(self, size: int) -> dict[str, Any]:
        """Wait until the ring has that many nodes; returns this node's id and address."""
        node = self._daemon.node
        while not node.is_ready or round(node.overlay.estimated_ring_size()) < size:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(POLL_S)
        return {"id": format_id(self._daemon.peer.id), "host": self._daemon.peer.host, "port": self._daemon.peer.port}

    async def hold(self, size_bytes: int) -> dict[str, Any]:
        """Make the value that this node gives in swaps."""
        self._pump.value = os.urandom(size_bytes)
        return {}

    async def swap(self, peer: list[Any]) -> dict[str, Any]:
        """One swap with the other node, until both values are verified at both sides."""
        done: asyncio.Future[Value] = asyncio.get_running_loop().create_future()

        def failed(reason: str) -> None:
            done.set_exception(RuntimeError(f"the swap failed: {reason}"))

        began, cpu = time.perf_counter(), time.process_time()
        callbacks = SwapCallbacks(done.set_result, failed)
        self._pump.host.swap(_peer(peer), b"value", self._pump.value, callbacks)
        received = await done
        duration_s = time.perf_counter() - began
        assert isinstance(received, bytes | bytearray | memoryview)
        return {"duration_s": duration_s, "received_bytes": len(received), "cpu_s": time.process_time() - cpu}

    async def hold_counters(self, size_bytes: int, index: int) -> dict[str, Any]:
        """Make the value that this node gives: counters, as in a round."""
        self._pump.value = partial_of(counters(count_for(size_bytes), index), index + 1).encode()
        return {}

    async def collect(self, peers: list[list[Any]]) -> dict[str, Any]:
        """Fetch the counters of all these nodes and add them up with its own: what is done without a tree."""
        began, fetches = time.perf_counter(), asyncio.Semaphore(FETCHES_AT_ONCE)

        async def fetch(peer: list[Any]) -> Partial:
            async with fetches:
                value = await self._fetch(_peer(peer))
            return await asyncio.to_thread(Partial.decode, value, QUERY)

        own = self._pump.value
        assert isinstance(own, bytes)
        total = Partial.decode(own, QUERY)
        for found in asyncio.as_completed(map(fetch, peers)):
            total = await asyncio.to_thread(merge, total, await found)
        return {"duration_s": time.perf_counter() - began, "contributors": len(total.contributors)}

    async def _fetch(self, peer: PeerRef) -> bytes:
        done: asyncio.Future[Value] = asyncio.get_running_loop().create_future()

        def failed(reason: str) -> None:
            done.set_exception(RuntimeError(f"the fetch failed: {reason}"))

        self._pump.host.fetch(peer, b"value", SwapCallbacks(done.set_result, failed))
        received = await done
        assert not isinstance(received, SizedBlob)
        return bytes(received)

    async def pump(self, peer: list[Any], count: int) -> dict[str, Any]:
        """Probes in a pipeline, until the other node has handled the last one."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        began, cpu = time.perf_counter(), time.process_time()
        self._pump.pump(_peer(peer), count, partial(done.set_result, None))
        await done
        return {"duration_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}

    async def cpu(self) -> dict[str, Any]:
        """Processor time used so far."""
        return {"cpu_s": time.process_time()}

    async def command(self, line: bytes) -> dict[str, Any]:
        """Carry out one line."""
        arguments = json.loads(line)
        name = arguments.pop("command")
        commands: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
            "wait_ring": self.wait_ring,
            "hold": self.hold,
            "hold_counters": self.hold_counters,
            "collect": self.collect,
            "swap": self.swap,
            "pump": self.pump,
            "cpu": self.cpu,
        }
        try:
            return await commands[name](**arguments)
        except RuntimeError as error:
            return {"failed": str(error)}


def _peer(fields: list[Any]) -> PeerRef:
    node_id, host, port = fields
    return PeerRef(parse_id(node_id), host, port)


async def serve(config: Path) -> None:
    """Answer commands until there are no more."""
    reader = asyncio.StreamReader(limit=COMMAND_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    pump = Pump()
    async with Daemon(load_config([config], environment={}), plugins=[pump]) as daemon:
        peer = Peer(daemon, pump)
        while line := await reader.readline():
            answer = await peer.command(line)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def main() -> None:
    """Run the daemon. With ``--profile`` a profile of the whole run goes to standard error."""
    configure_logging("warning", "json")
    config = Path(sys.argv[1])
    if "--profile" not in sys.argv:
        loops.run(serve(config))
        return
    profile = cProfile.Profile()
    profile.runcall(loops.run, serve(config))
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(25)
    logging.getLogger("bench").warning(text.getvalue())


if __name__ == "__main__":
    main()
