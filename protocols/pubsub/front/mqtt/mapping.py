"""MQTT messages as events, and events as MQTT messages. Pure.

A message's payload travels as it is. If it is a JSON object, its members that are attributes of the schema are the
event's values as well, so that filters can ask for them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any, Final

from peerd.lib.filter.values import is_unicode
from protocols.pubsub.front.mqtt.packets import Message
from protocols.pubsub.front.mqtt.topics import TopicError, TopicMap
from protocols.pubsub.messages import PAYLOAD_BYTES_MAX, RETAIN_KEY_BYTES_MAX
from protocols.pubsub.models import RESERVED, ReceivedEvent

JSON_TYPE: Final = "application/json"


class EventMap:
    """Between messages and events of one schema, whose attributes have these ``types``."""

    def __init__(self, topics: TopicMap, types: Mapping[str, str]) -> None:
        self._topics, self._types = topics, types

    def event_of(self, message: Message) -> dict[str, Any]:
        """Return the event that a message is. Raises `TopicError`."""
        if len(message.payload) > PAYLOAD_BYTES_MAX:
            raise TopicError(f"a payload has at most {PAYLOAD_BYTES_MAX} bytes, not {len(message.payload)}")
        members = _members(message.payload)
        known = {name: value for name, value in members.items() if name in self._types and _is_plain(value)}
        event = {**known, **self._topics.values_of(message.topic)}
        event = {name: value for name, value in event.items() if not name.startswith(RESERVED)}
        if message.payload:
            event["_payload_base64"] = base64.b64encode(message.payload).decode()
            event["_content_type"] = JSON_TYPE if members else ""
        if message.is_retained:
            if len(message.topic.encode()) > RETAIN_KEY_BYTES_MAX:
                raise TopicError(f"the topic of a retained message has at most {RETAIN_KEY_BYTES_MAX} bytes")
            event["_retain"] = message.topic
        return event

    def message_of(self, event: ReceivedEvent, qos: int) -> Message | None:
        """Return the message that an event is; ``None`` where there is none for MQTT clients.

        That is so if the event does not have the attributes of the topic, and for the empty message that took away a
        retained one, unless it comes just now.
        """
        topic = self._topics.topic_of(event.values)
        payload = self._payload(event)
        if topic is None or (event.is_replay and not payload):
            return None
        return Message(topic, payload, qos, event.is_replay)

    def _payload(self, event: ReceivedEvent) -> bytes:
        if event.payload:
            try:
                return base64.b64decode(event.payload) if event.is_base64 else event.payload.encode()
            except binascii.Error:
                return b""
        rest = {name: value for name, value in event.values.items() if name not in self._topics.attributes}
        return json.dumps(rest, ensure_ascii=False).encode(errors="replace") if rest else b""


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
