"""Nodes that are nothing but links on real loopback sockets, on either event loop, with or without TLS."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from peerd.api import Priority, SendRefusal
from peerd.daemon.links.links import Links
from peerd.daemon.links.listener import Listener
from peerd.daemon.links.settings import LinkContext, TlsContexts, monotonic_s
from peerd.daemon.links.streams import BulkStream
from peerd.daemon.links.telemetry import LinkTelemetry
from peerd.driver import Stream, StreamHandler
from peerd.errors import ProtocolError
from peerd.identity.authority import ClusterAuthority, create_node_files
from peerd.identity.node_identity import load_certificate, load_private_key, read_identity
from peerd.identity.roots import Roots
from peerd.identity.statements import Denied, Statements
from peerd.identity.tls import client_context, server_context
from peerd.ids import NodeId
from peerd.linking.settings import LinkSettings
from peerd.messages import Message, PeerRef, Text, message
from peerd.system.sockets import listening_socket
from peerd.telemetry.schema import Event
from peerd.wire.codec import decode, encode
from peerd.wire.frames import Frame
from peerd.wire.handshake import LocalNode
from tests.support.both_loops import Counters

CLUSTER = "test"
POLL_S = 0.005


@message(0x7E01, bytes_max=60_000)
class Note(Message):
    """What the tests send."""

    number: int
    text: Text | None = None
    data: bytes = b""


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Wait until the condition holds, however fast that is; a test that waits in vain fails here."""
    loop = asyncio.get_running_loop()
    deadline = monotonic_s() + timeout_s
    while not condition():
        assert monotonic_s() < deadline, f"not within {timeout_s} s: {inspect.getsource(condition).strip()}"
        look_again = loop.create_future()
        loop.call_later(POLL_S, look_again.set_result, None)
        await look_again


@dataclass
class CollectingHandler:
    """A stream handler that keeps what it reads; ``pattern`` is sent while the stream takes it."""

    received: bytearray = field(default_factory=bytearray)
    to_send: memoryview = field(default_factory=lambda: memoryview(b""))
    expected_bytes: int | None = None
    stream: Stream | None = None
    reasons: list[str | None] = field(default_factory=list)
    fail_on_read: str | None = None
    _buffer: bytearray = field(default_factory=lambda: bytearray(256 * 1024))

    @property
    def bulk(self) -> BulkStream:
        """The stream, which must be open."""
        assert isinstance(self.stream, BulkStream)
        return self.stream

    @property
    def transport(self) -> asyncio.Transport:
        """Below the stream, for tests of what a slow peer does."""
        assert self.bulk._transport is not None
        return self.bulk._transport

    def opened(self, stream: Stream) -> None:
        self.stream = stream
        self.writable()

    def get_buffer(self, size_hint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, size_bytes: int) -> None:
        if self.fail_on_read is not None:
            raise ProtocolError(self.fail_on_read)
        self.received += self._buffer[:size_bytes]
        if len(self.received) == self.expected_bytes and self.stream is not None and not self.to_send:
            self.stream.close()

    def padding_received(self, size_bytes: int) -> None:
        raise AssertionError("padding on a real stream")

    def writable(self) -> None:
        while self.stream is not None and self.to_send and self.stream.is_writable:
            self.stream.write(self.to_send[: 256 * 1024])
            self.to_send = self.to_send[256 * 1024 :]

    def closed(self, reason: str | None) -> None:
        self.reasons.append(reason)


class FakeNode:
    """The node above links: it records every call."""

    def __init__(self) -> None:
        self.received: list[tuple[PeerRef, Frame]] = []
        self.down: list[tuple[PeerRef, str]] = []
        self.refused: list[tuple[PeerRef, Frame, SendRefusal]] = []
        self.writables: list[PeerRef] = []
        self.events: list[Event] = []
        self.handlers: list[CollectingHandler] = []
        self.make_handler: Callable[[], CollectingHandler] = CollectingHandler
        self.on_frame: Callable[[PeerRef, Frame], None] | None = None

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        self.received.append((peer, frame))
        if self.on_frame is not None:
            self.on_frame(peer, frame)

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        self.down.append((peer, reason))

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        self.refused.append((peer, frame, reason))

    def writable(self, peer: PeerRef) -> None:
        self.writables.append(peer)

    def stream_accepted(self, peer: PeerRef) -> StreamHandler:
        self.handlers.append(self.make_handler())
        return self.handlers[-1]

    def emit(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events)

    def numbers(self, sender: PeerRef | None = None) -> list[int]:
        """The numbers of the notes received, in order."""
        notes = [decode(frame) for peer, frame in self.received if sender is None or peer.id == sender.id]
        return [note[0].number for note in notes if note is not None and isinstance(note[0], Note)]

    def of(self, kind: type[Event]) -> list[Any]:
        """The events of one class."""
        return [event for event in self.events if isinstance(event, kind)]


