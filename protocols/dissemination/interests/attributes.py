"""The kind of interest ``attributes``: filters of the shared language (docs/filters.md) on JSON objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from peerd.lib.filter import (
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
    to_json,
)
from peerd.lib.filter.rewrite import node_of
from protocols.dissemination.interests.attributes_widening import overlap_of, widened, witness_of
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


@dataclass(frozen=True, slots=True, eq=False)
class AttributesMeaning:
    """A filter: its normal form, and the function that tries it on an item."""

    form: NormalForm
    node: Node
    matches: Matcher
    required: frozenset[str]
    """The attributes that each alternative looks at. All of them are mentioned by whatever this filter covers."""
    mentioned: frozenset[str]
    """The attributes that some alternative looks at."""


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

    def reduce(self, interests: Sequence[Interest], limit: int) -> list[Interest]:
        kept = self._uncovered(interests)
        if len(kept) <= limit:
            return kept
        wider = [self._written(form) for form in widened([each.meaning.form for each in kept], max(1, limit))]
        return self._uncovered(wider)

    def _uncovered(self, interests: Sequence[Interest]) -> list[Interest]:
        """The interests without those that another one covers; of those that cover each other the first stays.

        What covers an interest also has to meet an item that the interest is met by. Such an item is made up, and the
        set finds the few candidates, so that not all pairs are compared.
        """
        given = list({each.id: each for each in interests}.values())
        together = AttributesSet()
        for each in given:
            together.add(each)
        left = {each.id: each for each in given}
        for each in reversed(given):
            witness = witness_of(each.meaning.form)
            if witness is not None and each.meaning.matches(witness):
                found = together.match(witness)
                candidates = [left[id] for id in left if id in found]
            else:
                mentioned = each.meaning.mentioned
                candidates = [other for other in left.values() if other.meaning.required <= mentioned]
            if any(other is not each and self.covers(other, each) for other in candidates):
                del left[each.id]
        return list(left.values())

    def _written(self, form: NormalForm) -> Interest:
        """The interest with this normal form, or everything where its text would be too long."""
        try:
            return _parsed(_text(node_of(form)))
        except (FilterError, InterestError):
            return _parsed(EVERYTHING)


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
    names = [frozenset(test.name for test in conjunct.tests) for conjunct in form.conjuncts] or [frozenset()]
    required, mentioned = names[0].intersection(*names), names[0].union(*names)
    meaning = AttributesMeaning(form, node, matcher(node), required, mentioned)
    return Interest(interest_id(AttributesKind.name, canonical), canonical, meaning)


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
