"""Everything about one peer: its queue, its link, the dial under way, and how often dialling it has failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from peerd.daemon.connection import PendingConnection
from peerd.daemon.link import Link
from peerd.daemon.send_queue import SendQueue
from peerd.messages import PeerRef


@dataclass(slots=True)
class Dial:
    """A dial of ours under way, or waiting for its back-off to end."""

    task: asyncio.Task[None] | None = None
    connection: PendingConnection | None = None

    def abandon(self) -> None:
        """The peer's own connection won, or nobody wants it any more."""
        if self.connection is not None:
            self.connection.abandon("duplicate_link")
        if self.task is not None:
            self.task.cancel()


@dataclass(slots=True)
class PeerChannel:
    """One peer that this node has, wants or wanted a link to. ``retry_at`` is monotonic seconds."""

    peer: PeerRef
    outbox: SendQueue
    link: Link | None = None
    dial: Dial | None = None
    failures: int = 0
    retry_at: float = 0.0
    is_down_due: bool = False
    """``peer_down`` is about to be told; once is enough for all frames refused meanwhile."""
    touched_at: float = field(default=0.0)

    def abandon_dial(self) -> None:
        """Give up the dial under way, if any."""
        if self.dial is not None:
            self.dial.abandon()
            self.dial = None

    @property
    def has_said_hello(self) -> bool:
        """Whether a dial of ours is more than a plan."""
        return self.dial is not None and self.dial.connection is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost by forgetting it (but its back-off)."""
        return self.link is None and self.dial is None and not self.outbox and not self.is_down_due


def keeps_old(old: Link, *, local_id: int, peer_id: int, new_dialled: bool, age_s: float, grace_s: float) -> bool:
    """Which of two connections between the same two processes stays; both sides decide alike.

    Of a simultaneous dial (opposite directions, the older one within its grace) the one that the smaller node id
    dialled stays. Otherwise the newer one does: its dialler knows that the old one is gone.
    """
    if old.dialled == new_dialled or age_s >= grace_s:
        return False
    return old.dialled == (local_id < peer_id)
