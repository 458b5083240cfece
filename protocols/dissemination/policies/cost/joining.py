"""Looks for the parent that makes all members lose least. Pure.

A newcomer asks the members that the stream's record names. Each works out, with the model, how long an item would take
to the newcomer below it, and how much the others below it would lose by its sending to one more; and it names children.
Those of the best member so far are asked next, until none of them is better: the same search as the greedy algorithm's
(section 3.3.1), but downwards along the best branch instead of over all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.dissemination.policies.cost.messages import PlaceOffered
from protocols.dissemination.tree.below import MoveEnd
from protocols.dissemination.tree.search import ParentSearch

JOIN_S: Final = 1.0
"""After so long a newcomer takes the best of the offers that it has."""
SEEDS_ASKED_MAX: Final = 8


class PlaceSearch:
    """One search. ``ask`` sends the question; ``delay_s`` is the one-way delay to a node; ``move_to`` ends it."""

    def __init__(
        self,
        me: NodeId,
        asks_max: int,
        ask: Callable[[PeerRef], None],
        delay_s: Callable[[PeerRef], float],
        move_to: Callable[[PeerRef], bool],
    ) -> None:
        self._me = me
        self._asks_max = asks_max
        self._ask = ask
        self._delay_s = delay_s
        self._tries = ParentSearch(move_to, None)
        self._asked: dict[NodeId, PeerRef] = {}
        self._open: set[NodeId] = set()
        self._places: list[tuple[float, NodeId, PeerRef]] = []
        self._least = float("inf")
        self._ends_at = 0.0
        self.is_asking = False

    @property
    def is_moving(self) -> bool:
        """Whether the best ones are being tried, one after the other."""
        return self._tries.is_active

    def begin(self, seeds: Sequence[PeerRef], now: float) -> None:
        """Ask the first ones."""
        self._ends_at = now + JOIN_S
        self.is_asking = True
        self._ask_all(seeds[:SEEDS_ASKED_MAX])
        self._decide_if_done()

    def _ask_all(self, peers: Sequence[PeerRef]) -> None:
        for peer in peers:
            if peer.id != self._me and peer.id not in self._asked and len(self._asked) < self._asks_max:
                self._asked[peer.id] = peer
                self._open.add(peer.id)
                self._ask(peer)

    def offered(self, peer: PeerRef, offer: PlaceOffered) -> None:
        """A member has answered."""
        if not self.is_asking or peer.id not in self._open:
            return
        self._open.discard(peer.id)
        loss = offer.rate_sum * (offer.delay_s + self._delay_s(peer)) + offer.others
        if offer.has_room:
            self._places.append((loss, peer.id, self._asked[peer.id]))
        if not offer.has_room or loss <= self._least:
            self._ask_all(offer.children)
        if offer.has_room:
            self._least = min(self._least, loss)
        self._decide_if_done()

    def tick(self, now: float) -> None:
        """Wait no longer for those that do not answer."""
        if self.is_asking and now >= self._ends_at:
            self._decide()

    def _decide_if_done(self) -> None:
        if not self._open:
            self._decide()

    def _decide(self) -> None:
        self.is_asking = False
        self._tries.begin([peer for _, _, peer in sorted(self._places)], lambda is_found: None)

    def failed(self, peer: PeerRef, end: MoveEnd, others: Sequence[PeerRef]) -> None:
        """It was not taken there: the next one. ``others``: named by one that had no room."""
        new = [each for each in others if each.id not in self._asked and each.id != self._me]
        self._asked.update((each.id, each) for each in new)
        self._tries.ended(peer, end, new)
