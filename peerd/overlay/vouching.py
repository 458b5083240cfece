"""Peers that this node cannot reach, but that its neighbours can. Pure state.

Reachability is not always transitive (a broken firewall rule, "majorities-ring" partitions). A node that has removed a
peer which others go on seeing must not take over its keys: the keys belong to the vouched peer, and messages for it go
through whoever vouches. Two rings never vouch for each other, so each side of a partition serves its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import NodeId, closeness
from peerd.messages import PeerRef
from peerd.overlay.departed import DepartedPeers

VOUCHED_MAX: Final = 32


class Vouch(Frozen):
    """Who says so, and when it said so last."""

    voucher: PeerRef
    at: float


class Vouches:
    """The latest vouch for each removed peer.

    ``delay_s``: what a neighbour says so soon after a removal may be older than its own discovery of the death.
    ``memory_s``: how long a vouch that is not repeated stands.
    """

    def __init__(self, departed: DepartedPeers, delay_s: float, memory_s: float) -> None:
        self._departed = departed
        self._delay_s = delay_s
        self._memory_s = memory_s
        self._vouches: dict[NodeId, Vouch] = {}

    def __len__(self) -> int:
        return len(self._vouches)

    def heard(self, voucher: PeerRef, members: Iterable[PeerRef], now: float) -> None:
        """A peer told its leaf set: it vouches for those members that this node has removed after silence."""
        if not len(self._departed) and not self._vouches:
            return
        mentioned: dict[NodeId, None] = {}
        for peer in members:
            departed = self._departed.get(peer.id)
            if departed is not None and not departed.has_left and now - departed.removed_at >= self._delay_s:
                mentioned[peer.id] = None
        for node_id in [key for key, vouch in self._vouches.items() if vouch.voucher.id == voucher.id]:
            if node_id not in mentioned:
                del self._vouches[node_id]
        for node_id in mentioned:
            if node_id in self._vouches or len(self._vouches) < VOUCHED_MAX:
                self._vouches[node_id] = Vouch(voucher, now)

    def vouchers(self) -> tuple[PeerRef, ...]:
        """Who vouches for anybody, each once."""
        return tuple({vouch.voucher.id: vouch.voucher for vouch in self._vouches.values()}.values())

    def owner_beyond(self, key: NodeId, own: NodeId, now: float) -> Vouch | None:
        """The vouch for the peer that is closer to ``key`` than this node; ``None`` when there is no such vouch."""
        best: Vouch | None = None
        best_closeness = closeness(key, own)
        for node_id, vouch in list(self._vouches.items()):
            if node_id not in self._departed or now - vouch.at > self._memory_s:
                del self._vouches[node_id]
            elif closeness(key, node_id) < best_closeness:
                best, best_closeness = vouch, closeness(key, node_id)
        return best

    def voucher_of(self, node_id: NodeId, now: float) -> PeerRef | None:
        """Who still sees a peer that this node has removed."""
        vouch = self._vouches.get(node_id)
        return None if vouch is None or now - vouch.at > self._memory_s else vouch.voucher

    def forget(self, node_id: NodeId) -> None:
        """A peer is gone: it vouches for nobody any more."""
        for vouched in [key for key, vouch in self._vouches.items() if vouch.voucher.id == node_id]:
            del self._vouches[vouched]
