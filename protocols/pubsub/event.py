"""Events as clients give and get them, and as they travel. Pure.

A client gives an object: ``values``, and perhaps ``payload`` (text) or ``payload_base64``, ``content_type`` and
``key``, under which the event replaces the last one. It gets the same back, with ``id``, ``schema`` and ``published``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import msgpack

from peerd.errors import ProtocolError
from peerd.ids import NodeId, id_to_bytes
from peerd.lib.filter.values import Timestamp
from peerd.limits import NAME_LENGTH_MAX
from peerd.messages import PeerRef
from protocols.pubsub.messages import PAYLOAD_BYTES_MAX, RETAIN_KEY_BYTES_MAX, EventBody
from protocols.pubsub.names import EventId
from protocols.pubsub.ports import Values
from protocols.pubsub.schema import Schema
from protocols.pubsub.values import EventError, shown

ENVELOPE_BYTES: Final = 160
"""About what an event's `EventBody` takes beside its values, payload, key and proof."""
_STATEMENT: Final = b"event\0"
_LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, beyond which a time has no text."""
_KEYS: Final = ("values", "payload", "payload_base64", "content_type", "key")

__all__ = [
    "ENVELOPE_BYTES",
    "Draft",
    "EventError",
    "body_of",
    "check_proof",
    "draft_from_json",
    "event_id",
    "size_of",
    "statement",
    "to_json",
]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a client wants to publish: checked, but without a number."""

    values: Values
    payload: bytes = b""
    content_type: str = ""
    retain: bytes = b""

    @staticmethod
    def of(
        schema: Schema, values: Mapping[str, Any], payload: bytes = b"", content_type: str = "", key: str | bytes = b""
    ) -> Draft:
        """Check an event against its schema and the limits. Raises `EventError`."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise EventError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}")
        if len(content_type) > NAME_LENGTH_MAX:
            raise EventError(f"a content type has at most {NAME_LENGTH_MAX} characters, not {len(content_type)}")
        retain = key.encode() if isinstance(key, str) else key
        if len(retain) > RETAIN_KEY_BYTES_MAX:
            raise EventError(f"a key has at most {RETAIN_KEY_BYTES_MAX} bytes, not {len(retain)}")
        return Draft(schema.read_values(values), payload, content_type, retain)


def draft_from_json(schema: Schema, document: object) -> Draft:
    """Read an event from a parsed JSON object. Raises `EventError`."""
    if not isinstance(document, Mapping) or not isinstance(document.get("values"), Mapping):
        raise EventError('an event is an object with "values", which is an object, too')
    unknown = [str(key) for key in document if key not in _KEYS]
    if unknown:
        raise EventError(f"an event has no {unknown[0]!r:.60}; it has {', '.join(_KEYS)}")
    texts = {key: document.get(key) for key in _KEYS[1:]}
    wrong = [key for key, value in texts.items() if value is not None and not isinstance(value, str)]
    if wrong:
        raise EventError(f"{wrong[0]} is text, not {shown(texts[wrong[0]])}")
    if texts["payload"] and texts["payload_base64"]:
        raise EventError("an event has payload or payload_base64, not both")
    try:
        payload = (texts["payload"] or "").encode() or base64.b64decode(texts["payload_base64"] or "", validate=True)
        return Draft.of(schema, document["values"], payload, texts["content_type"] or "", texts["key"] or "")
    except binascii.Error:
        raise EventError("payload_base64 is not valid base64") from None
    except UnicodeEncodeError:
        raise EventError("text is valid Unicode") from None


def body_of(
    schema: Schema,
    draft: Draft,
    publisher: PeerRef,
    event: EventId,
    published_ms: int,
    sign: Callable[[bytes], bytes] | None = None,
) -> EventBody:
    """Give an event its number. ``sign``: `Host.sign`, used where the schema asks for a proof. Raises `EventError`."""
    body = EventBody(
        publisher=publisher,
        epoch=event.epoch,
        sequence=event.sequence,
        published_ms=published_ms,
        values=schema.pack(draft.values),
        payload=draft.payload,
        content_type=draft.content_type,
        retain=draft.retain,
    )
    return replace(body, proof=sign(statement(schema.name, body))) if schema.is_signed and sign is not None else body


def event_id(body: EventBody) -> EventId:
    """Return the name of an event."""
    return EventId(body.publisher.id, body.epoch, body.sequence)


def size_of(body: EventBody) -> int:
    """About how many bytes an event takes in a message or in memory."""
    variable = (body.values, body.payload, body.retain, body.proof, body.content_type)
    return ENVELOPE_BYTES + sum(map(len, variable))


def statement(schema: str, body: EventBody) -> bytes:
    """What the publisher signs: everything that an event says, and in which schema."""
    contents = (
        schema,
        id_to_bytes(body.publisher.id),
        body.epoch,
        body.sequence,
        body.published_ms,
        body.values,
        body.payload,
        body.content_type,
        body.retain,
    )
    return _STATEMENT + sha256(msgpack.packb(contents)).digest()


def check_proof(schema: Schema, body: EventBody, verify: Callable[[NodeId, bytes, bytes], bool]) -> None:
    """Raise `ProtocolError` for an event without a valid proof, where the schema asks for one (`Host.verify`)."""
    if schema.is_signed and not verify(body.publisher.id, statement(schema.name, body), body.proof):
        raise ProtocolError("event_forged", f"{schema.name}: {event_id(body)} is not signed by its publisher")


def to_json(schema: Schema, body: EventBody, values: Values) -> dict[str, Any]:
    """What a client gets: an object for JSON, in which decimals are text. ``values``: as the schema decoded them."""
    document: dict[str, Any] = {
        "id": str(event_id(body)),
        "schema": schema.name,
        "published": str(Timestamp(min(body.published_ms, _LAST_MS) * 1_000_000)),
        "values": {
            name: str(value) if isinstance(value, Decimal) else value for name, value in schema.visible(values).items()
        },
    }
    if body.payload:
        try:
            document["payload"] = body.payload.decode()
        except UnicodeDecodeError:
            document["payload_base64"] = base64.b64encode(body.payload).decode()
    if body.content_type:
        document["content_type"] = body.content_type
    if body.retain:
        document["key"] = body.retain.decode(errors="replace")
    return document
