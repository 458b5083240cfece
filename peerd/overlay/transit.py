"""How much of others' messages a node passes on to one peer. Pure state.

A message to many keys counts once for each key at whoever gets it, and who sends more than `PEER_MESSAGES_PER_SECOND`
loses its link. One member that sends as much as it may would have each node on the way send as much to the next one,
on top of what that node says itself: the honest nodes would accuse each other of the flood. So a part of what a peer
takes is kept for a node's own words, and what others send beyond the rest is dropped.
"""

from __future__ import annotations

from typing import Final

from peerd import limits
from peerd.ids import NodeId

TRANSIT_SHARE: Final = 0.5
"""Of a peer's message rate, how much is for messages of others that pass through this node."""
TRANSIT_PER_SECOND: Final = TRANSIT_SHARE * limits.PEER_MESSAGES_PER_SECOND
TRANSIT_BURST: Final = TRANSIT_SHARE * limits.PEER_MESSAGES_BURST
PEERS_MAX: Final = 1024
"""Peers with a record; the one that was passed something first goes when there are too many."""


class TransitBudget:
    """One allowance for each next hop. Times are the host's monotonic seconds."""

    def __init__(self) -> None:
        self._left: dict[NodeId, tuple[float, float]] = {}

    def may_pass(self, hop: NodeId, keys: int, now: float) -> bool:
        """Whether a message to so many keys may go to this hop; if so, it is counted."""
        left, since = self._left.get(hop, (TRANSIT_BURST, now))
        left = min(TRANSIT_BURST, left + (now - since) * TRANSIT_PER_SECOND)
        is_allowed = left >= keys
        self._left[hop] = (left - keys if is_allowed else left, now)
        if len(self._left) > PEERS_MAX:
            del self._left[next(iter(self._left))]
        return is_allowed
