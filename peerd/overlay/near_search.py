"""The search for near peers: every cell of the routing table holds one that is near, for few messages.

Proximity neighbour selection by gossip (Pastry, section 2.5; Castro, Druschel, Hu and Rowstron 2003), with network
coordinates in place of most measurements. Three ways lead to near peers:

- A node asks the nearest peers that it knows whom *they* have near, for what is near to a near peer is near to itself.
  It asks often after its join, and for as long as that brings something, then more and more rarely.
- Whoever asks, pings or announces itself says where it is: a peer that has this node near may be near for it, too.
- Answers come with coordinates, so only the few candidates that promise most are measured before they enter a table.

What a peer says of places is hearsay. It decides who is measured, and nothing else: a liar costs a few pings.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Final

from peerd.api import Part, Priority, handles, on_timer
from peerd.ids import DIGIT_VALUES, NodeId, digit, shared_prefix_digits
from peerd.messages import Message, PeerRef
from peerd.overlay.coordinates import Coordinate
from peerd.overlay.membership import Membership
from peerd.overlay.messages import ENTRIES_MAX, EntriesReply, EntriesRequest, Ping, Pong
from peerd.overlay.state import OverlayState
from peerd.overlay.table import REPLACE_RATIO
from peerd.overlay.table_care import TableCare

JITTER: Final = 0.2
EARLY_STEPS: Final = 8
"""So many questions follow a join in quick succession."""
EARLY_SHARE: Final = 1 / 30
"""The pause between them, as a share of ``table_interval``."""
BUSY_SHARE: Final = 1 / 10
"""The shortest pause later on, as a share of ``table_interval``, which is the longest."""
SHRINK: Final = 0.7
"""Factor of the pause after an answer that changed the table."""
GROWTH: Final = 1.5
"""Factor of the pause after any other."""
COMPETITION: Final = 0.5
"""Rows are searched as long as a cell has at least so many candidates on average."""
COMPARISONS_MAX: Final = 3
"""Occupied cells for which one answer may have a nearer candidate measured."""
BLIND_COMPARISONS_MAX: Final = 1
"""The same, of candidates whose coordinates say nothing."""
OFFERS_PER_CELL: Final = 2
"""Candidates for one cell of the asker's in one answer."""
ASKED_MAX: Final = 128
"""Peers of which is remembered how often they were asked."""
UNSURE_ERROR: Final = 0.6
"""A coordinate with a larger error says nothing."""


