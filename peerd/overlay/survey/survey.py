"""What people see of the ring, over the nodes themselves: views, walks, and pings from one node to another.

Nothing here decides anything: no table, time-out or coordinate changes by it. Whoever asks is a member of the cluster;
what a member can make others do is bounded: one batch of pings at a time a node, of at most `REACH_TARGETS_MAX` peers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from peerd.api import Part, handles, on_timer
from peerd.errors import Unavailable
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.overlay import messages
from peerd.overlay.state import OverlayState
from peerd.overlay.survey.ping import Pinger, batch_limit_s
from peerd.overlay.survey.walk import ANSWER_TIMEOUT_S, Survey, Walk, WalkProgress

WALKS_MAX: Final = 4
"""Walks that this node makes at a time."""
BATCHES_MAX: Final = 128
"""Batches of pings that this node waits for at a time: more than the admin API can ask for."""
BUSY_PAUSE_S: Final = 2.0
ASKED_MAX: Final = 8
"""How often a node that is busy, or does not answer, is asked for a batch."""
REPORT_GRACE_S: Final = 5.0

Batch = dict[NodeId, messages.Reached]
BatchDone = Callable[[Batch | str], None]
"""What came of a batch of pings, or in one phrase why nothing did."""


@dataclass(slots=True)
class _Pending:
    """A batch that another node does for this one."""

    peer: PeerRef
    request: messages.ReachRequest
    done: BatchDone
    asked: int = 0
    reason: str = "does not answer"


class Surveyor(Part):
    """The survey part of one node: asks, and answers."""

    def __init__(self, state: OverlayState, missing: Callable[[], tuple[messages.Absence, ...]]) -> None:
        self.state = state
        self._host = state.host
        self._missing = missing
        self._pinger = Pinger(state.host)
        self._walks = 0
        self._number = 0
        self._pending: dict[int, _Pending] = {}

    # Views

    def view(self) -> messages.ViewReply:
        """What this node sees."""
        state = self.state
        leaves = state.leaves.snapshot()
        return messages.ViewReply(
            is_ready=state.is_ready,
            may_serve=state.may_serve,
            is_leaving=state.is_leaving,
            is_complete=leaves.is_complete,
            covers_ring=leaves.covers_ring,
            smaller=leaves.smaller,
            larger=leaves.larger,
            coordinate=state.vivaldi.current,
            ring_size=state.leaves.estimated_ring_size(),
            partition_suspected=state.mass_loss.is_suspected,
            missing=self._missing(),
        )

    def ask_view(self, peer: PeerRef, done: Callable[[messages.ViewReply | None], None]) -> None:
        """What a peer (or this node) sees; ``None`` when it does not answer."""
        if peer.id == self.state.own:
            done(self.view())
            return

        def answered(reply: Message, source: PeerRef) -> None:
            done(reply if isinstance(reply, messages.ViewReply) else None)

        self._host.request(peer, messages.ViewRequest(), ANSWER_TIMEOUT_S, answered, lambda: done(None))

    def history(self, peer: NodeId) -> messages.HistoryReply:
        """What this node thought of a peer. The silence of a peer that was never heard is ``None``."""
        notes = self.state.history.of(peer)
        return messages.HistoryReply(
            tuple(
                messages.HistoryNote(
                    note.wall_s,
                    note.verdict,
                    note.evidence,
                    None if note.silence_s == math.inf else note.silence_s,
                    note.lag_s,
                    note.accuser,
                )
                for note in notes
            )
        )

    def ask_history(self, asked: PeerRef, peer: NodeId, done: Callable[[messages.HistoryReply | None], None]) -> None:
        """What another node (or this one) thought of a peer; ``None`` when it does not answer."""
        if asked.id == self.state.own:
            done(self.history(peer))
            return

        def answered(reply: Message, source: PeerRef) -> None:
            done(reply if isinstance(reply, messages.HistoryReply) else None)

        self._host.request(asked, messages.HistoryRequest(peer), ANSWER_TIMEOUT_S, answered, lambda: done(None))

    def walk(self, finished: Callable[[Survey], None], progress: Callable[[WalkProgress], None]) -> Walk:
        """Ask every node of the ring. ``finished`` may be called before this returns, when this node is alone.

        Raises `Unavailable` when `WALKS_MAX` are under way. Whoever cancels the walk calls `walk_over`.
        """
        if self._walks >= WALKS_MAX:
            raise Unavailable(f"{WALKS_MAX} walks over the ring are under way; try again when one has ended")
        self._walks += 1
        start = tuple(self.state.known_peers())

        def ended(survey: Survey) -> None:
            self.walk_over()
            finished(survey)

        walk = Walk(self._host, self.view(), start, self.state.is_known, ended, progress)
        if not walk.begin():
            ended(walk.survey)
        return walk

    def walk_over(self) -> None:
        """A walk has ended, so another one may begin."""
        self._walks -= 1

    # Pings by others

    def measure(self, peer: PeerRef, targets: Sequence[PeerRef], pings: int, done: BatchDone) -> None:
        """Have ``peer`` (or this node) ping at most `REACH_TARGETS_MAX` others. ``done`` is called once, later.

        Raises `Unavailable` when `BATCHES_MAX` are under way.
        """
        if len(self._pending) >= BATCHES_MAX:
            raise Unavailable(f"{BATCHES_MAX} measurements are under way; try again when they have ended")
        self._number = number = (self._number + 1) % (1 << 32)
        request = messages.ReachRequest(number, tuple(targets), pings)
        self._pending[number] = _Pending(peer, request, done)
        self._ask_again(number)

    @on_timer("survey_again")
    def _ask_again(self, number: int) -> None:
        """Ask for a batch, for the first time or once more."""
        pending = self._pending[number]
        if pending.asked >= ASKED_MAX:
            self._finish(number, pending.reason)
            return
        pending.asked += 1
        request = pending.request
        if pending.peer.id == self.state.own:
            if not self._pinger.start(request.targets, request.pings, lambda found: self._finish(number, found)):
                self._busy(number)
            return
        self._host.request(
            pending.peer,
            request,
            ANSWER_TIMEOUT_S,
            lambda reply, source: self._replied(number, reply),
            lambda: self._unanswered(number),
        )

    def _replied(self, number: int, reply: Message) -> None:
        pending = self._pending.get(number)
        if pending is None:
            return  # the report came first
        if isinstance(reply, messages.ReachReply) and reply.accepted:
            limit_s = batch_limit_s(len(pending.request.targets), pending.request.pings) + REPORT_GRACE_S
            self._host.set_timer("survey_due", limit_s, number)
        else:
            self._busy(number)

    def _busy(self, number: int) -> None:
        self._pending[number].reason = "is busy with other measurements"
        self._host.set_timer("survey_again", BUSY_PAUSE_S * self._host.rng.uniform(0.5, 1.5), number)

    def _unanswered(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is None:
            return
        pending.reason = "does not answer"
        if pending.asked < 2:
            self._ask_again(number)
        else:
            self._finish(number, pending.reason)

    @on_timer("survey_due")
    def _overdue(self, number: int) -> None:
        """A batch was accepted, and nothing came of it."""
        self._finish(number, "began to measure, and never reported")

    def _finish(self, number: int, result: Batch | str) -> None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._host.cancel_timer("survey_due", number)
            self._host.cancel_timer("survey_again", number)
            pending.done(result)

    # For others

    @handles(messages.ViewRequest)
    def _view_requested(self, message: messages.ViewRequest, source: PeerRef) -> messages.ViewReply:
        return self.view()

    @handles(messages.HistoryRequest)
    def _history_requested(self, message: messages.HistoryRequest, source: PeerRef) -> messages.HistoryReply:
        return self.history(message.peer)

    @handles(messages.ReachRequest)
    def reach_requested(self, message: messages.ReachRequest, source: PeerRef) -> messages.ReachReply:
        """Somebody wants to know whom this node reaches."""

        def report(found: Batch) -> None:
            self._host.send(source, messages.ReachReport(message.number, tuple(found.values())))

        return messages.ReachReply(self._pinger.start(message.targets, message.pings, report))

    @handles(messages.ReachReport)
    def reach_reported(self, message: messages.ReachReport, source: PeerRef) -> None:
        """A batch is done. What was not asked for is not believed."""
        pending = self._pending.get(message.number)
        if pending is None or pending.peer.id != source.id:
            return
        wanted = {peer.id for peer in pending.request.targets}
        found = {reached.id: reached for reached in message.found if reached.id in wanted}
        self._finish(message.number, found)
