"""Events as clients give them: read from JSON, and checked. Pure.

A client gives an object whose members are the attributes. Those that begin with `RESERVED` are none: ``_payload``
(text) or ``_payload_base64``, ``_content_type``, ``_headers``, and ``_retain``, the key under which the event replaces
the last one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from peerd.frozen import Frozen
from peerd.limits import NAME_LENGTH_MAX
from protocols.pubsub.bodies import Headers, headers_bytes
from protocols.pubsub.messages import (
    HEADER_NAME_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    PAYLOAD_BYTES_MAX,
    RETAIN_KEY_BYTES_MAX,
    EventHeader,
)
from protocols.pubsub.models import RESERVED
from protocols.pubsub.ports import Values
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.schema.values import EventError, shown

TEXTS: Final = ("_payload", "_payload_base64", "_content_type", "_retain")
HEADERS: Final = "_headers"
ENVELOPE: Final = (*TEXTS, HEADERS)


class EventDraft(Frozen):
    """What a client wants to publish: checked, but without a number."""

    values: Values
    payload: bytes = b""
    content_type: str = ""
    retain: bytes = b""
    headers: Headers = ()

    @staticmethod
    def of(
        schema: EventSchema,
        values: Mapping[str, Any],
        payload: bytes = b"",
        content_type: str = "",
        retain: bytes = b"",
        headers: Headers = (),
    ) -> EventDraft:
        """Check an event against its schema and the limits. Raises `EventError`."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise EventError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}")
        if len(content_type.encode()) > NAME_LENGTH_MAX:
            raise EventError(f"a content type has at most {NAME_LENGTH_MAX} bytes, not {len(content_type.encode())}")
        if len(retain) > RETAIN_KEY_BYTES_MAX:
            raise EventError(f"a key has at most {RETAIN_KEY_BYTES_MAX} bytes, not {len(retain)}")
        return EventDraft(schema.read_values(values), payload, content_type, retain, headers)


def draft_from_json(schema: EventSchema, event: Mapping[str, Any]) -> EventDraft:
    """Read an event from a parsed JSON object. Raises `EventError`."""
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, value in event.items():
        if not name.startswith(RESERVED):
            values[name] = value
        elif name not in ENVELOPE:
            raise EventError(f"{name!r:.60} is not known; besides attributes there are {', '.join(ENVELOPE)}")
        elif isinstance(value, str):
            texts[name] = value
        elif value is not None and name != HEADERS:
            raise EventError(f"{name} is text, not {shown(value)}")
    text, encoded = texts.get("_payload"), texts.get("_payload_base64")
    if text and encoded:
        raise EventError("an event has _payload or _payload_base64, not both")
    try:
        payload = text.encode() if text else base64.b64decode(encoded, validate=True) if encoded else b""
        headers = read_headers(given) if (given := event.get(HEADERS)) else ()
        retain = texts.get("_retain", "").encode()
        return EventDraft.of(schema, values, payload, texts.get("_content_type", ""), retain, headers)
    except binascii.Error:
        raise EventError("_payload_base64 is not valid base64") from None
    except UnicodeEncodeError:
        raise EventError("text is valid Unicode") from None


def read_headers(given: Any) -> Headers:
    """Read what a client gives: an object of texts, or a list of pairs. Raises `EventError`."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(_is_header(pair) for pair in pairs):
        raise EventError(f"_headers is an object of texts, or a list of pairs of texts, not {shown(given)}")
    headers = tuple(EventHeader(name, value) for name, value in pairs)
    if len(headers) > HEADERS_MAX or headers_bytes(headers) > HEADERS_BYTES_MAX:
        raise EventError(f"an event has at most {HEADERS_MAX} headers, together at most {HEADERS_BYTES_MAX} bytes")
    return headers


def _is_header(pair: object) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return False
    return all(isinstance(text, str) for text in pair) and 0 < len(pair[0]) <= HEADER_NAME_MAX
