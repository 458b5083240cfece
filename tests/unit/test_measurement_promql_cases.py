"""Cases of PromQL in the files of `promql/`, most of them those of Prometheus' own tests that fall into the subset."""

from __future__ import annotations

import re

import pytest

from protocols.measurement.promql.parse import read_number
from protocols.measurement.promql.refusals import PromqlRefused
from protocols.measurement.promql.tree import QueryResult, ValueKind
from tests.support.promql_cases import Case, cases, key, labelled, run, same, values


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.where)
def test_a_case_comes_out_as_in_prometheus(case: Case) -> None:
    if case.told and case.told[0].startswith("refused "):
        _, reason, words = case.told[0].split(" ", 2)
        with pytest.raises(PromqlRefused) as caught:
            run(case)
        assert caught.value.reason == reason
        assert words in caught.value.message
        return
    result = run(case)
    if result.kind is ValueKind.SCALAR:
        ((_, value),) = result.series[0].samples
        assert same(value, float(case.told[0]))
    elif result.kind is ValueKind.STRING:
        assert f'"{result.text}"' == case.told[0]
    else:
        check_series(result, case.told, case.start, case.step)


def check_series(result: QueryResult, told: list[str], start: float, step: float) -> None:
    if told and (match := re.fullmatch(r"from (\S+) step (\S+)", told[0])):
        start, step, told = read_number(match[1]), read_number(match[2]), told[1:]
    is_ordered = told[:1] == ["ordered"]
    wanted = []
    for line in told[is_ordered:]:
        labels, rest = labelled(line)
        wanted.append((key(labels), [(start + k * step, v) for k, v in enumerate(values(rest)) if v is not None]))
    found = [(key(series.labels), list(series.samples)) for series in result.series]
    if not is_ordered:
        found.sort(key=lambda each: each[0])
        wanted.sort(key=lambda each: each[0])
    assert [labels for labels, _ in found] == [labels for labels, _ in wanted]
    for (name, samples), (_, expected) in zip(found, wanted, strict=True):
        assert [at for at, _ in samples] == [at for at, _ in expected], name
        assert all(same(a[1], b[1]) for a, b in zip(samples, expected, strict=True)), (name, samples)
