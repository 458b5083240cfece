"""San Fermín aggregation as a plugin: messages and timers to rounds, rounds to the Host."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import ClassVar, Final

from peerd.api import (
    AcceptSwap,
    Host,
    Metric,
    NeighbourChange,
    Plugin,
    PluginConfig,
    RefuseSwap,
    SwapRequest,
    handles,
    on_timer,
    value_size_bytes,
)
from peerd.errors import ProtocolError, Unavailable
from peerd.messages import Message, PeerRef
from protocols.aggregation.collector import absentees_near
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.events import EVENTS
from protocols.aggregation.exchange import RESULT, SWAP, Extractor, FileExtractor
from protocols.aggregation.extraction import FileSelection, Share
from protocols.aggregation.messages import (
    MESSAGES,
    ROUND_ID_BYTES,
    AnswerKind,
    AskStart,
    Enrolled,
    Invite,
    InviteAnswer,
    NodeState,
    Propose,
    ProposeAnswer,
    ResultReady,
    RoundStatus,
    StartRound,
    StopRound,
    WhyMissing,
)
from protocols.aggregation.participant import Participant
from protocols.aggregation.patterns import QueryError
from protocols.aggregation.query import Query
from protocols.aggregation.requester import Requester, RoundListener
from protocols.aggregation.tree import TreeTimer

ENDED_ROUNDS_MAX: Final = 1024
REASON_CHARACTERS_MAX: Final = 500
"""Longest reason that this node gives for declining a round."""
ASKS_MAX: Final = 64
ASK_TIMEOUT_S: Final = 5.0
EXPIRY_GRACE_S: Final = 5.0
"""A round is kept for this long after its deadline, so that the requester can still ask why data is missing."""


class Aggregation(Plugin):
    """Aggregates a function of every node's files over all nodes (Cappos and Hartman 2008)."""

    name = "aggregation"
    version = 1
    messages = MESSAGES
    events = EVENTS
    metrics = (
        Metric("peerd_aggregation_rounds_total", "counter", "Rounds that this node asked for, ended.", ("outcome",)),
        Metric("peerd_aggregation_round_duration_seconds", "histogram", "From request to answer."),
        Metric("peerd_aggregation_open_rounds", "gauge", "Rounds that this node takes part in now."),
        Metric("peerd_aggregation_invites_total", "counter", "Invitations sent."),
        Metric("peerd_aggregation_swaps_total", "counter", "Swaps of partials, ended.", ("outcome",)),
        Metric("peerd_aggregation_rejected_total", "counter", "Received partials never merged.", ("reason",)),
    )
    Config: ClassVar[type[PluginConfig]] = AggregationConfig
    config: AggregationConfig

    def __init__(self, config: PluginConfig | None = None) -> None:
        super().__init__(config)
        self.extractor = self._files()
        """The function that gets this node's data: from files by default; simulations set another one."""
        self.value_padding_bytes = 0
        """Simulation only: counts towards the size of every value, without being there."""
        self.participants: dict[bytes, Participant] = {}
        self.requesters: dict[bytes, Requester] = {}
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._asking: set[bytes] = set()

    def start(self, host: Host) -> None:
        super().start(host)
        self._started_at = host.now()

    def reconfigured(self) -> None:
        """Rounds that begin from now on read other files, and wait for other times."""
        self.extractor = self._files()

    def _files(self) -> Extractor | None:
        if not self.config.data_root:
            return None
        share = Share.parse(self.config.share) if self.config.share else None
        return FileExtractor(Path(self.config.data_root), FileSelection(share=share), self.config.regex_engine)

    # Asking

    def aggregate(self, query: Query, listener: RoundListener, deadline_s: float | None = None) -> bytes:
        """Start a round; returns its id.

        Raises `Unavailable` outside the ring, when too many rounds are open, and for a pattern without its engine;
        `QueryError` for a pattern that the engine refuses.
        """
        if (outside := self.host.outside_reason()) is not None:
            raise Unavailable(f"{outside}, so it cannot ask anybody")
        if len(self.requesters) >= self.config.rounds_max:
            raise Unavailable(f"{len(self.requesters)} rounds are open here already; try again when one has ended")
        query.compiled_pattern(self.config.regex_engine)
        deadline_s = self.config.deadline if deadline_s is None else deadline_s
        host = self.host
        round_id = host.rng.getrandbits(8 * ROUND_ID_BYTES).to_bytes(ROUND_ID_BYTES, "big")
        requester = Requester(host, self.config, round_id, query, listener, self._answered)
        self.requesters[round_id] = requester
        host.set_timer("round_due", deadline_s, round_id)
        remaining_ms = round(deadline_s * 1000)
        host.broadcast(StartRound(round_id, host.peer, query.to_wire(), 0, remaining_ms, requester.with_census))
        requester.tell("started")
        return round_id

    def cancel(self, round_id: bytes) -> None:
        """End a round early; the listener gets what there is."""
        requester = self.requesters.get(round_id)
        if requester is not None:
            requester.expire()

    def _answered(self, round_id: bytes) -> None:
        self.requesters.pop(round_id, None)
        self.host.cancel_timer("round_due", round_id)
        self.host.broadcast(StopRound(round_id))

    # Taking part

    @handles(StartRound)
    def on_start_round(self, start: StartRound, source: PeerRef) -> None:
        self._asking.discard(start.round_id)
        if start.round_id in self.participants or start.round_id in self._ended:
            return
        try:
            query = Query.from_wire(start.query)
        except ProtocolError as error:
            self._enrol(start, f"the query was refused: {error}"[:REASON_CHARACTERS_MAX])
            return
        participant = Participant(self.host, self.config, start, query, self._tree_finished)
        reason = self._reason_to_decline(start, query)
        self.participants[start.round_id] = participant
        self.host.gauge("peerd_aggregation_open_rounds", len(self.participants))
        self.host.set_timer("round_expired", start.remaining_ms / 1000 + EXPIRY_GRACE_S, start.round_id)
        if reason:
            participant.decline(reason)
        if start.census or reason:
            self._enrol(start, reason)
        if not reason and self.extractor is not None:
            participant.extract(self.extractor, self.value_padding_bytes, self._extraction_failed)

    def _reason_to_decline(self, start: StartRound, query: Query) -> str:
        if self.extractor is None:
            return "no data root is configured on this node"
        if len(self.participants) >= self.config.rounds_max:
            return f"busy: {len(self.participants)} rounds are open on this node"
        # Round membership is fixed at its start. Half a second covers clocks of different speed and rounding.
        if start.age_ms / 1000 > self.host.now() - self._started_at + 0.5:
            return "this node joined after the round had begun"
        try:
            query.compiled_pattern(self.config.regex_engine)
        except Unavailable as error:
            return str(error)[:REASON_CHARACTERS_MAX]
        except QueryError as error:
            return f"the query was refused: {error.message}"[:REASON_CHARACTERS_MAX]
        return ""

    def _enrol(self, start: StartRound, reason: str) -> None:
        host = self.host
        absent = absentees_near(host.id, host.leaf_set(), host.missing_members())
        host.send(start.requester, Enrolled(start.round_id, reason, absent))

    def _extraction_failed(self, participant: Participant, reason: str) -> None:
        self.host.send(participant.requester, Enrolled(participant.round_id, reason))

    def _tree_finished(self, participant: Participant) -> None:
        aggregate = participant.aggregate
        assert aggregate is not None
        if participant.round_id in self.requesters:
            self.requesters[participant.round_id].own_aggregate = aggregate
        size_bytes = value_size_bytes(aggregate.value)
        ready = ResultReady(participant.round_id, len(aggregate.partial.contributors), size_bytes)
        self.host.send(participant.requester, ready)

    @handles(Invite)
    def on_invite(self, invite: Invite, source: PeerRef) -> None:
        if source.id == self.host.id:
            return  # our own invitation to a random id came back: nobody is closer to it than we are
        participant = self.participants.get(invite.round_id)
        if participant is not None:
            participant.invite_received(invite, source)
        elif invite.round_id in self._ended:
            self.host.send(source, InviteAnswer(invite.round_id, invite.level, AnswerKind.ABSENT))
        else:
            self._ask_start(invite.round_id, source)

    def _ask_start(self, round_id: bytes, source: PeerRef) -> None:
        """The broadcast did not reach us (yet): ask the inviter what the round is."""
        if round_id in self._asking or len(self._asking) >= ASKS_MAX:
            return
        self._asking.add(round_id)

        def replied(message: Message, peer: PeerRef) -> None:
            self._asking.discard(round_id)
            if isinstance(message, StartRound) and message.round_id == round_id:
                self.on_start_round(message, peer)

        self.host.request(source, AskStart(round_id), ASK_TIMEOUT_S, replied, lambda: self._asking.discard(round_id))

    @handles(AskStart)
    def on_ask_start(self, ask: AskStart, source: PeerRef) -> StartRound | StopRound:
        participant = self.participants.get(ask.round_id)
        now = self.host.now()
        if participant is None or participant.expires_at <= now:
            return StopRound(ask.round_id)
        return StartRound(
            participant.round_id,
            participant.requester,
            participant.query.to_wire(),
            max(0, round((now - participant.started_at) * 1000)),
            round((participant.expires_at - now) * 1000),
            participant.census,
        )

    @handles(InviteAnswer)
    def on_invite_answer(self, answer: InviteAnswer, source: PeerRef) -> None:
        participant = self.participants.get(answer.round_id)
        if participant is not None:
            participant.answer_received(answer, source)

    @handles(Propose)
    def on_propose(self, proposal: Propose, source: PeerRef) -> ProposeAnswer:
        participant = self.participants.get(proposal.round_id)
        if participant is None:
            return ProposeAnswer(proposal.round_id, False, AnswerKind.ABSENT)
        return participant.proposal_received(proposal, source)

    def swap_requested(self, request: SwapRequest) -> AcceptSwap | RefuseSwap:
        kind, round_id, rest = request.tag[:1], request.tag[1 : 1 + ROUND_ID_BYTES], request.tag[1 + ROUND_ID_BYTES :]
        participant = self.participants.get(round_id)
        if participant is None:
            return RefuseSwap("no_such_round")
        if kind == SWAP and len(rest) == 1 and not request.is_fetch:
            return participant.swap_requested(request, rest[0])
        if kind == RESULT and not rest and request.is_fetch:
            return participant.result_requested()
        return RefuseSwap("bad_tag")

    # The requester's side

    @handles(Enrolled)
    def on_enrolled(self, enrolled: Enrolled, source: PeerRef) -> None:
        requester = self.requesters.get(enrolled.round_id)
        if requester is not None:
            requester.enrolled(source, enrolled)

    @handles(ResultReady)
    def on_result_ready(self, ready: ResultReady, source: PeerRef) -> None:
        requester = self.requesters.get(ready.round_id)
        if requester is not None:
            requester.offered(ready, source)

    @handles(WhyMissing)
    def on_why_missing(self, question: WhyMissing, source: PeerRef) -> RoundStatus:
        participant = self.participants.get(question.round_id)
        if participant is not None:
            return participant.status()
        state = NodeState.LEFT if question.round_id in self._ended else NodeState.UNKNOWN_ROUND
        return RoundStatus(question.round_id, state, 0, "")

    @handles(StopRound)
    def on_stop_round(self, stop: StopRound, source: PeerRef) -> None:
        self._forget(stop.round_id, "stopped")

    # Time and neighbours

    @on_timer("round_due")
    def round_due(self, round_id: bytes) -> None:
        requester = self.requesters.get(round_id)
        if requester is not None:
            participant = self.participants.get(round_id)
            requester.own_aggregate = None if participant is None else participant.aggregate
            requester.expire()

    @on_timer("settle_due")
    def settle_due(self, round_id: bytes) -> None:
        requester = self.requesters.get(round_id)
        if requester is not None:
            requester.settled()

    @on_timer("round_expired")
    def round_expired(self, round_id: bytes) -> None:
        self._forget(round_id, "expired")

    @on_timer(TreeTimer.LEVEL.value)
    def level_due(self, round_id: bytes) -> None:
        self.participants[round_id].timer_fired(TreeTimer.LEVEL)

    @on_timer(TreeTimer.INVITE.value)
    def invite_due(self, round_id: bytes) -> None:
        self.participants[round_id].timer_fired(TreeTimer.INVITE)

    @on_timer(TreeTimer.RESERVE.value)
    def reserve_due(self, round_id: bytes) -> None:
        self.participants[round_id].timer_fired(TreeTimer.RESERVE)

    def neighbours_changed(self, change: NeighbourChange) -> None:
        for participant in list(self.participants.values()):
            participant.neighbourhood_changed()
        for requester in list(self.requesters.values()):
            requester.neighbours_changed()

    def validate(self) -> None:
        for participant in self.participants.values():
            participant.validate()
        assert len(self._ended) <= ENDED_ROUNDS_MAX
        assert len(self.requesters) <= self.config.rounds_max

    def _forget(self, round_id: bytes, outcome: str) -> None:
        """No state of a round that has ended is kept, but its id: late messages must not start it anew."""
        self._ended[round_id] = None
        while len(self._ended) > ENDED_ROUNDS_MAX:
            self._ended.popitem(last=False)
        participant = self.participants.pop(round_id, None)
        if participant is not None:
            self.host.cancel_timer("round_expired", round_id)
            participant.leave(outcome)
            self.host.gauge("peerd_aggregation_open_rounds", len(self.participants))
