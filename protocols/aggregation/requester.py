"""The requester's part in a round: collects offers, fetches the best result, asks why nodes are missing, answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from peerd.api import Host, SwapCallbacks, SwapHandle, Value, value_size_bytes
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId, format_id
from peerd.messages import PeerRef
from protocols.aggregation.answer import Answer, Rejected, RoundProgress, Shares, value_of
from protocols.aggregation.collector import (
    DIRECT_CENSUS_MAX,
    ENROLMENTS_S,
    ENROLMENTS_TIMER,
    GATHER_TIMER,
    NAMING_TIMER,
    OWN_TIMER,
    Candidate,
    Collector,
    Missing,
)
from protocols.aggregation.config import AggregationConfig
from protocols.aggregation.events import ResultRejected, RoundFinished, query_text
from protocols.aggregation.exchange import Aggregate, decode_value, is_givers_fault, merge_all, result_tag
from protocols.aggregation.figures import Figure, Figures, GroupedAnswer
from protocols.aggregation.leftovers import Leftovers
from protocols.aggregation.messages import (
    NAMED_MAX,
    NAMES_BYTES_MAX,
    PLACED_MAX,
    Enrolled,
    FindEnrolment,
    NameNodes,
    ResultReady,
    ShownEnrolment,
)
from protocols.aggregation.partial import ExtractionReport, Partial
from protocols.aggregation.participant import Participant
from protocols.aggregation.pieces import PIECES_NODES_MAX, PIECES_NODES_MIN
from protocols.aggregation.prefix import HostNeighbourhood
from protocols.aggregation.query import Query
from protocols.aggregation.spotcheck import NOBODY_ASKED, Checked, SpotCheck, unchecked
from protocols.aggregation.statements import find_statement, names_statement

REJECTED_MAX: Final = 16
"""Nodes that an answer names because it did not take their result."""
FOUND_MAX: Final = 64
"""For so many contributors of a result that have not enrolled the requester looks for their enrolments."""
FINDERS: Final = 4
"""So many nodes are asked for each: those to which it is likeliest that it has given its data."""
SOUND_RESULT_S: Final = 3.0
"""So long after an unsound result a sound one is waited for; then the requester fetches the nodes' own data."""
NAMING_S: Final = 1.5
"""So long after a round's beginning all are waited for that are to be named: who is not heard has said it twice."""
FINISHED_AT_ONCE_MAX: Final = 1024
"""An answer of more groups is made off the event loop."""
FETCHES_MAX = 8
"""Results that a requester fetches in one round because each claims to be fuller than the one before."""


@dataclass(frozen=True, slots=True)
class RoundListener:
    """The callbacks of whoever asked. ``finished`` is called exactly once."""

    finished: Callable[[Answer], None]
    progress: Callable[[RoundProgress], None] | None = None
    top: int | None = None
    """How many groups the answer lists; all by default."""
    to: str = ""
    """Who is given the answer, too: a filter on the tags of nodes (`protocols.aggregation.answers`); empty: nobody."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The result that the answer is made of."""

    partial: Partial
    value_bytes: int
    moved_bytes: int
    computed_by: NodeId
    checked: Checked = NOBODY_ASKED


def _own_result(aggregate: Aggregate, own: NodeId) -> Taken:
    """What the requester's own tree holds."""
    return Taken(aggregate.partial, value_size_bytes(aggregate.value), aggregate.moved_bytes, own)


def census_of(ring_size: float, config: AggregationConfig) -> tuple[bool, bool]:
    """Whether the nodes of so large a ring enrol, and whether on links of their own."""
    return ring_size <= config.census_max, ring_size <= DIRECT_CENSUS_MAX


