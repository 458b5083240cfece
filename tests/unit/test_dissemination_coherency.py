"""Interests in values: how they are read, which cover which, and what is apart by how much."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from protocols.dissemination.interests.coherency import CoherencyKind, last_sent as last_sent_module
from protocols.dissemination.interests.coherency.last_sent import OBJECTS_MAX
from protocols.dissemination.interests.coherency.reading import NEEDS_MAX, interest_text, simplest
from protocols.dissemination.interests.coherency.tolerance import EXACT, Divergence, Tolerance, apart, edits
from protocols.dissemination.interests.errors import InterestError, ItemError
from protocols.dissemination.messages import INTEREST_BYTES_MAX, StreamItem
from protocols.dissemination.ports import ParsedItem, RememberingKind

KIND = CoherencyKind()


def item(body: Any, sequence: int = 1, published_ms: int = 5_000) -> StreamItem:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return StreamItem.of(1, sequence, published_ms, payload)


def held(name: str, value: Any, sequence: int, time_s: float = 0) -> ParsedItem:
    found = item({"object": name, "value": value, "time": time_s}, sequence)
    return ParsedItem(found, KIND.content(found))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ibm within 0.50", "ibm WITHIN 0.5"),
        ("IBM  WITHIN 2 percent", "IBM WITHIN 2 PERCENT"),
        ("IBM at most every 5000ms", "IBM AT MOST EVERY 5s"),
        ("IBM AT MOST EVERY 1.5s", "IBM AT MOST EVERY 1500ms"),
        ("x CHANGES 10", "x CHANGES 10"),
        ("x WITHIN 3 EDITS", "x WITHIN 3 EDITS"),
        ("x", "x CHANGES 1"),
        ("", "* CHANGES 1"),
        ("b, a", "a CHANGES 1, b CHANGES 1"),
        ("'it''s a name' WITHIN 1", "'it''s a name' WITHIN 1"),
        ("'plain' WITHIN 1", "plain WITHIN 1"),
        ("a WITHIN 1, a WITHIN 0.5, a AT MOST EVERY 1m", "a WITHIN 0.5, a AT MOST EVERY 60s"),
        ("a WITHIN 1, * WITHIN 0.5", "* WITHIN 0.5"),
        ("a WITHIN 0 PERCENT", "a WITHIN 0"),
    ],
)
def test_texts_that_mean_the_same_are_the_same(text: str, canonical: str) -> None:
    found = KIND.parse(text)
    assert found.text == canonical
    assert KIND.parse(canonical) == found


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("IBM WITHIN", 11, "a number"),
        ("IBM WITHIN -1", 12, "a number"),
        ("IBM WITHIN 1e999", 12, "a number"),
        ("IBM ABOUT 1", 5, "WITHIN, AT MOST EVERY, CHANGES"),
        ("IBM AT LEAST", 8, "MOST"),
        ("IBM AT MOST EVERY 5", 19, "a duration"),
        ("IBM AT MOST EVERY 0s", 19, "a duration"),
        ("IBM CHANGES 0", 13, "a whole number from 1"),
        ("IBM CHANGES 1.5", 13, "a whole number from 1"),
        ("IBM WITHIN 99 EDITS", 12, "a whole number from 0 to 16"),
        ("IBM WITHIN 1 2", 14, "a comma or the end"),
        ("a,", 3, "an object"),
        (", a", 1, "an object"),
        ("a 'b", 3, "a quote that is not closed"),
        ("'' WITHIN 1", 1, "an object"),
        ("'*'", 1, "an object"),
        ("x" * 129, 1, "an object"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, at: int, expected: str) -> None:
    with pytest.raises(InterestError, match=rf"character {at}\b.*{expected}"):
        KIND.parse(text)


def test_limits_of_interests_and_items_are_told() -> None:
    with pytest.raises(InterestError, match=str(NEEDS_MAX)):
        KIND.parse(", ".join(f"x{at}" for at in range(NEEDS_MAX + 1)))
    with pytest.raises(InterestError, match=str(INTEREST_BYTES_MAX)):
        KIND.parse("x" * (INTEREST_BYTES_MAX + 1))
    given = KIND.make_last_sent()
    for at in range(OBJECTS_MAX):
        given.give(held(f"o{at}", 1, at + 1))
    with pytest.raises(ItemError, match=str(OBJECTS_MAX)):
        given.give(held("one more", 1, OBJECTS_MAX + 1))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 30_000,
        b"[]",
        b'{"object":"a"}',
        b'{"object":"a","value":NaN}',
        b'{"object":"a","value":1e400}',
        b'{"object":"a","value":' + b"9" * 30 + b"}",
        b'{"object":"a","value":' + b"9" * 6_000 + b"}",
        b'{"object":"a","value":[1]}',
        b'{"object":"","value":1}',
        b'{"object":"*","value":1}',
        b'{"object":7,"value":1}',
        b'{"object":"a","value":1,"time":"now"}',
        b'{"object":"a","value":1,"time":true}',
        b'{"object":"a","value":1,"time":-1}',
        b'{"object":"a","value":1,"time":1e300}',
    ],
)
def test_items_that_are_no_values_are_refused(body: bytes) -> None:
    with pytest.raises(ItemError):
        KIND.content(item(body))


def test_the_time_of_a_value_is_its_own_or_that_of_publication() -> None:
    assert KIND.content(item({"object": "a", "value": None})).time_ms == 5_000
    assert KIND.content(item({"object": "a", "value": True, "time": 1.25, "unit": "K"})).time_ms == 1_250


TOLERANCES = st.one_of(
    st.builds(Tolerance, st.just(Divergence.CHANGES), st.integers(0, 3)),
    st.builds(Tolerance, st.just(Divergence.VALUE), st.sampled_from([0.0, 0.5, 1.0, 3.0])),
    st.builds(Tolerance, st.just(Divergence.PERCENT), st.sampled_from([0.5, 2.0, 10.0])),
    st.builds(Tolerance, st.just(Divergence.AGE), st.sampled_from([999, 4_999])),
    st.builds(Tolerance, st.just(Divergence.EDITS), st.integers(0, 3)),
)
VALUES = st.one_of(st.integers(-20, 20), st.floats(-20, 20).map(lambda x: round(x, 1)), st.text("xy", max_size=3))
ITEMS = st.lists(st.tuples(st.sampled_from("ab"), VALUES), max_size=30)
NEEDS = st.lists(st.tuples(st.sampled_from(["a", "b", "*", "it's"]), TOLERANCES), min_size=1, max_size=4)


@given(NEEDS)
def test_canonical_texts_read_as_what_they_were_written_from(needs: list[tuple[str, Tolerance]]) -> None:
    canonical = simplest(needs)
    assert KIND.parse(interest_text(canonical)).meaning == canonical


EXACTLY = Tolerance(Divergence.VALUE, 0.0)
STRICTER = st.sampled_from(
    [lambda its: its, lambda its: EXACT, lambda its: EXACTLY, lambda its: Tolerance(its.divergence, its.limit // 2)]
)


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(st.lists(st.tuples(st.sampled_from("ab*"), TOLERANCES, STRICTER, st.booleans()), min_size=1, max_size=3), ITEMS)
def test_who_is_kept_within_a_covering_interest_is_within_the_covered_one(
    needs: list[tuple[str, Tolerance, Callable[[Tolerance], Tolerance], bool]], updates: list[tuple[str, Any]]
) -> None:
    """The holder of the wide one gets what it must; a holder of the narrow one, that has the same, must get nothing."""
    wide = [("*" if for_all else name, stricter(each)) for name, each, stricter, for_all in needs]
    one = KIND.parse(interest_text(simplest(wide)))
    other = KIND.parse(interest_text(simplest((name, each) for name, each, *_ in needs)))
    assume(KIND.covers(one, other))
    source, wider, narrower = KIND.make_last_sent(is_source=True), KIND.make_last_sent(), KIND.make_last_sent()
    wider.want([one])
    narrower.want([other])
    for at, (name, value) in enumerate(updates, start=1):
        now = held(name, value, at, time_s=at * 0.7)
        if wider.offer(now, source):
            if KIND.matches(other, now.content):
                narrower.offer(now, source)
                narrower.give(now)
        else:
            assert not narrower.offer(now, source)


def test_one_tolerance_of_an_object_is_looked_at_for_many_interests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0

    def counted(*arguments: Any) -> float:
        nonlocal looked
        looked += 1
        return apart(*arguments)

    source, child = KIND.make_last_sent(is_source=True), KIND.make_last_sent()
    child.want([KIND.parse(f"a WITHIN {16 - number % 3} EDITS, b{number}") for number in range(192)])
    assert child.offer(held("a", "x" * 100, 1), source)
    monkeypatch.setattr(last_sent_module, "apart", counted)
    assert not child.offer(held("a", "x" * 92 + "y" * 8, 2), source)
    assert looked == 1


@given(st.text("abc", max_size=8), st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_the_edit_distance_is_a_distance(one: str, two: str, three: str) -> None:
    far = 100.0
    assert edits(one, two, far) == edits(two, one, far) <= max(len(one), len(two))
    assert (edits(one, two, far) == 0) == (one == two)
    assert edits(one, three, far) <= edits(one, two, far) + edits(two, three, far)
    if edits(one, two, far) > 2:
        assert edits(one, two, 2) > 2


def test_known_edit_distances() -> None:
    assert edits("kitten", "sitting", 9) == 3
    assert edits("", "abc", 9) == 3


def test_overlap_is_guessed_from_the_tolerances() -> None:
    def share(one: str, other: str) -> float:
        return KIND.overlap(KIND.parse(one), KIND.parse(other))

    assert share("a WITHIN 1", "a WITHIN 0.5") == share("a WITHIN 1", "") == 1
    assert share("a WITHIN 0.5", "a WITHIN 1") == 0.25
    assert share("a CHANGES 2", "a CHANGES 10") == 0.2
    assert share("a", "b") == 0
    assert share("a WITHIN 1, b WITHIN 1", "a WITHIN 1") == 0.5
    assert share("a WITHIN 1", "a AT MOST EVERY 1s") == 0.5
    assert share("a WITHIN 0 EDITS", "a WITHIN 2 EDITS") == 0.5


def test_a_set_tells_whom_an_object_concerns() -> None:
    some = KIND.make_set()
    one, other, everything = (KIND.parse(text) for text in ("a WITHIN 1, b", "b CHANGES 5", "*"))
    for each in (one, other, everything, one):
        some.add(each)
    assert some.match(held("b", 1, 1).content) == {one.id, other.id, everything.id}
    assert some.match(held("a", 1, 1).content) == {one.id, everything.id}
    some.remove(one.id)
    some.remove(one.id)
    assert some.match(held("a", 1, 1).content) == {everything.id} and len(some) == 2


def test_changes_are_counted_from_above_through_a_node_that_lacks_some() -> None:
    """Of every third change, a child that may lack 8 needs each third one: the ninth change may be the next."""
    source, node, child = KIND.make_last_sent(is_source=True), KIND.make_last_sent(), KIND.make_last_sent()
    node.want([KIND.parse("a CHANGES 3")])
    child.want([KIND.parse("a CHANGES 9")])
    own = KIND.make_last_sent()
    own.want([KIND.parse("a CHANGES 3")])
    given = []
    for at in range(1, 40):
        now = held("a", at, at)
        if node.offer(now, source):
            own.give(now)
            if child.offer(now, own):
                given.append(at)
    assert given == [1, 10, 19, 28, 37]
    child.unsettle()
    later = held("a", 38, 38)
    own.give(later)
    assert child.offer(later, own), "nobody knows how many changes another parent has not told of"


def test_text_values_within_a_number_are_given_whenever_they_differ() -> None:
    source, child = KIND.make_last_sent(is_source=True), KIND.make_last_sent()
    child.want([KIND.parse("a WITHIN 5")])
    found = [child.offer(held("a", value, at), source) for at, value in enumerate(["x", "x", "y", 3, True, 1, 2], 1)]
    assert found == [True, False, True, True, True, True, False]


def test_the_kind_is_one_that_remembers() -> None:
    assert isinstance(KIND, RememberingKind)
