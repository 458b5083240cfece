"""Computes from one node's leaf set which nodes hold which keys. Pure.

The r closest nodes to a key are neighbours on the ring. Of the nodes n_0, n_1, ... in ring order, the set moves from
n_j .. n_(j+r-1) to n_(j+1) .. n_(j+r) where n_(j+r) becomes closer than n_j: at the middle between the two. So the keys
of a node, and those that it shares with a neighbour, are ranges between such middles.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from peerd.api import LeafSet, RecordRole
from peerd.frozen import Frozen
from peerd.ids import RING, NodeId, clockwise_distance, closeness
from peerd.messages import PeerRef

ITEM_BITS: Final = 64
PLACES: Final = RING << ITEM_BITS
"""A record's place is its key, and behind it a hash of its namespace and item: so the records of one key make a range
that can be cut like any other."""


class Arc(Frozen):
    """The places in [low, high), clockwise; the whole ring when both are equal.

    With ``low_item`` and ``high_item`` 0 these are all the places of the keys in [low, high).
    """

    low: NodeId
    high: NodeId
    low_item: int = 0
    high_item: int = 0

    @classmethod
    def of_places(cls, low: int, high: int) -> Arc:
        """The range from the place ``low`` up to, but without, the place ``high``."""
        items = (1 << ITEM_BITS) - 1
        low, high = low % PLACES, high % PLACES
        return cls(NodeId(low >> ITEM_BITS), NodeId(high >> ITEM_BITS), low & items, high & items)

    @property
    def low_place(self) -> int:
        """The first place."""
        return self.low << ITEM_BITS | self.low_item

    @property
    def high_place(self) -> int:
        """The place after the last one."""
        return self.high << ITEM_BITS | self.high_item

    @property
    def width(self) -> int:
        """How many places."""
        return (self.high_place - self.low_place) % PLACES or PLACES

    def __contains__(self, key: NodeId) -> bool:
        """Whether the first place of a key is in the range. For a range of whole keys: whether the key is."""
        return ((key << ITEM_BITS) - self.low_place) % PLACES < self.width

    def part(self, number: int, parts: int) -> Arc:
        """One of ``parts`` nearly equal parts."""
        first, last = self.width * number // parts, self.width * (number + 1) // parts
        return Arc.of_places(self.low_place + first, self.low_place + last)


WHOLE_RING: Final = Arc(NodeId(0), NodeId(0))


def boundary(left: NodeId, right: NodeId) -> NodeId:
    """Going clockwise from ``left`` to ``right``, the first key that is closer to ``right`` (see `ids.closeness`)."""
    distance = clockwise_distance(left, right)
    is_tie = distance % 2 == 0
    step = distance // 2 + (0 if is_tie and right < left else 1)
    return NodeId((left + step) % RING)


class ReplicaView:
    """The neighbourhood at one moment: roles, holders and shared ranges for ``copies`` = r.

    Ranges are computed when they are asked for: leaf sets change all the time while a ring forms, and a node that holds
    nothing needs none.
    """

    def __init__(self, own: PeerRef, leaf_set: LeafSet, copies: int) -> None:
        self.own = own
        self.leaf_set = leaf_set
        self.copies = copies
        self.sides = (leaf_set.smaller, leaf_set.larger)
        below, above = leaf_set.smaller[:copies], leaf_set.larger[:copies]
        self.near_ids = tuple([peer.id for peer in (*reversed(below), own, *above)])
        """Roles and partners depend on these nodes only."""

    @cached_property
    def is_whole(self) -> bool:
        """Whether every node holds everything."""
        return self.leaf_set.covers_ring and len(self.leaf_set.members()) < self.copies

    @cached_property
    def _known(self) -> dict[NodeId, PeerRef]:
        """This node and its leaf set, in no order that matters."""
        return {peer.id: peer for peer in (self.own, *self.leaf_set.smaller, *self.leaf_set.larger)}

    @cached_property
    def _line(self) -> list[PeerRef]:
        return [*reversed(self.leaf_set.smaller), self.own, *self.leaf_set.larger]

    @property
    def _place(self) -> int:
        return len(self.leaf_set.smaller)

    @cached_property
    def partners(self) -> tuple[PeerRef, ...]:
        """The nodes that share keys with this one, in id order."""
        reach = self.copies - 1
        near = {peer.id: peer for side in self.sides for peer in side[:reach]}
        return tuple(near[node_id] for node_id in sorted(near))

    @cached_property
    def asks(self) -> frozenset[NodeId]:
        """The partners that this node begins routine comparisons with: the larger ones, where the ring has an order."""
        below, above = (side[: self.copies - 1] for side in self.sides)
        both = {peer.id for peer in below}
        return frozenset(peer.id for peer in above if peer.id not in both or self.own.id < peer.id)

    @cached_property
    def _held(self) -> Arc | None:
        return self._window(self._place, self._place)

    @cached_property
    def root_arc(self) -> Arc:
        """The keys that this node is the root of."""
        return WHOLE_RING if len(self._known) == 1 else self._root_arc()

    def only_gained(self, before: ReplicaView) -> bool:
        """Whether all that were near in the view before are still in the leaf set."""
        return self._known.keys() >= {*before.near_ids}

    @property
    def is_settled(self) -> bool:
        """Whether the leaf set reaches far enough to judge."""
        return self.leaf_set.is_complete and (
            self.is_whole or min(len(self.leaf_set.smaller), len(self.leaf_set.larger)) >= self.copies
        )

    def _root_arc(self) -> Arc:
        line, place = self._line, self._place
        before = line[place - 1] if place > 0 else line[-1]
        after = line[place + 1] if place + 1 < len(line) else line[0]
        return Arc(boundary(before.id, self.own.id), boundary(self.own.id, after.id))

    def changed_arcs(self, before: ReplicaView) -> list[Arc]:
        """Where this node's role is another than it was in the view before."""
        edges = sorted(before._edges() | self._edges())
        arcs = [Arc(low, high) for low, high in zip(edges, edges[1:] + edges[:1], strict=True)]
        return [arc for arc in arcs if self.role(arc.low) is not before.role(arc.low)]

    def _edges(self) -> set[NodeId]:
        return {edge for arc in (self.root_arc, self._held) if arc is not None for edge in (arc.low, arc.high)}

    @property
    def strange_arc(self) -> Arc | None:
        """The keys that this node does not hold; ``None`` when it holds all, or cannot say."""
        held = self._held
        return None if held is None or held.low == held.high else Arc(held.high, held.low)

    def _window(self, first: int, last: int) -> Arc | None:
        """The keys whose replica set has both nodes of the line; ``None`` when the line is too short to say."""
        if self.is_whole:
            return WHOLE_RING
        line, low, high = self._line, last - self.copies, first + self.copies
        if low < 0 or high >= len(line):
            return None
        return Arc(boundary(line[low].id, line[last].id), boundary(line[first].id, line[high].id))

    def role(self, key: NodeId) -> RecordRole:
        """What this node is for a key."""
        if key in self.root_arc:
            return RecordRole.ROOT
        if self._held is not None and key in self._held:
            return RecordRole.REPLICA
        return RecordRole.NONE

    def holders(self, key: NodeId, count: int) -> tuple[PeerRef, ...]:
        """The ``count`` closest to a key among this node and its leaf set, closest first."""
        return tuple(sorted(self._known.values(), key=lambda peer: closeness(key, peer.id))[:count])

    def shared_arcs(self, node_id: NodeId) -> tuple[Arc, ...]:
        """The keys that this node and a partner both hold: one range, or two where the ring is small."""
        if self.is_whole:
            return (WHOLE_RING,)
        found: dict[Arc, None] = {}
        for place, peer in enumerate(self._line):
            if peer.id == node_id and 0 < abs(place - self._place) < self.copies:
                arc = self._window(min(place, self._place), max(place, self._place))
                if arc is not None:
                    found[arc] = None
        return tuple(found)
