"""From the text of an XPath 1.0 query to a pattern, or to something that lxml has to evaluate. Bounds the cost of both.

Nothing is evaluated here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.interests.xpath import opaque
from protocols.dissemination.interests.xpath.numbers import number_of
from protocols.dissemination.interests.xpath.opaque import tokens_of
from protocols.dissemination.interests.xpath.parsing import COMPARISONS, QueryToken, parse, write as written
from protocols.dissemination.interests.xpath.pattern import (
    ALWAYS,
    ANY,
    ATTRIBUTE,
    Condition,
    Has,
    Of,
    PatternStep,
    StepAxis,
    Value,
    both,
    depth_of,
    either,
    none_of,
)
from protocols.dissemination.interests.xpath.writing import EVERYTHING, Unwritable, write

QUERY_BYTES_MAX: Final = 4096
TOKENS_MAX: Final = 256
STEPS_DEEP_MAX: Final = 32
"""Steps inside each other."""

COSTLY: Final = frozenset(
    [
        "following",
        "preceding",
        "following-sibling",
        "preceding-sibling",
        "ancestor",
        "ancestor-or-self",
        "parent",
        "..",
        "namespace",
        "id",
        "lang",
        "translate",
        "$",
    ]
)


@dataclass(frozen=True, slots=True)
class XPathQuery:
    """A query that was read.

    ``text`` is canonical. ``pattern``: of the document; every document that meets the query meets it. ``asked``:
    what lxml is asked of documents that meet the pattern; ``None``: nothing, as every such document meets the query.
    ``prefixes``: those of its names, which mean what a document says.
    """

    text: str
    pattern: Condition
    prefixes: frozenset[str]
    asked: str | None = None


class _NoPattern(Exception):
    """Something that patterns cannot say."""


def read(text: str) -> XPathQuery:
    """Read a query. Raises `InterestError` for what is not valid, or would cost too much."""
    if len(text.encode(errors="replace")) > QUERY_BYTES_MAX:
        raise InterestError(f"the query is longer than {QUERY_BYTES_MAX} bytes")
    token = parse(text.strip(_SPACE) or EVERYTHING)
    _check_cost(token)
    found = _without_the_document(token)
    if found is None:
        raise InterestError("the query finds nothing but the document itself (/): write /* for every document")
    prefixes = frozenset(_prefixes(found))
    reader = _Reader()
    pattern = reader.query(found)
    if depth_of(pattern) > STEPS_DEEP_MAX:
        raise InterestError(f"the query has more than {STEPS_DEEP_MAX} steps inside each other")
    if reader.is_exact:
        try:
            return XPathQuery(write(pattern), pattern, prefixes)
        except Unwritable:
            pass
    opaque.check(found)
    return XPathQuery(written(found), pattern, prefixes, opaque.existence(found))


_SPACE: Final = " \t\r\n"


def _check_cost(token: QueryToken) -> None:
    for count, each in enumerate(tokens_of(token)):
        if count >= TOKENS_MAX:
            raise InterestError(f"the query has more than {TOKENS_MAX} parts")
        if each.symbol in COSTLY:
            if each.symbol == "$":
                raise InterestError("a subscription has no variables ($)")
            raise InterestError(f"{each.symbol!r} costs too much for a subscription")


def _without_the_document(token: QueryToken) -> QueryToken | None:
    """A query without those of its paths that find the document itself alone: lxml shows it as nothing at all."""
    if token.symbol == "|":
        left, right = map(_without_the_document, token)
        if left is None or right is None:
            return right if left is None else left
        return QueryToken("|", (left, right))
    if token.symbol == "(":
        inner = _without_the_document(token[0])
        return None if inner is None else QueryToken("(", (inner,))
    if token.symbol == "[":  # where it has a part in it, it may have a place that counts
        return None if _without_the_document(token[0]) is None else token
    is_document = token.symbol == "/" and (not len(token) or (len(token) == 1 and _is_self(token[0])))
    return None if is_document else token


def _is_self(step: QueryToken) -> bool:
    return step.symbol == "self" or (step.symbol == "[" and _is_self(step[0]))


def _prefixes(token: QueryToken) -> Iterator[str]:
    for each in tokens_of(token):
        prefix, colon, _ = each.value.partition(":")
        if each.symbol == "(name)" and colon:
            yield prefix


# Patterns


class _Reader:
    """Reads one query. What patterns cannot say is left out where that makes the pattern wider, and noted."""

    def __init__(self) -> None:
        self.is_exact = True

    def query(self, token: QueryToken) -> Condition:
        """A whole query, as a condition on the document."""
        try:
            return self._absolute(token)
        except _NoPattern:
            return self._unknown()

    def _unknown(self) -> Condition:
        self.is_exact = False
        return ALWAYS

    def _absolute(self, token: QueryToken) -> Condition:
        if token.symbol == "|":
            return either(self._absolute(token[0]), self._absolute(token[1]))
        if token.symbol == "(" and len(token) == 1:
            return self._absolute(token[0])
        if token.symbol not in ("/", "//", "["):
            if token.symbol in ("(name)", "@", ".", "descendant") or token == QueryToken("*"):
                raise InterestError("a subscription begins with / or //")
            raise _NoPattern
        steps = list(self._steps(token))
        if not steps or steps[0] is not None:
            raise InterestError("a subscription begins with / or //")
        if len(steps) > 1 and steps[1] is not None and steps[1][1] == "." and len(steps) == 2:
            raise _NoPattern
        return _path(steps[1:], ALWAYS)

    def _steps(self, token: QueryToken) -> Iterator[Step | None]:
        """The steps of a path, outermost first; ``None`` stands for the document, ``.`` for the node itself."""
        if token.symbol not in ("/", "//"):
            yield from self._step(token, StepAxis.CHILD)
            return
        axis = StepAxis.CHILD if token.symbol == "/" else StepAxis.DESCENDANT
        if len(token) == 0:
            yield None
        elif len(token) == 1:
            yield None
            yield from self._step(token[0], axis)
        else:
            yield from self._steps(token[0])
            yield from self._step(token[1], axis)

    def _step(self, token: QueryToken, axis: StepAxis) -> Iterator[Step]:
        """One step, with its predicates."""
        symbol = token.symbol
        if symbol == "[":
            for found_axis, label, condition in self._step(token[0], axis):
                yield found_axis, label, both(condition, self._predicate(token[1]))
        elif symbol == "(name)":
            yield axis, token.value, ALWAYS
        elif symbol == "*" and len(token) == 0:
            yield axis, ANY, ALWAYS
        elif symbol == "@" and token[0].symbol == "(name)":
            yield axis, ATTRIBUTE + token[0].value, ALWAYS
        elif symbol == "descendant" and axis is StepAxis.CHILD:
            yield from self._step(token[0], StepAxis.DESCENDANT)
        elif symbol == "." and axis is StepAxis.CHILD:
            yield axis, ".", ALWAYS
        else:
            raise _NoPattern

    def _predicate(self, token: QueryToken) -> Condition:
        """A predicate, or a wider one."""
        try:
            return self._condition(token)
        except _NoPattern:
            return self._unknown()

    def _condition(self, token: QueryToken) -> Condition:
        symbol = token.symbol
        if symbol == "and":
            return both(self._predicate(token[0]), self._predicate(token[1]))
        if symbol in ("or", "|"):
            return either(self._predicate(token[0]), self._predicate(token[1]))
        if symbol == "not":
            return self._negated(token[0])
        if symbol == "(" and len(token) == 1:
            return self._condition(token[0])
        if symbol in COMPARISONS:
            return self._comparison(symbol, token[0], token[1])
        return self._relative(token, ALWAYS)

    def _negated(self, token: QueryToken) -> Condition:
        inner = _Reader()
        part = inner._condition(token)
        if not inner.is_exact:  # the opposite of something wider would be narrower
            raise _NoPattern
        return none_of(part)

    def _comparison(self, op: str, left: QueryToken, right: QueryToken) -> Condition:
        constant = _constant(right)
        if constant is None:
            left, right, op = right, left, COMPARISONS[op]
            constant = _constant(right)
        if constant is None:
            raise _NoPattern
        if isinstance(constant, str) and op not in ("=", "!="):
            constant = number_of(constant)
            if constant != constant:
                raise _NoPattern
        return self._relative(left, Value(Of.NODE, op, constant))

    def _relative(self, token: QueryToken, last: Condition) -> Condition:
        """A path from the node that a predicate is about."""
        if token.symbol == "text" and len(token) == 0:
            return _of_text(last)
        if token.symbol in ("/", "//") and len(token) == 2 and token[1].symbol == "text":
            if token.symbol == "//":
                raise _NoPattern
            return self._relative(token[0], _of_text(last))
        steps = list(self._steps(token))
        if not steps or steps[0] is None:
            raise _NoPattern
        return _path(steps, last)


Step = tuple[StepAxis, str, Condition]


def _path(steps: Sequence[Step | None], last: Condition) -> Condition:
    """The condition that there is such a path below, whose last node meets ``last``."""
    condition = last
    for axis, label, own in reversed([step for step in steps if step is not None]):
        if label == ".":
            condition = both(own, condition)
        else:
            condition = Has(axis, PatternStep(label, both(own, condition)))
    return condition


def _constant(token: QueryToken) -> str | float | None:
    if token.symbol == "(string)":
        return token.value
    if token.symbol == "(number)":
        return number_of(token.value)
    if token.symbol == "-" and len(token) == 1 and token[0].symbol == "(number)":
        return -number_of(token[0].value)
    return None


def _of_text(last: Condition) -> Condition:
    if not isinstance(last, Value):
        raise _NoPattern
    return Value(Of.TEXT, last.op, last.constant)
