"""Reads the cases of PromQL in `tests/unit/promql/`.

Each file says, line by line: ``load STEP`` and series with their values below it (``a+bxn`` counts up n times, ``_`` is
a gap); ``at TIME QUERY`` or ``from TIME to TIME step STEP QUERY``, and what comes of it below; ``clear``. ``since 3``
below a query says that Prometheus 2 has another answer, or none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from protocols.measurement.promql.evaluate import evaluate_instant, evaluate_range
from protocols.measurement.promql.parse import parse, read_number
from protocols.measurement.promql.tree import QueryResult, Series, selectors

FOLDER = Path(__file__).parent.parent / "unit" / "promql"
AT = re.compile(r"at (\S+) (.*)")
FROM = re.compile(r"from (\S+) to (\S+) step (\S+) (.*)")
METRIC = re.compile(r"([a-zA-Z_:][\w:]*)?(?:\{([^}]*)\})?\s+(.*)")
VALUE = re.compile(r"(-?[^x+\-]*(?:[eE][+\-]?\d+)?)(?:([+\-][\d.]+))?(?:x(\d+))?")


@dataclass
class Case:
    where: str
    query: str
    start: float
    end: float
    step: float
    """0 for an instant query."""
    series: list[Series]
    is_new: bool = False
    told: list[str] = field(default_factory=list)


def cases() -> Iterator[Case]:
    for path in sorted(FOLDER.glob("*.txt")):
        series: list[Series] = []
        step, case = 0.0, None
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            if line.strip() == "since 3" and case is not None:
                case.is_new = True
            elif line.startswith(" ") and case is not None:
                case.told.append(line.strip())
            elif line.startswith(" "):
                series.append(loaded(line.strip(), step))
            else:
                if case is not None:
                    yield case
                case = None
                if line.startswith("load "):
                    step = read_number(line.removeprefix("load "))
                elif line == "clear":
                    series = []
                else:
                    case = Case(f"{path.name}:{number}", *asked(line), list(series))
        if case is not None:
            yield case


def asked(line: str) -> tuple[str, float, float, float]:
    if instant := AT.fullmatch(line):
        return instant[2], read_number(instant[1]), read_number(instant[1]), 0.0
    match = FROM.fullmatch(line)
    assert match is not None, line
    return match[4], read_number(match[1]), read_number(match[2]), read_number(match[3])


def labelled(text: str) -> tuple[dict[str, str], str]:
    match = METRIC.fullmatch(text)
    assert match is not None, text
    labels = dict(re.findall(r'(\w+)\s*=\s*"([^"]*)"', match[2] or ""))
    return ({"__name__": match[1], **labels} if match[1] else labels), match[3]


def values(text: str) -> list[float | None]:
    found: list[float | None] = []
    for piece in text.split():
        if piece == "_":
            found.append(None)
            continue
        try:
            found.append(float(piece))
            continue
        except ValueError:
            match = VALUE.fullmatch(piece)
        assert match is not None, piece
        found += [float(match[1]) + k * float(match[2] or 0) for k in range(int(match[3]) + 1)]
    return found


def loaded(text: str, step: float) -> Series:
    labels, rest = labelled(text)
    return Series(labels, [(k * step, value) for k, value in enumerate(values(rest)) if value is not None])


def run(case: Case, since: float = 0.0) -> QueryResult:
    """What comes of it, if its series begin then. Raises `PromqlRefused`."""
    expression = parse(case.query)
    series = [Series(one.labels, [(since + at, value) for at, value in one.samples]) for one in case.series]
    data = {each: [one for one in series if each.matches(one.labels)] for each in selectors(expression)}
    if not case.step:
        return evaluate_instant(expression, since + case.start, data)
    return evaluate_range(expression, since + case.start, since + case.end, case.step, data)


def same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (one != one and other != other)


def key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))
