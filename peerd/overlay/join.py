"""Getting into the ring, and becoming ready.

A round dials every contact (configured addresses, peers remembered from before, peers met in an earlier round or that
have asked this node). The first that is in a ring starts the walk: each node on the way to this node's own id
contributes table rows and names the next hop, until one knows nobody closer. Its leaf set is where probing starts; when
probing names nobody new and the leaf set is complete, the node is ready. The newcomer drives every step itself (an
iterative join), so no other node holds state for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from peerd import limits
from peerd.api import Part, Priority, handles, on_timer
from peerd.ids import NodeId, closeness, digit, shared_prefix_digits
from peerd.messages import Message, PeerRef
from peerd.overlay.membership import Membership
from peerd.overlay.messages import AVOID_MAX, PATH_PEERS_MAX, Announce, JoinReply, JoinRequest, Ping, Pong
from peerd.overlay.near_search import NearSearch
from peerd.overlay.routing import join_step, known_peers
from peerd.overlay.state import OverlayState

FOUND_ROUNDS: Final = 3
"""Rounds after which a sole seed no longer waits for peers that it remembers."""
RECENT_MAX: Final = 64
"""Latest newcomers that a node offers to the next ones."""
OFFERS_PER_SLOT: Final = 1
CONTACTS_MAX: Final = 32
"""Contacts tried in one round; a longer list is sampled."""
ASKERS_MAX: Final = 8
"""Peers that have asked this node, and are tried in one round: they are no contacts of anybody's choice."""


class Phase(Enum):
    """Where a node is on its way into the ring."""

    IDLE = "idle"
    CONTACTING = "contacting"
    WALKING = "walking"
    PROBING = "probing"
    READY = "ready"


