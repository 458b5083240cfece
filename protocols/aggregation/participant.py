"""One node's part in one round: carries out what its `BinomialTree` decides, on the Host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial as bind
from typing import Final

from peerd.api import (
    AcceptSwap,
    Host,
    RefuseSwap,
    SwapCallbacks,
    SwapHandle,
    SwapRequest,
    Value,
    WorkHandle,
    WorkLimits,
    value_size_bytes,
)
from peerd.errors import Bug, ProtocolError, Unavailable
from peerd.ids import format_id, shared_prefix_bits, with_shared_prefix
from peerd.messages import Message, PeerRef
from protocols.aggregation.collector import absentees_near
from protocols.aggregation.config import ROUND_S_MAX, AggregationConfig
from protocols.aggregation.events import LevelFinished, RoundExtracted, RoundLeft, RoundStarted, query_text
from protocols.aggregation.exchange import (
    MERGE_COST_S_PER_BYTE,
    Aggregate,
    Extractor,
    extract_own,
    is_givers_fault,
    merge_received,
    open_own,
    swap_tag,
)
from protocols.aggregation.messages import (
    HINTS_MAX,
    AnswerKind,
    Enrolled,
    Invite,
    InviteAnswer,
    NodeState,
    Noted,
    Propose,
    ProposeAnswer,
    ResultReady,
    RoundStatus,
    StartRound,
)
from protocols.aggregation.partial import PARTIAL_BYTES_MAX
from protocols.aggregation.prefix import HostNeighbourhood
from protocols.aggregation.query import Query
from protocols.aggregation.statements import enrolled_statement
from protocols.aggregation.tree import (
    Arm,
    BinomialTree,
    Disarm,
    Effect,
    LevelDone,
    OpenSwap,
    RouteInvite,
    SendAnswer,
    SendInvite,
    SendProposal,
    TreeDone,
    TreePhase,
    TreeTimer,
)

TELL_TIMEOUT_S: Final = 5.0
TELL_TRIES_MAX: Final = 4
"""So often a node tells a silent requester that it takes part, and then leaves; as often that its result is ready."""
TELL_PAUSE_S: Final = 1.0
"""Between a try that was not answered and the next one; through the overlay twice as long after each try."""
ENROL_TIMER: Final = "enrol_due"
OFFER_TIMER: Final = "offer_due"

_STATES = {
    TreePhase.IDLE: NodeState.EXTRACTING,
    TreePhase.FINISHED: NodeState.FINISHED,
    TreePhase.PRUNED: NodeState.PRUNED,
}


def enrolment(host: Host, round_id: bytes, reason: str, *, is_signed: bool) -> Enrolled:
    """Return what to tell the requester: this node takes part, or does not for this reason."""
    absent = absentees_near(host.id, host.leaf_set(), host.missing_members())
    proof = b""
    if is_signed:
        named = ((each.peer, each.age_ms) for each in absent)
        proof = host.sign(enrolled_statement(round_id, host.peer, reason, named))
    return Enrolled(round_id, reason, absent, proof)


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
        self.idle_since: float | None = host.now() if start.census and start.is_direct else None
        """Since when the round waits for its requester only: first to note this node, and, when the tree has ended, for
        its end. ``None`` while there is work."""
        self.neighbourhood = HostNeighbourhood(host)
        self.tree = BinomialTree(host.id, self.neighbourhood, config.tree_settings())
        self.aggregate: Aggregate | None = None
        self.own: Aggregate | None = None
        """What this node has extracted itself, for a requester whose result lacks it."""
        self.is_over = False
        self._on_result = on_result
        self._on_refused = on_refused
        self._is_enrolled = not start.census
        self._may_swap = not (start.census and start.is_direct)
        self._enrol_tries = 0
        self._confirmations = 0
        self._offer_tries = 0
        self._extraction: WorkHandle | None = None
        self._swap: SwapHandle | None = None
        self._level_started_at = host.now()
        self._received_bytes = 0
        host.emit(RoundStarted(round=self.name, requester=format_id(start.requester.id), query=query_text(query)))

    @property
    def name(self) -> str:
        """The round's id as people and logs see it."""
        return self.round_id.hex()

    # Enrolment

    def enrol(self) -> None:
        """Tell the requester, again if need be, that this node takes part.

        In a small ring it has to know before data goes anywhere, so that nobody's data is in a result before it is
        known, even if it dies at once. In a large one the answer comes through the overlay too late to wait for it:
        what dies until then loses its data. There the enrolment is on its way before the data is, and is said again.
        """
        if self._is_enrolled:
            return
        if self._enrol_tries >= TELL_TRIES_MAX:
            self._on_refused(self, "requester_silent")
            return
        self._enrol_tries += 1
        host = self.host
        enrolled = enrolment(host, self.round_id, "", is_signed=not self.start.is_direct)
        if self.requester.id == host.id:
            host.send(self.requester, enrolled)
            self.noted()
        elif self.start.is_direct:
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
        if not self._may_swap:
            self._may_swap = True
            self.idle_since = None
            self._begin()

    def _begin(self) -> None:
        """Begin to swap, as soon as the data is here and may go to others."""
        if self._may_swap and self.aggregate is not None:
            self._level_started_at = self.host.now()
            self._apply(self.tree.begin())

    # Result

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
            owner=self.requester.id,
        )
        arguments = (extractor, self.query, self.host.id)
        self._extraction = self.host.offload(extract_own, *arguments, done=extracted, failed=failed, within=within)

    # Messages

    def invite_received(self, invite: Invite, source: PeerRef) -> None:
        """Somebody would swap with us, or meant to reach somebody of a prefix that we do not have."""
        if shared_prefix_bits(self.host.id, source.id) != invite.level:
            members, is_exact = self.neighbourhood.hints(source.id, invite.level, HINTS_MAX)
            hint = InviteAnswer(self.round_id, invite.level, AnswerKind.HINT, members, is_exact)
            self.host.send(source, hint)
        else:
            self._apply(self.tree.invite_received(source, invite.level))

    def answer_received(self, answer: InviteAnswer, source: PeerRef) -> None:
        """Take the answer of an invited node."""
        try:
            kind = AnswerKind(answer.kind)
        except ValueError:
            return  # of a newer version: as good as no answer
        self._apply(self.tree.answer_received(source, answer.level, kind, answer.members, answer.is_exact))

    def proposal_received(self, proposal: Propose, source: PeerRef) -> ProposeAnswer:
        """Decide at once whether to swap with the proposer."""
        accepted, kind, effects = self.tree.proposal_received(source, proposal.level)
        self._apply(effects)
        return ProposeAnswer(self.round_id, accepted, kind)

    def swap_requested(self, request: SwapRequest, level: int) -> AcceptSwap | RefuseSwap:
        """The partner opens the swap that we agreed to."""
        if self.aggregate is None or not self.tree.accepts_swap(request.peer, level):
            return RefuseSwap("not_agreed")
        self._apply(self.tree.swap_accepted(request.peer))
        return AcceptSwap(self.aggregate.value, self._callbacks(request.peer, level), self.config.swap_deadline)

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
        level = 0 if self.tree.level is None else self.tree.level
        state = _STATES.get(self.tree.phase, NodeState.RUNNING)
        return RoundStatus(self.round_id, state, level, f"level {level}" if state is NodeState.RUNNING else "")

    # Events of the host

    def timer_fired(self, timer: TreeTimer) -> None:
        """Handle a timer of the tree that is due."""
        self._apply(self.tree.timer_fired(timer))

    def neighbourhood_changed(self) -> None:
        """Take note of a changed leaf set."""
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
        if self._swap is not None:
            self._swap.cancel()
        contributors = 0 if self.aggregate is None else len(self.aggregate.partial.contributors)
        duration_s = self.host.now() - self.started_at
        self.host.emit(
            RoundLeft(round=self.name, outcome=outcome, contributors=contributors, duration_s=max(0.0, duration_s))
        )

    def validate(self) -> None:
        """Assert that tree and value agree on whose data is held."""
        self.tree.validate()
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
            case SendInvite(peer, level):
                self.host.count("peerd_aggregation_invites_total")
                self.host.send(peer, Invite(self.round_id, level))
            case RouteInvite(level):
                self.host.count("peerd_aggregation_invites_total")
                key = with_shared_prefix(self.host.id, level, self.host.rng.getrandbits(128))
                self.host.route(key, Invite(self.round_id, level))
            case SendAnswer(peer, level, kind):
                self.host.send(peer, InviteAnswer(self.round_id, level, kind))
            case SendProposal(peer, level):
                self._propose(peer, level)
            case OpenSwap(peer, level):
                self._open_swap(peer, level)
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

    def _propose(self, peer: PeerRef, level: int) -> None:
        def replied(message: Message, source: PeerRef) -> None:
            accepted = isinstance(message, ProposeAnswer) and message.accepted
            try:
                kind = AnswerKind(message.kind) if isinstance(message, ProposeAnswer) else AnswerKind.ABSENT
            except ValueError:
                kind = AnswerKind.ABSENT
            self._apply(self.tree.proposal_answered(source, accepted, kind))

        def lost() -> None:
            self._apply(self.tree.proposal_lost(peer))

        self.host.request(peer, Propose(self.round_id, level), self.tree.patience_s(peer), replied, lost)

    def _open_swap(self, peer: PeerRef, level: int) -> None:
        if self.aggregate is None:
            raise Bug("a swap before extraction")
        tag = swap_tag(self.round_id, level)
        callbacks = self._callbacks(peer, level)
        self._swap = self.host.swap(peer, tag, self.aggregate.value, callbacks, self.config.swap_deadline)

    def _callbacks(self, peer: PeerRef, level: int) -> SwapCallbacks:
        return SwapCallbacks(done=bind(self._swap_done, peer, level), failed=bind(self._swap_failed, peer))

    def _swap_done(self, peer: PeerRef, level: int, value: Value) -> None:
        self._swap = None
        if self.is_over or self.aggregate is None:
            return
        self.host.count("peerd_aggregation_swaps_total", outcome="done")
        self._apply(self.tree.swap_done(peer))
        self._received_bytes = value_size_bytes(value)
        cost_s = MERGE_COST_S_PER_BYTE * (value_size_bytes(value) + value_size_bytes(self.aggregate.value))
        self.host.offload(
            merge_received,
            self.host.id,
            level,
            self.aggregate,
            value,
            done=self._merged,
            failed=bind(self._merge_failed, peer),
            cost_s=cost_s,
        )

    def _swap_failed(self, peer: PeerRef, reason: str) -> None:
        self._swap = None
        if not self.is_over:
            self.host.count("peerd_aggregation_swaps_total", outcome=reason.partition(":")[0])
            self._apply(self.tree.swap_failed(peer))

    def _merged(self, aggregate: Aggregate) -> None:
        if self.is_over:
            return
        self.aggregate = aggregate
        self._apply(self.tree.merged(frozenset(aggregate.partial.contributors)))

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
        now = self.host.now()
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
