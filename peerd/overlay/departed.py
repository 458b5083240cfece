"""Peers that this node has removed: hearsay about them is ignored for a while, and later they are looked for. Pure.

The list is what merges two rings after a partition: each side has purged the other, so only a memory of the dead can
find them alive (HyParView's passive view and serf's "gossip to the dead" serve the same end). One peer is probed at a
time, each with a pause that doubles; after a mass loss, which is what a partition looks like, all of them in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef

DEPARTED_MAX: Final = 256
"""At most so many removed peers are remembered; the one that was removed first is forgotten first."""
PROBE_PAUSE_MAX_S: Final = 3600.0
FIRST_PAUSES: Final = 6
"""The first search in ordinary times comes after so many of the pauses between searches after a mass loss."""
ANSWER_PAUSE_MAX_S: Final = 60.0
"""The longest pause between probes of a removed peer that we hear, but that never answers."""


@dataclass(slots=True)
class Departed:
    """A removed peer: when, whether it was known and in the leaf set, whether it said goodbye, when to probe it next.

    ``since``: when it was last found silent; ``removed_at``: when it ceased to be known. A peer that others go on
    naming is tried again and again, and found silent each time.
    """

    peer: PeerRef
    since: float
    removed_at: float
    was_known: bool
    was_member: bool
    has_left: bool
    next_probe_at: float
    pause_s: float
    next_answer_at: float = 0.0
    answer_pause_s: float = 0.0


class DepartedPeers:
    """Oldest removal first. Times are the host's monotonic seconds."""

    def __init__(self, disbelief_s: float, memory_s: float, pause_s: float) -> None:
        self._disbelief_s = disbelief_s
        self._memory_s = memory_s
        self._pause_s = pause_s
        self._peers: dict[NodeId, Departed] = {}
        self._idle_until = float("inf")
        """Before that nobody is due, in ordinary times."""

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._peers

    def __iter__(self) -> Iterator[Departed]:
        return iter(self._peers.values())

    def get(self, node_id: NodeId) -> Departed | None:
        """What is remembered of a peer."""
        return self._peers.get(node_id)

    def add(self, peer: PeerRef, now: float, *, was_member: bool, has_left: bool, was_known: bool = True) -> None:
        """A peer was found silent, or said goodbye, just now. One that was removed before keeps its longer pause.

        Without ``was_known`` others have named it, and nobody answered. It is disbelieved, but never looked for: a
        member that invents neighbours would have this node look for those, and forget the real ones.
        """
        before = self._peers.pop(peer.id, None)
        if len(self._peers) >= DEPARTED_MAX:
            strangers = (node_id for node_id, departed in self._peers.items() if not departed.was_known)
            del self._peers[next(strangers, next(iter(self._peers)))]
        pause_s = FIRST_PAUSES * self._pause_s if before is None else before.pause_s
        is_member = was_member or (before is not None and before.was_member)
        is_known = was_known or (before is not None and before.was_known)
        removed_at = now if before is None else before.removed_at
        self._peers[peer.id] = Departed(peer, now, removed_at, is_known, is_member, has_left, now + pause_s, pause_s)
        self._idle_until = min(self._idle_until, now + pause_s)

    def pop(self, node_id: NodeId) -> Departed | None:
        """The peer is back (or was never away)."""
        return self._peers.pop(node_id, None)

    def is_disbelieved(self, node_id: NodeId, now: float) -> bool:
        """Whether the peer was removed so short a while ago that others may still take it for alive."""
        departed = self._peers.get(node_id)
        return departed is not None and now - departed.since < self._disbelief_s

    def recent(self, now: float, within_s: float, count: int) -> tuple[NodeId, ...]:
        """Members removed lately, at most ``count``, the latest first. Who left has told everybody itself."""
        found: list[NodeId] = []
        for node_id, departed in reversed(self._peers.items()):
            if len(found) == count or now - departed.since >= within_s:
                break
            if departed.was_member and not departed.has_left:
                found.append(node_id)
        return tuple(found)

    def may_answer(self, node_id: NodeId, now: float) -> bool:
        """A removed peer was heard: whether to probe it. The first time at once, then less and less often."""
        departed = self._peers.get(node_id)
        if departed is None or now < departed.next_answer_at:
            return False
        departed.answer_pause_s = min(ANSWER_PAUSE_MAX_S, max(self._pause_s, 2 * departed.answer_pause_s))
        departed.next_answer_at = now + departed.answer_pause_s
        return True

    def next_to_probe(self, now: float, is_wanted: Callable[[NodeId], bool], *, is_mass_loss: bool) -> PeerRef | None:
        """Whom to look for now. Forgets those whose time is over.

        In ordinary times a former member whose pause is over; after a mass loss whoever waits longest, those that would
        be members again (``is_wanted``) first. A peer that said goodbye is not looked for: it comes back by itself.
        """
        while self._peers and now - next(iter(self._peers.values())).since > self._memory_s:
            del self._peers[next(iter(self._peers))]
        if not is_mass_loss and now < self._idle_until:
            return None
        if is_mass_loss:
            candidates = [departed for departed in self._peers.values() if departed.was_known and not departed.has_left]
            wanted = [departed for departed in candidates if is_wanted(departed.peer.id)]
        else:
            candidates = []
            former = [departed for departed in self._peers.values() if departed.was_member and not departed.has_left]
            wanted = [departed for departed in former if now >= departed.next_probe_at]
            self._idle_until = min((departed.next_probe_at for departed in former), default=float("inf"))
        departed = min(wanted or candidates, key=lambda departed: departed.next_probe_at, default=None)
        if departed is None:
            return None
        self._postpone(departed, now)
        return departed.peer

    def _postpone(self, departed: Departed, now: float) -> None:
        departed.pause_s = min(PROBE_PAUSE_MAX_S, 2 * departed.pause_s)
        departed.next_probe_at = now + departed.pause_s


