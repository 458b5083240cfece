"""One node's part in one round: it enrols, extracts its data, has a tree swap it, and offers the result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from peerd.api import (
    AcceptSwap,
    Host,
    RefuseSwap,
    Scratch,
    SwapCallbacks,
    SwapDecision,
    SwapRequest,
    WorkHandle,
    WorkLimits,
    value_size_bytes,
)
from peerd.errors import Unavailable
from peerd.ids import format_id, id_to_bytes
from peerd.messages import Message, PeerRef
from protocols.aggregation.config import ROUND_S_MAX, AggregationConfig
from protocols.aggregation.effects import TreePhase, TreeTimer
from protocols.aggregation.enrolments import Participations, enrolment
from protocols.aggregation.events import RoundExtracted, RoundLeft, RoundStarted, query_text
from protocols.aggregation.exchange import (
    EXTRACTION_MODULES,
    Aggregate,
    Extractor,
    extract_own,
    open_own,
)
from protocols.aggregation.messages import (
    CARRIED_BYTES_MAX,
    AnswerKind,
    Enrolled,
    Invite,
    InviteAnswer,
    NameNodes,
    NamesWanted,
    NodeState,
    Noted,
    PieceTold,
    Propose,
    ProposeAnswer,
    ResultReady,
    RoundStatus,
    StartRound,
)
from protocols.aggregation.partial import PARTIAL_BYTES_MAX
from protocols.aggregation.patience import LevelPatience, patience_s
from protocols.aggregation.prefix import HostNeighbourhood, neighbourhood_of
from protocols.aggregation.query import Query
from protocols.aggregation.statements import enrolled_statement

if TYPE_CHECKING:
    from protocols.aggregation.swapping import Ahead
    from protocols.aggregation.tree import BinomialTree
    from protocols.aggregation.treerun import TreeRun

TELL_TIMEOUT_S: Final = 5.0
TELL_TRIES_MAX: Final = 4
"""So often a node tells a silent requester that its result is ready, and whoever asks that it takes part."""
ENROL_TRIES_MAX: Final = 6
"""So often it tells it unasked that it takes part, and then leaves. A requester with a slow link needs many seconds to
answer a thousand nodes."""
TELL_PAUSE_S: Final = 1.0
"""Between a try that was not answered and the next one; through the overlay twice as long after each try."""
ENROL_TIMER: Final = "enrol_due"
NAMES_TIMER: Final = "names_awaited"
NAMES_WAIT_S: Final = 2.0
"""So long a node with a large value waits until the requester names all nodes; then it swaps by ids."""
EARLY_NAMED_MAX: Final = 32
"""Messages about a tree of named nodes that a node keeps until it is told the names."""
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
        self.own: Aggregate | None = None
        """What this node has extracted itself, for a requester whose result lacks it."""
        self.is_over = False
        self._on_result = on_result
        self._on_refused = on_refused
        self._is_enrolled = not start.census
        self.shown = Participations(host, self.round_id)
        self._enrol_tries = 0
        self._confirmations = 0
        self._offer_tries = 0
        self._extraction: WorkHandle | None = None
        self._drop_file: Callable[[], None] = lambda: None
        """Removes the file that a worker writes its result to, if it goes in slices."""
        self._patience = patience
        self._may_be_named = start.may_name and start.census and not start.nodes
        self._names_awaited: bool | None = None
        """Whether a large value waits for the names; ``None`` before there is one."""
        self._ahead: Ahead | None = None
        self._early: list[tuple[Invite | PieceTold, PeerRef]] = []
        """What has overtaken the names."""
        from protocols.aggregation.splitting import Splitting  # with the first round

        self.run = self._new_run(neighbourhood_of(host, start.nodes, start.requester.id))
        self.splitting = Splitting.of_round(host, start, query, self, self.run)
        """The exchange in pieces, unless it is known not to come."""
        host.emit(RoundStarted(round=self.name, requester=format_id(start.requester.id), query=query_text(query)))

    @property
    def name(self) -> str:
        """The round's id as people and logs see it."""
        return self.round_id.hex()

    @property
    def tree(self) -> BinomialTree:
        """What swaps with whom."""
        return self.run.tree

    @property
    def aggregate(self) -> Aggregate | None:
        """What the tree holds by now; ``None`` before this node's own data is there."""
        return self.run.aggregate

    @aggregate.setter
    def aggregate(self, aggregate: Aggregate) -> None:
        self.run.aggregate = aggregate

    def _new_run(self, neighbourhood: HostNeighbourhood, *, is_named: bool = False) -> TreeRun:
        from protocols.aggregation.treerun import TreeRun  # with the first round

        parts = self.host, self.config, self.start, neighbourhood, self._patience, self.shown, self
        return TreeRun(*parts, is_named=is_named)

    # Enrolment

    def enrol(self) -> None:
        """Tell the requester, again if need be, that this node takes part.

        The enrolment is on its way before the data is, by links which are there already: that to a requester in the
        leaf set, which need not be signed and is answered by a word, or those of the overlay. A link of its own in a
        small ring is for those whom some hop does not let through. Nobody waits for the answer where values ride: those
        who get one can show who takes part. Of a swap they could not.
        """
        if self._is_enrolled or self.is_over:
            return
        if self._enrol_tries >= ENROL_TRIES_MAX:
            self._on_refused(self, "requester_silent")
            return
        host, requester = self.host, self.requester
        is_near = any(peer.id == requester.id for peer in host.leaf_set().members())
        routed_try = 1 if is_near else 0
        is_routed = self._enrol_tries == routed_try or not (self.start.is_direct or is_near)
        self._enrol_tries += 1
        enrolled = enrolment(host, self.round_id, "", is_signed=is_routed and requester.id != host.id)
        if requester.id == host.id:
            host.send(requester, enrolled)
            self.noted()
        elif is_routed:
            host.route(requester.id, enrolled)
            host.set_timer(ENROL_TIMER, TELL_PAUSE_S * 2 ** (self._enrol_tries - 1), self.round_id)
        elif self._enrol_tries == 1:
            within_s = patience_s(TELL_PAUSE_S, self.run.neighbourhood.rtt_s(requester))
            host.request(requester, enrolled, within_s, self._enrol_answered, self.enrol)
        else:
            host.request(requester, enrolled, TELL_TIMEOUT_S, self._enrol_answered, self._enrol_unanswered)

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
        is_large, rides = value_size_bytes(aggregate.value) >= self.config.pieces_from, self.run.rides
        if not rides and self._waits_for_names(value_size_bytes(aggregate.value)):
            return
        if not rides and (splitting is None or not is_large):
            self.run.look_ahead()
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
        self.run.begin()

    # Names

    def _waits_for_names(self, value_bytes: int) -> bool:
        """Whether to wait until the requester names all nodes. Those next to it let it know that a value is large."""
        if not self._may_be_named or self.run.is_named:
            return False
        if self._names_awaited is None:
            self._names_awaited = True
            self._ahead = self.run.open_ahead()
            self.host.set_timer(NAMES_TIMER, NAMES_WAIT_S, self.round_id)
            near = {self.host.id, *(peer.id for peer in self.host.leaf_set().members())}
            if self.requester.id in near:
                self.host.send(self.requester, NamesWanted(self.round_id, value_bytes))
        return self._names_awaited

    def names_due(self) -> None:
        """The requester names nobody: swap by ids."""
        self._names_awaited = False
        self._close_ahead()
        if self.tree.phase is TreePhase.IDLE:
            self._begin()

    def _close_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.drop()
            self._ahead = None

    def named(self, names: NameNodes) -> None:
        """The requester names all nodes that take part: begin anew, by their places."""
        if self.run.is_named or not self._may_be_named or self.is_over:
            return
        from protocols.aggregation.prefix import PlacedNeighbourhood
        from protocols.aggregation.splitting import Splitting

        for timer in (NAMES_TIMER, OFFER_TIMER):
            self.host.cancel_timer(timer, self.round_id)
        self.run.stop()
        self._offer_tries = 0
        nodes = {peer.id: peer for peer in names.nodes}
        around = PlacedNeighbourhood(self.host, tuple(nodes), self.requester.id, nodes)
        self.run = self._new_run(around, is_named=True)
        self.run.aggregate = self.own
        if self._ahead is not None:
            self.run.take(self._ahead)
        self._close_ahead()
        if names.in_pieces:
            self.splitting = Splitting.of_round(self.host, self.start, self.query, self, self.run, is_agreed=True)
        if self.host.id in nodes:
            self.noted()
        if self.tree.phase is TreePhase.IDLE and not (self.splitting is not None and self.splitting.is_under_way):
            self._begin()
        early, self._early = self._early, []
        for message, source in early:
            match message:
                case Invite():
                    self.invite_received(message, source)
                case PieceTold():
                    self.piece_told(message, source)

    # Pieces

    def piece_told(self, told: PieceTold, source: PeerRef) -> None:
        """Another node says how far it is with the pieces."""
        if self.splitting is not None:
            self.splitting.told(source, told)
        elif self._may_be_named and not self.run.is_named:
            self._keep_early(told, source)

    def pieces_held(self) -> None:
        """This node has done its part, and waits for the round's end."""
        self.idle_since = self.host.now()

    def pieces_joined(self, aggregate: Aggregate) -> None:
        """At the requester: the value of all nodes."""
        self.aggregate = aggregate
        self.run.apply(self.tree.complete(frozenset(aggregate.partial.contributors)))

    def goes_whole(self) -> None:
        """Nothing has come of the pieces: go on with whole values, as soon as the data is here and may go to others."""
        if not self.is_over and self.tree.phase is TreePhase.IDLE:
            self._begin()

    def swaps_whole(self) -> None:
        """Somebody swaps whole values: then all have to."""
        if self.splitting is not None:
            self.splitting.go_whole()

    # Result

    def tree_done(self, outcome: str) -> None:
        """The tree holds every level, or swaps no more."""
        self.idle_since = self.host.now()
        if outcome == "result":
            self._on_result(self)

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
        contributors, value_bytes = len(self.aggregate.partial.contributors), value_size_bytes(self.aggregate.value)
        is_own = self.requester.id == self.host.id
        carried = b"" if is_own else self.aggregate.within(CARRIED_BYTES_MAX)
        ready = ResultReady(self.round_id, contributors, value_bytes, self.run.is_named, carried)
        if is_own:
            self.host.send(self.requester, ready)
        else:
            unanswered = partial(self._offer_unanswered, self.run)
            self.host.request(self.requester, ready, TELL_TIMEOUT_S, self._offer_answered, unanswered)

    def _offer_answered(self, reply: Message, source: PeerRef) -> None:
        if not isinstance(reply, Noted) and not self.is_over:
            self._on_refused(self, "stopped")

    def _offer_unanswered(self, run: TreeRun) -> None:
        if not run.is_over:  # else there is another tree, which may not be complete
            self.host.set_timer(OFFER_TIMER, TELL_PAUSE_S, self.round_id)

    def result_due_s(self) -> float:
        """How long to wait for the result of this node's tree rather than fetch that of another.

        A last swap that takes about as long as those before is over sooner than a fetch beside it, with half of the
        link. Where there is none under way it is 0.
        """
        return self.run.due_s()

    # Own data

    def extract(
        self,
        extractor: Extractor,
        padding_bytes: int,
        scratch: Scratch,
        on_failed: Callable[[Participant, str], None],
    ) -> None:
        """Read this node's data off the loop, then begin swapping."""
        began_at = self.host.now()
        try:
            path = scratch.new_file() if self.query.is_sliced else ""
        except Unavailable as error:
            on_failed(self, f"extraction failed: {error}")
            return

        if path:
            self._drop_file = partial(scratch.drop_file, path)

        def extracted(data: bytes) -> None:
            arguments = self.query, self.host.id, padding_bytes, bytes(data), path, scratch
            self.host.offload(open_own, *arguments, done=done, failed=failed)

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
        arguments = (extractor, self.query, self.host.id, path, scratch)
        self._extraction = self.host.offload(extract_own, *arguments, done=extracted, failed=failed, within=within)

    # Messages

    def invite_received(self, invite: Invite, source: PeerRef) -> None:
        """Somebody would swap with us, or meant to reach somebody of a prefix that we do not have."""
        self.shown.keep(source, invite.shown)
        if invite.named == self.run.is_named:
            self.run.invite_received(invite, source)
        elif not invite.named:  # it has not been told the names yet
            self.host.send(source, InviteAnswer(self.round_id, invite.level, AnswerKind.ABSENT))
        elif self._may_be_named:
            self._keep_early(invite, source)

    def _keep_early(self, message: Invite | PieceTold, source: PeerRef) -> None:
        if len(self._early) < EARLY_NAMED_MAX:
            self._early.append((message, source))

    def answer_received(self, answer: InviteAnswer, source: PeerRef) -> None:
        """Take the answer of an invited node."""
        self.shown.keep(source, answer.shown)
        if answer.named == self.run.is_named:
            self.run.answer_received(answer, source)

    def proposal_received(self, proposal: Propose, source: PeerRef) -> ProposeAnswer:
        """Decide at once whether to swap with the proposer."""
        if proposal.named != self.run.is_named:
            return ProposeAnswer(self.round_id, False, _verdict_on(proposal.named))
        return self.run.proposal_received(proposal.level, source)

    def swap_requested(self, request: SwapRequest, level: int | None) -> SwapDecision:
        """The partner opens the swap that we agreed to; without a level, of nodes that were named."""
        is_named = level is None
        if is_named != self.run.is_named:
            return RefuseSwap(_verdict_on(is_named).name.lower())
        return self.run.swap_requested(request, level)

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

    def status(self, asker: PeerRef) -> RoundStatus:
        """Return what to tell a requester that misses our data."""
        own = self.own if asker.id == self.requester.id else None
        carried = b"" if own is None else own.within(CARRIED_BYTES_MAX)
        if self.splitting is not None and self.splitting.is_under_way:
            return RoundStatus(self.round_id, NodeState.RUNNING, 0, "pieces", carried)
        if own is not None and self.tree.phase is TreePhase.IDLE:
            return RoundStatus(self.round_id, NodeState.RUNNING, 0, "about to begin", carried)
        level = 0 if self.tree.level is None else self.tree.level
        state = _STATES.get(self.tree.phase, NodeState.RUNNING)
        return RoundStatus(self.round_id, state, level, f"level {level}" if state is NodeState.RUNNING else "", carried)

    # Events of the host

    def timer_fired(self, timer: TreeTimer) -> None:
        """Handle a timer of the tree that is due."""
        self.run.apply(self.tree.timer_fired(timer))

    def peer_down(self, peer: PeerRef) -> None:
        """No link to this node can be had."""
        self.run.apply(self.tree.peer_down(peer))

    def neighbourhood_changed(self) -> None:
        """Take note of a changed leaf set."""
        if self.splitting is not None:
            self.splitting.neighbours_changed()
        self.run.apply(self.tree.neighbourhood_changed())

    def leave(self, outcome: str) -> None:
        """Forget the round: no timer, swap or value stays."""
        if self.is_over:
            return
        self.is_over = True
        if self._extraction is not None:
            self._extraction.cancel()
        self._drop_file()
        for timer in (ENROL_TIMER, OFFER_TIMER, NAMES_TIMER):
            self.host.cancel_timer(timer, self.round_id)
        self._close_ahead()
        self.run.stop()
        if self.splitting is not None:
            self.splitting.leave()
        contributors = 0 if self.aggregate is None else len(self.aggregate.partial.contributors)
        self.own = None
        self.run.drop_values()
        duration_s = self.host.now() - self.started_at
        self.host.emit(
            RoundLeft(round=self.name, outcome=outcome, contributors=contributors, duration_s=max(0.0, duration_s))
        )

    def validate(self) -> None:
        """Assert what holds of the tree and the pieces."""
        self.run.validate()
        if self.splitting is not None:
            self.splitting.pieces.validate()
        assert len(self._early) <= EARLY_NAMED_MAX


def _verdict_on(is_named: bool) -> AnswerKind:
    """What to answer whoever asks for a swap of a tree of named nodes, of which nothing is known here yet; or for one
    of the tree before, which is no more."""
    return AnswerKind.MAYBE_LATER if is_named else AnswerKind.ABSENT
