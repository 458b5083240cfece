"""``peerd sink serve``: takes the events of many daemons, and acknowledges what is on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from peerd.daemon.collector.store import CollectorStore
from peerd.daemon.collector.words import (
    BATCH_BYTES_MAX,
    REASON_LENGTH_MAX,
    VERSION,
    BatchStored,
    EventBatch,
    LastStored,
    SinkHello,
)
from peerd.daemon.tasks import spawn
from peerd.errors import ConfigError, HandshakeRefused, PeerdError, PeerMisbehaved, ProtocolError, Unavailable
from peerd.identity.ledger import NODE_SUBJECT, SERIAL_SUBJECT
from peerd.identity.node_identity import PeerIdentity, format_serial, verify_peer_certificate
from peerd.identity.tls import peer_certificate, reload_certificate, server_context
from peerd.ids import format_id
from peerd.limits import KIB, MIB, TLS_HANDSHAKE_TIMEOUT_S

READ_BYTES: Final = 64 * KIB
"""So much of a connection is read ahead; also the longest word."""
CONNECTIONS_MAX: Final = 4096
"""Sinks at a time; one more is closed at once, and tries again later."""
HELLO_TIMEOUT_S: Final = 10.0
BATCH_TIMEOUT_S: Final = 60.0
"""So long the bytes of a batch may be on their way."""
NODE_BYTES_S: Final = 2 * MIB
"""Bytes a second of one node; who sends more is answered later. So one node cannot fill the disk at the cost of all."""
DISK_RETRY_S: Final = 3.0
RENEW_S: Final = 3600.0
"""So often the certificate is read again, which its daemon renews."""
DENIALS_S: Final = 10.0
"""So often the deny list is asked for."""
TOLD_EVERY_S: Final = 60.0

_log = structlog.get_logger(__name__)


class CollectorTls:
    """TLS of the collector, and the cluster whose members may send. Raises `ConfigError` for files of no use."""

    def __init__(self, ca_file: Path, cert_file: Path, key_file: Path, cluster: str) -> None:
        self._ca_file, self._cert_file, self._key_file = ca_file, cert_file, key_file
        self.cluster = cluster
        self.denied: frozenset[str] = frozenset()
        """The subjects on the deny list, as far as it is known here."""
        self.context = server_context(ca_file=ca_file, cert_file=cert_file, key_file=key_file)

    def renew(self) -> None:
        """Use what is in the files now: the daemon renews its certificate, and the root. Raises `ConfigError`."""
        server_context(ca_file=self._ca_file, cert_file=self._cert_file, key_file=self._key_file)
        self.context.load_verify_locations(self._ca_file)
        reload_certificate(self.context, cert_file=self._cert_file, key_file=self._key_file)

    def peer(self, connection: ssl.SSLObject) -> PeerIdentity:
        """The node at the other end. Raises `HandshakeRefused`."""
        der = peer_certificate(connection)
        return verify_peer_certificate(der, cluster=self.cluster, expected=None, denied=frozenset())

    def check(self, peer: PeerIdentity) -> None:
        """Raise `HandshakeRefused` for a node, or a certificate, that is denied now."""
        subjects = NODE_SUBJECT + format_id(peer.node_id), SERIAL_SUBJECT + format_serial(peer.serial)
        for subject in subjects:
            if subject in self.denied:
                raise HandshakeRefused("denied", f"{subject} is on the deny list")


class CollectorServer:
    """Serves sinks until it is closed. Without ``access`` there is no TLS: for this machine only."""

    def __init__(self, store: CollectorStore, access: CollectorTls | None) -> None:
        self._store, self._access = store, access
        self._server: asyncio.Server | None = None
        self._waiting: list[tuple[str | None, bytes, asyncio.Future[int | ProtocolError]]] = []
        """Batches to be written: at most one of each connection."""
        self._has_waiting = asyncio.Event()
        self._disk = asyncio.Lock()
        """The store is for one thread at a time."""
        self._connections: dict[asyncio.Task[None], None] = {}
        self._of_node: dict[str, asyncio.Task[None]] = {}
        self.events = self.repeated = 0
        """Lines that were stored, and that were there already."""

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address. Raises ``OSError``."""
        context = None if self._access is None else self._access.context
        more = {} if context is None else {"ssl_handshake_timeout": TLS_HANDSHAKE_TIMEOUT_S}
        self._server = await asyncio.start_server(self._connected, host, port, limit=READ_BYTES, ssl=context, **more)
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return address

    async def run(self) -> None:
        """Write what comes, many batches with one wait for the disk. Raises `Unavailable` when the disk has failed."""
        told_at = time.monotonic()
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            batches, self._waiting = self._waiting, []
            try:
                async with self._disk:
                    outcomes = await asyncio.to_thread(self._store.store, [(each[0], each[1]) for each in batches])
            except OSError as error:
                _log.warning("collector.disk_refuses", error=str(error))
                for _, _, future in batches:
                    if not future.done():
                        future.set_exception(Unavailable(f"the collector's disk refuses: {error.strerror}"))
                await asyncio.sleep(DISK_RETRY_S)
                continue
            for (_, _, future), outcome in zip(batches, outcomes, strict=True):
                if not future.done():
                    future.set_result(outcome)
            if time.monotonic() - told_at >= TOLD_EVERY_S:
                told_at = time.monotonic()
                _log.info("collector.stored", events=self.events, again=self.repeated, sinks=len(self._connections))

    async def close(self) -> None:
        """End all connections and finish the current file. What was not acknowledged, sinks still have."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._waiting.clear()
        async with self._disk:
            try:
                await asyncio.to_thread(self._store.close)
            except OSError as error:
                _log.warning("collector.not_finished", error=str(error))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._connections[task] = None
        address = str(writer.get_extra_info("peername"))
        try:
            await self._serve(reader, writer, task)
        except (PeerMisbehaved, Unavailable, ValueError) as error:
            _log.warning("collector.refused", address=address, reason=str(error)[:REASON_LENGTH_MAX])
            with contextlib.suppress(OSError):
                writer.write(BatchStored(refused=str(error)[:REASON_LENGTH_MAX]).line())
                await writer.drain()
        except (OSError, EOFError, TimeoutError) as error:
            _log.info("collector.lost", address=address, reason=str(error) or type(error).__name__)
        except asyncio.CancelledError:
            pass  # another connection of the same node, or the end
        finally:
            self._connections.pop(task, None)
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        hello = SinkHello.read(await asyncio.wait_for(reader.readline(), HELLO_TIMEOUT_S))
        if hello.peerd_sink != VERSION:
            raise ProtocolError("version", f"this collector speaks version {VERSION}, not {hello.peerd_sink}")
        sender = self._sender(hello, writer)
        if (before := self._of_node.get(hello.node)) is not None:
            before.cancel()  # the same node, again: what it had sent there was not acknowledged
        self._of_node[hello.node] = task
        try:
            writer.write(LastStored(self._store.last(hello.node, hello.boot)).line())
            await self._take(reader, writer, sender)
        finally:
            if self._of_node.get(hello.node) is task:
                del self._of_node[hello.node]

    def _sender(self, hello: SinkHello, writer: asyncio.StreamWriter) -> PeerIdentity | None:
        """Whose events may come over this connection: its certificate says it; ``None``: there is no TLS."""
        if self._access is None:
            return None
        peer = self._access.peer(writer.get_extra_info("ssl_object"))
        if format_id(peer.node_id) != hello.node:
            raise HandshakeRefused("id_mismatch", f"{format_id(peer.node_id)} says that it is {hello.node}")
        self._access.check(peer)
        return peer

    async def _take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: PeerIdentity | None
    ) -> None:
        loop = asyncio.get_running_loop()
        sender = None if peer is None else format_id(peer.node_id)
        free_at = loop.time()
        while line := await reader.readline():
            size = EventBatch.read(line).bytes
            if not 0 < size <= BATCH_BYTES_MAX:
                raise ProtocolError("oversized", f"a batch of {size} bytes, at most {BATCH_BYTES_MAX}")
            data = await asyncio.wait_for(reader.readexactly(size), BATCH_TIMEOUT_S)
            if self._access is not None and peer is not None:
                self._access.check(peer)  # it may have been denied since it has connected
            future: asyncio.Future[int | ProtocolError] = loop.create_future()
            self._waiting.append((sender, data, future))
            self._has_waiting.set()
            outcome = await future
            if isinstance(outcome, ProtocolError):
                raise outcome
            self.events += outcome
            self.repeated += data.count(b"\n") - outcome
            free_at = max(free_at, loop.time()) + size / NODE_BYTES_S
            await asyncio.sleep(max(0.0, free_at - loop.time() - 1.0))  # a second's worth at once
            writer.write(BatchStored(new=outcome).line())
            await writer.drain()


async def collect(
    store: CollectorStore,
    access: CollectorTls | None,
    host: str,
    port: int,
    stopped: asyncio.Event,
    denials: Callable[[], Awaitable[Iterable[str]]],
) -> None:
    """The whole life of a collector, until ``stopped`` is set. Raises `Unavailable`.

    ``denials`` says which subjects are on the deny list now, or raises `PeerdError`: then what it said last holds.
    """
    server = CollectorServer(store, access)
    try:
        address = await server.start(host, port)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}") from error
    _log.info("collector.started", address=f"{address[0]}:{address[1]}", directory=str(store.directory))
    tasks: list[asyncio.Task[object]] = [spawn(server.run(), name="writer"), spawn(stopped.wait(), name="end")]
    if access is not None:
        tasks.append(spawn(_renewing(access), name="renewal"))
        tasks.append(spawn(_denying(access, denials), name="denials"))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks[1:]:
        task.cancel()
    await server.close()
    _log.info("collector.stopped", events=server.events, again=server.repeated)
    if tasks[0].done():
        await tasks[0]
    tasks[0].cancel()


async def _renewing(access: CollectorTls) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        try:
            await asyncio.to_thread(access.renew)
        except ConfigError as error:
            _log.warning("collector.certificate_not_renewed", error=str(error))


async def _denying(access: CollectorTls, denials: Callable[[], Awaitable[Iterable[str]]]) -> None:
    is_known = True
    while True:
        try:
            access.denied = frozenset(await denials())
            is_known = True
        except PeerdError as error:
            if is_known:  # it is told once, not each time
                _log.warning("collector.deny_list_unknown", error=str(error), known=len(access.denied))
            is_known = False
        await asyncio.sleep(DENIALS_S)
