"""A cluster of real daemons on this machine: start, watch, kill one, stop, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from peerd.client import Client
from peerd.cluster import fork_server
from peerd.cluster.layout import (
    DEFAULT_NAME,
    LOOPBACK,
    ClusterRecord,
    Layout,
    NodeRecord,
    NodeTables,
    default_directory,
    socket_file,
)
from peerd.cluster.processes import is_alive, process_ref, require_linux, resident_bytes, send_signal
from peerd.errors import ConfigError, PeerdError, Unavailable
from peerd.limits import LEAF_SET_SIZE
from peerd.models.admin import LinkCuts, Ring, Status
from peerd.models.routes import CUT_LINKS
from peerd.words import counted

NODES_MAX: Final = 256
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = fork_server.GRACE_S + 5.0
POLL_INTERVAL_S: Final = 0.1
POLL_PAUSE_PER_NODE_S: Final = 0.005
"""The pause between two rounds of questions, for each node: answering takes processor time away from joining."""
ASK_TIMEOUT_S: Final = 5.0
LOG_TAIL_LINES: Final = 12

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Forming:
    """How far a cluster has come while it starts, as numbers of nodes."""

    elapsed_s: float
    expected: int
    answering: int
    """How many nodes answer on their admin socket."""
    complete: int
    """How many nodes are ready and have exactly the leaf set that these nodes make."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The state of one node now. ``status`` is ``None`` when it does not answer."""

    node: NodeRecord
    is_alive: bool
    resident_bytes: int | None
    status: Status | None


class NoSuchNode(PeerdError, ValueError):
    """The user gave a number that no node of the cluster has."""

    def __init__(self, index: int, count: int) -> None:
        numbers = f"0 to {count - 1}" if count > 1 else "0 only"
        super().__init__(f"no node {index}: the nodes of this cluster are numbered {numbers}")


class NoSuchSplit(PeerdError, ValueError):
    """The user gave sizes of groups that the cluster cannot be cut into."""

    def __init__(self, sizes: Sequence[int], count: int) -> None:
        given = "/".join(map(str, sizes))
        super().__init__(f"{given} is no way to cut {counted(count, 'node')} in groups: their sizes have to add up")


