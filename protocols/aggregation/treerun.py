"""Carries out on the Host what one `BinomialTree` decides: its messages, its swaps, and the merges off the loop."""

from __future__ import annotations

from functools import partial as bind
from typing import TYPE_CHECKING, Final, Protocol

from peerd.api import HoldSwap, Host, RefuseSwap, SwapDecision, SwapRequest, Value, value_size_bytes
from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.ids import format_id, with_shared_prefix
from peerd.limits import MIB
from peerd.messages import PeerRef
from protocols.aggregation.config import AggregationConfig
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
from protocols.aggregation.enrolments import Participations
from protocols.aggregation.events import LevelFinished
from protocols.aggregation.exchange import MERGE_COST_S_PER_BYTE, Aggregate, is_givers_fault, merge_received
from protocols.aggregation.messages import (
    HINTS_MAX,
    RIDING_BYTES_MAX,
    AnswerKind,
    Invite,
    InviteAnswer,
    Participation,
    ProposeAnswer,
    StartRound,
)
from protocols.aggregation.prefix import HostNeighbourhood
from protocols.aggregation.swapping import Ahead, Swapping
from protocols.aggregation.tree import BinomialTree

if TYPE_CHECKING:
    from protocols.aggregation.patience import LevelPatience


HELD_BYTES_MAX: Final = 16 * MIB
"""Of larger values nothing is given ahead: a member could have this node keep room for one until its level comes."""


class TreeOwner(Protocol):
    """Hears of a tree: `protocols.aggregation.participant.Participant`."""

    def swaps_whole(self) -> None:
        """Somebody swaps whole values with this node, or would."""

    def tree_done(self, outcome: str) -> None:
        """The tree holds every level (``result``), or swaps no more (``pruned``)."""


