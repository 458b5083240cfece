"""Schemas, events and filters for tests of publish/subscribe."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from peerd.api import Host, Plugin
from peerd.lib.filter import FilterIndex, Matcher, write
from peerd.lib.filter.tree import (
    AFFIXES,
    OPERATORS,
    Affix,
    Between,
    Compare,
    In,
    InNetwork,
    IsNull,
    Like,
    Matches,
    Node,
    Not,
    all_of,
    any_of,
)
from peerd.lib.filter.values import Address, Timestamp, parse_address, parse_timestamp
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.ports import Schemas, SchemaView
from protocols.pubsub.schema.book import SchemaBook
from protocols.pubsub.schema.event_schema import EventSchema
from tests.support.filters import TIMES as ALL_TIMES, naive, naive_where_absent_matches

DOCUMENT: Final[Mapping[str, Any]] = {
    "name": "trades",
    "attributes": [
        {"name": "price", "type": "decimal", "low": 0, "high": 100},
        {"name": "count", "type": "int", "low": -50, "high": 50},
        {"name": "load", "type": "float", "low": 0.0, "high": 1.0},
        {"name": "sym", "type": "string", "low": "A", "high": "Z"},
        {"name": "mys", "type": "string", "reversed_of": "sym"},
        {"name": "open", "type": "bool"},
        {"name": "at", "type": "timestamp", "low": "2024-01-01T00:00:00.5Z", "high": "2024-01-01T00:00:02Z"},
        {"name": "from", "type": "ip", "network": "10.0.0.0/8"},
    ],
    "outside": "clamp",
}
SYMBOLS: Final = ("", "A", "AB", "ABA", "B", "BA", "IBM", "IBMA", "Z", "ZZ", "a", "é", "Aé", "A\0", "\U0010ffff")
TIMES: Final = tuple(text for text in ALL_TIMES if text.endswith("Z"))
ADDRESSES: Final = ("10.0.0.1", "10.1.2.3", "10.255.255.255", "9.9.9.9", "::1")


def schema(**changes: Any) -> EventSchema:
    """The schema of the tests, with other rules."""
    return EventSchema.read({**DOCUMENT, **changes}, cutoff=0.25)


_decimals = st.decimals(-20, 120, allow_nan=False, places=2) | st.sampled_from([Decimal("1E-30"), Decimal("1E+30")])
_counts = st.integers(-60, 60) | st.sampled_from([-(2**63), 2**63 - 1])
_floats = st.floats(-0.5, 1.5) | st.sampled_from([1e300, -1e300, 5e-324])
_texts = st.sampled_from(SYMBOLS) | st.text("ABZaé", max_size=4)
_BY_NAME: Final[dict[str, st.SearchStrategy[Any]]] = {
    "price": _decimals,
    "count": _counts,
    "load": _floats,
    "sym": _texts,
    "open": st.booleans(),
    "at": st.sampled_from(TIMES),
    "from": st.sampled_from(ADDRESSES),
}
events = st.fixed_dictionaries({}, optional=_BY_NAME)


def _literals(name: str) -> st.SearchStrategy[Any]:
    """Literals as a typed filter has them."""
    if name == "at":
        return _BY_NAME[name].map(lambda text: Timestamp(parse_timestamp(text) or 0))
    if name == "from":
        return _BY_NAME[name].map(lambda text: Address(parse_address(text) or 0))
    if name in ("price", "load", "count"):
        return st.one_of(_decimals, _counts, _floats)
    return _texts


@st.composite
def _atoms(draw: st.DrawFn) -> Node:
    name = draw(st.sampled_from(sorted(_BY_NAME)))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return IsNull(name)
    if name == "open":
        return Compare(name, draw(st.sampled_from(["=", "<>"])), draw(st.booleans()))
    if name == "sym" and kind == 1:
        pattern = (
            Matches(name, "AB?.*") if draw(st.booleans()) else Like(name, draw(st.sampled_from(["A%", "%A", "A%A"])))
        )
        affix = Affix(name, draw(st.sampled_from(AFFIXES)), draw(_texts))
        return pattern if draw(st.booleans()) else affix
    if name == "from" and kind == 1:
        return InNetwork(name, (draw(st.sampled_from(["10.0.0.0/9", "10.0.0.0/8", "0.0.0.0/0"])),))
    values = _literals(name)
    if kind == 2:
        low_closed, high_closed = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        return Between(name, draw(values), draw(values), low_closed, high_closed)
    if kind == 3:
        return In(name, tuple(draw(st.lists(values, min_size=1, max_size=3))))
    return Compare(name, draw(st.sampled_from(OPERATORS)), draw(values))


filters: st.SearchStrategy[Node] = st.recursive(
    _atoms(),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(all_of),
        st.lists(inner, min_size=2, max_size=3).map(any_of),
    ),
    max_leaves=6,
)


def wanted(used: EventSchema, node: Node, values: Mapping[str, Any]) -> bool:
    """Whether an event matches, as slowly and plainly as can be."""
    return naive_where_absent_matches(node, values) if used.absent_matches else naive(node, values) is True


class BookPlugin(Plugin):
    """A plugin that is nothing but the book."""

    name = "pubsub"

    def start(self, host: Host) -> None:
        """Start the book."""
        super().start(host)
        self.book = SchemaBook(host, PubSubConfig())
        self.add_parts(self.book)
        self.book.start()


def names(book: SchemaBook) -> list[str]:
    """The schemas that a node knows."""
    return [each.name for each in book.known()]


def ports_of(host: Host) -> tuple[SchemaView, Schemas]:
    """What the other parts see; here so that the type checker compares it with what there is."""
    return schema(), SchemaBook(host, PubSubConfig())


def fail_filters(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on filters that name this attribute cannot be tried, together or alone."""
    together, alone = FilterIndex.match, EventSchema.matcher

    def match(self: FilterIndex[str], event: Any) -> list[str]:
        if any(name in text for text in (*self._slots, *self._new)):
            raise OverflowError("a bug in the index")
        return together(self, event)

    def matcher(self: EventSchema, node: Node) -> Matcher:
        if name in write(node):
            raise OverflowError("a bug in the filter")
        return alone(self, node)

    monkeypatch.setattr(FilterIndex, "match", match)
    monkeypatch.setattr(EventSchema, "matcher", matcher)
