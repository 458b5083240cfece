"""Normal form, covering, overlapping, JSON forms: each against the naive evaluator."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.evaluate import by_name, compiled_test
from peerd.lib.filter.json_forms import JsonForm, from_json, to_json
from peerd.lib.filter.meaning import Within
from peerd.lib.filter.normal import Conjunct, Mark, NormalForm, mark_of, normal_form
from peerd.lib.filter.parse import parse
from peerd.lib.filter.relations import covers, overlaps
from peerd.lib.filter.tree import Affix, And, Between, Compare, Constant, In, IsNull, Node, Not, Or, all_of
from peerd.lib.filter.values import STRICT, View
from peerd.lib.filter.write import write
from tests.support.examples import examples
from tests.support.filters import comparisons, events, naive, nodes


def form_of(node: Node) -> NormalForm:
    """The normal form, or give this example up when it is beyond the caps."""
    try:
        return normal_form(node)
    except FilterTooLarge:
        assume(False)
        raise


def routes(conjunct: Conjunct) -> tuple[Within, ...]:
    """What an event is routed by: all ranges that hold for every event that matches, but for those of endings."""
    found = conjunct.ranges()
    return tuple(Within(*key, found[key]) for key in sorted(found) if key[1] is not View.ENDING)


def holds(tests: tuple[Any, ...], event: Any) -> bool:
    return all(compiled_test(test, STRICT, by_name)(event) for test in tests)


@settings(max_examples=examples(300))
@given(nodes(), events)
def test_the_normal_form_holds_exactly_where_the_filter_does(node: Node, event: dict[str, Any]) -> None:
    matches = naive(node, event) is True
    form = form_of(node)
    assert any(holds(conjunct.tests, event) for conjunct in form.conjuncts) is matches
    if matches:  # what is routed is never too little
        assert any(holds(routes(conjunct), event) for conjunct in form.conjuncts)
    for conjunct in form.conjuncts:
        if all(mark_of(test) is Mark.ROUTABLE for test in conjunct.tests):
            assert holds(routes(conjunct), event) is holds(conjunct.tests, event)


@settings(max_examples=examples(300))
@given(nodes(leaves=4), nodes(leaves=4), st.lists(events, max_size=6))
def test_covers_and_overlaps_are_sound(left: Node, right: Node, tried: list[dict[str, Any]]) -> None:
    form_of(left), form_of(right)
    covered, together = covers(left, right), overlaps(left, right)
    for event in tried:
        in_left, in_right = naive(left, event) is True, naive(right, event) is True
        assert not (covered and in_right and not in_left)
        assert not (in_left and in_right and not together)
    assert covers(left, left) and covers(Or((left, right)), right) and covers(left, And((left, right)))
    assert overlaps(left, right) is overlaps(right, left)


@settings(max_examples=examples(200))
@given(nodes(leaves=3), st.lists(events, max_size=4), st.data())
def test_a_weaker_filter_covers(node: Node, tried: list[dict[str, Any]], data: st.DataObject) -> None:
    other = data.draw(nodes(leaves=3))
    form_of(And((node, other)))
    assert covers(node, all_of([node, other]))
    assert covers(Constant(True), node) and covers(node, Constant(False))


# Complete where it is promised: conjunctions of ranges, each attribute through one view, tried on a whole domain.

NUMBER_LITERALS, TEXT_LITERALS = (0, 1, 2), ("", "a", "b")
HALVES = [number / 2 for number in range(-1, 6)]
TEXTS = ["", "\0", "a", "a\0", "aa", "az", "b", "b\0", "bb", "c", "\U0010ffff"]
DOMAIN: dict[str, list[Any]] = {"n": [None, *HALVES, "other"], "t": [None, *TEXTS, 7], "f": [None, True, False, 7]}


@st.composite
def promised(draw: st.DrawFn) -> Node:
    """One condition, or its negation, of the kinds for which both answers are certain."""
    kind = draw(st.integers(0, 6))
    numbers: st.SearchStrategy[Any] = st.sampled_from(NUMBER_LITERALS)
    texts: st.SearchStrategy[Any] = st.sampled_from(TEXT_LITERALS)
    name, values = draw(st.sampled_from([("n", numbers), ("t", texts)]))
    atom: Node = Compare(name, draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="])), draw(values))
    if kind == 0:
        atom = Between(name, draw(values), draw(values), draw(st.booleans()), True)
    elif kind == 1:
        atom = In(name, tuple(draw(st.lists(values, min_size=1, max_size=3))))
    elif kind == 2:
        atom = IsNull(draw(st.sampled_from(["n", "t", "f"])))
    elif kind == 3:
        atom = Affix("t", "STARTS WITH", draw(texts))
    elif kind == 4:
        atom = Compare("f", draw(st.sampled_from(["=", "<>"])), draw(st.booleans()))
    return Not(atom) if draw(st.booleans()) else atom


@settings(max_examples=examples(200))
@given(st.lists(promised(), min_size=1, max_size=3), st.lists(promised(), min_size=1, max_size=3))
def test_covers_and_overlaps_are_complete_for_conjunctions_of_ranges(left: list[Node], right: list[Node]) -> None:
    wide, narrow = all_of(left), all_of(right)
    domain = [dict(zip(DOMAIN, point, strict=True)) for point in product(*DOMAIN.values())]
    in_wide = [naive(wide, event) is True for event in domain]
    in_narrow = [naive(narrow, event) is True for event in domain]
    assert covers(wide, narrow) is all(w or not n for w, n in zip(in_wide, in_narrow, strict=True))
    assert overlaps(wide, narrow) is any(w and n for w, n in zip(in_wide, in_narrow, strict=True))


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("a > 1", "a > 2 AND b = 3", True),
        ("a > 1", "a >= 1", False),
        ("a >= 1", "a = 1.0", True),
        ("s STARTS WITH 'a'", "s LIKE 'ab%c'", True),
        ("s ENDS WITH 'c'", "s LIKE 'ab%c'", True),
        ("s ENDS WITH 'c'", "s IN ('abc', 'c')", True),
        ("s MATCHES '[a-c]+'", "s IN ('abc', 'c')", True),
        ("s MATCHES '[a-c]+'", "s IN ('abc', 'd')", False),
        ("s CONTAINS 'b'", "s CONTAINS 'abc'", True),
        ("NOT s CONTAINS 'abc'", "NOT s CONTAINS 'b'", True),
        ("EXISTS s", "NOT s = 'x'", True),
        ("NOT s = 'x'", "EXISTS s", False),
        ("ip IN CIDR '10.0.0.0/8'", "ip IN CIDR ('10.1.0.0/16', '10.2.0.0/16')", True),
        ("ip IN CIDR '10.0.0.0/8'", "ip BETWEEN IP '10.0.0.0' AND IP '11.0.0.0'", False),
        ("a IN [0, 10) OR a IN [10, 20)", "a IN [5, 15)", True),
        ("TRUE", "a = 1", True),
        ("a = 1", "a = 1 AND a = 2", True),
        ("s >= 'ERR-0'", "s MATCHES 'ERR-[0-9]+'", True),
    ],
)
def test_who_covers_whom(wide: str, narrow: str, expected: bool) -> None:
    assert covers(parse(wide), parse(narrow)) is expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("a > 1", "a <= 1", False),
        ("a > 1", "a = '2'", False),
        ("s LIKE 'a%b'", "s STARTS WITH 'b'", False),
        ("s ENDS WITH 'ab'", "s ENDS WITH 'cb'", False),
        ("s ENDS WITH 'ab'", "s ENDS WITH 'b'", True),
        ("s MATCHES 'ERR-.*'", "s < 'ERR'", False),
        ("s MATCHES 'a'", "NOT s MATCHES 'a'", False),
        ("s IS NULL", "s > 1", False),
        ("s = '10.0.0.1'", "s IN CIDR '10.0.0.0/8'", True),
        ("s = '11.0.0.1'", "s IN CIDR '10.0.0.0/8'", False),
        ("s > TIMESTAMP '2024-01-01T00:00:00Z'", "s IN CIDR '10.0.0.0/8'", False),
    ],
)
def test_what_overlaps(left: str, right: str, expected: bool) -> None:
    assert overlaps(parse(left), parse(right)) is expected


def test_marks() -> None:
    [conjunct] = normal_form(parse("a > 1 AND s LIKE 'ab%c' AND t ENDS WITH 'x' AND u IS NULL")).conjuncts
    assert [(test.name, mark_of(test)) for test in conjunct.tests] == [
        ("a", Mark.ROUTABLE),
        ("s", Mark.APPROXIMATE),
        ("t", Mark.RESIDUAL),
        ("u", Mark.RESIDUAL),
    ]
    assert [route.name for route in routes(conjunct)] == ["a", "s"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (" AND ".join(f"(a{i} = 1 OR b{i} = 1)" for i in range(20)), "CONJUNCTS_MAX"),
        (" OR ".join(f"a{i} = 1" for i in range(65)), "CONJUNCTS_MAX"),
        (" AND ".join(f"a{i} = 1" for i in range(33)), "CONJUNCT_ATOMS_MAX"),
        (" AND ".join(["(a = 1 OR b = 2 OR c = 3 OR d = 4 OR e = 5 OR f = 6)"] * 9), "CONJUNCTS_MAX"),
        (" AND ".join(["(" + " OR ".join(f"(a = {i} AND b = {i})" for i in range(40)) + ")"] * 2), "NORMAL_STEPS_MAX"),
    ],
)
def test_a_normal_form_that_blows_up_is_refused_with_the_name_of_the_cap(text: str, limit: str) -> None:
    with pytest.raises(FilterTooLarge) as caught:
        normal_form(parse(text))
    assert caught.value.limit == limit


def test_many_alternatives_of_one_attribute_are_one_set() -> None:
    [conjunct] = normal_form(parse(" OR ".join(f"a = {i}" for i in range(200)))).conjuncts
    assert len(conjunct.tests) == 1


# JSON


@settings(max_examples=examples(200))
@given(nodes(), events)
def test_both_json_forms_match_the_same_events(node: Node, event: dict[str, Any]) -> None:
    expected = naive(node, event) is True
    assert (naive(from_json(to_json(node, JsonForm.TEXT)), event) is True) is expected
    assert (naive(from_json(to_json(node)), event) is True) is expected
    form_of(node)
    try:
        policy = to_json(node, JsonForm.POLICY)
    except FilterError:
        return
    assert (naive(from_json(policy), event) is True) is expected


@settings(max_examples=examples(200))
@given(comparisons(), events)
def test_most_conditions_can_be_written_as_a_policy(node: Node, event: dict[str, Any]) -> None:
    try:
        policy = to_json(node, JsonForm.POLICY)
    except FilterError as error:
        assert any(word in error.message for word in ("range of the", "decimals", "nothing matches", "join two"))
        return
    assert (naive(from_json(policy), event) is True) is (naive(node, event) is True)


def test_a_policy_from_amazon_works() -> None:
    policy = {
        "price": [{"numeric": [">=", 10, "<", 20]}],
        "sym": ["MSFT", {"prefix": "IB"}],
        "venue": [{"anything-but": ["N", "Q"]}],
        "detail": {"state": [{"exists": True}], "ip": [{"cidr": "10.0.0.0/24"}]},
        "$or": [{"a": [True]}, {"b": [None]}],
        "name": [{"equals-ignore-case": "a.b"}],
        "file": [{"wildcard": "*.t_t\\*"}],
        "note": [{"anything-but": {"suffix": "x"}}],
    }
    assert write(from_json(policy)) == (
        "price >= 10 AND price < 20 AND (sym = 'MSFT' OR sym STARTS WITH 'IB') AND venue NOT IN ('N', 'Q') AND "
        "detail.state IS NOT NULL AND detail.ip IN CIDR '10.0.0.0/24' AND (a = TRUE OR b IS NULL) AND "
        "name MATCHES '(?i)a\\.b' AND file LIKE '%.t\\_t*' ESCAPE '\\' AND note NOT ENDS WITH 'x'"
    )


def test_the_filters_of_cloudevents_work() -> None:
    filters = [
        {"exact": {"type": "a", "source": "b"}},
        {"not": {"any": [{"prefix": {"id": "x"}}, {"sql": "n > 1"}]}},
    ]
    node = from_json(filters)
    assert write(node) == (
        "type = 'a' AND source = 'b' AND (id NOT STARTS WITH 'x' OR id IS NULL) AND NOT n > 1"
    )  # fmt: skip
    assert naive(node, {"type": "a", "source": "b", "n": 1}) is True


@pytest.mark.parametrize(
    "document",
    [
        7,
        {"a": 1},
        {"a": []},
        {"a": [[]]},
        {"a": [{"numeric": [">"]}]},
        {"a": [{"numeric": ["~", 1]}]},
        {"a": [{"numeric": [[">"], 1]}]},
        {"a": [{"numeric": [{}, 1]}]},
        {"a": [{"numeric": [">", "1"]}]},
        {"a": [{"prefix": 1}]},
        {"a": [{"prefix": "x", "suffix": "y"}]},
        {"a": [{"sounds-like": "x"}]},
        {"a": [{"cidr": "300.0.0.0/8"}]},
        {"$or": {}},
        [{"exact": {}}],
        [{"exact": {"a": 1}}],
        [{"all": []}],
        [{"sql": "a ~"}],
        [{"xpath": "a"}],
        [{"exact": {"a": "b"}, "prefix": {"a": "b"}}],
    ],
)
def test_json_that_is_no_filter(document: object) -> None:
    with pytest.raises(FilterError):
        from_json(document)


def test_json_bombs_are_refused_with_the_name_of_the_limit() -> None:
    deep: Any = {"exact": {"a": "b"}}
    nested: Any = [1]
    for _ in range(1000):
        deep, nested = {"not": deep}, {"a": nested}
    for document, limit in [
        ([deep], "DEPTH_MAX"),
        (nested, "DEPTH_MAX"),
        ({"a": list(range(100_000))}, "ELEMENTS_MAX"),
        ({"a": [str(index) for index in range(300)]}, "LIST_ITEMS_MAX"),
        ({f"a{index}": [1] for index in range(300)}, "ATOMS_MAX"),
    ]:
        with pytest.raises(FilterTooLarge) as caught:
            from_json(document)
        assert caught.value.limit == limit