class Requester:
    """State of one round at the node that asked. ``own_aggregate`` tells what its own tree holds so far."""

    def __init__(
        self,
        host: Host,
        config: AggregationConfig,
        round_id: bytes,
        query: Query,
        listener: RoundListener,
        on_answered: Callable[[bytes, Answer, str], Answer],
        with_census: bool,
        part: Callable[[], Participant | None],
        may_name: bool = False,
    ) -> None:
        self.host = host
        self._part = part
        """The part of this node in the round, with a tree of its own."""
        self.round_id = round_id
        self.query = query
        self.own_aggregate: Aggregate | None = None
        self.is_answered = False
        self._config = config
        self._listener = listener
        self._on_answered = on_answered
        self._began_at = host.now()
        estimate = host.estimated_ring_size()
        self.with_census = with_census
        leaf_set, missing = host.leaf_set(), host.missing_members()
        near = len(leaf_set.members()) + 1
        expected = estimate * (near + len(missing)) / near  # as many are missing elsewhere as round this node
        self.collector = Collector.start(host.peer, leaf_set, expected, self.with_census, missing, host.now())
        self._fetching: PeerRef | None = None
        """The node whose result is being fetched or decoded."""
        self._fetch: SwapHandle | None = None
        self._claimed = 0
        """How many contributors the result that is being fetched is said to have."""
        self._fetches = 0
        self._settle_until: float | None = None
        """Until then a fuller result is waited for."""
        self._is_closing = False
        self._held: tuple[Partial, Callable[[], None]] | None = None
        """A result that lacks enrolments, and what to do when they have come."""
        self._held_until: float | None = None
        self._is_unsound = False
        """Whether a result was not taken."""
        self._taken: Taken | None = None
        self._own_until: float | None = None
        """Another tree is complete, and this node's own is waited for until then."""
        self._may_name = may_name
        """Whether to name all nodes when somebody's value is large."""
        self._is_named = False
        self._large_bytes = 0
        """What the largest value takes of those that do not ride, as far as is known; 0: there is none."""
        self._rejected: list[Rejected] = []
        self.spot_check = SpotCheck(host, round_id)
        rtt_s = HostNeighbourhood(host).rtt_s
        self._leftovers = Leftovers(
            host, round_id, query, self.collector, rtt_s, config.reserve, self._own, self._gathered
        )

    def tell(self, stage: str, level: int | None = None, contributors: int = 0) -> None:
        """Report progress to whoever asked."""
        if self._listener.progress is None or self.is_answered:
            return
        self._listener.progress(
            RoundProgress(
                self.round_id.hex(),
                stage,
                len(self.collector.enrolled),
                self.collector.expected_count(),
                contributors,
                level,
                self.host.now() - self._began_at,
            )
        )

    def enrolled(self, peer: PeerRef, enrolled: Enrolled) -> None:
        """Take note that a node takes part, or why it does not."""
        self.collector.enrol(peer, enrolled.reason, enrolled.absent, self.host.now(), enrolled.successor)
        self._leftovers.lives(peer.id)
        self.tell("enrolled")
        if self._large_bytes and self.collector.have_all_enrolled:
            self.naming_due()
        if self.collector.is_pointless:
            self.expire()
        elif self._held is None:
            if self.collector.candidates:
                self._consider()
        elif not self.collector.strangers(self._held[0].contributors):
            self.enrolments_due()

    # Names

    def names_wanted(self, peer: PeerRef, value_bytes: int) -> None:
        """A node's value is large: name all, as soon as all have enrolled, or those that have, after a while."""
        if not self._may_name or peer.id not in {self.host.id, *self.collector.enrolled}:
            return
        if not self._large_bytes:
            after_s = max(0.0, self._began_at + NAMING_S - self.host.now())
            self.host.set_timer(NAMING_TIMER, after_s, self.round_id)
        self._large_bytes = max(self._large_bytes, value_bytes)
        if self.collector.have_all_enrolled:
            self.naming_due()

    def naming_due(self) -> None:
        """Name the nodes, unless there is a result already."""
        self.host.cancel_timer(NAMING_TIMER, self.round_id)
        if not self._may_name or self._is_closing or self.collector.candidates or self._fetches:
            return
        self._may_name = False
        nodes = tuple(self.collector.takers)
        if len(nodes) > NAMED_MAX or sum(len(peer.packed) for peer in nodes) > NAMES_BYTES_MAX:
            return
        in_pieces = self._are_for_pieces(len(nodes))
        proof = self.host.sign(names_statement(self.round_id, nodes, in_pieces))
        self._is_named, self.own_aggregate = True, None
        self.host.broadcast(NameNodes(self.round_id, nodes, in_pieces, proof))

    def _are_for_pieces(self, nodes: int) -> bool:
        """Whether values go in pieces: these are large enough to be worth a connection each."""
        is_worth_it = self._large_bytes >= self._config.pieces_from * max(1.0, nodes / PLACED_MAX)
        return bool(self.query.by) and PIECES_NODES_MIN <= nodes <= PIECES_NODES_MAX and is_worth_it

    def expects(self, node: NodeId) -> bool:
        """Whether what this node says of its part is of use: each node's with a census, else those that were asked."""
        return self.with_census or self.spot_check.expects(node)

    def offered(self, ready: ResultReady, peer: PeerRef) -> None:
        """Take note of a complete tree, which may be our own: then nothing as full need be fetched any more."""
        if ready.named != self._is_named:
            return  # of the tree before all were named
        self.collector.offered(Candidate(peer, ready.contributors, ready.value_bytes, ready.value))
        self.tell("result_ready", 0, ready.contributors)
        if peer.id == self.host.id and self._fetch is not None and ready.contributors >= self._claimed:
            self._fetch.cancel()
        self._consider()

    def settled(self) -> None:
        """Answer with what there is, as no fuller result came in time."""
        self._settle_until = None
        self._take_best()

    def neighbours_changed(self) -> None:
        """The leaf set changed: perhaps the nodes that this round waits for are known to be dead now."""
        self._consider()

    def gather(self) -> None:
        """Fetch the nodes' own data: the deadline is near, and no tree is complete, or what trees have is unsound."""
        is_busy = self.collector.best() is not None or self._fetching is not None
        if self._taken is not None or self._is_closing or (is_busy and not self._is_unsound):
            return
        own = self.own_aggregate
        if self.with_census or own is None or not self._is_sound(own.partial, self.host.peer):
            self.expire(has_time=True)
        else:
            self._check(_own_result(own, self.host.id), self.host.peer, self._own_checked)

    def _own_checked(self) -> None:
        """What the own tree holds was checked; perhaps a tree was completed meanwhile."""
        if self._taken is None and self.collector.best() is None:
            self._close()
        else:
            self._take_best()

    def expire(self, *, has_time: bool = False) -> None:
        """Answer with what there is, as the deadline has come or is near."""
        if self._is_closing:
            self._leftovers.stop()
            return
        self._is_closing = True
        self.spot_check.stop()
        own = self.own_aggregate
        if own is not None and self._is_better(own.partial) and self._is_sound(own.partial, self.host.peer):
            self._taken = _own_result(own, self.host.id)
            if not self.with_census:
                self._taken = replace(self._taken, checked=unchecked(len(own.partial.contributors) - 1))
        self._close(has_time=has_time)

    def _is_better(self, own: Partial) -> bool:
        """Whether to answer with what the own tree holds, at the end. It was not checked, if nobody has enrolled."""
        if not self.with_census:
            return self._taken is None and self.host.id not in self.collector.failed
        return self._taken is None or len(own.contributors) > len(self._taken.partial.contributors)

    def _consider(self) -> None:
        best = self.collector.best()
        if self._fetching is not None or self._is_closing:
            return
        if best is None:
            if self.collector.candidates and self._held_until is None:  # they hold more than have enrolled so far
                self._held_until = self.host.now() + ENROLMENTS_S
                self.host.set_timer(ENROLMENTS_TIMER, ENROLMENTS_S, self.round_id)
            return
        live = [peer.id for peer in self.host.leaf_set().members()]
        if self.collector.is_full(best.contributors, live):
            self.host.cancel_timer("settle_due", self.round_id)
            self._settle_until = None
            if best.peer.id == self.host.id or not self._own_comes_first():
                self._take_best()
            return
        if self._settle_until is None:
            self._settle_until = self.host.now() + self._config.settle
            self.host.set_timer("settle_due", self._config.settle, self.round_id)
        if self.own_aggregate is not None and not self._leftovers.has_asked_ahead:
            missing = self.collector.missing(self.own_aggregate.partial.contributors)
            self._leftovers.ask_ahead(missing, self._answered_ahead)

    def _answered_ahead(self) -> None:
        """Once all that the own result lacks are gone, or have given their data, no tree can bring more."""
        due_s, now = self._leftovers.all_known_in_s(), self.host.now()
        if due_s is not None and self._settle_until is not None and now + due_s < self._settle_until:
            self._settle_until = now + due_s
            self.host.cancel_timer("settle_due", self.round_id)
            self.host.set_timer("settle_due", due_s, self.round_id)

    def _own_comes_first(self) -> bool:
        """Whether to wait for the own tree, although another one is complete: its last swap is under way."""
        part, now = self._part(), self.host.now()
        if part is None:
            return False
        if self._own_until is None:
            due_s = part.result_due_s()
            self._own_until = now + due_s
            if due_s:
                self.host.set_timer(OWN_TIMER, due_s, self.round_id)
        return now < self._own_until and not part.tree.is_over

    def own_due(self) -> None:
        """The own tree is not complete in time."""
        self._consider()

    def _own(self) -> Partial | None:
        part = self._part()
        return None if part is None or part.own is None else part.own.partial

    def _shown(self, node: NodeId) -> ShownEnrolment | None:
        part = self._part()
        return None if part is None else part.shown.about(node)

    def _take_best(self) -> None:
        """Take the fullest result that is offered, unless one as full is here: then the round is done. It is fetched,
        if it did not come with the offer."""
        if self._fetching is not None or self._is_closing:
            return
        taken = self._taken
        best = self.collector.best(0 if taken is None else len(taken.partial.contributors))
        if taken is not None and (best is None or self._fetches >= FETCHES_MAX):
            self._close()
            return
        if best is None:
            return
        if best.peer.id == self.host.id and self.own_aggregate is not None:
            self._take(_own_result(self.own_aggregate, self.host.id), self.host.peer)
            return
        self._fetching, self._claimed = best.peer, best.contributors
        self._fetches += 1
        if best.value:
            self._fetched(best.contributors, best.value)
            return
        self.tell("fetching", 0, best.contributors)
        callbacks = SwapCallbacks(done=partial(self._fetched, best.contributors), failed=self._fetch_failed)
        self._fetch = self.host.fetch(best.peer, result_tag(self.round_id), callbacks, self._config.swap_deadline)

    def _is_sound(self, result: Partial, giver: PeerRef) -> bool:
        """Whether all its contributors take part in the round; its giver is noted when not."""
        try:
            self.collector.check_contributors(result.contributors)
        except ProtocolError as error:
            self._reject(giver, error)
            return False
        return True

    def _take(self, found: Taken, giver: PeerRef) -> None:
        """Take a result, if it is sound and fuller than what is here; it may have come before all have enrolled."""
        now, contributors = self.host.now(), found.partial.contributors
        strangers = self.collector.strangers(contributors)
        if strangers and (self._held_until is None or now < self._held_until):
            if self._held_until is None:
                self._held_until = now + ENROLMENTS_S
            self._fetching, self._held = giver, (found.partial, partial(self._take, found, giver))
            self.host.cancel_timer(ENROLMENTS_TIMER, self.round_id)
            self.host.set_timer(ENROLMENTS_TIMER, self._held_until - now, self.round_id)
            self._find_enrolments(strangers, contributors)
            return
        if not self._is_sound(found.partial, giver):
            self._gather_soon()
        else:
            self.collector.have_fetched(giver)
            if self._taken is None or len(contributors) > len(self._taken.partial.contributors):
                self._check(found, giver, self._take_best)
                return
        # A fuller result may have been offered in the meantime.
        self._take_best()

    def _gather_soon(self) -> None:
        """Somebody lied, or gave its data and died before it had enrolled: all trees may have what cannot be taken."""
        if not self._is_unsound:
            self._is_unsound = True
            self.host.cancel_timer(GATHER_TIMER, self.round_id)
            self.host.set_timer(GATHER_TIMER, SOUND_RESULT_S, self.round_id)

    def _find_enrolments(self, strangers: Sequence[NodeId], contributors: Sequence[NodeId]) -> None:
        """Ask who may have been given a stranger's own data: those of the contributors that are nearest to its id."""
        for stranger in strangers[:FOUND_MAX]:
            near = sorted((each for each in contributors if each != stranger), key=lambda each: each ^ stranger)
            for node in near[:FINDERS]:
                if node != self.host.id:
                    proof = self.host.sign(find_statement(self.round_id, node, stranger))
                    self.host.route(node, FindEnrolment(self.round_id, stranger, proof))
                elif (shown := self._shown(stranger)) is not None:
                    self.host.send(self.host.peer, shown)

    def enrolments_due(self) -> None:
        """Everybody that the held result names has enrolled, or the time for it is over."""
        self.host.cancel_timer(ENROLMENTS_TIMER, self.round_id)
        held, self._held = self._held, None
        if self._is_closing:
            return
        if held is not None:
            self._fetching = None
            held[1]()
        elif self.collector.best() is None:
            self._gather_soon()

    def _check(self, found: Taken, giver: PeerRef, then: Callable[[], None]) -> None:
        """Take a sound result; where nobody has enrolled, once enough of its contributors have said that they are."""
        if self.with_census:
            self._taken = found
            then()
            return
        self._fetching = giver
        contributors = found.partial.contributors
        self.tell("checking", 0, len(contributors))

        def checked(outcome: Checked) -> None:
            self._fetching = None
            if outcome.is_refuted:
                silent = outcome.asked - outcome.confirmed
                detail = f"of {outcome.asked} contributors that were asked {silent} did not say that they take part"
                self._reject(giver, ProtocolError("invented_contributors", detail))
            elif self._taken is None or not self._is_closing:  # at the end, rather less that was checked
                self._taken = replace(found, checked=outcome)
            if not self._is_closing:
                then()

        self.spot_check.begin(contributors, checked)

    def _reject(self, giver: PeerRef, error: ProtocolError) -> None:
        """A result is not taken. Who invented its contributors is unknown: the giver may have been given them."""
        self.collector.could_not_fetch(giver, str(error))
        if len(self._rejected) < REJECTED_MAX and all(each.node != giver.id for each in self._rejected):
            self._rejected.append(Rejected(giver.id, str(error)))
            self.host.emit(ResultRejected(round=self.round_id.hex(), peer=format_id(giver.id), reason=str(error)))
        self.host.count("peerd_aggregation_rejected_total", reason=error.reason)

    def _fetched(self, claimed: int, value: Value) -> None:
        peer, self._fetch = self._fetching, None
        if peer is None or self._is_closing:
            return

        def decoded(result: tuple[Partial, int]) -> None:
            self._fetching = None
            if self._is_closing:
                return
            fetched, moved_bytes = result
            held = len(fetched.contributors)
            if held != claimed:  # a tree that is complete does not change: this is the giver's own word against itself
                error = ProtocolError("false_claim", f"it holds {held} contributors, and was offered with {claimed}")
                self._reject(peer, error)
                self.host.misbehaved(peer, error)
                self._take_best()
            else:
                size_bytes = value_size_bytes(value)
                self._take(Taken(fetched, size_bytes, moved_bytes + size_bytes, peer.id), peer)

        def failed(error: BaseException) -> None:
            if not isinstance(error, ProtocolError | Unavailable):
                raise error
            self._fetching = None
            if isinstance(error, ProtocolError):
                self._reject(peer, error)
            else:
                self.collector.could_not_fetch(peer, str(error))
            if not self._is_closing:
                self._take_best()
            if isinstance(error, ProtocolError) and is_givers_fault(error):
                self.host.misbehaved(peer, error)

        self.host.offload(decode_value, self.query, value, done=decoded, failed=failed)

    def _fetch_failed(self, reason: str) -> None:
        peer, self._fetching, self._fetch = self._fetching, None, None
        if peer is not None and not self._is_closing:
            self.collector.could_not_fetch(peer, reason)
            self._take_best()

    def _close(self, *, has_time: bool = True) -> None:
        """The result is settled; get from the missing nodes what it lacks, or why it does, all at once; then answer."""
        self._is_closing, self._settle_until = True, None
        for timer in ("settle_due", ENROLMENTS_TIMER, OWN_TIMER, NAMING_TIMER):
            self.host.cancel_timer(timer, self.round_id)
        for candidate in list(self.collector.candidates):
            try:
                self.collector.check_count(candidate.contributors)
            except ProtocolError as error:
                self._reject(candidate.peer, error)
        if self._fetch is not None:
            self._fetch.cancel()
        self._leftovers.ask(self._missing(), has_time=has_time)

    def _missing(self) -> list[PeerRef]:
        return self.collector.missing(() if self._taken is None else self._taken.partial.contributors)

    def _gathered(self) -> None:
        """Add what was fetched from nodes that the result lacks."""
        taken, found = self._taken, self._leftovers.partials
        if not found:
            self._answer(self._missing())
            return

        def merged(result: Partial) -> None:
            value_bytes = 0 if taken is None else taken.value_bytes
            moved_bytes = self._leftovers.moved_bytes + (0 if taken is None else taken.moved_bytes)
            computed_by = self.host.id if taken is None else taken.computed_by
            checked = NOBODY_ASKED if taken is None else taken.checked  # the others have given their data themselves
            self._taken = Taken(result, value_bytes, moved_bytes, computed_by, checked)
            self._answer(self._missing())

        def failed(error: BaseException) -> None:
            if not isinstance(error, ProtocolError | Unavailable):
                raise error
            self._answer(self._missing())

        everything = found if taken is None else [taken.partial, *found]
        self.host.offload(merge_all, everything, done=merged, failed=failed)

    def _answer(self, missing: list[PeerRef]) -> None:
        result = None if self._taken is None else self._taken.partial
        if result is None or (not self.query.is_sliced and result.size <= FINISHED_AT_ONCE_MAX):
            self._give(missing, value_of(result, self._listener.top))
            return

        def failed(error: BaseException) -> None:
            raise error

        top, give = self._listener.top, partial(self._give, missing)
        self.host.offload(value_of, result, top, done=give, failed=failed)

    def _give(self, missing: list[PeerRef], value: Figure | Figures | GroupedAnswer) -> None:
        taken, reasons = self._taken, self._leftovers.reasons
        contributors = () if taken is None else taken.partial.contributors
        expected = self.collector.expected_count()  # never what a result says: its giver may have invented it
        if not self.with_census:  # nobody has enrolled: a contributor counts as well
            expected = max(expected, len(contributors) + len(missing))
        answer = Answer(
            round=self.round_id.hex(),
            query=str(self.query),
            value=value,
            contributors=len(contributors),
            contributor_ids=contributors,
            expected=expected,
            expected_basis=self.collector.basis,
            missing=tuple(
                Missing(peer.id, peer.address, reasons[peer.id], self.collector.lost_s(peer.id, self.host.now()))
                for peer in missing
                if peer.id in reasons
            ),
            missing_count=max(len(missing), expected - len(contributors)),
            report=ExtractionReport() if taken is None else taken.partial.report,
            duration_s=self.host.now() - self._began_at,
            value_bytes=0 if taken is None else taken.value_bytes,
            moved_bytes=0 if taken is None else taken.moved_bytes,
            computed_by=None if taken is None else taken.computed_by,
            files=self.query.files,
            sampled=0 if taken is None else taken.checked.asked,
            confirmed=0 if taken is None else taken.checked.confirmed,
            shares=Shares.of(None if taken is None else taken.partial),
            rejected=tuple(self._rejected),
        )
        self._emit(answer)
        self.is_answered = True
        self._taken = self.own_aggregate = None  # they may take much
        self._leftovers.partials.clear()
        self._listener.finished(self._on_answered(self.round_id, answer, self._listener.to))

    def _emit(self, answer: Answer) -> None:
        self.host.emit(
            RoundFinished(
                round=answer.round,
                requester=f"{self.host.id:032x}",
                query=query_text(self.query),
                contributors=answer.contributors,
                expected=float(answer.expected),
                missing=answer.missing_count,
                completeness=answer.completeness,
                duration_s=answer.duration_s,
                value_bytes=answer.value_bytes,
                outcome=answer.outcome,
            )
        )
        self.host.count("peerd_aggregation_rounds_total", outcome=answer.outcome)
        self.host.observe("peerd_aggregation_round_duration_seconds", answer.duration_s)
