"""The leaf set: the nearest live nodes on each side of this one on the ring. Pure state.

Pastry (Rowstron and Druschel 2001, section 2.3) keeps l/2 on each side. What is added here is the *gap*. On a ring of
at most l + 1 nodes every other node is a member, the sides overlap, and nothing is unknown: the set is gapless. On a
larger one there is a stretch between the far ends of the two sides where unknown nodes live. A side that loses
members there is *short*, and must not be filled up with nodes from the other side, or a node that lost its whole
left side would take its right side for the whole ring.

Who lies in the gap could belong to either side. Whoever adds it says on which it can be (`SideRule`): with half a
side's worth of nodes or more between it and this node, it is not on that side, however short that is. The ninth
successor, taken in as a predecessor, would make the set span the ring, and the eighth one's truthful word that the
ninth comes next would close the gap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator

from peerd import limits
from peerd.api import LeafSet
from peerd.errors import Bug
from peerd.ids import RING, NodeId, clockwise_distance, closeness
from peerd.messages import PeerRef

HALF = limits.LEAF_SET_SIZE // 2

SideRule = Callable[[NodeId, bool], bool]
"""(who lies in the gap, on the larger side?) -> whether it can be there."""


def on_any_side(node_id: NodeId, is_larger: bool) -> bool:
    """The rule for when nothing is known about the ring but the members."""
    return True


class Leaves:
    """Members in clockwise order from ``own``, at most ``2 * half``.

    ``_gap`` is ``None`` (gapless) or the number of members before the gap: those are the larger side, the rest is the
    smaller side.
    """

    __slots__ = ("_distances", "_gap", "_peers", "_snapshot", "by_id", "half", "own")

    def __init__(self, own: NodeId, half: int = HALF) -> None:
        self.own = own
        self.half = half
        self._distances: list[int] = []
        self._peers: list[PeerRef] = []
        self.by_id: dict[NodeId, PeerRef] = {}
        """To look members up in; `add` and `remove` change it."""
        self._gap: int | None = None
        self._snapshot: LeafSet | None = None

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[PeerRef]:
        """Members, clockwise."""
        return iter(self._peers)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self.by_id

    def get(self, node_id: NodeId) -> PeerRef | None:
        """The member of that id."""
        return self.by_id.get(node_id)

    def copy(self) -> Leaves:
        """An independent copy, to try something out."""
        other = Leaves(self.own, self.half)
        other._distances, other._peers, other._gap = list(self._distances), list(self._peers), self._gap
        other.by_id = dict(self.by_id)
        return other

    @property
    def is_gapless(self) -> bool:
        """Every node of the ring is a member."""
        return self._gap is None

    @property
    def is_complete(self) -> bool:
        """Gapless, or both sides full."""
        return self._gap is None or (self._gap == self.half and len(self._peers) == 2 * self.half)

    @property
    def is_larger_short(self) -> bool:
        """The larger side misses members."""
        return self._gap is not None and self._gap < self.half

    @property
    def is_smaller_short(self) -> bool:
        """The smaller side misses members."""
        return self._gap is not None and len(self._peers) - self._gap < self.half

    def larger(self) -> list[PeerRef]:
        """The larger side, nearest first."""
        return self._peers[: self.half if self._gap is None else self._gap]

    def smaller(self) -> list[PeerRef]:
        """The smaller side, nearest first."""
        start = max(0, len(self._peers) - self.half) if self._gap is None else self._gap
        return self._peers[start:][::-1]

    def right_neighbour(self) -> PeerRef | None:
        """The next node clockwise; ``None`` when unknown or alone."""
        return self._peers[0] if self._peers and self._gap != 0 else None

    def left_neighbour(self) -> PeerRef | None:
        """The next node counter-clockwise; ``None`` when unknown or alone."""
        return self._peers[-1] if self._peers and self._gap != len(self._peers) else None

    def snapshot(self) -> LeafSet:
        """The immutable view that plugins get; cached until the next change."""
        if self._snapshot is None:
            self._snapshot = LeafSet(tuple(self.smaller()), tuple(self.larger()), self.is_complete, self.is_gapless)
        return self._snapshot

    def would_accept(self, node_id: NodeId) -> bool:
        """Whether `add` would make this unknown id a member."""
        if node_id == self.own:
            return False
        distance = clockwise_distance(self.own, node_id)
        index = bisect_left(self._distances, distance)
        if index < len(self._distances) and self._distances[index] == distance:
            return False
        return self._has_room_at(index)

    def _has_room_at(self, index: int) -> bool:
        if self._gap is None:
            return len(self._peers) < 2 * self.half or index != self.half
        return index != self._gap or self.is_larger_short or self.is_smaller_short

    def overlooked(self, peers: Iterable[PeerRef]) -> list[PeerRef]:
        """Those that lie among the members and are none, so that the set is wrong if they live."""
        last, first = self._ends()
        own, members = self.own, self.by_id
        near = [peer for peer in peers if not last < clockwise_distance(own, peer.id) < first]
        return [peer for peer in near if peer.id not in members and self.would_accept(peer.id)]

    def add(self, peer: PeerRef, can_be: SideRule = on_any_side) -> tuple[bool, PeerRef | None]:
        """(whether it is a new member, who had to go). A known member's address is refreshed."""
        if peer.id == self.own:
            return False, None
        distance = clockwise_distance(self.own, peer.id)
        index = bisect_left(self._distances, distance)
        if index < len(self._distances) and self._distances[index] == distance:
            if self._peers[index] != peer:
                self._peers[index] = self.by_id[peer.id] = peer
                self._snapshot = None
            return False, None
        if not self._has_room_at(index):
            if self._gap is None:
                self.open_gap()
            return False, None
        to_larger = self._gap is not None and index < self._gap
        if index == self._gap:
            fits_larger = self.is_larger_short and can_be(peer.id, True)
            fits_smaller = self.is_smaller_short and can_be(peer.id, False)
            if not (fits_larger or fits_smaller):
                return False, None
            to_larger = fits_larger and (not fits_smaller or distance <= RING // 2)
        self._snapshot = None
        self._distances.insert(index, distance)
        self._peers.insert(index, peer)
        self.by_id[peer.id] = peer
        if self._gap is None:
            return True, self._trim_gapless()
        self._gap += to_larger
        return True, self._trim_sides(can_be)

    def remove(self, node_id: NodeId) -> PeerRef | None:
        """Drop a member; returns it, or ``None`` when it was none."""
        index = self._index(node_id)
        if index is None:
            return None
        self._snapshot = None
        del self._distances[index]
        del self._peers[index]
        if self._gap is not None and index < self._gap:
            self._gap -= 1
        return self.by_id.pop(node_id)

    def open_gap(self) -> None:
        """Somebody exists who is no member: the ring is larger than the (full) leaf set."""
        if self._gap is None and len(self._peers) == 2 * self.half:
            self._gap = self.half
            self._snapshot = None

    def note_adjacent(self, node_id: NodeId, successor: NodeId) -> None:
        """A member said that ``successor`` comes right after ``node_id``. If they are the gap's ends, it is closed."""
        if self._gap is None or not self._peers:
            return
        before = self._peers[self._gap - 1].id if self._gap else self.own
        after = self._peers[self._gap].id if self._gap < len(self._peers) else self.own
        if (before, after) == (node_id, successor):
            self._gap = None
            self._snapshot = None

    def covers(self, key: NodeId) -> bool:
        """Whether the root of ``key`` is this node or a member, as far as members are right."""
        if self._gap is None:
            return True
        last, first = self._ends()
        return not last < clockwise_distance(self.own, key) < first

    def _ends(self) -> tuple[int, int]:
        """The distances clockwise of the farthest member of the larger side, and of that of the smaller side."""
        if self._gap is None:
            return RING, 0
        last = self._distances[self._gap - 1] if self._gap else 0
        return last, self._distances[self._gap] if self._gap < len(self._distances) else RING

    def reaches_clockwise(self, node_id: NodeId) -> bool:
        """Whether the next live node after ``node_id`` is this node or a member of the larger side."""
        if self._gap is None:
            return True
        return self._gap > 0 and clockwise_distance(self.own, node_id) < self._distances[self._gap - 1]

    def closest(self, key: NodeId) -> PeerRef | None:
        """The member closest to ``key``; ``None`` when this node is closer. Only two can be: look at those."""
        index = bisect_left(self._distances, clockwise_distance(self.own, key))
        best: PeerRef | None = None
        best_closeness = closeness(key, self.own)
        for place in (index - 1, index):
            if 0 <= place < len(self._peers):
                peer = self._peers[place]
                peer_closeness = closeness(key, peer.id)
                if peer_closeness < best_closeness:
                    best, best_closeness = peer, peer_closeness
        return best

    def closest_avoiding(self, key: NodeId, avoid: Container[NodeId]) -> PeerRef | None:
        """Like `closest`, among the members not in ``avoid``."""
        best: PeerRef | None = None
        best_closeness = closeness(key, self.own)
        for peer in self._peers:
            if peer.id not in avoid and closeness(key, peer.id) < best_closeness:
                best, best_closeness = peer, closeness(key, peer.id)
        return best

    def estimated_ring_size(self) -> float:
        """Exact when gapless, else from the density of members round this node; 1 when nothing is known."""
        count = len(self._peers)
        if self._gap is None:
            return float(count + 1)
        if count == 0:
            return 1.0
        right = self._distances[self._gap - 1] if self._gap else 0
        left = RING - self._distances[self._gap] if self._gap < count else 0
        return max(float(count + 1), count * RING / (left + right))

    def validate(self) -> None:
        """Assert order, bounds, and that this node is no member of its own set."""
        if sorted(set(self._distances)) != self._distances:
            raise Bug("leaf set out of order or with duplicates")
        own, members = self.own, self.by_id
        if 0 in self._distances or [(peer.id - own) % RING for peer in self._peers] != self._distances:
            raise Bug("leaf set distances are wrong")
        if len(members) != len(self._peers) or [members.get(peer.id) for peer in self._peers] != self._peers:
            raise Bug("leaf set index is wrong")
        sides = (len(self._peers),) if self._gap is None else (2 * self._gap, 2 * (len(self._peers) - self._gap))
        if any(not 0 <= size <= 2 * self.half for size in sides):
            raise Bug(f"leaf set of {len(self._peers)} members with its gap at {self._gap}")

    def _index(self, node_id: NodeId) -> int | None:
        distance = clockwise_distance(self.own, node_id)
        index = bisect_left(self._distances, distance)
        return index if index < len(self._distances) and self._distances[index] == distance else None

    def _trim_gapless(self) -> PeerRef | None:
        if len(self._peers) <= 2 * self.half:
            return None
        self._gap = self.half
        return self._drop(self.half)

    def _trim_sides(self, can_be: SideRule) -> PeerRef | None:
        """A side over its size hands its far end to the other one, when that is short and the peer can be there."""
        gap, count = self._gap or 0, len(self._peers)
        if gap > self.half:
            self._gap = self.half
            moves = count - self.half <= self.half and can_be(self._peers[self.half].id, False)
            return None if moves else self._drop(self.half)
        if count - gap > self.half:
            moves = gap < self.half and can_be(self._peers[gap].id, True)
            self._gap = gap + moves
            return None if moves else self._drop(gap)
        return None

    def _drop(self, index: int) -> PeerRef:
        del self._distances[index]
        return self.by_id.pop(self._peers.pop(index).id)
