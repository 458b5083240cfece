"""What the parts of the overlay share: tables, suspicions, and how changes of them are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peerd import limits
from peerd.api import NeighbourChange
from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.overlay.config import OverlayConfig
from peerd.overlay.leafset import Leaves
from peerd.overlay.messages import CANDIDATES_MAX, FAILED_MAX, LeafSetProbe, LeafSetReply
from peerd.overlay.ports import OverlayHost
from peerd.overlay.proximity import Proximity
from peerd.overlay.table import RoutingTable
from peerd.telemetry.schema import LeafSetChanged

FAILED_REMEMBERED_MAX: Final = 512


class OverlayState:
    """Tables of one node, and their bookkeeping. Holds no algorithm."""

    def __init__(self, host: OverlayHost, config: OverlayConfig) -> None:
        self.host = host
        self.config = config
        self.own: NodeId = host.id
        self.leaves = Leaves(self.own)
        self.table = RoutingTable(self.own)
        self.proximity = Proximity(config.ack_timeout_min, config.ack_timeout_max, config.ack_timeout_initial)
        self.is_ready = False
        self.is_leaving = False
        self.heard: dict[NodeId, float] = {}
        """When each member or entry was last heard."""
        self.suspects: dict[NodeId, str] = {}
        """Peers that must not be routed through now, and the evidence."""
        self.failed: dict[NodeId, float] = {}
        """Removed peers, and when; oldest first."""
        self.candidates: dict[NodeId, PeerRef] = {}
        """Peers being probed that are not members yet."""
        self.leaves_changed: Callable[[], None] = lambda: None
        self._sequence = 0

    def next_sequence(self) -> int:
        """A number that no other message of this node in this boot has."""
        self._sequence += 1
        return self._sequence

    def is_failed(self, node_id: NodeId) -> bool:
        """Whether the peer was removed a short while ago."""
        since = self.failed.get(node_id)
        return since is not None and self.host.now() - since < self.config.failed_memory

    def remember_failed(self, node_id: NodeId) -> None:
        """Ignore what others say about this peer for a while."""
        self.failed.pop(node_id, None)
        if len(self.failed) >= FAILED_REMEMBERED_MAX:
            del self.failed[next(iter(self.failed))]
        self.failed[node_id] = self.host.now()

    def silence_s(self, node_id: NodeId) -> float:
        """Seconds since the peer was heard; infinite for one that never was."""
        return self.host.now() - self.heard.get(node_id, float("-inf"))

    def is_known(self, node_id: NodeId) -> bool:
        """Member of the leaf set or entry of the table."""
        return node_id in self.leaves or node_id in self.table

    def admit_leaf(self, peer: PeerRef) -> bool:
        """A direct exchange with this peer happened: it may be a member. Returns whether it is a new one."""
        added, evicted = self.leaves.add(peer)
        if added or peer.id in self.heard:
            self.heard[peer.id] = self.host.now()
        if evicted is not None:
            self.forget_unless_known(evicted.id)
        if added:
            self.tell_change((peer,), () if evicted is None else (evicted,))
        return added

    def admit_entry(self, peer: PeerRef) -> None:
        """This ready peer answered directly: it may be an entry of the table."""
        added, replaced = self.table.consider(peer, self.proximity.rtt_s)
        if added:
            self.heard[peer.id] = self.host.now()
        if replaced is not None:
            self.forget_unless_known(replaced.id)

    def forget_unless_known(self, node_id: NodeId) -> None:
        """Drop the bookkeeping of a peer that is in no table any more."""
        if not self.is_known(node_id):
            self.heard.pop(node_id, None)
            self.suspects.pop(node_id, None)

    def tell_change(self, added: tuple[PeerRef, ...], removed: tuple[PeerRef, ...]) -> None:
        """The leaf set changed: telemetry, the plugins, and whoever keeps it in order."""
        leaves = self.leaves
        self.host.emit(
            LeafSetChanged(added=len(added), removed=len(removed), members=len(leaves), complete=leaves.is_complete)
        )
        self.host.neighbours_changed_upcall(NeighbourChange(added, removed))
        self.leaves_changed()

    def recently_failed(self) -> tuple[NodeId, ...]:
        """The latest removals, for peers to check."""
        recent = list(self.failed)[-FAILED_MAX:]
        return tuple(node_id for node_id in recent if self.is_failed(node_id))

    def probe_message(self) -> LeafSetProbe:
        """This node's leaf set as a question."""
        smaller, larger, candidates, failed = self._fields()
        return LeafSetProbe(self.is_ready, smaller, larger, candidates, failed)

    def reply_message(self) -> LeafSetReply:
        """This node's leaf set as an answer."""
        smaller, larger, candidates, failed = self._fields()
        return LeafSetReply(self.is_ready, smaller, larger, candidates, failed)

    def _fields(
        self,
    ) -> tuple[tuple[PeerRef, ...], tuple[PeerRef, ...], tuple[PeerRef, ...], tuple[NodeId, ...]]:
        leaves = self.leaves.snapshot()
        candidates = tuple(self.candidates.values())[:CANDIDATES_MAX] if self.candidates else ()
        return leaves.smaller, leaves.larger, candidates, self.recently_failed() if self.failed else ()

    def known_peers(self) -> tuple[PeerRef, ...]:
        """Distinct members and entries, leaf set first, at most `limits.KNOWN_PEERS_MAX`."""
        found = {peer.id: peer for peer in self.leaves}
        for peer in self.table:
            found.setdefault(peer.id, peer)
        return tuple(found.values())[: limits.KNOWN_PEERS_MAX]
