"""Statements: what they mean, and how what cannot be meant is refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings, strategies as st

from peerd.lib.filter import FilterError
from peerd.lib.filter.write import write
from protocols.measurement.querying.statement import Statement, parse_statement
from tests.support.examples import examples
from tests.support.queried_nodes import node, running


def test_all_clauses() -> None:
    found = parse_statement(
        "select node, cpu, rtt TO 'h' from nodes where role = 'web' and not cpu >= 0.5 and rtt TO 'h' < 100ms "
        "order by cpu desc, node limit 3 within 0.05, rtt 5ms stale 5s require 0.9 budget 200;"
    )
    assert [each.label for each in found.selected] == ["node", "cpu", "rtt TO 'h'"]
    assert write(found.where) == """role = 'web' AND NOT cpu >= 0.5 AND "rtt TO 'h'" < 0.1"""
    assert [(key.selected.label, key.descending) for key in found.sort_by] == [("cpu", True), ("node", False)]
    assert (found.limit, found.stale_s, found.require, found.budget) == (3, 5.0, 0.9, 200)
    assert found.within == {"": 0.05, "rtt": 0.005}
    assert (found.explain, found.watch) == ("", False)


def test_units_are_seconds_and_bytes() -> None:
    where = parse_statement(
        "SELECT * FROM nodes WHERE a < 100ms AND b >= 4GiB AND 5m < c AND d IN (1s, 2s) AND e < 0.5"
    ).where
    assert write(where) == "a < 0.1 AND b >= 4294967296 AND c > 300.0 AND d IN (1.0, 2.0) AND e < 0.5"


def test_aggregates_and_groups() -> None:
    found = parse_statement(
        "SELECT role, COUNT(*), avg(cpu), max(rtt TO 'h') FROM nodes GROUP BY role ORDER BY MEAN(cpu)"
    )
    assert [each.label for each in found.selected] == ["role", "COUNT(*)", "MEAN(cpu)", "MAX(rtt TO 'h')"]
    assert found.is_grouped


@pytest.mark.parametrize(
    ("text", "explain", "watch"),
    [
        ("EXPLAIN SELECT * FROM nodes", "plan", False),
        ("EXPLAIN ANALYZE SELECT * FROM nodes", "analyze", False),
        ("WATCH SELECT * FROM nodes", "", True),
    ],
)
def test_prefixes(text: str, explain: str, watch: bool) -> None:
    found = parse_statement(text)
    assert (found.explain, found.watch) == (explain, watch)


def test_the_model_query_of_the_paper_is_the_join_as_we_write_it() -> None:
    """Section 6.2.1, as it is written there."""
    paper = parse_statement(
        "select r1.node, r2.node from region r1, region r2 where latency(r1.node, r2.node) < 100ms "
        "and cpu_load(r1.node) < 0.5 and cpu_load(r2.node) < 0.8"
    )
    ours = parse_statement(
        "SELECT r1.node, r2.node FROM nodes r1 JOIN nodes r2 ON rtt(r1, r2) < 100ms WHERE r1.cpu < 0.5 AND r2.cpu < 0.8"
    )
    assert (paper.where, paper.selected[0].label, paper.tables) == (ours.where, "r1.node", ours.tables)
    assert [(c.label, c.name, c.side, c.peer) for c in paper.columns.values()] == [
        (c.label, c.name, c.side, c.peer) for c in ours.columns.values()
    ]


def test_goodness_is_all_unless_something_else_is_said() -> None:
    assert parse_statement("SELECT * FROM nodes").goodness == 1.0
    assert parse_statement("SELECT * FROM nodes WITHIN 1").goodness == 0.0
    assert parse_statement("SELECT * FROM nodes WITHIN 1 REQUIRE 0.5").goodness == 0.5


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("SELECT cpu", 10, "FROM"),
        ("SELECT cpu FROM hosts", 16, "no table 'hosts'"),
        ("SELECT , FROM nodes", 7, "a column or an aggregate"),
        ("SELECT cpu FROM nodes WHERE cpu ~ 5", 32, "one of = "),
        ("SELECT cpu FROM nodes WHERE cpu < 5 LIMITS 3", 36, "expected AND or OR or GROUP or SKYLINE or ORDER"),
        ("SELECT cpu FROM nodes LIMIT 0", 28, "LIMIT is a number from 1 to 10000"),
        ("SELECT cpu FROM nodes LIMIT 1.5", 28, "LIMIT is a number"),
        ("SELECT cpu FROM nodes REQUIRE 1.5", 30, "REQUIRE is a number from 0 to 1"),
        ("SELECT cpu FROM nodes BUDGET -1", 29, "BUDGET is a number"),
        ("SELECT cpu FROM nodes WITHIN -1", 29, "WITHIN is a half-width"),
        ("SELECT cpu FROM nodes STALE 4KiB", 28, "STALE is a number"),
        ("SELECT cpu FROM nodes STALE 1s BUDGET 1 STALE 2s", 46, "STALE is given twice"),
        ("SELECT cpu, COUNT(*) FROM nodes", 7, "cpu is neither in GROUP BY nor in an aggregate"),
        ("SELECT SUM(*) FROM nodes", 11, "SUM is of a column"),
        ("SELECT * FROM nodes GROUP BY role", 7, "columns have to be named"),
        ("SELECT role FROM nodes GROUP BY role ORDER BY MEAN(cpu)", 46, "sorted by what is shown"),
        ("SELECT a.cpu FROM nodes a JOIN nodes b ON cpu < 1", 42, "a column of a or b is expected, as in a.cpu"),
        ("SELECT a.cpu FROM nodes a, nodes a", 27, "different names"),
        ("SELECT rtt(a, c) FROM nodes a, nodes b", 7, "rtt is of two joined tables"),
        ("SELECT cpu FROM nodes WHERE a < 1.5B", 32, "expected a size with its unit"),
        ("SELECT cpu FROM nodes WHERE 'a", 28, "never closed"),
    ],
)
def test_refusals_say_where_and_what(text: str, column: int, message: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse_statement(text)
    assert message in str(refused.value)
    assert refused.value.column == column


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT cpuu FROM nodes", "no node has 'cpuu', did you mean 'cpu'?"),
        ("SELECT cpu FROM nodes WHERE rolle = 'web'", "no node has 'rolle'"),
        ("SELECT rtt TO 'nowhere' FROM nodes", "no nodes have the id or address 'nowhere'"),
        ("SELECT COUNT(*) FROM nodes GROUP BY cpu", "cpu is measured"),
    ],
)
def test_what_no_node_has_is_refused(text: str, message: str) -> None:
    with pytest.raises(FilterError) as refused:
        running(text, [node(1, {"role": "web"}, ["cpu", f"rtt@{2:032x}"])])
    assert message in str(refused.value) and refused.value.column is not None


def test_one_may_ask_for_nodes_without_a_tag_that_none_has() -> None:
    query = running("SELECT node FROM nodes WHERE drained IS NULL", [node(1)])
    assert not query.needs() and len(query.answer().rows) == 1


HOSTILE = {
    "long": "SELECT " + "a" * 9000 + " FROM nodes",
    "columns": "SELECT " + ",".join("a" for _ in range(250)) + " FROM nodes",
    "deep": "SELECT * FROM nodes WHERE " + "(" * 400 + "a" + ")" * 400,
    "nots": "SELECT * FROM nodes WHERE " + "NOT " * 400 + "a",
    "many": "SELECT * FROM nodes WHERE " + " OR ".join("a<1" for _ in range(700)),
    "words": "SELECT " * 1000,
    "spaces": "SELECT a" + " " * 8000 + "TO",
    "pairs": "SELECT " + "a TO " * 900,
    "calls": "SELECT " + "a(b," * 900,
    "digits": "SELECT * FROM nodes LIMIT " + "9" * 5000,
    "quotes": "SELECT * FROM nodes WHERE a = '" + "''" * 4000,
    "surrogate": "SELECT \ud800 FROM nodes",
    "sum": "SELECT " + "SUM(" * 500,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_at_once(name: str) -> None:
    """In some milliseconds; ten times as much is for machines that do much else."""
    parse_statement("SELECT * FROM nodes")  # makes the parser
    times = []
    for _ in range(3):
        began = time.process_time()
        with pytest.raises(FilterError):
            parse_statement(HOSTILE[name])
        times.append(time.process_time() - began)
    assert min(times) < 0.1


WORDS = ["SELECT", "cpu", ",", "FROM", "nodes", "WHERE", "<", "5", "(", ")", "LIMIT", "WITHIN", "*", "AND"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join))
@settings(max_examples=examples(200), deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_statement(text), Statement)
    except FilterError as refused:
        assert str(refused)
