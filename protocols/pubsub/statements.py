"""What a publisher signs, where its schema asks for signed events: an event reaches its readers through others."""

from __future__ import annotations

from hashlib import sha256

from peerd.api import Host
from peerd.ids import id_to_bytes
from protocols.pubsub.messages import EventBody
from protocols.pubsub.ports import SchemaView


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
