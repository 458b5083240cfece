"""XPath subscriptions: every answer is lxml's, containment is sound, and what is hostile or costly is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from lxml import etree

from protocols.dissemination.interests.errors import InterestError, ItemError
from protocols.dissemination.interests.xpath.document import parse
from protocols.dissemination.interests.xpath.kind import XPathKind

KIND = XPathKind()
LABELS = "abc"


def random_document(rng: random.Random, depth: int = 4) -> str:
    label = rng.choice(LABELS)
    attributes = "".join(f' {name}="{rng.randint(0, 3)}"' for name in "xy" if rng.random() < 0.3)
    if depth == 0 or rng.random() < 0.25:
        text = rng.choice(["", "1", "2", "-1.5", "t", " 3 "])
        return f"<{label}{attributes}>{text}</{label}>"
    inside = "".join(random_document(rng, depth - 1) + rng.choice(["", "", "2", "t"]) for _ in range(rng.randint(1, 3)))
    return f"<{label}{attributes}>{inside}</{label}>"


def random_query(rng: random.Random) -> str:
    steps = "".join(rng.choice(["/", "//"]) + random_step(rng, 2) for _ in range(rng.randint(1, 3)))
    return steps + (rng.choice(["/@x", "//@y"]) if rng.random() < 0.1 else "")


def random_step(rng: random.Random, depth: int) -> str:
    label = rng.choice([*LABELS, "*"])
    return label + (f"[{random_predicate(rng, depth)}]" if depth and rng.random() < 0.4 else "")


def random_predicate(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if kind < 0.15:
        joint = rng.choice([" and ", " or "])
        return random_predicate(rng, depth - 1) + joint + random_predicate(rng, depth - 1) if depth > 1 else "a"
    if kind < 0.25:
        return f"not({random_predicate(rng, depth - 1) if depth > 1 else 'b'})"
    path = rng.choice(["", ".//"]) + random_step(rng, depth - 1)
    path = rng.choice([path, path, path + "/" + random_step(rng, 0), ".", "@x", "text()", path + "/text()"])
    if path in (".", "text()") or path.endswith("/text()") or rng.random() < 0.5:
        op = rng.choice(["=", "!=", "<", "<=", ">", ">="])
        constant = rng.choice(["1", "2", "-1.5", "'t'" if op in ("=", "!=") else "0", "'2'"])
        return f"{path} {op} {constant}" if rng.random() < 0.8 else f"{constant} {op} {path}"
    return path


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 30))
def test_many_queries_together_give_lxmls_answers(seed: int) -> None:
    rng = random.Random(seed)
    queries = {random_query(rng) for _ in range(30)}
    interests = [KIND.parse(text) for text in queries]
    assert sum(each.meaning.pattern is not None for each in interests) > len(interests) // 2
    together = KIND.make_set()
    for each in interests:
        together.add(each)
    for _ in range(5):
        root = parse(random_document(rng).encode())
        tree = root.getroottree()
        found = together.match(root)
        for each in interests:
            assert (each.id in found) == bool(etree.XPath(each.text)(tree)), (each.text, etree.tostring(root))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_query_that_covers_another_has_all_its_documents(seed: int) -> None:
    rng = random.Random(seed)
    interests = [KIND.parse(random_query(rng)) for _ in range(12)]
    pairs = [(wide, narrow) for wide in interests for narrow in interests if KIND.covers(wide, narrow)]
    for _ in range(10):
        root = parse(random_document(rng).encode())
        for wide, narrow in pairs:
            assert KIND.matches(wide, root) or not KIND.matches(narrow, root), (wide.text, narrow.text)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("/stock/NASDAQ", "/stock/NASDAQ[company='MSFT']"),
        ("//a", "/b/c/a"),
        ("/a//c", "/a/b/c"),
        ("/a/*", "/a/b[c]"),
        ("/a[b]", "/a[b][c]"),
        ("//a[x > 1]", "/a[x > 2]"),
        ("//a[x >= 2]", "//a[x = 3]"),
        ("/a[b or c]", "/a[c]"),
        ("/*", "/a/b"),
        ("/a | /b", "/b[c]"),
    ],
)
def test_what_covers_is_seen(wide: str, narrow: str) -> None:
    assert KIND.covers(KIND.parse(wide), KIND.parse(narrow))
    assert not KIND.covers(KIND.parse(narrow), KIND.parse(wide))


def test_equal_queries_in_other_words_cover_each_other() -> None:
    one, other = KIND.parse("/a/b"), KIND.parse("/a[b]")
    assert KIND.covers(one, other) and KIND.covers(other, one)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a/b", "begins with"),
        ("/a[", "no valid XPath"),
        ("/a/following::b", "costs too much"),
        ("/x:a", "prefix"),
        ("/a" + "[b" * 20 + "]" * 20, "nested deeper"),
        ("/a[" + " or ".join(f"b{i}" for i in range(130)) + "]", "more than 256 parts"),
        ("//a[count(.//b[.//c[.//d]]) > 1]", "cost too much"),
        ("1 + 1", "a path"),
        ("/a" * 3000, "longer than"),
    ],
)
def test_what_is_wrong_or_costly_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InterestError, match=why):
        KIND.parse(text)


@pytest.mark.parametrize(
    "data",
    [
        b"<a>",
        b"",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
        b"<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
        "<!DOCTYPE a><a/>".encode("utf-16"),
        b"<a>" * 70 + b"</a>" * 70,
        b"<a " + b" ".join(b'x%d="1"' % i for i in range(300)) + b"/>",
        b"<a>" + b"<b/>" * 20_001 + b"</a>",
        b"<a>&undefined;</a>",
    ],
)
def test_a_hostile_document_is_refused(data: bytes) -> None:
    with pytest.raises(ItemError):
        parse(data)


def test_a_removed_query_is_not_found_any_more() -> None:
    together = KIND.make_set()
    one, other = KIND.parse("/a"), KIND.parse("/a[count(b) > 1]")
    together.add(one)
    together.add(other)
    root: Any = parse(b"<a><b/><b/></a>")
    assert together.match(root) == {one.id, other.id}
    together.remove(one.id)
    together.remove(other.id)
    assert together.match(root) == set() and len(together) == 0
