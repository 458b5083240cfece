"""From the root to the replicas: a write is offered to every node of the replica set until each has taken it.

The set is looked at again whenever the neighbourhood changes, so a replica that dies is replaced, and a write counts as
replicated only when all nodes of the set as it is then hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from peerd import limits
from peerd.api import Part, on_timer
from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef
from peerd.services.records.batches import ToldEnds, batches, whole
from peerd.services.records.messages import HELD, LACKS_PROOF, RecordCopy, ReplicaAck
from peerd.services.records.record import Record, RecordId
from peerd.services.records.state import RecordState
from peerd.services.records.table import RequestKey

PUSHES_MAX: Final = 512
PUSHES_BYTES_MAX: Final = 2 * limits.MIB
"""Less than the send queue of one peer, since one peer may be a replica of all these records."""
WAITING_MAX: Final = 64
"""Writes of one record that wait for its replicas."""
PUSH_DEADLINE_S: Final = 60.0
"""After this time the regular comparisons finish the work; whoever waited for the answer has given up long ago."""

Waiting = Callable[[int, bool], None]
"""Called with (nodes that hold it, whether one refused it)."""


@dataclass(slots=True)
class Push:
    """One record on its way to its replicas."""

    record: Record
    deadline: float
    waiting: dict[RequestKey, Waiting] = field(default_factory=dict)
    held_by: dict[NodeId, None] = field(default_factory=dict)
    refused_by: dict[NodeId, None] = field(default_factory=dict)
    in_flight: dict[NodeId, None] = field(default_factory=dict)


class Replicator(Part):
    """Pushes under way, one a record."""

    def __init__(self, state: RecordState) -> None:
        self._state = state
        self._host = state.host
        self._pushes: dict[RecordId, Push] = {}
        self._bytes = 0
        self._is_armed = False
        self._told = ToldEnds()
        self._outgoing: dict[PeerRef, list[Push]] = {}
        """What is sent when the current work is done: all that goes to one peer at that instant is one message."""

    def __len__(self) -> int:
        return len(self._pushes)

    @property
    def is_full(self) -> bool:
        """Whether the root must refuse writes for a while."""
        return len(self._pushes) >= PUSHES_MAX or self._bytes >= PUSHES_BYTES_MAX

    def is_crowded(self, identity: RecordId) -> bool:
        """Whether it must refuse writes of one record, since too many already wait for its replicas."""
        push = self._pushes.get(identity)
        return push is not None and len(push.waiting) >= WAITING_MAX

    def push(self, record: Record, request: RequestKey | None = None, waiting: Waiting | None = None) -> None:
        """Offer ``record`` to the replicas until all hold it; call ``waiting`` then, or when one refuses it.

        A later version takes over those that wait for an earlier one, which it supersedes wherever it is held.
        """
        push = self._pushes.get(record.identity)
        if push is None or push.record.version != record.version:
            waits = self._remove(push).waiting if push is not None else {}
            push = Push(record, self._host.now() + PUSH_DEADLINE_S, waits)
            self._pushes[record.identity] = push
            self._bytes += record.charge_bytes
        if request is not None and waiting is not None:
            push.waiting[request] = waiting
        self._advance(push)
        self._arm()

    def advance(self) -> None:
        """The neighbourhood changed, or it is time to try again."""
        for push in list(self._pushes.values()):
            if self._pushes.get(push.record.identity) is push:
                self._advance(push)

    @on_timer("push")
    def _tick(self, payload: object) -> None:
        self._state.refresh()
        self._is_armed = False
        now = self._host.now()
        for push in [push for push in self._pushes.values() if push.deadline <= now]:
            self._remove(push)
        self.advance()
        self._arm()

    def validate(self) -> None:
        """Assert sums and limits."""
        pushes = self._pushes.values()
        if self._bytes != sum(push.record.charge_bytes for push in pushes):
            raise Bug("the bytes of the pushes do not add up")
        if len(self._pushes) > PUSHES_MAX or any(len(push.waiting) > WAITING_MAX for push in pushes):
            raise Bug("more pushes, or more who wait for them, than the limits allow")

    def _remove(self, push: Push) -> Push:
        del self._pushes[push.record.identity]
        self._bytes -= push.record.charge_bytes
        return push

    def _arm(self) -> None:
        if self._pushes and not self._is_armed:
            self._is_armed = True
            self._host.set_timer("push", self._state.config.push_retry)

    def _advance(self, push: Push) -> None:
        view, own = self._state.view, self._host.id
        if not self._state.is_settled:
            return
        holders = view.holders(push.record.key, view.copies)
        missing = [peer for peer in holders if peer.id != own and peer.id not in push.held_by]
        if not missing or all(peer.id in push.refused_by for peer in missing):
            self._finish(push, is_refused=bool(missing))
            return
        for peer in missing:
            if peer.id not in push.in_flight and peer.id not in push.refused_by:
                self._send(push, peer)

    def _send(self, push: Push, peer: PeerRef) -> None:
        push.in_flight[peer.id] = None
        if not self._outgoing:
            self._host.set_timer("push_outgoing", 0.0)
        self._outgoing.setdefault(peer, []).append(push)

    @on_timer("push_outgoing")
    def _send_all(self, payload: object) -> None:
        """Send what has gathered, as few messages as it fits in."""
        outgoing, self._outgoing = self._outgoing, {}
        for peer, pushes in outgoing.items():
            current = {push.record.identity: push for push in pushes if self._is_current(push)}
            for batch in batches([push.record for push in current.values()]):
                self._send_batch([current[record.identity] for record in batch], peer)

    def _send_batch(self, pushes: Sequence[Push], peer: PeerRef) -> None:
        copies = [self._state.copy(push.record) for push in pushes]

        def answered(reply: Message, source: PeerRef) -> None:
            silent()
            if not isinstance(reply, ReplicaAck) or len(reply.statuses) != len(pushes):
                return
            for newer in whole(reply.newer, reply.ends):
                self._state.admit(newer)
            for push, copy, status in zip(pushes, copies, reply.statuses, strict=True):
                self._answered(push, copy, source, status)

        def silent() -> None:
            for push in pushes:
                push.in_flight.pop(peer.id, None)

        message = self._told.put_to(peer.id, copies)
        self._host.request(peer, message, self._state.config.peer_timeout, answered, silent)

    def _answered(self, push: Push, copy: RecordCopy, source: PeerRef, status: int) -> None:
        """What a replica says of one record. One that lacks the end of a proof gets it at once, but only once."""
        if status == HELD:
            push.held_by[source.id] = None
            self._told.took(source.id, copy)
        elif status != LACKS_PROOF:
            push.refused_by[source.id] = None
        elif not self._told.lacks(source.id, copy):
            return
        if self._is_current(push):
            self._advance(push)

    def _is_current(self, push: Push) -> bool:
        return self._pushes.get(push.record.identity) is push

    def _finish(self, push: Push, *, is_refused: bool) -> None:
        self._remove(push)
        for waiting in push.waiting.values():
            waiting(1 + len(push.held_by), is_refused)
