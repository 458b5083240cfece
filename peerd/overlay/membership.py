"""Who is in the leaf set: probing, failure, repair.

After MSPastry (Castro, Costa and Rowstron 2004, section 3): nobody enters the leaf set without a direct exchange, a
probe carries the sender's leaf set both ways, and probing goes on until it names nobody new. A suspected peer is
probed before it is removed; who hears of a removal from others probes for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from peerd.api import Part, Priority, handles, on_timer
from peerd.ids import NodeId, clockwise_distance, closeness, format_id
from peerd.messages import Message, PeerRef
from peerd.overlay.hearsay import PASSED_ON_WEIGHT, Hearsay
from peerd.overlay.messages import FailureNotice, Heartbeat, LeafSetProbe, LeafSetReply, Leave, Ping, Pong
from peerd.overlay.state import OverlayState
from peerd.telemetry.schema import PeerFailed, PeerSuspected

PROBES_MAX: Final = 128
LEFT: Final = "left"
"""Evidence: the peer itself said that it leaves."""
DENIED: Final = "denied"
"""Evidence: the peer is on the cluster's deny list."""
SENT_AWAY: Final = (LEFT, DENIED)
"""Evidence after which the peer is not waited for and not looked for."""
NO_LINK: Final = "peer_down"
"""Evidence: the driver could not get a link to the peer. It takes no probe to find that out."""
BACK_AT_ONCE: Final = 3
"""When a removed peer has come back, so many others are looked for at once."""
NO_HEARTBEAT: Final = "no_heartbeat"
"""Evidence: the heartbeats of the right neighbour have stopped."""
SUSPICION_SHARE: Final = 0.5
"""A silent neighbour is suspected after this share of ``failure_timeout``, and removed after the whole; anybody else is
removed for silence alone only when probes went unanswered for this share."""
UNHEEDED_TIMEOUTS: Final = 2
"""A peer that is heard, but answers no probe for so many times ``failure_timeout``, is removed."""
REPRIEVES_MAX: Final = 4
"""How often a peer that is heard, but does not answer a probe, is given another chance."""
ISOLATION_TIMEOUTS: Final = 4
"""After so many times ``failure_timeout`` without hearing anybody, a node believes that all others are gone."""

_PING: Final = Ping()


class ProbeKind(Enum):
    """What a probe is for, and so what follows from silence."""

    EXCHANGE = "exchange"
    """To swap leaf sets. Who is silent is removed, or forgotten as a candidate."""
    CHECK = "check"
    """Only whether the peer is alive; leaf sets are not compared. Who is silent is removed."""
    SEARCH = "search"
    """For a peer that was removed. Nothing follows from silence."""


class Accusation(IntEnum):
    """What other members say of a peer that is probed. Any of it ends the patience with one that is merely silent."""

    NONE = 0
    CONFIRMED = 1
    """One has removed it meanwhile."""
    REPORTED = 2
    """One has removed it, and that is why it is probed."""


@dataclass(slots=True)
class Probe:
    """An exchange, a check or a search, under way with one peer."""

    peer: PeerRef
    kind: ProbeKind
    evidence: str
    started_at: float
    accusation: Accusation = Accusation.NONE
    attempts: int = 0
    reprieves: int = 0
    is_down: bool = False
    """The driver could not get a link: this is more than silence."""
    is_announced: bool = False
    """A member that has removed it was its neighbour, and has told the rest of the leaf set."""
    is_return: bool = False
    """The removed peer has been heard since."""
    is_short: bool = False
    """The next message is a mere ping: most peers in doubt are dead, and a leaf set is long."""
    sent_at: float = 0.0
    sent_before: float = 0.0
    """When the message before the last was sent."""
    late: int = 0
    """How many silences in a row the peer was heard in, or since the message before: it may answer, and too late."""
    informant: NodeId | None = None
    """Who named the peer, when that is all that this node knows of it."""
    weight: float = 0.0
    """How much it counts against the informant when nobody answers."""