class Peer:
    """Links, listener and fake node of one peer."""

    def __init__(self, context: LinkContext, listener_socket: Any) -> None:
        self.context = context
        self.files: Path | None = None
        self.statements: Statements | None = None
        """What it says through others; with TLS only."""
        self.ref = context.local.node
        self.counters = Counters()
        self.telemetry = LinkTelemetry(self.counters, context.now)
        self.node = FakeNode()
        self.links = Links(context, self.telemetry)
        self.duplicates: list[str] = []
        self.links.on_duplicate_identity = self.duplicates.append
        self.links.attach(self.node)
        self.telemetry.attach(self.node.emit)
        self.listener = Listener(listener_socket, self.links, context, self.telemetry)
        self.listener.start()
        self.links.start()

    def note(self, target: PeerRef, number: int, data: bytes = b"", priority: Priority = Priority.NORMAL) -> None:
        self.links.send(target, encode(Note(number, None, data)), priority)

    async def stop(self, timeout_s: float = 1.0) -> None:
        self.listener.close()
        await self.listener.wait_closed()
        await self.links.stop(timeout_s)

    async def crash(self) -> None:
        """End nearly as SIGKILL does: everything is reset, and nobody is told."""
        self.listener.close()
        await self.listener.wait_closed()
        self.links.context.settings = replace(self.links.context.settings, close_linger_s=0.0)
        self.links.policy.is_stopping = True
        for link in list(self.links._links):
            link.abort("crash")
        await self.links.stop(1.0)


def certificate_der(directory: Path) -> bytes:
    """The certificate of the node whose files these are."""
    return load_certificate(directory / "node.crt").public_bytes(Encoding.DER)


def statements_of(directory: Path, cluster: str, context: LinkContext) -> Statements:
    """As the daemon makes them of a node's files."""
    roots = Roots.load(directory / "ca.crt")
    return Statements(
        cluster,
        load_private_key(directory / "node.key"),
        certificate_der(directory),
        roots=lambda: roots,
        denied=lambda: Denied(context.denied, context.denied_serials),
    )


FAST = LinkSettings(dial_timeout_s=2.0, hello_timeout_s=1.0, sweep_s=0.02, close_linger_s=0.3, backoff_reset_s=0.2)


class Rig:
    """Makes peers of one cluster and stops them. With TLS off ids are given, with TLS they follow from the keys."""

    def __init__(self, *, tls: bool = False, settings: LinkSettings = FAST) -> None:
        self.tls = tls
        self.settings = settings
        self.peers: list[Peer] = []
        self._directory = tempfile.TemporaryDirectory()
        self.path = Path(self._directory.name)
        self.authority = ClusterAuthority.create(CLUSTER) if tls else None

    async def __aenter__(self) -> Rig:
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self.peers:
            await peer.stop()
        self._directory.cleanup()

    def add(
        self,
        node_id: int = 1,
        *,
        epoch: int = 1,
        settings: LinkSettings | None = None,
        port: int = 0,
        authority: ClusterAuthority | None = None,
        lifetime: timedelta = timedelta(days=1),
        trusted: ClusterAuthority | None = None,
        files: Path | None = None,
        **local: Any,
    ) -> Peer:
        """A peer that listens. ``authority`` issues its certificate, ``trusted`` is whom it believes."""
        sock = listening_socket("127.0.0.1", port)
        tls = None
        if self.tls:
            issuer = authority or self.authority
            assert issuer is not None
            directory = files or self.path / f"node-{len(self.peers)}"
            if files is None:
                node_id = create_node_files(issuer, directory, lifetime=lifetime)
            else:
                node_id = read_identity(certificate_der(directory)).node_id
            if trusted is not None:
                (directory / "ca.crt").write_bytes(trusted.certificate_pem())
            names = {
                "ca_file": directory / "ca.crt",
                "cert_file": directory / "node.crt",
                "key_file": directory / "node.key",
            }
            tls = TlsContexts(server_context(**names), client_context(**names))
        ref = PeerRef(NodeId(node_id), "127.0.0.1", sock.getsockname()[1])
        cluster = local.pop("cluster", CLUSTER)
        context = LinkContext(LocalNode(ref, cluster, epoch, **local), settings or self.settings, tls)
        peer = Peer(context, sock)
        if tls is not None:
            peer.files = directory
            peer.statements = statements_of(directory, cluster, context)
        self.peers.append(peer)
        return peer

    def pair(self) -> tuple[Peer, Peer]:
        """Two peers, the smaller id first."""
        one, two = sorted((self.add(1), self.add(2)), key=lambda peer: peer.ref.id)
        return one, two


async def linked(one: Peer, two: Peer) -> None:
    """Make a link, dialled by ``one``."""
    one.note(two.ref, 0)
    await until(lambda: two.node.numbers(one.ref))
    one.node.received.clear()
    two.node.received.clear()
