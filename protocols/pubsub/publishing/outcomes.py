"""An event that is being published, and what became of it, as its client sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from peerd.errors import Unavailable
from peerd.frozen import Frozen
from peerd.messages import PeerRef
from protocols.pubsub.events import EventPublished
from protocols.pubsub.messages import EventBody
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import SchemaView
from protocols.pubsub.publishing.coverage import Coverage

ANSWERS_MAX: Final = 64
"""Answers of leaves that are remembered of one event."""
COPIES_LIMIT: Final = 1 << 8
"""More copies than any leaf reports."""


class QueueFull(Unavailable):
    """No event is taken for the moment: wait for room, and try again."""


class PublishStatus(Enum):
    """How a publish ended."""

    RECEIVED = "received"
    """The root of every leaf that it may match in has it."""
    REPLICATED = "replicated"
    """And so has at least one other node for each of these leaves."""
    UNKNOWN = "unknown"
    """Not all leaves have answered in time: some subscribers may have it, some may not."""
    FAILED = "failed"
    """It was not sent, or a leaf refused it; ``reason`` says why."""


ACKNOWLEDGED: Final = frozenset((PublishStatus.RECEIVED, PublishStatus.REPLICATED))


class LeafAnswer(Frozen):
    """A leaf that has the event: the cell of an attribute's tree, and its root."""

    attribute: int
    cell: int
    owner: PeerRef


class PublishResult(Frozen):
    """The end of a publish.

    ``copies``: how many nodes besides the root hold it, for the leaf with fewest. ``matched``: pieces of subscriptions,
    by what the leaves say; a subscriber counts for several where several of his subscriptions match. ``answers`` has
    at most `ANSWERS_MAX` of the ``leaves`` answers, ``missing`` as many cells that have not answered.
    """

    event: EventId
    schema: str
    status: PublishStatus
    reason: str
    leaves: int
    matched: int
    copies: int
    tries: int
    duration_s: float
    bytes: int
    answers: tuple[LeafAnswer, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()

    def told(self) -> EventPublished:
        """As telemetry tells it."""
        return EventPublished(
            publication=str(self.event),
            outcome=self.status.value,
            leaves=self.leaves,
            matched=self.matched,
            duration_s=self.duration_s,
            value_bytes=self.bytes,
        )


OnResult = Callable[[PublishResult], None]


@dataclass(slots=True)
class PendingPublish:
    """An event that is not done yet."""

    number: int
    """Its place in the order of this node's events."""
    body: EventBody
    schema: SchemaView
    coverage: Coverage
    copies: int
    begun_s: float
    bytes: int
    on_result: OnResult
    planned_s: float = 0.0
    """When it left the queue. Before, it waits for its turn as long as it takes."""
    tries: int = 0
    leaves: int = 0
    matched: int = 0
    copies_held: int = COPIES_LIMIT
    reason: str = ""
    answers: list[LeafAnswer] = field(default_factory=list)

    def answered(self, answer: LeafAnswer, matched: int, copies: int) -> None:
        """A leaf has it, which had not said so before."""
        self.leaves += 1
        self.matched += matched
        if copies < self.copies_held:
            self.copies_held = copies
        if len(self.answers) < ANSWERS_MAX:
            self.answers.append(answer)

    def outcome(self, status: PublishStatus, now: float, missing: Sequence[tuple[int, int]]) -> PublishResult:
        """What its client is told at the end."""
        return PublishResult(
            EventId(self.body.publisher.id, self.body.epoch, self.number),
            self.schema.name,
            status,
            "" if status in ACKNOWLEDGED else self.reason,
            self.leaves,
            self.matched,
            self.copies_held if self.leaves else 0,
            self.tries,
            now - self.begun_s,
            self.bytes,
            tuple(self.answers),
            tuple(missing[:ANSWERS_MAX]),
        )
