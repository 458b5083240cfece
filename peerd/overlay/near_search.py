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
from operator import itemgetter
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
EARLY_SHARE: Final = 1 / 60
"""The pause between them, as a share of ``table_interval``."""
BUSY_SHARE: Final = 1 / 20
"""The shortest pause later on, as a share of ``table_interval``, which is the longest."""
SHRINK: Final = 0.7
"""Factor of the pause after an answer that named somebody worth measuring, and when an entry was lost."""
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

_DISTANCE: Final = itemgetter(0)


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
        self._is_worth_it = False
        self._entries = 0
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
        interval_s, before, self._entries = self.state.config.table_interval, self._entries, len(self.state.table)
        is_worth_it, self._is_worth_it = self._is_worth_it or self._entries < before, False
        if self._early_steps > 0:
            self._early_steps -= 1
            self._pause_s = interval_s * EARLY_SHARE
            return
        factor = SHRINK if is_worth_it else GROWTH
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
        state, asked = self.state, self._asked
        own, suspects = state.own, state.suspects
        best: PeerRef | None = None
        best_s = float("inf")
        for peer in state.peers():
            node_id = peer.id
            if node_id in suspects or (row and shared_prefix_digits(own, node_id) < row):
                continue
            distance_s = state.distance_s(node_id)
            if distance_s is None:
                continue
            if node_id in asked:
                distance_s *= 2.0 ** asked[node_id]
            if distance_s < best_s:
                best, best_s = peer, distance_s
        return best

    def _ask(self, peer: PeerRef) -> None:
        state, sent_at = self.state, self._host.now()

        def answered(reply: Message, source: PeerRef) -> None:
            if isinstance(reply, EntriesReply):
                place = reply.coordinates[0] if reply.coordinates else None
                state.answered(source, sent_at, place)
                self._is_worth_it |= self.consider(reply.peers, reply.coordinates)

        self._host.request(
            peer,
            EntriesRequest(state.vivaldi.current),
            state.timeout_s(peer),
            answered,
            lambda: self._membership.suspect(peer, "entries_request"),
            Priority.BACKGROUND,
        )

    # Answering

    @handles(EntriesRequest)
    def entries(self, request: EntriesRequest, source: PeerRef) -> EntriesReply:
        """This node, and for each cell of the asker's table the few known peers that should be nearest to it."""
        self.placed(source, request.coordinate)
        asker, taken = source.id, dict[tuple[int, int], int]()
        peers: list[PeerRef] = [self._host.peer]
        places: list[Coordinate | None] = [self.state.vivaldi.current]
        for _, node_id, peer, place in self._by_distance_from(request.coordinate):
            if node_id == asker:
                continue
            row = shared_prefix_digits(asker, node_id)
            cell = row, digit(node_id, row)
            offered = taken[cell] = taken.get(cell, 0) + 1
            if offered <= OFFERS_PER_CELL:
                peers.append(peer)
                places.append(place)
                if len(peers) >= ENTRIES_MAX:
                    break
        return EntriesReply(tuple(peers), tuple(places))

    def _by_distance_from(self, place: Coordinate | None) -> list[tuple[float, NodeId, PeerRef, Coordinate | None]]:
        """Members and entries with their distances, nearest to that place first; random where nothing is known."""
        state, random = self.state, self._host.rng.random
        coordinates, suspects = state.coordinates, state.suspects
        found: list[tuple[float, NodeId, PeerRef, Coordinate | None]] = []
        for node_id, peer in {peer.id: peer for peer in state.peers()}.items():
            if node_id not in suspects:
                known = coordinates.get(node_id)
                distance_s = random() if known is None or place is None else place.rtt_s(known)
                found.append((distance_s, node_id, peer, known))
        found.sort(key=_DISTANCE)
        return found

    @handles(Ping)
    def _on_ping(self, message: Ping, source: PeerRef) -> Pong:
        self.placed(source, message.coordinate)
        return Pong(self.state.is_ready and not self.state.is_leaving, self.state.vivaldi.current)

    def placed(self, source: PeerRef, coordinate: Coordinate | None) -> None:
        """A peer in the ring said where it is, along with something else."""
        if coordinate is None:
            return
        state = self.state
        state.note_coordinate(source.id, coordinate)
        state.table.keep_spare(source)
        if state.is_ready and not state.is_failed(source.id):
            incumbent = state.table.incumbent(source.id)
            if incumbent is None:
                self._table_care.fill(source)
            elif self._is_rival(source.id, incumbent) and self._gain_s(incumbent, coordinate):
                self._table_care.ping(source)

    # Screening

    def consider(
        self,
        peers: Iterable[PeerRef],
        coordinates: Iterable[Coordinate | None] = (),
        *,
        blind_max: int = BLIND_COMPARISONS_MAX,
    ) -> bool:
        """Hearsay: ping those that would fill a cell, and the few that promise most against who holds it.

        Returns whether there was anybody to ping.
        """
        state, is_worth_it = self.state, False
        rivals: list[tuple[float, PeerRef]] = []
        blind: list[PeerRef] = []
        for peer, coordinate in zip_longest(peers, coordinates):
            if peer is None:
                break  # more coordinates than peers
            if peer.id == state.own or state.is_failed(peer.id):
                continue
            incumbent = state.table.incumbent(peer.id)
            if incumbent is None:
                is_worth_it |= self._table_care.fill(peer)
            elif self._is_rival(peer.id, incumbent):
                gain_s = self._gain_s(incumbent, coordinate)
                if gain_s is None:
                    blind.append(peer)
                elif gain_s:
                    rivals.append((gain_s, peer))
        rivals.sort(key=_DISTANCE, reverse=True)
        if blind_max and blind:
            self._host.rng.shuffle(blind)
        chosen = [*(peer for _, peer in rivals[:COMPARISONS_MAX]), *blind[:blind_max]]
        for peer in chosen:
            self._table_care.ping(peer)
        return is_worth_it or bool(chosen)

    def _is_rival(self, node_id: NodeId, incumbent: PeerRef) -> bool:
        """Whether measuring this peer could give a cell that is taken another entry: not if it has been done.

        A cell that is empty is another matter: the peer may have been measured before it was ready to enter.
        """
        return node_id != incumbent.id and node_id not in self.state.proximity

    def _gain_s(self, incumbent: PeerRef, coordinate: Coordinate | None) -> float | None:
        """How much nearer than the incumbent a rival should be, seconds; 0 when it is not clearly nearer.

        ``None`` while nothing can be predicted.
        """
        own, current_s = self.state.vivaldi.current, self.state.distance_s(incumbent.id)
        if coordinate is None or current_s is None or own.error > UNSURE_ERROR or coordinate.error > UNSURE_ERROR:
            return None
        predicted_s = own.rtt_s(coordinate)
        return current_s - predicted_s if predicted_s < current_s * REPLACE_RATIO else 0.0
