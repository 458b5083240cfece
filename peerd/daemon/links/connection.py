"""A connection during its handshake: certificate, HELLO, answer. Then it becomes a link or a stream."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from peerd.daemon.links.link import as_transport
from peerd.daemon.links.settings import LinkContext
from peerd.errors import HandshakeRefused, PeerMisbehaved, ProtocolError
from peerd.identity.node_identity import PeerIdentity
from peerd.ids import NodeId
from peerd.limits import FRAME_HEADER_BYTES, PREAUTH_FRAME_BYTES_MAX
from peerd.system.sockets import format_address
from peerd.wire.codec import decode, encode
from peerd.wire.frames import Frame, frame_bytes, parse_header
from peerd.wire.handshake import Goodbye, Handshake, HandshakeResult, Hello, HelloAck, HelloRefused, Purpose

WITHDRAWN: Final = "withdrawn"
"""The reason why a dial ends that this side has given up itself."""


class PendingStream(Protocol):
    """`peerd.daemon.links.streams.BulkStream`, as far as a connection needs it that is being dialled for it."""

    @property
    def is_aborted(self) -> bool: ...

    def begin(self, transport: asyncio.Transport) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class ConnectionOwner(Protocol):
    """Decides about connections: `peerd.daemon.links.links.Links`."""

    @property
    def sockets(self) -> int:
        """How many established connections are open."""

    def admit(self, established: HandshakeResult) -> tuple[str, str] | None:
        """Accepting side, before the answer: ``None``, or (reason, detail) of the refusal."""

    def adopt(self, connection: PendingConnection, established: HandshakeResult, rest: bytes) -> None:
        """The handshake is done; ``rest`` are the bytes that came after it."""

    def duplicate_claimed(self, detail: str, witness: NodeId | None) -> None:
        """``witness`` says that another process has this node's identity, and a newer boot epoch."""


