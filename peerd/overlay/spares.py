"""Peers that fit a cell of the routing table which another one holds: further next hops, while a link to them is open.

They cost no message: they are not probed, and their loss has no effect. A node has links to them anyway, because it has
measured them, or because they have this node in their own tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef

SPARES_PER_CELL: Final = 16
SPARES_MAX: Final = 256


class Spares:
    """At most ``SPARES_PER_CELL`` peers a cell, ``SPARES_MAX`` in all; the one that spoke longest ago goes first."""

    __slots__ = ("_by_cell", "_cells")

    def __init__(self) -> None:
        self._by_cell: dict[int, dict[NodeId, PeerRef]] = {}
        self._cells: dict[NodeId, int] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._cells

    def of_cell(self, cell: int) -> Iterable[PeerRef]:
        """In order of their arrival."""
        found = self._by_cell.get(cell)
        return found.values() if found else ()

    def add(self, cell: int, peer: PeerRef) -> None:
        """Keep a peer, or its new address; a full cell loses its oldest one. Without any room it is not kept."""
        self.remove(peer.id)
        found = self._by_cell.setdefault(cell, {})
        if found and (len(found) >= SPARES_PER_CELL or len(self._cells) >= SPARES_MAX):
            self.remove(next(iter(found)))
            found = self._by_cell.setdefault(cell, {})
        if len(self._cells) < SPARES_MAX:
            found[peer.id] = peer
            self._cells[peer.id] = cell

    def remove(self, node_id: NodeId) -> None:
        """Drop a peer, if it is one of these."""
        cell = self._cells.pop(node_id, None)
        if cell is not None:
            found = self._by_cell[cell]
            del found[node_id]
            if not found:
                del self._by_cell[cell]
