"""The routing table: for each length of shared prefix and each next digit, one near node. Pure state.

Pastry (Rowstron and Druschel 2001, section 2.3), 32 rows of 16 columns; only occupied slots take memory.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator
from typing import Final

from peerd.errors import Bug
from peerd.ids import DIGIT_VALUES, NodeId, digit, shared_prefix_digits
from peerd.messages import PeerRef
from peerd.overlay.spares import Spares

REPLACE_RATIO: Final = 0.85
"""A newcomer takes an occupied slot only when its RTT is below this share of the incumbent's: no flapping."""


class RoutingTable:
    """At most ``DIGITS * DIGIT_VALUES`` entries; entry (row, column) shares ``row`` digits and continues ``column``."""

    __slots__ = ("_entries", "changes", "own", "spares")

    def __init__(self, own: NodeId) -> None:
        self.own = own
        self._entries: dict[int, PeerRef] = {}
        self.changes = 0
        """As long as it stays, so do the entries."""
        self.spares = Spares()
        """Other peers that fit a cell; none of them is an entry."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PeerRef]:
        """Entries in order of their arrival."""
        return iter(self._entries.values())

    def __contains__(self, node_id: object) -> bool:
        if not isinstance(node_id, int) or node_id == self.own:
            return False
        entry = self._entries.get(self.cell(NodeId(node_id)))
        return entry is not None and entry.id == node_id

    def slots(self) -> ItemsView[int, PeerRef]:
        """The entries, each with its slot: ``row * DIGIT_VALUES + column``."""
        return self._entries.items()

    def get(self, row: int, column: int) -> PeerRef | None:
        """The entry of one slot."""
        return self._entries.get(row * DIGIT_VALUES + column)

    def next_hop(self, key: NodeId) -> PeerRef | None:
        """The entry that shares a longer prefix with ``key`` than this node does."""
        return None if key == self.own else self._entries.get(self.cell(key))

    def next_hops(self, key: NodeId) -> Iterator[PeerRef]:
        """All that share a longer prefix with ``key`` than this node does, spares too; the entry first."""
        if key == self.own:
            return
        slot = self.cell(key)
        entry = self._entries.get(slot)
        if entry is not None:
            yield entry
        yield from self.spares.of_cell(slot)

    def keep_spare(self, peer: PeerRef) -> None:
        """A live peer spoke: unless it is an entry, it is a spare of its cell."""
        if peer.id != self.own:
            cell = self.cell(peer.id)
            entry = self._entries.get(cell)
            if entry is None or entry.id != peer.id:
                self.spares.add(cell, peer)

    def drop_spare(self, node_id: NodeId) -> None:
        """A peer is of no use as a next hop any more, unless it is an entry."""
        if node_id != self.own:
            self.spares.remove(self.cell(node_id), node_id)

    def incumbent(self, node_id: NodeId) -> PeerRef | None:
        """Who holds the slot that this id belongs to."""
        return None if node_id == self.own else self._entries.get(self.cell(node_id))

    def row(self, row: int) -> tuple[PeerRef, ...]:
        """The occupied slots of one row, in column order."""
        first = row * DIGIT_VALUES
        found = (self._entries.get(slot) for slot in range(first, first + DIGIT_VALUES))
        return tuple(peer for peer in found if peer is not None)

    def rows(self) -> list[int]:
        """The numbers of the rows that have entries, ascending."""
        return sorted({slot // DIGIT_VALUES for slot in self._entries})

    def consider(self, peer: PeerRef, rtt_s: Callable[[NodeId], float | None]) -> tuple[bool, PeerRef | None]:
        """Offer a live peer: (whether it is new here, whom it replaced).

        An empty slot takes it; an occupied one only when its RTT is clearly the smaller. Whoever loses is a spare.
        """
        if peer.id == self.own:
            return False, None
        slot = self.cell(peer.id)
        incumbent = self._entries.get(slot)
        if incumbent is None:
            self._put(slot, peer)
            return True, None
        if incumbent.id == peer.id:
            if incumbent != peer:
                self._put(slot, peer)
            return False, None
        new, old = rtt_s(peer.id), rtt_s(incumbent.id)
        if new is None or (old is not None and new >= old * REPLACE_RATIO):
            self.spares.add(slot, peer)
            return False, None
        self._put(slot, peer)
        self.spares.add(slot, incumbent)
        return True, incumbent

    def _put(self, slot: int, peer: PeerRef) -> None:
        self.spares.remove(slot, peer.id)
        self._entries[slot] = peer
        self.changes += 1

    def remove(self, node_id: NodeId) -> PeerRef | None:
        """Drop an entry or a spare; returns it, or ``None`` when it was no entry."""
        if node_id not in self:
            self.drop_spare(node_id)
            return None
        self.changes += 1
        return self._entries.pop(self.cell(node_id))

    def validate(self) -> None:
        """Assert that each entry belongs where it is: its row is the shared prefix, never this node."""
        for slot, peer in self._entries.items():
            if peer.id == self.own or slot != self.cell(peer.id):
                row, column = divmod(slot, DIGIT_VALUES)
                raise Bug(f"{peer} does not belong into row {row}, column {column}")
            if self.spares.has(slot, peer.id):
                raise Bug(f"{peer} is an entry and a spare")

    def cell(self, node_id: NodeId) -> int:
        """The number of the cell that another node's id belongs to."""
        row = shared_prefix_digits(self.own, node_id)
        return row * DIGIT_VALUES + digit(node_id, row)
