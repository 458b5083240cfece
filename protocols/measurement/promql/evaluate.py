"""Evaluates a query over the series that its selectors have found. Pure; times inside are whole milliseconds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Final, TypeAlias

from protocols.measurement.promql import functions, tree
from protocols.measurement.promql.functions import COMPARISONS, OPERATORS, SET_OPERATORS, RangeWindow
from protocols.measurement.promql.refusals import EvaluationFailed, PromqlRefused
from protocols.measurement.promql.tree import (
    Applied,
    Expression,
    Grouping,
    Labels,
    QueryResult,
    Selector,
    Series,
    ValueKind,
)

LOOKBACK_S: Final = 300.0
"""An instant selector takes a sample that is less than so old."""
POINTS_MAX: Final = 11_000
"""Most steps of a range query; Prometheus' own limit."""
SERIES_MAX: Final = 10_000
"""Most series of one selector."""
WORK_MAX: Final = 1_000_000
"""Most samples that an evaluation looks at or makes, all nodes and steps together."""
TIME_S_MAX: Final = 1e11
"""Times lie within so many seconds of 1970: some 3,000 years."""
_NAMELESS: Final = Grouping(is_without=True)

Sample: TypeAlias = tuple[Labels, float]
Data: TypeAlias = Mapping[Selector, Sequence[Series]]


def evaluate_instant(expression: Expression, at: float, data: Data) -> QueryResult:
    """The value at one moment, seconds since 1970. Raises `PromqlRefused`."""
    if isinstance(expression, tree.Literal) and isinstance(expression.value, str):
        return QueryResult(ValueKind.STRING, (Series({}, ((at, math.nan),)),), expression.value)
    run, now = _Evaluation(expression, data), _milliseconds(at)
    if isinstance(expression, Selector) and expression.range_s:
        windows = run.windows(expression, now)
        samples = [(labels, *pair) for labels, one in windows for pair in zip(one.times, one.values, strict=True)]
    else:
        samples = [(labels, now, value) for labels, value in run.value(expression, now)]
    return _result(expression.kind, samples)


def evaluate_range(expression: Expression, start: float, end: float, step: float, data: Data) -> QueryResult:
    """The values from ``start`` on, each ``step`` seconds up to ``end``. Raises `PromqlRefused`."""
    check_range(start, end, step)
    if expression.kind not in (ValueKind.SCALAR, ValueKind.VECTOR):
        raise PromqlRefused(f"a range query has a scalar or an instant vector, not a {expression.kind}")
    run = _Evaluation(expression, data)
    moments = range(_milliseconds(start), _milliseconds(end) + 1, max(1, round(step * 1000)))
    samples = ((labels, now, value) for now in moments for labels, value in run.value(expression, now))
    return _result(ValueKind.MATRIX, samples)


def check_range(start: float, end: float, step: float) -> None:
    """Raises `PromqlRefused` for a range query with times that make no sense, or with too many steps."""
    if not (_milliseconds(start) <= _milliseconds(end) and 0 < step < math.inf):
        raise PromqlRefused("a range query ends at its start or later, and its step is above 0")
    if (end - start) / max(step, 0.001) > POINTS_MAX:
        raise PromqlRefused(f"a range query has at most {POINTS_MAX} points: take a larger step")


def _milliseconds(seconds: float) -> int:
    if not abs(seconds) <= TIME_S_MAX:
        raise PromqlRefused(f"a time is a number of seconds since 1970, at most {TIME_S_MAX:g}")
    return round(seconds * 1000)


def _result(kind: ValueKind, samples: Iterable[tuple[Labels, int, float]]) -> QueryResult:
    found: dict[Labels, list[tuple[float, float]]] = {}
    for labels, time, value in samples:
        found.setdefault(labels, []).append((time / 1000, value))
    order = sorted(found) if kind is ValueKind.MATRIX else found
    return QueryResult(kind, tuple(Series(dict(labels), tuple(found[labels])) for labels in order))


