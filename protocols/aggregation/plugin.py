"""San Fermín aggregation as a plugin: messages and timers to rounds, rounds to the Host."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from peerd.api import (
    AcceptSwap,
    HistorySize,
    Host,
    Metric,
    NeighbourChange,
    Plugin,
    PluginConfig,
    RefuseSwap,
    SwapRequest,
    handles,
    on_timer,
)
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.aggregation.config import ROUND_S_MAX, AggregationConfig
from protocols.aggregation.events import EVENTS
from protocols.aggregation.exchange import OWN, RESULT, SWAP, Extractor, FileExtractor
from protocols.aggregation.extraction import FileSelection, Share
from protocols.aggregation.messages import (
    MESSAGES,
    AnswerKind,
    AskStart,
    ConfirmContribution,
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
    StopRound,
    WhyMissing,
    reason_text,
)
from protocols.aggregation.partial import Partial
from protocols.aggregation.participant import ENROL_TIMER, OFFER_TIMER, Participant, enrolment
from protocols.aggregation.patterns import QueryError
from protocols.aggregation.query import Query
from protocols.aggregation.spotcheck import CHECK_S_MAX, CHECK_TIMER
from protocols.aggregation.statements import (
    NONCE_BYTES,
    ROUND_ID_BYTES,
    confirm_statement,
    enrolled_statement,
    noted_statement,
    round_id_of,
    start_statement,
    stop_statement,
)
from protocols.aggregation.tree import TreeTimer

if TYPE_CHECKING:
    from protocols.aggregation.requester import Requester, RoundListener

ENDED_ROUNDS_MAX: Final = 1024
ENDED_BYTES: Final = 300
"""What remembering one takes, at most."""
ASKS_MAX: Final = 64
ASKS_PER_PEER_MAX: Final = 8
"""Unknown rounds that one inviter is asked about at a time."""
IDLE_S: Final = 10.0
"""A round that has waited so long for nothing but its requester may be forgotten for a new one."""
ASK_TIMEOUT_S: Final = 5.0
GATHER_AFTER: Final = 0.9
"""When no tree is complete after so much of a round's time, the requester fetches the nodes' own data."""
CLOCKS_APART_S: Final = 3600.0
"""A node takes part if its clock and the requester's are at most so far apart. A start that somebody has kept can be
shown again for as long after the round's end, to nodes that do not know the round any more."""
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
        self._ended: OrderedDict[bytes, str] = OrderedDict()
        """Rounds that are over here, and why this node did not take part, if it declined."""
        self._asking: dict[bytes, NodeId] = {}
        self._asked: OrderedDict[bytes, None] = OrderedDict()
        """The latest rounds that this node has asked, open or over."""

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
        from protocols.aggregation.requester import Requester, census_of  # most nodes never ask, and need no answers

        if (outside := self.host.outside_reason()) is not None:
            raise Unavailable(f"{outside}, so it cannot ask anybody")
        if len(self.requesters) >= min(self.config.rounds_max, self.config.rounds_per_requester_max):
            raise Unavailable(f"{len(self.requesters)} rounds are open here already; try again when one has ended")
        query.compiled_pattern(self.config.regex_engine)
        deadline_s = min(self.config.deadline if deadline_s is None else deadline_s, ROUND_S_MAX)
        host = self.host
        nonce = host.rng.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big")
        wire_query, lasts_ms, begins_at_ms = query.to_wire(), round(deadline_s * 1000), round(host.wall_time() * 1000)
        census, is_direct = census_of(host.estimated_ring_size(), self.config)
        round_id = round_id_of(nonce, host.peer, wire_query, begins_at_ms, lasts_ms, census, is_direct)

        def own() -> Partial | None:
            participant = self.participants.get(round_id)
            return None if participant is None or participant.own is None else participant.own.partial

        requester = Requester(host, self.config, round_id, query, listener, self._answered, with_census=census, own=own)
        self.requesters[round_id] = requester
        self._asked[round_id] = None
        while len(self._asked) > ENDED_ROUNDS_MAX:
            self._asked.popitem(last=False)
        host.set_timer("round_due", deadline_s, round_id)
        check_s = 0.0 if census else CHECK_S_MAX  # what this node's own tree holds is checked first, too
        host.set_timer("gather_due", max(GATHER_AFTER * deadline_s - check_s, deadline_s / 2), round_id)
        proof = host.sign(start_statement(round_id))
        how = census, is_direct, begins_at_ms, lasts_ms, nonce, proof
        host.broadcast(StartRound(round_id, host.peer, wire_query, 0, lasts_ms, *how))
        requester.tell("started")
        return round_id

    def cancel(self, round_id: bytes) -> None:
        """End a round early; the listener gets what there is."""
        requester = self.requesters.get(round_id)
        if requester is not None:
            requester.expire()

    def _answered(self, round_id: bytes) -> None:
        for timer in ("round_due", "gather_due"):
            self.host.cancel_timer(timer, round_id)
        del self.requesters[round_id]
        self.host.broadcast(self._signed_stop(round_id))

    def _signed_stop(self, round_id: bytes) -> StopRound:
        return StopRound(round_id, self.host.sign(stop_statement(round_id)))

    # Taking part

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        """Only what is broadcast or routed on purpose is taken from there, where anybody may have made up the source.

        So it is signed, but for invitations. All else tells about its sender, and is taken from the sender's own link.
        """
        match message:
            case StartRound():
                self._start(message)
            case StopRound():
                self._stop_routed(message)
            case Enrolled():
                self._enrolled_routed(message, source)
            case Noted():
                self._noted_routed(message)
            case ConfirmContribution():
                self._confirm_routed(message)
            case Invite() if key != self.host.id:
                self.on_invite(message, source)
            case Invite():  # broadcast, it would have every node answer a source that somebody has made up
                raise ProtocolError("not_routed", "an Invite is sent to one node, or routed to an id of a prefix")
            case _:
                raise ProtocolError("not_direct", f"a {type(message).__name__} comes from its sender's own link only")

    @handles(StartRound)
    def on_start_round(self, start: StartRound, source: PeerRef) -> None:
        """Refuse it: a round is broadcast, or told when this node asks for it."""
        raise ProtocolError("not_broadcast", "a round starts by a broadcast only")

    def _start(self, start: StartRound) -> None:
        """Take part in a round, or decline. A round that is declined leaves neither state nor timer, but its id."""
        self._asking.pop(start.round_id, None)
        if start.round_id in self.participants or start.round_id in self._ended:
            return
        self._check(start)
        try:
            query = Query.from_wire(start.query)
        except ProtocolError as error:
            self._decline(start, f"the query was refused: {error}")
            return
        reason = self._reason_to_decline(start, query)
        if reason:
            self._decline(start, reason)
            return
        participant = Participant(self.host, self.config, start, query, self._tree_finished, self._refused)
        self.participants[start.round_id] = participant
        self.host.gauge("peerd_aggregation_open_rounds", len(self.participants))
        remaining_s = participant.expires_at - self.host.now()
        self.host.set_timer("round_expired", remaining_s + EXPIRY_GRACE_S, start.round_id)
        participant.enrol()
        if self.extractor is not None:
            participant.extract(self.extractor, self.value_padding_bytes, self._extraction_failed)

    def _check(self, start: StartRound) -> None:
        """Raise `ProtocolError` unless its requester has said all of this, and not long ago.

        The age is not signed, but no round grows older than `ROUND_S_MAX`. A node that believed another would tell it
        to those who ask, and in time more than fits its field.
        """
        said = start.nonce, start.requester, start.query, start.begins_at_ms, start.lasts_ms
        if start.round_id != round_id_of(*said, start.census, start.is_direct):
            raise ProtocolError("forged_round", "a round's id is not that of what it is said to be")
        if start.age_ms > ROUND_S_MAX * 1000:
            raise ProtocolError("old_round", f"a round that is said to be {start.age_ms / 1000:.0f} s old")
        early_s = start.begins_at_ms / 1000 - self.host.wall_time()
        if early_s > CLOCKS_APART_S:
            raise ProtocolError("early_round", f"a round that begins in {early_s:.0f} s")
        ended_s = self.host.wall_time() - (start.begins_at_ms + start.lasts_ms) / 1000
        if ended_s > CLOCKS_APART_S:
            raise ProtocolError("old_round", f"a round that ended {ended_s:.0f} s ago")
        if not self.host.verify(start.requester.id, start_statement(start.round_id), start.proof):
            raise ProtocolError("forged_round", f"{start.requester} has not signed it")

    def _decline(self, start: StartRound, reason: str) -> None:
        """Tell the requester, and remember for those who ask."""
        reason = reason_text(reason)
        self._ends(start.round_id, reason)
        is_routed = start.census and not start.is_direct and start.requester.id != self.host.id
        enrolled = enrolment(self.host, start.round_id, reason, is_signed=is_routed)
        if is_routed:
            self.host.route(start.requester.id, enrolled)
        else:
            self.host.send(start.requester, enrolled)

    def _refused(self, participant: Participant, outcome: str) -> None:
        self._forget(participant.round_id, outcome)

    def _make_room(self, requester: NodeId) -> str:
        """Forget the oldest idle round where there are too many; return why there still is no room, if so."""
        config, everybody = self.config, list(self.participants.values())
        own = [each for each in everybody if each.requester.id == requester]
        for rounds, most, whose in (
            (own, config.rounds_per_requester_max, "of this requester are"),
            (everybody, config.rounds_max, "are"),
        ):
            if len(rounds) < most or any(each.is_over for each in rounds):
                continue
            others = [each for each in rounds if each.round_id not in self.requesters]
            idle = [(each.idle_since, each.round_id) for each in others if each.idle_since is not None]
            since, oldest = min(idle, default=(self.host.now(), b""))
            if since + IDLE_S > self.host.now():
                return f"busy: {len(rounds)} rounds {whose} open on this node"
            self._forget(oldest, "idle")
        return ""

    def _reason_to_decline(self, start: StartRound, query: Query) -> str:
        if self.extractor is None:
            return "no data root is configured on this node"
        # Round membership is fixed at its start. Half a second covers clocks of different speed and rounding.
        if start.age_ms / 1000 > self.host.now() - self._started_at + 0.5:
            return "this node joined after the round had begun"
        try:
            query.compiled_pattern(self.config.regex_engine)
        except Unavailable as error:
            return str(error)
        except QueryError as error:
            return f"the query was refused: {error.message}"
        return self._make_room(start.requester.id)

    def _extraction_failed(self, participant: Participant, reason: str) -> None:
        self._forget(participant.round_id, "refused")
        self._decline(participant.start, reason)

    def _tree_finished(self, participant: Participant) -> None:
        aggregate = participant.aggregate
        assert aggregate is not None
        if participant.round_id in self.requesters:
            self.requesters[participant.round_id].own_aggregate = aggregate
        participant.offer()

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
        of_source = sum(asked == source.id for asked in self._asking.values())
        if round_id in self._asking or len(self._asking) >= ASKS_MAX or of_source >= ASKS_PER_PEER_MAX:
            return
        self._asking[round_id] = source.id

        def replied(message: Message, peer: PeerRef) -> None:
            silent()
            if isinstance(message, StartRound) and message.round_id == round_id:
                self._start_told(message, peer)

        def silent() -> None:
            self._asking.pop(round_id, None)

        self.host.request(source, AskStart(round_id), ASK_TIMEOUT_S, replied, silent)

    def _start_told(self, start: StartRound, teller: PeerRef) -> None:
        try:
            self._start(start)
        except ProtocolError as error:
            # The teller may have checked it with other roots, or before its requester was denied: no fault of its own.
            self.host.count("peerd_aggregation_rejected_total", reason=error.reason)

    @handles(AskStart)
    def on_ask_start(self, ask: AskStart, source: PeerRef) -> StartRound | StopRound:
        participant = self.participants.get(ask.round_id)
        now = self.host.now()
        if participant is None or participant.expires_at <= now:
            return StopRound(ask.round_id)
        age_ms = max(0, round((now - participant.started_at) * 1000))
        return replace(participant.start, age_ms=age_ms, remaining_ms=round((participant.expires_at - now) * 1000))

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
            return participant.result_requested(request.peer)
        if kind == OWN and not rest and request.is_fetch:
            return participant.own_requested(request.peer)
        return RefuseSwap("bad_tag")

    # The requester's side

    @handles(Enrolled)
    def on_enrolled(self, enrolled: Enrolled, source: PeerRef) -> Noted | StopRound:
        requester = self.requesters.get(enrolled.round_id)
        if requester is None:  # it is over: the node need not keep it
            return StopRound(enrolled.round_id)
        requester.enrolled(source, enrolled)
        return Noted(enrolled.round_id)

    def _enrolled_routed(self, enrolled: Enrolled, source: PeerRef) -> None:
        if enrolled.round_id not in self._asked:
            return  # never asked here: somebody may have broadcast it, and every node would answer its source
        requester = self.requesters.get(enrolled.round_id)
        if requester is not None and not requester.expects(source.id):
            return
        named = ((each.peer, each.age_ms) for each in enrolled.absent)
        statement = enrolled_statement(enrolled.round_id, source, enrolled.reason, named)
        if not self.host.verify(source.id, statement, enrolled.proof):
            raise ProtocolError("forged_enrolment", f"{source} has not signed it")
        if requester is not None and not requester.with_census:
            requester.spot_check.confirm(source.id)
        elif requester is not None:
            requester.enrolled(source, enrolled)
            proof = self.host.sign(noted_statement(enrolled.round_id, source.id))
            self.host.route(source.id, Noted(enrolled.round_id, proof))
        else:
            self.host.route(source.id, self._signed_stop(enrolled.round_id))

    def _confirm_routed(self, question: ConfirmContribution) -> None:
        participant = self.participants.get(question.round_id)
        if participant is None:
            return
        asked = confirm_statement(question.round_id, self.host.id)  # not signed for this node: it has only come by here
        if self.host.verify(participant.requester.id, asked, question.proof):
            participant.confirm()

    def _noted_routed(self, noted: Noted) -> None:
        participant = self.participants.get(noted.round_id)
        if participant is None:
            return
        if not self.host.verify(participant.requester.id, noted_statement(noted.round_id, self.host.id), noted.proof):
            raise ProtocolError("forged_note", f"{participant.requester} has not signed it")
        participant.noted()

    @handles(ResultReady)
    def on_result_ready(self, ready: ResultReady, source: PeerRef) -> Noted | StopRound:
        requester = self.requesters.get(ready.round_id)
        if requester is None:
            return StopRound(ready.round_id)
        requester.offered(ready, source)
        return Noted(ready.round_id)

    @handles(WhyMissing)
    def on_why_missing(self, question: WhyMissing, source: PeerRef) -> RoundStatus:
        participant = self.participants.get(question.round_id)
        if participant is not None:
            return participant.status()
        reason = self._ended.get(question.round_id)
        if reason:
            return RoundStatus(question.round_id, NodeState.DECLINED, 0, reason)
        return RoundStatus(question.round_id, NodeState.UNKNOWN_ROUND if reason is None else NodeState.LEFT, 0, "")

    @handles(StopRound)
    def on_stop_round(self, stop: StopRound, source: PeerRef) -> None:
        participant = self.participants.get(stop.round_id)
        if participant is None:
            return
        if source.id != participant.requester.id:
            raise ProtocolError("forged_stop", "the end of a round that is not the sender's")
        self._forget(stop.round_id, "stopped")

    def _stop_routed(self, stop: StopRound) -> None:
        participant = self.participants.get(stop.round_id)
        if participant is None:
            return
        if not self.host.verify(participant.requester.id, stop_statement(stop.round_id), stop.proof):
            raise ProtocolError("forged_stop", f"{participant.requester} has not signed it")
        self._forget(stop.round_id, "stopped")

    # Time and neighbours

    @on_timer("round_due")
    def round_due(self, round_id: bytes) -> None:
        requester = self._asking_here(round_id)
        if requester is not None:
            requester.expire()

    @on_timer("gather_due")
    def gather_due(self, round_id: bytes) -> None:
        requester = self._asking_here(round_id)
        if requester is not None:
            requester.gather()

    def _asking_here(self, round_id: bytes) -> Requester | None:
        """The round's requester, if that is this node, told what its own tree holds."""
        requester, participant = self.requesters.get(round_id), self.participants.get(round_id)
        if requester is not None:
            requester.own_aggregate = None if participant is None else participant.aggregate
        return requester

    @on_timer("settle_due")
    def settle_due(self, round_id: bytes) -> None:
        requester = self.requesters.get(round_id)
        if requester is not None:
            requester.settled()

    @on_timer(CHECK_TIMER)
    def check_due(self, round_id: bytes) -> None:
        self.requesters[round_id].spot_check.due()

    @on_timer("round_expired")
    def round_expired(self, round_id: bytes) -> None:
        self._forget(round_id, "expired")

    @on_timer(ENROL_TIMER)
    def enrol_due(self, round_id: bytes) -> None:
        self.participants[round_id].enrol()

    @on_timer(OFFER_TIMER)
    def offer_due(self, round_id: bytes) -> None:
        self.participants[round_id].offer()

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

    def histories(self) -> Sequence[HistorySize]:
        count = len(self._ended) + len(self._asked)
        return (HistorySize("rounds that have ended", count, count * ENDED_BYTES, 2 * ENDED_ROUNDS_MAX * ENDED_BYTES),)

    def validate(self) -> None:
        for participant in self.participants.values():
            participant.validate()
        assert len(self._ended) <= ENDED_ROUNDS_MAX
        assert len(self._asking) <= ASKS_MAX
        assert len(self._asked) <= ENDED_ROUNDS_MAX
        assert len(self.requesters) <= self.config.rounds_max

    def _forget(self, round_id: bytes, outcome: str) -> None:
        """No state of a round that has ended is kept, but its id: late messages must not start it anew."""
        self._ends(round_id, "")
        participant = self.participants.pop(round_id, None)
        if participant is not None:
            self.host.cancel_timer("round_expired", round_id)
            participant.leave(outcome)
            self.host.gauge("peerd_aggregation_open_rounds", len(self.participants))

    def _ends(self, round_id: bytes, reason: str) -> None:
        self._ended[round_id] = reason
        while len(self._ended) > ENDED_ROUNDS_MAX:
            self._ended.popitem(last=False)
