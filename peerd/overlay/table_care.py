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

from peerd.api import Priority
from peerd.ids import DIGIT_VALUES, NodeId, digit, shared_prefix_digits
from peerd.messages import Message, PeerRef
from peerd.overlay.coordinates import Coordinate
from peerd.overlay.membership import Membership
from peerd.overlay.messages import ENTRIES_MAX, EntriesReply, EntriesRequest, Ping, Pong
from peerd.overlay.state import OverlayState
from peerd.overlay.table import REPLACE_RATIO
from peerd.overlay.tuning import probe_period_s

JITTER: Final = 0.2
PINGS_MAX: Final = 8
PING_QUEUE_MAX: Final = 128
COMPARISONS_MAX: Final = 3
"""Occupied slots for which one row reply may have a nearer candidate measured."""
OFFERS_PER_CELL: Final = 2
ASKED_MAX: Final = 128
EARLY_STEPS: Final = 8
EARLY_SHARE: Final = 1 / 30
"""A newcomer asks for its first rows at this share of ``table_interval``."""
SHRINK: Final = 0.7
GROWTH: Final = 1.5
BUSY_SHARE: Final = 1 / 10
UNSURE_ERROR: Final = 0.6
"""Above this error of its own coordinate a node measures candidates at random."""
PROBE_GAP_MIN_S: Final = 0.5


@dataclass(slots=True)
class PingSent:
    """A ping under way."""

    at: float
    is_timed: bool


