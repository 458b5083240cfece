"""Bulk connections, and the table of them.

Received bytes go straight into the swap layer's buffers, sent ones straight to the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from peerd.daemon.links.connection import PendingConnection
from peerd.daemon.links.telemetry import LinkTelemetry
from peerd.driver import StreamHandler
from peerd.errors import Bug, PeerMisbehaved, ProtocolError
from peerd.identity.node_identity import PeerIdentity
from peerd.ids import NodeId
from peerd.limits import KIB, MIB
from peerd.messages import PeerRef
from peerd.wire.handshake import HandshakeResult

STREAM_HIGH_WATER_BYTES: Final = MIB
STREAM_LOW_WATER_BYTES: Final = 256 * KIB


class BulkStream(asyncio.BufferedProtocol):
    """`peerd.driver.Stream` on a transport: who has dialled writes from Hello on, and reads when that is answered."""

    def __init__(self, owner: StreamTable, peer: PeerRef, handler: StreamHandler) -> None:
        self._owner = owner
        self._peer = peer
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._is_attached = False
        self._is_paused = False
        self._is_closing = False
        self._reason: str | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Let the handler write. Until `attach` it is the pending connection that reads and sees the end."""
        self._transport = transport
        transport.set_write_buffer_limits(high=STREAM_HIGH_WATER_BYTES, low=STREAM_LOW_WATER_BYTES)
        # Socket buffers stay the kernel's: a fixed size would switch its own tuning off, at a smaller maximum.
        self._handler.opened(self)

    def attach(self, transport: asyncio.Transport, rest: bytes) -> None:
        """Take over the connection; ``rest`` are the bytes that came right after the handshake."""
        self._is_attached = True
        transport.set_protocol(self)
        if self._transport is None:
            self.begin(transport)
        if self._is_closing:
            transport.close()
        view = memoryview(rest)
        while view and self._reason is None:
            buffer = self._handler.get_buffer(len(view))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            view = view[size:]
            self.buffer_updated(size)

    # Stream

    @property
    def peer(self) -> PeerRef:
        return self._peer

    @property
    def is_aborted(self) -> bool:
        """Whether this side has ended it."""
        return self._reason is not None

    @property
    def is_writable(self) -> bool:
        """False above the high-water mark, and once it is closing."""
        is_ending = self._is_closing or self.is_aborted
        return self._transport is not None and not self._is_paused and not is_ending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes; dropped silently once the stream is closing, as the handler's ``closed`` tells."""
        if self._transport is not None and not self._is_closing and not self._transport.is_closing():
            self._transport.write(data)

    def write_padding(self, size_bytes: int) -> None:
        """Simulator only."""
        raise Bug(f"{size_bytes} bytes of padding on a real connection")

    def close(self) -> None:
        """Flush, then close; not before Hello is answered: an answer to a closed socket would end what it carries."""
        self._is_closing = True
        if self._transport is not None and self._is_attached:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.end("aborted")

    def finish(self, reason: str) -> None:
        """Send what was written, then close; ``reason`` is what the handler's ``closed`` gets."""
        if self._transport is not None:
            self._reason = self._reason or reason
            self._transport.close()

    def end(self, reason: str) -> None:
        """Close at once; ``reason`` is what the handler's ``closed`` gets."""
        if self._transport is None:
            return
        self._reason = self._reason or reason
        if self._is_attached:
            self._transport.abort()
        else:  # asyncio's TLS loses a socket that is aborted while it tells that the connection is made
            asyncio.get_running_loop().call_soon(self._transport.abort)

    def hand_over(self, handler: StreamHandler) -> None:
        """Another handler reads from now on."""
        self._handler = handler

    # asyncio

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the handler's buffer."""
        return self._handler.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes are in the handler's buffer."""
        try:
            self._handler.buffer_updated(nbytes)
        except ProtocolError as error:
            self.end(error.reason)
            self._owner.stream_misbehaved(self, error)

    def pause_writing(self) -> None:
        """Above the high-water mark."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Below the low-water mark."""
        self._is_paused = False
        if self.is_writable:
            self._handler.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean end of stream, or not."""
        if self._transport is None:
            return
        self._transport = None
        reason = self._reason
        if reason is None and exc is not None:
            reason = "reset" if isinstance(exc, ConnectionResetError | BrokenPipeError) else "error"
        try:
            self._handler.closed(reason)
        finally:  # also when a handler fails: the table must not keep a stream that has ended
            self._owner.stream_lost(self)


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
        stream = connection.stream
        if not isinstance(stream, BulkStream):
            stream = BulkStream(self, established.peer, self._user.stream_accepted(established.peer))
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
