"""Whether this node may answer as root: the lease that its neighbours' traffic keeps alive. Pure state.

Consistency comes before latency (Castro et al. 2004): a node whose leaf set was not confirmed from both sides for a
lease may have been replaced without knowing it, so it forwards or refuses, but does not serve. A node that was itself
away (stopped, starved, its machine asleep) has heard nothing that proves anything: what it reads first on waking was
sent before, so only a round trip begun after the absence counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.leafset import Leaves

NEVER = float("-inf")


class Lease:
    """``heard``: when each known peer was last heard, seconds; shared with `OverlayState`."""

    __slots__ = (
        "_absent_until",
        "_away",
        "_confirmed",
        "_heard",
        "_lease_s",
        "_leaves",
        "_seen_at",
        "absence_s",
        "absences",
    )

    def __init__(self, leaves: Leaves, heard: dict[NodeId, float], lease_s: float, absence_s: float) -> None:
        self.absence_s = absence_s
        """A node on which nothing happened for so long was not running: it was away."""
        self.absences = 0
        self._leaves = leaves
        self._heard = heard
        self._lease_s = lease_s
        self._seen_at: float | None = None
        self._absent_until = NEVER
        self._away = (NEVER, NEVER)
        self._confirmed: dict[NodeId, float] = {}

    def note_event(self, now: float) -> float:
        """Something happens on this node; returns how long it was away before, 0 when it was not."""
        gap_s = 0.0 if self._seen_at is None else now - self._seen_at
        before, self._seen_at = self._seen_at, now
        if before is None or gap_s <= self.absence_s:
            return 0.0
        self.absences += 1
        self._away = (before, now)
        self._absent_until = now
        self._confirmed.clear()
        for node_id in self._heard:
            self._heard[node_id] = now  # silence while this node was not running does not count
        return gap_s

    @property
    def is_returning(self) -> bool:
        """The node was away, and nobody on one of the sides has confirmed it since."""
        return self._absent_until != NEVER

    def last_heard(self, node_id: NodeId, now: float) -> float:
        """When the peer was really heard last; ``now`` for one that is not known."""
        heard = self._heard.get(node_id, now)
        return self._away[0] if heard == self._away[1] else heard

    def earliest_writing(self, now: float) -> float:
        """The earliest time at which what arrives now may have been written: ``now``, or when this node was last awake.

        What it reads just after it was away may have waited for it all the time.
        """
        return self._away[0] if self.is_returning else now

    def confirm(self, node_id: NodeId, sent_at: float) -> None:
        """A member answered what was sent at that time."""
        if self._absent_until != NEVER and sent_at >= self._absent_until:
            self._confirmed[node_id] = sent_at

    def disclaim(self, node_id: NodeId, now: float) -> None:
        """A member said that it has given this node up: what was heard of it before proves nothing any more."""
        if node_id in self._heard:
            self._heard[node_id] = min(self._heard[node_id], now - self._lease_s - 1.0)
        self._confirmed.pop(node_id, None)

    def is_held(self, now: float) -> bool:
        """Whether both sides were heard within the lease; always, for a node that is alone in its ring."""
        leaves = self._leaves
        if not len(leaves):
            return True
        horizon = now - self._lease_s
        left, right = leaves.left_neighbour(), leaves.right_neighbour()
        if left is None or right is None:
            return False
        if self._absent_until == NEVER:
            heard = self._heard
            if heard.get(left.id, NEVER) >= horizon and heard.get(right.id, NEVER) >= horizon:
                return True
        if not (self._is_confirmed(leaves.smaller(), horizon) and self._is_confirmed(leaves.larger(), horizon)):
            return False
        self._absent_until = NEVER
        self._confirmed.clear()
        return True

    def _is_confirmed(self, side: Iterable[PeerRef], horizon: float) -> bool:
        proof = self._heard if self._absent_until == NEVER else self._confirmed
        return any(proof.get(peer.id, NEVER) >= horizon for peer in side)
