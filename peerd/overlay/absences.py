"""Keeps a node's expectations up to date: who went without goodbye, who is back, and who was forgotten.

A loss costs no message: each node that had the lost one in its leaf set notices it by itself. A new member of a leaf
set is told once, by the nodes that have it now, so knowledge of an absence outlives the nodes that saw it. A dismissal
by an operator is broadcast, signed by the node where it was given; a node that missed it is told by several members
when it names the dismissed node again.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from struct import Struct, pack
from typing import Final, TypeVar

from peerd.api import MissingMember, Part, handles, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId, format_id, id_to_bytes, ring_distance
from peerd.messages import Message, PeerRef, decode_body, encode_body
from peerd.overlay.broadcast import Broadcaster
from peerd.overlay.expectations import CLAIMS_PER_INFORMANT_MAX, DISMISSALS_MAX, INFORMANTS_MIN, Absent, Dismissed
from peerd.overlay.messages import Absence, Absences, Dismissal, Forget, ForgetOrder
from peerd.overlay.state import OverlayState
from peerd.telemetry.schema import MemberForgotten, MemberMissing, MemberReturned

SAVE_DELAY_S: Final = 1.0
"""A change waits for so many seconds before it is saved, so that several losses at once cost one write."""
SAVE_RETRY_S: Final = 60.0
"""Pause before a disk that refused is tried again."""
TOLD_LATELY_S: Final = 60.0
"""A new member that was told who is missing within this time is not told again when it announces itself."""
TOLD_LATELY_MAX: Final = 64
BACK_LATELY_S: Final = 60.0
"""Others may not have heard yet, for so long, that a node is back which was missing."""
BACK_LATELY_MAX: Final = 64
RETELL_EVERY: Final = 12
"""Once in so many exchanges with the left neighbour a random member is reminded, in case a message was lost."""
TOLD_MAX: Final = 32
"""A view of the ring names at most so many missing members."""

_ABSENT: Final = "absent"
_DISMISSED: Final = "dismissed"
_WALL_S: Final = Struct(">d")

M = TypeVar("M", bound=Message)
AHEAD_MAX_S: Final = 600.0
"""An order is not taken from a node whose clock is further ahead: it could be shown again for all that time."""

_ORDER_TAG: Final = b"forget 1"


class MemberExpectations(Part):
    """The one place that changes `OverlayState.expectations`."""

    def __init__(self, state: OverlayState, broadcaster: Broadcaster) -> None:
        self.state = state
        self._host = state.host
        self._known = state.expectations
        self._broadcaster = broadcaster
        self._remembered: tuple[PeerRef, ...] = ()
        self._saved = 0
        self._is_saving = False
        self._ticks = 0
        self._asks_next = False
        self._told_at: dict[NodeId, float] = {}
        self._back_at: dict[NodeId, float] = {}

    # Reading

    def missing(self) -> tuple[MissingMember, ...]:
        """Missing members of this node's neighbourhood, in id order; of the ring, where the leaf set covers it."""
        now = self._host.now()
        near = [absent for absent in self._known if self._is_near(absent.peer.id)]
        return tuple(
            MissingMember(absent.peer, max(0.0, now - absent.given_up_at))
            for absent in sorted(near, key=lambda absent: absent.peer.id)
            if now - absent.lost_at < self.state.config.expect_for
        )

    def told_missing(self) -> tuple[Absence, ...]:
        """`missing`, as it travels: the nearest `TOLD_MAX`."""
        nearest = sorted(self.missing(), key=lambda member: ring_distance(member.peer.id, self.state.own))
        return tuple(Absence(member.peer, member.age_s) for member in nearest[:TOLD_MAX])

    def _is_near(self, node_id: NodeId) -> bool:
        """Whether the node would be a member here if it lived."""
        leaves = self.state.leaves
        return leaves.is_gapless or not leaves.is_complete or leaves.would_accept(node_id)

    # First-hand

    def remember(self, peers: Iterable[PeerRef]) -> None:
        """Take over the peers that this node knew in the ring before its restart."""
        self._remembered = tuple(peers)

    def became_ready(self) -> None:
        """This node is in the ring: peers from before the restart that are not there are missing; tell the others."""
        now, leaves = self._host.now(), self.state.leaves
        remembered, self._remembered = self._remembered, ()
        for peer in remembered:
            is_gone = peer.id not in leaves and self._is_near(peer.id)
            if is_gone and self._known.lost(peer, now, now, is_dated=False):
                self._tell_missing(self._known.get(peer.id), "remembered")
        self._settle()
        for member in leaves:
            self._send(member)
        self._save_soon()

    def admitted(self, peer: PeerRef) -> None:
        """A node has become a member: it is not missing, and it is told who is."""
        absent = self._known.returned(peer.id)
        if absent is not None:
            _note(self._back_at, peer.id, self._host.now(), BACK_LATELY_MAX)
            silence_s = self._host.now() - absent.lost_at
            self._host.emit(MemberReturned(peer=format_id(peer.id), address=peer.address, silence_s=silence_s))
        self._send(peer)
        self._settle()
        self._save_soon()

    def announced(self, peer: PeerRef) -> None:
        """A node is ready. If it restarted before anybody missed it, `admitted` was not called, so it is told now."""
        told_at = self._told_at.pop(peer.id, float("-inf"))
        if peer.id in self.state.leaves and self._host.now() - told_at > TOLD_LATELY_S:
            self._send(peer)

    def lost(self, peer: PeerRef, last_heard: float, epoch: int) -> None:
        """A member was removed after silence."""
        if self._known.lost(peer, last_heard, self._host.now(), epoch=epoch):
            self._tell_missing(self._known.get(peer.id), "silent")
            self._asks_next = True
        self._save_soon()

    def left(self, peer: PeerRef, epoch: int) -> None:
        """A node said goodbye, and is in no table any more."""
        if peer.id not in self._known and not self._is_near(peer.id):
            return
        now = self._host.now()
        at = self.state.lease.earliest_writing(now)
        was_missing = peer.id in self._known or now - self._back_at.pop(peer.id, float("-inf")) < BACK_LATELY_S
        self._dismiss(peer.id, Dismissed(at, epoch), "left", peer.id)
        if was_missing:
            for member in self.state.leaves:
                self._host.send(member, Forget((Dismissal(peer.id, max(0.0, now - at), epoch),)))
        self._save_soon()

    def deny(self, denied: frozenset[NodeId]) -> None:
        """The cluster's deny list, which replaces the one before."""
        for absent in self._known.deny(denied):
            self._tell_forgotten(absent, "denied", None)
        self._save_soon()

    def tick(self) -> None:
        """Once an exchange: forget those whose time is over or whom others watch now; at times remind a neighbour."""
        now = self._host.now()
        for absent in self._known.expire(now):
            self._tell_forgotten(absent, "expired", None)
        self._known.drop_outside(self._is_near, now)
        self._ticks += 1
        # After a loss at once: perhaps the peer said goodbye, and could not reach this node. Who heard it answers so.
        is_due = self._asks_next or self._ticks % RETELL_EVERY == 0
        self._asks_next = False
        if is_due and len(self._known) and len(self.state.leaves):
            members = tuple(self.state.leaves)
            for member in self._host.rng.sample(
                members, min(INFORMANTS_MIN, len(members))
            ):  # one alone is not believed
                self._send(member)
        self._save_soon()

    # From others

    def _send(self, peer: PeerRef) -> None:
        """Tell a member who is missing: those nearest to it, as the others are none of its neighbourhood."""
        if not len(self._known):
            return
        now = self._host.now()
        nearest = sorted(self._known, key=lambda absent: ring_distance(absent.peer.id, peer.id))
        missing = tuple(
            Absence(absent.peer, max(0.0, now - absent.lost_at), absent.is_dated, absent.epoch)
            for absent in nearest[:CLAIMS_PER_INFORMANT_MAX]
            if absent.peer.id != peer.id
        )
        if missing:
            _note(self._told_at, peer.id, now, TOLD_LATELY_MAX)
            self._host.send(peer, Absences(missing))

    @handles(Absences)
    def _told(self, message: Absences, source: PeerRef) -> None:
        """A member says who is missing; answer with what it has missed."""
        now, leaves = self._host.now(), self.state.leaves
        written_at = self.state.lease.earliest_writing(now)
        stale = []
        for absence in message.missing[:CLAIMS_PER_INFORMANT_MAX]:
            peer, lost_at = absence.peer, written_at - absence.age_s
            if peer.id in leaves or peer.id == self.state.own:
                continue
            is_dated, epoch = absence.is_dated, absence.epoch
            is_news = self._known.claimed(peer, lost_at, source.id, now, is_dated=is_dated, epoch=epoch)
            dismissed = self._known.dismissal(peer.id)
            if not is_news and dismissed is not None:
                stale.append(Dismissal(peer.id, max(0.0, now - dismissed.at), dismissed.epoch))
        if stale:
            self._host.send(source, Forget(tuple(stale)))
        self._settle()
        self._save_soon()

    @handles(Forget)
    def dismissed(self, message: Forget, source: PeerRef) -> None:
        """A member says that nodes have left or were forgotten, which counts when another one says so, too."""
        written_at, leaves = self.state.lease.earliest_writing(self._host.now()), self.state.leaves
        for dismissal in message.dismissed:
            dismissed = Dismissed(written_at - dismissal.age_s, dismissal.epoch)
            absent = self._known.dismissal_claimed(dismissal.node, dismissed, source.id, leaves, len(leaves))
            if absent is not None:
                self._tell_forgotten(absent, "forgotten", source.id)
        self._save_soon()

    def ordered(self, order: ForgetOrder, source: PeerRef) -> None:
        """An operator at the source has given the order, if its proof says so. The clocks of both date it."""
        host = self._host
        age_s = host.wall_time() - order.said_at
        is_dated_well = -AHEAD_MAX_S <= age_s < self.state.config.expect_for
        if not is_dated_well or not host.verify(source.id, order_statement(order.nodes, order.said_at), order.proof):
            host.count("peerd_overlay_orders_refused_total")
            return
        for node_id in order.nodes:
            self._dismiss(node_id, Dismissed(host.now() - max(0.0, age_s)), "forgotten", source.id)
        self._save_soon()

    def _settle(self) -> None:
        """Act on hearsay, which counts only once this node knows its neighbours."""
        if self.state.is_ready:
            leaves = self.state.leaves
            for absent in self._known.settle(leaves, len(leaves), self._host.now()):
                self._tell_missing(absent, "told")

    # From the operator

    def forget(self, node_ids: Iterable[NodeId]) -> None:
        """Nobody is to expect these any more, here and in the whole ring."""
        wanted = tuple(dict.fromkeys(node_ids))
        now = self._host.now()
        for node_id in wanted:
            self._dismiss(node_id, Dismissed(now), "forgotten", None)
        said_at = self._host.wall_time()
        for start in range(0, len(wanted), DISMISSALS_MAX):
            nodes = wanted[start : start + DISMISSALS_MAX]
            proof = self._host.sign(order_statement(nodes, said_at))
            self._broadcaster.originate(ForgetOrder(nodes, said_at, proof))
        self._save_soon()

    def _dismiss(self, node_id: NodeId, dismissed: Dismissed, reason: str, told_by: NodeId | None) -> None:
        absent = self._known.dismiss(node_id, dismissed)
        if absent is not None:
            self._tell_forgotten(absent, reason, told_by)

    # Telling

    def _tell_missing(self, absent: Absent | None, evidence: str) -> None:
        if absent is not None:
            peer, silence_s = absent.peer, self._host.now() - absent.lost_at
            self._host.emit(
                MemberMissing(
                    peer=format_id(peer.id), address=peer.address, silence_s=max(0.0, silence_s), evidence=evidence
                )
            )

    def _tell_forgotten(self, absent: Absent, reason: str, told_by: NodeId | None) -> None:
        self._host.emit(
            MemberForgotten(
                peer=format_id(absent.peer.id),
                address=absent.peer.address,
                silence_s=max(0.0, self._host.now() - absent.lost_at),
                reason=reason,
                told_by=None if told_by is None else format_id(told_by),
            )
        )

    # Persistence. Ages are kept with the wall clock, the only one that goes on while the node is down.

    def restore(self) -> None:
        """What this node knew before its restart."""
        now = self._host.now()
        absent, down_s = self._load(_ABSENT, Absences)
        dismissed, also_down_s = self._load(_DISMISSED, Forget)
        self._known.restore(
            [Absent(each.peer, now - each.age_s - down_s, each.is_dated, each.epoch) for each in absent.missing]
            if absent
            else (),
            [(each.node, Dismissed(now - each.age_s - also_down_s, each.epoch)) for each in dismissed.dismissed]
            if dismissed
            else (),
            now,
        )
        self._saved = self._known.changes

    def _load(self, key: str, kind: type[M]) -> tuple[M | None, float]:
        """What was stored, and how long ago; nothing for a value that is damaged or of another version."""
        stored = self._host.store.get(key)
        if stored is None or len(stored) < _WALL_S.size:
            return None, 0.0
        try:
            message = decode_body(kind, stored[_WALL_S.size :])
        except ProtocolError:
            return None, 0.0
        return message, max(0.0, self._host.wall_time() - _WALL_S.unpack_from(stored)[0])

    def _save_soon(self) -> None:
        if self._known.changes != self._saved and not self._is_saving:
            self._is_saving = True
            self._host.set_timer("absences_save", SAVE_DELAY_S)

    @on_timer("absences_save")
    def save(self, payload: object = None) -> None:
        """Write what has changed; a disk that refuses is asked again, and meanwhile the neighbours remember."""
        self._is_saving = False
        if self._known.changes == self._saved:
            return
        now, wall = self._host.now(), _WALL_S.pack(self._host.wall_time())
        absent = Absences(
            tuple(Absence(each.peer, now - each.lost_at, each.is_dated, each.epoch) for each in self._known)
        )
        dismissed = Forget(
            tuple(
                Dismissal(node_id, max(0.0, now - each.at), each.epoch)
                for node_id, each in self._known.dismissals().items()
            )
        )
        try:
            self._host.store.put(_ABSENT, wall + encode_body(absent))
            self._host.store.put(_DISMISSED, wall + encode_body(dismissed))
        except Unavailable:
            self._is_saving = True
            self._host.set_timer("absences_save", SAVE_RETRY_S)
            return
        self._saved = self._known.changes


def _note(times: dict[NodeId, float], node: NodeId, now: float, most: int) -> None:
    """Remember when something happened to a node last, for so many nodes."""
    times.pop(node, None)
    times[node] = now
    while len(times) > most:
        del times[next(iter(times))]


def order_statement(nodes: Iterable[NodeId], said_at: float) -> bytes:
    """What the node signs at which an order to forget these nodes is given, at ``said_at`` by its clock.

    The order ends only absences that began before it was given. So whoever shows an old one again, after those nodes
    were back and are lost once more, achieves nothing.
    """
    return _ORDER_TAG + pack(">d", said_at) + sha256(b"".join(map(id_to_bytes, nodes))).digest()
