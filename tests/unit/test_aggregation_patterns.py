"""Patterns of queries: what RE2 runs, what it refuses, and what a hostile pattern may cost."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from time import process_time

import pytest
from hypothesis import given, strategies as st

from peerd.errors import Unavailable
from protocols.aggregation import patterns
from protocols.aggregation.patterns import QueryError, RegexEngine, compile_pattern

HOSTILE = r"(?P<x>.{1,1000}.{1,1000})z"
"""Over ordinary lines Python's engine takes some 18 s of processor a line for it, and holds the interpreter lock."""
NEARLY_AS_HOSTILE = r"(?P<x>.{1,300}.{1,300})z"
"""The same with repeats that RE2 has room for."""


@pytest.fixture(autouse=True)
def _fresh_patterns() -> Iterator[None]:
    compile_pattern.cache_clear()
    yield
    compile_pattern.cache_clear()


def rows(pattern: str, line: str | bytes, engine: RegexEngine = RegexEngine.RE2) -> list[list[str | None]]:
    """All rows of a line; it must not be given up."""
    compiled = compile_pattern(pattern, engine)

    def fail() -> None:
        raise AssertionError("the line was given up")

    return list(compiled.rows(line if isinstance(line, bytes) else line.encode(), compiled.names, fail))


@pytest.mark.parametrize("engine", RegexEngine)
def test_every_match_is_a_row(engine: RegexEngine) -> None:
    assert rows(r"(?P<k>[a-z]+)(?:=(?P<v>[0-9]+))?", "a=1 b  c=", engine) == [["a", "1"], ["b", None], ["c", None]]
    log = r'^(?P<ip>\S+) \S+ \S+ \[(?P<t>[^\]]+)\] "(?P<verb>[A-Z]+) [^"]*" (?P<status>\d{3}) (?P<bytes>\d+)'
    line = '10.0.0.1 - - [today] "GET /x HTTP/1.1" 200 512'
    assert rows(log, line, engine) == [["10.0.0.1", "today", "GET", "200", "512"]]
    assert rows(r"(?P<w>é|.)", "né".encode(), engine) == [["n"], ["é"]]
    assert rows(r"(?P<w>.)", b"a\xffb", engine) == [["a"], ["\ufffd"], ["b"]]
    assert rows(r"(?P<e>x*)", "éax", engine)[:3] == [[""], [""], ["x"]]
    assert rows(r"(?P<i>(?i)error)", "ERROR", RegexEngine.RE2) == [["ERROR"]]


@pytest.mark.parametrize(
    "pattern",
    [r"(?P<a>x)(?P=a)", r"(?P<a>x)\1", r"(?P<a>x)(?=y)", r"(?<=y)(?P<a>x)", r"(?P<a>x)++", r"(?P<a>x)(?(1)b|c)"],
)
def test_what_only_re2_lacks_is_refused_with_the_way_out(pattern: str) -> None:
    with pytest.raises(QueryError, match=r'regex_engine = "python" in \[protocols.aggregation\]'):
        compile_pattern(pattern)
    assert compile_pattern(pattern, RegexEngine.PYTHON).names == ("a",)


@pytest.mark.parametrize("engine", RegexEngine)
@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", "", "a" * 600, "\ud800", "*a"])
def test_what_nobody_can_run_is_refused(pattern: str, engine: RegexEngine) -> None:
    with pytest.raises(QueryError, match="pattern"):
        compile_pattern(pattern, engine)


def test_an_error_points_at_the_piece() -> None:
    with pytest.raises(QueryError) as caught:
        compile_pattern(r"(?P<a>x)(?=y)")
    assert caught.value.column == 8


def test_without_re2_a_node_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(Unavailable, match=r"pip install google-re2.*regex_engine"):
        compile_pattern("(?P<a>x)")
    assert compile_pattern("(?P<a>x)", RegexEngine.PYTHON).names == ("a",)


def test_a_hostile_pattern_costs_little_processor_time() -> None:
    chance = random.Random(1)
    lines = ["".join(chance.choices("abcdefgh ijkl/.-0123456789", k=1_000)) for _ in range(50)]
    began = process_time()
    with pytest.raises(QueryError, match="256 KiB compiled"):
        compile_pattern(HOSTILE)
    for pattern in (
        NEARLY_AS_HOSTILE,
        r"(?P<x>(?:a|aa)*)*b",
        r"(?P<x>(?:\w+\s?)*)z",
        "a?" * 40 + "(?P<x>" + "a" * 40 + ")",
    ):
        for line in lines:
            rows(pattern, line)
    assert process_time() - began < 20  # of one core; half a second where this was written, hours with backtracking


def test_searches_that_look_at_the_rest_of_a_line_in_vain_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_pattern(r"[^y]*z|(?P<x>.)")
    given_up: list[bool] = []
    line = b"a" * 1_000
    assert len(list(compiled.rows(line, ("x",), lambda: given_up.append(True)))) == 1_000
    monkeypatch.setattr(patterns, "LINE_STEPS_MAX", 1_000_000)
    found = list(compiled.rows(line, ("x",), lambda: given_up.append(True)))
    assert 0 < len(found) < 1_000
    assert given_up == [True]
    assert len(rows(r"^(?P<x>a+)$", line)) == 1


@given(st.text(r"ab.*+?|()[]{}1,^$\w", max_size=14))
def test_any_pattern_runs_or_is_a_query_error(pattern: str) -> None:
    try:
        found = rows(pattern, "ab" * 15)
    except QueryError as error:
        assert error.message
        return
    assert len(found) <= 31
