"""Which links a node has, wants and gives up: one table of peers, the same in the daemon and in the simulator.

Frames wait in the peer's queue, not in a connection, so none is lost when one of two connections is closed. A link that
is lost is dialled again before anybody is told; what cannot be reached is told to the node once (`LinkHost.peer_down`)
and is dialled again no sooner than its back-off allows. Addresses are what other nodes say they are:
`peerd.linking.dial_limits.DialLimits` bounds how often those are dialled that this node has never reached.

When both sides dial at once, the connection dialled by the smaller node id stays (`peerd.linking.channel.keeps_old`).
An acceptor with a dial of its own under way decides it before it answers HELLO: the smaller id refuses with
"duplicate_link", the larger one drops its own dial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from peerd.api import Priority, SendRefusal
from peerd.ids import NodeId
from peerd.linking.channel import Channel, Dial, Link, LinkHost, keeps_old
from peerd.linking.dial_limits import Attempt, DialLimits
from peerd.linking.rate_limit import MisbehaviourScores
from peerd.linking.send_queue import SendQueue
from peerd.linking.settings import LinkSettings
from peerd.messages import PeerRef
from peerd.wire.frames import Frame

CHANNELS_MAX: Final = 4096
"""Peers remembered for their back-off; above it those without a link are forgotten, oldest first."""
DUPLICATE_PATIENCE: Final = 6
"""How often a peer may refuse our dial in favour of its own before it counts as unreachable."""
OUT_OF_REACH_FAILURES: Final = 3
"""Reaching a peer after so many failures in a row is a sign that a network failure is over (see `_end_pauses`)."""
WITNESS_MEMORY_S: Final = 300.0
"""Two peers confirm each other if, within this time, both say that a newer process has this node's identity."""
ON_PURPOSE: Final = frozenset({"idle", "links_max"})
"""Reasons for closing a link that is dialled again as soon as something is to be sent."""
FINAL: Final = frozenset({"misbehaved", "denied"})
"""Reasons for which this side closes a link and does not dial again at once."""
_USED_AT: Final = attrgetter("used_at")

L = TypeVar("L", bound=Link)