class TableCare:
    """Periodic work on the routing table of one node, and the pings that everything else asks for."""

    def __init__(self, state: OverlayState, membership: Membership) -> None:
        self.state = state
        self._host = state.host
        self._membership = membership
        self._steps = 0
        self._early_steps = 0
        self._pause_s = state.config.table_interval
        self._is_fruitful = False
        self._asked: dict[NodeId, int] = {}
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
        self._arm("table", self.state.config.table_interval * EARLY_SHARE)

    def _arm(self, timer: str, delay_s: float) -> None:
        self._host.set_timer(timer, delay_s * self._host.rng.uniform(1.0 - JITTER, 1.0 + JITTER))

    # Whom others know

    def step(self) -> None:
        """Ask a near peer whom it knows; soon again when the last answers brought something, else later and later."""
        state = self.state
        self._adapt_pause()
        self._arm("table", self._pause_s)
        if not len(state.table) or not state.is_ready:
            return
        self._steps += 1
        peer = self._whom_to_ask(self._steps % self._rows_worth_asking())
        if peer is not None:
            self._asked[peer.id] = self._asked.pop(peer.id, 0) + 1
            if len(self._asked) > ASKED_MAX:
                del self._asked[next(iter(self._asked))]
            self._ask(peer)

    def _adapt_pause(self) -> None:
        interval_s = self.state.config.table_interval
        if self._early_steps > 0:
            self._early_steps -= 1
            self._pause_s = interval_s * EARLY_SHARE
        else:
            self._pause_s = min(interval_s, self._pause_s * (SHRINK if self._is_fruitful else GROWTH))
            self._pause_s = max(self._pause_s, interval_s * BUSY_SHARE)
        self._is_fruitful = False

    def _rows_worth_asking(self) -> int:
        """How many rows have cells that several nodes compete for, at least 1."""
        candidates, rows = self.state.leaves.estimated_ring_size() / DIGIT_VALUES, 1
        while candidates >= DIGIT_VALUES / 2:
            candidates, rows = candidates / DIGIT_VALUES, rows + 1
        return rows

    def _whom_to_ask(self, row: int) -> PeerRef | None:
        """The nearest known peer that shares at least ``row`` digits with this node, those asked before less likely."""
        state, asked = self.state, self._asked
        best: PeerRef | None = None
        best_s = float("inf")
        for peer in state.peers():
            if shared_prefix_digits(state.own, peer.id) >= row and peer.id not in state.suspects:
                distance_s = state.distance_s(peer.id)
                if distance_s is None:
                    continue
                distance_s *= 2.0 ** asked.get(peer.id, 0)
                if distance_s < best_s:
                    best, best_s = peer, distance_s
        return best

    def _ask(self, peer: PeerRef) -> None:
        sent_at, is_timed = self._host.now(), self._host.is_linked(peer)

        def answered(reply: Message, source: PeerRef) -> None:
            if isinstance(reply, EntriesReply):
                own = reply.coordinates[0] if reply.coordinates else None
                self.state.answered(source, self._host.now() - sent_at, own, is_timed=is_timed)
                self.consider(reply.peers, reply.coordinates)

        self._host.request(
            peer,
            EntriesRequest(self.state.vivaldi.current),
            self.state.proximity.timeout_s(peer.id),
            answered,
            lambda: self._membership.suspect(peer, "row_request"),
            Priority.BACKGROUND,
        )

    def entries(self, request: EntriesRequest, source: PeerRef) -> EntriesReply:
        """This node, and for each cell of the asker's table the few known peers that are nearest to it."""
        self.sender_told(source, request.coordinate)
        state, place = self.state, request.coordinate
        found: list[tuple[float, PeerRef, Coordinate | None]] = []
        for peer in {peer.id: peer for peer in state.peers()}.values():
            if peer.id != source.id and peer.id not in state.suspects:
                known = state.coordinates.get(peer.id)
                distance_s = self._host.rng.random() if known is None or place is None else place.rtt_s(known)
                found.append((distance_s, peer, known))
        found.sort(key=lambda each: each[0])
        taken: dict[tuple[int, int], int] = {}
        chosen = []
        for _, peer, known in found:
            row = shared_prefix_digits(source.id, peer.id)
            cell = (row, digit(peer.id, row))
            taken[cell] = taken.get(cell, 0) + 1
            if taken[cell] <= OFFERS_PER_CELL:
                chosen.append((peer, known))
        chosen = chosen[: ENTRIES_MAX - 1]
        peers = (self._host.peer, *(peer for peer, _ in chosen))
        return EntriesReply(peers, (state.vivaldi.current, *(known for _, known in chosen)))

    def sender_told(self, source: PeerRef, coordinate: Coordinate | None) -> None:
        """A peer said where it is, along with something else: whoever has this node near may be near for it."""
        if coordinate is None:
            return
        self.state.note_coordinate(source.id, coordinate)
        self.state.table.keep_spare(source)
        if self.state.is_ready:
            self.consider((source,), (coordinate,))

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
                gain_s = self._gain_s(incumbent, coordinate)
                if gain_s > 0:
                    rivals.append((gain_s, peer))
        rivals.sort(key=lambda rival: -rival[0])
        for _, peer in rivals[:COMPARISONS_MAX]:
            self.ping(peer)

    def _gain_s(self, incumbent: PeerRef, coordinate: Coordinate | None) -> float:
        """How much nearer than the incumbent a rival should be, seconds; random while predictions are worth nothing."""
        state = self.state
        own, current_s = state.vivaldi.current, state.distance_s(incumbent.id)
        if coordinate is None or current_s is None or own.error > UNSURE_ERROR or coordinate.error > UNSURE_ERROR:
            return self._host.rng.random() if current_s is None else current_s * self._host.rng.random()
        predicted_s = own.rtt_s(coordinate)
        return current_s - predicted_s if predicted_s < current_s * REPLACE_RATIO else 0.0

    # Probes

    def probe(self) -> None:
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
        place = self.state.vivaldi.current if self.state.is_ready else None
        self._host.request(peer, Ping(place), timeout_s, self._ponged, lambda: self._ping_lost(peer), Priority.BACKGROUND)

    def _ponged(self, reply: Message, source: PeerRef) -> None:
        state = self.state
        sent = self._pings.pop(source.id, None)
        if isinstance(reply, Pong) and sent is not None:
            state.answered(source, self._host.now() - sent.at, reply.coordinate, is_timed=sent.is_timed)
            if not sent.is_timed and state.table.incumbent(source.id) not in (None, source):
                self._send_ping(source)  # the first one paid for the dial, and would lose against anybody
                return
            if reply.is_ready and state.admit_entry(source):
                self._is_fruitful = True
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
