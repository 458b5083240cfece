"""All connections of this node: one control link a peer pair, dials, back-off, bulk streams.

When both sides dial at once, the connection dialled by the smaller node id stays (`peerd.daemon.channel.keeps_old`).
An acceptor with a dial of its own under way decides it before it answers HELLO: the smaller id refuses with
"duplicate_link", the larger one drops its own dial. Frames wait in the peer's queue, not in a connection, so the loser
takes none with it; a link that was answered already and loses says Goodbye and is read to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final, Protocol

from peerd.api import Priority, SendRefusal
from peerd.daemon.channel import PeerChannel, keeps_old
from peerd.daemon.connection import PendingConnection
from peerd.daemon.dialling import Dialling
from peerd.daemon.identity import PeerIdentity
from peerd.daemon.link import Link
from peerd.daemon.link_settings import LinkContext
from peerd.daemon.link_telemetry import LinkTelemetry
from peerd.daemon.rate_limit import MisbehaviourScores
from peerd.daemon.send_queue import SendQueue
from peerd.daemon.stream_table import StreamTable
from peerd.driver import StreamHandler
from peerd.errors import Bug, PeerMisbehaved
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.wire.frames import Frame
from peerd.wire.handshake import Established, Purpose

CHANNELS_MAX: Final = 4096
"""Peers remembered for their back-off; above it those without a link are forgotten, oldest first."""
ABORT_TIMEOUT_S: Final = 1.0
"""An aborted transport ends within an iteration or two of the loop."""
FLUSH_POLL_S: Final = 0.02
WITNESS_MEMORY_S: Final = 300.0
"""Peers that say within so long of each other that this node's identity has a newer process agree on it."""
_USED_AT: Final = attrgetter("used_at")


class LinkEvents(Protocol):
    """What the node above is told; never from within a call that it made itself."""

    def frame_received(self, peer: PeerRef, frame: Frame) -> None: ...
    def peer_down(self, peer: PeerRef, reason: str) -> None: ...
    def stream_accepted(self, peer: PeerRef) -> StreamHandler: ...
    def writable(self, peer: PeerRef) -> None: ...

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """The exception: it only notes the refusal, and is called at once."""


