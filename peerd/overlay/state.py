"""What the parts of the overlay share: tables, suspicions, and how changes of them are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from peerd import limits
from peerd.api import NeighbourChange
from peerd.ids import NodeId, clockwise_distance
from peerd.messages import PeerRef
from peerd.overlay.config import OverlayConfig
from peerd.overlay.coordinates import Coordinate, Vivaldi
from peerd.overlay.departed import DepartedPeers, MassLoss
from peerd.overlay.expectations import Expectations
from peerd.overlay.history import History
from peerd.overlay.leafset import Leaves
from peerd.overlay.lease import Lease
from peerd.overlay.messages import CANDIDATES_MAX, FAILED_MAX, LeafSetProbe, LeafSetReply
from peerd.overlay.outlook import Outlook
from peerd.overlay.ports import OverlayHost
from peerd.overlay.proximity import Proximity
from peerd.overlay.table import RoutingTable
from peerd.overlay.transit import TransitBudget
from peerd.overlay.tuning import FailureRate
from peerd.overlay.vouching import Vouches
from peerd.telemetry.schema import LeafSetChanged, PartitionSuspected

ABSENCE_SHARE: Final = 2 / 3
"""Without any event for this share of ``failure_timeout``, a node takes itself for the one that was away."""
ISOLATION_PEERS_MIN: Final = 3
"""With at least so many known peers, all silent at once, the fault is more likely this node's."""
VOUCH_EXCHANGES: Final = 3
"""A neighbour's vouch stands for so many times ``exchange_interval``."""
RETOLD_TIMEOUTS: Final = 2
"""A removal is told in exchanges for so many times ``failure_timeout``."""
COORDINATES_MAX: Final = 320
SAMPLES_AGAIN: Final = 2
"""Earlier measurements that each new one has the node's coordinate learn from again."""
SAMPLED_PEERS_MAX: Final = 64
"""Measured peers that it learns from again; above it a new one takes the place of one at random."""
OUTLOOK_S: Final = 10.0
"""A node computes its `outlook` anew at most once in so many seconds."""
PARTITION_PEERS_MIN: Final = 4
"""Fewer peers lost at once are no sign of a partition."""


