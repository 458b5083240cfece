"""The kind of interest ``attributes``: filters of the shared language (docs/filters.md) on JSON objects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final

from peerd.lib.filter import (
    Conjunct,
    FilterError,
    FilterIndex,
    JsonForm,
    Matcher,
    Node,
    NormalForm,
    covers_form,
    from_json,
    matcher,
    normal_form,
    parse as parse_filter,
    selectivity,
    to_json,
)
from peerd.lib.filter.meaning import Within
from peerd.lib.filter.normal import conjoined
from peerd.lib.filter.ranges import Ranges
from peerd.lib.filter.rewrite import node_of, node_of_test
from peerd.lib.filter.values import View
from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.interests.json_items import parse_object
from protocols.dissemination.messages import INTEREST_BYTES_MAX, StreamItem
from protocols.dissemination.names import interest_id
from protocols.dissemination.ports import Interest

EVERYTHING: Final = "TRUE"
PARSED_MAX: Final = 1 << 12
"""Interests that are remembered as they were read, whoever sends them again."""
COMPARED_MAX: Final = 1 << 14
"""Comparisons of two interests whose outcome is remembered."""
PART_GUESS: Final = 0.5
"""The share of a range that another one takes of it, where their lengths do not tell."""


@dataclass(frozen=True, slots=True, eq=False)
class AttributesMeaning:
    """A filter: its normal form, and the function that tries it on an item."""

    form: NormalForm
    node: Node
    matches: Matcher


class AttributesKind:
    """Implements `protocols.dissemination.ports.InterestKind`."""

    name = "attributes"

    def parse(self, text: str) -> Interest:
        return _parsed(text)

    def content(self, item: StreamItem) -> dict[str, Any]:
        return parse_object(item.payload)

    def make_set(self) -> AttributesSet:
        return AttributesSet()

    def matches(self, interest: Interest, content: Any) -> bool:
        return bool(interest.meaning.matches(content))

    def covers(self, wide: Interest, narrow: Interest) -> bool:
        return wide.id == narrow.id or _covers(wide, narrow)

    def overlap(self, one: Interest, other: Interest) -> float:
        return 1.0 if self.covers(other, one) else overlap_of(one.meaning.form, other.meaning.form)


def _text(node: Node) -> str:
    return str(to_json(node, JsonForm.TEXT))


@lru_cache(maxsize=PARSED_MAX)
def _parsed(text: str) -> Interest:
    try:
        node = _read(text)
        form = normal_form(node)
        canonical = _canonical(node, form)
    except FilterError as error:
        raise InterestError(str(error)) from error
    return Interest(
        interest_id(AttributesKind.name, canonical), canonical, AttributesMeaning(form, node, matcher(node))
    )


def _read(text: str) -> Node:
    if len(text.encode(errors="replace")) > INTEREST_BYTES_MAX:
        raise InterestError(f"the filter is longer than {INTEREST_BYTES_MAX} bytes")
    stripped = text.strip()
    if not stripped:
        return parse_filter(EVERYTHING)
    if stripped[0] not in "{[":
        return parse_filter(text)
    try:
        return from_json(json.loads(stripped))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InterestError(f"a filter that begins with {stripped[0]} is JSON: {error}") from error


def _canonical(node: Node, form: NormalForm) -> str:
    """The text of the normal form; the filter's own where that would be too long to be read again."""
    text = _text(node_of(form))
    if len(text.encode()) <= INTEREST_BYTES_MAX:
        try:
            if normal_form(parse_filter(text)) == form:
                return text
        except FilterError:
            pass
    return _text(node)


@lru_cache(maxsize=COMPARED_MAX)
def _covers(wide: Interest, narrow: Interest) -> bool:
    return covers_form(wide.meaning.form, narrow.meaning.form)


# Overlap


def overlap_of(one: NormalForm, other: NormalForm) -> float:
    """The share of what meets ``one`` that meets ``other`` too, 0 to 1; attributes are taken as independent."""
    if not one.conjuncts:
        return 0.0
    shares = [max((_share(mine, its) for its in other.conjuncts), default=0.0) for mine in one.conjuncts]
    return sum(shares) / len(shares)


def _share(given: Conjunct, wanted: Conjunct) -> float:
    if conjoined(given, wanted) is None:
        return 0.0
    known, form = given.ranges(), NormalForm((given,))
    shares = []
    for test in wanted.tests:
        if covers_form(NormalForm((Conjunct((test,)),)), form):
            continue
        ranges = known.get((test.name, test.view)) if isinstance(test, Within) else None
        if isinstance(test, Within) and ranges is not None:
            shares.append(_part(test.view, ranges, ranges & test.ranges))
        else:
            shares.append(selectivity(node_of_test(test), {}))
    return prod(shares, start=1.0)


def _part(view: View, whole: Ranges, part: Ranges) -> float:
    """Which share of a set of keys a part of it is."""
    all_points, points = whole.points(view), part.points(view)
    if all_points and points is not None:
        return len(points) / len(all_points)
    total, taken = _length(whole), _length(part)
    return taken / total if total and taken is not None else PART_GUESS


def _length(ranges: Ranges) -> float | None:
    length = 0.0
    for low, high in ranges.intervals():
        if low is None or high is None or isinstance(low[0], str):
            return None
        try:
            length += float(high[0]) - float(low[0])
        except OverflowError:
            return None
    return length


class AttributesSet:
    """Implements `protocols.dissemination.ports.InterestSet`."""

    def __init__(self) -> None:
        self._index: FilterIndex[bytes] = FilterIndex()

    def add(self, interest: Interest) -> None:
        if interest.id not in self._index:
            self._index.add(interest.id, interest.meaning.node)

    def remove(self, id: bytes) -> None:
        if id in self._index:
            self._index.remove(id)

    def match(self, content: Any) -> set[bytes]:
        return set(self._index.match(content))

    def __len__(self) -> int:
        return len(self._index)
