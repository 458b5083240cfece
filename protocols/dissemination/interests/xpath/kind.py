"""The kind of interest ``xpath``: XPath 1.0 queries on XML documents; every answer is the one that lxml gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from lxml import etree

from peerd.limits import KIB
from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.interests.xpath.automaton import Automaton
from protocols.dissemination.interests.xpath.containment import covers, overlap_of
from protocols.dissemination.interests.xpath.document import Document, namespaces_of, parse
from protocols.dissemination.interests.xpath.pattern import (
    Condition,
    Has,
    free_steps_of,
    labels_mentioned,
    labels_required,
)
from protocols.dissemination.interests.xpath.reading import XPathQuery, read
from protocols.dissemination.interests.xpath.writing import EVERYTHING, write
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import interest_id
from protocols.dissemination.ports import Interest

PARSED_MAX: Final = 1 << 13
"""Interests that are remembered as they were read, whoever sends them again."""
COMPARED_MAX: Final = 1 << 15
"""Comparisons of two interests whose outcome is remembered."""
OPAQUE_GUESS: Final = 0.5
"""The assumed share of the documents of its pattern that a query lets through which is more than a pattern."""
FEW: Final = 16
"""So many queries are asked of lxml one by one where all are short: that takes less time than to visit all elements.
Measured, the two are even at 20 queries of small flat documents, at 28 of news, and at more of large documents."""
SHORT_COMPARISONS_MAX: Final = 8
"""A query with more comparisons is not short."""
FREE_STEPS_MAX: Final = 4
"""A query with more steps of any depth is not short."""
FREE_BELOW_MAX: Final = 4
"""Steps of any depth below others of any depth, in few short queries. For each of them lxml looks at a part of a
document once for each element around it, at most 64 times: that takes it twice as long as one visit to all elements."""
PREFIXED_MAX: Final = 1 << 10
"""Queries with prefixes that are kept ready, each for documents that declare them alike."""
ALONE_MAX: Final = 64
"""Patterns asked alone, of which lxml is not asked, whose automata are kept."""
ALONE_STATES_BYTES_MAX: Final = 256 * KIB
"""What each of these remembers of elements."""


@dataclass(frozen=True, slots=True, eq=False)
class XPathMeaning:
    """A query: its pattern, and what is evaluated. See `protocols.dissemination.interests.xpath.reading.XPathQuery`.

    ``is_short``: lxml answers it in less time than it takes to visit all elements; ``free_below``: if there are not too
    many steps of any depth below others. Whatever ``pattern`` covers mentions all of ``required``.
    """

    pattern: Condition
    is_exact: bool
    is_short: bool
    free_below: int
    evaluate: Callable[[Document], bool]
    required: frozenset[str]
    mentioned: frozenset[str]


class XPathKind:
    """Implements `protocols.dissemination.ports.InterestKind`."""

    name = "xpath"

    def parse(self, text: str) -> Interest:
        return _parsed(text)

    def content(self, item: StreamItem) -> Document:
        return parse(item.payload)

    def make_set(self) -> XPathSet:
        return XPathSet()

    def matches(self, interest: Interest, content: Any) -> bool:
        return bool(interest.meaning.evaluate(content))

    def covers(self, wide: Interest, narrow: Interest) -> bool:
        if wide.id == narrow.id or wide.text == EVERYTHING:
            return True
        may_cover = wide.meaning.is_exact and wide.meaning.required <= narrow.meaning.mentioned
        return may_cover and _covers(wide, narrow)

    def overlap(self, one: Interest, other: Interest) -> float:
        if self.covers(other, one):
            return 1.0
        share = overlap_of(one.meaning.pattern, other.meaning.pattern)
        return share if other.meaning.is_exact else share * OPAQUE_GUESS


@lru_cache(maxsize=PARSED_MAX)
def _parsed(text: str) -> Interest:
    query = read(text)
    return _interest(query) if query.text == text else _parsed(query.text)


def _interest(query: XPathQuery) -> Interest:
    pattern, prefixes = query.pattern, query.prefixes
    is_exact = query.asked is None
    asked = _short(query.text, pattern) if is_exact else query.asked
    if asked is None:
        evaluate = _by_automaton(query.text)
    else:
        evaluate = _by_lxml_with(asked, prefixes) if prefixes else _by_lxml(asked)
    meaning = XPathMeaning(
        pattern,
        is_exact,
        is_exact and asked is not None,
        free_steps_of(pattern).below,
        evaluate,
        labels_required(pattern),
        labels_mentioned(pattern),
    )
    return Interest(interest_id(XPathKind.name, query.text), query.text, meaning)


_COMPARISON: Final = re.compile("[=<>]")
_DEEP_FROM_MANY: Final = re.compile(r"(?<!^)(?<![\[( ]\.)//")
"""A step of any depth that is neither the first one, nor the first one of a predicate."""


def _short(text: str, pattern: Condition) -> str | None:
    """What lxml is asked for a pattern with this canonical text, if that makes it look at each part only some times.

    A path that looks at all depths from many elements, or a join of several, may cost it the square of a document's
    size, as it compares what it finds from each; each comparison may read all texts once for each level of the
    document. In brackets nothing is compared.
    """
    comparisons = len(_COMPARISON.findall(text))
    if text.count("//") <= 1 and "|" not in text and not _DEEP_FROM_MANY.search(text):
        return text if comparisons <= SHORT_COMPARISONS_MAX else None
    free = free_steps_of(pattern)
    is_short = free.number <= FREE_STEPS_MAX and free.depth <= 2 and not comparisons and isinstance(pattern, Has)
    return write(pattern, in_brackets=True) if is_short else None


def _by_automaton(text: str) -> Callable[[Document], bool]:
    """What evaluates a pattern in one visit to each element."""
    return lambda root: bool(_alone(text).match(root))


@lru_cache(maxsize=ALONE_MAX)
def _alone(text: str) -> Automaton:
    automaton = Automaton(ALONE_STATES_BYTES_MAX)
    automaton.add(b"", _parsed(text).meaning.pattern)
    return automaton


def _by_lxml(text: str) -> Callable[[Document], bool]:
    query = _compiled(text)
    return lambda root: _is_met(query, root)


def _by_lxml_with(text: str, prefixes: frozenset[str]) -> Callable[[Document], bool]:
    """The same of a query with prefixes, which mean what a document says."""
    _compiled(text)
    return lambda root: _is_met(_compiled_with(text, namespaces_of(root, prefixes)), root)


def _is_met(query: etree.XPath, root: Document) -> bool:
    try:
        return bool(query(root))
    except etree.XPathEvalError:
        return False  # what cannot be evaluated on a document is not met by it: the query is somebody else's


def _compiled(text: str, namespaces: dict[str, str] | None = None) -> etree.XPath:
    try:
        return etree.XPath(text, namespaces=namespaces, regexp=False, smart_strings=False)
    except (etree.XPathError, ValueError) as error:
        raise InterestError("no valid XPath 1.0: it has a character or name that XML does not have") from error


@lru_cache(maxsize=PREFIXED_MAX)
def _compiled_with(text: str, namespaces: tuple[tuple[str, str], ...]) -> etree.XPath:
    return _compiled(text, {prefix: namespace for prefix, namespace in namespaces if prefix != "xml"})


@lru_cache(maxsize=COMPARED_MAX)
def _covers(wide: Interest, narrow: Interest) -> bool:
    return covers(wide.meaning.pattern, narrow.meaning.pattern)


class XPathSet:
    """Implements `protocols.dissemination.ports.InterestSet`."""

    def __init__(self) -> None:
        self._known: dict[bytes, Interest] = {}
        self._automaton = Automaton()
        self._inexact: dict[bytes, Interest] = {}
        """Interests that lxml evaluates once the document meets their pattern."""
        self._few: tuple[Interest, ...] | None = None
        """All of them, where they are few and short; worked out anew when they change."""

    def add(self, interest: Interest) -> None:
        if interest.id not in self._known:
            self._known[interest.id] = interest
            self._few = _few_of(self._known)
            self._automaton.add(interest.id, interest.meaning.pattern)
            if not interest.meaning.is_exact:
                self._inexact[interest.id] = interest

    def remove(self, id: bytes) -> None:
        if self._known.pop(id, None) is not None:
            self._automaton.remove(id)
            self._inexact.pop(id, None)
            self._few = _few_of(self._known)

    def match(self, content: Document) -> set[bytes]:
        if self._few is not None:
            return {each.id for each in self._few if each.meaning.evaluate(content)}

        found = self._automaton.match(content)
        for id, each in self._inexact.items():
            if id in found and not each.meaning.evaluate(content):
                found.discard(id)
        return found

    def __len__(self) -> int:
        return len(self._known)


def _few_of(interests: Mapping[bytes, Interest]) -> tuple[Interest, ...] | None:
    """The interests, if there are few, and lxml answers each of them in little time."""
    if len(interests) > FEW:
        return None
    few = tuple(interests.values())
    are_short = all(each.meaning.is_short for each in few)
    return few if are_short and sum(each.meaning.free_below for each in few) <= FREE_BELOW_MAX else None
