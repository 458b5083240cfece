"""The stream of events to one subscriber's node: numbered batches, a window, and repetition in order. Pure.

Batches are taken in order, and whatever is not confirmed is sent again from the first such batch on (go-back-N): links
keep order, so gaps are rare. While the window is full, events pile up and travel together in the next batch. A node
that does not answer gets one batch at a time, ever less often, until it answers or the time to keep is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from peerd.errors import ProtocolError
from peerd.frozen import Frozen
from protocols.pubsub.delivering.items import PendingDelivery
from protocols.pubsub.delivering.losses import LossCount, LostEvents
from protocols.pubsub.messages import EVENTS_BYTES_MAX, EVENTS_MAX
from protocols.pubsub.names import EventId

RETRY_S_MAX: Final = 5.0
"""Pauses between repetitions double up to this."""
PAUSE_S_MAX: Final = 30.0
"""A node that asks for a longer pause is asked again after this one."""


class OutboxLimits(Frozen):
    """What the configuration says of one stream."""

    window: int
    retry_s: float
    keep_s: float
    bytes_max: int


@dataclass(slots=True)
class _Batch:
    schema: str
    items: list[PendingDelivery]
    lost: tuple[LostEvents, ...] = ()


class DeliveryAttempt(Frozen):
    """One sending of a batch. ``taken_before``: what was known to be taken then."""

    stream: int
    number: int
    schema: str
    items: tuple[PendingDelivery, ...]
    sent_at: float
    timeout_s: float
    taken_before: int
    round: int
    lost: tuple[LostEvents, ...] = ()
    """How many events of the schema were dropped before it, and why."""


@dataclass(slots=True)
class _Awaited:
    item: PendingDelivery
    due_at: float


@dataclass(slots=True)
class Outbox:
    """All that is pending for one node. ``new_stream`` gives numbers that no stream has had."""

    limits: OutboxLimits
    new_stream: Callable[[], int]
    stream: int = field(init=False)
    size: int = 0
    """Bytes of all that is pending."""
    count: int = 0
    stalled_since: float | None = None
    """When something was first sent that the node has not taken yet, nor asked to wait with."""
    _queue: deque[PendingDelivery] = field(default_factory=deque)
    _batches: deque[_Batch] = field(default_factory=deque)
    """Cut off the queue and sent at least once; the first has the number ``_taken + 1``."""
    _awaited: dict[EventId, _Awaited] = field(default_factory=dict)
    """Sent by multicast. Nothing else is sent before each of these is confirmed or put back into the queue, so that
    events stay in order."""
    _taken: int = 0
    _sent: int = 0
    _round: int = 0
    """Grows whenever sending goes back, so that what earlier attempts say of a gap is not heard twice."""
    _wait_s: float = field(init=False)
    _resume_at: float = 0.0
    _is_probing: bool = False
    _lost: LossCount = field(default_factory=LossCount)
    """Events that were dropped since the last batch, by schema: the next one says so, if need be without events."""
    _tells_lost: bool = True
    """Whether such a batch is sent. Not after a node was silent for all of it: then it hears with the next event."""

    def __post_init__(self) -> None:
        self.stream = self.new_stream()
        self._wait_s = self.limits.retry_s

    # What is pending

    def add(self, item: PendingDelivery) -> list[PendingDelivery]:
        """Take in an item. Returns those that are dropped for it: the oldest that were not sent yet."""
        self._count(item, 1)
        self._queue.append(item)
        dropped = []
        while self.size > self.limits.bytes_max and self._queue:
            dropped.append(self._drop_oldest())
        return dropped

    def drop_oldest(self) -> PendingDelivery | None:
        """Drop the oldest item that was not sent yet, if there is one."""
        return self._drop_oldest() if self._queue else None

    def _drop_oldest(self) -> PendingDelivery:
        item = self._queue.popleft()
        self._count(item, -1)
        return item

    def note_lost(self, schema: str, reason: int, count: int = 1) -> None:
        """Events for this node were dropped; it hears how many, and why, with the next batch of the schema."""
        self._lost.note(schema, reason, count)
        self._tells_lost = True

    @property
    def has_lost(self) -> bool:
        """Whether the node has yet to hear that events were dropped."""
        return bool(self._lost)

    def items(self) -> Iterator[PendingDelivery]:
        """All that is pending, in order."""
        yield from (awaited.item for awaited in self._awaited.values())
        for batch in self._batches:
            yield from batch.items
        yield from self._queue

    def discard(self, item: PendingDelivery) -> None:
        """Take out a pending item. What was sent of it may arrive all the same."""
        self._count(item, -1)
        if item in self._queue:
            self._queue.remove(item)
            return
        for batch in self._batches:
            if item in batch.items:
                batch.items.remove(item)
                return
        del self._awaited[item.event_id]

    def _count(self, item: PendingDelivery, sign: int) -> None:
        self.size += sign * item.size
        self.count += sign

    def needs_care(self) -> bool:
        """Whether something is due when time passes, and not only when the node answers."""
        return (self.count > 0 or bool(self._batches)) and (self._is_probing or bool(self._awaited))

    # Sending

    def sends(self, now: float) -> list[DeliveryAttempt]:
        """What is to be sent now."""
        if now < self._resume_at or self._awaited:
            return []
        attempts: list[DeliveryAttempt] = []
        window = 1 if self._is_probing else self.limits.window
        while self._sent - self._taken < window:
            if self._sent - self._taken == len(self._batches):
                if not self._queue and not (self._lost and self._tells_lost):
                    break
                self._batches.append(self._cut())
            batch = self._batches[self._sent - self._taken]
            self._sent += 1
            attempts.append(self._attempt(batch, now))
        if attempts and self.stalled_since is None:
            self.stalled_since = now
        return attempts

    def _attempt(self, batch: _Batch, now: float) -> DeliveryAttempt:
        place = (self.stream, self._sent, batch.schema, tuple(batch.items))
        return DeliveryAttempt(*place, now, self._wait_s, self._taken, self._round, batch.lost)

    def _cut(self) -> _Batch:
        if not self._queue:
            return _Batch(schema := self._lost.schemas()[0], [], self._lost.take(schema))
        first = self._queue.popleft()
        batch, size = _Batch(first.schema.name, [first], self._lost.take(first.schema.name)), first.size
        while self._queue and len(batch.items) < EVENTS_MAX:
            item = self._queue[0]
            size += item.size
            if item.schema.name != batch.schema or size > EVENTS_BYTES_MAX:
                break
            batch.items.append(self._queue.popleft())
        return batch

    # What the node says

    def answered(self, attempt: DeliveryAttempt, taken: int, pause_s: float, now: float) -> list[PendingDelivery]:
        """The node has answered; returns what it has taken. Raises `ProtocolError` for what it was never sent."""
        if attempt.stream != self.stream:
            return []
        if taken > self._taken + len(self._batches):
            raise ProtocolError("delivery_answer", "it has taken a batch that it was not sent")
        if taken < attempt.taken_before:  # it does not know the stream (any more): it was started anew
            self._begin_anew(now)
            return []
        settled = self._settle(taken, now)
        if pause_s > 0:
            self.stalled_since = None
            self._go_back(now + min(pause_s, PAUSE_S_MAX))
            self._wait_s = self.limits.retry_s
        elif attempt.number > taken and attempt.round == self._round:
            self._go_back(now + self._wait_s)
        return settled

    def confirmed(self, stream: int, taken: int, now: float) -> list[PendingDelivery]:
        """The node says later, and not as an answer, what it has taken. Returns and raises as `answered`."""
        if stream != self.stream:
            return []
        if taken > self._taken + len(self._batches):
            raise ProtocolError("delivery_answer", "it has taken a batch that it was not sent")
        return self._settle(taken, now)

    def failed(self, attempt: DeliveryAttempt, now: float) -> None:
        """An attempt was not answered in time, or could not be sent."""
        if (attempt.stream, attempt.round) == (self.stream, self._round) and attempt.number > self._taken:
            self._go_back(max(now, attempt.sent_at + attempt.timeout_s))

    def expire(self, now: float) -> list[PendingDelivery]:
        """If the node has not taken anything for the time that events are kept, give up all that is pending."""
        if self.stalled_since is None or now - self.stalled_since < self.limits.keep_s:
            return []
        given_up = self.take_all(now)
        self.stalled_since = None
        self._tells_lost = bool(given_up)
        return given_up

    def take_all(self, now: float) -> list[PendingDelivery]:
        """Take out all that is pending, in order. What was sent of it may arrive all the same."""
        taken = list(self.items())
        for batch in self._batches:
            self._lost.add(batch.schema, batch.lost)
        self._queue.clear()
        self._batches.clear()
        self._awaited.clear()
        self.size = self.count = 0
        self._begin_anew(now)
        return taken

    def _settle(self, taken: int, now: float) -> list[PendingDelivery]:
        settled: list[PendingDelivery] = []
        if taken > self._taken:
            self._is_probing, self._wait_s, self._resume_at = False, self.limits.retry_s, 0.0
            self.stalled_since = now if taken < self._taken + len(self._batches) else None
        while self._taken < taken:
            settled += self._batches.popleft().items
            self._taken += 1
        for item in settled:
            self._count(item, -1)
        self._sent = max(self._sent, self._taken)
        return settled

    def _go_back(self, resume_at: float) -> None:
        self._round += 1
        self._sent = self._taken
        self._is_probing = True
        self._resume_at = resume_at
        self._wait_s = min(self._wait_s * 2, max(RETRY_S_MAX, self.limits.retry_s))

    def _begin_anew(self, now: float) -> None:
        """Send all that is pending as another stream."""
        self.stream = self.new_stream()
        self._taken = 0
        self._go_back(now)

    # Multicast

    def is_idle(self) -> bool:
        """Whether nothing is pending: only then may an event come by multicast without overtaking another."""
        return self.count == 0

    def await_note(self, item: PendingDelivery, now: float, due_at: float) -> None:
        """The item is sent by multicast; if no note of it has come when it is due, it is sent directly."""
        self._count(item, 1)
        self._awaited[item.event_id] = _Awaited(item, due_at)
        if self.stalled_since is None:
            self.stalled_since = now

    def noted(self, event_id: EventId) -> PendingDelivery | None:
        """The node says that it has the event by multicast."""
        awaited = self._awaited.pop(event_id, None)
        if awaited is None:
            return None
        self._count(awaited.item, -1)
        self.stalled_since = None
        return awaited.item

    def repair(self, now: float) -> bool:
        """Put what was due by multicast before all else that is to be sent; whether there is any."""
        due = [awaited.item for awaited in self._awaited.values() if awaited.due_at <= now]
        for item in reversed(due):
            del self._awaited[item.event_id]
            self._queue.appendleft(item)
        return bool(due)
