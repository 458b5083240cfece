"""Proposes a schema from sample events: types, and domains wide enough for what will come. Pure.

A proposal is a beginning for a person to look over, so everything doubtful is said. Its domains only decide how
subscriptions spread: values outside them are taken (``outside = "clamp"``).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from peerd.lib.filter.schema import Type
from peerd.lib.filter.values import V6_FIRST, Timestamp, read_address, read_time
from protocols.pubsub.schema.document import ATTRIBUTES_MAX, AttributeDocument, SchemaDocument, read_document
from protocols.pubsub.schema.values import INT_MAX, INT_MIN, canonical

EVENTS_MAX: Final = 20_000
"""So many samples are looked at."""
NAMES_MAX: Final = 1024
"""So many different names are looked at."""
DECIMAL_PLACES_MAX: Final = 9
"""Numbers with more places than this are floats: measured, not written by people."""
PREFIX_SAMPLES_MIN: Final = 16
"""So many different strings have to begin alike before that is taken for a rule."""
NESTED_MAX: Final = 8
FIRST_YEAR: Final = 1678
LAST_YEAR: Final = 2262
"""Nanoseconds of 64 bits reach from one to the other."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schema, and what a person should know about it."""

    document: SchemaDocument
    notes: tuple[str, ...]


def propose(name: str, events: Iterable[Mapping[str, Any]]) -> Proposal:
    """Propose a schema for events like these. Raises ``ValueError`` when they have nothing in common to declare.

    Numbers with a fraction may be floats or decimals. Attributes come in the order in which they were met first.
    """
    seen: dict[str, list[Any]] = {}
    count = 0
    for event in events:
        count += 1
        for key, value in _flat(event, "", 0):
            if key in seen or len(seen) < NAMES_MAX:
                seen.setdefault(key, []).append(value)
        if count == EVENTS_MAX:
            break
    notes: list[str] = []
    found: list[dict[str, Any]] = []
    for key, values in seen.items():
        attribute = _attribute(key, values, notes)
        if attribute is not None:
            found.append(attribute)
            if len(values) < count:
                notes.append(f"{key} is in {len(values)} of {count} events: see `absent`, or give it a default")
    if len(found) > ATTRIBUTES_MAX:
        kept = sorted(found, key=lambda each: -len(seen[each["name"]]))[:ATTRIBUTES_MAX]
        left_out = [each["name"] for each in found if each not in kept]
        notes += [f"{name} is left out: a schema has at most {ATTRIBUTES_MAX} attributes" for name in left_out]
        found = [each for each in found if each in kept]
    if not found:
        raise ValueError(f"no attribute can be declared from {count} events" + "".join(f"; {note}" for note in notes))
    document = {"name": name, "version": 1, "outside": "clamp", "attributes": found}
    return Proposal(read_document(document), tuple(notes))


def _flat(event: Mapping[str, Any], above: str, depth: int) -> Iterable[tuple[str, Any]]:
    for key, value in event.items():
        if isinstance(value, Mapping) and depth < NESTED_MAX:
            yield from _flat(value, f"{above}{key}.", depth + 1)
        elif value is not None:
            yield above + key, value


def _attribute(name: str, values: Sequence[Any], notes: list[str]) -> dict[str, Any] | None:
    """Return an attribute's document; ``None``, with a note, where it cannot be one."""
    try:
        AttributeDocument(name=name, type=Type.BOOL)
    except ValueError:
        notes.append(f"{name!r:.60} is left out: a name has letters, digits, _ . and - only, at most 64")
        return None
    kind = _kind(values)
    if kind is None:
        types = dict.fromkeys(type(value).__name__ for value in values)
        notes.append(f"{name} is left out: no type has all of its values ({', '.join(types)})")
        return None
    if kind is Type.STRING and any(_kind([value]) in (Type.TIMESTAMP, Type.IP) for value in values):
        notes.append(f"{name} is a string, though some of its values look like a time or an address")
    return {"name": name, "type": kind.value, **_DOMAINS[kind](values)}


