"""What dissemination records in the event log. ONLY APPEND, as everywhere in the schema. ``stream`` is its name."""

from __future__ import annotations

from typing import Final

from peerd.telemetry.schema import Event, Text
from protocols.dissemination.documents.events import DOCUMENT_EVENTS
from protocols.dissemination.loading import policy_events


class StreamJoined(Event):
    """This node has its first parent in a stream's tree, so long after it began to look."""

    KIND = "dissemination.joined"
    stream: Text
    parent: str
    duration_s: float


class StreamMoved(Event):
    """An attempt to get another parent is over. ``end``: moved, declined, circle, silent. ``why``: new, policy,
    leaving (of the parent), orphan, second (an orphan at the place kept for it)."""

    KIND = "dissemination.moved"
    stream: Text
    from_parent: str
    to_parent: str
    end: Text
    why: Text
    duration_s: float


class StreamLoss(Event):
    """This node has lost what came after ``since``, up to ``until``, or a part of it."""

    KIND = "dissemination.loss"
    stream: Text
    since: Text
    until: Text


class StreamLie(Event):
    """A parent was left, and disconnected: it gave what the producer has not signed (``forged``), left items out
    (``withheld``), or went back in the stream (``out_of_order``)."""

    KIND = "dissemination.lie"
    stream: Text
    liar: str
    reason: Text
    detail: Text


class StreamLoad(Event):
    """Every minute and stream, where anything happened: what this node is in the tree, and what happened.
    ``spurious``: items in vain. ``late_s``: how long the others were on their way, by the
    clocks of producer and node, whose difference is in it. ``held_s``, ``outdated_s``: how
    long subscriptions here held values, and held them out of date at most. Times are sums."""

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
    """This node takes part in a stream no more: ended, unused here, left, or without a producer."""

    KIND = "dissemination.over"
    stream: Text
    reason: Text


INTEREST_SHOWN_MAX: Final = 200
"""Characters of an interest in an event about it."""


class StreamInterestFailed(Event):
    """An interest could not be matched with an item: a defect of this program. Its subscription was ended.
    ``interest``: its text, or ``all``, if only matching them together failed."""

    KIND = "dissemination.interest_failed"
    stream: Text
    interest: str
    reason: str


class StreamUnkept(Event):
    """The producer's disk refuses a durable stream's items: they go out without, from now on."""

    KIND = "dissemination.unkept"
    stream: Text
    reason: Text


class StreamHandedOver(Event):
    """This node has handed a stream over. ``paused_s``: for so long nothing could be published."""

    KIND = "dissemination.handed_over"
    stream: Text
    successor: str
    term: int
    paused_s: float


class StreamSteppedDown(Event):
    """This node took itself for the producer of a stream, and has learned of one of a later term."""

    KIND = "dissemination.stepped_down"
    stream: Text
    producer: str
    term: int


class StreamTakenOver(Event):
    """This node is the producer of a stream that was handed over to it."""

    KIND = "dissemination.taken_over"
    stream: Text
    predecessor: str
    term: int
    position: Text


class StreamProducerReplaced(Event):
    """This standby is the producer from now on: the old one, last heard ``silent_s`` ago, is gone. ``rank``: 0 for the
    first standby."""

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
