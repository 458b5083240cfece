"""CloudEvents 1.0 in the bodies and headers of HTTP: structured, binary, and in batches; read as events. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from peerd.models.admin import JSON_TYPE

STRUCTURED_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
HEADER: Final = "ce-"
REQUIRED: Final = ("specversion", "id", "source", "type")


class NotAnEvent(ValueError):
    """What a client sent is no event; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """An event as a client sent it. ``context``: the context attributes, if it is a CloudEvent."""

    event: dict[str, Any]
    context: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What its producer calls it: source and id, which together are one event (CloudEvents 1.0, section 3.1.1)."""
        return f"{self.context['source']}\0{self.context['id']}" if self.context else ""

    def entered(self, attributes: Collection[str]) -> dict[str, Any]:
        """The event with its context: as attributes where the schema has these, else (its ``id``, say) as headers."""
        found = {name: value for name, value in self.context.items() if name in attributes}
        headers = [
            [HEADER + name, _as_text(value)]
            for name, value in self.context.items()
            if name not in attributes and value is not None
        ]
        return found | ({"_headers": headers} if headers else {}) | self.event


def read_event(kind: str, headers: Mapping[str, str], body: bytes) -> ClientEvent:
    """The event of a request with this content type. Raises `NotAnEvent`."""
    context = {name[len(HEADER) :]: value for name, value in headers.items() if name.startswith(HEADER)}
    if context:
        return _checked(_of_binary(kind, body), context)
    found = _object(parsed(body))
    return _of_structured(found) if kind == STRUCTURED_TYPE else ClientEvent(found, {})


def read_batch(kind: str, body: bytes, events_max: int) -> list[ClientEvent | NotAnEvent]:
    """The events of a JSON array; in the place of each that is none, why. Raises `NotAnEvent` for what is no array."""
    found = parsed(body)
    if not isinstance(found, list) or len(found) > events_max:
        raise NotAnEvent(f"a batch is an array of at most {events_max} events")
    return [_one(kind, each) for each in found]


def _one(kind: str, value: Any) -> ClientEvent | NotAnEvent:
    try:
        event = _object(value)
        return _of_structured(event) if kind == BATCH_TYPE else ClientEvent(event, {})
    except NotAnEvent as error:
        return error


def parsed(body: bytes) -> Any:
    """A body as JSON. Raises `NotAnEvent`."""
    try:
        return _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise NotAnEvent(f"the body is not JSON: {error}"[:200]) from error


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotAnEvent("an event is a JSON object")
    return value


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON; leave the attribute out instead")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
"""What ``json.loads`` would make anew for every body."""


def _checked(event: dict[str, Any], context: dict[str, Any]) -> ClientEvent:
    """Raises `NotAnEvent` for what is no CloudEvent: a plain event sent with the wrong content type, say."""
    missing = [name for name in REQUIRED if not isinstance(context.get(name), str) or not context[name]]
    if missing:
        raise NotAnEvent(f"a CloudEvent has {', '.join(REQUIRED)}, which are text; there is no {', '.join(missing)}")
    if not context["specversion"].startswith("1."):
        raise NotAnEvent(f"CloudEvents of version 1.0 are taken, not {context['specversion']!r:.20}")
    return ClientEvent(event, context)


def _of_structured(cloud: dict[str, Any]) -> ClientEvent:
    """A CloudEvent in structured mode: the members of ``data`` are attributes, the rest is its context."""
    data = cloud.pop("data", None)
    encoded = cloud.pop("data_base64", None)
    content_type = cloud.pop("datacontenttype", "")
    event: dict[str, Any] = {}
    if isinstance(data, dict):
        event = data
    elif encoded is not None:
        event = {"_payload_base64": encoded, "_content_type": content_type}
    elif data is not None:
        event = {"_payload": data if isinstance(data, str) else json.dumps(data), "_content_type": content_type}
    return _checked(event, cloud)


def _of_binary(kind: str, body: bytes) -> dict[str, Any]:
    """The data of a CloudEvent in binary mode: a JSON object gives attributes, anything else is the payload."""
    if kind == JSON_TYPE and body.lstrip()[:1] == b"{":
        return _object(parsed(body))
    return {"_payload_base64": base64.b64encode(body).decode(), "_content_type": kind} if body else {}


def _as_text(value: Any) -> str:
    """A context attribute as the HTTP binding of CloudEvents writes it."""
    return value if isinstance(value, str) else json.dumps(value)
