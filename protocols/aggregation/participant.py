"""One node's part in one round: carries out what its `BinomialTree` decides, on the Host."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial as bind
from typing import TYPE_CHECKING, Final

from peerd.api import (
    AcceptSwap,
    Host,
    RefuseSwap,
    SwapCallbacks,
    SwapRequest,
    Value,
    WorkHandle,
    WorkLimits,
    value_size_bytes,
)
from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.ids import format_id, id_to_bytes, with_shared_prefix
from peerd.messages import Message, PeerRef
from protocols.aggregation.config import ROUND_S_MAX, AggregationConfig
from protocols.aggregation.effects import (
    Arm,
    Disarm,
    Effect,
    LevelDone,
    MergeOffer,
    OpenSwap,
    RouteInvite,
    SendAnswer,
    SendInvite,
    SendProposal,
    TreeDone,
    TreeTimer,
)
from protocols.aggregation.enrolments import Participations, enrolment
from protocols.aggregation.events import LevelFinished, RoundExtracted, RoundLeft, RoundStarted, query_text
from protocols.aggregation.exchange import (
    EXTRACTION_MODULES,
    MERGE_COST_S_PER_BYTE,
    Aggregate,
    Extractor,
    extract_own,
    is_givers_fault,
    merge_received,
    open_own,
)
from protocols.aggregation.messages import (
    HINTS_MAX,
    RIDING_BYTES_MAX,
    AnswerKind,
    Enrolled,
    Invite,
    InviteAnswer,
    NodeState,
    Noted,
    Participation,
    PieceTold,
    Propose,
    ProposeAnswer,
    ResultReady,
    RoundStatus,
    StartRound,
)
from protocols.aggregation.partial import PARTIAL_BYTES_MAX
from protocols.aggregation.prefix import neighbourhood_of
from protocols.aggregation.query import Query
from protocols.aggregation.statements import enrolled_statement
from protocols.aggregation.tree import BinomialTree, TreePhase

if TYPE_CHECKING:
    from protocols.aggregation.patience import LevelPatience

TELL_TIMEOUT_S: Final = 5.0
TELL_TRIES_MAX: Final = 4
"""So often a node tells a silent requester that it takes part, and then leaves; as often that its result is ready."""
TELL_PAUSE_S: Final = 1.0
"""Between a try that was not answered and the next one; through the overlay twice as long after each try."""
ENROL_TIMER: Final = "enrol_due"
OFFER_TIMER: Final = "offer_due"
OFFERS_AT_ONCE: Final = 8
"""About so many nodes offer a small result as soon as they have it: nearly all nodes do, and the requester itself."""
OFFER_PAUSE_S: Final = 1.0
"""The others offer theirs after this, and as much again at most, unless the round has ended by then."""

_STATES = {
    TreePhase.IDLE: NodeState.EXTRACTING,
    TreePhase.FINISHED: NodeState.FINISHED,
    TreePhase.PRUNED: NodeState.PRUNED,
}


class Participant:
    """State of one round on one node.

    ``on_result`` is called when this node's tree holds every level, ``on_refused`` when the requester does not want it.
    """

    def __init__(
        self,
        host: Host,
        config: AggregationConfig,
        start: StartRound,
        query: Query,
        patience: LevelPatience,
        on_result: Callable[[Participant], None],
        on_refused: Callable[[Participant, str], None],
    ) -> None:
        self.host = host
        self.config = config
        self.start = start
        self.round_id = start.round_id
        self.requester = start.requester
        self.query = query
        self.started_at = host.now() - start.age_ms / 1000
        self.expires_at = host.now() + min(start.remaining_ms / 1000, start.lasts_ms / 1000, ROUND_S_MAX)
        self.idle_since: float | None = host.now() if start.census else None
        """Since when the round waits for its requester: first to note this node, and, when the tree has ended, for its
        end. ``None`` while there is work."""
        self.neighbourhood = neighbourhood_of(host, start.nodes)
        self.tree = BinomialTree(host.id, self.neighbourhood, config.tree_settings(), self.round_id)
        self.aggregate: Aggregate | None = None
        self.own: Aggregate | None = None
        """What this node has extracted itself, for a requester whose result lacks it."""
        self.is_over = False
        self._on_result = on_result
        self._on_refused = on_refused
        self._is_enrolled = not start.census
        self.shown = Participations(host, self.round_id)
        self._sides: dict[int, Aggregate] = {}
        """The aggregate before it was merged with another at a level, where it is small enough to be given away."""
        self._enrol_tries = 0
        self._confirmations = 0
        self._offer_tries = 0
        self._extraction: WorkHandle | None = None
        from protocols.aggregation.splitting import Splitting  # with the first round
        from protocols.aggregation.swapping import Swapping

        around, deadline_s = self.neighbourhood, lambda: self.config.swap_deadline
        self._swapping = Swapping(host, self.round_id, self, deadline_s, self.tree.patience_s, around.rtt_s)
        self.splitting = Splitting.of_round(host, start, query, self, self._swapping)
        """The exchange in pieces, unless it is known not to come."""
        self._level_started_at = host.now()
        self._patience = patience
        self._received_bytes = 0
        host.emit(RoundStarted(round=self.name, requester=format_id(start.requester.id), query=query_text(query)))

    @property
    def name(self) -> str:
        """The round's id as people and logs see it."""
        return self.round_id.hex()

    # Enrolment

    def enrol(self) -> None:
        """Tell the requester, again if need be, that this node takes part.

        The enrolment is on its way before the data is, by the links of the overlay, which are there already. A link of
        its own in a small ring is for those whom some hop does not let through. Nobody waits for the answer where
        values ride: those who get one can show who takes part. Of a swap they could not.
        """
        if self._is_enrolled:
            return
        if self._enrol_tries >= TELL_TRIES_MAX:
            self._on_refused(self, "requester_silent")
            return
        self._enrol_tries += 1
        host = self.host
        is_routed = self._enrol_tries == 1 or not self.start.is_direct
        enrolled = enrolment(host, self.round_id, "", is_signed=is_routed and self.requester.id != host.id)
        if self.requester.id == host.id:
            host.send(self.requester, enrolled)
            self.noted()
        elif not is_routed:
            host.request(self.requester, enrolled, TELL_TIMEOUT_S, self._enrol_answered, self._enrol_unanswered)
        else:
            host.route(self.requester.id, enrolled)
            host.set_timer(ENROL_TIMER, TELL_PAUSE_S * 2 ** (self._enrol_tries - 1), self.round_id)

    def _enrol_answered(self, reply: Message, source: PeerRef) -> None:
        if self.is_over:
            return
        if isinstance(reply, Noted) and reply.round_id == self.round_id:
            self.noted()
        else:
            self._on_refused(self, "stopped")

    def _enrol_unanswered(self) -> None:
        if not self.is_over:
            self.host.set_timer(ENROL_TIMER, TELL_PAUSE_S, self.round_id)

    def confirm(self) -> None:
        """Tell a requester that asks whether this node takes part, as its result says. Not without end: it may be that
        somebody shows the question again and again."""
        if self._confirmations < TELL_TRIES_MAX:
            self._confirmations += 1
            proof = self.host.sign(enrolled_statement(self.round_id, self.host.peer, ""))
            self.host.route(self.requester.id, Enrolled(self.round_id, "", (), proof))

    def noted(self) -> None:
        """The requester knows that this node takes part."""
        if self._is_enrolled:
            return
        self._is_enrolled = True
        self.host.cancel_timer(ENROL_TIMER, self.round_id)
        if not self.tree.is_over:
            self.idle_since = None
        if self.tree.phase is TreePhase.IDLE:
            self._begin()

    def _begin(self) -> None:
        """Begin to swap, as soon as the data is here and may go to others: in pieces where that takes less time."""
        aggregate, splitting = self.aggregate, self.splitting
        if aggregate is None:
            return
        is_large, rides = value_size_bytes(aggregate.value) >= self.config.pieces_from, self._rides()
        if not rides and (splitting is None or not is_large):
            self._look_ahead()
        if not (self._is_enrolled or rides):
            return
        if splitting is not None and self._is_enrolled and splitting.is_to_begin(is_large):
            self.idle_since = None
            splitting.begin(aggregate, self.expires_at - self.host.now())
        else:
            self._begin_tree()

    def _begin_tree(self) -> None:
        if self.splitting is not None:
            self.splitting.leave()
        self.idle_since = None
        self._level_started_at = self.host.now()
        rides = self._rides()
        self._apply(self.tree.begin(rides, self._patience.share if rides else 1.0))

    # Pieces

    def piece_told(self, told: PieceTold, source: PeerRef) -> None:
        """Another node says how far it is with the pieces."""
        if self.splitting is not None:
            self.splitting.told(source, told)

    def pieces_held(self) -> None:
        """This node has done its part, and waits for the round's end."""
        self.idle_since = self.host.now()

    def pieces_joined(self, aggregate: Aggregate) -> None:
        """At the requester: the value of all nodes."""
        self.aggregate = aggregate
        self._apply(self.tree.complete(frozenset(aggregate.partial.contributors)))

    def goes_whole(self) -> None:
        """Nothing has come of the pieces: go on with whole values, as soon as the data is here and may go to others."""
        if not self.is_over and self.tree.phase is TreePhase.IDLE:
            self._begin()

    def _go_whole(self) -> None:
        """Somebody swaps whole values: then all have to."""
        if self.splitting is not None:
            self.splitting.go_whole()

    # Result

    def finished(self) -> None:
        """The tree is complete: offer its result, soon or in a while."""
        if self.requester.id == self.host.id or not self.tree.rides:
            self.offer()
            return
        # A few, whom no node can choose, do so at once: mostly the requester's own tree is about to be complete, too.
        drawn = hashlib.blake2b(self.round_id + id_to_bytes(self.host.id), digest_size=4).digest()
        share = int.from_bytes(drawn, "big") / 2**32
        if share * self.host.estimated_ring_size() < OFFERS_AT_ONCE:
            self.offer()
        else:
            self.host.set_timer(OFFER_TIMER, OFFER_PAUSE_S * (1 + share), self.round_id)

    def offer(self) -> None:
        """Tell the requester, again if need be, that this node's tree is complete."""
        if self.aggregate is None or self._offer_tries >= TELL_TRIES_MAX:
            return
        self._offer_tries += 1
        ready = ResultReady(
            self.round_id, len(self.aggregate.partial.contributors), value_size_bytes(self.aggregate.value)
        )
        if self.requester.id == self.host.id:
            self.host.send(self.requester, ready)
        else:
            self.host.request(self.requester, ready, TELL_TIMEOUT_S, self._offer_answered, self._offer_unanswered)

    def _offer_answered(self, reply: Message, source: PeerRef) -> None:
        if not isinstance(reply, Noted) and not self.is_over:
            self._on_refused(self, "stopped")

    def _offer_unanswered(self) -> None:
        if not self.is_over:
            self.host.set_timer(OFFER_TIMER, TELL_PAUSE_S, self.round_id)

    def result_due_s(self) -> float:
        """How long to wait for the result of this node's tree rather than fetch that of another.

        A last swap that takes about as long as those before is over sooner than a fetch beside it, with half of the
        link. Where there is none under way it is 0.
        """
        is_last = self.tree.level == 0 and self.tree.phase in (TreePhase.SWAPPING, TreePhase.MERGING)
        return max(0.0, self._swapping.due_s()) if is_last else 0.0

    # Own data

    def extract(self, extractor: Extractor, padding_bytes: int, on_failed: Callable[[Participant, str], None]) -> None:
        """Read this node's data off the loop, then begin swapping."""
        began_at = self.host.now()

        def extracted(data: bytes) -> None:
            self.host.offload(open_own, self.query, self.host.id, padding_bytes, bytes(data), done=done, failed=failed)

        def done(aggregate: Aggregate) -> None:
            if self.is_over:
                return
            self.aggregate = self.own = aggregate
            report = aggregate.partial.report
            self.host.emit(
                RoundExtracted(
                    round=self.name,
                    files=report.files_read,
                    records=report.records,
                    rejected=report.records_rejected,
                    value_bytes=value_size_bytes(aggregate.value),
                    duration_s=self.host.now() - began_at,
                )
            )
            self._begin()

        def failed(error: BaseException) -> None:
            if not self.is_over:
                on_failed(self, f"extraction failed: {error}")

        within = WorkLimits(
            memory_bytes=self.config.extraction_memory,
            cpu_s=self.config.extraction_cpu,
            wall_s=self.expires_at - began_at,
            result_bytes_max=PARTIAL_BYTES_MAX,
            name="its query",
            modules=EXTRACTION_MODULES,
            owner=self.requester.id,
        )
        arguments = (extractor, self.query, self.host.id)
        self._extraction = self.host.offload(extract_own, *arguments, done=extracted, failed=failed, within=within)

    # Messages

    def _value(self, level: int) -> tuple[bytes, tuple[Participation, ...]]:
        """Our side's value of a level, and what shows that its contributors take part, while they are few."""
        side = self._side(level)
        contributors = side.partial.contributors
        if not self.start.census:
            return side.encoded, ()
        return side.encoded, self.shown.of(contributors)

    def invite_received(self, invite: Invite, source: PeerRef) -> None:
        """Somebody would swap with us, or meant to reach somebody of a prefix that we do not have."""
        self.shown.keep(source, invite.shown)
        if self.neighbourhood.levels.level_of(source.id) != invite.level:
            members, is_exact = self.neighbourhood.hints(source.id, invite.level, HINTS_MAX)
            hint = InviteAnswer(self.round_id, invite.level, AnswerKind.HINT, members, is_exact)
            self.host.send(source, hint)
        else:
            self._go_whole()
            self._apply(self.tree.invite_received(source, invite.level, invite.rides, invite.value))
            level = self.tree.level
            if not invite.rides and level is not None and level > invite.level:
                self._swapping.expect(source, invite.level)

    def answer_received(self, answer: InviteAnswer, source: PeerRef) -> None:
        """Take the answer of an invited node."""
        try:
            kind = AnswerKind(answer.kind)
        except ValueError:
            return  # of a newer version: as good as no answer
        self.shown.keep(source, answer.shown)
        self._apply(
            self.tree.answer_received(source, answer.level, kind, answer.members, answer.is_exact, answer.value)
        )

    def proposal_received(self, proposal: Propose, source: PeerRef) -> ProposeAnswer:
        """Decide at once whether to swap with the proposer."""
        if self.neighbourhood.levels.level_of(source.id) == proposal.level:
            self._go_whole()
        accepted, kind, effects = self.tree.proposal_received(source, proposal.level)
        self._apply(effects)
        return ProposeAnswer(self.round_id, accepted, kind)

    def swap_requested(self, request: SwapRequest, level: int) -> AcceptSwap | RefuseSwap:
        """The partner opens the swap that we agreed to."""
        if not self.tree.accepts_swap(request.peer, level):  # then the offer is the proposal
            answer = self.proposal_received(Propose(self.round_id, level), request.peer)
            if not answer.accepted:
                return RefuseSwap(AnswerKind(answer.kind).name.lower())
        self._apply(self.tree.swap_accepted(request.peer))
        return self._swapping.accept(request.peer, level, self._held.value)

    def result_requested(self, peer: PeerRef) -> AcceptSwap | RefuseSwap:
        """Give the requester our result, which it fetches."""
        is_complete = self.tree.phase is TreePhase.FINISHED
        return self._given(peer, self.aggregate if is_complete else None)

    def own_requested(self, peer: PeerRef) -> AcceptSwap | RefuseSwap:
        """Give the requester what this node has extracted itself: its result lacks it."""
        return self._given(peer, self.own)

    def _given(self, peer: PeerRef, aggregate: Aggregate | None) -> AcceptSwap | RefuseSwap:
        if peer.id != self.requester.id:
            return RefuseSwap("not_yours")
        if aggregate is None:
            return RefuseSwap("no_result")
        ignore = SwapCallbacks(done=lambda value: None, failed=lambda reason: None)
        return AcceptSwap(aggregate.value, ignore, self.config.swap_deadline)

    def status(self) -> RoundStatus:
        """Return what to tell a requester that misses our data."""
        if self.splitting is not None and self.splitting.is_under_way:
            return RoundStatus(self.round_id, NodeState.RUNNING, 0, "pieces")
        level = 0 if self.tree.level is None else self.tree.level
        state = _STATES.get(self.tree.phase, NodeState.RUNNING)
        return RoundStatus(self.round_id, state, level, f"level {level}" if state is NodeState.RUNNING else "")

    # Events of the host

    def timer_fired(self, timer: TreeTimer) -> None:
        """Handle a timer of the tree that is due."""
        self._apply(self.tree.timer_fired(timer))

    def neighbourhood_changed(self) -> None:
        """Take note of a changed leaf set."""
        if self.splitting is not None:
            self.splitting.neighbours_changed()
        self._apply(self.tree.neighbourhood_changed())

    def leave(self, outcome: str) -> None:
        """Forget the round: no timer, swap or value stays."""
        if self.is_over:
            return
        self.is_over = True
        if self._extraction is not None:
            self._extraction.cancel()
        for timer in (ENROL_TIMER, OFFER_TIMER, *(timer.value for timer in TreeTimer)):
            self.host.cancel_timer(timer, self.round_id)
        self._swapping.cancel()
        if self.splitting is not None:
            self.splitting.leave()
        contributors = 0 if self.aggregate is None else len(self.aggregate.partial.contributors)
        duration_s = self.host.now() - self.started_at
        self.host.emit(
            RoundLeft(round=self.name, outcome=outcome, contributors=contributors, duration_s=max(0.0, duration_s))
        )

    def validate(self) -> None:
        """Assert that tree and value agree on whose data is held."""
        self.tree.validate()
        if self.splitting is not None:
            self.splitting.pieces.validate()
        if self.aggregate is not None and self.tree.phase is not TreePhase.MERGING:
            assert frozenset(self.aggregate.partial.contributors) == self.tree.contributors

    # Effects

    def _apply(self, effects: list[Effect]) -> None:
        if self.is_over:
            return
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendInvite(peer, level, with_value):
                self.host.count("peerd_aggregation_invites_total")
                value, shown = self._value(level) if with_value else (b"", ())
                self.host.send(peer, Invite(self.round_id, level, self.tree.rides, value, shown))
            case RouteInvite(level):
                self.host.count("peerd_aggregation_invites_total")
                key = with_shared_prefix(self.host.id, level, self.host.rng.getrandbits(128))
                self.host.route(key, Invite(self.round_id, level, self.tree.rides))
            case SendAnswer(peer, level, kind):
                value, shown = self._value(level) if kind is AnswerKind.VALUE else (b"", ())
                self.host.send(peer, InviteAnswer(self.round_id, level, kind, value=value, shown=shown))
            case MergeOffer(peer, level, value):
                self._merge(peer, level, value, "rode")
            case SendProposal(peer, level):
                self._swapping.propose(peer, level, self._held.value)
            case OpenSwap(peer, level):
                self._swapping.begin(peer, level, self._held.value)
            case Arm(timer, delay_s):
                self.host.cancel_timer(timer.value, self.round_id)
                self.host.set_timer(timer.value, delay_s, self.round_id)
            case Disarm(timer):
                self.host.cancel_timer(timer.value, self.round_id)
            case LevelDone():
                self._level_done(effect)
            case TreeDone(outcome):
                self.idle_since = self.host.now()
                if outcome == "result":
                    self._on_result(self)

    def _look_ahead(self) -> None:
        """Open the connections of the next swaps with counterparts, of this level and the one after it."""
        for level, peer in self.tree.begins_soon():
            self._swapping.expect(peer, level)

    # For `Swapping`

    def proposal_answered(self, peer: PeerRef, accepted: bool, kind: AnswerKind) -> None:
        """Take the reply to our proposal."""
        self._apply(self.tree.proposal_answered(peer, accepted, kind))

    def proposal_lost(self, peer: PeerRef) -> None:
        """Nobody has replied to our proposal."""
        self._apply(self.tree.proposal_lost(peer))

    def swap_received(self, peer: PeerRef, level: int, value: Value) -> None:
        """Go on as soon as the partner's value is here."""
        if not self.is_over:
            self._apply(self.tree.swap_done(peer))
            self._merge(peer, level, value, "done")

    def swap_failed(self, peer: PeerRef, reason: str) -> None:
        """Go on without this partner."""
        if not self.is_over:
            self.host.count("peerd_aggregation_swaps_total", outcome=reason.partition(":")[0])
            self._apply(self.tree.swap_failed(peer))

    # Merging

    def _merge(self, peer: PeerRef, level: int, value: Value, outcome: str) -> None:
        self.host.count("peerd_aggregation_swaps_total", outcome=outcome)
        self._received_bytes = value_size_bytes(value)
        cost_s = MERGE_COST_S_PER_BYTE * (value_size_bytes(value) + value_size_bytes(self._held.value))
        arguments, failed = (self.neighbourhood.levels, level, self._held, value), bind(self._merge_failed, peer)
        self.host.offload(merge_received, *arguments, done=self._merged, failed=failed, cost_s=cost_s)

    def _merged(self, aggregate: Aggregate) -> None:
        level = self.tree.level
        if self.is_over or self.aggregate is None or level is None:
            return
        if self.tree.rides:
            self._sides[level] = self.aggregate
        self.aggregate = aggregate
        self._apply(self.tree.merged(frozenset(aggregate.partial.contributors), self._rides()))

    @property
    def _held(self) -> Aggregate:
        """The aggregate, which a tree that has begun has."""
        if self.aggregate is None:
            raise Bug("a tree has begun without data")
        return self.aggregate

    def _rides(self) -> bool:
        """Whether this node's aggregate is small enough to go with a message."""
        aggregate = self.aggregate
        return aggregate is not None and not aggregate.padding_bytes and len(aggregate.encoded) <= RIDING_BYTES_MAX

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
        self.host.count("peerd_aggregation_rejected_total", reason=reason)
        if not self.is_over:
            self._apply(self.tree.merge_rejected(peer))
        if isinstance(error, ProtocolError) and is_givers_fault(error):
            self.host.misbehaved(peer, error)

    def _level_done(self, done: LevelDone) -> None:
        self._swapping.level_left(done.level)
        self._look_ahead()
        now = self.host.now()
        if self.tree.rides:
            self._patience.learn(done.outcome, (now - self._level_started_at) / self.tree.timeout_s(done.level))
        self.host.emit(
            LevelFinished(
                round=self.name,
                level=done.level,
                outcome=done.outcome,
                peer=None if done.peer is None else format_id(done.peer.id),
                contributors=len(self.tree.contributors),
                value_bytes=self._received_bytes if done.outcome == "swapped" else 0,
                duration_s=now - self._level_started_at,
            )
        )
        self._level_started_at = now
