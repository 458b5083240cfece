"""Decoders of publish/subscribe above its messages: records on the ring, schemas, events, reports and saved state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from pydantic import ValidationError

from peerd.errors import ConfigError, ProtocolError
from peerd.ids import NodeId
from peerd.lib.filter import FilterError
from peerd.messages import PeerRef
from protocols.pubsub.explaining.explainer import _read
from protocols.pubsub.explaining.reports import NodeReport
from protocols.pubsub.messages import CellState, ExplainAnswer, SubObject
from protocols.pubsub.models import ReceivedEvent, SubscriptionRequest
from protocols.pubsub.names import STATE_ITEM, EventId, Tree
from protocols.pubsub.publishing.event import draft_from_json
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.schema.values import EventError
from protocols.pubsub.subscribing.saved import SavedSubscription
from protocols.pubsub.tree import storage
from protocols.pubsub.tree.cells import SIDE, cell_at
from protocols.pubsub.tree.storage import CellAddress
from tests.fuzz import mutate
from tests.fuzz.target import Target, reported

SUBSCRIBER: Final = PeerRef(NodeId(7 << 90), "10.0.0.7", 7420)
DOCUMENT: Final[dict[str, Any]] = {
    "name": "trades",
    "attributes": [
        {"name": "price", "type": "decimal", "low": 0, "high": 100},
        {"name": "count", "type": "int", "low": -50, "high": 50},
        {"name": "load", "type": "float", "low": 0.0, "high": 1.0},
        {"name": "sym", "type": "string", "low": "A", "high": "Z"},
        {"name": "open", "type": "bool"},
        {"name": "at", "type": "timestamp", "low": "2024-01-01T00:00:00Z", "high": "2025-01-01T00:00:00Z"},
        {"name": "from", "type": "ip", "network": "10.0.0.0/8"},
    ],
    "outside": "clamp",
}
SCHEMA: Final = EventSchema.read(DOCUMENT, cutoff=0.25)
EVENT: Final[dict[str, Any]] = {
    "price": "12.50",
    "count": 3,
    "load": 0.5,
    "sym": "IBM",
    "open": True,
    "at": "2024-06-01T12:00:00Z",
    "from": "10.1.2.3",
}
RECEIVED: Final[dict[str, Any]] = {
    "event": "ab" * 16 + "-1-2",
    "publisher": "ab" * 16,
    "published_at": 1.5,
    "values": EVENT,
    "payload": "x",
    "is_base64": False,
    "content_type": "",
    "retain": "",
    "is_replay": False,
}
SAVED: Final[dict[str, Any]] = {
    "number": 5,
    "name": "mine",
    "schema_name": "trades",
    "document": "price > 5",
    "group": "",
    "policy": "block",
    "bytes_max": 1 << 20,
    "slot": 0,
    "base": 3,
}
REPORT: Final[dict[str, Any]] = {
    "publisher": {"schema_name": "trades", "outcome": "received", "visited": [{"attribute": 1, "cell": "01"}]},
    "subscriber": {"fate": "taken", "subscriptions": [{"sid": 3, "filter": "price > 5"}], "places": []},
}


def pubsub_targets() -> Iterator[Target]:
    """Every target of this module."""
    yield Target("pubsub records", _record, _read_record, (), weight=3)
    yield Target("pubsub schema", lambda rng: _json(rng, DOCUMENT), _read_schema, (ConfigError,), weight=2)
    yield Target("pubsub event values", _values, _read_values, (ProtocolError,), weight=3)
    yield Target("pubsub event JSON", lambda rng: _json(rng, EVENT), _read_event, (EventError,), weight=2)
    yield Target("pubsub explain answer", lambda rng: _json(rng, REPORT), _read_report, (ProtocolError,), weight=2)
    saved, received = reported(SavedSubscription.model_validate_json), reported(ReceivedEvent.model_validate_json)
    yield Target("pubsub saved subscription", lambda rng: _json(rng, SAVED), saved, (ValidationError,))
    yield Target("pubsub received event", lambda rng: _json(rng, RECEIVED), received, (ValidationError,))
    yield Target("pubsub subscribe body", _request, reported(_read_request), (ValidationError,))
    yield Target("pubsub event id", lambda rng: mutate.text(rng, RECEIVED["event"]), _read_id, (ValueError,))
    yield Target("pubsub stored filter", _filter, SCHEMA.parse_filter, (FilterError,))


def _json(rng: Random, document: dict[str, Any]) -> bytes:
    return mutate.json_text(rng, json.dumps(document)).encode("utf-8", "surrogatepass")


def _parsed(content: bytes) -> Any:
    """What JSON there is; what is none, or is nested too deeply for Python's reader, comes no further."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _record(rng: Random) -> tuple[NodeId, bytes, bytes]:
    """A record of a cell, under the key that it belongs to."""
    low = rng.randrange(SIDE)
    sub = SubObject(SUBSCRIBER, rng.getrandbits(60), 0, 1, 1, low, rng.randrange(low, SIDE), "price > 5")
    depth = rng.randrange(4)
    place = CellAddress(Tree("trades", 1), cell_at(sub.low, sub.high, depth))
    if rng.random() < 0.5:
        value = storage.state_record(place, rng.choice(list(CellState)), rng.randrange(9))
        return place.key, STATE_ITEM, mutate.packed(rng, value)
    return place.key, sub.key.item, mutate.packed(rng, storage.sub_record(place, sub))