class OverlayState:
    """Tables of one node, and their bookkeeping. Holds no algorithm."""

    def __init__(self, host: OverlayHost, config: OverlayConfig) -> None:
        self.host = host
        self.config = config
        self.own: NodeId = host.id
        self.leaves = Leaves(self.own)
        self.table = RoutingTable(self.own)
        self.proximity = Proximity(config.ack_timeout_min, config.ack_timeout_max, config.ack_timeout_initial)
        self.vivaldi = Vivaldi(host.rng)
        self.coordinates: dict[NodeId, Coordinate] = {}
        """Latest coordinates of the peers that told theirs, at most `COORDINATES_MAX`."""
        self._sampled: list[NodeId] = []
        self._outlook = Outlook.of(1.0, (), ())
        self._outlook_until = float("-inf")
        self.failures = FailureRate(host.now())
        self.history = History(host.wall_time)
        self.is_ready = False
        self.is_leaving = False
        self.heard: dict[NodeId, float] = {}
        """When each member or entry was last heard."""
        self.epochs: dict[NodeId, int] = {}
        """The boot epochs of members, as of the last exchange with each."""
        self.suspects: dict[NodeId, str] = {}
        """Peers that must not be routed through now, and the evidence."""
        self.departed = DepartedPeers(config.failed_memory, config.departed_memory, config.departed_interval)
        self.vouches = Vouches(self.departed, config.vouch_delay, VOUCH_EXCHANGES * config.exchange_interval)
        self.transit = TransitBudget()
        self.mass_loss = MassLoss(2 * config.failure_timeout, config.partition_share, PARTITION_PEERS_MIN)
        self.expectations = Expectations(self.own, config.expect_for)
        self.lease = Lease(self.leaves, self.heard, config.lease, ABSENCE_SHARE * config.failure_timeout)
        self.candidates: dict[NodeId, PeerRef] = {}
        """Peers being probed that are not members yet."""
        self.leaves_changed: Callable[[], None] = lambda: None
        self.member_admitted: Callable[[PeerRef], None] = lambda peer: None
        self.member_lost: Callable[[PeerRef, float, int], None] = lambda peer, last_heard, epoch: None
        self.member_left: Callable[[PeerRef, int], None] = lambda peer, epoch: None
        self._sequence = 0

    def next_sequence(self) -> int:
        """A number that no other message of this node in this boot has."""
        self._sequence += 1
        return self._sequence

    def is_failed(self, node_id: NodeId) -> bool:
        """Whether the peer was removed a short while ago: what others say of it may be older than that."""
        return node_id in self.departed and self.departed.is_disbelieved(node_id, self.host.now())

    @property
    def may_serve(self) -> bool:
        """Whether this node may answer as root now: in the ring, not leaving, and both sides confirmed in time."""
        return self.is_ready and not self.is_leaving and self.lease.is_held(self.host.now())

    def is_root(self, key: NodeId) -> bool:
        """Whether no member is closer to ``key`` than this node; says nothing about peers that it cannot reach."""
        return self.leaves.covers(key) and self.leaves.closest(key) is None

    @property
    def is_isolated(self) -> bool:
        """Whether everybody is silent at once: then this node is cut off, rather than all others dead."""
        heard = self.heard
        silence_s = self.config.failure_timeout
        return len(heard) >= ISOLATION_PEERS_MIN and self.host.now() - max(heard.values()) > silence_s

    def silence_s(self, node_id: NodeId) -> float:
        """Seconds since the peer was heard; infinite for one that never was."""
        return self.host.now() - self.heard.get(node_id, float("-inf"))

    def is_known(self, node_id: NodeId) -> bool:
        """Member of the leaf set or entry of the table."""
        return node_id in self.leaves or node_id in self.table

    def admit_leaf(self, peer: PeerRef, told: Sequence[PeerRef] = ()) -> bool:
        """A direct exchange with this peer happened: it may be a member. Returns whether it is a new one.

        ``told``: its leaf set, which is evidence of where it can be itself. For a member that it displaces the table
        must do. That may hold peers that died unnoticed, and so cost a member that was right: it is found again as
        soon as a neighbour names it.
        """
        if self.leaves.by_id.get(peer.id) == peer:
            self.heard[peer.id] = self.host.now()
            self._note_epoch(peer)
            return False  # nearly always
        added, evicted = self.leaves.add(
            peer,
            lambda node_id, is_larger: self._can_be(node_id, is_larger, told if node_id == peer.id else self.table),
        )
        if added or peer.id in self.heard:
            self.heard[peer.id] = self.host.now()
        if evicted is not None:
            self.forget_unless_known(evicted.id)
        if added:
            self._note_epoch(peer)
            self.member_admitted(peer)
            self.tell_change((peer,), () if evicted is None else (evicted,))
        return added

    def _note_epoch(self, peer: PeerRef) -> None:
        epoch = self.host.boot_epoch_of(peer)
        if epoch is not None:
            self.epochs[peer.id] = epoch

    def _can_be(self, node_id: NodeId, is_larger: bool, witnesses: Iterable[PeerRef]) -> bool:
        """Whether fewer nodes than fill a side are known between this node and that one on that side.

        Known are the members, and the witnesses that were not removed.
        """
        first, last = (self.own, node_id) if is_larger else (node_id, self.own)
        span = clockwise_distance(first, last)
        known = {peer.id for peer in self.leaves if peer.id not in self.suspects}
        known.update(peer.id for peer in witnesses if peer.id not in self.departed)
        return sum(0 < clockwise_distance(first, other) < span for other in known) < self.leaves.half

    def answered(self, peer: PeerRef, sent_at: float, coordinate: Coordinate | None = None) -> None:
        """A peer answered what this node sent then, or when the link was up; with its coordinate."""
        self.note_coordinate(peer.id, coordinate)
        linked_at = self.host.linked_at(peer)
        if linked_at is None:
            return  # the link has gone since, so nobody knows when the question left
        rtt_s = self.host.now() - max(sent_at, linked_at)
        is_first = self.proximity.observe(peer.id, rtt_s)
        if coordinate is not None:
            self.vivaldi.observe(rtt_s, coordinate)
            self._observe_again(peer.id if is_first else None)

    def _observe_again(self, newcomer: NodeId | None) -> None:
        """Learn once more from some measurements of before. ``newcomer``: who was measured for the first time.

        Most samples are of near peers, which says little of where a node is among the others; and a newcomer has few.
        """
        sampled, random = self._sampled, self.host.rng.random
        if newcomer is not None and len(sampled) < SAMPLED_PEERS_MAX:
            sampled.append(newcomer)
        elif newcomer is not None:
            sampled[int(random() * SAMPLED_PEERS_MAX)] = newcomer
        for _ in range(SAMPLES_AGAIN if sampled else 0):
            node_id = sampled[int(random() * len(sampled))]
            rtt_s, place = self.proximity.rtt_s(node_id), self.coordinates.get(node_id)
            if rtt_s is not None and place is not None:
                self.vivaldi.observe(rtt_s, place)

    def note_coordinate(self, node_id: NodeId, coordinate: Coordinate | None) -> None:
        """Keep what a peer itself says of its place; of the peer that was told longest ago nothing is kept."""
        if coordinate is not None:
            self.coordinates.pop(node_id, None)
            if len(self.coordinates) >= COORDINATES_MAX:
                del self.coordinates[next(iter(self.coordinates))]
            self.coordinates[node_id] = coordinate

    def timeout_s(self, peer: PeerRef, attempt: int = 0) -> float:
        """How long to wait for a peer's answer to a message that is sent now."""
        predicted_s = None if peer.id in self.proximity else self.distance_s(peer.id)
        return self.proximity.timeout_s(peer.id, attempt, is_linked=self.host.is_linked(peer), predicted_s=predicted_s)

    def distance_s(self, node_id: NodeId) -> float | None:
        """Measured round trip to a peer, else the predicted one; ``None`` when nothing is known."""
        rtt_s = self.proximity.rtt_s(node_id)
        if rtt_s is not None:
            return rtt_s
        coordinate = self.coordinates.get(node_id)
        return None if coordinate is None else self.vivaldi.current.rtt_s(coordinate)

    def way_s(self, key: NodeId, peer: PeerRef) -> float:
        """How long a key should take to its root by way of a peer; infinite by way of a spare without a link."""
        distance_s = self.distance_s(peer.id)
        if distance_s is None or (peer.id not in self.heard and not self.host.is_linked(peer)):
            return float("inf")
        return distance_s + self.outlook().rest_s(key, peer.id)

    def outlook(self) -> Outlook:
        """Estimates for paths through the ring, at most `OUTLOOK_S` old."""
        now = self.host.now()
        if now >= self._outlook_until:
            self._outlook_until = now + OUTLOOK_S
            rows = (self._distances_s(self.table.row(row)) for row in self.table.rows())
            self._outlook = Outlook.of(self.leaves.estimated_ring_size(), self._distances_s(self.leaves), rows)
        return self._outlook

    def _distances_s(self, peers: Iterable[PeerRef]) -> list[float]:
        return [distance_s for peer in peers if (distance_s := self.distance_s(peer.id)) is not None]

    def admit_entry(self, peer: PeerRef) -> bool:
        """This ready peer answered directly: it may be an entry of the table. Returns whether it is a new one."""
        added, replaced = self.table.consider(peer, self.distance_s)
        if added:
            self.heard[peer.id] = self.host.now()
        if replaced is not None:
            self.forget_unless_known(replaced.id)
        return added

    def note_departed(self, peer: PeerRef, *, was_known: bool, was_member: bool, has_left: bool) -> None:
        """A peer was removed: disbelieve others about it for a while, and look for it again later if it was known."""
        now = self.host.now()
        self.departed.add(peer, now, was_member=was_member, has_left=has_left, was_known=was_known)
        if was_known and not has_left and self.mass_loss.lost(peer.id, now, len(self.heard)):
            self.tell_partition()

    def tell_partition(self) -> None:
        """A partition is suspected, or is not any more."""
        suspected, missing = self.mass_loss.is_suspected, self.mass_loss.missing
        self.host.gauge("peerd_overlay_partition_suspected", float(suspected))
        self.host.emit(PartitionSuspected(suspected=suspected, missing=missing, known=len(self.heard)))

    def forget_unless_known(self, node_id: NodeId) -> None:
        """Drop the bookkeeping of a peer that is in no table any more."""
        if node_id not in self.leaves:
            self.epochs.pop(node_id, None)
        if not self.is_known(node_id):
            self.heard.pop(node_id, None)
            self.suspects.pop(node_id, None)

    def tell_change(self, added: tuple[PeerRef, ...], removed: tuple[PeerRef, ...]) -> None:
        """The leaf set changed: telemetry, the plugins, and whoever keeps it in order."""
        leaves = self.leaves
        self.host.emit(
            LeafSetChanged(added=len(added), removed=len(removed), members=len(leaves), complete=leaves.is_complete)
        )
        self.host.upcalls.neighbours_changed(NeighbourChange(added, removed))
        self.leaves_changed()

    def recently_failed(self) -> tuple[NodeId, ...]:
        """The latest removals, for peers to check: some have missed the notice."""
        return self.departed.recent(self.host.now(), RETOLD_TIMEOUTS * self.config.failure_timeout, FAILED_MAX)

    def probe_message(self) -> LeafSetProbe:
        """This node's leaf set as a question."""
        smaller, larger, candidates, failed = self._fields()
        return LeafSetProbe(self.is_ready, smaller, larger, candidates, failed)

    def reply_message(self) -> LeafSetReply:
        """This node's leaf set as an answer."""
        smaller, larger, candidates, failed = self._fields()
        return LeafSetReply(self.is_ready, smaller, larger, candidates, failed, self.vivaldi.current)

    def _fields(self) -> tuple[tuple[PeerRef, ...], tuple[PeerRef, ...], tuple[PeerRef, ...], tuple[NodeId, ...]]:
        leaves = self.leaves.snapshot()
        candidates = tuple(self.candidates.values())[:CANDIDATES_MAX] if self.candidates else ()
        return leaves.smaller, leaves.larger, candidates, self.recently_failed() if len(self.departed) else ()

    def peers(self) -> Iterator[PeerRef]:
        """Members and entries; a peer that is both comes twice."""
        yield from self.leaves
        yield from self.table

    def known_peers(self) -> tuple[PeerRef, ...]:
        """Distinct members and entries, leaf set first, at most `limits.KNOWN_PEERS_MAX`."""
        found = {peer.id: peer for peer in self.leaves}
        for peer in self.table:
            found.setdefault(peer.id, peer)
        return tuple(found.values())[: limits.KNOWN_PEERS_MAX]
