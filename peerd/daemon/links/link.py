"""One established control link: frames in to the node, the peer's send queue out, corked once a loop iteration."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Final, Protocol, cast

from peerd.daemon.links.settings import LinkContext
from peerd.errors import PeerMisbehaved, ProtocolError
from peerd.identity.node_identity import PeerIdentity
from peerd.ids import NodeId
from peerd.lib.admission import TokenBucket
from peerd.limits import CONTROL_FRAME_BYTES_MAX
from peerd.linking.send_queue import SendQueue
from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.wire.codec import decode, encode
from peerd.wire.frames import Frame, FrameDecoder, frame_bytes
from peerd.wire.handshake import Goodbye, HandshakeResult, HelloRefused, LinkHeartbeat

_CLOSING: Final = frozenset({Goodbye.TYPE_ID, HelloRefused.TYPE_ID})
"""Types that end a link. A dialler that refuses our answer says so when this side already counts the link as up."""
LINK_TYPE_ID_MAX: Final = 0x000F
"""Messages up to this id are about links and certificates; the node never sees them."""
TRUST_REQUESTS_PER_SECOND: Final = 0.5
TRUST_REQUESTS_BURST: Final = 10
HEARTBEAT_BYTES: Final = frame_bytes(encode(LinkHeartbeat()))


class LinkOwner(Protocol):
    """Is told what happens to a link: `peerd.daemon.links.links.Links`."""

    def frame_received(self, peer: PeerRef, frame: Frame) -> None: ...

    def trust_frame_received(self, link: TcpLink, frame: Frame) -> None: ...

    def caught_up(self, link: TcpLink) -> None:
        """The link's outbox was above the high-water mark, and has fallen to the low one."""

    def listening_to(self, peer_id: NodeId | None) -> None:
        """Frames of this peer are handed on from now on; ``None``: no longer."""

    def link_misbehaved(self, link: TcpLink, error: PeerMisbehaved) -> None: ...

    def link_lost(self, link: TcpLink, reason: str) -> None:
        """Called once, last."""


