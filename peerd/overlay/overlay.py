"""The overlay of one node: Pastry, with the consistency rules of MSPastry.

This module only ties the parts together: `leafset`, `table`, `proximity` and `routing` are pure; `membership`,
`maintenance`, `join`, `forwarding`, `broadcast` and `lookup` each own one job and act through the host.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, cast

from peerd.api import (
    Coordinate,
    HistorySize,
    Host,
    LeafSet,
    LookupResult,
    Metric,
    MissingMember,
    Plugin,
    Priority,
    handles,
    on_timer,
)
from peerd.errors import Bug
from peerd.ids import DIGIT_BITS, NodeId, closeness, shared_prefix_bits
from peerd.limits import DEDUPE_WINDOW
from peerd.messages import Message, PeerRef
from peerd.overlay.absences import MemberExpectations
from peerd.overlay.broadcast import Broadcaster
from peerd.overlay.config import OverlayConfig
from peerd.overlay.dedupe import SEEN_BYTES, Window
from peerd.overlay.forwarding import Forwarder
from peerd.overlay.join import Joiner
from peerd.overlay.lookup import Lookups
from peerd.overlay.maintenance import Maintenance
from peerd.overlay.membership import DENIED, Membership
from peerd.overlay.messages import OVERLAY_MESSAGES, Announce, ForgetOrder, Leave
from peerd.overlay.near_search import NearSearch
from peerd.overlay.ports import OverlayHost
from peerd.overlay.reunion import Reunion
from peerd.overlay.routing import known_peers
from peerd.overlay.state import OverlayState
from peerd.overlay.survey.survey import Surveyor
from peerd.overlay.table_care import TableCare


class Overlay(Plugin):
    """Makes the parts, and offers what they do to node and hosts. Its host is a `peerd.overlay.ports.OverlayHost`."""

    name: ClassVar[str] = "overlay"
    version: ClassVar[int] = 1
    messages = OVERLAY_MESSAGES
    metrics = (
        Metric(
            "peerd_overlay_orders_refused_total", "counter", "Orders to forget nodes that were forged or out of date."
        ),
        Metric("peerd_overlay_reroutes_total", "counter", "Hops that refused or did not answer."),
        Metric(
            "peerd_overlay_partition_suspected", "gauge", "1 while many peers that were lost at once are still missing."
        ),
        Metric("peerd_overlay_not_root_total", "counter", "Messages refused because the lease had lapsed."),
        Metric("peerd_overlay_lease_held", "gauge", "1 while this node may answer as root."),
        Metric("peerd_overlay_absences_total", "counter", "Times this node found that it had not been running."),
        Metric("peerd_overlay_routes_dropped_total", "counter", "Keys of routed messages given up here.", ("reason",)),
    )
    Config = OverlayConfig

    def __init__(self, config: OverlayConfig | None = None) -> None:
        super().__init__(config)
        self._config = config if config is not None else OverlayConfig()
        self._was_ready = False
        self._ring_order: tuple[LeafSet, int, dict[NodeId, PeerRef], list[NodeId]] | None = None

    def start(self, host: Host) -> None:
        """Build the parts; `join` starts them."""
        super().start(host)
        self._host = cast(OverlayHost, host)
        self._now = host.now
        window = Window()
        self.state = state = OverlayState(self._host, self._config)
        self.membership = Membership(state, self._drained)
        self.maintenance = Maintenance(state, self.membership)
        self.table_care = TableCare(state, self.membership)
        self.near_search = NearSearch(state, self.membership, self.table_care)
        self.joiner = Joiner(state, self.membership, self.near_search, self._ready_changed)
        self.reunion = Reunion(state, self.membership)
        self.lookups = Lookups(state, self._send_lookup)
        self.forwarder = Forwarder(state, self.membership, window, self.lookups.answer)
        self.broadcaster = Broadcaster(state, self.membership, window)
        self.absences = MemberExpectations(state, self.broadcaster)
        self.survey = Surveyor(state, self.absences.told_missing)
        self.add_parts(
            *(self.membership, self.maintenance, self.table_care, self.near_search, self.joiner, self.reunion),
            *(self.lookups, self.forwarder, self.broadcaster, self.absences, self.survey),
        )
        state.leaves_changed = self._leaves_changed
        state.member_admitted = self.absences.admitted
        state.member_lost = self.absences.lost
        state.member_left = self.absences.left
        self.absences.restore()

    def stop(self) -> None:
        """Write down what has to survive."""
        self.absences.save()

    def _drained(self) -> None:
        if len(self.state.leaves) and not self.state.leaves.is_complete:
            self.maintenance.leaf_set_changed()  # what was asked did not help: ask again in a while
        self.joiner.settled()

    def _ready_changed(self, is_ready: bool) -> None:
        if is_ready:
            self._was_ready = True
            self.absences.became_ready()
        self._host.upcalls.ready_changed(is_ready)

    def _leaves_changed(self) -> None:
        self.maintenance.leaf_set_changed()
        self.joiner.check()

    def _send_lookup(self, key: NodeId, sequence: int) -> None:
        self.forwarder.originate_lookup(key, sequence)

    # What the hosts of plugins, the drivers and the operators' surface use

    @property
    def is_ready(self) -> bool:
        """Whether this node has joined, its leaf set is complete, and it is not leaving."""
        return self.state.is_ready and not self.state.is_leaving

    @property
    def may_serve(self) -> bool:
        """Ready, and its lease is held: whatever key it is closest to, it may answer for."""
        return self.state.may_serve

    def serves(self, key: NodeId) -> bool:
        """Whether this node answers as root for ``key`` now: closest as far as it knows, lease held, nobody vouched
        for nor coming back."""
        state = self.state
        if not (state.is_root(key) and state.may_serve) or self.membership.is_returning_beyond(key):
            return False
        return state.vouches.owner_beyond(key, state.own, self._now()) is None

    def route(self, key: NodeId, message: Message) -> None:
        """To the root of ``key``, at most once."""
        self.forwarder.originate((key,), message)

    def multicast(self, keys: Iterable[NodeId], message: Message) -> None:
        """To the roots of many keys; a root of several keys gets the message once a key."""
        self.forwarder.originate(keys, message)

    def broadcast(self, message: Message) -> None:
        """To every live node once, this one included."""
        self.broadcaster.originate(message)

    def lookup(self, key: NodeId, on_result: Callable[[LookupResult], None], timeout_s: float) -> None:
        """Find the root of a key, with the hops on the way. Raises `Unavailable` when too many are under way."""
        self.lookups.start(key, on_result, timeout_s)

    def leaf_set(self) -> LeafSet:
        """The current leaf set."""
        return self.state.leaves.snapshot()

    def prefix_row(self, bits: int) -> tuple[PeerRef, ...]:
        """Known nodes that share exactly ``bits`` leading bits with this one, in id order."""
        own = self.state.own
        row = self.state.table.row(bits // DIGIT_BITS) if bits >= 0 else ()
        found = {peer.id: peer for peer in (*self.state.leaves, *row) if shared_prefix_bits(own, peer.id) == bits}
        return tuple(found[node_id] for node_id in sorted(found))

    def replica_set(self, key: NodeId, count: int) -> tuple[PeerRef, ...]:
        """The ``count`` known nodes closest to ``key``, closest first, possibly this one."""
        peers, ids = self._in_ring_order()
        place = bisect_left(ids, key)
        near = {ids[(place + step) % len(ids)] for step in range(-count, count)}
        nearest = sorted(near, key=lambda node_id: closeness(key, node_id))
        return tuple(peers[node_id] for node_id in nearest[:count])

    def _in_ring_order(self) -> tuple[dict[NodeId, PeerRef], list[NodeId]]:
        """All known nodes, this one too: by id, and their ids in order. Kept until one comes or goes: who hands
        over a hundred thousand records asks for the replica set of each.
        """
        state = self.state
        version = (state.leaves.snapshot(), state.table.changes)
        if self._ring_order is None or self._ring_order[0] is not version[0] or self._ring_order[1] != version[1]:
            peers = {peer.id: peer for peer in known_peers(state.leaves, state.table)}
            peers[state.own] = self._host.peer
            self._ring_order = (*version, peers, sorted(peers))
        return self._ring_order[2:]

    def estimated_ring_size(self) -> float:
        """Exact when the leaf set covers the ring, else from its density."""
        return self.state.leaves.estimated_ring_size()

    # Who belongs to the ring

    def expected_members(self) -> tuple[PeerRef, ...]:
        """This node, its leaf set, and who is missing, in id order."""
        found = {peer.id: peer for peer in (self._host.peer, *self.state.leaves)}
        for member in self.absences.missing():
            found.setdefault(member.peer.id, member.peer)
        return tuple(found[node_id] for node_id in sorted(found))

    def missing_members(self) -> tuple[MissingMember, ...]:
        """Members that went without goodbye, in id order."""
        return self.absences.missing()

    def estimated_members(self) -> float:
        """How many nodes the ring should have: exact when the leaf set covers it, else from this neighbourhood."""
        near = len(self.state.leaves) + 1
        return self.estimated_ring_size() * (near + len(self.absences.missing())) / near

    @property
    def is_minority(self) -> bool:
        """Whether more members are missing than there are: the smaller side of a partition, or of a disaster."""
        return len(self.absences.missing()) > len(self.state.leaves) + 1

    def outside_reason(self) -> str | None:
        """Why this node is in no ring, for people; ``None`` in the ring."""
        if self.state.own in self.state.expectations.denied:
            return "this node is on the deny list of its cluster: nobody talks to it"
        if self.state.is_leaving:
            return "this node has left the ring"
        if not self._was_ready:
            return "this node has not joined the ring of its cluster: nobody that it knows of has let it in yet"
        return None

    def forget(self, node_ids: Iterable[NodeId]) -> None:
        """An operator says that these nodes will not come back: the whole ring stops expecting them."""
        self.absences.forget(node_ids)

    def deny(self, denied: frozenset[NodeId]) -> None:
        """The cluster's deny list, whenever it changes: those nodes are members no more, and not expected."""
        self.absences.deny(denied)
        for peer in tuple(self.state.leaves):
            if peer.id in denied:
                self.membership.remove(peer, DENIED, is_told=False)

    def next_hop(self, key: NodeId) -> PeerRef | None:
        """What routing would do with a message to ``key`` now: its next hop, ``None`` to deliver it here.

        Raises `Unavailable` when it would be held.
        """
        return self.forwarder.next_hop(key)

    def next_hops(self, keys: Sequence[NodeId]) -> dict[NodeId, PeerRef | None]:
        """What routing would do with one message to all these keys; one that it would hold is left out."""
        return self.forwarder.next_hops(keys)

    def may_pass(self, peer: PeerRef) -> bool:
        """Whether a plugin may send this peer one more message of others: part of what routed ones may take."""
        return self.state.transit.may_pass(peer.id, 1, self._host.now())

    def rtt(self, peer: PeerRef) -> float | None:
        """Measured round trip, seconds, smoothed; ``None`` when it was never measured."""
        return self.state.proximity.rtt_s(peer.id)

    def estimated_rtt(self, peer: PeerRef) -> float | None:
        """Measured, else predicted from the coordinates, seconds."""
        return self.state.distance_s(peer.id)

    @property
    def coordinate(self) -> Coordinate:
        """This node's own place in the latency space."""
        return self.state.vivaldi.current

    def known_peers(self) -> tuple[PeerRef, ...]:
        """Live peers worth remembering across a restart."""
        return self.state.known_peers()

    def table_peers(self) -> tuple[PeerRef, ...]:
        """Entries of the routing table, row by row."""
        table = self.state.table
        return tuple(peer for row in table.rows() for peer in table.row(row))

    def join(self, bootstrap: Iterable[tuple[str, int]], known: Iterable[PeerRef]) -> None:
        """Join through any of these addresses or peers, for ever; with none but this node itself, found a ring."""
        addresses, known = list(bootstrap), tuple(known)
        self.absences.remember(known)
        self.maintenance.start()
        self.table_care.start()
        self.near_search.start()
        self.reunion.start(addresses)
        self.joiner.join(addresses, known)

    def reseed(self, bootstrap: Iterable[tuple[str, int]]) -> None:
        """Look for the ring, and for other rings of this cluster, at these addresses from now on."""
        if self.state.is_leaving:
            return
        addresses = list(bootstrap)
        self.reunion.start(addresses)
        self.joiner.reseed(addresses)

    def reconfigured(self) -> None:
        """The settings that reload are read where they are used."""
        self._config = self.state.config = cast(OverlayConfig, self.config)

    def leave(self) -> None:
        """Say goodbye to the leaf set and the table's entries; nothing is delivered here afterwards."""
        state = self.state
        if state.is_leaving:
            return
        state.is_leaving = True
        leaves = state.leaves.snapshot()
        message = Leave(leaves.smaller, leaves.larger, self._host.boot_epoch)
        told: set[NodeId] = set()
        for peer in known_peers(state.leaves, state.table):
            if peer.id not in told:
                told.add(peer.id)
                self._host.send(peer, message, Priority.URGENT)

    def peer_heard(self, peer: PeerRef) -> None:
        """Any traffic counts as a heartbeat, and revives a peer that was given up."""
        heard, node_id, now = self.state.heard, peer.id, self._now()
        if self.state.lease.note_event(now):
            self.maintenance.was_away()
        if node_id in heard:
            heard[node_id] = now
        elif node_id in self.state.departed:
            self.membership.revive(peer)

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        """The link is gone and could not be had back: probe at once, and do not route there meanwhile."""
        self.membership.down(peer)

    def histories(self) -> Sequence[HistorySize]:
        count = len(self.forwarder.window)
        return (HistorySize("messages seen", count, count * SEEN_BYTES, DEDUPE_WINDOW * SEEN_BYTES),)

    def validate(self) -> None:
        """Assert the invariants of tables and bookkeeping."""
        state = self.state
        state.leaves.validate()
        state.table.validate()
        state.expectations.validate()
        members = state.leaves.by_id.keys()
        if not members.isdisjoint(absent.peer.id for absent in state.expectations):
            raise Bug("a member is missing")
        known = members | {peer.id for peer in state.table}
        if known != state.heard.keys():
            raise Bug("the peers whose silence is watched are not those in the tables")
        if not state.suspects.keys() <= known:
            raise Bug("suspected peers that are in no table")
        if not state.epochs.keys() <= members:
            raise Bug("boot epochs of peers that are no members")
        sees_both_sides = state.leaves.left_neighbour() is not None and state.leaves.right_neighbour() is not None
        if state.is_ready and not state.leaves.is_gapless and not sees_both_sides:
            raise Bug("ready without a neighbour on each side")

    # Messages

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        """A `ForgetOrder`. Nothing else of the overlay's travels inside a plugin's envelope: it is ignored."""
        if isinstance(message, ForgetOrder):
            self.absences.ordered(message, source)

    @handles(Announce)
    def _on_announce(self, message: Announce, source: PeerRef) -> None:
        if source.id in self.state.departed:
            self.membership.revive(source)
        else:
            self.state.admit_entry(source)
        self.near_search.placed(source, message.coordinate)
        self.joiner.note_newcomer(source)
        self.absences.announced(source)
        self.membership.consider((source,))
        self.membership.consider((*message.smaller, *message.larger), source.id)

    @on_timer("exchange")
    def _exchange(self, payload: object) -> None:
        self.maintenance.exchange()
        self.absences.tick()