class TreeRun:
    """One tree of a round on one node. ``is_named``: its levels are those of nodes named after the round's start.

    When it was stopped, nothing that is still under way has any effect: another tree may have taken its place.
    """

    def __init__(
        self,
        host: Host,
        config: AggregationConfig,
        start: StartRound,
        neighbourhood: HostNeighbourhood,
        patience: LevelPatience,
        shown: Participations,
        owner: TreeOwner,
        *,
        is_named: bool,
    ) -> None:
        self.neighbourhood = neighbourhood
        self.is_named = is_named
        self.tree = BinomialTree(host.id, neighbourhood, config.tree_settings(), start.round_id)
        self.aggregate: Aggregate | None = None
        self.is_over = False
        self._host, self._round_id, self._owner = host, start.round_id, owner
        self._is_shown = start.census
        self._shown, self._patience = shown, patience
        deadline_s, patience_s = lambda: config.swap_deadline, self.tree.patience_s
        self.swapping = Swapping(host, self._round_id, self, deadline_s, patience_s, neighbourhood.rtt_s, is_named)
        self._sides: dict[int, Aggregate] = {}
        """The aggregate before it was merged with another at a level, where it is small enough to be given away."""
        self._undecided: dict[int, SwapRequest] = {}
        """By level, of those to come: the offer of the counterpart, which is there first. One for a level."""
        self._level_started_at = host.now()
        self._received_bytes = 0

    @property
    def rides(self) -> bool:
        """Whether this node's aggregate is small enough to go with a message."""
        return self.aggregate is not None and bool(self.aggregate.within(RIDING_BYTES_MAX))

    def begin(self) -> None:
        """Begin to swap: this node's own data is here."""
        self._level_started_at = self._host.now()
        rides = self.rides
        if self.is_named and not rides:
            self._greet()
        self.apply(self.tree.begin(rides, self._patience.share if rides else 1.0))

    def look_ahead(self) -> None:
        """Open the connections of the next swaps with counterparts, of this level and the one after it."""
        for level, peer in self.tree.begins_soon():
            self.swapping.expect(peer, level)

    def open_ahead(self) -> Ahead | None:
        """Open a connection to the next node of the ring, which this one may swap with first when all are named."""
        larger = self._host.leaf_set().larger
        if not larger or larger[0].id < self._host.id or not self.swapping.is_far(larger[0]):
            return None
        return self.swapping.ahead_of_names(larger[0])

    def take(self, ahead: Ahead) -> None:
        """Use that connection, if it goes to whom this node swaps with first."""
        for level, peer in self.tree.begins_soon():
            if peer.id == ahead.peer.id:
                self.swapping.take(ahead, level)

    def due_s(self) -> float:
        """How much longer the last swap may take; 0 where none is under way."""
        is_last = self.tree.level == 0 and self.tree.phase in (TreePhase.SWAPPING, TreePhase.MERGING)
        return max(0.0, self.swapping.due_s()) if is_last else 0.0

    def stop(self) -> None:
        """Leave no timer and no swap."""
        self.is_over = True
        for timer in TreeTimer:
            self._host.cancel_timer(timer.value, self._round_id)
        self.swapping.cancel()
        self._decide_from(0)

    def drop_values(self) -> None:
        """Let go of what was merged, which may take much: nothing else may look for this tree for a while."""
        self.aggregate = None
        self._sides.clear()

    # Messages

    def invite_received(self, invite: Invite, source: PeerRef) -> None:
        """Somebody would swap with us, or meant to reach somebody of a prefix that we do not have."""
        if self.neighbourhood.levels.level_of(source.id) != invite.level:
            members, is_exact = self.neighbourhood.hints(source.id, invite.level, HINTS_MAX)
            hint = InviteAnswer(self._round_id, invite.level, AnswerKind.HINT, members, is_exact, named=self.is_named)
            self._host.send(source, hint)
            return
        self._owner.swaps_whole()
        self.apply(self.tree.invite_received(source, invite.level, invite.rides, invite.value))
        level = self.tree.level
        is_early = level is not None and level > invite.level
        if is_early and not invite.rides and self.swapping.is_far(source):
            self.swapping.expect(source, invite.level)

    def answer_received(self, answer: InviteAnswer, source: PeerRef) -> None:
        """Take the answer of an invited node."""
        try:
            kind = AnswerKind(answer.kind)
        except ValueError:
            return  # of a newer version: as good as no answer
        self.apply(self.tree.answer_received(source, answer.level, kind, answer.members, answer.is_exact, answer.value))

    def proposal_received(self, level: int, source: PeerRef) -> ProposeAnswer:
        """Decide at once whether to swap with the proposer."""
        self._note_swap(source, level)
        accepted, kind, effects = self.tree.proposal_received(source, level)
        self.apply(effects)
        return ProposeAnswer(self._round_id, accepted, kind)

    def swap_requested(self, request: SwapRequest, level: int | None) -> SwapDecision:
        """The partner opens the swap that we agreed to, or offers its value for a level that we come to yet."""
        if level is None:
            level = self.neighbourhood.levels.level_of(request.peer.id)
        if level is None:
            return RefuseSwap(AnswerKind.ABSENT.name.lower())
        if not self.tree.accepts_swap(request.peer, level):  # then the offer is the proposal
            self._note_swap(request.peer, level)
            if self._may_hold(request, level) and self.tree.holds(request.peer, level):
                self._undecided[level] = request
                return HoldSwap(self.swapping.deadline_s())
            answer = self.proposal_received(level, request.peer)
            if not answer.accepted:
                return RefuseSwap(AnswerKind(answer.kind).name.lower())
        self.apply(self.tree.swap_accepted(request.peer))
        return self.swapping.accept(request.peer, level, self._held.value)

    def _may_hold(self, request: SwapRequest, level: int) -> bool:
        """Whether there is room for an offer that comes early, and it costs no swap that is under way."""
        is_small = request.size_bytes <= HELD_BYTES_MAX
        return is_small and not (self.is_over or level in self._undecided or self.swapping.are_slow(request.peer))

    def _note_swap(self, peer: PeerRef, level: int) -> None:
        """Let the owner know that this node would swap whole values with us."""
        if self.neighbourhood.levels.level_of(peer.id) == level:
            self._owner.swaps_whole()

    def _decide_from(self, level: int) -> None:
        """Have all offers refused that are held for levels which are done."""
        for each in [each for each in self._undecided if each >= level]:
            self._undecided.pop(each).ask_again()

    def validate(self) -> None:
        """Assert that tree and value agree on whose data is held."""
        self.tree.validate()
        if self.aggregate is not None and self.tree.phase is not TreePhase.MERGING:
            assert frozenset(self.aggregate.partial.contributors) == self.tree.contributors

    # Effects

    def apply(self, effects: list[Effect]) -> None:
        """Carry out what the tree has decided."""
        for effect in effects:
            if self.is_over:
                return
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        host, round_id, is_named = self._host, self._round_id, self.is_named
        match effect:
            case SendInvite(peer, level, with_value):
                host.count("peerd_aggregation_invites_total")
                value, shown = self._value(level) if with_value else (b"", ())
                host.send(peer, Invite(round_id, level, self.tree.rides, value, shown, is_named))
            case RouteInvite(level):
                host.count("peerd_aggregation_invites_total")
                key = with_shared_prefix(host.id, level, host.rng.getrandbits(128))
                host.route(key, Invite(round_id, level, self.tree.rides))
            case SendAnswer(peer, level, kind):
                value, shown = self._value(level) if kind is AnswerKind.VALUE else (b"", ())
                host.send(peer, InviteAnswer(round_id, level, kind, value=value, shown=shown, named=is_named))
            case MergeOffer(peer, level, value):
                self._merge(peer, level, value, "rode")
            case SendProposal(peer, level):
                self.swapping.propose(peer, level, self._held.value)
            case OfferAhead(peer, level):
                is_small = value_size_bytes(self._held.value) <= HELD_BYTES_MAX
                is_early = is_small and self.swapping.are_quick(peer)
                if not (is_early and self.swapping.offer_ahead(peer, level, self._held.value)):
                    self.apply(self.tree.proposal_lost(peer))
            case WithdrawOffer():
                self.swapping.withdraw()
            case AnswerHeld(level):
                request = self._undecided.pop(level, None)
                if request is None or not request.ask_again():
                    self.apply(self.tree.held_lost(level))
            case OpenSwap(peer, level):
                self.swapping.begin(peer, level, self._held.value)
            case Arm(timer, delay_s):
                host.cancel_timer(timer.value, round_id)
                host.set_timer(timer.value, delay_s, round_id)
            case Disarm(timer):
                host.cancel_timer(timer.value, round_id)
            case LevelDone():
                self._level_done(effect)
            case TreeDone(outcome):
                self._decide_from(0)
                self._owner.tree_done(outcome)

    def _greet(self) -> None:
        """Open the links to those counterparts that wait for our invitation: to most named nodes there is none."""
        for level, peer in self.tree.is_begun_by():
            self._host.send(peer, InviteAnswer(self._round_id, level, AnswerKind.MAYBE_LATER, named=True))

    def _value(self, level: int) -> tuple[bytes, tuple[Participation, ...]]:
        """Our side's value of a level, and what shows that its contributors take part, while they are few."""
        side = self._side(level)
        return bytes(side.encoded), self._shown.of(side.partial.contributors) if self._is_shown else ()

    # For `Swapping`

    def proposal_answered(self, peer: PeerRef, accepted: bool, kind: AnswerKind) -> None:
        """Take the reply to our proposal."""
        if not self.is_over:
            self.apply(self.tree.proposal_answered(peer, accepted, kind))

    def proposal_lost(self, peer: PeerRef) -> None:
        """Nobody has replied to our proposal."""
        if not self.is_over:
            self.apply(self.tree.proposal_lost(peer))

    def swap_received(self, peer: PeerRef, level: int, value: Value) -> None:
        """Go on as soon as the partner's value is here."""
        if not self.is_over:
            self.apply(self.tree.swap_done(peer))
            self._merge(peer, level, value, "done")

    def swap_failed(self, peer: PeerRef, reason: str) -> None:
        """Go on without this partner."""
        if not self.is_over:
            self._host.count("peerd_aggregation_swaps_total", outcome=reason.partition(":")[0])
            self.apply(self.tree.swap_failed(peer))

    # Merging

    def _merge(self, peer: PeerRef, level: int, value: Value, outcome: str) -> None:
        self._host.count("peerd_aggregation_swaps_total", outcome=outcome)
        self._received_bytes = value_size_bytes(value)
        cost_s = MERGE_COST_S_PER_BYTE * (value_size_bytes(value) + value_size_bytes(self._held.value))
        arguments, failed = (self.neighbourhood.levels, level, self._held, value), bind(self._merge_failed, peer)
        self._host.offload(merge_received, *arguments, done=self._merged, failed=failed, cost_s=cost_s)

    def _merged(self, aggregate: Aggregate) -> None:
        level = self.tree.level
        if self.is_over or self.aggregate is None or level is None:
            return
        if self.tree.rides:
            self._sides[level] = self.aggregate
        self.aggregate = aggregate
        self.apply(self.tree.merged(frozenset(aggregate.partial.contributors), self.rides))

    @property
    def _held(self) -> Aggregate:
        """The aggregate, which a tree that has begun has."""
        if self.aggregate is None:
            raise Bug("a tree has begun without data")
        return self.aggregate

    def _side(self, level: int) -> Aggregate:
        """What this node held when it came to a level: before the first merge at it or at a shorter one."""
        merged = max((each for each in self._sides if each <= level), default=None)
        if merged is not None:
            return self._sides[merged]
        return self._held

    def _merge_failed(self, peer: PeerRef, error: BaseException) -> None:
        if not isinstance(error, ProtocolError | Unavailable):
            raise Bug(f"merging failed: {error}") from error
        reason = error.reason if isinstance(error, ProtocolError) else "busy"  # no worker was free
        self._host.count("peerd_aggregation_rejected_total", reason=reason)
        if not self.is_over:
            self.apply(self.tree.merge_rejected(peer))
        if isinstance(error, ProtocolError) and is_givers_fault(error):
            self._host.misbehaved(peer, error)

    def _level_done(self, done: LevelDone) -> None:
        self.swapping.level_left(done.level)
        self._decide_from(done.level)
        self.look_ahead()
        now = self._host.now()
        if self.tree.rides:
            self._patience.learn(done.outcome, (now - self._level_started_at) / self.tree.timeout_s(done.level))
        self._host.emit(
            LevelFinished(
                round=self._round_id.hex(),
                level=done.level,
                outcome=done.outcome,
                peer=None if done.peer is None else format_id(done.peer.id),
                contributors=len(self.tree.contributors),
                value_bytes=self._received_bytes if done.outcome == "swapped" else 0,
                duration_s=now - self._level_started_at,
            )
        )
        self._level_started_at = now
