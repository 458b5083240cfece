"""The bulk connections that are open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from peerd.daemon.links.connection import PendingConnection
from peerd.daemon.links.streams import BulkStream
from peerd.daemon.links.telemetry import LinkTelemetry
from peerd.driver import StreamHandler
from peerd.errors import PeerMisbehaved
from peerd.identity.node_identity import PeerIdentity
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.wire.handshake import HandshakeResult


class StreamUser(Protocol):
    """What the table needs around it: `peerd.daemon.links.links.Links`."""

    @property
    def telemetry(self) -> LinkTelemetry: ...
    def stream_accepted(self, peer: PeerRef) -> StreamHandler: ...
    def stream_ended(self) -> None: ...
    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None: ...


class StreamTable:
    """Keeps streams until they are lost, so that a stop can end them."""

    def __init__(self, user: StreamUser) -> None:
        self._user = user
        self._streams: dict[BulkStream, PeerIdentity | None] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def peer_ids(self) -> list[NodeId]:
        """The peer of each stream."""
        return [stream.peer.id for stream in self._streams]

    def adopt(
        self, connection: PendingConnection, established: HandshakeResult, transport: asyncio.Transport, rest: bytes
    ) -> None:
        """Make a stream of a connection whose handshake is done."""
        handler = connection.stream_handler or self._user.stream_accepted(established.peer)
        stream = BulkStream(self, established.peer, handler)
        self._streams[stream] = connection.certificate
        self._user.telemetry.streams(len(self._streams))
        stream.attach(transport, rest)

    def stream_misbehaved(self, stream: BulkStream, error: PeerMisbehaved) -> None:
        """A stream's bytes broke the protocol; the stream is aborted already."""
        self._user.misbehaved(stream.peer, error)

    def stream_lost(self, stream: BulkStream) -> None:
        """Remove a stream that has ended."""
        self._streams.pop(stream, None)
        self._user.telemetry.streams(len(self._streams))
        self._user.stream_ended()

    def end_where(self, is_meant: Callable[[NodeId, PeerIdentity | None], bool], reason: str) -> None:
        """End every stream with such a peer."""
        for stream, certificate in list(self._streams.items()):
            if is_meant(stream.peer.id, certificate):
                stream.end(reason)

    def close(self) -> None:
        """Flush and close every stream."""
        for stream in list(self._streams):
            stream.finish("stopping")

    def abort(self) -> None:
        """End every stream now."""
        for stream in list(self._streams):
            stream.end("stopping")
