"""The rounds that this node takes part in: messages and timers of each go to its `Participant`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from peerd.api import IN_MEMORY, Host, Part, handles, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.aggregation.config import ROUND_S_MAX, AggregationConfig
from protocols.aggregation.effects import PIECES_TIMER, TreeTimer
from protocols.aggregation.enrolments import enrolment
from protocols.aggregation.exchange import Aggregate, OwnData
from protocols.aggregation.groups import GROUPS_HARD_MAX
from protocols.aggregation.messages import (
    AnswerKind,
    AskStart,
    ConfirmContribution,
    FindEnrolment,
    GiveAnswer,
    Invite,
    InviteAnswer,
    NameNodes,
    NodeState,
    Noted,
    PieceStage,
    PieceTold,
    Propose,
    ProposeAnswer,
    RoundStatus,
    StartRound,
    StopRound,
    WhyMissing,
    reason_text,
)
from protocols.aggregation.participant import ENROL_TIMER, NAMES_TIMER, OFFER_TIMER, Participant
from protocols.aggregation.patterns import QueryError
from protocols.aggregation.query import Query
from protocols.aggregation.statements import (
    answer_statement,
    confirm_statement,
    find_statement,
    names_statement,
    noted_statement,
    round_id_of,
    start_statement,
    stop_statement,
)

if TYPE_CHECKING:
    from protocols.aggregation.patience import LevelPatience

ENDED_MAX: Final = 1024
"""Rounds that are over and remembered, so that late messages do not start them anew."""
ASKS_MAX: Final = 64
ASKS_PER_PEER_MAX: Final = 8
"""Unknown rounds that one inviter is asked about at a time."""
EARLY_MAX: Final = 32
"""First messages of unknown rounds that are kept, with the values that ride along, until the start comes."""
SLICED_ROUNDS_MAX: Final = 2
"""Rounds whose values go in slices, at a time: of each a node may have several GB on its disk."""
IDLE_S: Final = 10.0
"""A round that has waited so long for nothing but its requester may be forgotten for a new one."""
ASK_TIMEOUT_S: Final = 5.0
CLOCKS_APART_S: Final = 3600.0
"""A node takes part if its clock and the requester's are at most so far apart. A start that somebody has kept can be
shown again for as long after the round's end, to nodes that do not know the round any more."""
EXPIRY_GRACE_S: Final = 5.0
"""A round is kept for this long after its deadline, so that the requester can still ask why data is missing."""