class Membership(Part):
    """Keeps the leaf set right. ``drained`` is called whenever no exchange is under way any more."""

    def __init__(self, state: OverlayState, drained: Callable[[], None]) -> None:
        self.state = state
        self._host = state.host
        self._drained = drained
        self._probes: dict[NodeId, Probe] = {}
        self._hearsay = Hearsay()
        self._is_unsure = False
        self._withheld: dict[NodeId, tuple[PeerRef, str]] = {}
        self._isolated_since = 0.0
        self._verified: tuple[PeerRef | None, PeerRef | None] = (None, None)

    # Learning of peers

    def consider(self, peers: Iterable[PeerRef], informant: NodeId | None = None, weight: float = 1.0) -> None:
        """Probe those that belong into the leaf set, nearest ones only.

        ``informant``: who named them, and has a budget for it; ``None``: they have spoken to this node themselves.
        """
        state = self.state
        leaves, own, probes = state.leaves, state.own, self._probes
        members, departed = leaves.by_id, state.departed
        unknown: list[PeerRef] = []
        for peer in peers:
            node_id = peer.id
            if node_id in members or node_id == own or node_id in probes:
                continue  # true for nearly all peers that messages name
            if len(departed) and state.is_failed(node_id):
                continue
            if leaves.would_accept(peer.id):
                unknown.append(peer)
            else:
                leaves.open_gap()
        if not unknown:
            return
        wanted = leaves.copy()
        for peer in (*(peer for peer in state.candidates.values() if not self._is_doubtful(peer.id)), *unknown):
            wanted.add(peer)
        for peer in unknown:
            if peer.id not in wanted or peer.id in self._probes:
                continue
            if informant is None:
                self.exchange(peer)
            elif self._hearsay.may_ask(informant, self._host.now()):
                self._ask_into(peer, informant, weight)

    def _is_doubtful(self, node_id: NodeId) -> bool:
        """Whether a peer that is being probed was named by somebody whose names have proved false."""
        probe = self._probes.get(node_id)
        return probe is not None and probe.informant is not None and self._hearsay.is_doubted(probe.informant)

    def _ask_into(self, peer: PeerRef, informant: NodeId, weight: float) -> None:
        """Probe a peer that is known from hearsay only."""
        self.exchange(peer)
        probe = self._probes.get(peer.id)
        if probe is not None:
            departed = self.state.departed.get(peer.id)
            probe.informant = informant
            probe.weight = weight if departed is None or not departed.was_member else 0.0  # that one did exist
            self._hearsay.began(informant, self._host.now())
            if weight < 1.0:
                self.state.candidates.pop(peer.id, None)  # this node has not verified it, so it does not pass it on

    def review(self) -> None:
        """Probe what the routing table knows, and the leaf set overlooks: in a right ring there is nobody.

        Where whole sides of leaf sets die at once, a stretch between two such places can close to a ring of its own
        that looks whole to each of its members, and nothing else would tell them.
        """
        overlooked = self.state.leaves.overlooked(self.state.table)
        if overlooked:
            self.consider(overlooked)

    def exchange(
        self, peer: PeerRef, evidence: str = "silent", *, is_reported: bool = False, is_check: bool = False
    ) -> None:
        """Swap leaf sets with a peer now; silence twice removes it (or forgets it as a candidate)."""
        state = self.state
        if peer.id == state.own or peer.id in self._probes or len(self._probes) >= PROBES_MAX:
            return
        kind = ProbeKind.CHECK if is_check else ProbeKind.EXCHANGE
        accusation = Accusation.REPORTED if is_reported else Accusation.NONE
        probe = Probe(peer, kind, evidence, self._host.now(), accusation, is_short=is_check)
        self._probes[peer.id] = probe
        if not state.is_known(peer.id):
            state.candidates[peer.id] = peer
        self._send(probe)

    def _search(self, peer: PeerRef) -> None:
        """Probe a removed peer, once. Nobody is told of it as a candidate, and nothing follows from its silence."""
        if peer.id not in self._probes and len(self._probes) < PROBES_MAX:
            probe = Probe(peer, ProbeKind.SEARCH, "departed", self._host.now(), is_short=True)
            self._probes[peer.id] = probe
            self._send(probe)

    def suspect(self, peer: PeerRef, evidence: str, *, is_reported: bool = False) -> None:
        """There is evidence against a member or entry: do not route through it, and probe it."""
        state = self.state
        if peer.id in state.suspects or not state.is_known(peer.id):
            return
        self._mark(peer, evidence)
        self.exchange(peer, evidence, is_reported=is_reported, is_check=evidence != NO_HEARTBEAT)
        if peer.id not in self._probes:
            del state.suspects[peer.id]  # too many probes are under way; the next message to it starts another one

    def down(self, peer: PeerRef) -> None:
        """The link is gone, and a new one could not be had."""
        self.suspect(peer, NO_LINK)
        probe = self._probes.get(peer.id)
        if probe is not None:
            probe.is_down = True

    def _mark(self, peer: PeerRef, evidence: str) -> None:
        self.state.suspects[peer.id] = evidence
        silence_s = self.state.silence_s(peer.id)
        self.state.history.note(peer.id, "suspected", evidence, silence_s)
        self._host.emit(PeerSuspected(peer=format_id(peer.id), silence_s=silence_s, evidence=evidence))

    def revive(self, peer: PeerRef) -> None:
        """A removed peer spoke. It is back once it answers: a peer that we hear, but that does not hear us, is not."""
        if peer.id not in self._probes and self.state.departed.may_answer(peer.id, self._host.now()):
            self._search(peer)
        probe = self._probes.get(peer.id)
        if probe is not None:
            probe.is_return = True

    def is_returning_beyond(self, key: NodeId) -> bool:
        """Whether a removed peer that is closer to ``key`` has spoken, and is being asked whether it is back.

        It may be ready before it has answered: until then nobody knows whose the key is.
        """
        own = closeness(key, self.state.own)
        return any(probe.is_return and closeness(key, node_id) < own for node_id, probe in self._probes.items())

    def look_for_departed(self) -> None:
        """Probe one removed peer, if it is time to; after a partition it is how the two rings find each other."""
        state, now = self.state, self._host.now()
        if state.mass_loss.expired(now, state.config.partition_memory):
            state.tell_partition()
        is_urgent = state.mass_loss.is_suspected or not len(state.leaves) or not state.lease.is_held(now)
        peer = state.departed.next_to_probe(now, state.leaves.would_accept, is_mass_loss=is_urgent)
        if peer is not None:
            self._search(peer)

    def _welcome_back(self, peer: PeerRef) -> None:
        """A removed peer answered. Where one comes back more may: look for some that would be members at once."""
        state, now = self.state, self._host.now()
        state.departed.pop(peer.id)
        state.history.note(peer.id, "back", "answered")
        if state.mass_loss.found(peer.id):
            state.tell_partition()
        for _ in range(BACK_AT_ONCE):
            other = state.departed.next_to_probe(now, state.leaves.would_accept, is_mass_loss=True)
            if other is None or other.id in self._probes:
                return
            self._search(other)

    # Probes

    def _send(self, probe: Probe) -> None:
        state, peer = self.state, probe.peer
        probe.sent_before, probe.sent_at = probe.sent_at or probe.started_at, self._host.now()
        timeout_s = state.timeout_s(peer, probe.attempts)
        # Whoever is heard and does not answer has twice as long each time: a full link makes each answer late.
        longest_s = max(timeout_s, SUSPICION_SHARE * state.config.failure_timeout)
        self._host.request(
            peer,
            _PING if probe.is_short else state.probe_message(),
            min(timeout_s * 2.0**probe.late, longest_s),
            lambda reply, source: self._answered(probe, reply, source),
            lambda: self._silent(probe),
            Priority.URGENT,
        )

    def _answered(self, probe: Probe, reply: Message, source: PeerRef) -> None:
        if self._probes.get(source.id) is not probe:
            return
        if not isinstance(reply, Pong | LeafSetReply):
            self._silent(probe)
            return
        self.state.answered(source, probe.sent_at, reply.coordinate)
        self.state.lease.confirm(source.id, probe.sent_at)
        # The peer answers here, and another node has given it up: then leaf sets have to be compared.
        is_asked = probe.kind is not ProbeKind.CHECK or probe.accusation
        if isinstance(reply, Pong) and is_asked and probe.reprieves < REPRIEVES_MAX:
            probe.reprieves += 1
            probe.is_short = False
            self._send(probe)
            return
        if source.id in self.state.suspects:
            self.state.history.note(source.id, "cleared", "answered")
        self._finish(probe)
        if source.id in self.state.departed:
            self._welcome_back(source)
        if isinstance(reply, LeafSetReply):
            self.learn(source, reply)
        self._check_drained()

    def _silent(self, probe: Probe) -> None:
        state, peer = self.state, probe.peer
        if self._probes.get(peer.id) is not probe:
            return
        if probe.kind is ProbeKind.SEARCH:
            del self._probes[peer.id]
            self._check_drained()
            return
        heard_at = state.heard.get(peer.id, float("-inf"))
        probe.late = probe.late + 1 if heard_at > probe.sent_before else 0
        if heard_at > probe.sent_at and probe.reprieves < REPRIEVES_MAX:
            probe.attempts = 0  # it spoke meanwhile: alive, the answer was lost
            probe.reprieves += 1
        probe.attempts += 1
        probe.is_short = probe.kind is ProbeKind.CHECK or probe.attempts > 1 or not state.is_known(peer.id)
        if probe.attempts < state.config.probe_attempts or self._is_early(probe):
            if peer.id not in state.suspects and state.is_known(peer.id):
                self._mark(peer, probe.evidence)
            pause_s = state.config.probe_retry * 2.0 ** max(0, probe.attempts - state.config.probe_attempts + 1)
            self._host.set_timer("probe_retry", min(pause_s, state.config.ack_timeout_max), peer.id)
            return
        self._finish(probe)
        if not state.is_known(peer.id):
            self._count_false(probe)
            self._is_unsure = True
            self.remove(peer, probe.evidence, is_told=False)
        elif state.is_isolated:
            self._withhold(peer, probe.evidence)
        else:
            is_known_to_all = probe.accusation is Accusation.REPORTED and probe.is_announced
            self.remove(peer, probe.evidence, is_told=not is_known_to_all)
        self._check_drained()

    def _is_early(self, probe: Probe) -> bool:
        """A paused process is as silent as a dead one, but only for a while.

        Of a neighbour whose heartbeats stopped the whole silence counts; of others, only from the first probe on. Who
        is heard all the same (late answers, over a path that stops at times) is given longer, but not for ever: a peer
        that does not hear this node is of no use to it.
        """
        state, node_id = self.state, probe.peer.id
        if probe.is_down or probe.accusation or not state.is_known(node_id):
            return False
        timeout_s = state.config.failure_timeout
        silence_s, probed_s = state.silence_s(node_id), self._host.now() - probe.started_at
        if probe.evidence == NO_HEARTBEAT:
            return silence_s < timeout_s and probed_s < UNHEEDED_TIMEOUTS * timeout_s
        share_s = SUSPICION_SHARE * timeout_s
        return probed_s < share_s or (silence_s < share_s and probed_s < UNHEEDED_TIMEOUTS * timeout_s)

    def _withhold(self, peer: PeerRef, evidence: str) -> None:
        """This node hears nobody at all: it accuses nobody yet, and asks every peer. Any answer ends the isolation."""
        is_first = not self._withheld
        self.state.history.note(peer.id, "withheld", evidence, self.state.silence_s(peer.id))
        self._withheld.setdefault(peer.id, (peer, evidence))
        if is_first:
            self._isolated_since = self._host.now()
            for other in tuple(self.state.leaves):
                self.exchange(other, evidence)

    def judge(self) -> None:
        """Called once a heartbeat: an isolation that has ended, or has lasted too long, ends the withholding."""
        if not self._withheld:
            return
        state = self.state
        if not state.is_isolated:
            self._withheld.clear()
        elif self._host.now() - self._isolated_since > ISOLATION_TIMEOUTS * state.config.failure_timeout:
            withheld, self._withheld = self._withheld, {}
            for peer, evidence in withheld.values():
                self.remove(peer, evidence, is_told=False)
            self._check_drained()

    @on_timer("probe_retry")
    def retry(self, node_id: NodeId) -> None:
        """The pause after a silent probe is over."""
        probe = self._probes.get(node_id)
        if probe is not None:
            self._send(probe)

    def _finish(self, probe: Probe) -> None:
        node_id = probe.peer.id
        if probe.informant is not None:
            self._hearsay.ended(probe.informant)
        self._host.cancel_timer("probe_retry", node_id)
        del self._probes[node_id]
        self.state.suspects.pop(node_id, None)
        self.state.candidates.pop(node_id, None)

    def _count_false(self, probe: Probe) -> None:
        """Nobody answered: that counts against whoever named the peer."""
        informant = probe.informant
        if informant is not None and self._hearsay.proved_false(informant, probe.weight, self._host.now()):
            self.state.history.note(informant, "doubted", "invented_peers", self.state.silence_s(informant))

    def _check_drained(self) -> None:
        if self.state.is_leaving or not all(map(self._is_doubtful, self._probes)):
            return
        if self._is_unsure:
            # Somebody named to us was silent, so its neighbours' view of the ring is what we miss: ask them again.
            self._is_unsure = False
            self.verify_neighbours()
            self.repair()
        if all(map(self._is_doubtful, self._probes)):
            self._drained()

    # From other nodes

    @handles(LeafSetProbe)
    def _probed(self, message: LeafSetProbe, source: PeerRef) -> LeafSetReply | None:
        if self.state.is_leaving:
            return None
        if source.id in self.state.departed and not message.is_ready:
            # The answer lets it become ready, so it is asked at once, however lately it was asked in vain: a late
            # message of its earlier life may have been the reason.
            self._search(source)
        self.learn(source, message)
        return self.state.reply_message()

    @handles(Heartbeat)
    def _beaten(self, message: Heartbeat, source: PeerRef) -> None:
        if source.id not in self.state.leaves:
            self.consider((source,))

    def learn(self, peer: PeerRef, message: LeafSetProbe | LeafSetReply) -> None:
        """A direct exchange with ``peer``: it is alive, and this is what it knows."""
        state, named = self.state, (*message.smaller, *message.larger)
        if peer.id in state.departed:
            self.revive(peer)  # it may enter again when it answers; what it knows is worth reading all the same
        else:
            state.admit_leaf(peer, named)
            if message.is_ready:
                state.admit_entry(peer)
        if message.larger:
            state.leaves.note_adjacent(peer.id, message.larger[0].id)
        if message.smaller:
            state.leaves.note_adjacent(message.smaller[0].id, peer.id)
        self._close_ring(peer, message)
        state.vouches.heard(peer, named, self._host.now())
        if message.failed:
            self.check_reported(message.failed, peer)
        if message.is_ready:
            self._check_unlisted(peer, message)
        self.consider(named, peer.id)
        if message.candidates:
            self.consider(message.candidates, peer.id, PASSED_ON_WEIGHT)

    def _close_ring(self, peer: PeerRef, message: LeafSetProbe | LeafSetReply) -> None:
        """After most of a ring is gone, its two ends may face each other, each waiting for somebody in between.

        When nobody is known beyond the leaf set, and the far end of it says of itself what this node finds (nothing on
        that side, and this node last on the other), then these are all: the ends are neighbours.
        """
        leaves, table, own = self.state.leaves, self.state.table, self.state.own
        if leaves.right_neighbour() is not None and leaves.left_neighbour() is not None:
            return
        if leaves.is_gapless or not len(leaves) or any(entry.id not in leaves for entry in table):
            return
        if leaves.right_neighbour() is None and not message.smaller and _ends_with(message.larger, own):
            leaves.note_adjacent(own, peer.id)
        elif leaves.left_neighbour() is None and not message.larger and _ends_with(message.smaller, own):
            leaves.note_adjacent(peer.id, own)

    @handles(FailureNotice)
    def _notified(self, message: FailureNotice, source: PeerRef) -> None:
        """A peer removed these; when this node is among them, tell the peer that it lives."""
        if self.state.own in message.failed:
            self.state.lease.disclaim(source.id, self._host.now())
            self.exchange(source)
        else:
            self.check_reported(message.failed, source, is_announced=True)

    def check_reported(self, failed: Iterable[NodeId], accuser: PeerRef, *, is_announced: bool = False) -> None:
        """``accuser`` removed these: probe those of ours that have been silent for a heartbeat.

        ``is_announced``: it has told the rest, too. Otherwise it only says so in an exchange, and a neighbour of the
        removed peer that learns of it in this way is the one who has to tell: the accuser was none, or may have died.
        """
        state = self.state
        for node_id in failed:
            probe = self._probes.get(node_id)
            if probe is not None:
                probe.accusation = max(probe.accusation, Accusation.CONFIRMED)
            is_quiet = state.silence_s(node_id) > state.config.heartbeat_interval / 2
            if is_quiet and node_id not in state.suspects and state.is_known(node_id):
                peer = self._known(node_id)
                if peer is not None:
                    state.history.note(node_id, "accused", "reported", state.silence_s(node_id), accuser.id)
                    self.suspect(peer, "reported", is_reported=True)
                    probe = self._probes.get(node_id)
            if probe is not None and is_announced:
                probe.is_announced = True

    def _check_unlisted(self, peer: PeerRef, message: LeafSetProbe | LeafSetReply) -> None:
        """Members that lie among the peer's, and that it does not have: ask them, for it may have seen them die.

        Who was unreachable when a removal was told would otherwise keep the dead member for as long as nobody uses it.
        """
        state, listed = self.state, {other.id for other in (*message.smaller, *message.larger)}
        right = clockwise_distance(peer.id, message.larger[-1].id) if message.larger else 0
        left = clockwise_distance(message.smaller[-1].id, peer.id) if message.smaller else 0
        unlisted = [member for member in state.leaves if member.id not in listed and member.id != peer.id]
        for member in unlisted:
            is_spanned = clockwise_distance(peer.id, member.id) < right or clockwise_distance(member.id, peer.id) < left
            if is_spanned and state.silence_s(member.id) > state.config.heartbeat_interval / 2:
                self.exchange(member, is_check=True)

    def _known(self, node_id: NodeId) -> PeerRef | None:
        entry = self.state.table.incumbent(node_id)
        if entry is not None and entry.id == node_id:
            return entry
        return self.state.leaves.get(node_id)

    @handles(Leave)
    def _left(self, message: Leave, peer: PeerRef) -> None:
        """A peer said goodbye: believe it at once, unless it is back already and its goodbye comes late."""
        if message.epoch and message.epoch < self.state.epochs.get(peer.id, 0):
            return
        probe = self._probes.get(peer.id)
        if probe is not None:
            self._finish(probe)
        self.remove(peer, LEFT, is_told=False)
        self.state.member_left(peer, message.epoch)
        self.consider((*message.smaller, *message.larger), peer.id)
        self._check_drained()

    # Removal and repair

    def remove(self, peer: PeerRef, evidence: str, *, is_told: bool) -> None:
        """Take a peer out of every table, remember that, and repair what it leaves open."""
        state = self.state
        if state.is_known(peer.id):
            verdict = "left" if evidence == LEFT else "removed"
            state.history.note(peer.id, verdict, evidence, state.silence_s(peer.id))
            if evidence not in (*SENT_AWAY, NO_LINK):
                state.failures.note_failure(self._host.now())
        was_neighbour = peer in (state.leaves.left_neighbour(), state.leaves.right_neighbour())
        last_heard = state.lease.last_heard(peer.id, self._host.now())
        member = state.leaves.remove(peer.id)
        entry = state.table.remove(peer.id)
        epoch = state.epochs.pop(peer.id, 0)
        state.heard.pop(peer.id, None)
        state.suspects.pop(peer.id, None)
        state.proximity.forget(peer.id)
        state.coordinates.pop(peer.id, None)
        self._withheld.pop(peer.id, None)
        state.vouches.forget(peer.id)
        was_known = member is not None or entry is not None
        state.note_departed(peer, was_known=was_known, was_member=member is not None, has_left=evidence in SENT_AWAY)
        if member is not None and evidence not in SENT_AWAY:
            state.member_lost(peer, last_heard, epoch)
        if member is None and entry is None:
            return
        self._host.emit(PeerFailed(peer=format_id(peer.id), evidence=evidence))
        self._host.disconnect(peer, evidence)
        if member is None:
            return
        notice = FailureNotice((peer.id,))
        if evidence not in SENT_AWAY:
            self._host.send(peer, notice, Priority.URGENT)  # if it lives after all, it says so
        if is_told and was_neighbour:  # its two neighbours tell the rest of the leaf set
            for other in state.leaves:
                self._host.send(other, notice, Priority.URGENT)
        state.tell_change((), (member,))
        if was_neighbour:
            self.verify_neighbours()
            if evidence not in SENT_AWAY:
                self._host.cancel_timer("second_opinion")
                self._host.set_timer("second_opinion", state.config.vouch_delay)
        self.repair()

    @on_timer("second_opinion")
    def _second_opinion(self, payload: object) -> None:
        self.verify_neighbours()

    def verify_neighbours(self, *, only_new: bool = False) -> None:
        """Exchange with both neighbours: the right one must be alive, and both must agree who is next to whom.

        ``only_new``: not with one that was asked since it became the neighbour.
        """
        leaves = self.state.leaves
        before, self._verified = self._verified, (leaves.right_neighbour(), leaves.left_neighbour())
        for neighbour, verified in zip(self._verified, before, strict=True):
            if neighbour is not None and not (only_new and neighbour == verified):
                self.exchange(neighbour)

    def repair(self) -> None:
        """Fill a short side: its far end knows who is next; for an empty one try whoever is known on that side."""
        leaves = self.state.leaves
        for is_short, side in ((leaves.is_larger_short, leaves.larger()), (leaves.is_smaller_short, leaves.smaller())):
            if is_short and side:
                self.exchange(side[-1])
            elif is_short:
                self.consider(self.state.table)
                other = leaves.smaller() or leaves.larger()
                if other:
                    self.exchange(other[-1])


def _ends_with(side: tuple[PeerRef, ...], node_id: NodeId) -> bool:
    return bool(side) and side[-1].id == node_id
