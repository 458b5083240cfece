"""Interests in JSON objects: answers are those of each filter alone, covering is sound, and reducing loses nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from protocols.dissemination.interests.attributes import AttributesKind
from protocols.dissemination.interests.errors import InterestError, ItemError
from protocols.dissemination.interests.everything import EverythingKind
from protocols.dissemination.interests.json_items import DEPTH_MAX, MEMBERS_MAX, parse_object
from protocols.dissemination.messages import StreamItem
from protocols.dissemination.ports import Interest
from tests.support.examples import examples

KIND = AttributesKind()
SYMBOLS = ("IBM", "IBN", "SUN", "")


def item(payload: bytes) -> StreamItem:
    return StreamItem.of(1, 1, 0, payload)


def random_condition(rng: random.Random, depth: int = 2) -> str:
    if depth and rng.random() < 0.4:
        joint = rng.choice([" AND ", " OR ", " AND NOT "])
        return f"({random_condition(rng, depth - 1)}{joint}{random_condition(rng, depth - 1)})"
    number = rng.randint(-3, 3)
    return rng.choice(
        [
            f"a {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {number}",
            f"b.c BETWEEN {number} AND {number + rng.randint(0, 3)}",
            f"s = '{rng.choice(SYMBOLS)}'",
            f"s IN ('{rng.choice(SYMBOLS)}', '{rng.choice(SYMBOLS)}')",
            f"s STARTS WITH '{rng.choice(SYMBOLS)[:2]}'",
            f"s LIKE '%{rng.choice(SYMBOLS)[1:]}'",
            f"s CONTAINS '{rng.choice(SYMBOLS)[:1]}'",
            "s MATCHES 'I.*'",
            "a IS NULL",
            "EXISTS s",
            "ok",
            "TRUE",
        ]
    )


def random_object(rng: random.Random) -> dict[str, Any]:
    number = [*range(-4, 5), 0.5, "text", None]
    found: dict[str, Any] = {"a": rng.choice(number), "b": {"c": rng.choice(number)}, "s": rng.choice([*SYMBOLS, 3])}
    found["ok"] = rng.random() < 0.5
    return {name: value for name, value in found.items() if rng.random() < 0.8}


def drawn(seed: int, count: int) -> tuple[random.Random, list[Interest]]:
    rng = random.Random(seed)
    return rng, [KIND.parse(random_condition(rng)) for _ in range(count)]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_set_answers_as_each_filter_alone(seed: int) -> None:
    rng, interests = drawn(seed, 20)
    together = KIND.make_set()
    for each in interests:
        together.add(each)
    gone = interests.pop()
    together.remove(gone.id)
    together.remove(gone.id)
    kept = [each for each in interests if each.id != gone.id]
    assert len(together) == len({each.id for each in kept})
    for _ in range(10):
        content = random_object(rng)
        assert together.match(content) == {each.id for each in kept if KIND.matches(each, content)}


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 1 << 30))
def test_covering_is_sound_and_overlap_is_a_share(seed: int) -> None:
    rng, interests = drawn(seed, 10)
    objects = [random_object(rng) for _ in range(15)]
    for one in interests:
        for other in interests:
            assert 0.0 <= KIND.overlap(one, other) <= 1.0
            if KIND.covers(one, other):
                assert KIND.overlap(other, one) == 1.0
                assert all(KIND.matches(one, each) for each in objects if KIND.matches(other, each))


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 1 << 30))
def test_the_canonical_text_means_the_same_and_is_its_own(seed: int) -> None:
    rng, interests = drawn(seed, 5)
    for each in interests:
        again = KIND.parse(each.text)
        assert (again.id, again.text) == (each.id, each.text)
        for _ in range(10):
            content = random_object(rng)
            assert KIND.matches(again, content) == KIND.matches(each, content)


def test_two_texts_that_mean_the_same_are_one_interest() -> None:
    same = {
        KIND.parse(text).id for text in ("sym = 'IBM' AND price > 3", "NOT price <= 3 and sym='IBM'", ' {"x": [1]} ')
    }
    assert len(same) == 2
    assert KIND.parse('{"sym": ["IBM"]}').id == KIND.parse("sym = 'IBM'").id
    assert KIND.parse("").id == KIND.parse("TRUE").id == KIND.parse("a > 1 OR TRUE").id


def test_overlap_is_guessed_from_the_ranges() -> None:
    one, other = KIND.parse("a BETWEEN 0 AND 4"), KIND.parse("a BETWEEN 3 AND 9")
    assert KIND.overlap(one, other) == 0.25
    assert KIND.overlap(KIND.parse("a < 0"), KIND.parse("a > 0")) == 0.0
    assert KIND.overlap(KIND.parse("s IN ('x', 'y', 'z')"), KIND.parse("s IN ('y', 'z', 'q')")) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a ~ 1", "expected one of"),
        ("a = '" + "x" * 9000 + "'", "longer than"),
        ("(" * 30 + "a = 1" + ")" * 30, "nested"),
        (" OR ".join(f"a{n} = 1" for n in range(300)), "at most"),
        (" AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(12)), "alternatives|combinations"),
        ("a MATCHES '(a+)+$(b{1000}){1000}'", "repeat|regular|memory|invalid|bad"),
        ('{"a": ', "is JSON"),
        ("[" * 5000, "is JSON"),
        ("\udc80 = 1", "."),
    ],
)
def test_a_wrong_or_costly_filter_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InterestError, match=why):
        KIND.parse(text)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b'{"a": 1} x', "no valid JSON"),
        (b"[1]", "object, not a list"),
        (b'"a"', "object, not a text"),
        (b"null", "object, not null"),
        (b"true", "object, not true or false"),
        (b"1", "object, not a number"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is there twice"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": -Infinity}', "no JSON"),
        (b'{"a": 1e999}', "range of a double"),
        (b'{"a": ' + b"9" * 5000 + b"}", "characters"),
        (b'{"a": ' * 40 + b"1" + b"}" * 40, f"deeper than {DEPTH_MAX}"),
        (b'{"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", f"deeper than {DEPTH_MAX}"),
        (b'{"a": [' + b"1," * MEMBERS_MAX + b"1]}", f"more than {MEMBERS_MAX}"),
        (b" " * (1 << 21), "too large"),
    ],
)
def test_a_hostile_item_is_refused_with_the_reason(payload: bytes, why: str) -> None:
    with pytest.raises(ItemError, match=why):
        parse_object(payload)


def test_what_has_too_many_members_is_refused_before_all_of_them_are_made() -> None:
    """To make them of 1 MiB and count them then took 0.2 s, in which a daemon did nothing else."""
    for payload in (
        b'{"a": [' + b"1," * (MEMBERS_MAX + 1),
        b'{"a": "' + b'\\",' * MEMBERS_MAX + b'"' + b',""' * 10_001,
    ):
        with pytest.raises(ItemError, match="more than"):
            parse_object(payload)  # none of them is JSON, which would be said if it had been read


@pytest.mark.parametrize("text", [",", '\\",', "\\\\,", "{,["])
def test_commas_in_texts_are_no_members(text: str) -> None:
    payload = f'{{"a{text}": "{text * MEMBERS_MAX}", "b": 1}}'.encode()
    assert list(parse_object(payload).values())[1] == 1


def test_an_item_is_read_once_for_all() -> None:
    content = KIND.content(item(b'{"b": {"c": 2}, "s": "IBM", "list": [{"x": 1}]}'))
    assert KIND.matches(KIND.parse("b.c = 2 AND s LIKE 'I%'"), content)
    assert not KIND.matches(KIND.parse("list = 1"), content)


def test_the_kind_everything_has_one_interest() -> None:
    kind = EverythingKind()
    all_of_it = kind.parse("")
    assert kind.parse(" * ").id == all_of_it.id
    with pytest.raises(InterestError, match="no filters"):
        kind.parse("a = 1")
    together = kind.make_set()
    together.add(all_of_it)
    content = kind.content(item(b"\x00\xff"))
    assert together.match(content) == {all_of_it.id} and kind.matches(all_of_it, content)
    assert kind.covers(all_of_it, all_of_it) and kind.overlap(all_of_it, all_of_it) == 1.0
    together.remove(all_of_it.id)
    assert len(together) == 0 and together.match(content) == set()
