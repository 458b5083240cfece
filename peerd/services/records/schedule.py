"""When a node compares its records with which neighbour at rest. Pure.

Two partners that agree, and hear of no new write, compare ever more rarely; partners that hold nothing together never
do. The smaller of the two asks; the larger one does when it was not asked in its time, for the smaller may hold
nothing, and so have nothing to compare.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef
from peerd.services.records.config import RecordsConfig

PAUSE_FACTOR_MAX: Final = 16
"""Partners without news compare at least every so many ``sync_interval``."""


@dataclass(slots=True)
class Last:
    """The last comparison with one partner."""

    at: float
    pause_s: float
    writes: int
    """What `RecordTable.writes` was then."""


class Schedule:
    """Keeps one entry for each partner. A new partner counts as compared just now."""

    def __init__(self, config: RecordsConfig) -> None:
        self._interval_s = config.sync_interval
        self._grace_s = config.replicas * config.sync_interval
        self._last: dict[NodeId, Last] = {}

    def __len__(self) -> int:
        return len(self._last)

    def compared(self, node_id: NodeId, now: float, writes: int, *, is_equal: bool) -> None:
        """A comparison that either side began, when this node had seen so many writes."""
        last, pause_s = self._last.get(node_id), self._interval_s
        if last is not None and is_equal and last.writes == writes:
            pause_s = min(2.0 * last.pause_s, PAUSE_FACTOR_MAX * self._interval_s)
        self._last[node_id] = Last(now, pause_s, writes)

    def next(self, partners: Sequence[PeerRef], asks: Collection[NodeId], now: float, writes: int) -> PeerRef | None:
        """Of those with whom there is something to compare, the one whose turn has been longest, if any.

        This node ``asks`` some of them itself, and waits a little for the others to ask. Whoever is not among the
        partners is forgotten.
        """
        new = Last(now, self._interval_s, writes)
        self._last = {peer.id: self._last.get(peer.id, new) for peer in partners}
        due: dict[PeerRef, float] = {}
        for peer in partners:
            last, wait_s = self._last[peer.id], 0.0 if peer.id in asks else self._grace_s
            due[peer] = last.at + wait_s + (last.pause_s if last.writes == writes else self._interval_s)
        first = min(partners, key=lambda peer: (due[peer], peer.id), default=None)
        return first if first is not None and due[first] <= now else None

    def clear(self) -> None:
        """The neighbourhood has changed: forget all partners."""
        self._last.clear()
