"""The filter language: text to tree and back, truth against a naive evaluator, errors that point, limits."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from peerd.lib.filter import patterns
from peerd.lib.filter.errors import FilterError, FilterTooLarge
from peerd.lib.filter.evaluate import explain, matcher, truth
from peerd.lib.filter.grammar import RESERVED, Dialect
from peerd.lib.filter.parse import parse
from peerd.lib.filter.patterns import EngineMissing
from peerd.lib.filter.schema import Schema
from peerd.lib.filter.tree import (
    Affix,
    And,
    Between,
    Compare,
    Constant,
    In,
    InNetwork,
    IsNull,
    Like,
    Matches,
    Node,
    Not,
    Or,
    check_limits,
)
from peerd.lib.filter.values import Address, Timestamp, parse_address, parse_timestamp
from peerd.lib.filter.write import write
from tests.support.examples import examples
from tests.support.filters import events, naive, nodes

# text and tree


@pytest.mark.parametrize("text", ["true = GET", "FALSE != a", "a = TRUE", "NOT true = b"])
def test_words_come_back_as_the_booleans_and_texts_that_they_were(text: str) -> None:
    """Found by the fuzzer: a boolean was written on the right, where ``TRUE`` is a word."""
    node = parse(text, dialect=Dialect.WORDS)
    assert parse(write(node, Dialect.WORDS), dialect=Dialect.WORDS) == node


@given(nodes())
def test_a_written_filter_is_read_as_the_same_tree(node: Node) -> None:
    assert repr(parse(write(node))) == repr(check_limits(node))


@given(nodes())
def test_so_it_is_in_the_dialect_of_words(node: Node) -> None:
    written = write(node, Dialect.WORDS)
    again = parse(written, dialect=Dialect.WORDS)
    assert repr(again).replace("value='TRUE'", "value=True").replace("value='FALSE'", "value=False") == repr(node)


@given(st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name), st.text(max_size=20))
@example("AND", "'")
@example("a.b-c", "\\")
def test_any_name_and_any_text_can_be_written(name: str, text: str) -> None:
    if any(0xD800 <= ord(character) < 0xE000 for character in name + text):
        return
    node = Compare(name, "=", text)
    assert parse(write(node)) == node
    assert parse(write(node, Dialect.WORDS), dialect=Dialect.WORDS) == node


def test_examples() -> None:
    time, address = Timestamp(1_706_659_200_500_000_000), Address(0x0A000001)
    for text, node in [
        ("class = 'stock'", Compare("class", "=", "stock")),
        ("a != 1", Compare("a", "<>", 1)),
        ("5 <= a.b", Compare("a.b", ">=", 5)),
        ("price between 10 and 20.5", Between("price", 10, 20.5)),
        ("price IN [10, 20)", Between("price", 10, 20, True, False)),
        ("price IN (10, 20]", Between("price", 10, 20, False, True)),
        ("price IN (10, 20)", In("price", (10, 20))),
        ("venue not in ('N', 'it''s')", Not(In("venue", ("N", "it's")))),
        ("s LIKE 'a!%%' ESCAPE '!'", Like("s", "a!%%", "!")),
        ("s NOT STARTS WITH 'x'", Not(Affix("s", "STARTS WITH", "x"))),
        ("s matches 'ERR-[0-9]+'", Matches("s", "ERR-[0-9]+")),
        ("ip IN CIDR '10.0.0.0/8'", InNetwork("ip", ("10.0.0.0/8",))),
        ("EXISTS (a)", Not(IsNull("a"))),
        ("a IS NULL", IsNull("a")),
        ("active", Compare("active", "=", True)),
        ("TRUE", Constant(True)),
        ("timestamp >= TIMESTAMP '2024-01-31T00:00:00.5Z'", Compare("timestamp", ">=", time)),
        ("ip = IP '10.0.0.1'", Compare("ip", "=", address)),
        ("p = DECIMAL '0.10'", Compare("p", "=", Decimal("0.10"))),
        ('"from" = 1 AND "a ""b"" \\u00e9" = 2', And((Compare("from", "=", 1), Compare('a "b" é', "=", 2)))),
        ("NOT a = 1 AND b = 2 OR c = 3",
         Or((And((Not(Compare("a", "=", 1)), Compare("b", "=", 2))), Compare("c", "=", 3)))),
    ]:  # fmt: skip
        assert repr(parse(text)) == repr(node), text


def test_words_stand_for_text_in_the_dialect_of_words() -> None:
    text = 'method = GET and day < 2024-01-31 and code != "404" and path LIKE /api/% and ok = true and k in (a, b-c)'
    node = parse(text, dialect=Dialect.WORDS)
    assert isinstance(node, And)
    assert node.parts == (
        Compare("method", "=", "GET"),
        Compare("day", "<", "2024-01-31"),
        Compare("code", "<>", "404"),
        Like("path", "/api/%"),
        Compare("ok", "=", "true"),
        In("k", ("a", "b-c")),
    )
    assert parse("name = O'Brien and a = 'x'", dialect=Dialect.WORDS) == parse("name = 'O''Brien' AND a = 'x'")
    with pytest.raises(FilterError, match="expected a value"):
        parse("method = GET")


@pytest.mark.parametrize("word", ["starts", "contains", "cidr", "timestamp", "decimal", "ip", "matches", "escape_2"])
def test_words_of_the_language_that_are_not_reserved_can_be_names(word: str) -> None:
    assert parse(f"{word} = 1") == Compare(word, "=", 1)
    assert parse(f"a = 1 AND {word} = 1") == And((Compare("a", "=", 1), Compare(word, "=", 1)))


@pytest.mark.parametrize("word", RESERVED)
def test_reserved_words_are_names_in_quotes_only(word: str) -> None:
    assert parse(f'"{word}" = 1') == Compare(word, "=", 1)
    with pytest.raises(FilterError):
        parse(f"{word} = 1 AND a = 1 AND {word} = 1" if word not in ("TRUE", "FALSE") else f"a > {word}")


# truth


@settings(max_examples=examples(300))
@given(nodes(), events)
def test_truth_is_that_of_the_naive_evaluator(node: Node, event: dict[str, Any]) -> None:
    expected = naive(node, event)
    assert truth(node, event) is expected
    assert matcher(node)(event) is (expected is True)
    explanation = explain(node, event)
    assert explanation.truth is expected
    assert explanation.reasons or isinstance(node, Constant) or "TRUE" in write(node) or "FALSE" in write(node)


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        ("TRUE", "TRUE", True, True),
        ("TRUE", "missing = 1", None, True),
        ("TRUE", "FALSE", False, True),
        ("missing = 1", "missing = 1", None, None),
        ("missing = 1", "FALSE", False, None),
        ("FALSE", "FALSE", False, False),
    ],
)
def test_the_truth_tables(left: str, right: str, both: bool | None, either: bool | None) -> None:
    for one, other in ((left, right), (right, left)):
        assert truth(parse(f"{one} AND {other}"), {}) is both
        assert truth(parse(f"{one} OR {other}"), {}) is either
    assert truth(parse("NOT missing = 1"), {}) is None
    assert truth(parse("NOT (missing = 1 OR missing IS NULL)"), {}) is False


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("x = 9007199254740993", 2.0**53, False),
        ("x > 9007199254740992.0", 2**53 + 1, True),
        ("x = DECIMAL '0.1'", 0.1, False),
        ("x = 0.1", 0.1, True),
        ("x = 1", True, None),
        ("x = 1", 1.0, True),
        ("x <> 1", float("nan"), None),
        ("NOT x = 1", "1", None),
        ("x < 'b'", "a", True),
        ("x = TIMESTAMP '2024-01-01T01:00:00+01:00'", "2024-01-01T00:00:00Z", True),
        ("x > TIMESTAMP '2024-01-01T00:00:00Z'", "2024-01-01T00:00:00", None),
        ("x IN CIDR '2001:db8::/32'", "2001:DB8::1", True),
        ("x IN CIDR '10.0.0.0/8'", "10.0.0.0/9", None),
        ("x LIKE '%a_c%'", "zzabczz", True),
        ("x IS NOT NULL", [1], True),
        ("x = 1", [1], None),
        ("x MATCHES 'a.c'", "a\nc", True),
        ("x MATCHES 'b'", "abc", False),
    ],
)
def test_values(text: str, value: object, expected: bool | None) -> None:
    assert truth(parse(text), {"x": value}) is expected


def test_an_explanation_names_the_atoms_that_failed() -> None:
    node = parse("price BETWEEN 10 AND 20 AND sym LIKE 'IB%' AND NOT (venue = 'N' OR venue = 'Q') AND lots > 1")
    explanation = explain(node, {"price": 25, "sym": "IBM", "venue": "Q"})
    assert not explanation.matches
    assert [(reason.atom, reason.truth, reason.value) for reason in explanation.reasons] == [
        ("price BETWEEN 10 AND 20", False, "25"),
        ("venue = 'Q'", True, "'Q'"),
    ]
    unknown = explain(node, {"price": 15, "sym": "IBM", "venue": "X"})
    assert str(unknown) == "unknown\n  lots > 1: unknown, lots is missing"


def test_time_and_addresses_are_read_strictly() -> None:
    assert parse_timestamp("2024-02-30T00:00:00Z") is None
    assert parse_timestamp("0001-01-01T00:00:00+23:00") is None
    assert parse_timestamp("1969-12-31T23:59:59.999999999Z") == -1
    assert str(Timestamp(-1)) == "1969-12-31T23:59:59.999999999Z"
    assert parse_address("10.0.0.01") is None
    assert parse_address("fe80::1%eth0") is None


# schemas

SCHEMA = Schema.read(
    {"price": "decimal", "at": "timestamp", "from": "ip", "sym": "string", "n": "int", "ok": "bool", "x": "float"}
)


def test_a_schema_gives_literals_the_types_of_their_attributes() -> None:
    node = parse("price = 0.1 AND at > '2024-01-01T00:00:00Z' AND \"from\" = '10.0.0.1' AND ok", schema=SCHEMA)
    event = {"price": 0.1, "at": "2024-01-01T00:00:01Z", "from": "10.0.0.1", "ok": True}
    assert matcher(node)(SCHEMA.read_event(event))
    assert SCHEMA.read_event({"price": "cheap", "n": True, "sym": 5, "other": 1}) == {}


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("n = 1 AND sym > 5", 10, "sym is string, and cannot be compared with the number 5"),
        ("price LIKE 'a%'", 0, "price is decimal, and LIKE is for string"),
        ("symb = 'IBM'", 0, "the schema has no attribute 'symb'; did you mean sym?"),
        ("NOT (sym IN CIDR '10.0.0.0/8')", 5, "sym is string, and IN CIDR is for ip"),
        ("at = 'yesterday'", 0, "at is timestamp, and cannot be compared with the string 'yesterday'"),
    ],
)
def test_with_a_schema_a_wrong_type_is_an_error(text: str, column: int, message: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text, schema=SCHEMA)
    assert (caught.value.message, caught.value.column) == (message, column)


@pytest.mark.parametrize("document", [[], {"a": "money"}, {"a": 1}, "a"])
def test_a_schema_that_is_none(document: object) -> None:
    with pytest.raises(FilterError):
        Schema.read(document)


# errors


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 0, "expected a condition, found the end"),
        ("a ~ 3", 2, "expected one of = != < <= > >= BETWEEN IN LIKE"),
        ("a =", 3, "expected a value"),
        ("a = 1 b", 6, "expected 'and' or 'or' or the end, found 'b'"),
        ("(a = 1", 6, "expected ')'"),
        ("a = 1 AND AND b = 2", 10, "found 'AND'"),
        ("a = 'x", 4, "never closed"),
        ("a = 1e999", 4, "range of a double"),
        ("a IN [1, 2, 3]", 5, "a range has two ends"),
        ("b = 1 AND a IN (1, 'x')", 10, "values of one kind"),
        ("a > TRUE", 0, "= and <> only"),
        ("a MATCHES '('", 0, "missing )"),
        ("a LIKE 'x!' ESCAPE '!'", 0, "stands before"),
        ("a = TIMESTAMP 'today'", 4, "expected a time such as"),
        ("a IN CIDR '10.0.0.0/40'", 0, "a network such as"),
        ("a =\n 'b' AND c ~ 1", 15, "found '~'"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, expected: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.column == column
    assert expected in caught.value.message
    shown = str(caught.value).splitlines()
    assert shown[-1].endswith("^")
    assert shown[-2][2:] in text or len(text) > 100


@given(st.text(max_size=60) | st.text("abANDORNOTINLIKE()[]=<>'\"%,.1-_ ", max_size=60))
def test_any_text_is_a_filter_or_a_filter_error(text: str) -> None:
    for dialect in Dialect:
        try:
            node = parse(text, dialect=dialect)
        except FilterError as error:
            assert error.message
        else:
            assert parse(write(node)) == node or dialect is Dialect.WORDS


# engines


def test_without_its_engine_matches_is_understood_but_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    patterns.compile_regex.cache_clear()
    node = parse("a MATCHES 'no such engine' AND b > 1")
    assert parse(write(node)) == node
    with pytest.raises(EngineMissing, match="pip install google-re2"):
        matcher(node)
    assert matcher(parse("a LIKE 'x%_' AND b > 1"))({"a": "xyz", "b": 2})


def test_importing_the_language_loads_none_of_its_engines() -> None:
    program = (
        "import sys, peerd.lib.filter; "
        "print([name for name in ('lark', 're2', 'numpy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# limits

BOMBS: dict[str, tuple[str, str]] = {
    "a megabyte": ("a = '" + "x" * 1_000_000 + "'", "TEXT_BYTES_MAX"),
    "deep parentheses": ("(" * 3000 + "a = 1" + ")" * 3000, "DEPTH_MAX"),
    "deep NOT": ("NOT " * 2000 + "a = 1", "DEPTH_MAX"),
    "deep nesting of both": ("NOT (" * 12 + "a = 1" + ")" * 12, "DEPTH_MAX"),
    "10,000 ORs": (" OR ".join(f"a={i}" for i in range(10_000)), "TEXT_BYTES_MAX"),
    "many short ORs": ("OR ".join(["a "] * 1100), "ATOMS_MAX"),
    "300 conditions": (" OR ".join(f"a={i}" for i in range(300)), "TOKENS_MAX"),
    "a long IN list": (f"a IN ({', '.join(map(str, range(400)))})", "LIST_ITEMS_MAX"),
    "a huge IN list": (f"a IN ({', '.join(map(str, range(1500)))})", "TOKENS_MAX"),
    "a long regular expression": (f"a MATCHES '{'ab' * 300}'", "REGEX_CHARACTERS_MAX"),
    "nested repeats": ("a MATCHES '((x{100}){100}){100}'", "REGEX_REPEAT_MAX"),
    "a repeat beyond RE2's": ("a MATCHES 'x{1001}'", "REGEX_REPEAT_MAX"),
    "a regular expression that compiles to much": (r"a MATCHES '(?:\pL{100}){5}'", "REGEX_MEMORY_BYTES_MAX"),
    "a LIKE of many parts": (f"a LIKE '{'%a' * 100}%'", "LIKE_WILDCARDS_MAX"),
    "a long LIKE": (f"a LIKE '{'a_' * 200}'", "LIKE_CHARACTERS_MAX"),
    "a long text": (f"a = '{'x' * 2000}'", "STRING_CHARACTERS_MAX"),
    "a long name": (f"{'x' * 300} = 1", "NAME_BYTES_MAX"),
    "a long number": (f"a = {'9' * 100}", "NUMBER_CHARACTERS_MAX"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_the_name_of_the_limit(name: str) -> None:
    text, limit = BOMBS[name]
    for dialect in Dialect:
        with pytest.raises(FilterTooLarge) as caught:
            parse(text, dialect=dialect)
        assert caught.value.limit == limit
        assert str(caught.value).count(f"({limit})") == 1


def test_what_lies_at_the_limits_is_accepted() -> None:
    parse("(" * 14 + "a = 1" + ")" * 14)
    parse(" OR ".join(f"a={i}" for i in range(256)))
    parse(f"a IN ({', '.join(map(str, range(256)))})")
    parse("a MATCHES '(a+)+$' AND b MATCHES 'x{1000}'")


def test_limits_hold_for_trees_that_no_text_made() -> None:
    deep: Node = Compare("a", "=", 1)
    for _ in range(20):
        deep = Not(deep)
    with pytest.raises(FilterTooLarge, match="DEPTH_MAX"):
        check_limits(deep)
    with pytest.raises(FilterTooLarge, match="ATOMS_MAX"):
        check_limits(Or(tuple(Compare("a", "=", index) for index in range(300))))
    for bad in (
        Compare("", "=", 1),
        Compare("a", "~", 1),
        Compare("a", "=", float("inf")),
        Compare("a", "=", "\ud800"),
    ):
        with pytest.raises(FilterError):
            check_limits(bad)
