"""What dissemination records in the event log. ONLY APPEND, as everywhere in the schema. ``stream`` is its name."""

from __future__ import annotations

from typing import Final

from peerd.telemetry.schema import Event, Text
from protocols.dissemination.documents.events import DOCUMENT_EVENTS
from protocols.dissemination.loading import policy_events


class StreamJoined(Event):
    """This node is in a stream's tree for the first time, so long after it began to look for a parent."""

    KIND = "dissemination.joined"
    stream: Text
    parent: str
    duration_s: float


class StreamMoved(Event):
    """An attempt to get another parent is over.

    ``end``: moved, declined, circle, silent. ``why``: new, policy, leaving (of the parent), orphan, second (an
    orphan attaches to the node that has kept a place for it).
    """

    KIND = "dissemination.moved"
    stream: Text
    from_parent: str
    to_parent: str
    end: Text
    why: Text
    duration_s: float


class StreamLoss(Event):
    """This node has lost a part of a stream: what came after ``since``, up to ``until``, wholly or in part."""

    KIND = "dissemination.loss"
    stream: Text
    since: Text
    until: Text


class StreamLie(Event):
    """A parent (``liar``) has given this node what the producer has not signed (``forged``), or has left items out
    although it sends everything (``withheld``), or goes back in the stream (``out_of_order``). It was left, and lost
    its connection.
    """

    KIND = "dissemination.lie"
    stream: Text
    liar: str
    reason: Text
    detail: Text


class StreamLoad(Event):
    """Every minute and stream, where anything happened: what this node is in the tree, and what happened since then.

    ``spurious``: items that came and that no subscription of this node wanted. ``late_s``: how long after they were
    published the others came, by the nodes' clocks, all together. ``held_s``: how long subscriptions of this node held
    values of objects, all together, and ``outdated_s``: for how much of that these were out of date, at most.
    """

    KIND = "dissemination.load"
    stream: Text
    depth: int
    children: int
    items_in: int
    bytes_in: int
    items_out: int
    bytes_out: int
    spurious: int
    queued_bytes: int
    refused: int
    late_s: float = 0.0
    held_s: float = 0.0
    outdated_s: float = 0.0


class StreamOver(Event):
    """This node takes part in a stream no more: ended by its producer, unused here, left, or without a producer."""

    KIND = "dissemination.over"
    stream: Text
    reason: Text


INTEREST_SHOWN_MAX: Final = 200
"""Characters of an interest in an event about it."""


class StreamInterestFailed(Event):
    """An interest could not be matched with an item: a defect of this program. Who subscribed here is told, and ended.

    ``interest``: its text, or ``all``: they could not be matched together, and were one by one.
    """

    KIND = "dissemination.interest_failed"
    stream: Text
    interest: str
    reason: str


class StreamUnkept(Event):
    """The producer's disk does not take the items of a durable stream: they go out without, from now on."""

    KIND = "dissemination.unkept"
    stream: Text
    reason: Text


class StreamHandedOver(Event):
    """This node was the producer of a stream, and has handed it over to another one.

    ``paused_s``: for so long nothing could be published.
    """

    KIND = "dissemination.handed_over"
    stream: Text
    successor: str
    term: int
    paused_s: float


class StreamSteppedDown(Event):
    """This node believed to be the producer of a stream, and has learned that another one is, of a later term."""

    KIND = "dissemination.stepped_down"
    stream: Text
    producer: str
    term: int


class StreamTakenOver(Event):
    """This node is the producer of a stream from now on, which another one has handed over to it."""

    KIND = "dissemination.taken_over"
    stream: Text
    predecessor: str
    term: int
    position: Text


class StreamProducerReplaced(Event):
    """This node was a standby of a stream whose producer is gone, and is its producer from now on.

    ``rank``: 0 for the first of the standbys. ``silent_s``: so long after the old producer was last heard here.
    """

    KIND = "dissemination.producer_replaced"
    stream: Text
    predecessor: str
    term: int
    rank: int
    silent_s: float
    position: Text


EVENTS: Final[tuple[type[Event], ...]] = (
    StreamJoined,
    StreamMoved,
    StreamLoss,
    StreamLoad,
    StreamOver,
    *DOCUMENT_EVENTS,
    *policy_events(),
    StreamUnkept,
    StreamInterestFailed,
    StreamHandedOver,
    StreamTakenOver,
    StreamSteppedDown,
    StreamProducerReplaced,
    StreamLie,
)
