"""What all parts ask of what travels: an event's id, how much of a message it takes, how much of a text fits. Pure."""

from __future__ import annotations

from typing import Final

from protocols.pubsub.headers import headers_bytes
from protocols.pubsub.messages import EventBody, EventName
from protocols.pubsub.names import EventId

EVENT_ENVELOPE_BYTES: Final = 112
"""What an event has besides its texts and byte strings, at most."""


def id_of(event: EventBody | EventName) -> EventId:
    """Return the id of an event."""
    publisher = event.publisher.id if isinstance(event, EventBody) else event.publisher
    return EventId(publisher, event.epoch, event.sequence)


def event_bytes(event: EventBody) -> int:
    """Return how much an event takes in a message, at most."""
    texts = len(event.publisher.host.encode())
    if event.content_type:
        texts += len(event.content_type.encode())
    if event.headers:
        texts += headers_bytes(event.headers)
    return EVENT_ENVELOPE_BYTES + texts + len(event.values) + len(event.payload) + len(event.retain) + len(event.proof)


def beginning(text: str, bytes_max: int) -> str:
    """Return as much of a text as fits: messages count bytes, and a character has up to four."""
    return text.encode()[:bytes_max].decode(errors="ignore")
