"""San Fermín aggregation as a plugin: puts its two sides together, asking for rounds and taking part in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from peerd.api import (
    HistorySize,
    Host,
    Metric,
    NeighbourChange,
    Plugin,
    PluginConfig,
    RefuseSwap,
    SwapDecision,
    SwapRequest,
)
from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from protocols.aggregation.config import AggregationConfig, FileSelection, Share
from protocols.aggregation.events import EVENTS
from protocols.aggregation.exchange import (
    MERGED,
    NAMED_SWAP,
    OWN,
    PIECE,
    RESULT,
    SWAP,
    Extractor,
    FileExtractor,
    OwnData,
)
from protocols.aggregation.messages import (
    MESSAGES,
    ConfirmContribution,
    Enrolled,
    FindEnrolment,
    GiveAnswer,
    Invite,
    NameNodes,
    Noted,
    ShownEnrolment,
    StartRound,
    StopRound,
)
from protocols.aggregation.participating import ENDED_MAX, Participating
from protocols.aggregation.requesting import ASKED_MAX, Requesting
from protocols.aggregation.statements import ROUND_ID_BYTES

if TYPE_CHECKING:
    from protocols.aggregation.answers import GivenAnswers

NOBODY_THERE: Final = frozenset({"refused", "unreachable", "timeout", "backoff", "stopping"})
"""Why there is no link to a node whose process has ended. Other reasons are those of one that lives and has no room."""
ROUND_BYTES: Final = 300
"""What remembering a round takes, at most."""


class Aggregation(Plugin):
    """Aggregates a function of every node's files over all nodes (Cappos and Hartman 2008).

    ``requesting`` asks for rounds, and ``participating`` takes part in them with ``data``.
    """

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
        self.data = OwnData(self._files())
        """Simulations set another one."""

    def start(self, host: Host) -> None:
        super().start(host)
        self.participating = Participating(host, self.config, self.data)
        self.requesting = Requesting(host, self.config, self.participating.participants)
        self.participating.tree_finished = self.requesting.tree_finished
        self.participating.is_asked = self.requesting.requesters.__contains__
        self.add_parts(self.participating, self.requesting)

    @cached_property
    def answers(self) -> GivenAnswers:
        """The answers that this node was given."""
        from protocols.aggregation.answers import GivenAnswers  # most nodes are given none

        return GivenAnswers(self.host)

    def reconfigured(self) -> None:
        """Rounds that begin from now on read other files, and wait for other times."""
        self.data.extractor = self._files()
        self.participating.config = self.requesting.config = self.config

    def _files(self) -> Extractor | None:
        if not self.config.data_root:
            return None
        share = Share.parse(self.config.share) if self.config.share else None
        return FileExtractor(Path(self.config.data_root), FileSelection(share=share), self.config.regex_engine)

    def deliver(self, key: NodeId, message: Message, source: PeerRef) -> None:
        """Only what is broadcast or routed on purpose is taken from there, where anybody may have made up the source.

        So it is signed, but for invitations. All else tells about its sender, and is taken from the sender's own link.
        """
        match message:
            case StartRound():
                self.participating.start_told(message)
            case StopRound():
                self.participating.stop_routed(message)
            case GiveAnswer():
                self.participating.answer_routed(message)
                self.answers.take(message)
            case Enrolled():
                self.requesting.enrolled_routed(message, source)
            case NameNodes():
                self.participating.names_routed(message)
            case Noted():
                self.participating.noted_routed(message)
            case FindEnrolment():
                self.participating.find_routed(message)
            case ShownEnrolment():
                self.requesting.on_shown_enrolment(message, source)
            case ConfirmContribution():
                self.participating.confirm_routed(message)
            case Invite() if message.value:
                raise ProtocolError("not_direct", "a value rides on its giver's own link only")
            case Invite() if key != self.host.id:
                self.participating.on_invite(message, source)
            case Invite():  # broadcast, it would have every node answer a source that somebody has made up
                raise ProtocolError("not_routed", "an Invite is sent to one node, or routed to an id of a prefix")
            case _:
                raise ProtocolError("not_direct", f"a {type(message).__name__} comes from its sender's own link only")

    def swap_requested(self, request: SwapRequest) -> SwapDecision:
        kind, round_id, rest = request.tag[:1], request.tag[1 : 1 + ROUND_ID_BYTES], request.tag[1 + ROUND_ID_BYTES :]
        participant = self.participating.participants.get(round_id)
        if participant is None:
            return RefuseSwap("no_such_round")
        if kind == SWAP and len(rest) == 1 and not request.is_fetch:
            return participant.swap_requested(request, rest[0])
        if kind == NAMED_SWAP and not rest and not request.is_fetch:
            return participant.swap_requested(request, None)
        splitting = participant.splitting
        if kind == PIECE and not rest and not request.is_fetch and splitting is not None:
            return splitting.piece_requested(request.peer)
        if kind == MERGED and not rest and splitting is not None:
            return splitting.merged_requested(request.peer)
        if kind == RESULT and not rest and request.is_fetch:
            return participant.result_requested(request.peer)
        if kind == OWN and not rest and request.is_fetch:
            return participant.own_requested(request.peer)
        return RefuseSwap("bad_tag")

    def neighbours_changed(self, change: NeighbourChange) -> None:
        self.participating.neighbours_changed()
        self.requesting.neighbours_changed()

    def peer_down(self, peer: PeerRef, reason: str) -> None:
        if reason in NOBODY_THERE:
            self.participating.peer_down(peer)

    def histories(self) -> Sequence[HistorySize]:
        count = self.participating.ended_count + self.requesting.asked_count
        bytes_max = (ENDED_MAX + ASKED_MAX) * ROUND_BYTES
        rounds = HistorySize("rounds that have ended", count, count * ROUND_BYTES, bytes_max)
        return (rounds, self.answers.size()) if "answers" in vars(self) else (rounds,)

    def validate(self) -> None:
        self.participating.validate()
        self.requesting.validate()
