"""The kind of interest ``xpath``: XPath 1.0 queries on XML documents; every answer is the one that lxml gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from lxml import etree

from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.interests.xpath.automaton import Automaton
from protocols.dissemination.interests.xpath.document import Document, parse
from protocols.dissemination.interests.xpath.pattern import Condition, covers
from protocols.dissemination.interests.xpath.reading import read
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.names import interest_id
from protocols.dissemination.ports import Interest

EVERYTHING: Final = "/*"
"""Every document has a root element."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A query: its pattern where it is one, and in any case what lxml evaluates."""

    pattern: Condition | None
    evaluate: Any


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
        return bool(interest.meaning.evaluate(content.getroottree()))

    def covers(self, wide: Interest, narrow: Interest) -> bool:
        if wide.id == narrow.id:
            return True
        one, other = wide.meaning.pattern, narrow.meaning.pattern
        return one is not None and other is not None and covers(one, other)

    def reduce(self, interests: Sequence[Interest], limit: int) -> list[Interest]:
        kept: list[Interest] = []
        for each in interests:
            if not any(self.covers(other, each) for other in kept):
                kept = [other for other in kept if not self.covers(each, other)]
                kept.append(each)
        return kept if len(kept) <= limit else [self.parse(EVERYTHING)]


@lru_cache(maxsize=1 << 14)
def _parsed(text: str) -> Interest:
    query = read(text)
    try:
        evaluate = etree.XPath(query.text, smart_strings=False)
    except etree.XPathError as error:
        raise InterestError(f"no valid XPath 1.0: {error}") from error
    return Interest(interest_id("xpath", query.text), query.text, Meaning(query.pattern, evaluate))


class XPathSet:
    """Implements `protocols.dissemination.ports.InterestSet`."""

    def __init__(self) -> None:
        self._known: dict[bytes, Interest] = {}
        self._automaton = Automaton()
        self._others: dict[bytes, Interest] = {}

    def add(self, interest: Interest) -> None:
        if interest.id in self._known:
            return
        self._known[interest.id] = interest
        if interest.meaning.pattern is None:
            self._others[interest.id] = interest
        else:
            self._automaton.add(interest.id, interest.meaning.pattern)

    def remove(self, id: bytes) -> None:
        interest = self._known.pop(id, None)
        if interest is None:
            return
        if self._others.pop(id, None) is None:
            self._automaton = Automaton()
            for each in self._known.values():
                if each.meaning.pattern is not None:
                    self._automaton.add(each.id, each.meaning.pattern)

    def match(self, content: Document) -> set[bytes]:
        found = set(self._automaton.match(content))
        tree = content.getroottree()
        found.update(id for id, each in self._others.items() if each.meaning.evaluate(tree))
        return found

    def __len__(self) -> int:
        return len(self._known)
