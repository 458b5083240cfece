"""Instances of any declared message with values drawn at random, within what its fields allow."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from msgspec import Meta

from peerd import limits
from peerd.errors import Bug
from peerd.ids import NodeId
from peerd.messages import Message, PeerRef, Struct, encode_body
from tests.support.golden import sample

ITEMS_MAX: Final = 4
_HOSTS: Final = ("127.0.0.1", "10.1.2.3", "::1", "fe80::1", "a.example.org", "255.255.255.255")
_LETTERS: Final = "abcXYZ019 .:/-_äß😀"


@dataclasses.dataclass(frozen=True, slots=True)
class Vocabulary:
    """Names that mean something to whoever gets the message: drawn most of the time, in place of invented ones."""

    peers: Sequence[PeerRef] = ()
    ids: Sequence[NodeId] = ()
    blobs: Sequence[bytes] = ()
    kinds: Sequence[type[Message]] = ()
    """What a field ``body`` beside a field ``type_id`` holds, encoded."""


NOTHING: Final = Vocabulary()
KNOWN_SHARE: Final = 0.8


def encoded_instance(rng: Random, kind: type[Message], words: Vocabulary = NOTHING) -> bytes:
    """The body of a random instance; of the fixed sample when the random one is too large, or its class refuses it."""
    try:
        return encode_body(typing.cast(Message, _instance(rng, kind, words)))
    except (Bug, ValueError, OverflowError):
        return encode_body(sample(kind))


@functools.cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _instance(rng: Random, kind: type[Struct], words: Vocabulary) -> object:
    values = {name: _value(rng, annotation, words) for name, annotation in _hints(kind).items()}
    if words.kinds and {"type_id", "body"} <= values.keys() and rng.random() < KNOWN_SHARE:
        inner = rng.choice(words.kinds)
        values |= {"type_id": inner.TYPE_ID, "body": encoded_instance(rng, inner, words)}
    return kind(**values)


def _value(rng: Random, annotation: Any, words: Vocabulary, rules: tuple[Any, ...] = ()) -> Any:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        return _value(rng, inner, words, (*rules, *more))
    if origin in (types.UnionType, typing.Union):
        choices = typing.get_args(annotation)
        chosen = rng.choice(choices)
        return None if chosen is types.NoneType else _value(rng, chosen, words, rules)
    if origin is tuple:
        return tuple(_value(rng, typing.get_args(annotation)[0], words) for _ in range(_length(rng, rules)))
    if annotation is NodeId and words.ids and rng.random() < KNOWN_SHARE:
        return rng.choice(words.ids)
    if annotation is PeerRef and words.peers and rng.random() < KNOWN_SHARE:
        return rng.choice(words.peers)
    if annotation is NodeId:
        return NodeId(rng.getrandbits(128) if rng.random() < 0.8 else rng.choice((0, 1, 2**128 - 1, 1 << 127)))
    if annotation is PeerRef:
        return PeerRef(NodeId(rng.getrandbits(128)), rng.choice(_HOSTS), rng.randrange(1, 65536))
    return _plain(rng, annotation, words, rules)


def _plain(rng: Random, annotation: Any, words: Vocabulary, rules: tuple[Any, ...]) -> Any:
    if annotation is bytes and words.blobs and rng.random() < KNOWN_SHARE:
        least, most = _lengths(rules, limits.CONTROL_FRAME_BYTES_MAX)
        fitting = [blob for blob in words.blobs if least <= len(blob) <= most]
        if fitting:
            return rng.choice(fitting)
    if annotation is bool:
        return rng.random() < 0.5
    if annotation is int:
        least, most = _bounds(rules, -(2**63), 2**64 - 1)
        return rng.choice((least, most, max(least, min(most, rng.randrange(300))), rng.randint(least, most)))
    if annotation is float:
        least, most = _bounds(rules, -1e9, 1e9)
        return rng.choice((float(least), float(most), rng.uniform(least, most)))
    if annotation is str:
        if any(getattr(rule, "pattern", None) for rule in rules):
            return rng.choice(("aggregation", "protocol:x", "ok_1"))
        return "".join(rng.choices(_LETTERS, k=_length(rng, rules)))
    if annotation is bytes:
        return rng.randbytes(_length(rng, rules, most=40))
    return _instance(rng, annotation, words)


def _bounds(rules: tuple[Any, ...], least: Any, most: Any) -> tuple[Any, Any]:
    for rule in rules:
        if isinstance(rule, Meta):
            least = next((bound for bound in (rule.ge, rule.gt) if bound is not None), least)
            most = next((bound for bound in (rule.le, rule.lt and rule.lt - 1) if bound is not None), most)
    return least, most


def _length(rng: Random, rules: tuple[Any, ...], most: int = ITEMS_MAX) -> int:
    return rng.randint(*_lengths(rules, most))


def _lengths(rules: tuple[Any, ...], most: int) -> tuple[int, int]:
    least = 0
    for rule in rules:
        least = max(least, getattr(rule, "min_length", 0) or 0)
        limit = getattr(rule, "max_length", None)
        most = most if limit is None else min(most, limit)
    return least, max(least, most)