class Links:
    """The table of peers. Call `attach` before anything comes in, `start` in the loop, and `stop` at the end."""

    def __init__(self, context: LinkContext, telemetry: LinkTelemetry) -> None:
        self.context = context
        self.telemetry = telemetry
        self.on_duplicate_identity: Callable[[str], None] = lambda detail: None
        self.on_link_up: Callable[[Link], None] = lambda link: None
        self.on_trust_frame: Callable[[Link, Frame], None] = lambda link, frame: None
        self._node: LinkEvents | None = None
        self._channels: dict[NodeId, PeerChannel] = {}
        self._links: dict[Link, None] = {}
        self._witnesses: dict[NodeId, float] = {}
        self._scores = MisbehaviourScores()
        self._streams = StreamTable(self)
        self._dialling = Dialling(self, context, telemetry)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_due_at = 0.0
        self._is_stopping = False
        self._drained = asyncio.Event()

    # Life

    def attach(self, node: LinkEvents) -> None:
        """Whom to tell."""
        self._node = node
        self.frame_received = node.frame_received  # type: ignore[method-assign]  # one call less for each frame

    def start(self) -> None:
        """Begin to watch time limits."""
        sweep_s = self.context.settings.sweep_s
        self._sweep_due_at = self.context.now() + sweep_s
        self._sweep_timer = asyncio.get_running_loop().call_later(sweep_s, self._sweep)

    async def stop(self, timeout_s: float) -> None:
        """Send what is queued, say goodbye, close everything; at most ``timeout_s`` seconds."""
        self._is_stopping = True
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
        for channel in self._channels.values():
            self.telemetry.dropped(len(channel.outbox.clear()), "stopping")
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
            if not any(channel.outbox and channel.link and channel.link.is_up for channel in self._channels.values()):
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

    # From the driver

    def __len__(self) -> int:
        return len(self._links)

    @property
    def sockets(self) -> int:
        """Links and streams together."""
        return len(self._links) + len(self._streams)

    @property
    def dial_failures(self) -> dict[str, str]:
        """Why addresses of unknown nodes, such as seeds, gave no link when they were dialled last."""
        return dict(self._dialling.failures)

    def links(self) -> list[Link]:
        """The control links that are up, in the order in which they came."""
        return [link for link in self._links if link.is_up]

    def link_to(self, peer_id: NodeId) -> Link | None:
        """The control link to a peer, if there is one."""
        channel = self._channels.get(peer_id)
        return channel.link if channel is not None else None

    def send(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        """See `peerd.driver.Driver.send`."""
        channel = self._channels.get(peer.id) or self._add_channel(peer)
        if channel.link is None and not self._may_wait(channel, peer):
            self._refuse(peer, (frame,), "backoff")
            return
        dropped = channel.outbox.push(frame, priority)
        if dropped:
            self._refuse(peer, dropped, "queue_full", SendRefusal.QUEUE_FULL)
        if channel.link is not None:
            channel.link.wake()

    def dial(self, host: str, port: int, done: Callable[[PeerRef | None], None]) -> None:
        """See `peerd.driver.Driver.dial`."""
        self._dialling.dial_address(host, port, done)

    def disconnect(self, peer: PeerRef, reason: str) -> None:
        """See `peerd.driver.Driver.disconnect`."""
        channel = self._channels.get(peer.id)
        if channel is None:
            return
        channel.abandon_dial()
        if channel.link is not None:
            channel.link.flush()
            channel.link.retire("disconnect")
            channel.link = None
        self._drop_queue(channel, "disconnect")

    def is_linked(self, peer: PeerRef) -> bool:
        """See `peerd.driver.Driver.is_linked`."""
        channel = self._channels.get(peer.id)
        return channel is not None and channel.link is not None and channel.link.is_up

    def queued_bytes(self, peer: PeerRef) -> int:
        """See `peerd.driver.Driver.queued_bytes`."""
        channel = self._channels.get(peer.id)
        return 0 if channel is None else channel.outbox.size_bytes

    def introduced(self, peer: PeerRef) -> Mapping[str, tuple[int, int]] | None:
        """See `peerd.driver.Driver.introduced`."""
        link = self.link_to(peer.id)
        return link.plugins if link is not None and link.is_up else None

    def misbehaviour(self, peer_id: NodeId) -> float:
        """The peer's score, 0 to `peerd.daemon.rate_limit.SCORE_LIMIT`, at which it is banned."""
        return self._scores.points(peer_id, self.context.now())

    def misbehaved(self, peer: PeerRef, error: PeerMisbehaved) -> None:
        """Count it, score it, and close the link to this peer, if there is one."""
        reason = getattr(error, "reason", "misbehaved")
        banned = self._scores.add(peer.id, reason, self.context.now())
        self.telemetry.misbehaved(peer, error, banned)
        link = self.link_to(peer.id)
        if link is not None:
            link.abort("misbehaved")

    def open_stream(self, peer: PeerRef, handler: StreamHandler) -> None:
        """See `peerd.driver.Driver.open_stream`."""
        self._dialling.open_stream(peer, handler)

    def deny(self, denied: frozenset[NodeId], serials: frozenset[int] = frozenset()) -> None:
        """Replace the deny list; links and streams with denied nodes or certificates end."""
        self.context.denied, self.context.denied_serials = denied, serials

        def is_denied(peer_id: NodeId, certificate: PeerIdentity | None) -> bool:
            return peer_id in denied or (certificate is not None and certificate.serial in serials)

        for link in list(self._links):
            if is_denied(link.peer.id, link.certificate):
                link.abort("denied")
        self._streams.deny(is_denied)

    # From connections

    def frame_received(self, peer: PeerRef, frame: Frame) -> None:
        """Replaced by the node's own method when it is attached."""
        raise Bug(f"frame {frame.type_id:#06x} from {peer} before a node was attached")

    def trust_frame_received(self, link: Link, frame: Frame) -> None:
        """A frame about certificates; with TLS off nobody cares."""
        self.on_trust_frame(link, frame)

    def stream_accepted(self, peer: PeerRef) -> StreamHandler:
        """Ask the node for the reader of a stream that a peer opened."""
        if self._node is None:
            raise Bug(f"stream from {peer} before a node was attached")
        return self._node.stream_accepted(peer)

    def stream_ended(self) -> None:
        """One stream fewer."""
        self._check_drained()

    def link_misbehaved(self, link: Link, error: PeerMisbehaved) -> None:
        """Bytes that are no frames, or too many of them."""
        self.misbehaved(link.peer, error)
        link.abort("misbehaved")

    def duplicate_identity(self, detail: str, witness: NodeId | None) -> None:
        """Another process has our identity and is newer, and this one must end: so says ``witness``.

        Believed of the other process itself (its certificate is ours), of two different peers within
        `WITNESS_MEMORY_S`, or of one when nobody is left who has a link with us: a single bad member must not be able
        to end nodes.
        """
        own_id, now = self.context.local.node.id, self.context.now()
        self._witnesses = {peer: at for peer, at in self._witnesses.items() if now - at < WITNESS_MEMORY_S}
        if witness is not None:
            self._witnesses[witness] = now
        if witness in (None, own_id) or len(self._witnesses) > 1 or not self.links():
            self.on_duplicate_identity(detail)

    def admit(self, connection: PendingConnection, established: Established) -> tuple[str, str] | None:
        """Decide about an incoming connection before it is answered."""
        peer, now, settings = established.peer, self.context.now(), self.context.settings
        if self._is_stopping:
            return "stopping", "this node is going down"
        if self._scores.is_banned(peer.id, now):
            return "banned", "too many violations of the protocol; try again later"
        if established.purpose is Purpose.BULK:
            if len(self._streams) >= settings.streams_max:
                return "streams_max", f"{settings.streams_max} bulk connections are open"
            return None
        channel = self._channels.get(peer.id)
        if channel is None or channel.link is None:
            if not self._has_room(now):
                return "links_max", f"{settings.links_max} links are up, and all in use"
            if channel is not None and channel.has_said_hello and self.context.local.node.id < peer.id:
                return "duplicate_link", "our own dial is under way, and we have the smaller id"
            return None
        if established.boot_epoch < channel.link.boot_epoch:
            return "duplicate_identity", f"boot epoch {channel.link.boot_epoch} of this identity is connected"
        if self._keeps_old(channel.link, established, connection.dialled):
            return "duplicate_link", "we have a link, and have the smaller id"
        return None

    def adopt(self, connection: PendingConnection, established: Established, rest: bytes) -> None:
        """Make a link or a stream of a connection whose handshake is done."""
        transport = connection.transport
        if transport is None:
            raise Bug("a connection without a transport cannot be established")
        if established.purpose is Purpose.BULK:
            self._streams.adopt(connection, established, transport, rest)
            return
        peer = established.peer
        channel = self._channels.get(peer.id) or self._add_channel(peer)
        channel.peer = peer
        link = Link(
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
        self._replace(channel, link, established)
        self._make_room(link)
        if channel.dial is not None and channel.dial.connection is not connection:
            channel.abandon_dial()
        self.telemetry.link_up(peer, connection.address, connection.dialled, link.protocol)
        self.on_link_up(link)
        link.wake()
        if rest:
            link.data_received(rest)

    def link_lost(self, link: Link, reason: str) -> None:
        """A link ended: dial again unless it was on purpose."""
        del self._links[link]
        self._check_drained()
        now = self.context.now()
        lived_s = now - link.established_at
        self.telemetry.link_down(link.peer, reason, lived_s)
        if link.goodbye == "duplicate_identity":
            self.duplicate_identity(f"{link.peer} has a link with a newer process of this identity", link.peer.id)
        channel = self._channels.get(link.peer.id)
        if channel is None or channel.link is not link:
            return
        channel.link, channel.touched_at = None, now
        if self._is_stopping:
            return
        if lived_s >= self.context.settings.backoff_reset_s:
            channel.failures, channel.retry_at = 0, 0.0
        if reason in ("misbehaved", "denied") or link.goodbye == "stopping":
            self.give_up(channel, "stopping" if link.goodbye == "stopping" else reason)
        elif channel.outbox or (link.goodbye is None and reason not in ("idle", "links_max")):
            self._dialling.dial_again(channel, reason)

    # Inside

    def _keeps_old(self, old: Link, established: Established, dialled: bool) -> bool:
        return (
            old.is_up
            and established.boot_epoch == old.boot_epoch
            and keeps_old(
                old,
                local_id=self.context.local.node.id,
                peer_id=established.peer.id,
                new_dialled=dialled,
                age_s=self.context.now() - old.established_at,
                grace_s=self.context.settings.duplicate_grace_s,
            )
        )

    def _replace(self, channel: PeerChannel, link: Link, established: Established) -> None:
        old = channel.link
        if old is not None and self._keeps_old(old, established, link.dialled):
            link.retire("duplicate_link")
            return
        channel.link = link
        if old is not None:
            is_older_process = established.boot_epoch > old.boot_epoch
            old.retire("duplicate_identity" if is_older_process else "replaced")

    def _has_room(self, now: float) -> bool:
        """Whether a newcomer may have a link: one is free, or one is not in use."""
        links, settings = self.links(), self.context.settings
        return len(links) < settings.links_max or any(now - link.used_at >= settings.evictable_s for link in links)

    def _make_room(self, newest: Link) -> None:
        """Over the limit, the link that was unused for longest makes room: the overlay needs it least."""
        others = [link for link in self.links() if link is not newest]
        if newest.is_up and len(others) >= self.context.settings.links_max:
            min(others, key=_USED_AT).retire("links_max")

    def _add_channel(self, peer: PeerRef) -> PeerChannel:
        if len(self._channels) >= CHANNELS_MAX:
            idle = next((key for key, channel in self._channels.items() if channel.is_idle), None)
            if idle is not None:
                del self._channels[idle]
        channel = PeerChannel(peer, SendQueue(self.context.settings.send_queue_bytes_max))
        channel.touched_at = self.context.now()
        self._channels[peer.id] = channel
        return channel

    def _may_wait(self, channel: PeerChannel, peer: PeerRef) -> bool:
        """Without a link: dial, unless the back-off is so long that failing at once is kinder."""
        if self._is_stopping:
            return False
        if channel.dial is None:
            channel.peer = peer
            if channel.retry_at - self.context.now() > self.context.settings.backoff_wait_s:
                if not channel.is_down_due:
                    channel.is_down_due = True
                    asyncio.get_running_loop().call_soon(self._tell_down, channel, "backoff")
                return False
            self._dialling.dial_peer(channel)
        return True

    def give_up(self, channel: PeerChannel, reason: str) -> None:
        """The peer cannot be reached: drop what is queued, tell the node a little later."""
        self._drop_queue(channel, "peer_down")
        if not channel.is_down_due:
            channel.is_down_due = True
            # Not at once: this may run within a call of the node's own.
            asyncio.get_running_loop().call_soon(self._tell_down, channel, reason)

    def _refuse(
        self, peer: PeerRef, frames: Sequence[Frame], why: str, reason: SendRefusal = SendRefusal.PEER_DOWN
    ) -> None:
        """These will not be sent: count them, and have the node note them."""
        self.telemetry.dropped(len(frames), why)
        if self._node is not None and not self._is_stopping:
            for frame in frames:
                self._node.frame_refused(peer, frame, reason)

    def _drop_queue(self, channel: PeerChannel, why: str) -> None:
        self._refuse(channel.peer, channel.outbox.clear(), why)
        if channel.outbox.has_recovered():
            self._tell_writable(channel.peer)

    def caught_up(self, link: Link) -> None:
        """See `peerd.daemon.link.LinkOwner`."""
        self._tell_writable(link.peer)

    def _tell_writable(self, peer: PeerRef) -> None:
        if self._node is not None and not self._is_stopping:
            asyncio.get_running_loop().call_soon(self._node.writable, peer)

    def _tell_down(self, channel: PeerChannel, reason: str) -> None:
        channel.is_down_due = False
        if self._node is not None and not self._is_stopping and channel.link is None:
            self._node.peer_down(channel.peer, reason)

    def _sweep(self) -> None:
        now = self.context.now()
        late_s = now - self._sweep_due_at
        for link in list(self._links):
            if late_s > self.context.settings.sweep_s:
                link.excuse(late_s, now)
            link.sweep(now)
        forget_after_s = self.context.settings.backoff_max_s
        for key in [key for key, each in self._channels.items() if each.is_idle]:
            channel = self._channels[key]
            if now > channel.retry_at and now - channel.touched_at > forget_after_s:
                del self._channels[key]
        self.start()
