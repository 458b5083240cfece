"""Whatever is written as a query is parsed or refused, and whatever is parsed is evaluated or refused, soon."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from protocols.measurement.promql import evaluate
from protocols.measurement.promql.evaluate import evaluate_instant, evaluate_range
from protocols.measurement.promql.functions import SIGNATURES
from protocols.measurement.promql.parse import DEPTH_MAX, TEXT_BYTES_MAX, parse
from protocols.measurement.promql.refusals import EvaluationFailed, PromqlRefused
from protocols.measurement.promql.tree import Expression, QueryResult, Series, ValueKind, selectors
from tests.support.examples import examples

WORDS = [
    *(
        "a",
        "b",
        "up:x",
        "1",
        "0",
        "2.5e3",
        "Inf",
        "NaN",
        "5m",
        "1h30m",
        '"x"',
        "'y'",
        "`z`",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
    ),
    *('{l="x"}', '{l=~"x|y"}', "[5m]", "[1m]", "offset 1m", "offset -30s", "by (l)", "without (l)", "on (l)"),
    *(
        "ignoring (l)",
        "bool",
        "and",
        "or",
        "unless",
        "+",
        "-",
        "*",
        "/",
        "%",
        "^",
        "==",
        "!=",
        "<=",
        "<",
        ",",
        "@",
        ":",
    ),
    *("group_left", "atan2", "#", "\n", "=~", "!~", "=", "l", "é", "\\", *SIGNATURES, "sum", "deriv", "stdvar"),
]
NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1e308, -1e308])
)
SCALARS = st.sampled_from(["1", "0", "-0.5", "Inf", "NaN", "3", "1e308", "time()", "scalar(a)", "(1 < bool 2)"])
VECTORS = st.sampled_from(["a", "b", '{l="x"}', '{__name__=~".+"}', "a offset 1m", "vector(1)", 'a{l!~"x|y"}'])
RANGES = st.sampled_from(["a[5m]", "b[1m]", '{__name__=~".+"}[2m] offset 30s', "a[1ms]"])


def grown(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Larger expressions of instant vectors."""
    binary = st.sampled_from(["+", "-", "*", "/", "%", "^", "==", "!=", "<", ">=", "< bool", "and", "or", "unless"])
    matching = st.sampled_from(["", "on (l)", "ignoring (l)", "on ()", "ignoring ()", "on (__name__, l)"])
    grouping = st.sampled_from(["", "by (l)", "without (l)", "by ()", "by (__name__)"])
    operators = st.sampled_from(["+", "-", "*", "/", "%", "^", "==", "!= bool", ">"])
    return st.one_of(
        st.builds("({} {} {} {})".format, parts, binary, matching, parts),
        st.builds("({} {} {})".format, SCALARS, operators, parts),
        st.builds("({} {} {})".format, parts, operators, SCALARS),
        st.builds(
            "{} {} ({})".format, st.sampled_from(["sum", "avg", "min", "max", "count", "stddev"]), grouping, parts
        ),
        st.builds("{} {} ({}, {})".format, st.sampled_from(["topk", "bottomk", "quantile"]), grouping, SCALARS, parts),
        st.builds("{}({})".format, st.sampled_from(["-", "abs", "ceil", "floor", "round"]), parts),
        st.builds("round({}, {})".format, parts, SCALARS),
        st.builds("vector(scalar({}))".format, parts),
    )


CALLS = st.builds(
    "{}({})".format, st.sampled_from([name for name in SIGNATURES if name.endswith("_over_time")]), RANGES
)
RATES = st.builds("{}({})".format, st.sampled_from(["rate", "increase", "delta"]), RANGES)
EXPRESSIONS = st.recursive(st.one_of(VECTORS, CALLS, RATES), grown, max_leaves=6)
SERIES = st.lists(
    st.builds(
        lambda name, label, samples: Series({"__name__": name, "l": label}, sorted(samples.items())),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["x", "y", ""]),
        st.dictionaries(st.integers(0, 600).map(float), NUMBERS, max_size=6),
    ),
    max_size=5,
)


