"""How much of the past a member may have looked through for it, so that its questions do not hold up others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peerd.ids import NodeId
from peerd.lib.admission import Admission

BURST_MAX: Final = 2_000_000
"""Items looked through at once for one member: some hundred times all that a node remembers by default."""
PER_SECOND: Final = 200_000
"""And in each second, in the long run."""
BEGIN_COST: Final = 10_000
"""What one more beginning of a child counts for besides: it is looked after up the whole tree."""
NEW_COST: Final = 1_000
"""What an interest counts for that this node does not know yet: it is read, matched from now on, and given up again.
For a short XPath query that takes some 0.6 ms, so that one member gets at most an eighth of a processor's time so."""
NEW_BYTE_COST: Final = 4
"""And each of its bytes: to read 128 bytes of nested conditions takes 0.8 ms."""
TRIED_COST: Final = 160
"""What it counts for to try one interest on one remembered item: some XPath queries take 0.1 ms."""
ASK_COST: Final = 40_000
"""What a question for a place counts for, so that one that goes on asking leaves nine tenths of the answers to others:
it gets 50 at once, and five a second."""
ASKS_BURST_MAX: Final = 50 * ASK_COST
"""As `BURST_MAX`, for one that looks for a place."""
BYTES_A_LOOK: Final = 64
"""Items that have to be parsed again for a member count for one more for so many of their bytes. To parse and match 2.4
KB of XML again takes some 0.1 ms, so that one member gets at most half of a processor's time in the long run."""
WANT_BYTES_A_LOOK: Final = 2
"""A change of what a child wants of values counts for one for so many bytes of all that it wants: that is put together
anew, which takes some 0.4 microseconds a byte, so that one member gets at most a sixth of a processor's time so."""
MEMBERS_MAX: Final = 1024
"""Members whose use is remembered. Above it the one that has asked longest ago is forgotten."""


def new_looks(texts: Iterable[str]) -> int:
    """What interests count for that a node does not know yet."""
    return sum(NEW_COST + NEW_BYTE_COST * len(text.encode()) for text in texts)


class PastAllowance:
    """What each member may use of it, which comes back with time."""

    def __init__(self, burst_max: int = BURST_MAX) -> None:
        """More only where children may want more than `WANTS_MAX` things, as in the lab."""
        self._members: Admission[NodeId] = Admission(PER_SECOND, burst_max, keys_max=MEMBERS_MAX)

    def take(self, peer: NodeId, items: int, now: float) -> bool:
        """Look through so many items for a member; whether that is within its allowance. If not, nothing is counted."""
        return self._members.take(peer, now, items)