class NearSearch(Part):
    """Finds near peers for one node's routing table, and answers such questions of other nodes."""

    def __init__(self, state: OverlayState, membership: Membership, table_care: TableCare) -> None:
        self.state = state
        self._host = state.host
        self._membership = membership
        self._table_care = table_care
        self._steps = 0
        self._early_steps = 0
        self._pause_s = 0.0
        self._changes = 0
        self._asked: dict[NodeId, int] = {}

    def start(self) -> None:
        """Arm the periodic timer, at a random phase."""
        self._pause_s = self.state.config.table_interval
        self._host.set_timer("table", self._host.rng.uniform(0.0, self._pause_s))

    def became_ready(self) -> None:
        """This node has just joined: its table has only what it learned on the way. Look for near peers soon."""
        self._early_steps = EARLY_STEPS
        self._host.cancel_timer("table")
        self._arm()

    def _arm(self) -> None:
        self._adapt_pause()
        self._host.set_timer("table", self._pause_s * self._host.rng.uniform(1.0 - JITTER, 1.0 + JITTER))

    def _adapt_pause(self) -> None:
        interval_s, before, self._changes = self.state.config.table_interval, self._changes, self.state.table.changes
        if self._early_steps > 0:
            self._early_steps -= 1
            self._pause_s = interval_s * EARLY_SHARE
            return
        factor = GROWTH if self._changes == before else SHRINK
        self._pause_s = min(interval_s, max(interval_s * BUSY_SHARE, self._pause_s * factor))

    # Asking

    @on_timer("table")
    def _step(self, payload: object) -> None:
        """Ask a near peer whom it knows, for each row in turn that has several candidates a cell."""
        self._arm()
        if not self.state.is_ready:
            return
        self._steps += 1
        peer = self._whom_to_ask(self._steps % self._rows_worth_searching())
        if peer is not None:
            self._asked[peer.id] = self._asked.pop(peer.id, 0) + 1
            if len(self._asked) > ASKED_MAX:
                del self._asked[next(iter(self._asked))]
            self._ask(peer)

    def _rows_worth_searching(self) -> int:
        """How many rows have cells that nodes compete for, at least 1."""
        rows, candidates = 1, self.state.leaves.estimated_ring_size() / DIGIT_VALUES**2
        while candidates >= COMPETITION:
            rows, candidates = rows + 1, candidates / DIGIT_VALUES
        return rows

    def _whom_to_ask(self, row: int) -> PeerRef | None:
        """The nearest known peer that shares at least ``row`` digits; as if twice as far for each time it was asked."""
        state = self.state
        best: PeerRef | None = None
        best_s = float("inf")
        for peer in state.peers():
            distance_s = state.distance_s(peer.id)
            if distance_s is None or peer.id in state.suspects or shared_prefix_digits(state.own, peer.id) < row:
                continue
            distance_s *= 2.0 ** self._asked.get(peer.id, 0)
            if distance_s < best_s:
                best, best_s = peer, distance_s
        return best

    def _ask(self, peer: PeerRef) -> None:
        state, sent_at, is_timed = self.state, self._host.now(), self._host.is_linked(peer)

        def answered(reply: Message, source: PeerRef) -> None:
            if isinstance(reply, EntriesReply):
                place = reply.coordinates[0] if reply.coordinates else None
                state.answered(source, self._host.now() - sent_at, place, is_timed=is_timed)
                self.consider(reply.peers, reply.coordinates)

        self._host.request(
            peer,
            EntriesRequest(state.vivaldi.current),
            state.proximity.timeout_s(peer.id),
            answered,
            lambda: self._membership.suspect(peer, "entries_request"),
            Priority.BACKGROUND,
        )

    # Answering

    @handles(EntriesRequest)
    def entries(self, request: EntriesRequest, source: PeerRef) -> EntriesReply:
        """This node, and for each cell of the asker's table the few known peers that should be nearest to it."""
        self.placed(source, request.coordinate)
        state = self.state
        taken: dict[tuple[int, int], int] = {}
        chosen: list[tuple[PeerRef, Coordinate | None]] = [(self._host.peer, state.vivaldi.current)]
        for peer in self._by_distance_from(request.coordinate):
            row = shared_prefix_digits(source.id, peer.id)
            if peer.id == source.id or len(chosen) >= ENTRIES_MAX:
                continue
            cell = row, digit(peer.id, row)
            taken[cell] = taken.get(cell, 0) + 1
            if taken[cell] <= OFFERS_PER_CELL:
                chosen.append((peer, state.coordinates.get(peer.id)))
        return EntriesReply(tuple(peer for peer, _ in chosen), tuple(place for _, place in chosen))

    def _by_distance_from(self, place: Coordinate | None) -> list[PeerRef]:
        """Members and entries, nearest to that place first; in random order where nothing is known."""
        state, random = self.state, self._host.rng.random
        distances_s: dict[NodeId, float] = {}
        peers = {peer.id: peer for peer in state.peers() if peer.id not in state.suspects}
        for node_id in peers:
            known = state.coordinates.get(node_id)
            distances_s[node_id] = random() if known is None or place is None else place.rtt_s(known)
        return sorted(peers.values(), key=lambda peer: (distances_s[peer.id], peer.id))

    @handles(Ping)
    def _on_ping(self, message: Ping, source: PeerRef) -> Pong:
        self.placed(source, message.coordinate)
        return Pong(self.state.is_ready and not self.state.is_leaving, self.state.vivaldi.current)

    def placed(self, source: PeerRef, coordinate: Coordinate | None) -> None:
        """A peer in the ring said where it is, along with something else."""
        if coordinate is None:
            return
        self.state.note_coordinate(source.id, coordinate)
        self.state.table.keep_spare(source)
        if self.state.is_ready:
            self.consider((source,), (coordinate,), blind_max=0)

    # Screening

    def consider(
        self,
        peers: Iterable[PeerRef],
        coordinates: Iterable[Coordinate | None] = (),
        *,
        blind_max: int = BLIND_COMPARISONS_MAX,
    ) -> None:
        """Hearsay: ping those that would fill a cell, and the few that promise most against who holds it."""
        state = self.state
        rivals: list[tuple[float, PeerRef]] = []
        blind: list[PeerRef] = []
        for peer, coordinate in zip_longest(peers, coordinates):
            if peer is None:
                break  # more coordinates than peers
            if peer.id == state.own or state.is_failed(peer.id) or state.proximity.rtt_s(peer.id) is not None:
                continue
            incumbent = state.table.incumbent(peer.id)
            if incumbent is None:
                self._table_care.ping(peer)
            elif incumbent.id != peer.id:
                gain_s = self._gain_s(incumbent, coordinate)
                if gain_s is None:
                    blind.append(peer)
                elif gain_s > 0:
                    rivals.append((gain_s, peer))
        rivals.sort(key=lambda rival: rival[0], reverse=True)
        self._host.rng.shuffle(blind)
        for peer in (*(peer for _, peer in rivals[:COMPARISONS_MAX]), *blind[:blind_max]):
            self._table_care.ping(peer)

    def _gain_s(self, incumbent: PeerRef, coordinate: Coordinate | None) -> float | None:
        """How much nearer than the incumbent a rival should be, seconds; ``None`` while nothing can be predicted."""
        own, current_s = self.state.vivaldi.current, self.state.distance_s(incumbent.id)
        if coordinate is None or current_s is None or own.error > UNSURE_ERROR or coordinate.error > UNSURE_ERROR:
            return None
        predicted_s = own.rtt_s(coordinate)
        return current_s - predicted_s if predicted_s < current_s * REPLACE_RATIO else 0.0
