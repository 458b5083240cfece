"""All connections of this node on sockets: control links, dials, bulk streams.

`peerd.linking.policy.LinkPolicy` decides about them, and this module carries the decisions out. If a link is given up
for another one after its handshake was answered, it says Goodbye and is read to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final, Protocol

from peerd.api import Priority, SendRefusal
from peerd.daemon.links.connection import PendingConnection
from peerd.daemon.links.dialling import Dialling, PeerDial
from peerd.daemon.links.link import TcpLink
from peerd.daemon.links.settings import LinkContext
from peerd.daemon.links.streams import BulkStream, StreamTable
from peerd.daemon.links.telemetry import LinkTelemetry
from peerd.driver import StreamHandler
from peerd.errors import Bug, PeerMisbehaved
from peerd.identity.node_identity import PeerIdentity
from peerd.ids import NodeId
from peerd.linking.channel import Channel, Dial
from peerd.linking.dial_limits import Attempt
from peerd.linking.policy import LinkPolicy, PolicyTransport
from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.wire.frames import Frame
from peerd.wire.handshake import HandshakeResult, Purpose

ABORT_TIMEOUT_S: Final = 1.0
"""How long to wait for aborted transports, which end within an iteration or two of the loop."""
FLUSH_POLL_S: Final = 0.02


class LinkEvents(Protocol):
    """What the node is told; never from within a call of its own."""

    def frame_received(self, peer: PeerRef, frame: Frame) -> None: ...
    def peer_down(self, peer: PeerRef, reason: str) -> None: ...
    def stream_accepted(self, peer: PeerRef) -> StreamHandler: ...
    def writable(self, peer: PeerRef) -> None: ...

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """The exception to that: this is called at once, as the node only notes the refusal."""


class Links(PolicyTransport):
    """Call `attach` before anything comes in, `start` in the loop, and `stop` at the end."""

    def __init__(self, context: LinkContext, telemetry: LinkTelemetry) -> None:
        self.context = context
        self.telemetry = telemetry
        self.on_duplicate_identity: Callable[[str], None] = lambda detail: None
        self.on_link_up: Callable[[TcpLink], None] = lambda link: None
        self.on_trust_frame: Callable[[TcpLink, Frame], None] = lambda link, frame: None
        self.policy: LinkPolicy[TcpLink] = LinkPolicy(context.local.node.id, context.settings, self, random.random)
        self._node: LinkEvents | None = None
        self.send = self.policy.send  # type: ignore[method-assign]  # one call less for each frame
        self._links: dict[TcpLink, None] = {}
        self._streams = StreamTable(self)
        self._dialling = Dialling(self, context, telemetry)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_due_at = 0.0
        self._drained = asyncio.Event()

    # Life

    def attach(self, node: LinkEvents) -> None:
        """Connect the node that is to be told."""
        self._node = node
        self.frame_received = node.frame_received  # type: ignore[method-assign]  # one call less for each frame

    def start(self) -> None:
        """Begin to watch time limits."""
        sweep_s = self.context.settings.sweep_s
        self._sweep_due_at = self.context.now() + sweep_s
        self._sweep_timer = asyncio.get_running_loop().call_later(sweep_s, self._sweep)

    async def stop(self, timeout_s: float) -> None:
        """Send what is queued, say goodbye, close everything; at most ``timeout_s`` seconds."""
        self.policy.stop()
        deadline = self.context.now() + timeout_s
        await self._dialling.stop()
        self._streams.close()
        await self._flush(deadline)
        for link in list(self._links):
            link.retire("stopping")
        await self._wait_empty(max(0.0, deadline - self.context.now()))
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.abort_all("stopping")
        self.policy.clear("stopping")
        await self._wait_empty(ABORT_TIMEOUT_S)

    def abort_all(self, reason: str) -> None:
        """End every link and stream now; a `stop` under way then ends, too."""
        for link in list(self._links):
            link.abort(reason)
        self._streams.abort()

    async def _flush(self, deadline: float) -> None:
        for link in list(self._links):
            link.flush()
        while self.context.now() < deadline:
            if self.policy.is_flushed:
                return
            await asyncio.sleep(FLUSH_POLL_S)

    async def _wait_empty(self, timeout_s: float) -> None:
        self._drained.clear()
        self._check_drained()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_s)

    def _check_drained(self) -> None:
        if not self._links and not len(self._streams):
            self._drained.set()

    def reconfigure(self, settings: LinkSettings) -> None:
        """Other limits from now on, for the links that are up, too; none of them ends for it."""
        self.context.settings = settings
        self.policy.reconfigure(settings)
        for link in self._links:
            link.reconfigure(settings)

    # From the driver

    def __len__(self) -> int:
        return len(self._links)

    @property
    def sockets(self) -> int:
        """How many links and streams are open."""
        return len(self._links) + len(self._streams)

    @property
    def dial_failures(self) -> dict[str, str]:
        """Why addresses of unknown nodes, such as seeds, gave no link when they were dialled last."""
        return dict(self._dialling.failures)

    def links(self) -> list[TcpLink]:
        """The control links that are up, in the order in which they came."""
        return self.policy.up()

    def link_to(self, peer_id: NodeId) -> TcpLink | None:
        """The control link to a peer, if there is one."""
        return self.policy.links.get(peer_id)

    def send(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        """See `peerd.driver.Transport.send`."""
        self.policy.send(peer, frame, priority)

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        """See `peerd.driver.Transport.dial`."""
        self._dialling.dial_address(host, port, done)

    def misbehaviour(self, peer_id: NodeId) -> float:
        """The peer's score, 0 to `peerd.linking.rate_limit.SCORE_LIMIT`, at which it is banned."""
        return self.policy.scores.points(peer_id, self.context.now())

    def charge(self, peer: PeerRef, messages: int) -> None:
        """See `peerd.driver.Transport.charge`."""
        link = self.link_to(peer.id)
        if link is not None:
            link.charge(messages)

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        """Count the misbehaviour, add to the peer's score, and close its link, if there is one."""
        reason = getattr(error, "reason", "misbehaved")
        banned = self.policy.misbehaved(peer.id, reason)
        self.telemetry.misbehaved(peer, error, banned)
        link = self.link_to(peer.id)
        if link is not None:
            link.abort("misbehaved")

    def open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        """See `peerd.driver.Transport.open_stream`."""
        self._dialling.open_stream(peer, handler)

    def deny(self, denied: frozenset[NodeId], serials: frozenset[int] = frozenset()) -> None:
        """Replace the deny list; links and streams with denied nodes or certificates end.

        What is queued for such a node, perhaps the reason, is sent first: a transport may write later in the iteration.
        """
        self.context.denied, self.context.denied_serials = denied, serials

        def is_denied(peer_id: NodeId, certificate: PeerIdentity | None) -> bool:
            return peer_id in denied or (certificate is not None and certificate.serial in serials)

        for link in list(self._links):
            if is_denied(link.peer.id, link.certificate):
                link.flush()
                asyncio.get_running_loop().call_soon(link.abort, "denied")
        self._streams.end_where(is_denied, "denied")

    def cut(self, nodes: frozenset[NodeId]) -> None:
        """Have no link with these nodes from now on, and with all others again, as if a network failed and came back.

        The other sides have to be told the same, or they go on dialling.
        """
        self.context.cut = nodes
        for link in list(self._links):
            if link.peer.id in nodes:
                link.abort("cut")
        self._streams.end_where(lambda peer_id, certificate: peer_id in nodes, "cut")

    # From connections

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        """Replaced by the node's own method when it is attached."""
        raise Bug(f"frame {frame[0]:#06x} from {peer} before a node was attached")

    def trust_frame_received(self, link: TcpLink, frame: Frame) -> None:
        """Hand on a frame about certificates; it is ignored with TLS off."""
        self.on_trust_frame(link, frame)

    def stream_accepted(self, peer: PeerRef) -> StreamHandler:
        """Ask the node for the reader of a stream that a peer opened."""
        if self._node is None:
            raise Bug(f"stream from {peer} before a node was attached")
        return self._node.stream_accepted(peer)

    def stream_ended(self) -> None:
        """A stream ended, so there is room for another."""
        self._check_drained()

    def caught_up(self, link: TcpLink) -> None:
        """See `peerd.daemon.links.link.LinkOwner`."""
        self.policy.caught_up(link.peer)

    def listening_to(self, peer_id: NodeId | None) -> None:
        """From now on dials are counted as caused by what this peer said."""
        self.policy.informant = peer_id

    def link_misbehaved(self, link: TcpLink, error: PeerMisbehaved) -> None:
        """The peer sent bytes that are not frames, or too many frames."""
        self.misbehaved(link.peer, error)
        link.abort("misbehaved")

    def duplicate_claimed(self, detail: str, witness: NodeId | None) -> None:
        """``witness`` says that another process has our identity."""
        self.policy.duplicate_claimed(detail, witness)

    def admit(self, established: HandshakeResult) -> tuple[str, str] | None:
        """Decide about an incoming connection before it is answered."""
        peer_id = established.peer.id
        if established.purpose is Purpose.BULK:
            return self.policy.admit_stream(peer_id, self._streams.peer_ids)
        return self.policy.admit(peer_id, established.boot_epoch)

    def adopt(self, connection: PendingConnection, established: HandshakeResult, rest: bytes) -> None:
        """Make a link or a stream of a connection whose handshake is done."""
        transport = connection.transport
        if transport is None:
            raise Bug("a connection without a transport cannot be established")
        if established.purpose is Purpose.BULK:
            self._streams.adopt(connection, established, transport, rest)
            return
        peer = established.peer
        channel = self.policy.channel(peer)
        link = TcpLink(
            self,
            self.context,
            established,
            channel.outbox,
            dialled=connection.dialled,
            address=connection.address,
            certificate=connection.certificate,
        )
        self._links[link] = None
        link.attach(transport)
        dial = channel.dial
        is_its_own = isinstance(dial, PeerDial) and dial.connection is connection
        self.policy.link_up(link, dial if is_its_own else None)
        self.telemetry.link_up(peer, connection.address, connection.dialled, link.protocol)
        self.on_link_up(link)
        link.wake()
        if rest:
            link.data_received(rest)

    def link_lost(self, link: TcpLink, reason: str) -> None:
        """A link ended."""
        del self._links[link]
        self._check_drained()
        self.telemetry.link_down(link.peer, reason, self.context.now() - link.established_at)
        self.policy.link_lost(link, reason)

    def begin_stream(self, peer: PeerRef) -> Attempt | str:
        """Whether a stream may be dialled."""
        return self.policy.begin_stream(peer)

    def new_stream(self, peer: PeerRef, handler: StreamHandler) -> BulkStream:
        """Return the stream that a connection is dialled for. It is in the table when the peer has answered."""
        return BulkStream(self._streams, peer, handler)

    def stream_dialled(self, attempt: Attempt, reason: str | None) -> None:
        """How the dial of a stream ended; ``None``: it succeeded."""
        if reason is None:
            self.policy.stream_opened(attempt)
        else:
            self.policy.stream_failed(attempt, reason)

    def dial_failed(self, channel: Channel, dial: PeerDial, reason: str) -> bool:
        """A dial ended without a link; returns whether people should hear of it."""
        return self.policy.dial_failed(channel, dial, reason)

    # For the policy (`peerd.linking.channel.LinkHost`)

    def now(self) -> float:
        """Seconds, monotonic."""
        return self.context.now()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in a later iteration of the loop."""
        asyncio.get_running_loop().call_soon(callback)

    def start_dial(self, channel: Channel, delay_s: float) -> Dial:
        """Start a task that dials."""
        return self._dialling.dial_peer(channel, delay_s)

    def dial_refused(self, peer: PeerRef, reason: str) -> None:
        """Count the refusal, and log it now and then."""
        self.telemetry.dialled(reason)
        self.telemetry.refused(peer.id, peer.address, reason, "not dialled: see node.allowed_networks and the limits")

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """Tell the node."""
        if self._node is not None:
            self._node.peer_down(peer, reason)

    def frames_dropped(self, frames: int, reason: str) -> None:
        """Count the frames."""
        self.telemetry.dropped(frames, reason)

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """Have the node note the refusal."""
        if self._node is not None:
            self._node.frame_refused(peer, frame, reason)

    def writable(self, peer: PeerRef) -> None:
        """Tell the node."""
        if self._node is not None:
            self._node.writable(peer)

    def duplicate_identity(self, detail: str) -> None:
        """Tell the daemon, which ends."""
        self.on_duplicate_identity(detail)

    # Inside

    def _sweep(self) -> None:
        now = self.context.now()
        late_s = now - self._sweep_due_at
        for link in list(self._links):
            if late_s > self.context.settings.sweep_s:
                link.excuse(late_s, now)
            link.sweep(now)
        self.policy.forget_idle()
        self.start()