def _read_record(case: tuple[NodeId, bytes, bytes]) -> None:
    """Whatever is there, reading the records of a key raises nothing; what is read can be written again."""
    key, item, value = case
    version = SimpleNamespace(writer=SUBSCRIBER.id)
    record: Any = SimpleNamespace(key=key, item=item, value=value, owner=None, version=version, remaining_s=5.0)
    found = storage.read([record])
    if found is not None:
        assert found.place.key == key
        for stored in found.pieces.values():
            storage.sub_record(found.place, stored.sub)


def _read_schema(content: bytes) -> None:
    schema = EventSchema.read(_parsed(content), cutoff=0.25)
    assert EventSchema.read(schema.document.model_dump(mode="json"), cutoff=0.25).document == schema.document


def _values(rng: Random) -> bytes:
    some = {name: EVENT[name] for name in rng.sample(sorted(EVENT), rng.randrange(1, len(EVENT) + 1))}
    return mutate.packed(rng, SCHEMA.pack(SCHEMA.read_values(some)))


def _read_values(data: bytes) -> None:
    """What is accepted has a place in every tree, and can be sent on."""
    values = SCHEMA.decode_values(data)
    dict(SCHEMA.targets(values))
    assert SCHEMA.decode_values(SCHEMA.pack(values)) == values


def _read_event(content: bytes) -> None:
    event = _parsed(content)
    if isinstance(event, dict):
        SCHEMA.pack(draft_from_json(SCHEMA, event).values)


def _read_report(content: bytes) -> None:
    if len(content) <= 30 * 1024:
        assert isinstance(_read(ExplainAnswer(content)), NodeReport)


def _request(rng: Random) -> bytes:
    return _json(rng, {"schema": "trades", "filter": "price > 5", "name": "mine", "group": "g", "since": "10m"})


def _read_request(content: bytes) -> None:
    SubscriptionRequest.model_validate(_parsed(content))


def _read_id(text: str) -> None:
    assert EventId.parse(str(EventId.parse(text))) == EventId.parse(text)


def _filter(rng: Random) -> str:
    given = "price BETWEEN 3 AND 50 AND (sym LIKE 'IB%' OR NOT open = TRUE) AND count IN (1, 2, 3)"
    words = (
        "price",
        "count",
        "sym",
        "at",
        "AND",
        "OR",
        "NOT",
        "IN",
        "BETWEEN",
        "LIKE",
        "MATCHES",
        "(",
        ")",
        "1e999",
        "'",
    )
    return mutate.text(rng, given, words)[:8192]
