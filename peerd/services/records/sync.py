"""Decides when a node compares its records with which peer, and hands over those outside its range.

After a change of neighbours: with all that are near, at once. At rest: with one partner at a time, ever more rarely
(`peerd.services.records.schedule`). Records outside the node's range are offered to their replica set, and dropped only
when all of it holds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from peerd.api import Part, RecordRole, RecordVersion, on_timer
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from peerd.services.records.exchange import Exchange
from peerd.services.records.record import Record, RecordId
from peerd.services.records.state import RecordState
from peerd.services.records.view import Arc
from peerd.telemetry.schema import RecordsHandedOver, RecordsRepaired

HANDOVER_RECORDS: Final = 1024
"""Records of a hand-over that are planned, moved and dropped together: a few milliseconds of the loop at a time."""
SILENCES_MAX: Final = 4
"""A neighbour that answers the overlay but leaves so many comparisons in a row without an end (some 7 s each), and has
given nothing in them, counts as one that has nothing to tell: one member must not keep its neighbours from ever
catching up. Who is dead is found out before that."""
SILENT_REMEMBERED_MAX: Final = 64


@dataclass(slots=True)
class Handover:
    """Records on their way to others, one part after another: which nodes should hold which, and which do."""

    rest: deque[RecordId]
    """What comes after this part."""
    copies: int
    finished: Callable[[Handover], None]
    """Called at the end of each part."""
    started_at: float = 0.0
    missing: dict[RecordId, dict[NodeId, None]] = field(default_factory=dict)
    versions: dict[RecordId, RecordVersion] = field(default_factory=dict)
    peers: deque[tuple[PeerRef, list[Record]]] = field(default_factory=deque)
    failed: int = 0
    """How many records, of all parts, are still missing on a node that should hold them."""

    def confirm(self, peer: PeerRef, confirmed: dict[RecordId, RecordVersion]) -> None:
        """Note that the peer holds these versions."""
        for identity, version in confirmed.items():
            if self.versions.get(identity) == version:
                self.missing[identity].pop(peer.id, None)

    def held(self) -> list[RecordId]:
        """The records that every node holds which should hold them."""
        return [identity for identity, missing in self.missing.items() if not missing]


class Synchroniser(Part):
    """One `Exchange` at a time: comparisons first, then hand-over."""

    def __init__(self, state: RecordState) -> None:
        self._state = state
        self._host = state.host
        self._compare: dict[NodeId, PeerRef] = {}
        self._exchange: Exchange | None = None
        self._handover: Handover | None = None
        self._wants_handover = False
        self._silent: dict[NodeId, None] = {}
        self._silences: dict[NodeId, int] = {}
        """How many comparisons in a row a neighbour has left without an end, and given nothing."""
        self._is_settling = False

    # When

    def view_changed(self) -> None:
        """The neighbourhood has changed: catch up soon."""
        self._wants_handover = True
        self._settle(self._state.config.settle)

    def asked_early(self, delay_s: float) -> None:
        """A plugin has asked whether this node has caught up, and that is not sure: tell the plugins when it has."""
        self._state.owes_word = True
        self._settle(delay_s)

    def _settle(self, delay_s: float) -> None:
        if not self._is_settling:
            self._is_settling = True
            self._host.set_timer("settle", delay_s)

    @on_timer("settle")
    def _settled(self, payload: object) -> None:
        self._is_settling = False
        self._next()

    def routine(self) -> None:
        """Once a ``sync_interval``: compare with the partner whose turn it is, and try what is left of a hand-over."""
        state, view = self._state, self._state.refresh()
        if state.lacks_records:
            state.catch_up_again()  # there may be room now
        if len(state.table):
            sharing = [peer for peer in view.partners if any(map(state.table.holds_any, view.shared_arcs(peer.id)))]
            peer = state.schedule.next(sharing, view.asks, self._host.now(), state.table.writes)
            if peer is not None:
                self._compare[peer.id] = peer
            self._wants_handover = True
        self._next()

    @on_timer("exchange")
    def _step(self, payload: object) -> None:
        if self._exchange is not None:
            self._exchange.step()

    def _next(self) -> None:
        if self._exchange is not None:
            return
        self._state.refresh()
        if not self._state.is_settled:
            self._settle(self._state.config.push_retry)
            return
        if self._state.sources():
            self._catch_up()
            return
        self._silent.clear()
        self._state.is_established = True
        self._state.tell_settled()
        if self._compare:
            self._compare_with(self._compare.pop(next(iter(self._compare))), ())
        elif self._handover is not None:
            self._hand_over()
        elif self._wants_handover:
            self._wants_handover = False
            self._plan_strays()

    # Comparing

    def _catch_up(self) -> None:
        """Compare with the next neighbour that is missing; if it was silent, with that of the other side first."""
        sources = self._state.sources()
        untried = [peer for peer in sources if peer.id not in self._silent]
        if untried:
            self._compare_with(untried[0], () if self._state.view.is_whole else (self._state.view.root_arc,))
        else:
            self._silent.clear()
            self._settle(self._state.config.push_retry)

    def _compare_with(self, peer: PeerRef, pull: tuple[Arc, ...]) -> None:
        view, writes = self._state.view, self._state.table.writes

        def finished(exchange: Exchange, is_complete: bool) -> None:
            self._end(exchange)
            if is_complete:
                self._silences.pop(peer.id, None)
                self._state.schedule.compared(peer.id, self._host.now(), writes, is_equal=exchange.is_equal)
            else:
                self._silent[peer.id] = None
            is_given_up = not is_complete and not exchange.received and self._is_given_up(peer)
            is_same_view = self._state.refresh().near_ids == view.near_ids
            if (is_complete or is_given_up) and (pull or view.is_whole) and is_same_view:
                self._state.pulled[peer.id] = is_complete and exchange.is_established
            self._next()

        exchange = self._begin(peer, finished)
        exchange.compare(view.shared_arcs(peer.id), pull)
        exchange.step()

    def _is_given_up(self, peer: PeerRef) -> bool:
        """Count a comparison that led to nothing; whether there were too many of them."""
        count = self._silences.pop(peer.id, 0) + 1
        self._silences[peer.id] = min(count, SILENCES_MAX)
        if len(self._silences) > SILENT_REMEMBERED_MAX:
            del self._silences[next(iter(self._silences))]
        if count == SILENCES_MAX:
            self._host.count("peerd_records_silent_neighbours_total")
        return count >= SILENCES_MAX

    def _begin(self, peer: PeerRef, finished: Callable[[Exchange, bool], None]) -> Exchange:
        self._exchange = Exchange(self._state, peer, finished)
        return self._exchange

    def _end(self, exchange: Exchange) -> None:
        self._exchange = None
        if exchange.sent or exchange.received:
            self._host.count("peerd_records_repaired_total", exchange.sent, direction="sent")
            self._host.count("peerd_records_repaired_total", exchange.received, direction="received")
            duration_s = self._host.now() - exchange.started_at
            self._host.emit(
                RecordsRepaired(
                    peer=format_id(exchange.peer.id),
                    sent=exchange.sent,
                    received=exchange.received,
                    duration_s=duration_s,
                )
            )

    # Handing over

    def _plan_strays(self) -> None:
        view = self._state.view
        strays = self._state.table.within(view.strange_arc) if view.strange_arc is not None else ()
        if strays:
            self._begin_handover(strays, view.copies, self._drop_held)

    def drain(self, done: Callable[[int], None]) -> None:
        """Give everything to those who hold it when this node has gone; ``done`` gets the number of records that not
        all of them have taken. A hand-over under way is given up for it.
        """

        def finished(handover: Handover) -> None:
            self._report(handover, handover.held())
            if not handover.rest:
                done(handover.failed)

        self._begin_handover(self._state.table, self._state.config.replicas, finished)

    def _begin_handover(self, records: Iterable[Record], copies: int, finished: Callable[[Handover], None]) -> None:
        self._handover = Handover(deque(record.identity for record in records), copies, finished)
        self._plan(self._handover)
        if self._exchange is None:
            self._hand_over()

    def _plan(self, handover: Handover) -> None:
        """Plan the next part: which records go to whom."""
        handover.started_at = self._host.now()
        handover.missing, handover.versions = {}, {}
        by_peer: dict[NodeId, tuple[PeerRef, list[Record]]] = {}
        for _ in range(min(HANDOVER_RECORDS, len(handover.rest))):
            record = self._state.table.get(handover.rest.popleft())
            if record is None:
                continue
            nearest = self._host.replica_set(record.key, handover.copies + 1)
            others = [peer for peer in nearest if peer.id != self._host.id][: handover.copies]
            handover.missing[record.identity] = dict.fromkeys(peer.id for peer in others)
            handover.versions[record.identity] = record.version
            for peer in others:
                by_peer.setdefault(peer.id, (peer, []))[1].append(record)
        handover.peers = deque(by_peer[node_id] for node_id in sorted(by_peer))

    def _hand_over(self) -> None:
        handover = self._handover
        if handover is None:
            return
        while not handover.peers:
            handover.failed += sum(map(bool, handover.missing.values()))
            if not handover.rest:
                self._handover = None
                handover.finished(handover)
                self._next()
                return
            handover.finished(handover)
            self._plan(handover)
        peer, records = handover.peers.popleft()

        def finished(exchange: Exchange, is_complete: bool) -> None:
            self._exchange = None
            handover.confirm(peer, exchange.confirmed)
            self._next()

        exchange = self._begin(peer, finished)
        exchange.offer(records)
        exchange.step()

    def _drop_held(self, handover: Handover) -> None:
        """Let go of strays that have arrived, unless this node is to hold them again or has a newer version."""
        view, table = self._state.refresh(), self._state.table
        gone: list[RecordId] = []
        for identity in handover.held():
            held = table.get(identity)
            is_ours = not self._state.is_settled or view.role(identity.key) is not RecordRole.NONE
            if held is not None and held.version == handover.versions[identity] and not is_ours:
                gone.append(identity)
        self._report(handover, gone)
        for identity in gone:
            table.drop(identity)

    def _report(self, handover: Handover, identities: list[RecordId]) -> None:
        if not identities:
            return
        records = [self._state.table.get(identity) for identity in identities]
        value_bytes = sum(len(record.value or b"") for record in records if record is not None)
        self._host.count("peerd_records_handed_over_total", len(identities))
        duration_s = self._host.now() - handover.started_at
        self._host.emit(RecordsHandedOver(records=len(identities), value_bytes=value_bytes, duration_s=duration_s))