class MassLoss:
    """Notices that a large part of the known peers went silent within a short while: a partition, or half a site."""

    def __init__(self, window_s: float, share: float, least: int) -> None:
        self._window_s = window_s
        self._share = share
        self._least = least
        self._losses: dict[NodeId, float] = {}
        self._suspected_at: float | None = None
        self._missing: dict[NodeId, None] = {}
        self._returned = 0

    @property
    def is_suspected(self) -> bool:
        """Whether a partition is suspected now."""
        return self._suspected_at is not None

    @property
    def missing(self) -> int:
        """How many of the lost peers are still missing."""
        return len(self._missing)

    def lost(self, node_id: NodeId, now: float, known: int) -> bool:
        """A peer was removed after silence, ``known`` remain. Returns whether that raises the suspicion."""
        for old in [key for key, at in self._losses.items() if now - at > self._window_s]:
            del self._losses[old]
        self._losses[node_id] = now
        if self._suspected_at is not None:
            if len(self._missing) < DEPARTED_MAX:
                self._missing[node_id] = None
            return False
        count = len(self._losses)
        if count < self._least or count < self._share * (known + count):
            return False
        self._suspected_at = now
        self._missing = dict.fromkeys(list(self._losses)[-DEPARTED_MAX:])
        return True

    def found(self, node_id: NodeId) -> bool:
        """A peer is back. Returns whether that ends the suspicion: as many are back as are still missing."""
        self._losses.pop(node_id, None)
        if self._suspected_at is None or node_id not in self._missing:
            return False
        del self._missing[node_id]
        self._returned += 1
        if self._returned < len(self._missing):
            return False
        self._clear()
        return True

    def expired(self, now: float, memory_s: float) -> bool:
        """Whether the suspicion has become too old to act on; it ends then: those peers are gone for good."""
        if self._suspected_at is None or now - self._suspected_at < memory_s:
            return False
        self._clear()
        return True

    def _clear(self) -> None:
        self._suspected_at = None
        self._missing = {}
        self._returned = 0
