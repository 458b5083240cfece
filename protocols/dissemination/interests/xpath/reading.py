"""From the text of an XPath 1.0 query to a pattern, or to something that lxml has to evaluate. Bounds the cost of both.

Elementpath reads the text; nothing is evaluated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from elementpath import ElementPathError, XPath1Parser

from protocols.dissemination.interests.errors import InterestError
from protocols.dissemination.interests.xpath.pattern import (
    ALWAYS,
    ANY,
    ATTRIBUTE,
    Condition,
    Has,
    NoneOf,
    Of,
    PatternStep,
    StepAxis,
    Value,
    both,
    either,
)

QUERY_BYTES_MAX: Final = 4096
TOKENS_MAX: Final = 256
DEPTH_MAX: Final = 16
"""Brackets in brackets, and the like."""
FREE_STEPS_MAX: Final = 3
"""Steps of any depth (//) inside each other, in a query that is no pattern: each multiplies what it costs."""

COMPARISONS: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Each with the one that means the same with its sides exchanged."""
COSTLY: Final = {"following", "preceding", "following-sibling", "preceding-sibling", "ancestor", "ancestor-or-self"}
COSTLY |= {"namespace", "id", "document", "key", "lang", "$"}
NUMBER: Final = re.compile(r"\s*-?(\d+(\.\d*)?|\.\d+)\s*")


@dataclass(frozen=True, slots=True)
class XPathQuery:
    """A query that was read. ``pattern``: of the document; ``None``: only lxml knows what it means."""

    text: str
    pattern: Condition | None


class _NoPattern(Exception):
    """Something that patterns cannot say."""


def read(text: str) -> XPathQuery:
    """Read a query. Raises `InterestError` for what is not valid, or would cost too much."""
    if len(text.encode()) > QUERY_BYTES_MAX:
        raise InterestError(f"the query is longer than {QUERY_BYTES_MAX} bytes")
    try:
        token = XPath1Parser().parse(text)
    except (ElementPathError, ValueError, RecursionError) as error:
        raise InterestError(f"no valid XPath 1.0: {error}") from error
    _check_cost(token)
    canonical = text.strip()
    try:
        return XPathQuery(canonical, _absolute(token))
    except _NoPattern:
        _check_opaque(token)
        return XPathQuery(canonical, None)


def _tokens(token: Any) -> Iterator[Any]:
    """A token and all inside it."""
    waiting = [token]
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(each)


def _check_cost(token: Any) -> None:
    count = 0
    for each in _tokens(token):
        count += 1
        if count > TOKENS_MAX:
            raise InterestError(f"the query has more than {TOKENS_MAX} parts")
        if each.symbol in COSTLY:
            raise InterestError(f"{each.symbol!r} costs too much for a subscription")
        if each.symbol == ":":
            raise InterestError("names with a namespace prefix are not supported")
    if _bracket_depth(token) > DEPTH_MAX:
        raise InterestError(f"the query is nested deeper than {DEPTH_MAX}")


def _bracket_depth(token: Any) -> int:
    inside = max((_bracket_depth(child) for child in token), default=0)
    return inside + (token.symbol in ("[", "(", "not"))


def _check_opaque(token: Any) -> None:
    free = _free_steps(token)
    if free > FREE_STEPS_MAX:
        raise InterestError(f"{free} steps of any depth inside each other cost too much, limit {FREE_STEPS_MAX}")
    if token.symbol not in ("/", "//", "|", "[", "(", "and", "or", "not", *COMPARISONS):
        raise InterestError("a subscription is a path that begins with / or //, or a condition on such paths")


def _free_steps(token: Any) -> int:
    inside = sum(_free_steps(child) for child in token)
    return inside + (token.symbol in ("//", "descendant", "descendant-or-self"))


# Patterns


def _absolute(token: Any) -> Condition:
    """A whole query, as a condition on the document."""
    if token.symbol == "|":
        return either(_absolute(token[0]), _absolute(token[1]))
    steps = list(_steps(token))
    if not steps or steps[0] is not None:
        raise InterestError("a subscription begins with / or //")
    return _path(steps[1:], ALWAYS)


def _steps(token: Any) -> Iterator[tuple[StepAxis, str, Condition] | None]:
    """The steps of a path, outermost first; ``None`` stands for the document, ``.`` for the node itself."""
    symbol = token.symbol
    if symbol in ("/", "//"):
        axis = StepAxis.CHILD if symbol == "/" else StepAxis.DESCENDANT
        if len(token) == 0:
            yield None
            return
        if len(token) == 1:
            yield None
            yield from _first(token[0], axis)
            return
        yield from _steps(token[0])
        yield from _first(token[1], axis)
    else:
        yield from _first(token, StepAxis.CHILD)


def _first(token: Any, axis: StepAxis) -> Iterator[tuple[StepAxis, str, Condition]]:
    """One step, with its predicates."""
    symbol = token.symbol
    if symbol == "[":
        for found_axis, label, condition in _first(token[0], axis):
            yield found_axis, label, both(condition, _predicate(token[1]))
    elif symbol == "(name)":
        yield axis, token.value, ALWAYS
    elif symbol == "*" and len(token) == 0:
        yield axis, ANY, ALWAYS
    elif symbol == "@" and token[0].symbol == "(name)":
        yield axis, ATTRIBUTE + token[0].value, ALWAYS
    elif symbol == "child":
        yield from _first(token[0], axis)
    elif symbol == "descendant" and axis is StepAxis.CHILD:
        yield from _first(token[0], StepAxis.DESCENDANT)
    elif symbol == "." and axis is StepAxis.CHILD:
        yield axis, ".", ALWAYS
    else:
        raise _NoPattern


def _path(steps: list[Any], last: Condition) -> Condition:
    """The condition that there is such a path below, whose last node meets ``last``."""
    condition = last
    for axis, label, own in reversed(steps):
        if label == ".":
            condition = both(own, condition)
        else:
            condition = Has(axis, PatternStep(label, both(own, condition)))
    return condition


def _predicate(token: Any) -> Condition:
    symbol = token.symbol
    if symbol == "and":
        return both(_predicate(token[0]), _predicate(token[1]))
    if symbol == "or":
        return either(_predicate(token[0]), _predicate(token[1]))
    if symbol == "not":
        return NoneOf(_predicate(token[0]))
    if symbol == "(" and len(token) == 1:
        return _predicate(token[0])
    if symbol in COMPARISONS:
        return _comparison(symbol, token[0], token[1])
    return _relative(token, ALWAYS)


def _comparison(op: str, left: Any, right: Any) -> Condition:
    constant = _constant(right)
    if constant is None:
        left, right, op = right, left, COMPARISONS[op]
        constant = _constant(right)
    if constant is None:
        raise _NoPattern
    if isinstance(constant, str) and op not in ("=", "!="):
        if NUMBER.fullmatch(constant) is None:
            raise _NoPattern
        constant = float(constant)
    return _relative(left, Value(Of.NODE, op, constant))


def _constant(token: Any) -> str | float | None:
    if token.symbol == "(string)":
        return str(token.value)
    if token.symbol in ("(integer)", "(decimal)"):
        return float(token.value)
    if token.symbol == "-" and len(token) == 1 and token[0].symbol in ("(integer)", "(decimal)"):
        return -float(token[0].value)
    return None


def _relative(token: Any, last: Condition) -> Condition:
    """A path from the node that a predicate is about."""
    if token.symbol == "text" and len(token) == 0:
        return _of_text(last)
    if token.symbol in ("/", "//") and len(token) == 2 and token[1].symbol == "text":
        if token.symbol == "//":
            raise _NoPattern
        return _relative(token[0], _of_text(last))
    steps = list(_steps(token))
    if not steps or steps[0] is None:
        raise _NoPattern
    return _path(steps, last)


def _of_text(last: Condition) -> Condition:
    if not isinstance(last, Value):
        raise _NoPattern
    return Value(Of.TEXT, last.op, last.constant)