class LocalCluster:
    """Daemons below one folder. A context manager: leaving it stops the cluster and removes its files.

    Until `detach`, the cluster also ends when this process does, however that happens.
    """

    def __init__(self, directory: Path | None = None, *, name: str = DEFAULT_NAME, keep: bool = False) -> None:
        require_linux()
        self.layout = Layout((directory or default_directory(name)).expanduser().absolute())
        self.name = name
        self.keep = keep
        """Whether event logs and log files outlive the cluster."""
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.down()

    # What exists

    def record(self) -> ClusterRecord:
        """The record on disk. Raises `Unavailable` when no cluster was started here, `ConfigError` when damaged."""
        record = self.layout.read()
        if record is None:
            hint = f"start one with `{self.layout.command('up')}`"
            raise Unavailable(f"no cluster is up in {self.layout.directory}: {hint}")
        return record

    @property
    def is_up(self) -> bool:
        """Whether any process of the cluster lives."""
        return self.layout.is_locked()

    @property
    def is_ours(self) -> bool:
        """Whether this object started the cluster and has not ended it since."""
        return self._server is not None

    def node(self, index: int) -> NodeRecord:
        """One node of the record. Raises `NoSuchNode` for a number that no node has, `Unavailable` as `record`."""
        nodes = self.record().nodes
        if not 0 <= index < len(nodes):
            raise NoSuchNode(index, len(nodes))
        return nodes[index]

    def client(self, index: int) -> Client:
        """The admin API of one node, to be used as an asynchronous context manager."""
        return Client(socket_file(self.record(), index))

    def status(self) -> list[NodeStatus]:
        """Every node now; a node that is dead or silent says so rather than raising. Not inside an event loop."""
        record = self.record()

        answers = asyncio.run(_ask_all(record, record.nodes, Client.status))
        return [
            NodeStatus(node, is_alive(node.process), resident_bytes(node.process), answer)
            for node, answer in zip(record.nodes, answers, strict=True)
        ]

    # Starting

    def up(
        self,
        count: int,
        *,
        settings: NodeTables | None = None,
        timeout_s: float = READY_TIMEOUT_S,
        progress: Callable[[Forming], None] | None = None,
        node_module: str = fork_server.NODE_MODULE,
    ) -> None:
        """Start ``count`` daemons and wait until their ring is complete. Whatever goes wrong, nothing is left behind.

        Raises `Unavailable` when a cluster is up here already, when a daemon ends before it is ready (with the end of
        its log), or when ``timeout_s`` passes; `ConfigError` for settings that no daemon would accept.
        """
        self.start(count, settings=settings, node_module=node_module)
        try:
            self.wait_complete(timeout_s, progress)
        except BaseException:
            self.down()
            raise

    def start(
        self, count: int, *, settings: NodeTables | None = None, node_module: str = fork_server.NODE_MODULE
    ) -> None:
        """Start ``count`` daemons without waiting for them. Raises as `up`."""
        if not 1 <= count <= NODES_MAX:
            raise ConfigError(f"a local cluster has 1 to {NODES_MAX} nodes, not {count}")
        with ExitStack() as stack:
            lock = self.layout.lock()
            stack.callback(os.close, lock)
            try:
                sockets = [stack.enter_context(_reserved_port()) for _ in range(count)]
                ports = [int(sock.getsockname()[1]) for sock in sockets]
                self.layout.create(self.name, ports, settings=settings, is_kept=self.keep)
                self._server = self._start_server([sock.fileno() for sock in sockets], lock, node_module)
            except BaseException:
                self.layout.remove()
                self.layout.remove_folder()
                raise

    def _start_server(self, reserved: Sequence[int], lock: int, node_module: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", fork_server.__name__, str(self.layout.directory)]
        command += ["--reserved", ",".join(map(str, reserved)), "--node-module", node_module]
        with self.layout.server_log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells the fork server that this process has ended
                stdout=log,
                stderr=log,
                pass_fds=[*reserved, lock],
                start_new_session=True,  # Ctrl-C at the terminal is meant for this process, not for the daemons
            )

    def wait_complete(
        self, timeout_s: float = READY_TIMEOUT_S, progress: Callable[[Forming], None] | None = None
    ) -> None:
        """Wait until every node is ready, with exactly the leaf set that these nodes make. Not inside an event loop.

        Raises `Unavailable` as `up` does.
        """
        asyncio.run(self._complete(timeout_s, progress))

    async def _complete(self, timeout_s: float, progress: Callable[[Forming], None] | None) -> None:
        began = time.monotonic()
        answering: dict[str, None] = {}
        complete: dict[str, None] = {}
        while True:
            record = self._require_alive()
            ids = [node.id for node in record.nodes]
            waiting = [node for node in record.nodes if node.id not in complete]
            for node, seen in zip(waiting, await _ask_all(record, waiting, _ring_when_ready), strict=True):
                if seen is not None:
                    answering[node.id] = None
                    complete.update({node.id: None} if seen and is_ring_complete(seen[0], ids) else {})
            elapsed_s = time.monotonic() - began
            if progress is not None:
                progress(Forming(elapsed_s, len(ids), len(answering), len(complete)))
            if len(complete) == len(ids):
                return
            if elapsed_s > timeout_s:
                late = [node.index for node in record.nodes if node.id not in complete]
                shown = ", ".join(map(str, late[:8])) + (", ..." if len(late) > 8 else "")
                tail = self._log_tail(late[0])
                raise Unavailable(f"not in the ring after {timeout_s:g} s: node {shown}\n{tail}")
            await asyncio.sleep(POLL_INTERVAL_S + POLL_PAUSE_PER_NODE_S * len(waiting))

    def _require_alive(self) -> ClusterRecord:
        """The record; raises `Unavailable` with the end of the log when a daemon or the server has ended."""
        record = self.record()
        for node in record.nodes:
            if node.exit_status is not None:
                how = f"ended with status {node.exit_status}"
                raise Unavailable(f"node {node.index} {how} before it was ready\n{self._log_tail(node.index)}")
        if self._server is not None and self._server.poll() is not None:
            log = _tail(self.layout.server_log)
            raise Unavailable(f"the fork server ended with status {self._server.returncode}\n{log}")
        return record

    def _log_tail(self, index: int) -> str:
        return _tail(self.layout.log_file(index))

    def detach(self) -> None:
        """Let the cluster live on when this process ends; `peerd cluster down` ends it then. Raises `Unavailable`."""
        if self._server is None or self._server.stdin is None:
            return
        try:
            self._server.stdin.write(fork_server.DETACH)
            self._server.stdin.close()
        except BrokenPipeError as error:
            raise Unavailable(f"the fork server has ended\n{_tail(self.layout.server_log)}") from error

    def watch(self, on_end: Callable[[NodeRecord], None]) -> None:
        """Wait until no node is left; ``on_end`` hears of each that ends. For the process that started the cluster."""
        ended: dict[int, None] = {}
        is_running = True
        while is_running:
            is_running = self._server is not None and self._server.poll() is None
            for node in self.record().nodes:
                if node.exit_status is not None and node.index not in ended:
                    ended[node.index] = None
                    on_end(node)
            time.sleep(POLL_INTERVAL_S)

    # Killing and stopping

    def kill(self, index: int) -> NodeRecord:
        """SIGKILL one daemon; returns once it is gone. Raises `Unavailable` when it does not run."""
        node = self.node(index)
        if not send_signal(node.process, signal.SIGKILL):
            raise Unavailable(f"node {index} does not run")
        self._wait(lambda: not is_alive(node.process), 5.0)
        return node

    def partition(self, sizes: Sequence[int]) -> list[list[NodeRecord]]:
        """Cut all links between groups of nodes: the first ``sizes[0]`` of them, the next ``sizes[1]``, and so on.

        Returns the groups. An empty list of sizes heals what was cut. Raises `NoSuchSplit` for sizes that do not fit,
        `Unavailable` when a node that runs does not answer. Not inside an event loop.
        """
        record = self.record()
        if sizes and (sum(sizes) != len(record.nodes) or min(sizes) < 1 or len(sizes) < 2):
            raise NoSuchSplit(sizes, len(record.nodes))
        ends = list(accumulate(sizes))
        groups = [list(record.nodes[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        asyncio.run(_cut(record, groups or [list(record.nodes)]))
        return groups

    def down(self, *, keep: bool | None = None) -> None:
        """Stop every process, SIGTERM first and SIGKILL after a bounded wait, then remove the files. Idempotent.

        ``keep`` overrides what the cluster was started with. Raises `Unavailable` when a process cannot be ended.
        """
        record = self.layout.read()
        if keep is None or (record is not None and record.is_kept == keep):
            self._cut_lifeline()
            record = self.layout.read()
        if record is not None:
            keep = record.is_kept if keep is None else keep
            self._end_processes(record)
        if self._server is not None:
            self._server.wait(timeout=STOP_TIMEOUT_S)
            self._server = None
        if self.layout.directory.is_dir():
            lock = self._lock_when_free()
            try:
                self.layout.remove(keep=bool(keep))
                self.layout.remove_folder()
            finally:
                os.close(lock)

    def _cut_lifeline(self) -> None:
        """Have our own fork server end everything and tidy up: it goes on even if we are interrupted here."""
        if self._server is None or self._server.stdin is None or self._server.stdin.closed:
            return
        self._server.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the caller does what this has left undone
            self._server.wait(timeout=STOP_TIMEOUT_S)

    def _lock_when_free(self) -> int:
        deadline = time.monotonic() + 5.0
        while True:
            try:
                return self.layout.lock()
            except Unavailable as error:
                if time.monotonic() > deadline:
                    file = self.layout.lock_file
                    raise Unavailable(f"a process still holds {file} (fuser {file} shows which)") from error
            time.sleep(POLL_INTERVAL_S)

    def _end_processes(self, record: ClusterRecord) -> None:
        server = record.server
        if self._server is not None and server is None:
            server = process_ref(self._server.pid)  # the fork server has not written its record yet
        processes = [server, *(node.process for node in record.nodes)]
        if send_signal(server, signal.SIGTERM):  # the fork server stops the daemons and collects their exit codes
            self._wait(lambda: not is_alive(server), STOP_TIMEOUT_S)
        else:
            for process in processes:
                send_signal(process, signal.SIGTERM)
            self._wait(lambda: not any(map(is_alive, processes)), STOP_TIMEOUT_S)
        for process in processes:
            send_signal(process, signal.SIGKILL)
        self._wait(lambda: not any(map(is_alive, processes)), 5.0)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


async def _ring_when_ready(client: Client) -> tuple[Ring, ...]:
    """The ring as a node sees it, once it is ready. What is no probe makes a node load the rest of its API, which would
    take more processor time than joining does."""
    return (await client.ring(),) if (await client.ready()).status == "ok" else ()


async def _ask_all(
    record: ClusterRecord, nodes: Sequence[NodeRecord], question: Callable[[Client], Awaitable[Answer]]
) -> list[Answer | None]:
    return await asyncio.gather(*(_ask(record, node, question) for node in nodes))


async def _ask(
    record: ClusterRecord, node: NodeRecord, question: Callable[[Client], Awaitable[Answer]]
) -> Answer | None:
    """Ask a node for its status; ``None`` when it is dead, silent, or not yet listening."""
    if node.process is None or node.exit_status is not None:
        return None
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S), Client(socket_file(record, node.index)) as client:
            return await question(client)
    except (Unavailable, TimeoutError):
        return None


async def _cut(record: ClusterRecord, groups: Sequence[Sequence[NodeRecord]]) -> None:
    """Tell every node that runs with which others it has no link."""

    async def tell(node: NodeRecord, others: list[str]) -> None:
        async with Client(socket_file(record, node.index)) as client:
            await client.call(CUT_LINKS, body=LinkCuts(nodes=others))

    alive = [node for node in record.nodes if is_alive(node.process)]
    far = {node.index: [each.id for each in record.nodes if each not in group] for group in groups for node in group}
    await asyncio.gather(*(tell(node, far[node.index]) for node in alive))


def _reserved_port() -> socket.socket:
    """A socket bound to a free port. Not listening: so the daemon, which sets the same option, can bind it as well."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((LOOPBACK, 0))
    return sock


def is_ring_complete(ring: Ring, ids: Sequence[str]) -> bool:
    """Whether a node's leaf set is complete and exactly the nearest of ``ids`` (all nodes) on each side."""
    others = sorted(node_id for node_id in ids if node_id != ring.id)
    if len(others) < len(ids) - 1 or not ring.is_complete:
        return False
    after = [node_id for node_id in others if node_id > ring.id]
    upwards = [*after, *others[: len(others) - len(after)]]
    half = min(LEAF_SET_SIZE // 2, len(others))
    expected = {*upwards[:half], *upwards[len(upwards) - half :]}
    return {peer.id for peer in (*ring.smaller, *ring.larger)} == expected


def _tail(log_file: Path) -> str:
    """The end of a log, indented; says so when it is empty."""
    try:
        lines = log_file.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError as error:
        return f"  {log_file}: {error.strerror}"
    return "\n".join(f"  {line}" for line in [f"{log_file}:", *lines]) if lines else f"  {log_file} is empty"
