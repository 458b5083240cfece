"""The text form and the wire form of queries."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, strategies as st

from peerd.errors import ProtocolError
from peerd.lib.filter.grammar import Dialect
from peerd.lib.filter.parse import parse
from peerd.lib.filter.tree import Compare
from peerd.lib.filter.write import write
from protocols.aggregation.calls import Call
from protocols.aggregation.groups import GROUPS_HARD_MAX, GROUPS_MAX
from protocols.aggregation.patterns import QueryError, RegexEngine
from protocols.aggregation.query import OPERATORS, QUERY_BYTES_MAX, QUERY_HELP, Query, conditions, parse_query
from tests.support.filters import nodes

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
values = st.one_of(
    names, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.just("")
)
simple = st.lists(st.tuples(names, st.sampled_from(OPERATORS), values), max_size=4).map(conditions)
filters = nodes().map(lambda node: parse(write(node, Dialect.WORDS), dialect=Dialect.WORDS))


@st.composite
def queries(draw: st.DrawFn) -> Query:
    call = st.builds(Call, st.sampled_from(["sum", "p99", "distinct", "vector"]), names)
    call |= st.just(Call("count")) | st.builds(lambda name, q: Call("quantile", name, (q,)), names, st.floats(0.01, 1))
    return Query(
        tuple(draw(st.lists(call, min_size=1, max_size=3, unique=True))),
        tuple(draw(st.lists(names, max_size=3, unique=True))),
        draw(simple | filters),
        draw(st.sampled_from(["**/*", "logs/*.csv", "a/**/b?.[ch]"])),
        draw(st.sampled_from(["ndjson", "csv"])),
        None,
        draw(st.integers(1, GROUPS_HARD_MAX)),
    )


@given(queries())
def test_both_forms_round_trip(query: Query) -> None:
    assert Query.from_wire(query.to_wire()) == query
    again = parse_query(str(query), files=query.files, format=query.format, groups_max=query.groups_max)
    assert again == query


def test_examples() -> None:
    assert parse_query("count") == Query((Call("count"),))
    assert parse_query("SUM(bytes) BY user") == Query((Call("sum", "bytes"),), ("user",))
    assert parse_query('count, Quantile(ms, 0.25) by a, "b c"') == Query(
        (Call("count"), Call("quantile", "ms", (0.25,))), ("a", "b c")
    )
    kind = Compare("kind", "=", "import")
    assert parse_query("count by module where kind = import") == Query((Call("count"),), ("module",), kind)
    where = parse_query('mean(x) where a.b>=-1.5 and c!="404" and d<2024-01-31').where
    assert where == conditions([("a.b", ">=", -1.5), ("c", "!=", "404"), ("d", "<", "2024-01-31")])
    where = parse_query("count by status where (method = GET or path like '/a/%') and not ok").where
    assert where == parse("(method = 'GET' OR path LIKE '/a/%') AND NOT ok = 'true'")
    assert parse_query("count", files="x/*.csv").format == "csv"
    assert parse_query("count by word", pattern=r"(?P<word>\w+)").format == "text"
    assert len(QUERY_HELP.splitlines()) <= 31


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 0, "expected one of count, sum, min, max, mean, variance"),
        ("medium(x)", 0, "found 'medium'"),
        ("p99(x, 3)", 0, "p99 takes no number"),
        ("quantile(x)", 0, "quantile takes one number from 0 to 1"),
        ("quantile(x, 2)", 0, "quantile takes one number from 0 to 1"),
        ("histogram(x, 2, 1)", 0, "ascending edges"),
        ("top(x, 2.5)", 0, "one whole number from 1 to 1000"),
        ("top(x, a)", 7, "expected a number, found 'a'"),
        ("sum bytes", 4, "expected '(' and a field"),
        ("sum(bytes", 9, "expected ')'"),
        ("count by", 8, "expected a field name"),
        ("count by where", 9, "expected a field name"),
        ("count group a", 6, "expected 'by', 'where' or the end, found 'group'"),
        ("count where a ~ 3", 14, "expected one of = != < <= > >="),
        ("count where a =", 15, "expected a value"),
        ("count where a = 1e999", 16, "range of a double"),
        ('count where a = "x', 16, "never closed"),
        ("count where a = 1 b = 2", 18, "expected 'and' or 'or' or the end, found 'b'"),
        ("count where", 11, "expected a condition, found the end"),
        ("count where a matches '('", 12, "missing )"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, expected: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(text)
    assert caught.value.column == column
    assert expected in str(caught.value)
    assert str(caught.value).splitlines()[-1] == "  " + " " * column + "^"


@given(st.text(max_size=60) | st.text("count sum()bywhere=<>!\"'and1.5 ", max_size=60))
def test_any_text_is_a_query_or_a_query_error(text: str) -> None:
    try:
        parse_query(text)
    except QueryError as error:
        assert error.message


@pytest.mark.parametrize(
    "glob", ["", "/etc/*", "../x", "a/../b", "a//b", "./a", "~/x", "C:/x", "a\\b", "a\0", "a**/b", "/".join("a" * 40)]
)
def test_globs_stay_below_the_root(glob: str) -> None:
    with pytest.raises(QueryError, match="files"):
        parse_query("count", files=glob)


def test_options_are_validated() -> None:
    for text, expected in (
        ("count, sum(x), count", "each of them once"),
        ("count by a, a", "at most 8 different"),
        (", ".join(f"p{number}(x)" for number in range(10, 27)), "at most 16"),
        ("count by a, b, c, d, e, f, g, h, i", "at most 8"),
    ):
        with pytest.raises(QueryError, match=expected):
            parse_query(text)
    for groups_max in (0, GROUPS_MAX + 1, True):
        with pytest.raises(QueryError, match="groups_max"):
            parse_query("count", groups_max=groups_max)
    with pytest.raises(QueryError, match="named groups"):
        parse_query("count", format="text")
    with pytest.raises(QueryError, match=r"no group named 'x'; it has word"):
        parse_query("count by x", pattern=r"(?P<word>\w+)").compiled_pattern(RegexEngine.RE2)
    for pattern in ("", "a" * 600, "\ud800"):
        with pytest.raises(QueryError, match="pattern"):
            parse_query("count", pattern=pattern)
    with pytest.raises(QueryError, match="pattern is for format text"):
        parse_query("count", pattern="a", format="csv")


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists).map(repr))
def test_hostile_bytes_are_a_protocol_error(data: bytes | str) -> None:
    raw = data if isinstance(data, bytes) else data.encode()
    with pytest.raises(ProtocolError):
        Query.from_wire(raw)


@given(st.data())
def test_a_changed_field_is_valid_or_a_protocol_error(data: st.DataObject) -> None:
    body = list(msgpack.unpackb(data.draw(queries()).to_wire()))
    junk = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
    index = data.draw(st.integers(0, len(body) - 1))
    body[index] = data.draw(junk | st.lists(junk | st.lists(junk, min_size=3, max_size=3), max_size=3))
    try:
        query = Query.from_wire(msgpack.packb(body))
    except ProtocolError as error:
        assert error.reason == "aggregation_query"
    else:
        assert Query.from_wire(query.to_wire()) == query


def test_wire_is_strict() -> None:
    wire = parse_query("count").to_wire()
    for bad in (b"", wire + b"\0", wire[:-1], b"\xff" * (QUERY_BYTES_MAX + 1), b"\x91" * 5000):
        with pytest.raises(ProtocolError):
            Query.from_wire(bad)
    assert wire == bytes.fromhex("9703a5636f756e74c0a42a2a2f2aa66e646a736f6ec0ce000186a0")