def _kind(values: Sequence[Any]) -> Type | None:
    """Return the narrowest type that has all the values."""
    order = (Type.BOOL, Type.INT, Type.DECIMAL, Type.FLOAT, Type.TIMESTAMP, Type.IP, Type.STRING)
    return next((kind for kind in order if all(_is(kind, value) for value in values)), None)


def _is(kind: Type, value: object) -> bool:
    if kind is Type.DECIMAL:
        if isinstance(value, str):
            return False
        value = value if not isinstance(value, float) else Decimal(repr(value)) if math.isfinite(value) else None
        exponent = value.as_tuple().exponent if isinstance(value, Decimal) else 0
        if not isinstance(exponent, int) or exponent < -DECIMAL_PLACES_MAX or exponent > 0:
            return False
    try:
        canonical(kind, value)
    except ValueError:
        return False
    return True


# --- domains --------------------------------------------------------------------------------------------------------


def _whole(values: Sequence[Any]) -> dict[str, Any]:
    low, high = _widened(Decimal(min(values)), Decimal(max(values)))
    return {"low": max(INT_MIN, int(low)), "high": min(INT_MAX, int(high))}


def _decimal(values: Sequence[Any]) -> dict[str, Any]:
    numbers = [canonical(Type.DECIMAL, value) for value in values]
    low, high = _widened(min(numbers), max(numbers))
    return {"low": f"{low:f}", "high": f"{high:f}"}


def _float(values: Sequence[Any]) -> dict[str, Any]:
    numbers = [canonical(Type.FLOAT, value) for value in values]
    low, high = (float(end) for end in _widened(Decimal(min(numbers)), Decimal(max(numbers))))
    return {"low": max(low, -8e307), "high": min(high, 8e307)}


def _widened(low: Decimal, high: Decimal) -> tuple[Decimal, Decimal]:
    """Leave as much room on both sides as was used, and round outwards; what was never negative begins at 0."""
    room = max(high - low, abs(high)) or Decimal(1)
    step = Decimal(10) ** room.adjusted()
    first = Decimal(0) if low >= 0 else math.floor((low - room) / step) * step
    return Decimal(first), Decimal(math.ceil((high + room) / step)) * step


def _time(values: Sequence[Any]) -> dict[str, Any]:
    """From a year before the first to ten years after the last."""
    keys = [read_time(value) or 0 for value in values]
    first, last = (int(str(Timestamp(key))[:4]) for key in (min(keys), max(keys)))
    return {
        "low": f"{max(FIRST_YEAR, first - 1)}-01-01T00:00:00Z",
        "high": f"{min(LAST_YEAR, last + 10)}-01-01T00:00:00Z",
    }


def _address(values: Sequence[Any]) -> dict[str, Any]:
    """Return the smallest network of whole bytes that has all addresses and room for 255 times as many."""
    keys = [read_address(value) or 0 for value in values]
    if any(key < V6_FIRST for key in keys) and any(key >= V6_FIRST for key in keys):
        return {"network": "0.0.0.0/0"}
    is_v6 = keys[0] >= V6_FIRST
    bits, first = (128, V6_FIRST) if is_v6 else (32, 0)
    same = bits - (min(keys) ^ max(keys)).bit_length() if min(keys) != max(keys) else bits
    length = max(0, same // 8 * 8 - 8)
    network = (min(keys) - first) >> (bits - length) << (bits - length)
    made = ipaddress.IPv6Address(network) if is_v6 else ipaddress.IPv4Address(network)
    return {"network": f"{made}/{length}"}


def _text(values: Sequence[Any]) -> dict[str, Any]:
    """All strings, unless so many begin alike that this is the rule."""
    different = dict.fromkeys(values)
    low, high = min(different), max(different)
    length = next((index for index, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    if len(different) < PREFIX_SAMPLES_MIN or not length:
        return {}
    return {"low": low[:length], "high": low[:length]}


_DOMAINS: Final = {
    Type.BOOL: lambda values: {},
    Type.INT: _whole,
    Type.DECIMAL: _decimal,
    Type.FLOAT: _float,
    Type.TIMESTAMP: _time,
    Type.IP: _address,
    Type.STRING: _text,
}
