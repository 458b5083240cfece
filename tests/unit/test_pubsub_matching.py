"""The leaf's index finds exactly the pieces that a reference matcher finds, after any changes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from peerd.lib.filter import FilterError, FilterIndex, FilterTooLarge, write
from peerd.testing.host import peer
from protocols.pubsub.config import PubSubConfig
from protocols.pubsub.matching.index import LeafIndex
from protocols.pubsub.messages import SubObject
from protocols.pubsub.names import EVERY
from protocols.pubsub.schema.event_schema import EventSchema
from protocols.pubsub.subscribing.pieces import pieces_of
from protocols.pubsub.tree.cells import SIDE, WHOLE
from tests.support.examples import examples
from tests.support.pubsub_schemas import events, fail_filters, filters, schema, wanted

PRICE = 1


def piece(
    text: str, sid: int = 1, attribute: int = EVERY, low: int = 0, high: int = SIDE - 1, number: int = 0
) -> SubObject:
    return SubObject(peer(1), sid, number, 1, attribute, low, high, text)


def index_of(*subs: SubObject, used: EventSchema | None = None) -> LeafIndex:
    index = LeafIndex(used or schema())
    for sub in subs:
        index.add(sub.key, (sub.attribute, WHOLE), sub)
    return index


def matched(index: LeafIndex, values: dict[str, Any], *cells: tuple[int, int]) -> list[int]:
    read = index.schema.read_values(values)
    return sorted(sub.sid for sub in index.match(read, cells or ((EVERY, WHOLE),)))


@settings(max_examples=examples(150))
@given(st.data(), st.sampled_from(["fails", "matches"]))
def test_it_finds_what_the_reference_finds_whatever_changed_before(data: st.DataObject, absent: str) -> None:
    used = schema(absent=absent)
    index = LeafIndex(used)
    reference: dict[tuple[int, int, int], tuple[SubObject, Any]] = {}
    for _ in range(data.draw(st.integers(1, 10))):
        sid, attribute, cell = data.draw(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(1, 2)))
        if data.draw(st.integers(0, 3)) == 0:
            index.remove(piece("", sid).key, (attribute, cell))
            reference.pop((sid, attribute, cell), None)
            assert len(index) == len(reference)
            continue
        node = data.draw(filters)
        try:
            index.add(piece("", sid).key, (attribute, cell), sub := piece(write(node), sid, attribute))
        except FilterTooLarge:
            continue
        reference[sid, attribute, cell] = (sub, node)
        assert len(index) == len(reference)
        values = used.read_values(data.draw(events))
        cells = data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2)), unique=True))
        targets = used.targets(values)
        sids = {
            sid
            for (sid, attribute, cell), (_, node) in reference.items()
            if (attribute, cell) in cells and attribute in targets and wanted(used, node, values)
        }
        found = [sub.sid for sub in index.match(values, cells)]
        assert sorted(found) == sorted(sids)
    assert len(index._uses) == len({sub.filter for sub, _ in reference.values()})


@settings(max_examples=examples(150))
@given(filters, events, st.sampled_from(["fails", "matches"]), st.sampled_from(["", "team"]), st.integers())
def test_an_event_that_matches_is_found_in_the_leaves_of_its_pieces(
    node: Any, values: dict[str, Any], absent: str, group: str, seed: int
) -> None:
    used = schema(absent=absent)
    try:
        points = pieces_of(used, node, PubSubConfig(), Random(seed).randrange, group)
    except FilterTooLarge:
        return
    index = LeafIndex(used)
    for number, point in enumerate(points):
        sub = SubObject(peer(1), 1, number, 1, point.attribute, point.low, point.high, write(node), group)
        index.add(sub.key, (sub.attribute, WHOLE), sub)
    read = used.read_values(values)
    found = index.match(read, [(number, WHOLE) for number in used.targets(read)])
    assert bool(found) is wanted(used, node, read)
    if group:
        assert len(found) <= 1, "one leaf alone chooses a member"


def test_pieces_answer_for_their_own_leaf_only() -> None:
    here, there = piece("price > 5", 1), piece("price > 5", 2)
    index = index_of(here)
    index.add(there.key, (EVERY, 5), there)
    assert matched(index, {"price": 6}, (EVERY, WHOLE)) == [1]
    assert matched(index, {"price": 6}, (EVERY, 5)) == [2]
    assert matched(index, {"price": 6}, (EVERY, WHOLE), (EVERY, 5)) == [1, 2]
    assert matched(index, {"price": 6}, (PRICE, WHOLE)) == []
    assert matched(index, {"price": 4}, (EVERY, WHOLE), (EVERY, 5)) == []


def test_of_a_subscription_in_several_pieces_the_one_that_holds_the_event_answers() -> None:
    half = SIDE // 2
    low = piece("price >= 0", 1, PRICE, 0, half - 1, number=0)
    high = piece("price >= 0", 1, PRICE, half, SIDE - 1, number=1)
    for absent, expected in (("fails", []), ("matches", [0, 1])):
        index = index_of(low, high, used=schema(absent=absent))
        for price, own in ((10, 0), (90, 1)):
            values = index.schema.read_values({"price": price})
            assert [sub.piece for sub in index.match(values, [(PRICE, WHOLE)])] == [own]
        assert [sub.piece for sub in index.match({}, [(PRICE, WHOLE)])] == expected
    index = index_of(replace(low, group="team"), replace(high, group="team"), used=schema(absent="matches"))
    assert [sub.piece for sub in index.match({}, [(PRICE, WHOLE)])] == [0]


def test_equal_filters_are_kept_once() -> None:
    subs = [piece("price > 5", sid) for sid in range(1, 101)]
    index = index_of(*subs, piece("price > 6", 101))
    assert (len(index), len(index._uses)) == (101, 2)
    assert matched(index, {"price": 6}) == list(range(1, 101))
    for sub in subs[1:]:
        index.remove(sub.key, (EVERY, WHOLE))
    assert (len(index), len(index._uses)) == (2, 2)
    assert matched(index, {"price": 6}) == [1]
    index.remove(subs[0].key, (EVERY, WHOLE))
    assert (len(index), len(index._uses)) == (1, 1)


def test_a_changed_subscription_takes_the_place_of_the_old_one() -> None:
    index = index_of(piece("price > 5"))
    index.add(piece("").key, (EVERY, WHOLE), piece("price < 5"))
    assert (len(index), len(index._uses)) == (1, 1)
    assert matched(index, {"price": 6}) == []
    assert matched(index, {"price": 4}) == [1]


@pytest.mark.parametrize(
    "text", ["prize > 5", "price >", " AND ".join(f"(price > {n} OR sym CONTAINS 'x{n}')" for n in range(7))]
)
def test_a_filter_that_the_schema_does_not_allow_changes_nothing(text: str) -> None:
    index = index_of(piece("price > 5"))
    with pytest.raises(FilterError):
        index.add(piece("").key, (EVERY, WHOLE), piece(text))
    assert (len(index), len(index._uses)) == (1, 1)
    assert matched(index, {"price": 6}) == [1]


@pytest.mark.parametrize(("absent", "expected"), [("fails", [3]), ("matches", [1, 2, 3, 4])])
def test_conditions_on_absent_attributes_fail_or_hold_as_the_schema_says(absent: str, expected: list[int]) -> None:
    texts = [
        "price > 5",
        "NOT price > 5 AND count = 1",
        "price IS NULL",
        "sym MATCHES 'A+'",
        "price IS NOT NULL",
        "count = 2",
    ]
    index = index_of(*(piece(text, sid) for sid, text in enumerate(texts, 1)), used=schema(absent=absent))
    assert matched(index, {"count": 1}) == expected


def test_a_later_version_of_the_schema_lets_new_attributes_be_named() -> None:
    index = index_of(piece("price > 5"))
    attributes = [*index.schema.document.model_dump()["attributes"], {"name": "venue", "type": "string"}]
    index.schema = schema(version=2, attributes=attributes)
    sub = piece("venue = 'N'", 2)
    index.add(sub.key, (sub.attribute, WHOLE), sub)
    assert matched(index, {"price": 6, "venue": "N"}) == [1, 2]


def test_a_filter_that_cannot_be_tried_counts_as_met_and_costs_no_other_its_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So its subscriber's own node is sent the event, tries it, and ends it there."""
    index = index_of(piece("price > 5", 1), piece("count > 10", 2), piece("price < 5", 3))
    fail_filters(monkeypatch, "count")
    for _ in range(2):
        assert matched(index, {"price": 6.0, "count": 1}) == [1, 2]
    assert list(index.failed.values()) == ["OverflowError: a bug in the filter"]
    [text] = index.failed
    index.remove(piece(text, 2).key, (EVERY, WHOLE))
    assert matched(index, {"price": 6.0, "count": 1}) == [1] and not index.failed
    monkeypatch.undo()
    index.add(piece("count > 10", 2).key, (EVERY, WHOLE), piece("count > 10", 2))
    assert matched(index, {"price": 6.0, "count": 1}) == [1]


def test_filters_that_can_be_tried_alone_only_are(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(piece("price > 5", 1), piece("count > 10", 2))

    def fails(self: FilterIndex[str], event: Any) -> list[str]:
        raise KeyError("a label that is not there")

    monkeypatch.setattr(FilterIndex, "match", fails)
    assert matched(index, {"price": 6.0, "count": 1}) == [1]
    assert not index.failed
