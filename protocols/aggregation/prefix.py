"""The prefix table's geometry: which nodes share exactly so many bits with ours, and whether we know them all.

A *level* is the paper's length of the longest common prefix, in bits; L^i is the set of nodes that share exactly ``i``
bits with this node (Cappos and Hartman 2008, section 2). L^i is one interval of the ring: the sibling subtree.

Of random ids the longest common prefix of two is about twice log2 of their number: the two nodes swap more often than
they need, and others wait for them. Where the requester knows everybody, prefixes are therefore those of *places*:
numbers that spread the nodes, in the order of their ids, evenly over the fewest bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from peerd.api import Host, LeafSet
from peerd.ids import ID_BITS, NodeId, clockwise_distance, shared_prefix_bits
from peerd.limits import LEAF_SET_SIZE
from peerd.messages import PeerRef

RTT_S_MAX: Final = 5.0
"""No round trip is taken for longer: coordinates come from other nodes, and may say anything."""
SPAN_RATIO_MAX: Final = 16
"""One side of a leaf set may reach this many times as far as the other. Evenly spread ids hardly ever exceed it."""


class Levels(Protocol):
    """At which level a node swaps with which others."""

    def level_of(self, node: NodeId) -> int | None:
        """The length of the common prefix with this node, bits; ``None`` for one that it can never swap with."""

    @property
    def has_counterparts(self) -> bool:
        """Whether each node knows whom it tries first, and who tries it."""

    def counterpart(self, level: int) -> NodeId | None:
        """The node that this one tries first at a level, and that one this one; there may be none."""


class IdLevels:
    """By the ids themselves."""

    has_counterparts = False

    def __init__(self, own: NodeId) -> None:
        self._own = own

    def level_of(self, node: NodeId) -> int | None:
        return shared_prefix_bits(self._own, node)

    def counterpart(self, level: int) -> NodeId | None:
        return None


class PlaceLevels:
    """By the places of these nodes, which are all that take part. ``own`` has no level if it is none of them."""

    has_counterparts = True

    def __init__(self, own: NodeId, nodes: Sequence[NodeId]) -> None:
        self._bits = max(1, (len(nodes) - 1).bit_length())
        self._places = {node: (rank << self._bits) // len(nodes) for rank, node in enumerate(sorted(nodes))}
        self._own = self._places.get(own)

    def level_of(self, node: NodeId) -> int | None:
        place = self._places.get(node)
        if place is None or self._own is None:
            return None
        return self._bits - (self._own ^ place).bit_length()

    def count(self, level: int) -> int:
        """How many nodes there are at a level."""
        return sum(self.level_of(node) == level for node in self._places)

    def counterpart(self, level: int) -> NodeId | None:
        """The one of the other side that comes as many nodes after the side's first one as this node on its own."""
        if self._own is None or not 0 <= level < self._bits:
            return None
        width = self._bits - 1 - level
        side = self._own >> width
        ours = [place for place in self._places.values() if place >> width == side]
        theirs = [node for node, place in self._places.items() if place >> width == side ^ 1]
        rank = ours.index(self._own)
        return theirs[rank] if rank < len(theirs) else None


class Neighbourhood(Protocol):
    """The knowledge of the ring that a tree needs. The plugin asks its Host for it; tests answer from a list."""

    @property
    def levels(self) -> Levels:
        """At which level each node is."""

    def longest_level(self) -> int | None:
        """The longest common prefix with any live node, bits; ``None`` when this node is alone."""

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
        self.levels: Levels = IdLevels(host.id)
        self._host = host

    def longest_level(self) -> int | None:
        found = (self.levels.level_of(peer.id) for peer in self._host.leaf_set().members())
        return max((level for level in found if level is not None), default=None)

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


class PlacedNeighbourhood(HostNeighbourhood):
    """That of a round for which the requester has named everybody. Each knew all the others when it began."""

    def __init__(self, host: Host, nodes: Sequence[NodeId]) -> None:
        super().__init__(host)
        self.levels: PlaceLevels = PlaceLevels(host.id, nodes)

    def members(self, level: int) -> tuple[PeerRef, ...]:
        return tuple(peer for peer in self._host.leaf_set().members() if self.levels.level_of(peer.id) == level)

    def is_exact(self, level: int) -> bool:
        return self._host.leaf_set().covers_ring or len(self.members(level)) == self.levels.count(level)

    def hints(self, inviter: NodeId, level: int, count: int) -> tuple[tuple[PeerRef, ...], bool]:
        """Nobody: no invitation is sent to a random id."""
        return (), False


def neighbourhood_of(host: Host, nodes: Sequence[NodeId]) -> HostNeighbourhood:
    """That of a round for which the requester has named these nodes, or nobody."""
    return PlacedNeighbourhood(host, nodes) if nodes else HostNeighbourhood(host)
