"""What all parts ask of what travels: an event's id, its size, its headers, and whether its publisher has signed it.

Headers are texts under names that travel with an event's payload, and that no filter looks at. A name may occur more
than once, and the order is kept: programs that speak MQTT, Kafka or HTTP rely on both. Where a schema asks for signed
events, their publisher signs them, because an event reaches its readers through others.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, TypeAlias

from peerd.api import Host
from peerd.ids import id_to_bytes
from protocols.pubsub.messages import EventBody, EventHeader, EventName
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import SchemaView

Headers: TypeAlias = tuple[EventHeader, ...]
HEADER_OVERHEAD_BYTES: Final = 7
"""What a header takes in a message besides its texts, at most."""

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


def headers_bytes(headers: Headers) -> int:
    """How much headers take in a message, at most."""
    return sum(HEADER_OVERHEAD_BYTES + len(each.name.encode()) + len(each.value.encode()) for each in headers)


def is_proven(host: Host, schema: SchemaView, event: EventBody) -> bool:
    """Whether an event has the proof of its publisher, if its schema asks for one."""
    if not schema.is_signed:
        return True
    return host.verify(event.publisher.id, event_statement(schema.name, event), event.proof)


def event_statement(schema: str, event: EventBody) -> bytes:
    """The publisher: I have published this, under this schema and this name.

    Everything that a reader sees is part of it, each piece with its length, so that none can be moved into the next.
    The publisher's address is not: it may change while the event is on its way, and is nobody's proof of anything.
    """
    parts = (
        schema.encode(),
        id_to_bytes(event.publisher.id),
        *(number.to_bytes(8, "big") for number in (event.epoch, event.sequence, event.published_ms)),
        *(event.values, event.payload, event.content_type.encode(), event.retain),
        *(text.encode() for header in event.headers for text in (header.name, header.value)),
    )
    return b"event" + sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
