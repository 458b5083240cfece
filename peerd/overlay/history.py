"""The verdicts of this node on each peer: when, on what evidence, and how late its own timers were. Pure state.

Bounded: the peers about whom something was noted last, and the latest notes about each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from peerd.frozen import Frozen
from peerd.ids import NodeId

PEERS_MAX: Final = 128
NOTES_MAX: Final = 32


class Note(Frozen):
    """One verdict. ``accuser``: who said so, when it was not this node's own finding; ``lag_s``: how late this node's
    own heartbeat timer was at the time, so that a reader can tell a starved accuser from a dead peer."""

    wall_s: float
    verdict: str
    """"suspected", "cleared", "removed", "withheld", "left", "back", "accused",
    "doubted" (it named many that nobody can find)."""
    evidence: str
    silence_s: float | None
    lag_s: float
    accuser: NodeId | None = None


class History:
    """Notes by peer, oldest first."""

    def __init__(self, wall_time: Callable[[], float]) -> None:
        self._wall_time = wall_time
        self._notes: dict[NodeId, deque[Note]] = {}
        self.lag_s = 0.0
        """How late this node's own timers are; kept up to date by `Maintenance`."""

    def note(
        self, peer: NodeId, verdict: str, evidence: str, silence_s: float | None = None, accuser: NodeId | None = None
    ) -> None:
        """Write one verdict down; the peer that was quiet longest is forgotten when there are too many."""
        notes = self._notes.pop(peer, None)
        if notes is None:
            if len(self._notes) >= PEERS_MAX:
                del self._notes[next(iter(self._notes))]
            notes = deque(maxlen=NOTES_MAX)
        self._notes[peer] = notes
        notes.append(Note(self._wall_time(), verdict, evidence, silence_s, self.lag_s, accuser))

    def of(self, peer: NodeId) -> tuple[Note, ...]:
        """What was noted about a peer, oldest first."""
        return tuple(self._notes.get(peer, ()))

    def peers(self) -> tuple[NodeId, ...]:
        """Every peer about which something was noted, the latest last."""
        return tuple(self._notes)