class Participating(Part):
    """The part of this node in rounds, its own ones included. ``data``: what it contributes."""

    def __init__(self, host: Host, config: AggregationConfig, data: OwnData) -> None:
        self.config = config
        self.participants: dict[bytes, Participant] = {}
        self.tree_finished: Callable[[bytes, Aggregate], None] = lambda round_id, aggregate: None
        """The tree of a round is complete at this node."""
        self.is_asked: Callable[[bytes], bool] = lambda round_id: False
        """Whether this node itself waits for the answer. That a start names it says only that it asked once."""
        self._host, self._data = host, data
        self._started_at = host.now()
        self._ended: OrderedDict[bytes, str] = OrderedDict()
        """Rounds that are over here, and why this node did not take part, if it declined."""
        self._asking: dict[bytes, NodeId] = {}
        """Rounds that somebody was invited to before the start had come, and who is being asked what they are."""
        self._early: OrderedDict[tuple[bytes, NodeId], tuple[Invite | PieceTold, PeerRef]] = OrderedDict()
        """What has overtaken the start. Who gets no answer to an invitation invites again, and is asked then."""

    @cached_property
    def patience(self) -> LevelPatience:
        """How long it waits at the levels of its rounds."""
        from protocols.aggregation.patience import LevelPatience  # with the first round

        return LevelPatience()

    @property
    def ended_count(self) -> int:
        """How many rounds it remembers that are over."""
        return len(self._ended)

    @handles(StartRound)
    def on_start_round(self, start: StartRound, source: PeerRef) -> None:
        """Refuse it: a round is broadcast, or told when this node asks for it."""
        raise ProtocolError("not_broadcast", "a round starts by a broadcast only")

    def start_told(self, start: StartRound) -> None:
        """Take part in a round, or decline. A round that is declined leaves neither state nor timer, but its id."""
        self._asking.pop(start.round_id, None)
        self._take_part(start)
        for key in [key for key in self._early if key[0] == start.round_id]:
            message, source = self._early.pop(key)
            if isinstance(message, Invite):
                self.on_invite(message, source)
            else:
                self.on_piece_told(message, source)

    def _take_part(self, start: StartRound) -> None:
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
        told = self._tree_finished, self._refused
        participant = Participant(self._host, self.config, start, query, self.patience, *told)
        self.participants[start.round_id] = participant
        self._host.gauge("peerd_aggregation_open_rounds", len(self.participants))
        remaining_s = participant.expires_at - self._host.now()
        self._host.set_timer("round_expired", remaining_s + EXPIRY_GRACE_S, start.round_id)
        participant.enrol()
        scratch = self._host.store.scratch() if query.is_sliced else IN_MEMORY
        extractor = self._data.extractor_of(self._host.tags(), scratch)
        if extractor is not None:
            participant.extract(extractor, self._data.padding_bytes, scratch, self._extraction_failed)

    def _check(self, start: StartRound) -> None:
        """Raise `ProtocolError` unless its requester has said all of this, and not long ago.

        The age is not signed, but no round grows older than `ROUND_S_MAX`. A node that believed another would tell it
        to those who ask, and in time more than fits its field.
        """
        said = start.nonce, start.requester, start.query, start.begins_at_ms, start.lasts_ms
        if start.round_id != round_id_of(*said, start.census, start.is_direct, start.nodes, start.may_name):
            raise ProtocolError("forged_round", "a round's id is not that of what it is said to be")
        if start.age_ms > ROUND_S_MAX * 1000:
            raise ProtocolError("old_round", f"a round that is said to be {start.age_ms / 1000:.0f} s old")
        early_s = start.begins_at_ms / 1000 - self._host.wall_time()
        if early_s > CLOCKS_APART_S:
            raise ProtocolError("early_round", f"a round that begins in {early_s:.0f} s")
        ended_s = self._host.wall_time() - (start.begins_at_ms + start.lasts_ms) / 1000
        if ended_s > CLOCKS_APART_S:
            raise ProtocolError("old_round", f"a round that ended {ended_s:.0f} s ago")
        if not self._host.verify(start.requester.id, start_statement(start.round_id), start.proof):
            raise ProtocolError("forged_round", f"{start.requester} has not signed it")

    def _decline(self, start: StartRound, reason: str) -> None:
        """Tell the requester, and remember for those who ask."""
        reason = reason_text(reason)
        self._ends(start.round_id, reason)
        is_routed = start.census and not start.is_direct and start.requester.id != self._host.id
        enrolled = enrolment(self._host, start.round_id, reason, is_signed=is_routed)
        if is_routed:
            self._host.route(start.requester.id, enrolled)
        else:
            self._host.send(start.requester, enrolled)

    def _refused(self, participant: Participant, outcome: str) -> None:
        self._forget(participant.round_id, outcome)

    def _make_room(self, requester: NodeId, query: Query) -> str:
        """Forget the oldest idle round where there are too many; return why there still is no room, if so."""
        config, everybody = self.config, list(self.participants.values())
        own = [each for each in everybody if each.requester.id == requester]
        sliced = [each for each in everybody if each.query.is_sliced and query.is_sliced]
        for rounds, most, whose in (
            (sliced, SLICED_ROUNDS_MAX, f"of more than {GROUPS_HARD_MAX} groups are"),
            (own, config.rounds_per_requester_max, "of this requester are"),
            (everybody, config.rounds_max, "are"),
        ):
            if len(rounds) < most or any(each.is_over for each in rounds):
                continue
            others = [each for each in rounds if not self.is_asked(each.round_id)]
            idle = [(each.idle_since, each.round_id) for each in others if each.idle_since is not None]
            since, oldest = min(idle, default=(self._host.now(), b""))
            if since + IDLE_S > self._host.now():
                return f"busy: {len(rounds)} rounds {whose} open on this node"
            self._forget(oldest, "idle")
        return ""

    def _reason_to_decline(self, start: StartRound, query: Query) -> str:
        if self._data.extractor is None:
            return "no data root is configured on this node"
        # Round membership is fixed at its start. Half a second covers clocks of different speed and rounding.
        if start.age_ms / 1000 > self._host.now() - self._started_at + 0.5:
            return "this node joined after the round had begun"
        try:
            query.compiled_pattern(self.config.regex_engine)
        except Unavailable as error:
            return str(error)
        except QueryError as error:
            return f"the query was refused: {error.message}"
        return self._make_room(start.requester.id, query)

    def _extraction_failed(self, participant: Participant, reason: str) -> None:
        self._forget(participant.round_id, "refused")
        self._decline(participant.start, reason)

    def _tree_finished(self, participant: Participant) -> None:
        aggregate = participant.aggregate
        assert aggregate is not None
        self.tree_finished(participant.round_id, aggregate)
        participant.finished()

    @handles(Invite)
    def on_invite(self, invite: Invite, source: PeerRef) -> None:
        if source.id == self._host.id:
            return  # our own invitation to a random id came back: nobody is closer to it than we are
        participant = self.participants.get(invite.round_id)
        if participant is not None:
            participant.invite_received(invite, source)
        elif invite.round_id in self._ended:
            self._host.send(source, InviteAnswer(invite.round_id, invite.level, AnswerKind.ABSENT))
        elif invite.value and (invite.round_id, source.id) not in self._early:
            self._keep_early(invite, source)
        else:
            self._ask_start(invite.round_id, source)

    def _keep_early(self, message: Invite | PieceTold, source: PeerRef) -> None:
        self._early[message.round_id, source.id] = message, source
        if len(self._early) > EARLY_MAX:
            self._early.popitem(last=False)

    def _ask_start(self, round_id: bytes, source: PeerRef) -> None:
        """The broadcast did not reach us (yet): ask the inviter what the round is."""
        of_source = sum(asked == source.id for asked in self._asking.values())
        if round_id in self._asking or len(self._asking) >= ASKS_MAX or of_source >= ASKS_PER_PEER_MAX:
            return
        self._asking[round_id] = source.id

        def replied(message: Message, peer: PeerRef) -> None:
            silent()
            if isinstance(message, StartRound) and message.round_id == round_id:
                self._start_answered(message, peer)

        def silent() -> None:
            self._asking.pop(round_id, None)

        self._host.request(source, AskStart(round_id), ASK_TIMEOUT_S, replied, silent)

    def _start_answered(self, start: StartRound, teller: PeerRef) -> None:
        try:
            self.start_told(start)
        except ProtocolError as error:
            # The teller may have checked it with other roots, or before its requester was denied: no fault of its own.
            self._host.count("peerd_aggregation_rejected_total", reason=error.reason)

    @handles(AskStart)
    def on_ask_start(self, ask: AskStart, source: PeerRef) -> StartRound | StopRound:
        participant = self.participants.get(ask.round_id)
        now = self._host.now()
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

    @handles(PieceTold)
    def on_piece_told(self, told: PieceTold, source: PeerRef) -> None:
        participant = self.participants.get(told.round_id)
        if participant is not None:
            participant.piece_told(told, source)
        elif told.round_id not in self._ended:
            self._keep_early(told, source)
            self._ask_start(told.round_id, source)
        elif told.stage in (PieceStage.READY, PieceStage.BEGIN):  # it may wait for this node, and then in vain
            self._host.send(source, PieceTold(told.round_id, PieceStage.WHOLE))

    def confirm_routed(self, question: ConfirmContribution) -> None:
        """The requester wants to know whether this node has contributed."""
        participant = self.participants.get(question.round_id)
        if participant is None:
            return
        asked = confirm_statement(question.round_id, self._host.id)
        if self._host.verify(participant.requester.id, asked, question.proof):  # else it has only come by here
            participant.confirm()

    def find_routed(self, question: FindEnrolment) -> None:
        """The requester has a result with a node's data and not its enrolment: tell what the node has shown here."""
        participant = self.participants.get(question.round_id)
        shown = None if participant is None else participant.shown.about(question.node)
        if participant is None or shown is None or not participant.shown.may_show():
            return
        asked = find_statement(question.round_id, self._host.id, question.node)
        if self._host.verify(participant.requester.id, asked, question.proof):  # else it has only come by here
            self._host.route(participant.requester.id, shown)

    def noted_routed(self, noted: Noted) -> None:
        """The requester knows that this node takes part."""
        participant = self.participants.get(noted.round_id)
        if participant is None:
            return
        if not self._host.verify(participant.requester.id, noted_statement(noted.round_id, self._host.id), noted.proof):
            raise ProtocolError("forged_note", f"{participant.requester} has not signed it")
        participant.noted()

    @handles(WhyMissing)
    def on_why_missing(self, question: WhyMissing, source: PeerRef) -> RoundStatus:
        participant = self.participants.get(question.round_id)
        if participant is not None:
            return participant.status(source)
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

    def stop_routed(self, stop: StopRound) -> None:
        """The requester has ended the round."""
        participant = self.participants.get(stop.round_id)
        if participant is None:
            return
        if not self._host.verify(participant.requester.id, stop_statement(stop.round_id), stop.proof):
            raise ProtocolError("forged_stop", f"{participant.requester} has not signed it")
        self._forget(stop.round_id, "stopped")

    def names_routed(self, names: NameNodes) -> None:
        """The requester names the nodes of a round."""
        participant = self.participants.get(names.round_id)
        if participant is None:
            return
        statement = names_statement(names.round_id, names.nodes, names.in_pieces)
        if not self._host.verify(participant.requester.id, statement, names.proof):
            raise ProtocolError("forged_names", f"{participant.requester} has not signed them")
        participant.named(names)

    def answer_routed(self, given: GiveAnswer) -> None:
        """The requester has ended the round, with an answer for others. Raises `ProtocolError` for a forged one."""
        said = given.round_id, given.requester, given.answered_at_ms, given.to, given.answer
        if not self._host.verify(given.requester.id, answer_statement(*said), given.proof):
            raise ProtocolError("forged_answer", f"{given.requester} has not signed it")
        participant = self.participants.get(given.round_id)
        if participant is None:
            return
        if participant.requester.id != given.requester.id:
            raise ProtocolError("forged_answer", "the answer of a round that is not its sender's")
        self._forget(given.round_id, "stopped")

    # Time and neighbours

    @on_timer("round_expired")
    def round_expired(self, round_id: bytes) -> None:
        self._forget(round_id, "expired")

    @on_timer(ENROL_TIMER)
    def enrol_due(self, round_id: bytes) -> None:
        self.participants[round_id].enrol()

    @on_timer(OFFER_TIMER)
    def offer_due(self, round_id: bytes) -> None:
        self.participants[round_id].offer()

    @on_timer(NAMES_TIMER)
    def names_due(self, round_id: bytes) -> None:
        self.participants[round_id].names_due()

    @on_timer(TreeTimer.LEVEL.value)
    def level_due(self, round_id: bytes) -> None:
        self.participants[round_id].timer_fired(TreeTimer.LEVEL)

    @on_timer(TreeTimer.INVITE.value)
    def invite_due(self, round_id: bytes) -> None:
        self.participants[round_id].timer_fired(TreeTimer.INVITE)

    @on_timer(TreeTimer.RESERVE.value)
    def reserve_due(self, round_id: bytes) -> None:
        self.participants[round_id].timer_fired(TreeTimer.RESERVE)

    @on_timer(PIECES_TIMER)
    def pieces_due(self, round_id: bytes) -> None:
        splitting = self.participants[round_id].splitting
        if splitting is not None:
            splitting.due()

    def neighbours_changed(self) -> None:
        """The leaf set changed."""
        for participant in list(self.participants.values()):
            participant.neighbourhood_changed()

    def peer_down(self, peer: PeerRef) -> None:
        """No link to this node can be had."""
        for participant in list(self.participants.values()):
            participant.peer_down(peer)

    def validate(self) -> None:
        """Assert what holds of each participant, and that what is kept is within its bounds."""
        for participant in self.participants.values():
            participant.validate()
        assert len(self._ended) <= ENDED_MAX
        assert len(self._asking) <= ASKS_MAX
        assert len(self._early) <= EARLY_MAX

    def _forget(self, round_id: bytes, outcome: str) -> None:
        """No state of a round that has ended is kept, but its id: late messages must not start it anew."""
        self._ends(round_id, "")
        participant = self.participants.pop(round_id, None)
        if participant is not None:
            self._host.cancel_timer("round_expired", round_id)
            participant.leave(outcome)
            self._host.gauge("peerd_aggregation_open_rounds", len(self.participants))

    def _ends(self, round_id: bytes, reason: str) -> None:
        self._ended[round_id] = reason
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
