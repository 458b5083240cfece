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
from peerd.lib.admission import Admission

TRANSIT_SHARE: Final = 0.5
"""Of a peer's message rate, how much is for messages of others that pass through this node."""
TRANSIT_PER_SECOND: Final = TRANSIT_SHARE * limits.PEER_MESSAGES_PER_SECOND
TRANSIT_BURST: Final = TRANSIT_SHARE * limits.PEER_MESSAGES_BURST
PEERS_MAX: Final = 1024
"""Peers with a record; the one that was passed nothing for longest goes when there are too many."""


class TransitBudget:
    """One allowance for each next hop. Times are the host's monotonic seconds."""

    def __init__(self) -> None:
        self._hops: Admission[NodeId] = Admission(TRANSIT_PER_SECOND, TRANSIT_BURST, keys_max=PEERS_MAX)

    def may_pass(self, hop: NodeId, keys: int, now: float) -> bool:
        """Whether a message to so many keys may go to this hop; if so, it is counted."""
        return self._hops.take(hop, now, keys)
