"""The prefix table's geometry: which nodes share exactly so many bits with ours, and whether we know them all.

A *level* is the paper's length of the longest common prefix, in bits; L^i is the set of nodes that share exactly ``i``
bits with this node (Cappos and Hartman 2008, section 2). L^i is one interval of the ring: the sibling subtree.

Of random ids the longest common prefix of two is about twice log2 of their number: the two nodes swap more often than
they need, and others wait for them. Where the requester knows everybody, prefixes are therefore those of *places*:
numbers that spread the nodes, in the order of their ids, evenly over the fewest bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Final, Protocol

from peerd.api import Host, LeafSet
from peerd.ids import ID_BITS, NodeId, clockwise_distance, shared_prefix_bits
from peerd.limits import LEAF_SET_SIZE
from peerd.messages import PeerRef

RTT_S_MAX: Final = 5.0
"""No round trip is taken for longer: coordinates come from other nodes, and may say anything."""
PLANS_MAX: Final = 16
"""Plans that are kept: a simulation's nodes share them, and a daemon needs one for each round at work."""
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

    def gives_first(self, level: int) -> bool:
        """Whether, of this node and its counterpart, this one offers its value first."""


class IdLevels:
    """By the ids themselves."""

    has_counterparts = False

    def __init__(self, own: NodeId) -> None:
        self._own = own

    def level_of(self, node: NodeId) -> int | None:
        return shared_prefix_bits(self._own, node)

    def counterpart(self, level: int) -> NodeId | None:
        return None

    def gives_first(self, level: int) -> bool:
        return False


class PlacePlan:
    """Who takes which place, and who swaps with whom as long as nobody fails: the same at every node.

    At each level as many nodes of one side swap as there are on the other. Those that are left over are done, since
    others have their data: who swaps at the next level does not wait for them. ``first`` is never left over.
    """

    def __init__(self, nodes: tuple[NodeId, ...], first: NodeId | None) -> None:
        self.bits = max(1, (len(nodes) - 1).bit_length())
        self.places = {node: (rank << self.bits) // len(nodes) for rank, node in enumerate(sorted(nodes))}
        self._first = first
        self._swapping: dict[tuple[int, int], list[NodeId]] = {}
        """By a number of bits and a prefix of so many: the nodes behind the prefix that have all their data."""
        self._fill(0, 0, {place: node for node, place in self.places.items()})

    def _fill(self, bits: int, prefix: int, nodes: Mapping[int, NodeId]) -> list[NodeId]:
        if bits == self.bits:
            found = [nodes[prefix]] if prefix in nodes else []
        else:
            sides = [self._fill(bits + 1, 2 * prefix + side, nodes) for side in (0, 1)]
            pairs = min(map(len, sides))
            for side in sides:
                if pairs and self._first in side[pairs:]:
                    place = side.index(self._first)
                    side[pairs - 1], side[place] = side[place], side[pairs - 1]
            found = [node for side in sides for node in (side[:pairs] if pairs else side)]
        self._swapping[bits, prefix] = found
        return found

    def counterpart(self, own: NodeId, level: int) -> NodeId | None:
        """With whom a node swaps at a level, if with anybody."""
        if own not in self.places or not 0 <= level < self.bits:
            return None
        side = self.places[own] >> (self.bits - 1 - level)
        ours, theirs = self._swapping[level + 1, side], self._swapping[level + 1, side ^ 1]
        rank = ours.index(own) if own in ours else len(theirs)
        return theirs[rank] if rank < len(theirs) else None


plan_of = lru_cache(maxsize=PLANS_MAX)(PlacePlan)


class PlaceLevels:
    """By the places of these nodes, which are all that take part. ``own`` has no level if it is none of them.

    ``first`` swaps at every level, unless somebody fails. ``is_early``: places are known before the data is there.
    """

    has_counterparts = True

    def __init__(
        self, own: NodeId, nodes: Sequence[NodeId], first: NodeId | None = None, *, is_early: bool = True
    ) -> None:
        self._plan = plan_of(tuple(nodes), first)
        self._node = own
        self._own = self._plan.places.get(own)
        self._first = None if first is None else self._plan.places.get(first)
        self._is_early = is_early

    def level_of(self, node: NodeId) -> int | None:
        place = self._plan.places.get(node)
        if place is None or self._own is None:
            return None
        return self._plan.bits - (self._own ^ place).bit_length()

    @property
    def nodes(self) -> Set[NodeId]:
        """Who has a place."""
        return self._plan.places.keys()

    def count(self, level: int) -> int:
        """How many nodes there are at a level."""
        return sum(self.level_of(node) == level for node in self.nodes)

    def counterpart(self, level: int) -> NodeId | None:
        return self._plan.counterpart(self._node, level)

    def gives_first(self, level: int) -> bool:
        """The value given first is there a latency sooner: so the sides give first that ``first`` is not on.

        Before the places are known connections are opened to the next node of the ring, for the longest level.
        """
        after = self._plan.bits - 1 - level
        if self._first is None or self._own is None or (after == 0 and not self._is_early):
            counterpart = self.counterpart(level)
            return counterpart is not None and self._node < counterpart
        return bool((self._first ^ self._own) >> after & 1)


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
    """That of a round for which the requester has named everybody.

    Each knows all the others: they are in its leaf set, or ``peers`` says where they are. Of these a node knows to be
    gone whoever would be in its leaf set and is not.
    """

    def __init__(
        self,
        host: Host,
        nodes: Sequence[NodeId],
        first: NodeId | None = None,
        peers: Mapping[NodeId, PeerRef] | None = None,
    ) -> None:
        super().__init__(host)
        self.levels: PlaceLevels = PlaceLevels(host.id, nodes, first, is_early=peers is None)
        self._peers = peers or {}
        self._leaf_set: LeafSet | None = None
        self._live: dict[NodeId, PeerRef] = {}
        self._by_level: dict[int, tuple[PeerRef, ...]] = {}

    @property
    def live(self) -> Mapping[NodeId, PeerRef]:
        """The other named nodes that are not known to be gone."""
        leaf_set = self._host.leaf_set()
        if leaf_set is not self._leaf_set:
            self._leaf_set, own = leaf_set, self._host.id
            beyond = (peer for peer in self._peers.values() if not lies_within(leaf_set, own, peer.id, peer.id))
            found = {peer.id: peer for peer in (*beyond, *leaf_set.members()) if peer.id in self.levels.nodes}
            found.pop(own, None)
            self._live = dict(sorted(found.items()))
            self._by_level = {}
        return self._live

    def longest_level(self) -> int | None:
        return max((level for node in self.live if (level := self.levels.level_of(node)) is not None), default=None)

    def members(self, level: int) -> tuple[PeerRef, ...]:
        live = self.live
        if level not in self._by_level:
            self._by_level[level] = tuple(peer for node, peer in live.items() if self.levels.level_of(node) == level)
        return self._by_level[level]

    def is_exact(self, level: int) -> bool:
        if self._peers or self._host.leaf_set().covers_ring:
            return True
        return len(self.members(level)) == self.levels.count(level)

    def hints(self, inviter: NodeId, level: int, count: int) -> tuple[tuple[PeerRef, ...], bool]:
        """Nobody: no invitation is sent to a random id."""
        return (), False


def neighbourhood_of(host: Host, nodes: Sequence[NodeId], requester: NodeId) -> HostNeighbourhood:
    """That of a round for which the requester has named these nodes, or nobody."""
    return PlacedNeighbourhood(host, nodes, requester) if nodes else HostNeighbourhood(host)
