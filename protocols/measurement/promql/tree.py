"""The syntax tree of a query, the series that it works on, and its results. All of it is frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias

from peerd.frozen import Frozen
from peerd.lib.regex import EngineAbsent, engine_options, error_reason, load_engine
from protocols.measurement.promql.refusals import PromqlRefused

NAME: Final = "__name__"
"""The label that holds the name of a metric."""
REGEX_MEMORY_BYTES_MAX: Final = 256 * 1024
"""Most memory that RE2 may use for one compiled expression. Grafana writes long ones: each chosen value is a branch."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of labels, sorted: what samples carry during evaluation."""


class ValueKind(StrEnum):
    """The types of values, in Prometheus' words."""

    SCALAR = "scalar"
    VECTOR = "instant vector"
    MATRIX = "range vector"
    STRING = "string"


class Matcher(Frozen):
    """A condition on a label. One that a series lacks is empty."""

    name: str
    operator: str
    """``=``, ``!=``, ``=~`` or ``!~``: the latter two match the whole value."""
    value: str

    def accepts(self, value: str) -> bool:
        """Whether a label may have this value."""
        is_same = compiled(self.value).fullmatch(value.encode()) if "~" in self.operator else value == self.value
        return bool(is_same) == (self.operator[0] == "=")

    @property
    def steps(self) -> int:
        """How much `accepts` does for each character, at most."""
        return int(compiled(self.value).programsize) if "~" in self.operator else 1


class Selector(Frozen):
    """Which series, and when: ``range_s`` is 0 for the newest sample of each."""

    matchers: tuple[Matcher, ...]
    range_s: float = 0.0
    offset_s: float = 0.0

    @property
    def kind(self) -> ValueKind:
        """What it evaluates to."""
        return ValueKind.MATRIX if self.range_s else ValueKind.VECTOR

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a series with these labels."""
        return all(matcher.accepts(labels.get(matcher.name, "")) for matcher in self.matchers)


class Literal(Frozen):
    """A number or text that was written."""

    value: float | str

    @property
    def kind(self) -> ValueKind:
        """What it evaluates to."""
        return ValueKind.STRING if isinstance(self.value, str) else ValueKind.SCALAR


class Grouping(Frozen):
    """Which labels count: these (by, on), or all but these and the metric's name (without, ignoring)."""

    names: tuple[str, ...] = ()
    is_without: bool = False

    def reduced(self, labels: Labels) -> Labels:
        """What is left of some labels."""
        if self.is_without:
            return tuple(pair for pair in labels if pair[0] not in self.names and pair[0] != NAME)
        return tuple(pair for pair in labels if pair[0] in self.names)


class Applied(Frozen):
    """A function, an operator or an aggregation, by its name, and what it is applied to."""

    name: str
    parts: tuple[Expression, ...]
    kind: ValueKind
    grouping: Grouping = Grouping()
    """Of an aggregation its groups, of an operator what has to match."""
    is_bool: bool = False


Expression: TypeAlias = Selector | Literal | Applied


def walk(expression: Expression) -> Iterator[tuple[Expression, int]]:
    """Yield each node from left to right, and how deep it lies, without recursion."""
    waiting = [(expression, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        if isinstance(node, Applied):
            waiting.extend((part, depth + 1) for part in reversed(node.parts))


def selectors(expression: Expression) -> tuple[Selector, ...]:
    """The series that an expression needs, each selector once, in the order of their first mention."""
    return tuple(dict.fromkeys(node for node, _ in walk(expression) if isinstance(node, Selector)))


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """A compiled expression, for bytes; the dot matches everything, as in Prometheus 3. Raises `PromqlRefused`."""
    try:
        library = load_engine()
    except EngineAbsent:
        raise PromqlRefused("=~ and !~ need the package google-re2, which is not installed here") from None
    options = engine_options(memory_bytes=REGEX_MEMORY_BYTES_MAX, captures=False, dot_matches_newline=True)
    try:
        return library.compile(pattern.encode(), options)
    except library.error as error:
        raise PromqlRefused(f"the regular expression is not valid: {error_reason(error)}") from None


class Series(Frozen):
    """Samples under one set of labels, ascending: seconds since 1970, and the value then."""

    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float]]


class QueryResult(Frozen):
    """A scalar (one series without labels), a vector (of single samples), a matrix (sorted), or a text and its time."""

    kind: ValueKind
    series: tuple[Series, ...] = ()
    text: str = ""
