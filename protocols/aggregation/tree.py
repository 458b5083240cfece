"""One node's binomial swap tree in one round: Cappos and Hartman 2008, section 4, as a pure state machine.

Events go in as method calls; each returns the effects to carry out, in order. The tree knows ids, levels and whose
data it holds; values that others have offered pass through it unread. The phases::

    IDLE -begin-> WAITING ---------------------------> MERGING -> WAITING (next, shorter level) ... -> FINISHED
                  WAITING <-> PROPOSING -> SWAPPING -> MERGING                                  or -> PRUNED
                  WAITING <-> RESERVED  -> SWAPPING

A node goes level by level, from the longest common prefix to level 0. Whatever ends without success goes back to
WAITING, and WAITING always holds the level timer: no path can wait for ever.

How two nodes swap depends on the size of their aggregates. A small one *rides*: it goes with the invitation, and the
other one's comes as the answer, at once or when it is ready. It costs little to give, so a node gives it to everybody
of the level who asks, also when it has gone on, and no tree is pruned. A large one takes a swap of its own, agreed on
before, with one node at a time, and whoever finds no partner prunes its tree, as in the paper. Where both know whom
they swap with (`prefix.PlacePlan`), one of the two, still WAITING, offers its value before the other one is known to be
there, and that one holds the offer until it comes to the level.
"""

from __future__ import annotations

from typing import Final

from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.aggregation.effects import (
    AnswerHeld,
    Arm,
    Disarm,
    Effect,
    LevelDone,
    MergeOffer,
    OfferAhead,
    OpenSwap,
    RouteInvite,
    SendAnswer,
    SendInvite,
    SendProposal,
    TreeDone,
    TreePhase,
    TreeTimer,
    WithdrawOffer,
)
from protocols.aggregation.invitations import Invitations, LevelState, preference
from protocols.aggregation.messages import AnswerKind
from protocols.aggregation.patience import (
    HURRY_RTTS,
    HURRY_S,
    LEVEL_RTTS,
    PAIRING_RTTS,
    SPARE_PAUSES,
    TreeSettings,
    patience_s,
)
from protocols.aggregation.prefix import Neighbourhood

HINTED_MAX: Final = 64
GIVEN_MAX: Final = 4
"""How often a node gives its value to one other that asks for it again."""
TAKERS_MAX: Final = 4096
"""To so many nodes a tree gives its value as an answer."""
FIRST_INVITED: Final = 2
"""So many nodes are invited at first where values ride: with two, the value that is ready first comes in less time than
with one, for some six more messages in a round."""
DOUBLINGS_MAX: Final = 16
LEVELS_AHEAD: Final = 3
"""For so many levels after the one in work connections are opened: opening takes as long as two or three levels."""
GONE_MAX: Final = 256


