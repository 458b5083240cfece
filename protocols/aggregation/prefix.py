"""The prefix table's geometry: which ids share exactly so many bits with ours, and whether we know them all.

A *level* is the paper's length of the longest common prefix, in bits; L^i is the set of nodes that share exactly ``i``
bits with this node (Cappos and Hartman 2008, section 2). L^i is one interval of the ring: the sibling subtree.
"""

from __future__ import annotations

from typing import Final, Protocol

from peerd.api import Host, LeafSet
from peerd.ids import ID_BITS, NodeId, clockwise_distance, shared_prefix_bits
from peerd.limits import LEAF_SET_SIZE
from peerd.messages import PeerRef

RTT_S_MAX: Final = 5.0
"""No round trip is taken for longer: coordinates come from other nodes, and may say anything."""
SPAN_RATIO_MAX: Final = 16
"""One side of a leaf set may reach this many times as far as the other. Evenly spread ids hardly ever exceed it."""


class Neighbourhood(Protocol):
    """The knowledge of the ring that a tree needs. The plugin asks its Host for it; tests answer from a list."""

    def longest_level(self) -> int | None:
        """The longest common prefix with any node, bits; ``None`` when this node is alone."""

    def members(self, level: int) -> tuple[PeerRef, ...]:
        """Return the known live nodes of L^level."""

    def is_exact(self, level: int) -> bool:
        """Whether `members` of this level are all there are (L^level lies within the leaf set)."""

    def estimated_size(self, level: int) -> float:
        """Estimate how many nodes L^level has."""

    def rtt_s(self, peer: PeerRef) -> float:
        """The round trip to a node; where nobody has measured it, the longest one that is known."""


def interval(own: NodeId, level: int) -> tuple[NodeId, NodeId]:
    """Return the first and the last id of L^level."""
    width = ID_BITS - level - 1
    first = ((own >> width) ^ 1) << width
    return NodeId(first), NodeId(first + (1 << width) - 1)


def is_plausible(leaf_set: LeafSet, own: NodeId) -> bool:
    """Whether both sides reach about equally far, as they do among ids that are spread evenly.

    After a death a leaf set may for a moment take a node from the far end of one side for the other's, and then spans
    almost the whole ring without knowing it. A level must not be taken for empty on such a word.
    """
    if len(leaf_set.smaller) < LEAF_SET_SIZE // 2 or len(leaf_set.larger) < LEAF_SET_SIZE // 2:
        return True  # all of a small ring
    left = clockwise_distance(leaf_set.smaller[-1].id, own)
    right = clockwise_distance(own, leaf_set.larger[-1].id)
    return max(left, right) <= SPAN_RATIO_MAX * min(left, right)


def lies_within(leaf_set: LeafSet, own: NodeId, first: NodeId, last: NodeId) -> bool:
    """Whether the leaf set spans the interval, so that it knows every live node of it."""
    if not is_plausible(leaf_set, own):
        return False
    if leaf_set.covers_ring:
        return True
    if not (leaf_set.is_complete and leaf_set.smaller and leaf_set.larger):
        return False
    start, stop = leaf_set.smaller[-1].id, leaf_set.larger[-1].id
    span = clockwise_distance(start, stop)
    offset = clockwise_distance(start, first)
    return offset <= span and offset + (last - first) <= span


class HostNeighbourhood:
    """A `Neighbourhood` that asks a plugin's Host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def longest_level(self) -> int | None:
        own = self._host.id
        return max((shared_prefix_bits(own, peer.id) for peer in self._host.leaf_set().members()), default=None)

    def members(self, level: int) -> tuple[PeerRef, ...]:
        return self._host.prefix_row(level)

    def is_exact(self, level: int) -> bool:
        own = self._host.id
        return lies_within(self._host.leaf_set(), own, *interval(own, level))

    def estimated_size(self, level: int) -> float:
        if self.is_exact(level):
            return float(len(self.members(level)))
        return max(1.0, self._host.estimated_ring_size() / (1 << min(level + 1, 64)))

    def rtt_s(self, peer: PeerRef) -> float:
        host = self._host
        known = host.estimated_rtt(peer)
        if known is None:
            known = max((host.rtt(other) or 0.0 for other in host.leaf_set().members()), default=0.0)
        return min(known, RTT_S_MAX)

    def hints(self, inviter: NodeId, level: int, count: int) -> tuple[tuple[PeerRef, ...], bool]:
        """Up to ``count`` known members of the inviter's L^level, and whether we know them all.

        For an invitation to a random id that ended here although this node is not in the wanted set: the paper's
        "the nodes that receive the randomly-sent messages could respond that L^i is empty" (section 4.1).
        """
        own, leaf_set = self._host.id, self._host.leaf_set()
        first, last = interval(inviter, level)
        shared = shared_prefix_bits(own, first)
        known = {peer.id: peer for peer in (*leaf_set.members(), *self._host.prefix_row(min(shared, ID_BITS - 1)))}
        members = [peer for node_id, peer in sorted(known.items()) if first <= node_id <= last]
        return tuple(members[:count]), lies_within(leaf_set, own, first, last)