class _Evaluation:
    """Goes through a tree at one moment after the other, and counts how much it does."""

    def __init__(self, expression: Expression, data: Data) -> None:
        self._left = WORK_MAX
        self._reduce = cache(Grouping.reduced)
        self._series: dict[Selector, list[tuple[Labels, list[int], list[float]]]] = {}
        for selector in tree.selectors(expression):
            found = data.get(selector, ())
            if len(found) > SERIES_MAX:
                raise EvaluationFailed(f"a selector has found {len(found)} series; {SERIES_MAX} are the most")
            self._series[selector] = []
            for series in found:
                self._spend(len(series.samples))
                labels = tuple(sorted((name, value) for name, value in series.labels.items() if value))
                times = [round(time * 1000) for time, _ in series.samples]
                self._series[selector].append((labels, times, [value for _, value in series.samples]))

    def _spend(self, samples: int) -> None:
        self._left -= samples
        if self._left < 0:
            reason = f"the query would work on more than {WORK_MAX} samples"
            raise EvaluationFailed(f"{reason}: ask for fewer series, a shorter time or a larger step")

    def value(self, node: Expression, at: int) -> list[Sample]:
        """The value of a scalar or instant vector; a scalar is one sample without labels."""
        if isinstance(node, tree.Literal):
            found: list[Sample] = [((), float(node.value))]
        elif isinstance(node, Selector):
            found = [(labels, window.values[-1]) for labels, window in self.windows(node, at)]
        elif node.name in functions.OF_RANGE:
            assert isinstance(node.parts[0], Selector)
            function = functions.OF_RANGE[node.name]
            made = [(labels, function(window)) for labels, window in self.windows(node.parts[0], at)]
            found = [(labels, value) for labels, value in made if value is not None]
            found = found if node.name == functions.KEEPS_NAME else self._nameless(found)
        elif node.name == "time":
            found = [((), at / 1000)]
        else:
            found = self._applied(node, [self.value(part, at) for part in node.parts])
        self._spend(len(found) + 1)
        return found

    def windows(self, selector: Selector, at: int) -> list[tuple[Labels, RangeWindow]]:
        """The samples of each series in a selector's range, where there are any; without a range the newest."""
        end = at - round(selector.offset_s * 1000)
        start, found = end - round((selector.range_s or LOOKBACK_S) * 1000), []
        for labels, times, values in self._series[selector]:
            last = bisect_right(times, end)
            first = bisect_right(times, start) if selector.range_s or not last else last - 1
            if first < last and times[first] > start:
                self._spend(last - first)
                found.append((labels, RangeWindow(start, end, times[first:last], values[first:last])))
        return found

    def _applied(self, node: Applied, values: list[list[Sample]]) -> list[Sample]:
        name, first = node.name, values[0]
        if name == "vector":
            return first
        if name == "scalar":
            return [((), first[0][1] if len(first) == 1 else math.nan)]
        if name in functions.OF_SAMPLE:
            unit = values[1][0][1] if len(values) > 1 else 1.0
            return self._nameless((labels, functions.OF_SAMPLE[name](value, unit)) for labels, value in first)
        if name in SET_OPERATORS:
            return self._joined(node, *values)
        if name in OPERATORS:
            has_scalar = ValueKind.SCALAR in (part.kind for part in node.parts)
            return self._with_scalar(node, *values) if has_scalar else self._one_to_one(node, *values)
        return self._aggregated(node, values[-1], first[0][1] if len(values) > 1 else math.nan)

    def _aggregated(self, node: Applied, samples: Sequence[Sample], parameter: float) -> list[Sample]:
        groups: dict[Labels, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(self._reduce(node.grouping, sample[0]), []).append(sample)
        if node.name not in ("topk", "bottomk"):
            aggregate = functions.AGGREGATES.get(node.name, partial(functions.quantile, parameter))
            return [(labels, aggregate([value for _, value in group])) for labels, group in groups.items()]
        if not abs(parameter) < 2.0**63:
            raise EvaluationFailed(f"{node.name} takes a number of samples, not {parameter}")
        sign = -1 if node.name == "topk" else 1
        best: list[Sample] = []
        for group in groups.values():  # NaN comes last either way; of equal ones the first are taken
            ordered = sorted(group, key=lambda sample: (sample[1] != sample[1], sign * sample[1]))
            best += ordered[: max(0, int(parameter))]
        return best

    def _joined(self, node: Applied, left: list[Sample], right: list[Sample]) -> list[Sample]:
        known = {self._reduce(node.grouping, labels) for labels, _ in (left if node.name == "or" else right)}
        tested, is_wanted = (right if node.name == "or" else left), node.name == "and"
        kept = [sample for sample in tested if (self._reduce(node.grouping, sample[0]) in known) == is_wanted]
        return left + kept if node.name == "or" else kept

    def _with_scalar(self, node: Applied, left: list[Sample], right: list[Sample]) -> list[Sample]:
        apply = OPERATORS[node.name]
        if node.parts[0].kind is ValueKind.SCALAR:
            results = [(labels, value, apply(left[0][1], value)) for labels, value in right]
        else:
            results = [(labels, value, apply(value, right[0][1])) for labels, value in left]
        if _is_filter(node):
            return [(labels, value) for labels, value, is_kept in results if is_kept]
        return self._nameless((labels, float(result)) for labels, _, result in results)

    def _one_to_one(self, node: Applied, left: list[Sample], right: list[Sample]) -> list[Sample]:
        apply, others, found = OPERATORS[node.name], dict[Labels, float](), dict[Labels, Sample]()
        for labels, value in right if left else ():
            group = self._reduce(node.grouping, labels)
            if group in others:
                raise _not_one_to_one(node.name, "right", group)
            others[group] = value
        for labels, value in left:
            group = self._reduce(node.grouping, labels)
            if group not in others or not (apply(value, others[group]) or not _is_filter(node)):
                continue
            if group in found:
                raise _not_one_to_one(node.name, "left", group)
            if not _is_filter(node):
                found[group] = self._reduce(_NAMELESS, group), float(apply(value, others[group]))
            elif node.grouping.is_without:  # a comparison that filters keeps the name
                found[group] = tuple(pair for pair in labels if pair[0] not in node.grouping.names), value
            else:
                found[group] = group, value
        return list(found.values())

    def _nameless(self, samples: Iterable[Sample]) -> list[Sample]:
        made = [(self._reduce(_NAMELESS, labels), value) for labels, value in samples]
        if len(dict(made)) < len(made):
            raise EvaluationFailed("without their names two series have the same labels")
        return made


def _is_filter(node: Applied) -> bool:
    return node.name in COMPARISONS and not node.is_bool


def _not_one_to_one(operator: str, side: str, group: Labels) -> EvaluationFailed:
    shown = ", ".join(f'{name}="{value}"' for name, value in group)[:200]
    reason = f"two series on the {side} of {operator} match in {{{shown}}}, and matching is one to one"
    return EvaluationFailed(f"{reason}: name more labels, or aggregate first")