class PendingConnection(asyncio.Protocol):
    """One connection's handshake, either side. `outcome` resolves once, with what was established or with the error.

    The error is `HandshakeRefused` (reason and detail) or `ProtocolError` (bytes that are no handshake).
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        context: LinkContext,
        *,
        dialled: bool,
        address: str,
        purpose: Purpose = Purpose.CONTROL,
        expected_id: NodeId | None = None,
        stream: PendingStream | None = None,
    ) -> None:
        self.dialled = dialled
        self.address = address
        self.expected_id = expected_id
        self.stream = stream
        self.certificate: PeerIdentity | None = None
        self.transport: asyncio.Transport | None = None
        self.outcome: asyncio.Future[HandshakeResult] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._context = context
        self._purpose = purpose
        self._received = bytearray()
        self._is_lost = False
        self._handshake = Handshake(context.local, certified_id=None, expected_id=expected_id, purpose=purpose)

    @property
    def certified_id(self) -> NodeId | None:
        """The id that the peer's certificate proves, once there is one."""
        return None if self.certificate is None else self.certificate.node_id

    @property
    def is_established(self) -> bool:
        """Whether it has become a link or a stream."""
        outcome = self.outcome
        return outcome.done() and not outcome.cancelled() and outcome.exception() is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TCP, and TLS where it is on, are done; what this says about the peer's certificate is not final yet."""
        self.transport = as_transport(transport)
        if self.dialled:
            self.address = format_address(transport.get_extra_info("peername")) or self.address
        if self.outcome.done():  # abandoned while connecting
            self.transport.abort()
            return
        try:
            ssl_object = transport.get_extra_info("ssl_object")
            self.certificate = self._context.certified(ssl_object, self.expected_id)
        except HandshakeRefused as error:
            self._fail(self._handshake.refuse(error.reason, error.detail))
            return
        self._handshake = Handshake(
            self._context.local, certified_id=self.certified_id, expected_id=self.expected_id, purpose=self._purpose
        )
        if self.dialled:
            self.transport.write(frame_bytes(self._handshake.hello()))
            if self.stream is not None and self.certificate is not None:
                self.stream.begin(self.transport)  # without TLS only the answer says who it is

    def data_received(self, data: bytes) -> None:
        """Collect the first frame, whose cap is small, and do the next step of the handshake."""
        if self.outcome.done():
            return
        self._received += data
        try:
            self._step()
        except (HandshakeRefused, ProtocolError) as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ended before the handshake did. A refused client certificate shows in no other way (TLS 1.3)."""
        self._is_lost = True
        if self.outcome.done():
            return
        if self.stream is not None and self.stream.is_aborted:
            self.outcome.set_exception(HandshakeRefused(WITHDRAWN, "nobody wants the stream any more"))
        elif self.dialled and self._context.tls is not None:
            detail = "the peer closed before it answered: it refused our certificate, or its limits are reached"
            self.outcome.set_exception(HandshakeRefused("auth_rejected", detail))
        else:
            received = len(self._received)
            detail = f"closed after {received} bytes of a handshake" + (f" ({exc})" if exc is not None else "")
            self.outcome.set_exception(HandshakeRefused("closed_early", detail))

    def pause_writing(self) -> None:
        """Above the high-water mark of a stream that is written to already."""
        if self.stream is not None:
            self.stream.pause_writing()

    def resume_writing(self) -> None:
        """Below the low-water mark."""
        if self.stream is not None:
            self.stream.resume_writing()

    def closed_by_loop(self) -> None:
        """The event loop gave the connection up while making it. A transport of uvloop's does not show that."""
        self._is_lost = True

    def refuse(self, reason: str, detail: str) -> None:
        """End the connection for a reason of this side's own, such as a time-out."""
        if not self.outcome.done():
            self._fail(self._handshake.refuse(reason, detail))

    def abandon(self, reason: str) -> None:
        """Give the connection up: the peer, which may count it as established, reads a Goodbye, or sees a reset."""
        if not self.outcome.done():
            self.outcome.cancel()
        if self.transport is None or self._is_lost or self.transport.is_closing():
            return
        if self._may_be_stream_there:
            self.transport.abort()
        else:
            self.transport.write(frame_bytes(encode(Goodbye(reason))))
            self.transport.close()

    @property
    def _may_be_stream_there(self) -> bool:
        """Whether the peer may have made a stream of this, on which a frame of ours would be a breach of protocol."""
        return self.dialled and self._purpose is Purpose.BULK

    def _step(self) -> None:
        buffer = self._received
        if len(buffer) < FRAME_HEADER_BYTES:
            return
        type_id, flags, length = parse_header(buffer, 0, PREAUTH_FRAME_BYTES_MAX)
        end = FRAME_HEADER_BYTES + length
        allowed = HelloAck.TYPE_ID if self.dialled else Hello.TYPE_ID
        if type_id not in (allowed, HelloRefused.TYPE_ID):
            raise ProtocolError("unexpected_message", f"type {type_id:#06x} in place of the handshake")
        if len(buffer) < end:
            return
        frame, rest = (type_id, flags, bytes(buffer[FRAME_HEADER_BYTES:end])), bytes(buffer[end:])
        answer = self._answer(frame)
        established = self._handshake.established
        if established is None or self.transport is None:
            raise ProtocolError("unexpected_message", "the handshake did not end with its answer")
        if not self.dialled:
            refusal = self._owner.admit(established)
            if refusal is not None:
                raise self._handshake.refuse(*refusal)
        if answer is not None:
            self.transport.write(frame_bytes(answer))
        self.outcome.set_result(established)
        self._received.clear()
        self._owner.adopt(self, established, rest)

    def _answer(self, frame: Frame) -> Frame | None:
        try:
            return self._handshake.receive(frame)
        except HandshakeRefused as error:
            if error.reason == "duplicate_identity":
                raise self._same_identity(frame, error) from None
            raise

    def _same_identity(self, frame: Frame, error: HandshakeRefused) -> HandshakeRefused:
        """Our own id on the other side: our own dial (same boot epoch), or a copy of our state directory.

        Of two processes the one with the larger boot epoch lives (it started last); the other one ends.
        """
        if self._handshake.refusal is None:  # the peer has refused us
            self._owner.duplicate_claimed(error.detail, self.certified_id)
            return error
        decoded = decode(frame)
        message = decoded[0] if decoded is not None else None
        ours = self._context.local.boot_epoch
        if not isinstance(message, Hello | HelloAck):
            return error
        if message.boot_epoch == ours:
            return self._handshake.refuse("self", "this is the node's own address")
        if message.boot_epoch > ours:
            self._owner.duplicate_claimed(error.detail, self.certified_id)
            return self._handshake.refuse("superseded", f"this process, with boot epoch {ours}, is ending")
        return error

    def _fail(self, error: PeerMisbehaved) -> None:
        self.outcome.set_exception(error)
        if self.transport is None or self._is_lost:
            return
        refusal = self._handshake.refusal
        if refusal is not None and isinstance(error, HandshakeRefused) and not self._may_be_stream_there:
            self.transport.write(frame_bytes(refusal))
            self.transport.close()
        else:
            self.transport.abort()
