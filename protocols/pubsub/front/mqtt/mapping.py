"""MQTT messages as events, and events as MQTT messages. Pure.

A message's payload travels as it is. If it is a JSON object, its members that are attributes of the schema are the
event's values as well, so that filters can ask for them. The properties that a message of MQTT 5 has besides its
content type are headers of the event: its user properties under their own names, the rest under names that begin with
`OWN`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from peerd.lib.filter.values import is_unicode
from peerd.models.admin import JSON_TYPE
from protocols.pubsub.front.mqtt.packets import PLAIN, ApplicationMessage, Properties
from protocols.pubsub.front.mqtt.topics import TopicError, TopicMap
from protocols.pubsub.messages import PAYLOAD_BYTES_MAX, RETAIN_KEY_BYTES_MAX
from protocols.pubsub.models import RESERVED, ReceivedEvent

OWN: Final = "mqtt-"
"""Headers that begin with this are the gateway's: user properties with such names are left out."""
UTF8, EXPIRY, RESPONSE_TOPIC, CORRELATION, CLIENT = (
    f"{OWN}{name}" for name in ("utf8", "expiry", "response-topic", "correlation", "client")
)
EXPIRY_DIGITS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class SubscriptionOptions:
    """How a subscription wants its messages. ``not_from``: the key of the client whose own ones it does not want."""

    qos: int = 0
    as_published: bool = False
    subscription_id: int = 0
    not_from: str = ""


def key_of(client_id: str) -> str:
    """What stands for a client in events: not its identifier, which is nobody else's business."""
    return hashlib.sha256(client_id.encode(errors="replace")).hexdigest()[:16]


class PayloadError(TopicError):
    """A payload that is no event of the schema."""


class EventMap:
    """Between messages and events of one schema, whose attributes have these ``types``."""

    def __init__(self, topics: TopicMap, types: Mapping[str, str], *, is_strict: bool = True) -> None:
        """``is_strict``: every member of a JSON object is an attribute, with a value of its type, or it is refused."""
        self._topics, self._types, self._is_strict = topics, types, is_strict

    def event_of(self, message: ApplicationMessage, sender: str = "") -> dict[str, Any]:
        """Return the event that a message is; ``sender``: the key of its client, if that matters. `TopicError`."""
        if len(message.payload) > PAYLOAD_BYTES_MAX:
            raise TopicError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, not {len(message.payload)}")
        members = _members(message.payload)
        event = {**self._known(members), **self._topics.values_of(message.topic)}
        event = {name: value for name, value in event.items() if not name.startswith(RESERVED)}
        if message.payload:
            event["_payload_base64"] = base64.b64encode(message.payload).decode()
            event["_content_type"] = message.properties.content_type or (JSON_TYPE if members else "")
        if message.is_retained:
            if len(message.topic.encode()) > RETAIN_KEY_BYTES_MAX:
                raise TopicError(f"the topic of a retained message has at most {RETAIN_KEY_BYTES_MAX} bytes")
            event["_retain"] = message.topic
        if headers := _headers(message.properties, sender):
            event["_headers"] = headers
        return event

    def _known(self, members: Mapping[str, Any]) -> Mapping[str, Any]:
        """The members of a payload that are values of the event. The daemon says what is wrong with their types."""
        if not self._is_strict:
            return {name: value for name, value in members.items() if name in self._types and _is_plain(value)}
        unknown = [name for name in members if name not in self._types]
        if unknown:
            raise PayloadError(
                f"{unknown[0]!r:.60} is no attribute of the schema, which has {', '.join(self._types)}"[:200]
            )
        try:
            json.dumps(members, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise PayloadError("a number in it is not finite, or it is nested too deeply") from error
        return members

    def message_of(self, event: ReceivedEvent, wish: SubscriptionOptions, now_s: float) -> ApplicationMessage | None:
        """Return the message that an event is; ``None`` where there is none for this subscription of MQTT clients.

        That is so if the event does not have the attributes of the topic, has expired, comes from the client that does
        not want its own; and for the empty message that took away a retained one, unless it comes just now.
        """
        topic, headers = self._topics.topic_of(event.values), dict(event.headers)
        payload, content_type = self._payload(event)
        if topic is None or (event.is_replay and not payload):
            return None
        if wish.not_from and headers.get(CLIENT) == wish.not_from:
            return None
        expiry_s = _seconds(headers.get(EXPIRY, ""))
        if expiry_s is not None and (expiry_s := math.ceil(expiry_s + min(0.0, event.published_at - now_s))) <= 0:
            return None
        is_retained = event.is_replay or (wish.as_published and bool(event.retain))
        said = _properties(event, content_type, expiry_s)
        return ApplicationMessage(
            topic, payload, wish.qos, is_retained, properties=said, subscription_id=wish.subscription_id
        )

    def _payload(self, event: ReceivedEvent) -> tuple[bytes, str]:
        """The payload and its content type; of an event that has none, its values."""
        if event.payload:
            try:
                payload = base64.b64decode(event.payload) if event.is_base64 else event.payload.encode()
            except binascii.Error:
                payload = b""
            return payload, event.content_type
        rest = {name: value for name, value in event.values.items() if name not in self._topics.attributes}
        return (json.dumps(rest, ensure_ascii=False).encode(errors="replace"), JSON_TYPE) if rest else (b"", "")


def _headers(said: Properties, sender: str) -> list[tuple[str, str]]:
    own = {
        UTF8: "1" if said.is_text else None,
        EXPIRY: None if said.expiry_s is None else str(said.expiry_s),
        RESPONSE_TOPIC: said.response_topic or None,
        CORRELATION: None if said.correlation is None else base64.b64encode(said.correlation).decode(),
        CLIENT: sender or None,
    }
    theirs = [(name, value) for name, value in said.user if name and not name.startswith(OWN)]
    return [*((name, value) for name, value in own.items() if value is not None), *theirs]


def _properties(event: ReceivedEvent, content_type: str, expiry_s: int | None) -> Properties:
    """What a message says of itself. Anybody may have published the event: nothing in it may break the packet."""
    headers = {name: value for name, value in event.headers if name.startswith(OWN)}
    user = tuple(pair for pair in event.headers if not pair[0].startswith(OWN) and "\0" not in "".join(pair))
    topic = headers.get(RESPONSE_TOPIC, "")
    if not (event.headers or content_type):
        return PLAIN
    return Properties(
        is_text=UTF8 in headers,
        expiry_s=expiry_s,
        content_type="" if "\0" in content_type else content_type,
        response_topic="" if any(character in topic for character in "+#\0") else topic,
        correlation=_bytes(headers.get(CORRELATION)),
        user=user,
    )


def _seconds(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= EXPIRY_DIGITS_MAX else None


def _bytes(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _members(payload: bytes) -> dict[str, Any]:
    if payload.lstrip()[:1] != b"{":
        return {}
    try:
        found = json.loads(payload, parse_constant=lambda word: None)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_plain(value: object) -> bool:
    """Whether it can be the value of an attribute, and can be written as JSON again."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool | int) or (isinstance(value, str) and is_unicode(value))