def evaluated(expression: Expression, series: list[Series]) -> None:
    data = {each: [one for one in series if each.matches(one.labels)] for each in selectors(expression)}
    evaluations: list[Callable[[], QueryResult]] = [
        lambda: evaluate_instant(expression, 300.0, data),
        lambda: evaluate_range(expression, 0.0, 600.0, 150.0, data),
    ]
    for evaluation in evaluations:
        try:
            result = evaluation()
        except PromqlRefused:
            continue
        assert all(type(value) is float for each in result.series for _, value in each.samples)


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)), SERIES)
def test_any_text_is_parsed_or_refused(text: str, series: list[Series]) -> None:
    try:
        expression = parse(text)
    except PromqlRefused as refused:
        assert refused.column is None or 0 <= refused.column <= len(text)
        assert str(refused) and "\n" not in refused.line
        return
    evaluated(expression, series)


@settings(deadline=None, max_examples=examples(300))
@given(EXPRESSIONS, SERIES)
def test_any_query_is_evaluated_or_refused(text: str, series: list[Series]) -> None:
    expression = parse(text)
    assert expression.kind is ValueKind.VECTOR
    evaluated(expression, series)


@pytest.mark.parametrize(
    "text",
    [
        "sum(" * 20_000,
        "sum(" * (TEXT_BYTES_MAX // 4),
        "(" * TEXT_BYTES_MAX,
        "-" * TEXT_BYTES_MAX,
        "a+" * (TEXT_BYTES_MAX // 2),
        '\\"' * (TEXT_BYTES_MAX // 2),
        "'" * (TEXT_BYTES_MAX - 1),
        "#" * (TEXT_BYTES_MAX + 1),
        "5m" * (TEXT_BYTES_MAX // 2),
        'a{b=~"' + "(" * 4000 + '"}',
        "\ud800",
    ],
    ids=lambda text: repr(text[:8]),
)
def test_what_is_too_large_is_refused_at_once(text: str) -> None:
    with pytest.raises(PromqlRefused):
        parse("a{b=~'x'}!")  # what the first query loads does not count
    before = time.process_time()
    with pytest.raises(PromqlRefused):
        parse(text)
    assert time.process_time() - before < 0.1  # some milliseconds, on a machine that does nothing else


def test_nesting_is_bounded_and_what_is_within_the_bound_is_evaluated() -> None:
    deepest = "sum(" * (DEPTH_MAX - 1) + "a" + ")" * (DEPTH_MAX - 1)
    chain = "a" + " + a" * (DEPTH_MAX - 1)
    for text in (deepest, chain, "2" + "^2" * (DEPTH_MAX - 1)):
        evaluated(parse(text), [Series({"__name__": "a"}, [(300.0, 1.0)])])
    for text in (f"sum({deepest})", f"{chain} + a", "-" * 200 + "a"):
        with pytest.raises(PromqlRefused, match="nested"):
            parse(text)


def test_an_error_points_at_its_place() -> None:
    with pytest.raises(PromqlRefused) as caught:
        parse("sum(a)\n  + predict_linear(b[5m], 60)")
    assert caught.value.line.startswith("2:5: parse error: predict_linear is not in peerd's subset of PromQL")
    assert str(caught.value).endswith("    + predict_linear(b[5m], 60)\n      ^")


def test_the_work_of_a_query_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "WORK_MAX", 1000)
    series = [Series({"__name__": "a", "l": str(k)}, [(float(at), 1.0) for at in range(10)]) for k in range(10)]
    small = parse("a + 1")
    assert len(evaluate_range(small, 0, 5, 1, dict.fromkeys(selectors(small), series)).series) == 10
    for text in ("a + a + a + a + a", "sum_over_time(a[10s])"):
        expression = parse(text)
        with pytest.raises(EvaluationFailed, match="1000 samples"):
            evaluate_range(expression, 0, 30, 1, dict.fromkeys(selectors(expression), series))


def test_selectors_are_told_once_with_range_and_offset() -> None:
    expression = parse('sum(rate(a{l="x"}[5m] offset 1m)) / count(b) + scalar(b offset -2s) * 3')
    assert [(each.range_s, each.offset_s) for each in selectors(expression)] == [(300.0, 60.0), (0.0, 0.0), (0.0, -2.0)]


def test_the_dot_matches_a_new_line() -> None:
    (selector,) = selectors(parse('a{b=~"x.y"}'))
    assert selector.matches({"__name__": "a", "b": "x\ny"}) and not selector.matches({"__name__": "a", "b": "x.yz"})


def test_the_parser_is_loaded_with_the_first_query() -> None:
    code = "import sys, protocols.measurement.promql.evaluate, protocols.measurement.promql.parse; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "protocols.measurement.promql.parse" in loaded and not {"lark", "re2"} & set(loaded)