class TcpLink(asyncio.Protocol):
    """The asyncio protocol of a control connection after its handshake.

    ``outbox`` is the peer's queue and outlives the link. Times are the context's monotonic seconds. A link that was
    retired sends nothing more but still hands over what the peer had under way.
    """

    def __init__(
        self,
        owner: LinkOwner,
        context: LinkContext,
        established: HandshakeResult,
        outbox: SendQueue,
        *,
        dialled: bool,
        address: str,
        certificate: PeerIdentity | None = None,
    ) -> None:
        now = context.now()
        self.certificate = certificate
        self.peer = established.peer
        self.boot_epoch = established.boot_epoch
        self.protocol = established.protocol
        self.plugins = {each.name: (each.version_min, each.version_max) for each in established.plugins}
        """What the peer said of its plugins."""
        self.dialled = dialled
        self.address = address
        self.established_at = now
        self.retired_at: float | None = None
        self.goodbye: str | None = None
        """The reason that the peer gave for closing."""
        self._owner = owner
        self._context = context
        self._settings = context.settings
        # The dialler renews its links, each at a random age; the acceptor closes a link that the dialler did not renew.
        self._age_max_s = context.settings.link_age_max_s * (random.uniform(0.5, 0.95) if dialled else 1.0)
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(CONTROL_FRAME_BYTES_MAX)
        self._bucket = TokenBucket(self._settings.messages_per_second, self._settings.messages_burst, now)
        self.trust_requests = TokenBucket(TRUST_REQUESTS_PER_SECOND, TRUST_REQUESTS_BURST, now)
        """Bounds the peer's requests about certificates: they are small, but their answers are large or costly."""
        self._transport: asyncio.Transport | None = None
        self._flush_scheduled = False
        self._paused_since: float | None = None
        self._frame_since: float | None = None
        self._received_at = self._sent_at = self._used_at = now
        self._reason: str | None = None

    # Life

    @property
    def used_at(self) -> float:
        """When the link last carried anything but heartbeats and goodbyes."""
        return self._used_at

    def attach(self, transport: asyncio.Transport) -> None:
        """Take over a connection whose handshake is done."""
        self._transport = transport
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=self._settings.write_high_water_bytes)

    def reconfigure(self, settings: LinkSettings) -> None:
        """Other limits from now on."""
        self._age_max_s *= settings.link_age_max_s / self._settings.link_age_max_s
        self._bucket.adjust(settings.messages_per_second, settings.messages_burst)
        self._settings = settings

    @property
    def is_up(self) -> bool:
        """Whether frames may be sent on it."""
        return self._transport is not None and self._reason is None and self.goodbye is None and not self.is_retired

    @property
    def is_retired(self) -> bool:
        """Whether the link only reads what the peer still has under way."""
        return self.retired_at is not None

    def retire(self, reason: str) -> None:
        """Say goodbye and read on until the peer closes, for a short while at most. Sends nothing that is queued."""
        if self._transport is None or self.is_retired or self._reason is not None:
            return
        self.retired_at = self._context.now()
        self._reason = reason
        self._transport.write(frame_bytes(encode(Goodbye(reason))))

    def abort(self, reason: str) -> None:
        """Close the link at once; `LinkOwner.link_lost` follows."""
        if self._transport is not None:
            self.retired_at = None
            self._reason = self._reason or reason
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone, for whatever reason."""
        if self._transport is None:
            return
        self._transport = None
        reason = self._reason
        if reason is None:
            reason = f"goodbye:{self.goodbye}" if self.goodbye is not None else _loss_reason(exc)
        self._owner.link_lost(self, reason)

    # In

    def data_received(self, data: bytes) -> None:
        """The hot path: cut into frames and hand each to the node."""
        if not self._is_reading():
            return
        now = self._received_at = self._context.now()
        try:
            frames = self._decoder.feed(data)
            if frames:
                self.charge(len(frames))
        except ProtocolError as error:
            self._owner.link_misbehaved(self, error)
            return
        if not self._decoder.is_mid_frame:
            self._frame_since = None
        elif frames or self._frame_since is None:
            self._frame_since = now
        self._owner.listening_to(self.peer.id)
        try:
            self._hand_on(frames, now)
        finally:
            self._owner.listening_to(None)

    def _hand_on(self, frames: list[Frame], now: float) -> None:
        for frame in frames:
            if frame[0] <= LINK_TYPE_ID_MAX:
                self._own_frame_received(frame)
            else:
                self._used_at = now
                self._owner.frame_received(self.peer, frame)
            if not self._is_reading():
                return  # the frame cost the peer its link

    def _own_frame_received(self, frame: Frame) -> None:
        if frame[0] in _CLOSING:
            self._goodbye_received(frame)
        elif frame[0] != LinkHeartbeat.TYPE_ID:
            self._owner.trust_frame_received(self, frame)

    def _is_reading(self) -> bool:
        if self._transport is None or self.goodbye is not None:
            return False
        return self._reason is None or self.is_retired

    def charge(self, messages: int) -> None:
        """Count messages that came. Raises `ProtocolError` when that is above the peer's rate."""
        if not self._bucket.take(self._received_at, messages):
            rate = self._settings.messages_per_second
            raise ProtocolError("flood", f"more than {rate:g} messages a second")

    def _goodbye_received(self, frame: Frame) -> None:
        try:
            decoded = decode(frame)
        except ProtocolError as error:
            self._owner.link_misbehaved(self, error)
            return
        message = decoded[0] if decoded is not None else None
        self.goodbye = message.reason if isinstance(message, Goodbye | HelloRefused) else "unknown"
        if self._transport is not None:
            self._transport.close()

    # Out

    def wake(self) -> None:
        """Send what is queued at the end of this loop iteration, together with what is queued until then."""
        if not self._flush_scheduled and self._paused_since is None:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand the queue to the transport until it has enough."""
        self._flush_scheduled = False
        if not self.is_up or self._transport is None:
            return
        outbox, transport = self._outbox, self._transport
        while outbox.size_bytes and self._paused_since is None:
            self._sent_at = self._used_at = self._context.now()
            transport.write(b"".join(outbox.take(self._settings.write_high_water_bytes)))
        if outbox.has_recovered():
            self._owner.caught_up(self)

    def pause_writing(self) -> None:
        """The transport is above its high-water mark: the peer reads too slowly."""
        self._paused_since = self._context.now()

    def resume_writing(self) -> None:
        """The transport is below its low-water mark."""
        self._paused_since = None
        self.flush()

    # Time

    def excuse(self, late_s: float, now: float) -> None:
        """Extend the time limits: this process stood still for so long, and what the peer sent meanwhile is unread."""
        self._received_at = min(now, self._received_at + late_s)
        if self._paused_since is not None:
            self._paused_since = min(now, self._paused_since + late_s)
        if self._frame_since is not None:
            self._frame_since = min(now, self._frame_since + late_s)

    def sweep(self, now: float) -> None:
        """Enforce the time limits and keep an idle link alive; called a few times a second."""
        settings = self._settings
        if self._transport is None:
            return
        if self.retired_at is not None:
            if now - self.retired_at > settings.close_linger_s:
                self._transport.abort()
        elif self._paused_since is not None and now - self._paused_since > settings.write_deadline_s:
            self.abort("write_deadline")
        elif self._frame_since is not None and now - self._frame_since > settings.frame_idle_s:
            self.abort("frame_idle")
        elif now - self._received_at > settings.silence_s:
            self.abort("silent")
        elif now - self._used_at > settings.unused_s:
            self.retire("idle")
        elif now - self.established_at > self._age_max_s:
            self.retire("recycled")
        elif self._is_certificate_over():
            self.retire("expired")
        elif now - self._sent_at > settings.heartbeat_s and self._paused_since is None:
            self._sent_at = now
            self._transport.write(HEARTBEAT_BYTES)

    def _is_certificate_over(self) -> bool:
        if self.certificate is None:
            return False
        ended_at = self.certificate.not_after.timestamp()
        return self._context.wall_time() - ended_at > self._settings.expiry_grace_s


def _loss_reason(error: Exception | None) -> str:
    match error:
        case None:
            return "eof"
        case ConnectionResetError() | BrokenPipeError():
            return "reset"
        case OSError(errno=errno.ETIMEDOUT):
            return "user_timeout"
        case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
            return "unreachable"
        case _:
            return "error"


def as_transport(transport: asyncio.BaseTransport) -> asyncio.Transport:
    """Narrow the type of a transport: asyncio declares `connection_made` with a wider one."""
    return cast(asyncio.Transport, transport)
