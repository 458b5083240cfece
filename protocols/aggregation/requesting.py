"""The rounds that this node asked for: it broadcasts each, and hands what comes back to the round's `Requester`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from peerd.api import Host, Part, handles, on_timer
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.messages import PeerRef
from protocols.aggregation.collector import ENROLMENTS_TIMER, GATHER_TIMER, NAMING_TIMER, OWN_TIMER
from protocols.aggregation.config import ROUND_S_MAX, AggregationConfig
from protocols.aggregation.exchange import Aggregate
from protocols.aggregation.messages import (
    NAMED_MAX,
    PLACED_MAX,
    Enrolled,
    NamesWanted,
    Noted,
    ResultReady,
    ShownEnrolment,
    StartRound,
    StopRound,
)
from protocols.aggregation.participant import Participant
from protocols.aggregation.query import Query
from protocols.aggregation.statements import (
    NONCE_BYTES,
    enrolled_statement,
    noted_statement,
    round_id_of,
    start_statement,
    stop_statement,
)

if TYPE_CHECKING:
    from protocols.aggregation.answer import Answer
    from protocols.aggregation.requester import Requester, RoundListener

GATHER_AFTER: Final = 0.9
"""When no tree is complete after so much of a round's time, the requester fetches the nodes' own data."""
FAR_RTT_S: Final = 0.05
"""Nodes are far from each other if this one's neighbours, whom chance has placed, are on average (median) as far."""
NAMED_FAR_MAX: Final = 256
"""In rings of so many nodes at most, in place of `NAMED_MAX`, nodes that are far from each other are named: there the
names take seconds to reach all, and links are of many kinds. Who swaps by ids swaps with whoever is ready; a
counterpart is fixed, so a slow one is waited for at each level. On PlanetLab's links 1,024 nodes took 51 s by ids, and
269 s named."""
ASKED_MAX: Final = 1024
"""Rounds of this node that it remembers, open or over."""


