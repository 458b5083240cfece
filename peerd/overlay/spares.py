"""Peers that fit a cell of the routing table which another one holds: further next hops, while a link to them is open.

They cost no message: they are not probed, and their loss has no effect. A node has links to them anyway, because it has
measured them, or because they have this node in their own tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef

SPARES_PER_CELL: Final = 16
SPARES_MAX: Final = 256


class Spares:
    """At most ``SPARES_PER_CELL`` peers a cell, ``SPARES_MAX`` in all; the one that spoke longest ago goes first.

    A cell has few, so a list of them is looked through; it takes a quarter of the memory of a dict.
    """

    __slots__ = ("_by_cell", "_count")

    def __init__(self) -> None:
        self._by_cell: dict[int, list[PeerRef]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has(self, cell: int, node_id: NodeId) -> bool:
        """Whether a peer is one of these; ``cell`` is the one that it belongs to."""
        found = self._by_cell.get(cell)
        return found is not None and _place_of(node_id, found) is not None

    def of_cell(self, cell: int) -> Sequence[PeerRef]:
        """In the order in which they spoke last."""
        return self._by_cell.get(cell, ())

    def add(self, cell: int, peer: PeerRef) -> None:
        """Keep a peer, or its new address; a full cell loses its oldest one. Without any room it is not kept."""
        found = self._by_cell.get(cell)
        if found is None:
            if self._count < SPARES_MAX:
                self._by_cell[cell] = [peer]
                self._count += 1
            return
        place = _place_of(peer.id, found)
        if place is not None:
            del found[place]
        elif len(found) >= SPARES_PER_CELL or self._count >= SPARES_MAX:
            del found[0]
        else:
            self._count += 1
        found.append(peer)

    def remove(self, cell: int, node_id: NodeId) -> None:
        """Drop a peer, if it is one of these."""
        found = self._by_cell.get(cell)
        place = None if found is None else _place_of(node_id, found)
        if found is not None and place is not None:
            self._count -= 1
            del found[place]
            if not found:
                del self._by_cell[cell]


def _place_of(node_id: NodeId, peers: Sequence[PeerRef]) -> int | None:
    for place, peer in enumerate(peers):
        if peer.id == node_id:
            return place
    return None
