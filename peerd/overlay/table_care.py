"""Care of the routing table: full, alive and near, for as few messages as the churn allows.

*Near*: proximity neighbour selection by gossip of rows (Pastry, section 2.5; Castro et al. 2003). A row reply tells
the coordinates of its entries, so only candidates that are predicted to be nearer than the incumbent are measured.
*Alive*: the entry that was silent longest is pinged, as often as the observed failures demand (`tuning`). *Full*: who
fits an empty slot is pinged whenever somebody mentions it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from peerd.api import Part, Priority, handles, on_timer
from peerd.ids import DIGITS, NodeId, shared_prefix_digits
from peerd.messages import Message, PeerRef
from peerd.overlay.coordinates import Coordinate
from peerd.overlay.membership import Membership
from peerd.overlay.messages import ROW_MAX, Ping, Pong, RowReply, RowRequest
from peerd.overlay.state import OverlayState
from peerd.overlay.table import REPLACE_RATIO
from peerd.overlay.tuning import probe_period_s

JITTER: Final = 0.2
PINGS_MAX: Final = 8
PING_QUEUE_MAX: Final = 128
COMPARISONS_MAX: Final = 2
"""Occupied slots for which one row reply may have a nearer candidate measured."""
EARLY_STEPS: Final = 12
EARLY_SHARE: Final = 1 / 30
"""A newcomer asks for its first rows at this share of ``table_interval``."""
UNSURE_ERROR: Final = 0.6
"""Above this error of its own coordinate a node measures candidates at random."""
PROBE_GAP_MIN_S: Final = 0.5

_PING: Final = Ping()


@dataclass(slots=True)
class PingSent:
    """A ping under way."""

    at: float
    is_timed: bool


class TableCare(Part):
    """Periodic work on the routing table of one node, and the pings that everything else asks for."""

    def __init__(self, state: OverlayState, membership: Membership) -> None:
        self.state = state
        self._host = state.host
        self._membership = membership
        self._steps = 0
        self._early_steps = 0
        self._pings: dict[NodeId, PingSent] = {}
        self._ping_queue: deque[PeerRef] = deque()

    def start(self) -> None:
        """Arm the periodic timers, each at a random phase."""
        config, uniform = self.state.config, self._host.rng.uniform
        self._host.set_timer("table", uniform(0.0, config.table_interval))
        self._host.set_timer("table_probe", uniform(0.0, config.table_interval))

    def became_ready(self) -> None:
        """A newcomer has a leaf set; its table is what its way in told. Ask near peers for more, soon."""
        self._early_steps = EARLY_STEPS
        self._host.cancel_timer("table")
        self._arm("table", self._step_pause_s())

    def _arm(self, timer: str, delay_s: float) -> None:
        self._host.set_timer(timer, delay_s * self._host.rng.uniform(1.0 - JITTER, 1.0 + JITTER))

    def _step_pause_s(self) -> float:
        interval_s = self.state.config.table_interval
        return interval_s * EARLY_SHARE if self._early_steps > 0 else interval_s

    # Rows

    @on_timer("table")
    def _step(self, payload: object) -> None:
        """Ask for a row: by turns the nearest peer that has it, whose entries are near this node as well, and any."""
        state = self.state
        self._early_steps -= 1
        self._arm("table", self._step_pause_s())
        if not len(state.table) or not state.is_ready:
            return
        self._steps += 1
        row = self._host.rng.choice(state.table.rows())
        peer = self._nearest_with(row) if self._steps % 2 else None
        self._ask_row(row, peer or self._host.rng.choice(state.table.row(row)))

    def _nearest_with(self, row: int) -> PeerRef | None:
        """The nearest known peer that shares at least ``row`` digits with this node: its row fits here."""
        state = self.state
        best: PeerRef | None = None
        best_s = float("inf")
        for peer in state.peers():
            if peer.id not in state.suspects and shared_prefix_digits(state.own, peer.id) >= row:
                distance_s = state.distance_s(peer.id)
                if distance_s is not None and distance_s < best_s:
                    best, best_s = peer, distance_s
        return best

    def _ask_row(self, row: int, peer: PeerRef) -> None:
        self._host.request(
            peer,
            RowRequest(row),
            self.state.proximity.timeout_s(peer.id),
            self._row_answered,
            lambda: self._membership.suspect(peer, "row_request"),
            Priority.BACKGROUND,
        )

    def _row_answered(self, reply: Message, source: PeerRef) -> None:
        if isinstance(reply, RowReply):
            self.consider(reply.peers, reply.coordinates)

    @handles(RowRequest)
    def row_reply(self, request: RowRequest, source: PeerRef) -> RowReply:
        """This node and its row; no entries for a row number that does not exist."""
        state = self.state
        row = state.table.row(request.row) if request.row < DIGITS else ()
        peers = (self._host.peer, *row)[:ROW_MAX]
        known = (state.vivaldi.current, *(state.coordinates.get(peer.id) for peer in row))
        return RowReply(peers, known[:ROW_MAX])

    def consider(self, peers: Iterable[PeerRef], coordinates: Iterable[Coordinate | None] = ()) -> None:
        """Hearsay: ping those that would fill a slot, and the few that promise most against who holds it."""
        state = self.state
        rivals: list[tuple[float, PeerRef]] = []
        for peer, coordinate in zip_longest(peers, coordinates):
            if peer is None:
                break  # more coordinates than peers
            if peer.id == state.own or state.is_failed(peer.id) or state.proximity.rtt_s(peer.id) is not None:
                continue
            incumbent = state.table.incumbent(peer.id)
            if incumbent is None:
                self.ping(peer)
            elif incumbent.id != peer.id:
                rivals.append((self._promise(incumbent, coordinate), peer))
        rivals.sort(key=lambda rival: rival[0])
        for promise, peer in rivals[:COMPARISONS_MAX]:
            if promise < REPLACE_RATIO:
                self.ping(peer)

    def _promise(self, incumbent: PeerRef, coordinate: Coordinate | None) -> float:
        """Predicted RTT of a rival as a share of the incumbent's; random while predictions are worth nothing."""
        state = self.state
        own, current_s = state.vivaldi.current, state.distance_s(incumbent.id)
        if coordinate is None or current_s is None or own.error > UNSURE_ERROR or coordinate.error > UNSURE_ERROR:
            return self._host.rng.uniform(0.0, REPLACE_RATIO)
        return own.rtt_s(coordinate) / current_s if current_s > 0 else 1.0

    # Probes

    @on_timer("table_probe")
    def _probe(self, payload: object) -> None:
        """Ping the entry that was silent longest, if it was silent for its period."""
        state = self.state
        period_s = self.probe_period_s()
        entries = len(state.table)
        self._arm("table_probe", max(PROBE_GAP_MIN_S, period_s / max(1, entries)))
        if entries and state.is_ready:
            stalest = max(state.table, key=lambda peer: (state.silence_s(peer.id), peer.id))
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

    def ping(self, peer: PeerRef) -> None:
        """Measure a peer; it enters the table if it answers and is ready. Queued when many are under way."""
        if peer.id in self._pings:
            return
        if len(self._pings) >= PINGS_MAX:
            if len(self._ping_queue) < PING_QUEUE_MAX:
                self._ping_queue.append(peer)
            return
        self._send_ping(peer)

    def _send_ping(self, peer: PeerRef) -> None:
        self._pings[peer.id] = PingSent(self._host.now(), self._host.is_linked(peer))
        timeout_s = self.state.proximity.timeout_s(peer.id)
        self._host.request(peer, _PING, timeout_s, self._ponged, lambda: self._ping_lost(peer), Priority.BACKGROUND)

    def _ponged(self, reply: Message, source: PeerRef) -> None:
        state = self.state
        sent = self._pings.pop(source.id, None)
        if isinstance(reply, Pong) and sent is not None:
            state.answered(source, self._host.now() - sent.at, reply.coordinate, is_timed=sent.is_timed)
            if not sent.is_timed and state.table.incumbent(source.id) not in (None, source):
                self._send_ping(source)  # the first one paid for the dial, and would lose against anybody
                return
            if reply.is_ready:
                state.admit_entry(source)
            state.note_coordinate(source.id, reply.coordinate)
        self._next_ping()

    def _ping_lost(self, peer: PeerRef) -> None:
        self._pings.pop(peer.id, None)
        self._membership.suspect(peer, "ping")
        self._next_ping()

    def _next_ping(self) -> None:
        while self._ping_queue and len(self._pings) < PINGS_MAX:
            peer = self._ping_queue.popleft()
            if not self.state.is_known(peer.id) and not self.state.is_failed(peer.id):
                self.ping(peer)