class BinomialTree:
    """The state machine. ``own`` is this node; ``neighbourhood`` is asked anew each time, so repairs count at once."""

    def __init__(
        self, own: NodeId, neighbourhood: Neighbourhood, settings: TreeSettings, round_id: bytes = b""
    ) -> None:
        self.own = own
        self.phase = TreePhase.IDLE
        self.partner: PeerRef | None = None
        self.rides = False
        """Whether this node's aggregate is small enough to go with an invitation."""
        self.contributors: frozenset[NodeId] = frozenset((own,))
        """Whose data this tree's aggregate holds. Peers' values live elsewhere until they are merged in."""
        self._neighbourhood = neighbourhood
        self._levels = neighbourhood.levels
        self._settings = settings
        self._round_id = round_id
        self._current: LevelState | None = None
        self._invitations = Invitations()
        self._held: set[int] = set()
        """The levels to come for which the counterpart has offered its value already."""
        self._banned: set[NodeId] = set()
        self._gone: set[NodeId] = set()
        """To these no link could be had, and they have not spoken since (`GONE_MAX` at most)."""
        self._rode_to: int | None = None
        """The shortest level at which the aggregate rode: those of all longer ones are there to be given."""
        self._given: dict[NodeId, int] = {}
        self._timeout_share = 1.0

    @property
    def level(self) -> int | None:
        """The level in work; ``None`` before the first and after the last."""
        return None if self._current is None else self._current.level

    @property
    def is_over(self) -> bool:
        """Whether this tree swaps no more."""
        return self.phase in (TreePhase.FINISHED, TreePhase.PRUNED)

    def patience_s(self, peer: PeerRef) -> float:
        """How long to wait for this partner to do what it agreed to."""
        return patience_s(self._settings.reserve_s, self._neighbourhood.rtt_s(peer))

    def timeout_s(self, level: int) -> float:
        """Section 4.3: it grows with the estimated number of nodes behind the prefix."""
        settings, size = self._settings, self._neighbourhood.estimated_size(level)
        return min(settings.timeout_base_s + settings.timeout_per_node_s * size, settings.timeout_max_s)

    def begins_soon(self) -> list[tuple[int, PeerRef]]:
        """The counterparts to which this node offers its value at the level in work, or the first one to come, and at
        those after it (`LEVELS_AHEAD`), each with its level."""
        level = self._neighbourhood.longest_level() if self.phase is TreePhase.IDLE else self.level
        if level is None or self.rides:
            return []
        levels = range(level, max(level - LEVELS_AHEAD, 0) - 1, -1)
        return [(each, peer) for each, peer in self._counterparts(levels) if self._levels.gives_first(each)]

    def is_begun_by(self) -> list[tuple[int, PeerRef]]:
        """Counterparts that are to offer this node their value, each with its level."""
        longest = self._neighbourhood.longest_level()
        levels = range(-1 if longest is None else longest, -1, -1)
        return [(level, peer) for level, peer in self._counterparts(levels) if not self._levels.gives_first(level)]

    def _counterparts(self, levels: range) -> list[tuple[int, PeerRef]]:
        return [(level, peer) for level in levels if (peer := self._counterpart(level)) is not None]

    # Events

    def begin(self, rides: bool = False, timeout_share: float = 1.0) -> list[Effect]:
        """This node's own data is ready: start at the longest common prefix with any node (section 4.1).

        ``rides``: whether it is small enough to go with an invitation. ``timeout_share``: the part of a level's
        time-out that this round waits (`protocols.aggregation.patience`).
        """
        if self.phase is not TreePhase.IDLE:
            raise Bug(f"a tree begins once, not in phase {self.phase.value}")
        self.rides, self._timeout_share = rides, timeout_share
        if self._levels.level_of(self.own) is None:
            return self._finish("pruned")  # nobody swaps with this node: its data is left over
        longest = self._neighbourhood.longest_level()
        return self._finish("result") if longest is None else self._enter(longest)

    def complete(self, contributors: frozenset[NodeId]) -> list[Effect]:
        """The aggregate of all is here by other means than swaps."""
        if self.phase is not TreePhase.IDLE:
            raise Bug(f"a tree is complete before it begins, not in phase {self.phase.value}")
        self.contributors = contributors
        return self._finish("result")

    def invite_received(self, peer: PeerRef, level: int, rides: bool = False, value: bytes = b"") -> list[Effect]:
        """An invitation from a node with which we share exactly ``level`` bits, perhaps with its value."""
        self._gone.discard(peer.id)
        verdict = self._position(peer, level)
        if verdict is not AnswerKind.MAYBE_LATER:
            is_given = rides and self._has_side(peer, level)
            return self._give(peer, level) if is_given else [SendAnswer(peer, level, verdict)]
        is_here = self.level == level
        if value:
            self._invitations.keep_offer(peer, level, value)
        if not is_here:
            if not rides:
                self._invitations.remember(peer, level)
            elif self._invitations.remember_rider(peer, level) and value:
                return []  # the answer is our value, when it is there; whoever asks again learns that we live
            return [SendAnswer(peer, level, verdict)]
        if rides and self.rides:
            return [*self._answer_rider(peer, level, bool(value)), *self._merge_offered()]
        self._invitations.remember(peer, level)
        # Whoever invites is ready to swap, so a node that waits at that level proposes at once.
        return [SendAnswer(peer, level, verdict), *(self._merge_offered() or self._propose_if_waiting())]

    def answer_received(
        self,
        peer: PeerRef,
        level: int,
        kind: AnswerKind,
        members: tuple[PeerRef, ...],
        is_exact: bool,
        value: bytes = b"",
    ) -> list[Effect]:
        """Take the answer of an invited node. Answers to an earlier level are late, and are ignored."""
        current = self._current
        if current is None or current.level != level or self.is_over:
            return []
        current.note(peer, kind)
        match kind:
            case AnswerKind.MAYBE_LATER:
                # Somebody alive will come to this level, so it is worth a whole time-out more.
                return [self._arm_level()] if self.phase is TreePhase.WAITING else []
            case AnswerKind.HINT:
                return self._hint_received(current, members, is_exact)
            case AnswerKind.VALUE:
                if value and level == self._levels.level_of(peer.id) and peer.id not in self._banned:
                    self._invitations.keep_offer(peer, level, value)
                return self._merge_offered()
        return self._conclude_if_exhausted() if self.phase is TreePhase.WAITING else []

    def proposal_received(self, peer: PeerRef, level: int) -> tuple[bool, AnswerKind, list[Effect]]:
        """Whether to swap with this node now; else what it should make of us."""
        self._gone.discard(peer.id)
        verdict = self._position(peer, level)
        if verdict is not AnswerKind.MAYBE_LATER:
            return False, verdict, []
        # Two nodes that propose to each other at once: the proposal of the smaller id stands.
        gives_way = self._is_partner(TreePhase.PROPOSING, peer) and self.own > peer.id
        is_free = self.phase is TreePhase.WAITING and not self._is_offered_to(peer)
        if self.level == level and (is_free or gives_way):
            self.phase, self.partner = TreePhase.RESERVED, peer
            return True, verdict, [*self._stop_waiting(), Arm(TreeTimer.RESERVE, self.patience_s(peer))]
        self._invitations.remember(peer, level)  # also of two that cross: ours may have been refused before
        return False, verdict, []

    def proposal_answered(self, peer: PeerRef, accepted: bool, kind: AnswerKind) -> list[Effect]:
        """Take the reply to our proposal."""
        current = self._current
        is_offered = self._is_offered_to(peer)
        if current is None or not (is_offered or self._is_partner(TreePhase.PROPOSING, peer)):
            return []  # we gave way to its own proposal meanwhile
        self.partner = current.offered = None
        if accepted:
            self.phase, self.partner = TreePhase.SWAPPING, peer
            return [*self._stop_waiting(), Disarm(TreeTimer.RESERVE), OpenSwap(peer, current.level)]
        current.note(peer, kind)
        if is_offered:
            return self._propose_if_waiting() or self._conclude_if_exhausted()
        return [Disarm(TreeTimer.RESERVE), *self._wait()]

    def proposal_lost(self, peer: PeerRef) -> list[Effect]:
        """No reply to our proposal: the node is down, or too slow to swap with. A counterpart may come yet."""
        if self._current is not None and self._is_offered_to(peer):
            self._current.offered = None
            return self._propose_if_waiting()
        if not self._is_partner(TreePhase.PROPOSING, peer):
            return []
        return self._give_up_on(peer)

    def accepts_swap(self, peer: PeerRef, level: int) -> bool:
        """Whether a swap that this node opens now is the one we agreed to."""
        return self._is_partner(TreePhase.RESERVED, peer) and self.level == level

    def holds(self, peer: PeerRef, level: int) -> bool:
        """Whether to keep this node's offer: it is the counterpart at a level to come, and is there first."""
        counterpart = self._counterpart(level)
        is_to_come = self.level is not None and level < self.level
        if counterpart is None or counterpart.id != peer.id or not is_to_come:
            return False
        self._held.add(level)
        return True

    def held_lost(self, level: int) -> list[Effect]:
        """The offer that was to be decided about stands no more."""
        return self._wait() if self.level == level and self.phase is TreePhase.WAITING else []

    def swap_accepted(self, peer: PeerRef) -> list[Effect]:
        """Take the agreed swap, which the partner has opened."""
        if not self._is_partner(TreePhase.RESERVED, peer):
            raise Bug(f"swap with {peer} in phase {self.phase.value}")
        self.phase = TreePhase.SWAPPING
        return [Disarm(TreeTimer.RESERVE)]

    def swap_done(self, peer: PeerRef) -> list[Effect]:
        """The partner's value is here, verified; merge it and call `merged` (or `merge_rejected`)."""
        if not self._is_partner(TreePhase.SWAPPING, peer):
            raise Bug(f"swap with {peer} ended in phase {self.phase.value}")
        self.phase = TreePhase.MERGING
        return []

    def swap_failed(self, peer: PeerRef) -> list[Effect]:
        """The swap ended without a value; this partner is not tried again in this round."""
        if not self._is_partner(TreePhase.SWAPPING, peer):
            return []
        return self._give_up_on(peer)

    def merged(self, contributors: frozenset[NodeId], rides: bool = False) -> list[Effect]:
        """The aggregate now holds these nodes' data, and still rides if so; go on with the next shorter level."""
        current, partner = self._current, self.partner
        if self.phase is not TreePhase.MERGING or current is None or partner is None:
            raise Bug(f"merged in phase {self.phase.value}")
        if not self.contributors < contributors:
            raise Bug("a merge loses nobody")
        self.contributors, self.partner, self.rides = contributors, None, rides and self.rides
        effects: list[Effect] = [LevelDone(current.level, "swapped", partner)]
        waiting = self._invitations.take(current.level)  # they need not wait for their next invitation
        effects += [
            SendAnswer(peer, current.level, AnswerKind.NO)
            for peer in waiting
            if peer.id in contributors and peer.id != partner.id
        ]
        return effects + self._enter(current.level - 1)

    def merge_rejected(self, peer: PeerRef) -> list[Effect]:
        """The partner's value could not be used (not decodable, or not of the nodes it should be of)."""
        if not self._is_partner(TreePhase.MERGING, peer):
            raise Bug(f"merge rejected in phase {self.phase.value}")
        return self._give_up_on(peer)

    def timer_fired(self, timer: TreeTimer) -> list[Effect]:
        """Handle an armed timer that is due."""
        current = self._current
        if current is None or self.is_over:
            return []
        is_agreeing = self.phase in (TreePhase.PROPOSING, TreePhase.RESERVED)
        if timer is TreeTimer.RESERVE and is_agreeing and self.partner is not None:
            return self._give_up_on(self.partner)
        if self.phase is not TreePhase.WAITING:
            return []
        if timer is TreeTimer.LEVEL and not self._is_pairing(current):
            return self._conclude(current, "timed_out")
        # Who is invited only now, after the counterpart's time, has a whole time-out for the answer.
        is_late = self._is_pairing(current)
        current.pauses += 1
        current.is_pairing = False
        effects = self._next_invitations(current)
        return [*effects, *([self._arm_level()] if is_late else []), self._arm_invite(current)]

    def neighbourhood_changed(self) -> list[Effect]:
        """Leaf set or routing table changed: perhaps the level is empty now, or has new members."""
        current = self._current
        if self.phase is not TreePhase.WAITING or current is None:
            return []
        if self._is_exhausted(current):
            return self._conclude_if_exhausted()
        are_gone = current.invited and not any(peer.id in current.invited for peer in self._candidates(current))
        return self._next_invitations(current) if are_gone else []

    def peer_down(self, peer: PeerRef) -> list[Effect]:
        """No link to this node can be had: its process has ended, or something is between the two. It is not waited
        for; if it lives, the requester gets its data as a leftover."""
        if peer.id in self._gone or len(self._gone) >= GONE_MAX:
            return []
        self._gone.add(peer.id)
        if self._is_partner(TreePhase.RESERVED, peer):
            return self._give_up_on(peer)
        return self.neighbourhood_changed() if self._levels.level_of(peer.id) == self.level else []

    def validate(self) -> None:
        """Assert the invariants of the state."""
        assert self.own in self.contributors
        with_partner = TreePhase.PROPOSING, TreePhase.RESERVED, TreePhase.SWAPPING, TreePhase.MERGING
        assert (self.partner is not None) == (self.phase in with_partner)
        assert (self._current is None) == (self.phase in (TreePhase.IDLE, TreePhase.FINISHED, TreePhase.PRUNED))
        if self._current is not None:
            held = [self._levels.level_of(node) for node in self.contributors if node != self.own]
            assert all(level is not None and level > self._current.level for level in held), "held before its swap"
        self._invitations.validate()
        assert len(self._given) <= TAKERS_MAX

    # Inside

    def _position(self, peer: PeerRef, level: int) -> AnswerKind:
        """Where we stand towards a node that wants to swap at a level (section 4.3).

        The paper answers "no" whenever our level is shorter. But a level may also have been skipped by a time-out,
        and then a "no" would prune a tree whose data nobody else has. The contributor set knows: "no" only when the
        node's data is in our aggregate.
        """
        if level != self._levels.level_of(peer.id) or peer.id in self._banned:
            return AnswerKind.ABSENT
        if self.phase is TreePhase.IDLE or (self.level is not None and self.level >= level):
            return AnswerKind.MAYBE_LATER
        return AnswerKind.NO if peer.id in self.contributors else AnswerKind.ABSENT

    def _is_partner(self, phase: TreePhase, peer: PeerRef) -> bool:
        return self.phase is phase and self.partner is not None and self.partner.id == peer.id

    def _is_offered_to(self, peer: PeerRef) -> bool:
        offered = None if self._current is None else self._current.offered
        return offered is not None and offered.id == peer.id

    def _has_side(self, peer: PeerRef, level: int) -> bool:
        """Whether our side's value of a level that is done can be given to this node."""
        is_partner = level == self._levels.level_of(peer.id) and peer.id not in self._banned
        return is_partner and self._rode_to is not None and level >= self._rode_to

    def _give(self, peer: PeerRef, level: int) -> list[Effect]:
        """Give our side's value of a level that we are at, or past. Who asks without end gets it no more."""
        given = self._given.get(peer.id, 0)
        if given >= GIVEN_MAX or (not given and len(self._given) >= TAKERS_MAX):
            return []
        self._given[peer.id] = given + 1
        return [SendAnswer(peer, level, AnswerKind.VALUE)]

    def _answer_rider(self, peer: PeerRef, level: int, has_offered: bool) -> list[Effect]:
        """Somebody at our level wants our value, which may be on its way to it already."""
        current = self._current
        assert current is not None
        if self.phase is not TreePhase.WAITING or (has_offered and peer.id not in current.invited):
            return self._give(peer, level)
        if peer.id in current.invited:
            return [] if has_offered else self._give(peer, level)
        current.invited[peer.id] = peer  # it is there and ready, though we did not know it
        return [SendInvite(peer, level, with_value=True)]

    def _merge_offered(self) -> list[Effect]:
        """Merge the next value that was offered for this level, if any: it is all that this node waits for."""
        current = self._current
        if self.phase is not TreePhase.WAITING or current is None:
            return []
        offer = self._invitations.take_offer(current.level, self._banned)
        if offer is None:
            return []
        peer, value = offer
        self.phase, self.partner = TreePhase.MERGING, peer
        return [*self._stop_waiting(), MergeOffer(peer, current.level, value)]

    def _enter(self, level: int) -> list[Effect]:
        """Go down the levels to the first one with somebody to swap with."""
        if level < 0:
            return self._finish("result")
        self._current = LevelState(level)
        if self.rides:
            self._rode_to = level
        else:
            self._current.is_pairing = self._levels.has_counterparts
            self._current.counterpart = self._counterpart(level)
        effects: list[Effect] = []
        for peer in self._invitations.take_riders(level):
            if self.rides:
                effects += self._give(peer, level)
            else:
                self._invitations.remember(peer, level)
        return [*effects, *self._wait()]

    def _tell_counterpart(self, current: LevelState) -> list[Effect]:
        """Offer our value to the counterpart, or let it know that it may offer us its own."""
        peer = current.counterpart
        if peer is None:
            return []
        if not self._levels.gives_first(current.level):
            return [SendInvite(peer, current.level, with_value=False)]
        current.offered = peer
        return [OfferAhead(peer, current.level)]

    def _counterpart(self, level: int) -> PeerRef | None:
        wanted = self._levels.counterpart(level)
        if wanted is None or wanted in self._banned:
            return None
        return next((peer for peer in self._neighbourhood.members(level) if peer.id == wanted), None)

    def _is_pairing(self, current: LevelState) -> bool:
        """Whether counterparts still have their time before others are invited. A node without one lets the others."""
        counterpart = current.counterpart
        return current.is_pairing and (counterpart is None or not self._is_excluded(current, counterpart.id))

    def _wait(self) -> list[Effect]:
        """(Back) to WAITING at the current level: both timers, invitations, and the first candidate if any."""
        self.phase, self.partner = TreePhase.WAITING, None
        current = self._current
        assert current is not None
        if effects := self._merge_offered():
            return effects
        if self._is_exhausted(current):
            return self._conclude_if_exhausted()
        if current.level in self._held:
            self._held.remove(current.level)
            return [self._arm_level(), self._arm_invite(current), AnswerHeld(current.level)]
        if effects := self._propose_if_waiting():
            return effects
        # The timers last: how long they run depends on whom this has invited.
        is_pairing = self._is_pairing(current)
        effects = self._tell_counterpart(current) if is_pairing else self._next_invitations(current)
        return [*effects, self._arm_level(), self._arm_invite(current)]

    def _propose_if_waiting(self) -> list[Effect]:
        """Try the node that invited us last (section 4.2: only nodes that sent an invitation are swapped with).

        Who still waits has just said so again; who has not may have failed since.
        """
        current = self._current
        if self.phase is not TreePhase.WAITING or current is None:
            return []
        invited = self._invitations.of(current.level)
        for node_id, peer in reversed(list(invited.items())):
            if self._is_offered_to(peer):
                continue  # it will take the offer
            del invited[node_id]
            if self._is_excluded(current, node_id):
                continue
            self.phase, self.partner = TreePhase.PROPOSING, peer
            reserve = Arm(TreeTimer.RESERVE, self.patience_s(peer))
            return [*self._stop_waiting(), reserve, SendProposal(peer, current.level)]
        return []

    def _give_up_on(self, peer: PeerRef) -> list[Effect]:
        # For the whole round, not for the level: the node may be dead, or answer anything but a usable value.
        self._banned.add(peer.id)
        return [Disarm(TreeTimer.RESERVE), *self._wait()]

    def _hint_received(self, current: LevelState, members: tuple[PeerRef, ...], is_exact: bool) -> list[Effect]:
        fresh = [
            peer
            for peer in members
            if self._levels.level_of(peer.id) == current.level
            and peer.id not in current.hinted
            and len(current.hinted) < HINTED_MAX
        ]
        current.hinted.update((peer.id, peer) for peer in fresh)
        current.is_hinted_empty = current.is_hinted_empty or (is_exact and not members)
        if self.phase is not TreePhase.WAITING:
            return []
        invites = self._invite(current, [peer for peer in fresh if not self._is_excluded(current, peer.id)])
        return invites or self._conclude_if_exhausted()

    def _is_excluded(self, current: LevelState, node_id: NodeId) -> bool:
        return any(node_id in nodes for nodes in (self._banned, self._gone, current.said_no, current.absent))

    def _candidates(self, current: LevelState) -> list[PeerRef]:
        known = {peer.id: peer for peer in self._neighbourhood.members(current.level)}
        known.update(current.hinted)
        candidates = [peer for node_id, peer in known.items() if not self._is_excluded(current, node_id)]
        return sorted(candidates, key=lambda peer: preference(self._round_id, self.own, peer.id))

    def _is_exhausted(self, current: LevelState) -> bool:
        """Whether every node of the level is known, and none is left to swap with."""
        if self._invitations.of(current.level):  # somebody has invited us and may still accept a proposal
            return False
        is_known = current.is_hinted_empty or self._neighbourhood.is_exact(current.level)
        return is_known and not self._candidates(current)

    def _conclude_if_exhausted(self) -> list[Effect]:
        current = self._current
        if current is None or not self._is_exhausted(current):
            return []
        return self._conclude(current, "empty")

    def _conclude(self, current: LevelState, outcome: str) -> list[Effect]:
        """No partner at this level: prune when a live node has our data (section 4.4), else skip the level."""
        effects = self._stop_waiting()
        if current.said_no:
            return [*effects, LevelDone(current.level, "pruned", None), *self._finish("pruned")]
        return [*effects, LevelDone(current.level, outcome, None), *self._enter(current.level - 1)]

    def _next_invitations(self, current: LevelState) -> list[Effect]:
        """Invite all known nodes of the level at once; but where values ride, the two at first that both like best, and
        each time as many more as were invited before, which are asked again."""
        candidates = self._candidates(current)[: self._settings.invites_max]
        effects = self._invite(current, [peer for peer in candidates if peer.id in current.invited])
        fresh = [peer for peer in candidates if peer.id not in current.invited]
        if self.rides:
            fresh = fresh[: max(FIRST_INVITED, len(effects))]
        effects += self._invite(current, fresh)
        # Behind random ids of the prefix there may be members that the leaf set does not reach to; not by places.
        is_known = self._levels.has_counterparts or self._neighbourhood.is_exact(current.level)
        if not (self.rides and fresh) and not is_known:
            effects += [RouteInvite(current.level)] * self._settings.random_invites
        return effects

    def _invite(self, current: LevelState, peers: list[PeerRef]) -> list[Effect]:
        """Invite these; each is given our value once, if it rides."""
        effects: list[Effect] = []
        for peer in peers:
            effects.append(SendInvite(peer, current.level, self.rides and peer.id not in current.invited))
            if self.rides:
                current.invited[peer.id] = peer
        return effects

    def _arm_level(self) -> Arm:
        assert self._current is not None
        timeout_s = self._timeout_share * self.timeout_s(self._current.level)
        return Arm(TreeTimer.LEVEL, max(timeout_s, LEVEL_RTTS * self._rtt_s(self._current)))

    def _arm_invite(self, current: LevelState) -> Arm:
        pause_s = self._settings.invite_interval_s
        if self._is_pairing(current):
            pauses = SPARE_PAUSES if self._levels.counterpart(current.level) is None else 1
            pause_s = pauses * max(HURRY_S, PAIRING_RTTS * self._rtt_s(current))
        elif self.rides:
            first_s = max(HURRY_S, HURRY_RTTS * self._rtt_s(current))
            pause_s = min(first_s * 2 ** min(current.pauses, DOUBLINGS_MAX), max(first_s, pause_s))
        return Arm(TreeTimer.INVITE, pause_s)

    def _rtt_s(self, current: LevelState) -> float:
        """The longest round trip to a node that was given our value with an invitation, or that may be paired now."""
        tried = self._candidates(current) if self._is_pairing(current) else current.invited.values()
        return max(map(self._neighbourhood.rtt_s, tried), default=0.0)

    def _stop_waiting(self) -> list[Effect]:
        effects: list[Effect] = [Disarm(TreeTimer.LEVEL), Disarm(TreeTimer.INVITE)]
        if self._current is not None and self._current.offered is not None:
            self._current.offered = None
            effects.append(WithdrawOffer())
        return effects

    def _finish(self, outcome: str) -> list[Effect]:
        self.phase = TreePhase.FINISHED if outcome == "result" else TreePhase.PRUNED
        self.partner, self._current = None, None
        self._invitations.clear()
        return [TreeDone(outcome)]