class Requesting(Part):
    """The requester's side of rounds. ``participants``: what this node itself does in each round."""

    def __init__(self, host: Host, config: AggregationConfig, participants: Mapping[bytes, Participant]) -> None:
        self.config = config
        self.requesters: dict[bytes, Requester] = {}
        self._host, self._participants = host, participants
        self._asked: OrderedDict[bytes, None] = OrderedDict()

    @property
    def asked_count(self) -> int:
        """How many rounds it remembers."""
        return len(self._asked)

    def aggregate(self, query: Query, listener: RoundListener, deadline_s: float | None = None) -> bytes:
        """Start a round; returns its id.

        Raises `Unavailable` outside the ring, when too many rounds are open, and for a pattern without its engine;
        `QueryError` for a pattern that the engine refuses.
        """
        from protocols.aggregation.requester import Requester, census_of  # most nodes never ask, and need no answers
        from protocols.aggregation.spotcheck import CHECK_S_MAX

        if (outside := self._host.outside_reason()) is not None:
            raise Unavailable(f"{outside}, so it cannot ask anybody")
        if len(self.requesters) >= min(self.config.rounds_max, self.config.rounds_per_requester_max):
            raise Unavailable(f"{len(self.requesters)} rounds are open here already; try again when one has ended")
        query.compiled_pattern(self.config.regex_engine)
        deadline_s = min(self.config.deadline if deadline_s is None else deadline_s, ROUND_S_MAX)
        host = self._host
        nonce = host.rng.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big")
        wire_query, lasts_ms, begins_at_ms = query.to_wire(), round(deadline_s * 1000), round(host.wall_time() * 1000)
        census, is_direct = census_of(host.estimated_ring_size(), self.config)
        nodes = self._nodes()
        may_name = census and not nodes and self._may_name()
        said = nonce, host.peer, wire_query, begins_at_ms, lasts_ms, census, is_direct, nodes, may_name
        round_id = round_id_of(*said)

        def part() -> Participant | None:
            return self._participants.get(round_id)

        on_answered = self._answered
        requester = Requester(host, self.config, round_id, query, listener, on_answered, census, part, may_name)
        self.requesters[round_id] = requester
        self._asked[round_id] = None
        while len(self._asked) > ASKED_MAX:
            self._asked.popitem(last=False)
        host.set_timer("round_due", deadline_s, round_id)
        check_s = 0.0 if census else CHECK_S_MAX  # what this node's own tree holds is checked first, too
        host.set_timer(GATHER_TIMER, max(GATHER_AFTER * deadline_s - check_s, deadline_s / 2), round_id)
        proof = host.sign(start_statement(round_id))
        how = census, is_direct, begins_at_ms, lasts_ms, nonce, proof, nodes, may_name
        host.broadcast(StartRound(round_id, host.peer, wire_query, 0, lasts_ms, *how))
        requester.tell("started")
        return round_id

    def _nodes(self) -> tuple[NodeId, ...]:
        """All nodes of the ring, if this one knows them."""
        leaf_set = self._host.leaf_set()
        nodes = (self._host.id, *(peer.id for peer in leaf_set.members()))
        return nodes if leaf_set.covers_ring and len(nodes) <= PLACED_MAX else ()

    def _may_name(self) -> bool:
        """Whether this ring is small enough for all its nodes to be named, once a value is known to be large."""
        host = self._host
        known = (host.estimated_rtt(peer) for peer in host.leaf_set().members())
        rtts_s = sorted(rtt_s for rtt_s in known if rtt_s is not None)
        are_far = bool(rtts_s) and rtts_s[len(rtts_s) // 2] > FAR_RTT_S
        return host.estimated_ring_size() <= (NAMED_FAR_MAX if are_far else NAMED_MAX)

    def cancel(self, round_id: bytes) -> None:
        """End a round early; the listener gets what there is."""
        requester = self.requesters.get(round_id)
        if requester is not None:
            requester.expire()

    def _answered(self, round_id: bytes, answer: Answer, to: str) -> Answer:
        """End the round everywhere, and give its answer to those that are to have it, too."""
        for timer in ("round_due", GATHER_TIMER):
            self._host.cancel_timer(timer, round_id)
        del self.requesters[round_id]
        given = None
        if to:
            from protocols.aggregation.answers import give  # most rounds are for the requester only

            answer, given = give(self._host, round_id, answer, to)
        self._host.broadcast(given or self._signed_stop(round_id))
        return answer

    def _signed_stop(self, round_id: bytes) -> StopRound:
        return StopRound(round_id, self._host.sign(stop_statement(round_id)))

    def tree_finished(self, round_id: bytes, aggregate: Aggregate) -> None:
        """This node's own tree of a round is complete."""
        if round_id in self.requesters:
            self.requesters[round_id].own_aggregate = aggregate

    def neighbours_changed(self) -> None:
        """The leaf set changed."""
        for requester in list(self.requesters.values()):
            requester.neighbours_changed()

    @handles(Enrolled)
    def on_enrolled(self, enrolled: Enrolled, source: PeerRef) -> Noted | StopRound:
        requester = self.requesters.get(enrolled.round_id)
        if requester is None:  # it is over: the node need not keep it
            return StopRound(enrolled.round_id)
        requester.enrolled(source, enrolled)
        return Noted(enrolled.round_id)

    def enrolled_routed(self, enrolled: Enrolled, source: PeerRef) -> None:
        """A node of which this one has no link says that it takes part, or why it does not."""
        if enrolled.round_id not in self._asked:
            return  # never asked here: somebody may have broadcast it, and every node would answer its source
        requester = self.requesters.get(enrolled.round_id)
        if requester is not None and not requester.expects(source.id):
            return
        named = ((each.peer, each.age_ms) for each in enrolled.absent)
        statement = enrolled_statement(enrolled.round_id, source, enrolled.reason, named, enrolled.successor)
        if not self._host.verify(source.id, statement, enrolled.proof):
            raise ProtocolError("forged_enrolment", f"{source} has not signed it")
        if requester is not None and not requester.with_census:
            requester.spot_check.confirm(source.id)
        elif requester is not None:
            requester.enrolled(source, enrolled)
            proof = self._host.sign(noted_statement(enrolled.round_id, source.id))
            self._host.route(source.id, Noted(enrolled.round_id, proof))
        else:
            self._host.route(source.id, self._signed_stop(enrolled.round_id))

    @handles(ShownEnrolment)
    def on_shown_enrolment(self, shown: ShownEnrolment, source: PeerRef) -> None:
        """A node of a result that has not enrolled itself has shown to somebody that it takes part."""
        requester = self.requesters.get(shown.round_id)
        peer = shown.shown.peer
        if requester is None or not requester.with_census or peer.id in requester.collector.enrolled:
            return
        if not self._host.verify(peer.id, enrolled_statement(shown.round_id, peer, ""), shown.shown.proof):
            raise ProtocolError("forged_enrolment", f"{peer} has not signed it")
        requester.enrolled(peer, Enrolled(shown.round_id, ""))

    @handles(NamesWanted)
    def on_names_wanted(self, wanted: NamesWanted, source: PeerRef) -> None:
        requester = self.requesters.get(wanted.round_id)
        if requester is not None:
            requester.names_wanted(source, wanted.value_bytes)

    @on_timer(NAMING_TIMER)
    def naming_due(self, round_id: bytes) -> None:
        self.requesters[round_id].naming_due()

    @handles(ResultReady)
    def on_result_ready(self, ready: ResultReady, source: PeerRef) -> Noted | StopRound:
        requester = self.requesters.get(ready.round_id)
        if requester is None:
            return StopRound(ready.round_id)
        requester.offered(ready, source)
        return Noted(ready.round_id)

    # Time

    @on_timer("round_due")
    def round_due(self, round_id: bytes) -> None:
        requester = self._asking_here(round_id)
        if requester is not None:
            requester.expire()

    @on_timer(GATHER_TIMER)
    def gather_due(self, round_id: bytes) -> None:
        requester = self._asking_here(round_id)
        if requester is not None:
            requester.gather()

    def _asking_here(self, round_id: bytes) -> Requester | None:
        """The round's requester, if that is this node, told what its own tree holds."""
        requester, participant = self.requesters.get(round_id), self._participants.get(round_id)
        if requester is not None:
            requester.own_aggregate = None if participant is None else participant.aggregate
        return requester

    @on_timer("settle_due")
    def settle_due(self, round_id: bytes) -> None:
        requester = self.requesters.get(round_id)
        if requester is not None:
            requester.settled()

    @on_timer(OWN_TIMER)
    def own_due(self, round_id: bytes) -> None:
        self.requesters[round_id].own_due()

    @on_timer(ENROLMENTS_TIMER)
    def enrolments_due(self, round_id: bytes) -> None:
        self.requesters[round_id].enrolments_due()

    @on_timer("check_due")
    def check_due(self, round_id: bytes) -> None:
        self.requesters[round_id].spot_check.due()

    def validate(self) -> None:
        """Assert that what is kept is within its bounds."""
        assert len(self._asked) <= ASKED_MAX
        assert len(self.requesters) <= self.config.rounds_max
