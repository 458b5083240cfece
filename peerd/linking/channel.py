"""Everything about one peer but its link: what waits for it, the dial under way, how often dialling it has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from peerd.api import SendRefusal
from peerd.linking.dial_limits import Attempt
from peerd.linking.send_queue import SendQueue
from peerd.messages import PeerRef
from peerd.wire.frames import Frame


class Link(Protocol):
    """This node's end of one control link, as the policy sees it."""

    @property
    def peer(self) -> PeerRef: ...

    @property
    def boot_epoch(self) -> int:
        """The boot epoch of the peer's process at the other end."""

    @property
    def plugins(self) -> Mapping[str, tuple[int, int]]:
        """The versions of its plugins that the peer gave in the handshake; empty when it gave none."""

    @property
    def dialled(self) -> bool:
        """Whether this side dialled."""

    @property
    def established_at(self) -> float: ...

    @property
    def used_at(self) -> float:
        """When the link last carried anything but heartbeats and goodbyes."""

    @property
    def goodbye(self) -> str | None:
        """The reason that the peer gave for closing."""

    @property
    def is_up(self) -> bool:
        """Whether frames may be sent on it."""

    def wake(self) -> None:
        """Take note that something is queued for the peer."""

    def flush(self) -> None:
        """Send what is queued, as far as the link takes it at once."""

    def retire(self, reason: str) -> None:
        """Say goodbye and send nothing more; what the peer has under way still arrives."""

    def abort(self, reason: str) -> None:
        """Close the link at once."""


class Dial(Protocol):
    """A dial of this node's own, under way or waiting for its back-off to end."""

    @property
    def has_said_hello(self) -> bool:
        """Whether HELLO was sent, so that the peer may know of this dial."""

    def abandon(self) -> None:
        """Give up: the peer's own connection was kept instead, or nobody wants the link any more."""


class LinkHost(Protocol):
    """Carries out the policy's decisions: the daemon with sockets, the simulator with its model of them."""

    def now(self) -> float:
        """Seconds, monotonic."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back after the current call, whoever made it, has returned."""

    def start_dial(self, channel: Channel, delay_s: float) -> Dial:
        """Dial the peer, ``delay_s`` from now. Ends in `LinkPolicy.link_up` or `LinkPolicy.dial_failed`, later."""

    def dial_refused(self, peer: PeerRef, reason: str) -> None:
        """Count that this peer was not dialled, for ``reason``."""

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """Tell the node. Never called from within a call of the node's own."""

    def frames_dropped(self, frames: int, reason: str) -> None:
        """Count control frames that will never be sent; ``frames`` may be 0."""

    def frame_refused(self, peer: PeerRef, frame: Frame, reason: SendRefusal) -> None:
        """Have the node note that this frame will never be sent. May be called within a call of the node's own."""

    def writable(self, peer: PeerRef) -> None:
        """Tell the node that a slow peer has caught up. Never called from within a call of the node's own."""

    def duplicate_identity(self, detail: str) -> None:
        """Another process has this node's identity and is newer: this one must end."""


@dataclass(slots=True)
class Channel:
    """One peer that this node has, wants or wanted a link to. ``retry_at`` is monotonic seconds."""

    peer: PeerRef
    outbox: SendQueue
    touched_at: float
    dial: Dial | None = None
    failures: int = 0
    retry_at: float = 0.0
    duplicates: int = 0
    """How often, since the last link, the peer has refused our dial in favour of a dial of its own."""
    attempt: Attempt | None = None
    """The permission of the dial under way; it is settled when the dial has ended."""
    reached: tuple[str, int] | None = None
    """The host and port at which this node has reached the peer by its own dial."""
    linked_at: float = 0.0
    """Since when there has been a link without a break, if there is one."""
    is_down_due: bool = False
    """``peer_down`` is about to be told; once is enough for all frames refused meanwhile."""

    def abandon_dial(self) -> None:
        """Give up the dial under way, if any."""
        if self.dial is not None:
            dial, self.dial = self.dial, None
            dial.abandon()

    @property
    def is_idle(self) -> bool:
        """Whether nothing but the back-off is lost when this peer is forgotten, once it has no link."""
        return self.dial is None and not self.outbox and not self.is_down_due


def keeps_old(
    *, old_dialled: bool, new_dialled: bool, local_id: int, peer_id: int, age_s: float, grace_s: float
) -> bool:
    """Whether the older of two connections between the same two processes stays; both sides decide alike.

    If both sides dialled at the same time (opposite directions, and the older connection is younger than ``grace_s``),
    the connection that the smaller node id dialled stays. Otherwise the newer one does: its dialler would not have
    dialled if it still had the old one.
    """
    if old_dialled == new_dialled or age_s >= grace_s:
        return False
    return old_dialled == (local_id < peer_id)