class LinkPolicy(Generic[L]):
    """The table of one node's peers. ``links`` has the link that frames to a peer go out on, oldest first.

    ``draw`` gives random numbers from 0 to 1. All time is the host's. While a frame of a peer is handled, its host sets
    ``informant`` to that peer: what is dialled then is dialled because of what the peer said.
    """

    def __init__(self, own: NodeId, settings: LinkSettings, host: LinkHost, draw: Callable[[], float]) -> None:
        self.links: dict[NodeId, L] = {}
        self.channels: dict[NodeId, Channel] = {}
        self.scores = MisbehaviourScores()
        self.is_stopping = False
        self.informant: NodeId | None = None
        self._dials = DialLimits(settings.allowed_hosts)
        self._own = own
        self._settings = settings
        self._host = host
        self._draw = draw
        self._witnesses: dict[NodeId, float] = {}
        self._claims_only_since: float | None = None
        """When a peer first claimed that this node's identity has a newer process, with no link up since then."""

    def reconfigure(self, settings: LinkSettings) -> None:
        """Decide by other limits from now on. Links above a lower ``links_max`` stay until they end."""
        self._settings = settings
        self._dials.allowed = settings.allowed_hosts
        for channel in self.channels.values():
            channel.outbox.resize(settings.send_queue_bytes_max)

    # From the node

    def send(self, peer: PeerRef, frame: Frame, priority: Priority) -> None:
        """Queue a frame. Without a link dial first; while the peer's back-off is long, refuse the frame at once."""
        channel = self.channels.get(peer.id) or self._add_channel(peer)
        link = self.links.get(peer.id)
        if link is None and not self._may_wait(channel, peer):
            self._refuse(peer, (frame,), "backoff")
            return
        self.queue(channel, frame, priority)
        if link is not None:
            link.wake()

    def queue(self, channel: Channel, frame: Frame, priority: Priority) -> None:
        """Let a frame wait for the link. In a full queue less urgent frames are dropped for it, or it is itself."""
        dropped = channel.outbox.push(frame, priority)
        if dropped:
            self._refuse(channel.peer, dropped, "queue_full", SendRefusal.QUEUE_FULL)

    def queued_bytes(self, peer_id: NodeId) -> int:
        """How many bytes wait for the peer, with a link or without."""
        channel = self.channels.get(peer_id)
        return 0 if channel is None else channel.outbox.size_bytes

    def disconnect(self, peer: PeerRef) -> None:
        """Send what the link takes at once, say goodbye, forget the rest. Nobody is told."""
        channel = self.channels.get(peer.id)
        if channel is None:
            return
        channel.abandon_dial()
        link = self.links.pop(peer.id, None)
        if link is not None:
            link.flush()
            link.retire("disconnect")
        self._drop_queue(channel, "disconnect")

    def is_linked(self, peer_id: NodeId) -> bool:
        """Whether a link to this peer is up."""
        link = self.links.get(peer_id)
        return link is not None and link.is_up

    def linked_at(self, peer_id: NodeId) -> float | None:
        """Since when there has been a link to this peer without a break; ``None`` when none is up."""
        return self.channels[peer_id].linked_at if self.is_linked(peer_id) else None

    def boot_epoch_of(self, peer_id: NodeId) -> int | None:
        """The boot epoch that the peer gave in the handshake of the link that is up; ``None``: there is none."""
        link = self.links.get(peer_id)
        return link.boot_epoch if link is not None and link.is_up else None

    def introduced(self, peer_id: NodeId) -> Mapping[str, tuple[int, int]] | None:
        """What the peer said of its plugins in the handshake of the link that is up; ``None``: there is none."""
        link = self.links.get(peer_id)
        return link.plugins if link is not None and link.is_up else None

    def up(self) -> list[L]:
        """The links that are up, in the order in which they came."""
        return [link for link in self.links.values() if link.is_up]

    def misbehaved(self, peer_id: NodeId, reason: str) -> bool:
        """Add to the peer's score; returns whether it is banned now. The caller ends its connections."""
        return self.scores.add(peer_id, reason, self._host.now())

    def stop(self) -> None:
        """Dial and admit nothing any more, and tell the node nothing."""
        self.is_stopping = True
        for channel in self.channels.values():
            channel.abandon_dial()

    @property
    def is_flushed(self) -> bool:
        """Whether nothing waits for a link that is up."""
        return not any(channel.outbox and self.is_linked(key) for key, channel in self.channels.items())

    def clear(self, reason: str) -> None:
        """Drop all that is queued."""
        for channel in self.channels.values():
            self._drop_queue(channel, reason)

    def caught_up(self, peer: PeerRef) -> None:
        """The peer was slow, and little is left in its queue: tell the node, though not from within a call of its."""
        self._host.call_soon(lambda: self._tell_writable(peer))

    # Streams

    def begin_stream(self, peer: PeerRef) -> Attempt | str:
        """Permit the dial of a bulk connection, or say why not; then tell `stream_opened` or `stream_failed`."""
        return self._permit(self.channels.get(peer.id), peer)

    def stream_opened(self, attempt: Attempt) -> None:
        """The bulk connection reached the peer at the address that others gave."""
        self._dials.reached(attempt, self._host.now())

    def stream_failed(self, attempt: Attempt, reason: str) -> None:
        """The dial of the bulk connection failed."""
        self._dials.failed(attempt, reason, self._host.now())

    # Connections

    def admit(self, peer_id: NodeId, boot_epoch: int) -> tuple[str, str] | None:
        """Accepting side, before HELLO for a control link is answered: ``None``, or (reason, detail) of the refusal."""
        refusal = self.admit_stream(peer_id, ())
        link = self.links.get(peer_id)
        if refusal is not None:
            return refusal
        if link is None:
            if not self._has_room():
                return "links_max", f"{self._settings.links_max} links are up, and all in use"
            channel = self.channels.get(peer_id)
            has_said_hello = channel is not None and channel.dial is not None and channel.dial.has_said_hello
            if has_said_hello and self._own < peer_id:
                return "duplicate_link", "our own dial is under way, and we have the smaller id"
            return None
        if boot_epoch < link.boot_epoch:
            return "duplicate_identity", f"boot epoch {link.boot_epoch} of this identity is connected"
        if self._keeps_old(link, boot_epoch, new_dialled=False):
            return "duplicate_link", "we have a link, and have the smaller id"
        return None

    def admit_stream(self, peer_id: NodeId, streams: Sequence[NodeId]) -> tuple[str, str] | None:
        """Decide in the same way about a bulk connection; ``streams``: the peers of those that are open.

        A peer with more of them than are left for all others gets no further one, so that no peer has them all.
        """
        if self.is_stopping:
            return "stopping", "this node is going down"
        if self.scores.is_banned(peer_id, self._host.now()):
            return "banned", "too many violations of the protocol; try again later"
        left = self._settings.streams_max - len(streams)
        if left <= 0 or streams.count(peer_id) > left:
            return "streams_max", f"{len(streams)} of {self._settings.streams_max} bulk connections are open"
        return None

    def channel(self, peer: PeerRef) -> Channel:
        """Return the entry of a peer that gave its address itself, in a handshake; make it if there is none."""
        channel = self.channels.get(peer.id) or self._add_channel(peer)
        channel.peer = peer
        return channel

    def link_up(self, link: L, dial: Dial | None) -> None:
        """A link is past its handshake; ``dial`` is the dial of ours that made it, if one did."""
        peer_id = link.peer.id
        channel = self.channel(link.peer)
        self._claims_only_since = None
        if channel.failures >= OUT_OF_REACH_FAILURES:
            self._end_pauses()
        channel.duplicates = 0
        if channel.attempt is not None:
            self._dials.reached(channel.attempt, self._host.now())
            if dial is not None and channel.dial is dial:
                channel.reached = channel.attempt.address
            channel.attempt = None
        old = self.links.get(peer_id)
        if old is None:
            channel.linked_at = self._host.now()
        if old is not None and self._keeps_old(old, link.boot_epoch, new_dialled=link.dialled):
            link.retire("duplicate_link")
        else:
            self.links.pop(peer_id, None)
            self.links[peer_id] = link
            if old is not None:
                old.retire("duplicate_identity" if link.boot_epoch > old.boot_epoch else "replaced")
        self._make_room(link)
        if channel.dial is dial:
            channel.dial = None
        channel.abandon_dial()

    def link_lost(self, link: L, reason: str) -> None:
        """A link ended: dial again unless it was on purpose."""
        peer, now = link.peer, self._host.now()
        if link.goodbye == "duplicate_identity":
            self.duplicate_claimed(f"{peer} has a link with a newer process of this identity", peer.id)
        if self.links.get(peer.id) is not link:
            return
        del self.links[peer.id]
        channel = self.channels.get(peer.id) or self._add_channel(peer)
        channel.touched_at = now
        if self.is_stopping:
            return
        if now - link.established_at >= self._settings.backoff_reset_s:
            channel.failures, channel.retry_at = 0, 0.0
        if reason in FINAL or link.goodbye == "stopping":
            self.give_up(channel, "stopping" if link.goodbye == "stopping" else reason)
        elif link.goodbye == "duplicate_identity":
            channel.retry_at = now + self._settings.dial_timeout_s  # by then others could have answered: ask again
            self._dial(channel)
        elif channel.outbox or (link.goodbye is None and reason not in ON_PURPOSE):
            self._dial_again(channel, reason)

    def dial_failed(self, channel: Channel, dial: Dial, reason: str) -> bool:
        """A dial of ours ended without a link. Returns whether none follows, so that people should hear of it."""
        now = self._host.now()
        channel.touched_at = now
        if channel.dial is not dial:
            return False  # it was abandoned
        channel.dial = None
        if channel.attempt is not None:
            self._dials.failed(channel.attempt, reason, now)
            channel.attempt = None
        if channel.peer.id in self.links:
            return False
        if reason == "duplicate_link" and channel.duplicates < DUPLICATE_PATIENCE:
            channel.duplicates += 1
            channel.retry_at = now + backoff_s(self._settings, channel.duplicates, self._draw)
            refusal = self._dial(channel) if channel.outbox else None  # in case the peer's own dial does not arrive
            if refusal is not None:
                self.give_up(channel, refusal)
            return False
        channel.failures += 1
        channel.retry_at = now + backoff_s(self._settings, channel.failures, self._draw)
        self.give_up(channel, reason)
        return True

    def give_up(self, channel: Channel, reason: str) -> None:
        """The peer cannot be reached: drop what is queued, tell the node a little later."""
        self._drop_queue(channel, "peer_down")
        self._tell_down_soon(channel, reason)

    def duplicate_claimed(self, detail: str, witness: NodeId | None) -> None:
        """Another process has our identity and is newer, and this one must end: so says ``witness``.

        Believed of the other process itself (its certificate is ours), of two different peers within
        `WITNESS_MEMORY_S`, or of one that says it again when all others have had the time to be dialled, and nobody has
        a link with us: a single bad member, or the first of several seeds, must not be able to end nodes.
        """
        now = self._host.now()
        self._witnesses = {peer: at for peer, at in self._witnesses.items() if now - at < WITNESS_MEMORY_S}
        if witness is not None:
            self._witnesses[witness] = now
        if witness in (None, self._own) or len(self._witnesses) > 1 or self._is_only_answer(now):
            self._host.duplicate_identity(detail)

    def forget_idle(self) -> None:
        """Forget peers that nobody has wanted for longer than any back-off; called now and then."""
        forget_after_s, now = self._settings.backoff_max_s, self._host.now()
        for key, channel in list(self.channels.items()):
            is_over = now > channel.retry_at and now - channel.touched_at > forget_after_s
            if is_over and channel.is_idle and key not in self.links:
                del self.channels[key]

    # Inside

    def _is_only_answer(self, now: float) -> bool:
        """Whether claims of one peer are all that this node has had for an answer since others could have given one."""
        if self.up():
            self._claims_only_since = None
        elif self._claims_only_since is None or now - self._claims_only_since > WITNESS_MEMORY_S:
            self._claims_only_since = now
        since = self._claims_only_since
        return since is not None and now - since >= self._settings.dial_timeout_s

    def _may_wait(self, channel: Channel, peer: PeerRef) -> bool:
        """There is no link: dial, and say whether the dial begins soon enough for a frame to wait for it."""
        if self.is_stopping:
            return False
        if channel.dial is None:
            channel.peer = peer
            if channel.retry_at - self._host.now() > self._settings.backoff_wait_s:
                self._tell_down_soon(channel, "backoff")
                return False
            refusal = self._dial(channel)
            if refusal is not None:
                self._tell_down_soon(channel, refusal)
                return False
        return True

    def _dial(self, channel: Channel) -> str | None:
        """Begin a dial unless one is under way; returns why that is not allowed, else ``None``."""
        if channel.dial is None and not self.is_stopping:
            attempt = self._permit(channel, channel.peer)
            if isinstance(attempt, str):
                return attempt
            channel.attempt = attempt
            channel.dial = self._host.start_dial(channel, max(0.0, channel.retry_at - self._host.now()))
        return None

    def _permit(self, channel: Channel | None, peer: PeerRef) -> Attempt | str:
        is_proven = channel is not None and channel.reached == (peer.host, peer.port)
        attempt = self._dials.begin(peer, self.informant, self._host.now(), is_proven=is_proven)
        if isinstance(attempt, str):
            self._host.dial_refused(peer, attempt)
        return attempt

    def _dial_again(self, channel: Channel, reason: str) -> None:
        """Dial a peer whose link was lost: at once, or after the back-off if the link keeps breaking."""
        pause_s = backoff_s(self._settings, channel.failures, self._draw) if channel.failures else 0.0
        channel.retry_at = self._host.now() + pause_s
        channel.failures += 1
        if pause_s > self._settings.backoff_wait_s:
            self.give_up(channel, reason)
            return
        refusal = self._dial(channel)
        if refusal is not None:
            self.give_up(channel, refusal)

    def _end_pauses(self) -> None:
        """A peer that was out of reach answers. What kept others away may be over too: each may be tried once."""
        now = self._host.now()
        for channel in self.channels.values():
            channel.retry_at = min(channel.retry_at, now)

    def _refuse(
        self, peer: PeerRef, frames: Sequence[Frame], why: str, reason: SendRefusal = SendRefusal.PEER_DOWN
    ) -> None:
        """Count these frames, which will not be sent, and have the node note each."""
        self._host.frames_dropped(len(frames), why)
        if not self.is_stopping:
            for frame in frames:
                self._host.frame_refused(peer, frame, reason)

    def _drop_queue(self, channel: Channel, why: str) -> None:
        self._refuse(channel.peer, channel.outbox.clear(), why)
        if channel.outbox.has_recovered():
            self.caught_up(channel.peer)

    def _tell_writable(self, peer: PeerRef) -> None:
        if not self.is_stopping:
            self._host.writable(peer)

    def _tell_down_soon(self, channel: Channel, reason: str) -> None:
        """Tell the node of the lost peer after the current call, which may be a call of the node's own."""
        if not channel.is_down_due:
            channel.is_down_due = True
            self._host.call_soon(lambda: self._tell_down(channel, reason))

    def _tell_down(self, channel: Channel, reason: str) -> None:
        channel.is_down_due = False
        if not self.is_stopping and channel.peer.id not in self.links:
            self._host.peer_down(channel.peer, reason)

    def _keeps_old(self, old: L, boot_epoch: int, *, new_dialled: bool) -> bool:
        return (
            old.is_up
            and boot_epoch == old.boot_epoch
            and keeps_old(
                old_dialled=old.dialled,
                new_dialled=new_dialled,
                local_id=self._own,
                peer_id=old.peer.id,
                age_s=self._host.now() - old.established_at,
                grace_s=self._settings.duplicate_grace_s,
            )
        )

    def _has_room(self) -> bool:
        """Whether a newcomer may have a link: one is free, or one is not in use."""
        settings = self._settings
        if len(self.links) < settings.links_max:
            return True
        links, now = self.up(), self._host.now()
        return len(links) < settings.links_max or any(now - link.used_at >= settings.evictable_s for link in links)

    def _make_room(self, newest: L) -> None:
        """Over the limit, the link that was unused for longest makes room: the overlay needs it least."""
        if len(self.links) <= self._settings.links_max:
            return
        others = [link for link in self.up() if link is not newest]
        if newest.is_up and len(others) >= self._settings.links_max:
            min(others, key=_USED_AT).retire("links_max")

    def _add_channel(self, peer: PeerRef) -> Channel:
        if len(self.channels) >= CHANNELS_MAX:
            idle = next((key for key, each in self.channels.items() if each.is_idle and key not in self.links), None)
            if idle is not None:
                del self.channels[idle]
        channel = Channel(peer, SendQueue(self._settings.send_queue_bytes_max), self._host.now())
        self.channels[peer.id] = channel
        return channel


def backoff_s(settings: LinkSettings, failures: int, draw: Callable[[], float]) -> float:
    """The pause after so many failures in a row: doubling, bounded, half of it random so that peers spread out."""
    longest = min(settings.backoff_max_s, settings.backoff_min_s * 2.0 ** min(failures - 1, 32))
    return longest * (0.5 + 0.5 * draw())


class PolicyTransport:
    """What a transport of either kind answers from its policy; `peerd.driver.Transport` says what that means."""

    policy: LinkPolicy[Any]

    def disconnect(self, peer: PeerRef, reason: str) -> None:
        self.policy.disconnect(peer)

    def is_linked(self, peer: PeerRef) -> bool:
        return self.policy.is_linked(peer.id)

    def linked_at(self, peer: PeerRef) -> float | None:
        return self.policy.linked_at(peer.id)

    def boot_epoch_of(self, peer: PeerRef) -> int | None:
        return self.policy.boot_epoch_of(peer.id)

    def queued_bytes(self, peer: PeerRef) -> int:
        return self.policy.queued_bytes(peer.id)

    def introduced(self, peer: PeerRef) -> Mapping[str, tuple[int, int]] | None:
        return self.policy.introduced(peer.id)
