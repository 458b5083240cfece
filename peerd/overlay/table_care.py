"""Care of the routing table: alive and full, for as few messages as the churn allows.

*Alive*: the entry that was silent longest is pinged, as often as the observed failures demand (`tuning`). *Full* and
*near*: whoever `near_search` finds worth it is pinged, and enters the table if it answers.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from peerd.api import Part, Priority, on_timer
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.overlay.membership import Membership
from peerd.overlay.messages import Ping, Pong
from peerd.overlay.state import OverlayState
from peerd.overlay.tuning import probe_period_s

JITTER: Final = 0.2
PINGS_MAX: Final = 8
PING_QUEUE_MAX: Final = 128
PROBE_GAP_MIN_S: Final = 0.5


class TableCare(Part):
    """Probes of one node's routing table, and the pings that everything else asks for."""

    def __init__(self, state: OverlayState, membership: Membership) -> None:
        self.state = state
        self._host = state.host
        self._membership = membership
        self._pings: dict[NodeId, float] = {}
        """Pings under way, and when each was sent."""
        self._ping_queue: deque[PeerRef] = deque()
        self._fills: dict[int, NodeId] = {}
        """Empty cells, and whom each of them waits for: one candidate at a time."""

    def start(self) -> None:
        """Arm the periodic timer, at a random phase."""
        self._host.set_timer("table_probe", self._host.rng.uniform(0.0, self.state.config.table_interval))

    # Probes

    @on_timer("table_probe")
    def _probe(self, payload: object) -> None:
        """Ping the entry that was silent longest, if it was silent for its period."""
        state = self.state
        period_s = self.probe_period_s()
        entries = len(state.table)
        pause_s = max(PROBE_GAP_MIN_S, period_s / max(1, entries))
        self._host.set_timer("table_probe", pause_s * self._host.rng.uniform(1.0 - JITTER, 1.0 + JITTER))
        if entries and state.is_ready:
            heard = state.heard
            stalest = min(state.table, key=lambda peer: (heard[peer.id], -peer.id))
            if state.silence_s(stalest.id) >= period_s / 2:
                self.ping(stalest)

    def probe_period_s(self) -> float:
        """Seconds between two probes of one entry, tuned to the observed failures."""
        state, config = self.state, self.state.config
        rate = state.failures.per_second(self._host.now(), len(state.heard))
        return probe_period_s(
            config.target_loss,
            rate,
            state.leaves.estimated_ring_size(),
            config.ack_timeout_max,
            low=config.table_probe_min,
            high=config.table_probe_max,
        )

    # Pings

    def fill(self, peer: PeerRef) -> bool:
        """Ping a candidate for an empty cell, unless another one is being asked: the first that answers fills it.

        Returns whether it is going to be asked.
        """
        cell = self.state.table.cell(peer.id)
        if cell in self._fills or not self.ping(peer):
            return False
        self._fills[cell] = peer.id
        return True

    def ping(self, peer: PeerRef) -> bool:
        """Measure a peer; it enters the table if it answers and is ready. Queued when many are under way.

        Returns whether it is going to be asked.
        """
        if peer.id in self._pings:
            return False
        if len(self._pings) >= PINGS_MAX:
            if len(self._ping_queue) >= PING_QUEUE_MAX:
                return False
            self._ping_queue.append(peer)
        else:
            self._send_ping(peer)
        return True

    def _send_ping(self, peer: PeerRef) -> None:
        self._pings[peer.id] = self._host.now()
        timeout_s = self.state.timeout_s(peer)
        place = self.state.vivaldi.current if self.state.is_ready else None
        self._host.request(
            peer, Ping(place), timeout_s, self._ponged, lambda: self._ping_lost(peer), Priority.BACKGROUND
        )

    def _ponged(self, reply: Message, source: PeerRef) -> None:
        state = self.state
        sent_at = self._pings.pop(source.id, None)
        if isinstance(reply, Pong) and sent_at is not None:
            state.answered(source, sent_at, reply.coordinate)
            if reply.is_ready:
                state.admit_entry(source)
        self._finished(source.id)

    def _ping_lost(self, peer: PeerRef) -> None:
        self._pings.pop(peer.id, None)
        self._membership.suspect(peer, "ping")
        self._finished(peer.id)

    def _finished(self, node_id: NodeId) -> None:
        """Its cell waits for this peer no longer, and another ping may start."""
        self._release(node_id)
        while self._ping_queue and len(self._pings) < PINGS_MAX:
            peer = self._ping_queue.popleft()
            if peer.id in self._pings or self.state.is_known(peer.id) or self.state.is_failed(peer.id):
                self._release(peer.id)
            else:
                self._send_ping(peer)

    def _release(self, node_id: NodeId) -> None:
        cell = self.state.table.cell(node_id)
        if self._fills.get(cell) == node_id:
            del self._fills[cell]
