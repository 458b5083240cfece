"""Tree patterns: what most XPath queries are. Pure.

A query is a condition on the document. A condition asks for children and descendants that meet conditions of their own,
and for values; conditions may be joined by ``and``, ``or`` and ``not``. Which part of an XPath query is its result does
not matter for us, only whether there is one, so ``/a/b`` and ``/a[b]`` are one pattern.

Patterns are values: equal ones are equal, whatever their texts were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

ANY: str = "*"
"""The label of a step that meets every element."""
ATTRIBUTE: str = "@"
"""The labels of attributes begin with this."""


class StepAxis(Enum):
    """How far below a node another one is. An attribute is a child of its element."""

    CHILD = "/"
    DESCENDANT = "//"


class Of(Enum):
    """Which text a value test looks at."""

    NODE = "."
    """The string-value of the node: all text below it, joined."""
    TEXT = "text()"
    """Any of its own text nodes."""


@dataclass(frozen=True, slots=True)
class Value:
    """A comparison with a constant. ``op``: one of = != < <= > >=; with a text only = and !=."""

    of: Of
    op: str
    constant: str | float


@dataclass(frozen=True, slots=True)
class PatternStep:
    """An element or attribute: its label, and the condition that it meets."""

    label: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class Has:
    """There is such a node below."""

    axis: StepAxis
    step: PatternStep


@dataclass(frozen=True, slots=True)
class All:
    """All of them hold; none at all: always."""

    parts: frozenset[Condition]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one of them holds; none at all: never."""

    parts: frozenset[Condition]


@dataclass(frozen=True, slots=True)
class NoneOf:
    """It does not hold."""

    part: Condition


Condition: TypeAlias = "Value | Has | All | Some | NoneOf"
ALWAYS = All(frozenset())


def both(one: Condition, other: Condition) -> Condition:
    """Join two conditions by ``and``."""
    return _joined(All, one, other)


def either(one: Condition, other: Condition) -> Condition:
    """Join two conditions by ``or``."""
    return _joined(Some, one, other)


def _joined(kind: type[All] | type[Some], one: Condition, other: Condition) -> Condition:
    parts: set[Condition] = set()
    for each in (one, other):
        if isinstance(each, kind):
            parts.update(each.parts)
        else:
            parts.add(each)
    return next(iter(parts)) if len(parts) == 1 else kind(frozenset(parts))


def steps_of(condition: Condition) -> Iterator[PatternStep]:
    """All steps in a condition, each after those inside it."""
    match condition:
        case Has(step=step):
            yield from steps_of(step.condition)
            yield step
        case All(parts=parts) | Some(parts=parts):
            for part in parts:
                yield from steps_of(part)
        case NoneOf(part=part):
            yield from steps_of(part)


# Containment


def covers(wide: Condition, narrow: Condition) -> bool:
    """Whether every node that meets ``narrow`` meets ``wide``. Sound; a "no" may be wrong.

    A "yes" is a map from the wide pattern's nodes into the narrow one's that keeps labels, axes and conditions (a
    homomorphism). For patterns with / // [] and * there are contained ones without such a map (Miklau and Suciu 2004);
    finding those too is too costly.
    """
    if wide == narrow:
        return True
    if isinstance(narrow, Some):
        return all(covers(wide, part) for part in narrow.parts)
    if isinstance(wide, All):
        return all(covers(part, narrow) for part in wide.parts)
    facts = narrow.parts if isinstance(narrow, All) else frozenset((narrow,))
    match wide:
        case Some(parts=parts):
            return any(covers(part, narrow) for part in parts)
        case Has():
            return any(_shows(fact, wide) for fact in facts)
        case Value():
            return any(isinstance(fact, Value) and _value_covers(wide, fact) for fact in facts)
        case NoneOf(part=part):
            return any(isinstance(fact, NoneOf) and covers(fact.part, part) for fact in facts)
    return False


def _shows(fact: Condition, wanted: Has) -> bool:
    """Whether a condition that holds shows that there is a node as wanted."""
    if not isinstance(fact, Has):
        return False
    is_near = wanted.axis is StepAxis.DESCENDANT or fact.axis is StepAxis.CHILD
    if is_near and _step_covers(wanted.step, fact.step):
        return True
    return wanted.axis is StepAxis.DESCENDANT and covers(wanted, fact.step.condition)


def _step_covers(wide: PatternStep, narrow: PatternStep) -> bool:
    is_any = wide.label == ANY and not narrow.label.startswith(ATTRIBUTE)
    return (is_any or wide.label == narrow.label) and covers(wide.condition, narrow.condition)


def _value_covers(wide: Value, narrow: Value) -> bool:
    if wide == narrow:
        return True
    if wide.of is not narrow.of or isinstance(wide.constant, str) or isinstance(narrow.constant, str):
        return False
    w, n = wide.constant, narrow.constant
    match wide.op, narrow.op:
        case (">", ">") | (">=", ">=") | (">=", ">") | (">=", "="):
            return n >= w
        case (">", ">=") | (">", "="):
            return n > w
        case ("<", "<") | ("<=", "<=") | ("<=", "<") | ("<=", "="):
            return n <= w
        case ("<", "<=") | ("<", "="):
            return n < w
        case ("!=", ">") | ("!=", "<"):
            return n >= w if narrow.op == ">" else n <= w
        case ("!=", "="):
            return n != w
    return False
