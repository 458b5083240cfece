"""What streams read above their messages: interests, items of every kind, records, what clients and nodes tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from peerd.errors import ProtocolError
from peerd.ids import NodeId
from peerd.messages import PeerRef, decode_body, encode_body
from protocols.dissemination.documents.manifest import CHUNK_BYTES_MIN, DIGEST_BYTES, Attachment
from protocols.dissemination.interests.errors import InterestError, ItemError
from protocols.dissemination.loading import load_kind, load_policy
from protocols.dissemination.messages import ITEM_BYTES_MAX, StreamItem
from protocols.dissemination.models import (
    PastMove,
    PlannedMove,
    ReceivedItem,
    StreamSpec,
    StreamTreeNode,
    StreamWish,
    item_order,
)
from protocols.dissemination.names import PLACE_MAX, position_of, position_text, stream_key
from protocols.dissemination.policies.overlap.item_bits import from_bits, to_bits
from protocols.dissemination.policies.overlap.messages import ChildHistory, ItemBits
from protocols.dissemination.ports import Interest, InterestKind, ParsedItem, RememberingKind
from protocols.dissemination.stream import StreamRecord, decode_record
from tests.fuzz import mutate
from tests.fuzz.instances import encoded_instance
from tests.fuzz.target import Target, reported

PRODUCER: Final = PeerRef(NodeId(7 << 90), "10.0.0.7", 7420)
SPEC: Final = StreamSpec(name="news", kind="classes", policy="overlap", settings={"delta": 0.2, "window": 500})
RECORD: Final = StreamRecord.of(SPEC, PRODUCER)
INTERESTS: Final[dict[str, tuple[str, ...]]] = {
    "classes": ("1,3,sports", "", "a"),
    "attributes": (
        "price > 5 AND sym IN ('IBM', 'SAP')",
        "NOT (count BETWEEN 3 AND 5) OR sym LIKE 'I%'",
        '{"sym": ["IBM", {"prefix": "S"}]}',
        "TRUE",
    ),
    "coherency": ("IBM WITHIN 0.5, 'a b' WITHIN 2 PERCENT", "* AT MOST EVERY 5s", "x CHANGES 3, y WITHIN 2 EDITS"),
    "xpath": (
        "/news/item[@lang='en' and price > 5]/title",
        "//a[b]//c[. = 'x'] | /d/*/e",
        "/a[not(b) or contains(c, 'x')][2]",
        "count(//item[price >= 1.5]) > 1",
    ),
}
ITEMS: Final[dict[str, tuple[str, ...]]] = {
    "classes": ("sports the match", "1"),
    "attributes": ('{"price": 7.5, "sym": "IBM", "count": 4, "deep": {"a": [1, null, true]}}',),
    "coherency": ('{"object": "IBM", "value": 101.5, "time": 1700000000.5}', '{"object": "y", "value": "text"}'),
    "xpath": (
        "<news><item lang='en'><price>7</price><title>x &amp; y</title></item><item><price>2</price></item></news>",
        "<?xml version='1.0'?><a xmlns:p='urn:x'><b/><p:c>x</p:c><d><f><e/></f></d><!-- x --><![CDATA[y]]></a>",
    ),
}
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "classes": (",", ",,", " ", "x" * 33),
    "attributes": ("AND", "OR", "NOT", "(", ")", "IN", "LIKE", "MATCHES", "'", "1e999", "{", "[", '{"a": ['),
    "coherency": ("WITHIN", "PERCENT", "EDITS", "AT MOST EVERY", "CHANGES", "*", ",", "'", "''", "5s", "1e308", "0"),
    "xpath": ("//", "/", "[", "]", "*", "..", "|", "@", "and", "not(", "position()", "last()", "ancestor::", "$x", "'"),
}
XML_WORDS: Final = (
    "<",
    ">",
    "</a>",
    "<a>",
    "&",
    "&x;",
    "<!DOCTYPE a>",
    "<?x?>",
    "]]>",
    "<![CDATA[",
    "\0",
    "xmlns=''",
    "'",
)
TREE_NODE: Final[dict[str, Any]] = {
    "node": "ab" * 16,
    "address": "10.0.0.7:7420",
    "parent": None,
    "depth": 0,
    "interests": ["a"],
    "children": 2,
    "fan_out": 4,
    "figures": {"items_per_s": 2.5},
}
PLANNED: Final[dict[str, Any]] = {
    "what": "move",
    "node": "ab" * 16,
    "from_parent": None,
    "to_parent": "cd" * 16,
    "gain": 0.5,
    "unit": "items",
}
PAST: Final[dict[str, Any]] = {
    **{name: value for name, value in PLANNED.items() if name != "gain"},
    "at_ms": 5,
    "predicted": 0.5,
    "measured": None,
}
RECEIVED: Final[dict[str, Any]] = {"stream": "news", "id": "3-12", "published_ms": 5, "payload": "x", "type": "item"}
SLOW: Final = 0.5


def stream_targets() -> Iterator[Target]:
    """Every target of this module."""
    for name in INTERESTS:
        kind = load_kind(name)
        yield Target(f"interests {name}", _interests(name), _read_interests(kind), (InterestError,), weight=2)
        yield Target(f"items {name}", _item(name), _read_item(kind), (ItemError,), weight=2)
        yield Target(f"interests and items {name}", _both(name), _match(kind), (InterestError, ItemError), weight=2)
    yield Target("stream record", lambda rng: _json(rng, json.loads(RECORD.encode())), _read_record, (ProtocolError,))
    yield Target("stream item bits", _bits, _read_bits, (ProtocolError,))
    yield Target("stream item", lambda rng: mutate.packed(rng, _item_bytes(rng)), _read_packed, (ProtocolError,))
    yield Target("stream policy settings", _settings, _read_settings, (ValueError,), weight=SLOW)
    yield Target("stream place", lambda rng: mutate.text(rng, "3-120"), _read_place, (ValueError,))
    bodies: tuple[tuple[str, Any, Any], ...] = (
        ("stream spec", StreamSpec, SPEC.model_dump(mode="json")),
        ("stream wish", StreamWish, {"interest": "a", "after": "3-1", "name": "mine"}),
        ("stream tree node", StreamTreeNode, TREE_NODE),
        ("stream plan", list[PlannedMove], [PLANNED]),
        ("stream history", list[PastMove], [PAST]),
        ("stream received item", ReceivedItem, RECEIVED),
    )
    for name, model, valid in bodies:
        yield _body(name, TypeAdapter(model), valid)


def _body(name: str, model: TypeAdapter[Any], valid: Any) -> Target:
    return Target(name, lambda rng: _json(rng, valid), reported(model.validate_json), (ValidationError,), weight=SLOW)


def _json(rng: Random, document: Any) -> bytes:
    return mutate.json_text(rng, json.dumps(document)).encode("utf-8", "surrogatepass")


# Interests and items


def _interests(kind: str) -> Callable[[Random], list[str]]:
    def make(rng: Random) -> list[str]:
        """Some as they are, and one that is damaged."""
        some = rng.choices(INTERESTS[kind], k=rng.randrange(3))
        return [*some, mutate.text(rng, rng.choice(INTERESTS[kind]), WORDS[kind])[:4096]]

    return make


def _item(kind: str) -> Callable[[Random], bytes]:
    def make(rng: Random) -> bytes:
        valid = rng.choice(ITEMS[kind])
        if rng.random() < 0.2:
            return mutate.damaged(rng, valid.encode())[:ITEM_BYTES_MAX]
        words = XML_WORDS if kind == "xpath" else ("NaN", "1e999", "{", "[", '"', "\\ud800")
        is_json = kind in ("attributes", "coherency") and rng.random() < 0.7
        text = mutate.json_text(rng, valid) if is_json else mutate.text(rng, valid, words)
        return text.encode("utf-8", "surrogatepass")[:ITEM_BYTES_MAX]

    return make


def _both(kind: str) -> Callable[[Random], tuple[list[str], bytes]]:
    interests, item = _interests(kind), _item(kind)

    def make(rng: Random) -> tuple[list[str], bytes]:
        return interests(rng), item(rng) if rng.random() < 0.5 else rng.choice(ITEMS[kind]).encode()

    return make


def _read_interests(kind: InterestKind) -> Callable[[list[str]], None]:
    def run(texts: list[str]) -> None:
        """What is accepted means the same when its canonical text is read, and can be compared with any other."""
        some = [kind.parse(text) for text in texts]
        for each in some:
            again = kind.parse(each.text)
            assert (again.id, again.text) == (each.id, each.text), f"{each.text!r:.200} is read as {again.text!r:.200}"
            assert kind.covers(each, again) and kind.overlap(each, again) == 1.0
            assert all(0.0 <= kind.overlap(each, other) <= 1.0 for other in some)
        assert all(kind.covers(kind.parse(""), each) for each in some)

    return run


def _parsed(kind: InterestKind, payload: bytes) -> ParsedItem:
    item = StreamItem.of(1, 2, 3, payload)
    return ParsedItem(item, kind.content(item))


def _read_item(kind: InterestKind) -> Callable[[bytes], None]:
    def run(payload: bytes) -> None:
        """What is accepted can be matched with everything, and be held."""
        held = _parsed(kind, payload)
        everything = kind.parse("")
        assert kind.matches(everything, held.content)
        if isinstance(kind, RememberingKind):
            given, here = kind.make_last_sent(), kind.make_last_sent(is_source=True)
            here.give(held)
            given.want([everything])
            assert given.offer(held, here) and given.has(held) and not given.offer(held, here)

    return run


def _match(kind: InterestKind) -> Callable[[tuple[list[str], bytes]], None]:
    def run(case: tuple[list[str], bytes]) -> None:
        """Many together give the answers of each alone, and who covers another misses nothing."""
        texts, payload = case
        some = [kind.parse(text) for text in texts]
        held = _parsed(kind, payload)
        together = kind.make_set()
        for each in some:
            together.add(each)
        met = together.match(held.content)
        alone = {each.id for each in some if kind.matches(each, held.content)}
        assert met == alone, f"together {_texts(some, met)}, alone {_texts(some, alone)}"
        for wide in some:
            for narrow in some:
                assert wide.id in met or narrow.id not in met or not kind.covers(wide, narrow), (wide.text, narrow.text)
        for each in some:
            together.remove(each.id)
        assert len(together) == 0 and together.match(held.content) == set()

    return run


def _texts(some: Sequence[Interest], ids: set[bytes]) -> list[str]:
    return [each.text for each in some if each.id in ids]


# Records, sets of items, and what is told


def _read_record(content: bytes) -> None:
    record = decode_record(content, stream_key("news"), PRODUCER.id)
    assert decode_record(record.encode(), record.key, PRODUCER.id) == record


def _item_bytes(rng: Random) -> bytes:
    """A valid item: one in so many with a manifest."""
    kind = rng.choice(("", "text/plain", "é" * 128))
    manifest = Attachment("f", 5, CHUNK_BYTES_MIN, rng.randbytes(DIGEST_BYTES)) if rng.random() < 0.3 else None
    return StreamItem.of(rng.randrange(PLACE_MAX), rng.randrange(1, 300), 3, rng.randbytes(9), kind, manifest).packed


def _read_packed(packed: bytes) -> None:
    """What is accepted says the same when it is read again, from its own bytes and from those made of what it says."""
    item = StreamItem.unpack(packed)
    item.rest()
    body, at = item.body, item.position
    fields = body.published_ms, body.payload, body.content_type, body.attachment
    assert StreamItem.of(at.epoch, at.sequence, *fields).body == body == StreamItem.unpack(item.packed).body


def _bits(rng: Random) -> bytes:
    """A set of items whose parts fit together, damaged; or any."""
    if rng.random() < 0.3:
        return encoded_instance(rng, ChildHistory)
    since, span, every_log2 = rng.randrange(5000), rng.randrange(2000), rng.randrange(4)
    first, last = (since >> every_log2) + 1, (since + span) >> every_log2
    valid = ItemBits(1, since, since + span, rng.randbytes((last - first + 8) // 8), every_log2)
    return mutate.packed(rng, encode_body(ChildHistory(RECORD.key, valid)))


def _read_bits(body: bytes) -> None:
    items = from_bits(decode_body(ChildHistory, body).needed)
    again = from_bits(to_bits(items))
    assert set(again.items) <= set(items.items)


def _settings(rng: Random) -> tuple[str, bytes]:
    policy = rng.choice(("overlap", "cost", "first_fit"))
    return policy, _json(rng, {"delta": 0.2, "window": 500, "tau": 30.0, "is_on": True})


def _read_settings(case: tuple[str, bytes]) -> None:
    policy, content = case
    try:
        given = json.loads(content)
    except (ValueError, RecursionError):
        return
    if isinstance(given, dict):
        load_policy(policy).settings(given)


def _read_place(text: str) -> None:
    position = position_of(text)
    if text != "start":
        assert position_of(position_text(position)) == item_order(text) == position