class Joiner(Part):
    """Brings one node into the ring until it is ready, and again when it has lost its place."""

    def __init__(
        self, state: OverlayState, membership: Membership, near_search: NearSearch, ready: Callable[[bool], None]
    ) -> None:
        self.state = state
        self.phase = Phase.IDLE
        self._host = state.host
        self._membership = membership
        self._near_search = near_search
        self._tell_ready = ready
        self._addresses: list[tuple[str, int]] = []
        self._is_seed = False
        self._known: dict[NodeId, PeerRef] = {}
        self._retry_s = state.config.join_retry_min
        self._round = 0
        self._waiting = 0
        self._outside: set[NodeId] = set()
        """Listed seeds that answered in this round, but are in no ring themselves; only compared by id."""
        self._outside_before: frozenset[NodeId] = frozenset()
        """The same of the round before."""
        self._asked_by: set[NodeId] = set()
        """Those of them that have asked this node, so they list it, too; only compared by id."""
        self._addresses_answered = 0
        self._own_addresses = 0
        self._fruitless_rounds = 0
        self._was_ready = False
        self._recent: deque[PeerRef] = deque(maxlen=RECENT_MAX)
        self._walked: set[NodeId] = set()
        self._avoid: list[NodeId] = []

    # Rounds

    def join(self, bootstrap: Iterable[tuple[str, int]], known: Iterable[PeerRef]) -> None:
        """Start; with nobody to ask but this node itself, found a ring."""
        own = self._host.peer
        given = list(dict.fromkeys((host, port) for host, port in bootstrap))
        self._addresses = [address for address in given if address != (own.host, own.port)]
        self._is_seed = not given or len(self._addresses) < len(given)
        self._known = {peer.id: peer for peer in known if peer.id != own.id}
        if self._addresses or self._known:
            self._start_round()
        else:
            self._become_ready()  # nobody to ask

    def reseed(self, bootstrap: Iterable[tuple[str, int]]) -> None:
        """Ask at these addresses from now on. A node that is not in the ring yet begins a new round with them at once.

        A list that became empty makes nobody a founder: only the start of a node does that.
        """
        own, given = (self._host.peer.host, self._host.peer.port), list(dict.fromkeys(bootstrap))
        self._addresses = [address for address in given if address != own]
        self._is_seed = own in given
        if self.phase is not Phase.READY and (self._addresses or self._known):
            self._retry_s = self.state.config.join_retry_min
            self._start_round()

    def _start_round(self) -> None:
        self.phase = Phase.CONTACTING
        self._round += 1
        self._outside_before = frozenset(self._outside)
        self._asked_by &= self._outside
        self._outside, self._addresses_answered, self._own_addresses = set(), 0, 0
        self._host.cancel_timer("join_retry")
        self._host.cancel_timer("join_round")
        self._host.set_timer("join_round", self.state.config.join_round)
        rng, round_number = self._host.rng, self._round
        # Also those that it has met since, or that have asked it: those that it was told of may be dead, or wait for
        # the ring themselves, and who asked while it was outside, too, may have got in by another way.
        met = {peer.id: peer for peer in self.state.known_peers()}
        addresses, known = list(self._addresses), list({**self._known, **met}.values())
        askers = [peer for peer in self._recent if peer.id not in self._known and peer.id not in met]
        if len(addresses) > CONTACTS_MAX:
            addresses = rng.sample(addresses, CONTACTS_MAX)
        if len(known) > CONTACTS_MAX:
            known = rng.sample(known, CONTACTS_MAX)
        if len(askers) > ASKERS_MAX:
            askers = rng.sample(askers, ASKERS_MAX)
        self._waiting = len(addresses) + len(known) + len(askers)
        for host, port in addresses:
            self._host.dial(host, port, lambda peer: self._dialled(round_number, peer))
        for peer in known:
            self._ask_contact(round_number, peer, is_address=False)
        for peer in askers:
            self._ask_back(round_number, peer)

    def _dialled(self, round_number: int, peer: PeerRef | None) -> None:
        if round_number != self._round or self.state.is_leaving:
            return
        if peer is None or peer.id == self.state.own:
            if peer is not None:
                self._is_seed = True
                self._own_addresses += 1
            self._contact_done(round_number)
            return
        self._ask_contact(round_number, peer, is_address=True)

    def _ask_contact(self, round_number: int, peer: PeerRef, *, is_address: bool) -> None:
        def answered(reply: Message, source: PeerRef) -> None:
            if round_number != self._round or self.phase is not Phase.CONTACTING or not isinstance(reply, JoinReply):
                self._contact_done(round_number)
                return
            if reply.is_ready:
                self._walk(source, reply)
                return
            if is_address:
                self._outside.add(source.id)
                self._addresses_answered += 1
            self._contact_done(round_number)

        timeout_s = self.state.config.ack_timeout_max
        self._host.request(
            peer, JoinRequest(), timeout_s, answered, lambda: self._contact_done(round_number), Priority.URGENT
        )

    def _ask_back(self, round_number: int, peer: PeerRef) -> None:
        """Contact a peer that has asked this node, if it is in the ring by now.

        One that is not gets no `JoinRequest`: it would take that for a sign that this node lists it (see `_may_found`).
        """

        def answered(reply: Message, source: PeerRef) -> None:
            is_current = round_number == self._round and self.phase is Phase.CONTACTING
            if is_current and isinstance(reply, Pong) and reply.is_ready:
                self._ask_contact(round_number, source, is_address=False)
            else:
                self._contact_done(round_number)

        timeout_s = self.state.config.ack_timeout_max
        self._host.request(peer, Ping(), timeout_s, answered, lambda: self._contact_done(round_number), Priority.URGENT)

    def _contact_done(self, round_number: int) -> None:
        """One contact did not lead to a ring; after the last one, found a ring or try again later."""
        if round_number != self._round or self.phase is not Phase.CONTACTING:
            return
        self._waiting -= 1
        if self._waiting > 0:
            return
        if self._may_found():
            self._become_ready()
        else:
            self._retry_later()

    def _may_found(self) -> bool:
        """Whether this node, which found no ring in this round, is the one to found it.

        Seeds that list each other start together: the one with the smallest id founds, but only when every listed
        address answered and none was in a ring; otherwise the ring may be where this node cannot reach it, and a second
        one would be born. A node is a seed when its list names it, or when all whom it lists have asked it: each lists
        the others only. A sole seed gives peers remembered from before a few rounds to turn up with their ring. A node
        that has lost its place never founds: its ring is elsewhere.
        """
        is_seed = self._is_seed or (bool(self._outside) and self._outside <= self._asked_by)
        if self._was_ready or not is_seed:
            return False
        elsewhere = len(self._addresses) - self._own_addresses
        if elsewhere > 0:
            first = min(self._outside, default=self.state.own)
            return self._addresses_answered == elsewhere and self.state.own < first
        self._fruitless_rounds += 1
        return not self._known or self._fruitless_rounds >= FOUND_ROUNDS

    def _retry_later(self, pause_s: float | None = None) -> None:
        """Pause, longer each time, or for ``pause_s`` from which it grows again; then begin another round."""
        config = self.state.config
        self._retry_s = self._retry_s if pause_s is None else pause_s
        self._host.cancel_timer("join_round")
        self._host.cancel_timer("join_retry")
        self._host.set_timer("join_retry", self._retry_s * self._host.rng.uniform(0.5, 1.5))
        self._retry_s = min(config.join_retry_max, 2 * self._retry_s)
        self.phase = Phase.IDLE

    @on_timer("join_retry")
    def _retry(self, payload: object) -> None:
        """The back-off pause is over."""
        self._start_round()

    @on_timer("join_round")
    def _round_over(self, payload: object) -> None:
        """A round took too long: whatever it waits for is lost."""
        if self.phase is not Phase.READY:
            self._round += 1
            self._retry_later()

    # The walk

    def _walk(self, source: PeerRef, reply: JoinReply) -> None:
        self.phase = Phase.WALKING
        self._walked = {source.id}
        self._avoid = []
        self._step(source, reply)

    def _step(self, source: PeerRef, reply: JoinReply) -> None:
        self._near_search.consider(reply.peers, blind_max=0)
        next_hop = reply.next_hop
        is_progress = (
            next_hop is not None
            and next_hop.id not in self._walked
            and next_hop.id != self.state.own
            and len(self._walked) < limits.HOPS_MAX
        )
        if next_hop is None or not is_progress:
            self._probe_from(source, reply)
            return
        self._walked.add(next_hop.id)
        self._ask_hop(next_hop, source, reply)

    def _ask_hop(self, hop: PeerRef, before: PeerRef, reply_before: JoinReply) -> None:
        round_number = self._round

        def answered(reply: Message, source: PeerRef) -> None:
            if round_number != self._round or self.phase is not Phase.WALKING:
                return
            if not isinstance(reply, JoinReply):
                lost()
            elif reply.is_ready:
                self._step(source, reply)
            else:
                self._probe_from(before, reply_before, hop)

        def lost() -> None:
            if round_number != self._round or self.phase is not Phase.WALKING:
                return
            if hop.id in self._avoid or len(self._avoid) >= AVOID_MAX or before.id == hop.id:
                self._probe_from(before, reply_before)
                return
            self._avoid.append(hop.id)
            self._ask_hop(before, before, reply_before)

        timeout_s = self.state.timeout_s(hop)
        self._host.request(hop, JoinRequest(tuple(self._avoid)), timeout_s, answered, lost, Priority.URGENT)

    def _probe_from(self, source: PeerRef, reply: JoinReply, *others: PeerRef) -> None:
        self.phase = Phase.PROBING
        nearest = sorted((*reply.smaller, *reply.larger, *others), key=lambda peer: closeness(self.state.own, peer.id))
        self._membership.exchange(source)
        self._membership.consider(nearest, source.id)

    @handles(JoinRequest)
    def _asked(self, request: JoinRequest, source: PeerRef) -> JoinReply:
        """One step of somebody else's join."""
        state = self.state
        leaves = state.leaves.snapshot()
        avoid = {source.id, *request.avoid}
        next_hop = join_step(source.id, state.leaves, state.table, avoid) if state.is_ready else None
        reply = JoinReply(
            state.is_ready and not state.is_leaving, next_hop, leaves.smaller, leaves.larger, self._offers(source.id)
        )
        if self.phase is not Phase.READY:
            self._asked_outside(source)
        self.note_newcomer(source)
        return reply

    def _asked_outside(self, source: PeerRef) -> None:
        """Another node looks for the ring, too. It may be the seed that this node waits for, or know one: look soon.

        Only for those that have not asked before, and `RECENT_MAX` at most, so that two who wait for a third one do not
        keep each other busy.
        """
        if source.id in self._outside or source.id in self._outside_before:
            self._asked_by.add(source.id)
        is_new = source not in self._recent and len(self._recent) < RECENT_MAX
        if is_new and self.phase is Phase.IDLE and self._addresses and not self.state.is_leaving:
            self._retry_later(self.state.config.join_retry_min)

    def note_newcomer(self, peer: PeerRef) -> None:
        """Somebody joins or has joined: worth offering to the next ones."""
        if peer not in self._recent:
            self._recent.append(peer)

    def _offers(self, newcomer: NodeId) -> tuple[PeerRef, ...]:
        """For each slot of the newcomer's table a few random candidates.

        Were it always this node's own entries, the first nodes of a ring would end up in everybody's table.
        """
        state = self.state
        pool = {peer.id: peer for peer in (*known_peers(state.leaves, state.table), *self._recent)}
        candidates = [peer for peer in pool.values() if peer.id not in (newcomer, state.own)]
        self._host.rng.shuffle(candidates)
        taken: dict[tuple[int, int], int] = {}
        offers: list[PeerRef] = []
        for peer in candidates:
            row = shared_prefix_digits(newcomer, peer.id)
            slot = (row, digit(peer.id, row))
            taken[slot] = taken.get(slot, 0) + 1
            if taken[slot] <= OFFERS_PER_SLOT and not state.is_failed(peer.id):
                offers.append(peer)
        return tuple(offers[:PATH_PEERS_MAX])

    # Ready

    def settled(self) -> None:
        """No probe is under way: ready, when the leaf set is complete; lost, when it is empty."""
        leaves = self.state.leaves
        if self.phase is not Phase.PROBING:
            return
        if len(leaves) and leaves.is_complete:
            self._become_ready()
        elif not len(leaves):
            self._retry_later()

    def check(self) -> None:
        """The leaf set changed: a node that cannot see its neighbours any more must not answer for keys."""
        leaves = self.state.leaves
        if self.phase is not Phase.READY or leaves.is_gapless:
            return
        if leaves.right_neighbour() is None or leaves.left_neighbour() is None:
            self._lose_place()

    def _lose_place(self) -> None:
        state = self.state
        state.is_ready = False
        self._tell_ready(False)
        for peer in state.known_peers():
            self._known.setdefault(peer.id, peer)
        self._known = dict(list(self._known.items())[-limits.KNOWN_PEERS_MAX :])
        self.phase = Phase.PROBING
        self._host.cancel_timer("join_round")
        self._host.set_timer("join_round", state.config.join_round)

    def _become_ready(self) -> None:
        state = self.state
        self.phase = Phase.READY
        self._was_ready = True
        self._round += 1
        self._retry_s = state.config.join_retry_min
        self._host.cancel_timer("join_round")
        self._host.cancel_timer("join_retry")
        state.is_ready = True
        self._near_search.became_ready()
        self._announce()
        self._tell_ready(True)

    def _announce(self) -> None:
        # no leaf set: every member has just seen it
        message = Announce((), (), self.state.vivaldi.current)
        for peer in dict.fromkeys(known_peers(self.state.leaves, self.state.table)):
            self._host.send(peer, message)
