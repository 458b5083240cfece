"""Why nodes are missing in the result that the requester has, and their own data from those that still have it.

Trees can lose a node: its partner died, its level's nodes did not know of it, or one of them refused it with a lie.
The requester knows who takes part, so it asks each of those that the result lacks, and fetches from whoever is alive
what that node extracted itself. This data is of one node only, so it never overlaps with the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial as bind
from typing import Final

from peerd.api import Host, SwapCallbacks, SwapHandle, Value, value_size_bytes
from peerd.errors import ProtocolError, Unavailable
from peerd.ids import NodeId
from peerd.limits import MIB
from peerd.messages import Message, PeerRef
from peerd.words import ago
from protocols.aggregation.collector import NAMED_MISSING_MAX, Collector
from protocols.aggregation.exchange import decode_own, is_givers_fault, own_tag
from protocols.aggregation.messages import ConfirmContribution, NodeState, RoundStatus, WhyMissing
from protocols.aggregation.partial import Partial
from protocols.aggregation.patience import PATIENCE, patience_s
from protocols.aggregation.query import Query
from protocols.aggregation.statements import confirm_statement

GONE_S: Final = 0.25
"""So long at least the overlay has to find a way to a node to which this one can have no link; and as long as two
messages take that go as its enrolment went."""
STATUS_TIMEOUT_S: Final = 2.0
"""How long at least a missing node has for its answer; more when it is far away."""
PATIENCE_S_MAX: Final = 15.0
"""How long at most a node has for its answer, and for each step of giving its data. One that has enrolled may be far
away though its enrolment was quick, because the overlay goes round slow paths. So it is asked through the overlay as
well, whether it lives, and has this time only if it does: a machine that vanishes during a round costs little."""
FETCH_S_MAX: Final = 2 * PATIENCE_S_MAX
"""How long at most a node has to give its data, if some of it comes all the time."""
FETCHED_AT_ONCE: Final = 16
FIRST_FETCHED: Final = 4
"""So many are fetched at once until one has come: nobody knows yet how large they are."""
FETCHED_BYTES_AT_ONCE: Final = 4 * MIB
"""Of large values fewer are fetched at once, one at least: they share this node's link, and what has not come whole
when its time is over has come in vain."""
_HAVE_DATA: Final = (NodeState.RUNNING, NodeState.PRUNED, NodeState.FINISHED)


class Leftovers:
    """Asks these nodes, at most `NAMED_MISSING_MAX` of them, and calls ``done`` once.

    ``rtt_s`` estimates how far away a node is, ``reserve_s`` is as configured, ``own`` is what this node has extracted.
    """

    def __init__(
        self,
        host: Host,
        round_id: bytes,
        query: Query,
        collector: Collector,
        rtt_s: Callable[[PeerRef], float],
        reserve_s: float,
        own: Callable[[], Partial | None],
        done: Callable[[], None],
    ) -> None:
        self.reasons: dict[NodeId, str] = {}
        """Why each of them is missing, unless its data is among the following."""
        self.partials: list[Partial] = []
        self.moved_bytes = 0
        self.has_asked_ahead = False
        self._asked_ahead, self._asked_ahead_at = 0, 0.0
        """How many nodes, and when."""
        self._answered_ahead: Callable[[], None] = lambda: None
        self._alive: set[NodeId] = set()
        self._host = host
        self._round_id = round_id
        self._query = query
        self._collector = collector
        self._rtt_s = rtt_s
        self._reserve_s = reserve_s
        self._own = own
        self._done: Callable[[], None] | None = done
        self._has_time = True
        self._pending = 1  # `ask` itself
        self._unanswered: set[NodeId] = set()
        """Who was asked, and has not answered yet."""
        self._have_data: dict[NodeId, tuple[float, bytes]] = {}
        """Of those that were asked ahead: how long the answer took that they have their data, and that, if it came."""
        self._gone: set[NodeId] = set()
        """Those that were asked ahead, and could not be reached."""
        self._wanted: set[NodeId] = set()
        """Those that are still missing when the result is settled."""
        self._waiting: deque[tuple[PeerRef, float]] = deque()
        """Whom to fetch from, and how long its answer took: that is as many round trips as opening a stream."""
        self._fetching: dict[NodeId, SwapHandle] = {}
        self._come, self._come_bytes = 0, 0
        """How many values have come, and how large they were together."""

    def ask_ahead(self, missing: list[PeerRef], answered: Callable[[], None]) -> None:
        """Ask why these are missing, while a fuller result is waited for: silent ones then cost no time more.
        ``answered`` is called each time that one of them has answered, or cannot be reached."""
        self.has_asked_ahead, self._answered_ahead = True, answered
        self._asked_ahead_at = self._host.now()
        known = {self._host.id, *self._collector.declined, *self._collector.absent}
        asked = [peer for peer in missing if peer.id not in known]
        self._asked_ahead = len(asked)
        for peer in asked[:NAMED_MISSING_MAX]:
            self._ask_why(peer)

    def all_known_in_s(self) -> float | None:
        """In how many seconds all that were asked ahead can be taken for gone, where the others have given their data.
        ``None``: one has said nothing yet, or has not given it and may be in a fuller result."""
        gone, given = self._gone - self._alive, sum(bool(value) for _, value in self._have_data.values())
        if self._unanswered or len(gone) + given < self._asked_ahead:
            return None
        enrolled_in_s = (self._collector.enrolled_in_s.get(node, 0.0) for node in gone)
        within_s = max(GONE_S, 2 * max(enrolled_in_s)) if gone else 0.0
        return max(0.0, self._asked_ahead_at + within_s - self._host.now())

    def ask(self, missing: list[PeerRef], *, has_time: bool) -> None:
        """Begin. Without ``has_time`` nothing is fetched."""
        self._has_time = has_time
        now = self._host.now()
        for peer in missing[:NAMED_MISSING_MAX]:
            lost_s = self._collector.lost_s(peer.id, now)
            own = self._own() if peer.id == self._host.id else None
            if own is not None:
                self.partials.append(own)
            elif lost_s is not None:
                self.reasons[peer.id] = f"lost {ago(lost_s)}"
            elif peer.id in self._collector.declined or peer.id == self._host.id:
                state = None if peer.id in self._collector.declined else NodeState.EXTRACTING
                self.reasons[peer.id] = self._collector.reason(peer.id, state, "")
            elif peer.id in self._alive or peer.id not in self._gone:
                self._wanted.add(peer.id)
                self._pending += 1
                if peer.id in self._have_data:
                    self._answered(peer, *self._have_data[peer.id])
                elif peer.id not in self._unanswered:  # who had no data yet may have it now
                    self._ask_why(peer)
        self._one_less()

    def stop(self) -> None:
        """The time is over: fetch nothing more."""
        self._has_time = False
        while self._waiting:
            self._waiting.popleft()
            self._one_less()
        for handle in list(self._fetching.values()):
            handle.cancel()

    def _answered(self, peer: PeerRef, took_s: float | None, value: bytes = b"") -> None:
        """A node has its data, said so after this time, and gave it at once if it is small; or it has none, or says
        nothing."""
        self._unanswered.discard(peer.id)
        if peer.id not in self._wanted:
            if took_s is not None:
                self._have_data[peer.id] = took_s, value
            self._answered_ahead()
        elif value:
            self._take(peer, value)
        elif self._has_time and took_s is not None:
            self._waiting.append((peer, took_s))
            self._fetch_next()
        else:
            self._one_less()

    def _ask_why(self, peer: PeerRef) -> None:
        self._unanswered.add(peer.id)
        asked_at = self._host.now()
        self.reasons[peer.id] = self._collector.reason(peer.id, None, "")

        def replied(message: Message, source: PeerRef) -> None:
            state, detail, value = NodeState.UNKNOWN_ROUND, "", b""
            if isinstance(message, RoundStatus) and message.state in set(NodeState):
                state, detail, value = NodeState(message.state), message.detail, message.value
            self.reasons[peer.id] = self._collector.reason(peer.id, state, detail)
            has_data = bool(value) or state in _HAVE_DATA
            self._answered(peer, self._host.now() - asked_at if has_data else None, value)

        def gone() -> None:
            self._gone.add(peer.id)
            self._answered(peer, None)

        def silent() -> None:
            if peer.id in self._alive:
                self._host.request(peer, WhyMissing(self._round_id), PATIENCE_S_MAX, replied, gone)
            else:
                gone()

        within_s = patience_s(STATUS_TIMEOUT_S, self._rtt_s(peer))
        if peer.id in self._collector.enrolled:
            # Its enrolment came one way through the overlay; question and answer go two.
            within_s = max(within_s, 2 * PATIENCE * self._collector.enrolled_in_s.get(peer.id, 0.0))
            proof = self._host.sign(confirm_statement(self._round_id, peer.id))
            self._host.route(peer.id, ConfirmContribution(self._round_id, proof))
        self._host.request(peer, WhyMissing(self._round_id), min(within_s, PATIENCE_S_MAX), replied, silent)

    def lives(self, node: NodeId) -> None:
        """A node that has enrolled, and was asked, says through the overlay that it still takes part."""
        if node in self.reasons:
            self._alive.add(node)

    def _fetch_next(self) -> None:
        mean_bytes = max(1, self._come_bytes // self._come) if self._come else FETCHED_BYTES_AT_ONCE // FIRST_FETCHED
        at_once = max(1, min(FETCHED_AT_ONCE, FETCHED_BYTES_AT_ONCE // mean_bytes))
        while self._waiting and len(self._fetching) < at_once:
            peer, took_s = self._waiting.popleft()
            callbacks = SwapCallbacks(done=bind(self._fetched, peer), failed=bind(self._fetch_failed, peer))
            step_s = min(max(self._reserve_s, PATIENCE * took_s), PATIENCE_S_MAX)
            self._fetching[peer.id] = self._host.fetch(peer, own_tag(self._round_id), callbacks, FETCH_S_MAX, step_s)

    def _fetched(self, peer: PeerRef, value: Value) -> None:
        self._fetching.pop(peer.id, None)
        self._come, self._come_bytes = self._come + 1, self._come_bytes + value_size_bytes(value)
        self._take(peer, value)
        self._fetch_next()

    def _take(self, peer: PeerRef, value: Value) -> None:
        def decoded(partial: Partial) -> None:
            self.partials.append(partial)
            self.moved_bytes += value_size_bytes(value)
            self._one_less()

        def failed(error: BaseException) -> None:
            if not isinstance(error, ProtocolError | Unavailable):
                raise error
            self.reasons[peer.id] = f"its data could not be used: {error}"
            if isinstance(error, ProtocolError) and is_givers_fault(error):
                self._host.misbehaved(peer, error)
            self._one_less()

        self._host.offload(decode_own, self._query, peer.id, value, done=decoded, failed=failed)

    def _fetch_failed(self, peer: PeerRef, reason: str) -> None:
        self._fetching.pop(peer.id, None)
        self.reasons[peer.id] += f"; its own data could not be had: {reason}"
        self._one_less()
        self._fetch_next()

    def _one_less(self) -> None:
        self._pending -= 1
        if self._pending == 0 and self._done is not None:
            done, self._done = self._done, None
            done()
